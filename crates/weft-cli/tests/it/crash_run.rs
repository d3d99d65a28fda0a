//! `weft crash run`: what it finds in small programs, and what it says of those that it cannot test.

use crate::run::{Bench, Ran, ran};

const OLD: &str = "echo old >f";
const CHECK: &str = "grep -qx -e old -e new f";

fn args<'a>(run: &'a str, check: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["crash", "run", "--setup", OLD, "--run", run, "--check", check];
    all.extend_from_slice(more);
    all
}

/// Runs the command, with its mount points in a directory of this test.
fn weft(bench: &Bench, args: &[&str]) -> Ran {
    let tmp = bench.path("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    ran(&bench.command(args).env("TMPDIR", tmp).output().unwrap())
}

/// Returns the mounts that runs of this test have left, and no others: other tests and programs
/// mount, too.
fn mounts_left(bench: &Bench) -> String {
    let tmp = bench.path("tmp").canonicalize().unwrap();
    let ours = [tmp.to_str().unwrap(), "/weft-crash-"];
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    all.lines().filter(|line| ours.iter().any(|path| line.contains(path))).collect()
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
fn programs_run_on_volumes_of_weft() {
    let bench = Bench::new();
    for order in ["soft", "journal", "journal=ordered", "journal=full", "async"] {
        // What is fsynced is there, under every order of writes.
        let promised = r#"test ! -s "$WEFT_PROMISES" || grep -qx new f"#;
        // Without any order a power cut may take both the old file and the new name.
        let check = match order {
            "async" => promised.to_owned(),
            _ => format!("{promised} || exit 1; grep -qx -e old -e new f"),
        };
        let check = check.as_str();
        let run = "echo new >t; sync t; mv t f; sync . f; echo done";
        let options = ["--order", order, "--stdout-is-promise", "done"];
        let ran = bench.run(&args(run, check, &options));
        assert_eq!(ran.code, 0, "{order}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("volume: no state fails; "), "{}", ran.out);
        // What is not is not.
        let ran = bench.run(&args("echo new >t; mv t f; echo done", check, &options));
        assert_eq!(ran.code, 3, "{order}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("the program printed \"done\""), "{}", ran.out);
    }
    // A recording of a volume is one like any other.
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "8M", "--quiet"]);
    let record = ["--volume", "v.img", "--record", "log"];
    bench
        .ok(&[&["crash", "run", "--setup", OLD, "--run", "echo new >t; mv t f"][..], &record]
            .concat());
    let listed = bench.ok(&["crash", "run", "--replay", "log", "--list"]);
    assert!(
        listed.contains("rename(\"t\", \"f\")") && listed.contains("block flush()"),
        "{listed}"
    );
    let replay = ["crash", "run", "--replay", "log", "--check", "test -s f", "--json"];
    let report: serde_json::Value = serde_json::from_str(&bench.run(&replay).out).unwrap();
    assert_eq!(report["models"][0]["model"], "volume");
    assert_eq!(report["passed"], true, "{report}");
    // A state that fails fails again by the command that the report prints.
    let run = "echo new >t; mv t f; echo done";
    let check = r#"test ! -s "$WEFT_PROMISES" || grep -qx new f"#;
    let options = ["--order", "soft", "--stdout-is-promise", "done", "--record", "log", "--json"];
    let report = bench.run(&args(run, check, &options)).out;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let again = report["models"][0]["findings"][0]["replay"].as_str().expect("a command");
    let weft = again.replacen("weft ", &format!("{} ", env!("CARGO_BIN_EXE_weft")), 1);
    let ran = std::process::Command::new("sh")
        .args(["-c", &format!("{weft} --extract files")])
        .current_dir(bench.dir())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(3), "{again}: {}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(std::fs::read(bench.path("files/f")).unwrap(), b"old\n");
}

