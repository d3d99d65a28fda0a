//! `weft order`: what a power cut may leave of programs whose changes are ordered, and its errors.

use crate::run::{Bench, can_mount};
use std::process::Command;
use weft_testing::yield_until;

const ORDERS: [&str; 5] = ["soft", "async", "journal", "journal=ordered", "journal=full"];

/// A file to be moved to the end of another one.
const MAIL: &str = "seq 2000 >in; : >out";
/// The original is there, or all of it is in the other one.
const MAIL_IS_THERE: &str = r#"test -e in || test "$(seq 2000)" = "$(cat out)""#;

/// Files whose content is replaced in place, one after the other.
const OLD: &str = "for i in 1 2 3 4 5; do echo old $i >f$i; done";
const IN_ORDER: &str = r#"old=; for i in 1 2 3 4 5; do
    case $(cat f$i) in "new $i") test -z "$old" || exit 1;; "old $i") old=1;; *) exit 1;; esac; done"#;

/// All files are old, or all are new, and one more is there.
const ALL_OR_NOTHING: &str = r#"n=$(cat f1 f2 f3 f4 f5 | grep -c new); test $n = 0 -o $n = 5 &&
    if test -e made; then test $n = 5; else test $n = 0; fi"#;

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
    let (order, volume) = match order.strip_prefix("hfs ") {
        Some(order) => (order, &["--hfs"][..]),
        // With a journal that is large enough for changes to be undone.
        None => (order, &["--size", "128M"][..]),
    };
    let fixed = ["crash", "run", "--setup", setup, "--order", order, "--states", "1500"];
    let ran = bench.run(&[&fixed[..], &["--run", &run, "--check", check], volume].concat());
    (ran.code, format!("{order} {volume:?}: {run}: {}{}", ran.out, ran.err))
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

