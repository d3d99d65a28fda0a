//! `weft crash run`: what it finds in small programs, and what it says of those that it cannot test.

use crate::run::Bench;

const OLD: &str = "echo old >f";
const CHECK: &str = "grep -qx -e old -e new f";

fn args<'a>(run: &'a str, check: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["crash", "run", "--setup", OLD, "--run", run, "--check", check];
    all.extend_from_slice(more);
    all
}

fn mounts() -> String {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    all.lines().filter(|line| line.contains("weft-crash")).collect()
}

#[test]
fn a_missing_fsync_is_named_with_its_calls() {
    let bench = Bench::new();
    let ran = bench.run(&args("echo new >t; mv t f", CHECK, &["--model", "xfs-like"]));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    for text in [
        "xfs-like: 1 STATE FAILS",
        r#"write("t", bytes 0 to 4) is lost, but the later rename("t", "f") is on the disk"#,
        r#"missing: fsync("t"), after call 2 and before call 4"#,
        "with it, none of",
    ] {
        assert!(ran.out.contains(text), "{text}: {}", ran.out);
    }
    // With the fsync that was named nothing fails, under every model.
    for model in ["posix", "ext4-ordered", "xfs-like", "btrfs-like"] {
        let ran = bench.run(&args("echo new >t; sync t; mv t f", CHECK, &["--model", model]));
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains(": no state fails; "), "{}", ran.out);
    }
}

#[test]
fn a_promise_that_is_not_durable_is_found() {
    let bench = Bench::new();
    let check = r#"test ! -s "$WEFT_PROMISES" || test -e g"#;
    let posix = ["--model", "posix", "--stdout-is-promise", "made*g"];
    let ran = bench.run(&args("echo x >g; sync g; echo made g", check, &posix));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(r#"is lost, though the program printed "made g""#), "{}", ran.out);
    assert!(ran.out.contains(r#"missing: fsync(".")"#), "{}", ran.out);
    let ran = bench.run(&args("echo x >g; sync g .; echo made g", check, &posix));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn a_recording_is_kept_and_searched_elsewhere() {
    let bench = Bench::new();
    let run = "echo new >t; mv t f";
    bench.ok(&["crash", "run", "--setup", OLD, "--run", run, "--record", "log"]);
    let listed = bench.ok(&["crash", "run", "--replay", "log", "--list"]);
    assert!(listed.contains(r#"rename("t", "f")"#), "{listed}");
    let replay = ["crash", "run", "--replay", "log", "--check", CHECK, "--model", "btrfs-like"];
    let ran = bench.run(&[&replay[..], &["--json"]].concat());
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let finding = &report["models"][0]["findings"][0];
    assert_eq!(finding["nature"], "reordered");
    assert_eq!(finding["mend"]["calls"][0], r#"fsync("t")"#);
    assert_eq!(finding["mend"]["failed"], 0);
    // The state that it names fails alone, too, and its files can be looked at.
    let state = finding["state"].as_str().unwrap();
    let one = ["--state", state, "--extract", "files"];
    let ran = bench.run(&[&replay[..], &one].concat());
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert_eq!(std::fs::read(bench.path("files/f")).unwrap(), b"");
    let junit = bench.path("junit.xml");
    let ran = bench.run(&[&replay[..], &["--junit", junit.to_str().unwrap()]].concat());
    assert_eq!(ran.code, 3);
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains(r#"tests="1" failures="1""#) && xml.contains("btrfs-like"), "{xml}");
    let ran = bench.run(&[&replay[..], &["--state", "0:99"]].concat());
    assert_eq!(ran.code, 2, "{}{}", ran.out, ran.err);
    bench.write("bad", b"no recording");
    let ran = bench.run(&["crash", "run", "--replay", "bad", "--check", "true"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("bad: not a recording"), "{}", ran.err);
}

#[test]
fn what_cannot_be_tested_is_said_and_nothing_stays_mounted() {
    let bench = Bench::new();
    for (run, check, more, says) in [
        ("echo new >f", "false", &[][..], "the check fails on what the program left behind"),
        ("exit 7", CHECK, &[], "not tested: the program failed (exit status 7)"),
        ("kill -9 $$", CHECK, &[], "not tested: the program failed (a signal)"),
        ("echo new >f", "no-such-program", &[], "the check cannot be run (exit status 127)"),
        ("sleep 1000", CHECK, &["--run-limit", "200ms"], "did not end within 0.2 s"),
        ("setsid sleep 1000 & sleep 1000", CHECK, &["--run-limit", "200ms"], "did not end within"),
        (
            "head -c 3000000 /dev/zero >big",
            CHECK,
            &["--write-limit", "1M"],
            "wrote more than 1 MiB (--write-limit)",
        ),
        ("head -c 3000000 /dev/zero >big", CHECK, &["--size", "1M"], "the program failed"),
    ] {
        let ran = bench.run(&args(run, check, more));
        assert_eq!(ran.code, 1, "{run}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(says), "{run}: {}", ran.err);
    }
    let ran = bench.run(&args("true", CHECK, &["--model", "zfs"]));
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert_eq!(mounts(), "");
}

#[test]
fn programs_that_leave_processes_and_checks_that_misbehave_get_a_verdict() {
    let bench = Bench::new();
    // What goes on in the background is killed, and its calls until then are tested.
    let ran = bench.run(&args("(sleep 1000; echo x >f) & echo new >f", "true", &[]));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // A check that hangs, dies or changes its folder: each state is a copy.
    let posix = ["--model", "posix", "--check-limit", "300ms"];
    let run = "echo new >f.new; sync f.new; mv f.new f";
    for (check, code, says) in [
        ("if grep -q new f; then rm -rf ./*; fi", 0, "no state fails"),
        ("if grep -qx old f; then sleep 1000; fi", 3, "timed out"),
        ("if grep -qx old f; then kill -9 $$; fi", 3, "ended by signal 9"),
    ] {
        let ran = bench.run(&args(run, check, &posix));
        assert_eq!(ran.code, code, "{check}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains(says), "{check}: {}", ran.out);
    }
    assert_eq!(mounts(), "");
}

#[test]
fn each_fsync_is_left_out_in_turn() {
    let bench = Bench::new();
    let run = "echo new >t; sync t; mv t f; echo x >g; sync g; sync g";
    let ran = bench.run(&args(run, CHECK, &["--each-sync", "--model", "xfs-like"]));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for text in [
        r#"fsync("t"): NEEDED: found in"#,
        r#"fsync("g"): not missed in"#,
        r#"fsync("g"): nothing to do"#,
        "3 calls: 1 needed, 1 with nothing to do",
    ] {
        assert!(ran.out.contains(text), "{text}: {}", ran.out);
    }
    let ran = bench.run(&args("echo new >t; mv t f", CHECK, &["--each-sync", "--model", "posix"]));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("a state fails with every fsync in place"), "{}", ran.err);
}