#[test]
fn a_finding_on_a_volume_names_the_file_and_the_offset() {
    let bench = Bench::new();
    let setup = "head -c 3000 /dev/zero >records; echo no >valid";
    // Without an fsync in between, on a volume without any order of writes.
    let run = "dd() { command dd conv=notrunc status=none \"$@\"; }; \
               printf new | dd of=records bs=3 seek=600; echo ok | dd of=valid; \
               printf x | dd of=records bs=1 seek=5000";
    let check = r#"grep -qx no valid || test "$(tail -c +1801 records | head -c 3)" = new"#;
    for (format, more) in
        [("ext2", &["--order", "async"][..]), ("HFS", &["--hfs", "--order", "async"])]
    {
        let mut args =
            vec!["crash", "run", "--setup", setup, "--run", run, "--check", check, "--no-torn"];
        args.extend_from_slice(more);
        args.extend(["--junit", "junit.xml", "--json"]);
        let ran = bench.run(&args);
        assert_eq!(ran.code, 3, "{format}: {}{}", ran.out, ran.err);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let finding = &report["models"][0]["findings"][0];
        let block = &finding["lost"][0]["blocks"][0];
        let (from, to) = if format == "HFS" { (1536, 2048) } else { (0, 4096) };
        let text = format!("bytes {from} to {to} of \"records\"");
        assert_eq!(block["text"], text, "{format}: {finding:#}");
        assert_eq!(block["path"], "records");
        assert_eq!(block["bytes"], serde_json::json!([from, to]));
        assert_eq!(block["cause"]["text"], r#"write("records", bytes 1800 to 1803)"#);
        let kept = finding["kept_blocks"].as_array().unwrap();
        assert!(kept.iter().any(|block| block["path"] == "valid"), "{format}: {finding:#}");
        assert_eq!(finding["nature"], "reordered");
        let said = format!("the block with {text} is lost, but the ");
        assert!(finding["headline"].as_str().unwrap().starts_with(&said), "{finding:#}");
        let junit = std::fs::read_to_string(bench.path("junit.xml")).unwrap();
        for told in [report["text"].as_str().unwrap(), &junit.replace("&quot;", "\"")] {
            let line = format!("{text}, from call ");
            assert!(told.contains(&line) && told.contains(&said), "{told}");
        }
    }
}

#[test]
fn programs_run_on_hfs_volumes() {
    let bench = Bench::new();
    let check = r#"test ! -s "$WEFT_PROMISES" || grep -qx new g"#;
    for order in ["soft", "async", "journal", "journal=ordered"] {
        let options = ["--hfs", "--order", order, "--stdout-is-promise", "done", "--fsck"];
        let run = "cat f >t; echo new >t; sync t; mv t g; sync . g; echo done";
        let ran = bench.run(&args(run, check, &options));
        assert_eq!(ran.code, 0, "{order}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("volume: no state fails; "), "{}", ran.out);
        let ran = bench.run(&args("echo new >t; mv t g; echo done", check, &options));
        assert_eq!(ran.code, 3, "{order}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("the program printed \"done\""), "{}", ran.out);
    }
    let ran = bench.run(&args("echo new >f", check, &["--hfs", "--order", "journal=full"]));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("an HFS volume's journal holds no file data"), "{}", ran.err);
    // A volume says what it is.
    bench.ok(&["mkfs", "hfs", "h.img", "--size", "4M", "--quiet"]);
    let ran =
        bench.run(&args("echo new >g; sync g", "test ! -s g || cat g", &["--volume", "h.img"]));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn logs_of_block_devices_are_searched() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "8M", "--quiet"]);
    bench.write("f", b"old\n");
    bench.ok(&["put", "f", "v.img:/"]);
    std::fs::copy(bench.path("v.img"), bench.path("before.img")).unwrap();
    bench.write("f", b"new\n");
    bench.ok(&["put", "f", "record=w.log:v.img:/"]);
    let log = ["crash", "run", "--log-writes", "w.log", "--volume", "before.img"];
    let ran = |more: &[&str]| weft(&bench, &[&log[..], more].concat());
    // Nothing that weft wrote harms the volume.
    let whole = ran(&["--fsck"]);
    assert_eq!(whole.code, 0, "{}{}", whole.out, whole.err);
    assert!(whole.out.contains("volume: no state fails; "), "{}", whole.out);
    let mounted = ran(&["--fsck", "--check", "grep -qx -e old -e new f || test ! -s f"]);
    assert_eq!(mounted.code, 0, "{}{}", mounted.out, mounted.err);
    let listed = ran(&["--list"]).out;
    assert!(listed.contains("block write(bytes ") && listed.contains("block flush()"), "{listed}");
    // A failure is judged again by the command that the report prints.
    let failed = ran(&["--check", "grep -qx new f", "--json"]);
    assert_eq!(failed.code, 3, "{}{}", failed.out, failed.err);
    let report: serde_json::Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!(report["models"][0]["findings"][0]["outcome"]["failed"], 1, "{report}");
    let again = report["models"][0]["findings"][0]["replay"].as_str().expect("a command");
    let line = again.replacen("weft ", &format!("{} ", env!("CARGO_BIN_EXE_weft")), 1);
    let mut shell = std::process::Command::new("sh");
    let again = shell.args(["-c", &line]).current_dir(bench.dir()).status().unwrap();
    assert_eq!(again.code(), Some(3), "{line}");
    // A file that is no log, or a log of another volume, has an error of its own.
    bench.ok(&["mkfs", "ext2", "small.img", "--size", "1M", "--quiet"]);
    for (log, more, says) in [
        ("f", &[][..], "f: not a log of dm-log-writes that can be searched: dm-log-writes"),
        ("w.log", &["--after-mark", "made"], "w.log: no mark \"made\"; the marks are: none"),
        ("w.log", &["--volume", "small.img"], "of a volume of 1048576 bytes"),
    ] {
        let args = ["crash", "run", "--fsck", "--log-writes", log];
        let ran = weft(&bench, &[&args[..], more].concat());
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(says), "{says}: {}", ran.err);
    }
    let ran = weft(&bench, &args("echo new >f", CHECK, &["--fsck"]));
    assert_eq!(ran.code, 2, "{}{}", ran.out, ran.err);
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
        let ran = weft(&bench, &args(run, check, more));
        assert_eq!(ran.code, 1, "{run}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(says), "{run}: {}", ran.err);
    }
    // The file for machines is written all the same.
    let ran = weft(&bench, &args("echo 'a<b' >&2; exit 7", CHECK, &["--junit", "junit.xml"]));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let xml = std::fs::read_to_string(bench.path("junit.xml")).unwrap();
    assert!(xml.contains(r#"tests="1" failures="0" errors="1""#), "{xml}");
    assert!(
        xml.contains("<error message=\"not tested: the program failed (exit status 7)"),
        "{xml}"
    );
    assert!(xml.contains("a&lt;b"), "{xml}");
    let ran = weft(&bench, &args("true", CHECK, &["--model", "zfs"]));
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert_eq!(mounts_left(&bench), "");
}

#[test]
fn a_signal_ends_the_test_and_clears_everything_away() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let bench = Bench::new();
    let tmp = bench.path("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    let slow = "touch $WEFT_CWD/begun; sleep 100";
    // While it records, and while it checks; as from `kill`, and as from a terminal.
    for (run, check, signal, code) in [
        (slow, CHECK, "TERM", 143),
        ("echo new >f", slow, "TERM", 143),
        (slow, CHECK, "INT", 130),
        ("echo new >f", slow, "INT", 130),
    ] {
        let mut command = bench.command(&args(run, check, &[]));
        command.env("TMPDIR", &tmp).stdout(Stdio::piped()).stderr(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().unwrap();
        let began = Instant::now();
        while !bench.path("begun").exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "{run}, {check}: nothing runs");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::remove_file(bench.path("begun")).unwrap();
        let whom =
            if signal == "INT" { format!("-{}", child.id()) } else { child.id().to_string() };
        let sent = std::process::Command::new("kill").args(["-s", signal, "--", &whom]).status();
        assert!(sent.unwrap().success());
        let ran = ran(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        assert!(began.elapsed() < Duration::from_secs(50), "the program ended first");
        assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0, "{signal}: {run}, {check}");
        assert_eq!(mounts_left(&bench), "");
    }
}

#[test]
fn programs_that_leave_processes_and_checks_that_misbehave_get_a_verdict() {
    let bench = Bench::new();
    // What goes on in the background is killed, and its calls until then are tested.
    let ran = weft(&bench, &args("(sleep 1000; echo x >f) & echo new >f", "true", &[]));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // A check that hangs, dies or changes its folder: each state is a copy.
    let posix = ["--model", "posix", "--check-limit", "300ms"];
    let run = "echo new >f.new; sync f.new; mv f.new f";
    for (check, code, says) in [
        ("if grep -q new f; then rm -rf ./*; fi", 0, "no state fails"),
        ("if grep -qx old f; then sleep 1000; fi", 3, "timed out"),
        ("if grep -qx old f; then kill -9 $$; fi", 3, "ended by signal 9"),
    ] {
        let ran = weft(&bench, &args(run, check, &posix));
        assert_eq!(ran.code, code, "{check}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains(says), "{check}: {}", ran.out);
    }
    assert_eq!(mounts_left(&bench), "");
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

/// The output that plugins of test runners build on; docs/crash.md has the fields.
#[test]
fn the_json_of_a_failure_says_all_that_the_text_says() {
    let bench = Bench::new();
    let more = ["--model", "xfs-like", "--model", "posix", "--record", "kept log", "--json"];
    let ran = bench.run(&args("echo new >t; mv t f", CHECK, &more));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["version"], &report["passed"]), (&1.into(), &false.into()));
    assert_eq!(report["recorded"]["run"], "echo new >t; mv t f");
    let text = report["text"].as_str().unwrap();
    let xfs = &report["models"][0];
    assert_eq!(
        (xfs["model"].as_str(), report["models"][1]["model"].as_str()),
        (Some("xfs-like"), Some("posix"),)
    );
    assert!(xfs["progress"]["failed"].as_u64() > Some(0) && xfs["cut_short"].is_null());
    let finding = &xfs["findings"][0];
    for said in [&finding["headline"], &finding["replay"], &finding["mend"]["calls"][0]] {
        assert!(text.contains(said.as_str().unwrap()), "{said}: {text}");
    }
    assert_eq!(finding["lost"][0]["path"], "t");
    assert_eq!(finding["lost"][0]["nr"], 2);
    assert_eq!(finding["lost"][0]["parts"][0], "size");
    assert_eq!(finding["kept"]["path"], "f");
    assert_eq!(finding["mend"]["before"]["nr"], 4);
    assert_eq!(finding["outcome"]["failed"], 1);
    // The command to replay it is one for a shell.
    let weft = env!("CARGO_BIN_EXE_weft");
    let line = finding["replay"].as_str().unwrap().replacen("weft", &format!("'{weft}'"), 1);
    let mut shell = std::process::Command::new("/bin/sh");
    let replayed = shell.args(["-c", &line]).current_dir(bench.dir()).output().unwrap();
    assert_eq!(replayed.status.code(), Some(3), "{line}: {replayed:?}");
    // What passes has the same form.
    let ran = bench.run(&args("echo new >t; sync t; mv t f", CHECK, &["--json"]));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["version"], &report["passed"]), (&1.into(), &true.into()));
    assert_eq!(report["models"][2]["findings"], serde_json::json!([]));
}

