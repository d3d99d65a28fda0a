//! `weft crash run`: where it runs programs, and what it advises those whose test fails, or tests nothing.

use crate::run::{Bench, Ran, ran};

const XFS: [&str; 2] = ["--model", "xfs-like"];

fn crash(bench: &Bench, args: &[&str]) -> Ran {
    bench.run(&[&["crash", "run"], args].concat())
}

#[test]
fn all_commands_see_one_path_also_in_a_later_search() {
    const RUN: &str = "pwd >new; sync new; mv new run";
    let bench = Bench::new();
    let setup = "pwd >setup; echo \"$WEFT_MNT\" >variable";
    let check = "test \"$(cat setup)\" = \"$WEFT_MNT\" && test \"$(cat variable)\" = \"$PWD\" && \
                 { test ! -s run || test \"$(cat run)\" = \"$WEFT_MNT\"; } && \
                 case $WEFT_MNT in ${TMPDIR:-/tmp}/*) exit 1;; esac";
    for more in [&["--jobs", "3"][..], &["--order", "soft"]] {
        let all = ["--setup", setup, "--run", RUN, "--check", check, "--record", "log"];
        let ran = crash(&bench, &[&all[..], more].concat());
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(!ran.out.contains("note: the program ran in"), "{}", ran.out);
        let ran = crash(&bench, &["--replay", "log", "--check", check]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }
    // At the same time, too.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let all = ["--setup", setup, "--run", RUN, "--check", check];
                let ran = crash(&bench, &all);
                assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
            });
        }
    });
}

#[test]
fn a_file_that_gets_its_name_when_it_is_whole_is_recorded() {
    let bench = Bench::new();
    bench.write(
        "save.py",
        br#"
import os, sys
fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o644)
os.write(fd, b"content\n")
if "fsync" in sys.argv:
    os.fsync(fd)
# With the descriptor of a directory Python calls linkat() with AT_SYMLINK_FOLLOW.
root = os.open("/", os.O_RDONLY)
os.link(f"/proc/self/fd/{fd}", "f", src_dir_fd=root, follow_symlinks=True)
os.close(fd)
folder = os.open(".", os.O_RDONLY)
os.fsync(folder)
print("saved", flush=True)
"#,
    );
    let check = "test ! -e f || test \"$(cat f)\" = content || exit 1
                 test ! -s \"$WEFT_PROMISES\" || test -e f";
    let run = |more: &str| format!("/usr/bin/python3 \"$WEFT_CWD/save.py\" {more}");
    let (with, without) = (run("fsync"), run(""));
    let all = |run: &str, more: &[&str]| {
        let test = ["--run", run, "--check", check, "--stdout-is-promise", "saved"];
        crash(&bench, &[&test[..], more].concat())
    };
    for model in ["posix", "ext4-ordered", "xfs-like", "btrfs-like"] {
        let ran = all(&with, &["--model", model]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let ran = all(&without, &["--model", model]);
        assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    }
    for order in ["soft", "journal=ordered"] {
        let ran = all(&with, &["--order", order]);
        assert_eq!(ran.code, 0, "{order}: {}{}", ran.out, ran.err);
    }
    let listed = crash(&bench, &["--run", &with, "--list"]);
    for said in ["open(O_TMPFILE)", "without a name)\", bytes 0 to 8)", "without a name)\", \"f\")"]
    {
        assert!(listed.out.contains(said), "{said}: {}{}", listed.out, listed.err);
    }
}

#[test]
fn a_check_that_accepts_nothing_before_is_told_so() {
    let bench = Bench::new();
    let ran = crash(&bench, &["--run", "echo 1 >a", "--check", "test -e a"]);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("let the check accept what is there before the program begins"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("or make what it expects with --setup"), "{}", ran.out);
    assert!(!ran.out.contains("or keep a log"), "{}", ran.out);
}

#[test]
fn files_that_are_elsewhere_and_commands_that_are_not_found_are_told() {
    let bench = Bench::new();
    bench.write("first.sh", b"echo new >f");
    let hint = "hint: first.sh is in the directory in which weft was started, and commands start in the folder \
                of the test: write \"$WEFT_CWD/first.sh\"";
    for args in [
        ["--setup", "true", "--run", "sh first.sh", "--check", "true"],
        ["--setup", "sh first.sh", "--run", "echo x >f", "--check", "true"],
        ["--setup", "true", "--run", "echo x >f", "--check", "sh first.sh"],
    ] {
        let ran = crash(&bench, &args);
        assert_eq!(ran.code, 1, "{args:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(hint), "{args:?}: {}", ran.err);
        assert!(
            ran.err.starts_with("weft: not tested: ") && !ran.err[18..].contains("not tested"),
            "{}",
            ran.err
        );
    }
    for args in [
        ["--setup", "true", "--run", "no-such-command", "--check", "true"],
        ["--setup", "true", "--run", "echo x >f", "--check", "no-such-command"],
    ] {
        let ran = crash(&bench, &args);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("is in $WEFT_CWD"), "{args:?}: {}", ran.err);
        assert_eq!(ran.err.matches("not tested").count(), 1, "{}", ran.err);
    }
}

