//! `weft order`: what a power cut may leave of programs whose changes are ordered, and its errors.

use crate::run::{Bench, can_mount};

const ORDERS: [&str; 5] = ["soft", "async", "journal", "journal=ordered", "journal=full"];

/// A file to be moved to the end of another one.
const MAIL: &str = "seq 2000 >in; : >out";
/// The original is there, or all of it is in the other one.
const MAIL_IS_THERE: &str = r#"test -e in || test "$(seq 2000)" = "$(cat out)""#;

/// Files whose content is replaced in place, one after the other.
const OLD: &str = "for i in 1 2 3 4 5; do echo old $i >f$i; done";
const IN_ORDER: &str = r#"old=; for i in 1 2 3 4 5; do
    case $(cat f$i) in "new $i") test -z "$old" || exit 1;; "old $i") old=1;; *) exit 1;; esac; done"#;

/// The orders of an HFS volume, whose journal holds no data of files.
const HFS_ORDERS: [&str; 4] = ["soft", "async", "journal", "journal=ordered"];

/// The program that replaces them.
fn in_turn(fsync: &str) -> String {
    format!(
        "for i in 1 2 3 4 5; do echo new $i | dd of=f$i conv=notrunc status=none; {fsync} f$i; done"
    )
}

/// Runs a program on a volume, and the check on all states that a power cut can leave of it. Returns
/// the exit code: 3 if one fails.
fn crash_run(bench: &Bench, order: &str, (setup, check): (&str, &str), run: &str) -> (i32, String) {
    let run = run.replace("weft order", &format!("{} order", env!("CARGO_BIN_EXE_weft")));
    let (order, hfs) = match order.strip_prefix("hfs ") {
        Some(order) => (order, &["--hfs"][..]),
        None => (order, &[][..]),
    };
    let fixed = ["crash", "run", "--setup", setup, "--order", order, "--states", "1500"];
    let ran = bench.run(&[&fixed[..], &["--run", &run, "--check", check], hfs].concat());
    (ran.code, format!("{order} {hfs:?}: {run}: {}{}", ran.out, ran.err))
}

#[test]
fn on_hfs_too_a_command_after_another_is_never_durable_before_it() {
    let bench = Bench::new();
    let mail = (MAIL, MAIL_IS_THERE);
    for order in HFS_ORDERS {
        let order = &format!("hfs {order}");
        let (code, said) = crash_run(&bench, order, mail, "weft order 'cat in >>out' then 'rm in'");
        assert_eq!(code, 0, "{said}");
        // The records of both files are in one node of the catalog: only new data can come too late.
        if order == "hfs async" {
            let (code, said) = crash_run(&bench, order, mail, "cat in >>out; rm in");
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn on_hfs_too_fsync_as_a_barrier_keeps_the_order_of_a_program() {
    let bench = Bench::new();
    for order in HFS_ORDERS {
        let order = &format!("hfs {order}");
        let run = format!("weft order --fsync=barrier '{}'", in_turn("sync"));
        let (code, said) = crash_run(&bench, order, (OLD, IN_ORDER), &run);
        assert_eq!(code, 0, "{said}");
        // The journal holds these data, too: its blocks are longer than those of the volume.
        if !order.contains("journal") {
            let (code, said) = crash_run(&bench, order, (OLD, IN_ORDER), &in_turn(":"));
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn a_command_after_another_is_never_durable_before_it() {
    let bench = Bench::new();
    let mail = (MAIL, MAIL_IS_THERE);
    for order in ORDERS {
        let (code, said) = crash_run(&bench, order, mail, "weft order 'cat in >>out' then 'rm in'");
        assert_eq!(code, 0, "{said}");
        // Where the volume orders nothing of that kind, the check finds that.
        if order == "soft" || order == "async" {
            let (code, said) = crash_run(&bench, order, mail, "cat in >>out; rm in");
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn fsync_as_a_barrier_keeps_the_order_of_a_program() {
    let bench = Bench::new();
    for order in ORDERS {
        let run = format!("weft order --fsync=barrier '{}'", in_turn("sync"));
        let (code, said) = crash_run(&bench, order, (OLD, IN_ORDER), &run);
        assert_eq!(code, 0, "{said}");
        // Without fsync only a journal of all data keeps the order.
        if order != "journal=full" {
            let (code, said) = crash_run(&bench, order, (OLD, IN_ORDER), &in_turn(":"));
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn the_code_is_that_of_the_last_command_and_errors_are_named() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    std::fs::create_dir(bench.path("m")).unwrap();
    assert!(bench.fails(1, &["order", "--on", "m", "true"]).contains("m is not on a volume that"));
    assert!(bench.fails(1, &["order", "--on", "gone", "true"]).contains("gone"));
    assert!(bench.fails(2, &["order", "true", "then"]).contains("a command is missing"));
    bench.ok(&["mount", "v.img", "m", "--background"]);
    assert_eq!(bench.ok(&["order", "--on", "m", "--sync", "echo", "a  b"]), "a  b\n");
    let write = "echo 1 >m/a; (sleep 0.1; echo 2 >m/b) & wait";
    bench.ok(&["order", "--on", "m", "--sync", write, "then", "mv m/a m/c"]);
    assert_eq!(std::fs::read(bench.path("m/c")).unwrap(), b"1\n");
    for (line, code) in [("exit 7", 7), ("kill -9 $$", 137)] {
        let ran = bench.run(&["order", "--on", "m", line, "then", "touch m/not"]);
        assert_eq!(ran.code, code, "{ran:?}");
    }
    assert!(!bench.path("m/not").exists());
    let ran = bench.run(&["order", "--on", "m", "no-such-program", "x"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("cannot run no-such-program"), "{}", ran.err);
    bench.ok(&["umount", "m"]);
    // Nobody can order what is not written.
    bench.ok(&["mount", "v.img", "m", "--background", "--read-only"]);
    assert!(bench.fails(1, &["order", "--on", "m", "true"]).contains("m is not on a volume that"));
    bench.ok(&["umount", "m"]);
}