#[test]
fn failures_of_the_test_itself_have_a_kind() {
    let bench = Bench::new();
    let kind = |ran: &crate::run::Ran| {
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
        (error["kind"].as_str().unwrap().to_owned(), error["error"].as_str().unwrap().to_owned())
    };
    let (word, why) = kind(&bench.run(&args("echo x >&2; exit 7", CHECK, &["--json"])));
    assert_eq!(word, "not_tested");
    assert!(why.ends_with("the program failed (exit status 7):\nx"), "{why}");
    let (word, why) = kind(&bench.run(&args("cat f", CHECK, &["--json"])));
    assert_eq!(word, "not_tested");
    assert!(why.contains("the program changed nothing in its folder"), "{why}");
    // A device that may not be opened, in a namespace of mounts.
    let hidden = "mount --bind /dev/fuse /dev/fuse && mount -o remount,bind,nodev /dev/fuse && \
                  exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "/bin/sh", "-c", hidden, "sh", env!("CARGO_BIN_EXE_weft")]);
    command.args(args("echo new >f", "true", &["--json"])).current_dir(bench.dir());
    let ran = crate::run::ran(&command.output().unwrap());
    if ran.err.contains("unshare") || ran.err.contains("mount: ") {
        println!("not here: a device cannot be hidden from a program: {}", ran.err);
        return;
    }
    let (word, why) = kind(&ran);
    assert_eq!(word, "no_fuse", "{why}");
    assert!(why.starts_with("FUSE cannot be used here: /dev/fuse cannot be opened"), "{why}");
}