#[test]
fn a_check_that_accepts_an_emptied_file_is_noted() {
    let bench = Bench::new();
    let blind =
        ["--setup", "echo old >f", "--run", "echo new >t; sync t; mv t f; echo l >log", "--check"];
    let note = "note: the check passes, too, if ";
    let ran = crash(&bench, &[&blind[..], &["test -e f"], &XFS].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(&format!("{note}\"f\", or \"log\", is empty")), "{}", ran.out);
    let ran = crash(&bench, &[&blind[..], &["test -s f"], &XFS].concat());
    assert!(ran.out.contains(&format!("{note}\"log\" is empty")), "{}", ran.out);
    let whole = "test -s f && if test -s \"$WEFT_PROMISES\"; then test -s log; fi";
    let promised = ["--stdout-is-promise", "done"];
    let run = [
        "--setup",
        "echo old >f",
        "--run",
        "echo l >log; sync log .; echo new >t; sync t; mv t f; echo done",
        "--check",
        whole,
    ];
    let ran = crash(&bench, &[&run[..], &promised, &XFS].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(!ran.out.contains(note), "{}", ran.out);
    let json = crash(&bench, &[&blind[..], &["test -e f"], &XFS, &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!(report["notes"][0].as_str().unwrap().contains("\"log\""), "{report}");
    assert!(report["recorded"]["folder"].as_str().unwrap().starts_with('/'), "{report}");
}

#[test]
fn the_advice_fits_what_the_program_does() {
    let bench = Bench::new();
    // A record of a log that is written in part: by a power cut, or by a program that is killed between two
    // calls.
    let whole = "tr '\\0' b </dev/zero | dd of=log bs=6000 count=1 iflag=fullblock oflag=append conv=notrunc";
    let pieces = "head -c 6000 /dev/zero | tr '\\0' b >>log";
    let setup = "head -c 6000 /dev/zero | tr '\\0' a >log";
    let check = "test $(($(wc -c <log) % 6000)) = 0 && test $(tr -d ab <log | wc -c) = 0";
    for run in [whole, pieces] {
        let log = ["--setup", setup, "--run", run, "--check", check, "--model", "posix"];
        let ran = crash(&bench, &log);
        assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
        let said = "give each record its length and a checksum";
        assert!(ran.out.contains(said), "{run}: {}", ran.out);
    }
    // What is overwritten in place.
    let place = [
        "--setup",
        "head -c 8192 /dev/zero | tr '\\0' a >f",
        "--run",
        "head -c 8192 /dev/zero | tr '\\0' b | dd of=f bs=8192 conv=notrunc iflag=fullblock 2>/dev/null",
        "--check",
        "test $(tr -d a <f | wc -c) = 0 || test $(tr -d b <f | wc -c) = 0",
        "--model",
        "xfs-like",
    ];
    let ran = crash(&bench, &place);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("write a new file and rename it, or keep a log"), "{}", ran.out);
    // Two calls are lost.
    let two = [
        "--run",
        "echo 1 >a; echo 2 >b; sync a b; echo done",
        "--stdout-is-promise",
        "done",
        "--model",
        "posix",
        "--check",
        "test ! -s \"$WEFT_PROMISES\" || test -e a || test -e b",
    ];
    let ran = crash(&bench, &two);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains(r#"creat("a") and creat("b") are lost, though the program printed"#),
        "{}",
        ran.out
    );
}

#[test]
fn a_name_that_comes_back_is_told_with_the_fsync_that_prevents_it() {
    let bench = Bench::new();
    let write = |value: &str| format!("echo {value} >j; sync j .; echo {value} >f; sync f; rm j");
    let run = |synced: &str| {
        format!("{}{synced}; echo done 1; {}; sync .; echo done 2", write("1"), write("2"))
    };
    let check = "test ! -s \"$WEFT_PROMISES\" || ! grep -q 1 j 2>/dev/null";
    let test = |synced: &str| {
        let run = run(synced);
        let all = ["--setup", "echo 0 >f", "--run", &run, "--check", check];
        let more = ["--stdout-is-promise", "done", "--model", "btrfs-like"];
        crash(&bench, &[&all[..], &more].concat())
    };
    let ran = test("; sync .");
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let ran = test("");
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("missing: fsync(\".\"), after call"), "{}", ran.out);
    assert!(!ran.out.contains("no fsync prevents this"), "{}", ran.out);
}

/// The program that most people would test first: its promises hold, and each fsync that it needs is missed.
#[test]
fn sqlite_with_a_rollback_journal_loses_nothing_and_needs_the_fsyncs_of_its_directory() {
    let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/crash");
    let bench = Bench::new();
    let sqlite = |options: &[&str]| {
        let mut script = std::process::Command::new("/bin/sh");
        script.arg(scripts.join("sqlite.sh")).arg("rollback").args(options);
        script.current_dir(bench.dir()).env("WEFT", env!("CARGO_BIN_EXE_weft"));
        script.env("TOOLS", bench.path("tools")).stdin(std::process::Stdio::null());
        ran(&script.output().expect("a shell"))
    };
    let all = sqlite(&["--model", "btrfs-like", "--model", "xfs-like"]);
    if all.code == 77 {
        println!("skipped: {}", all.err.trim());
        return;
    }
    assert_eq!(all.code, 0, "{}{}", all.out, all.err);
    let each = sqlite(&["--model", "btrfs-like", "--each-sync"]);
    assert_eq!(each.code, 0, "{}{}", each.out, each.err);
    let needed = r#"fsync("."): NEEDED"#;
    assert_eq!(
        each.out.matches(needed).count(),
        3,
        "after each removal of the journal: {}",
        each.out
    );
}
