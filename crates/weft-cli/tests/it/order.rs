//! `weft order`: what a power cut may leave of programs whose changes are ordered, and its errors.

use crate::run::{Bench, can_mount};

const ORDERS: [&str; 5] = ["soft", "async", "journal", "journal=ordered", "journal=full"];

/// The setup: a file to be copied, of some blocks.
const SETUP: &str = "seq 2000 >in";
/// The original is there, or the copy is.
const ONE_IS_THERE: &str = r#"test -e in || test "$(seq 2000)" = "$(cat out)""#;
/// Files come whole, one after the other.
const IN_ORDER: &str = r#"gone=; for i in 1 2 3 4 5; do
    if test -e f$i; then test -z "$gone" && grep -qx "new $i" f$i || exit 1; else gone=1; fi; done"#;

/// Runs a program on a volume, and the check on all states that a power cut can leave of it. Returns
/// the exit code: 3 if one fails.
fn crash_run(bench: &Bench, order: &str, run: &str, check: &str) -> (i32, String) {
    let run = run.replace("weft order", &format!("{} order", env!("CARGO_BIN_EXE_weft")));
    let fixed = ["crash", "run", "--setup", SETUP, "--order", order, "--states", "1500"];
    let ran = bench.run(&[&fixed[..], &["--run", &run, "--check", check]].concat());
    (ran.code, format!("{order}: {run}: {}{}", ran.out, ran.err))
}

#[test]
fn a_command_after_another_is_never_durable_before_it() {
    let bench = Bench::new();
    for order in ORDERS {
        let (code, said) =
            crash_run(&bench, order, "weft order 'cat in >out' then 'rm in'", ONE_IS_THERE);
        assert_eq!(code, 0, "{said}");
        // Where the volume orders nothing of that kind, the check finds that.
        if order == "soft" || order == "async" {
            let (code, said) = crash_run(&bench, order, "cat in >out; rm in", ONE_IS_THERE);
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn fsync_as_a_barrier_keeps_the_order_of_a_program() {
    let bench = Bench::new();
    let program = |fsync: &str| {
        format!("for i in 1 2 3 4 5; do echo new $i >t; {fsync} t; mv t f$i; {fsync} .; done")
    };
    for order in ORDERS {
        let run = format!("weft order --fsync=barrier '{}'", program("sync"));
        let (code, said) = crash_run(&bench, order, &run, IN_ORDER);
        assert_eq!(code, 0, "{said}");
        // The same without a fsync.
        if order == "soft" || order == "async" {
            let (code, said) = crash_run(&bench, order, &program(":"), IN_ORDER);
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