#[test]
fn a_check_that_serves_is_started_once_for_each_job() {
    let bench = Bench::new();
    let starts = |bench: &Bench| {
        let all = std::fs::read_to_string(bench.path("starts")).unwrap_or_default();
        let _ = std::fs::remove_file(bench.path("starts"));
        all.lines().count()
    };
    let server = |check: &str| {
        format!(
            "test $WEFT_CHECK_SERVER = 1 || exit 99; echo >>$WEFT_CWD/starts; \
             sleep 0.5; echo ready; while read -r ask; do ({check}) >&2; echo $?; done"
        )
    };
    let serves = ["--check-server", "--jobs", "1", "--model", "posix"];
    let ran = weft(&bench, &args("echo new >t; mv t f", &server(CHECK), &serves));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(r#"missing: fsync("t")"#), "{}", ran.out);
    assert_eq!(starts(&bench), 1);
    // The same states are judged, and the promises are there.
    let judged = |out: &str| {
        out.lines()
            .find(|l| l.starts_with("posix"))
            .unwrap()
            .split(" in ")
            .next()
            .unwrap()
            .to_owned()
    };
    let plain =
        weft(&bench, &args("echo new >t; mv t f", CHECK, &["--jobs", "1", "--model", "posix"]));
    assert_eq!(judged(&plain.out), judged(&ran.out));
    let promised = r#"test ! -s "$WEFT_PROMISES" || test -e g"#;
    let more = [&serves[..], &["--stdout-is-promise", "made*g"]].concat();
    let ran = weft(&bench, &args("echo x >g; sync g; echo made g", &server(promised), &more));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let ran = weft(&bench, &args("echo x >g; sync g .; echo made g", &server(promised), &more));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // What a check leaves running is killed, and the server goes on.
    starts(&bench);
    let leaves = server("setsid sleep 1000 & sleep 1000 & grep -qx -e old -e new f");
    let ran = weft(&bench, &args("echo new >t; sync t; mv t f", &leaves, &serves));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(starts(&bench), 1);
    // Also one that is not the shell's own process.
    let below = format!("({}); exit 1", server(CHECK));
    let ran = weft(&bench, &args("echo new >t; sync t; mv t f", &below, &serves));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(starts(&bench), 1);
    // One that hangs is killed, and started again.
    let hangs = server("if grep -qx old f; then echo waiting; sleep 1000; fi");
    let more = [&serves[..], &["--check-limit", "300ms"]].concat();
    let ran = weft(&bench, &args("echo new >t; sync t; mv t f", &hangs, &more));
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("the check: timed out\n       | waiting\n"), "{}", ran.out);
    assert!(starts(&bench) > 1);
    for (check, says) in [
        ("echo no module >&2; exit 1", "the server of checks has ended:\nno module"),
        ("echo ready; read -r ask; echo yes; sleep 1000", "the server of checks has ended"),
        ("head -c 100000 /dev/zero; sleep 1000", "the server of checks has ended"),
        ("echo ready; kill $$", "the server of checks has ended"),
        (
            "echo ready; while read -r ask; do echo 127; done",
            "the check cannot be run (exit status 127)",
        ),
    ] {
        let ran = weft(&bench, &args("echo new >f", check, &serves));
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(says), "{check}: {}", ran.err);
    }
    assert_eq!(mounts_left(&bench), "");
}