/// A name that one step makes and a later one removes: what lies between is durable after the first.
#[test]
fn what_is_between_a_file_and_its_removal_is_not_durable_before_the_file() {
    let bench = Bench::new();
    let fill = |with| format!("head -c 8192 /dev/zero | tr '\\0' {with}");
    let journaled = (
        &*format!("{} >db", fill("a")),
        r#"test -e j || test "$(head -c 1 db)" = "$(tail -c 1 db)""#,
    );
    let write = format!("{} | dd of=db conv=notrunc bs=4096 status=none", fill("b"));
    let renamed = (
        "mkdir d; for i in $(seq 40); do : >d/f$i; done; echo x >d/q",
        "test -e d/q || test -e n || test -e p",
    );
    for order in ORDERS {
        let run = format!("weft order 'echo x >j' then \"{write}\" then 'rm j'");
        let (code, said) = crash_run(&bench, order, journaled, &run);
        assert_eq!(code, 0, "{said}");
        let run = "weft order 'echo x >n' then 'mv n p; rm d/q'";
        let (code, said) = crash_run(&bench, order, renamed, run);
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn of_an_atomic_command_all_is_left_or_nothing() {
    let bench = Bench::new();
    let files = ("for i in 1 2 3 4 5; do echo old $i >f$i; done", ALL_OR_NOTHING);
    let run = "for i in 1 2 3 4 5; do echo new $i | dd of=f$i conv=notrunc status=none; \
               test $i = 3 && touch made; done; sync f1";
    for order in ORDERS {
        let (code, said) = crash_run(&bench, order, files, &format!("weft order --atomic '{run}'"));
        if !order.starts_with("journal") {
            assert!(code != 0 && said.contains("need a volume with a journal"), "{said}");
            continue;
        }
        assert_eq!(code, 0, "{said}");
        // Where nothing else orders them.
        if order != "journal=full" {
            let (code, said) = crash_run(&bench, order, files, run);
            assert_eq!(code, 3, "{said}");
        }
    }
}

#[test]
fn of_an_atomic_command_that_is_undone_nothing_is_ever_left() {
    let bench = Bench::new();
    let old = r#"test "$(cat f1 f2 f3 f4 f5)" = "$(for i in 1 2 3 4 5; do echo old $i; done)" -a ! -e made"#;
    let files = ("for i in 1 2 3 4 5; do echo old $i >f$i; done", old);
    let run = "for i in 1 2; do echo new $i | dd of=f$i conv=notrunc status=none; done; \
               mkdir made; mv f3 made/a; mv f4 f5; rm f5; sync f1; exit 1";
    // What the undoing has left in the journal reaches the disk, too.
    let and_sync = |line: &str| format!("{line}; sync .; touch after; sync .; exit 0");
    let by_hand = format!("({run}); rm -r made; {}", files.0);
    for order in ORDERS.iter().filter(|order| order.starts_with("journal")) {
        let undone = and_sync(&format!("weft order --atomic '{run}'"));
        let (code, said) = crash_run(&bench, order, files, &undone);
        assert_eq!(code, 0, "{said}");
        let (code, said) = crash_run(&bench, order, files, &and_sync(&by_hand));
        assert_eq!(code, 3, "{said}");
    }
}

#[test]
fn an_atomic_command_that_fails_or_is_killed_has_changed_nothing() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    // On a volume with a small journal nothing is undone.
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "48M", "--quiet"]);
    std::fs::create_dir(bench.path("m")).unwrap();
    bench.ok(&["mount", "v.img", "m", "--background", "--order", "journal=ordered"]);
    let failed = bench.run(&["order", "--on", "m", "--atomic", "touch m/made; exit 5"]);
    assert!(failed.code == 5 && failed.err.contains("cannot undo"), "{}", failed.err);
    assert!(bench.path("m/made").exists());
    bench.ok(&["umount", "m"]);
    std::fs::remove_file(bench.path("v.img")).unwrap();
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "256M", "--quiet"]);
    bench.ok(&["mount", "v.img", "m", "--background", "--order", "journal=ordered"]);
    let make = "cd m && mkdir -p d/e && seq 1000 >d/kept && echo removed >d/removed && ln -s x d/e/l && \
                setfattr -n user.a -v old d/kept 2>/dev/null; chmod 640 d/kept";
    // All that a user sees, twice: the kernel may have kept some of it.
    let see = "cd m && find . -name lost+found -prune -o -printf '%P %y %M %n %s %T@ %l\n' | sort && \
               find . -name lost+found -prune -o -type f -exec cksum {} +";
    let shell = |line: &str| {
        let done =
            Command::new("sh").arg("-c").arg(line).current_dir(bench.dir()).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    shell(make);
    let before = shell(see);
    let change = "cd m/d && echo new >>kept && echo more >new && rm -r removed e && mv kept other && \
                  mkdir -p a/b && cp other a/b && chmod 600 other && : >a/empty";
    let failed = bench.run(&["order", "--on", "m", "--atomic", &format!("{change}; exit 3")]);
    assert_eq!((failed.code, &*failed.err), (3, ""));
    assert_eq!(shell(see), before);
    // Killed while it runs. Its shell goes on, and ends as it sees that.
    let waits = "touch ../done; while test -e ../done; do sleep 0.01; done";
    let line = format!("{change}; {waits}; touch ../ended");
    let atomic = |line: &str| bench.command(&["order", "--on", "m", "--atomic", line]);
    let mut killed = atomic(&line).spawn().unwrap();
    yield_until("it has changed all", || bench.path("m/done").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    yield_until("it is undone", || !bench.path("m/done").exists());
    yield_until("its shell has ended", || bench.path("m/ended").exists());
    shell("rm m/ended");
    // All but the root's time, which that has changed.
    let but_root = |seen: &str| seen.lines().skip(1).collect::<Vec<_>>().join("\n");
    assert_eq!(but_root(&shell(see)), but_root(&before));
    // Another process changes a file that the command has made.
    let line = format!("{change}; {waits}; exit 4");
    let shared = atomic(&line).stderr(std::process::Stdio::piped()).spawn().unwrap();
    yield_until("it has changed all", || bench.path("m/done").exists());
    shell("echo of another >>m/d/new; rm m/done");
    let ended = shared.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("others have changed"), "{said}");
    assert_eq!(shell("cat m/d/new"), "more\nof another\n");
    // It takes too long for others, changes nothing after that, and ends well.
    let line = "echo late >m/d/late && touch held && while test -e held; do sleep 0.01; done";
    let late = atomic(line).stderr(std::process::Stdio::piped()).spawn().unwrap();
    yield_until("it has changed all", || bench.path("held").exists());
    shell("sync m && rm held");
    let ended = late.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.contains("it is undone"), "{said}");
    assert!(!bench.path("m/d/late").exists());
    // One that succeeds.
    bench.ok(&["order", "--on", "m", "--atomic", "echo done >m/d/last"]);
    bench.ok(&["umount", "m"]);
    assert_eq!(bench.ok(&["cat", "v.img:/d/last"]), "done\n");
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_mount_may_make_every_fsync_a_barrier() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext3");
    std::fs::create_dir(bench.path("m")).unwrap();
    let said = bench.fails(2, &["mount", "v.img", "m", "-o", "fsync=sometimes"]);
    assert!(said.contains("expected wait, barrier, group"), "{said}");
    for meaning in ["fsync=barrier", "fsync=group:50"] {
        bench.ok(&["mount", "v.img", "m", "--background", "-o", meaning]);
        std::fs::write(bench.path("m/f"), meaning).unwrap();
        std::fs::File::open(bench.path("m/f")).unwrap().sync_all().unwrap();
        bench.ok(&["umount", "m"]);
        assert_eq!(bench.ok(&["cat", "v.img:/f"]), meaning);
    }
    bench.e2fsck_clean("v.img");
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