#[test]
fn a_run_removes_what_killed_runs_have_left_and_nothing_else() {
    let bench = Bench::new();
    let tmp = bench.path("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    let directories = || {
        let named = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let all = std::fs::read_dir(&tmp).unwrap().map(named);
        let mut all: Vec<_> = all.map(|name| name.into_string().unwrap()).collect();
        all.sort();
        all
    };
    let start = |mark: &str| {
        let before = directories();
        let line = format!("touch f; touch '{}'; sleep 1000", bench.path(mark).display());
        let run = ["crash", "run", "--run", &line, "--check", "true"];
        let child = bench.command(&run).env("TMPDIR", &tmp).spawn().unwrap();
        let began = std::time::Instant::now();
        while !bench.path(mark).exists() {
            assert!(began.elapsed().as_secs() < 60, "it does not start");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let new = directories().into_iter().find(|name| !before.contains(name)).unwrap();
        (child, new)
    };
    let (mut alive, its) = start("one");
    let (mut killed, left) = start("two");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(directories().len(), 2);
    let ran = weft(&bench, &args("echo new >t; sync t; mv t f", CHECK, &[]));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(directories(), [its], "{left} was left by a run that was killed");
    assert_eq!(mounts_left(&bench), "");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&alive),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    alive.wait().unwrap();
    assert_eq!(directories(), [""; 0]);
}