#[test]
fn the_groups_of_a_mount_are_listed() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    std::fs::create_dir(bench.path("m")).unwrap();
    assert!(
        bench.fails(1, &["order", "--list", "--on", "m"]).contains("m is not on a volume that")
    );
    assert!(!bench.fails(2, &["order", "--list", "--on", "m", "true"]).is_empty());
    bench.ok(&["mount", "v.img", "m", "--background", "-o", "order=soft"]);
    assert_eq!(bench.ok(&["order", "--list", "--on", "m"]), "no groups\n");
    let weft = env!("CARGO_BIN_EXE_weft");
    // A command in a command: both groups are there while the list is made.
    let list = |more: &str| format!("{weft} order --on m '{weft} order --list --on m {more}'");
    let run = ["order", "--linear", "--on", "m", "echo 1 >m/a", "then", &list("--json")];
    let listed: serde_json::Value = serde_json::from_str(&bench.ok(&run)).unwrap();
    assert_eq!(listed["more"], false);
    let [outer, inner] = &listed["groups"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!((&outer["kind"], &inner["kind"]), (&"linear".into(), &"ordinary".into()));
    for group in [outer, inner] {
        assert_eq!((&group["state"], &group["engaged"]), (&"engaged".into(), &true.into()));
        assert!(list("--json").contains(group["label"].as_str().unwrap()), "{group}");
    }
    assert_ne!(outer["process"], inner["process"]);
    // Its only change is in the group of the first command, which it depends on.
    assert_eq!((&outer["durable"], &inner["durable"]), (&false.into(), &true.into()));
    assert_eq!(
        (&outer["depends_on_count"], &inner["depends_on"]),
        (&1.into(), &serde_json::json!([]))
    );

    let text = bench.ok(&["order", "--on", "m", &list("--limit 1")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].contains("ordinary") && lines[1].contains("engaged"), "{text}");
    assert_eq!(lines[2], "and more: --limit");
    // Groups end with their process.
    weft_testing::yield_until("they end", || {
        bench.ok(&["order", "--list", "--on", "m"]) == "no groups\n"
    });
    bench.ok(&["umount", "m"]);
}
