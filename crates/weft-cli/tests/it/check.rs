//! `fsck`: codes as fsck(8) has them, and what it repairs.

use crate::run::{Bench, tool};
use std::ffi::OsStr;
use std::path::Path;

#[test]
fn a_sound_volume_is_0() {
    for format in ["ext2", "ext3"] {
        let bench = Bench::with_volume(format);
        bench.write("file", &vec![3; 100_000]);
        bench.ok(&["put", "file", "v.img:/"]);
        bench.ok(&["fsck", "v.img"]);
        assert_eq!(bench.json(&["fsck", "v.img"])["clean"], true);
    }
}

#[test]
fn a_leak_is_4_and_repaired_1_and_then_e2fsck_is_content() {
    let bench = Bench::with_volume("ext2");
    bench.write("file", &vec![3; 100_000]);
    bench.ok(&["put", "file", "v.img:/"]);
    // As soft updates can leave it: a block that is marked in use and belongs to no file.
    let image = bench.path("v.img");
    let args = ["-w", "-R", "setb 12000"].map(OsStr::new);
    let Some(ran) = tool("debugfs", args.into_iter().chain([image.as_os_str()])) else { return };
    assert_eq!(ran.code, 0, "{ran:#?}");

    let ran = bench.run(&["fsck", "v.img"]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    let ran = bench.run(&["fsck", "--dry-run", "v.img"]);
    let line = "block bitmap: block 12000 marked in use, but free: would rebuild the bitmap";
    assert!(ran.code == 4 && ran.out.contains(line), "{ran:#?}");
    let ran = bench.run(&["fsck", "--repair", "v.img"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert_eq!(bench.run(&["fsck", "v.img"]).code, 0);
    bench.e2fsck_clean("v.img");
    bench.ok(&["get", "v.img:/file", "back"]);
    assert_eq!(std::fs::read(bench.path("back")).unwrap(), vec![3; 100_000]);
}

#[test]
fn what_cannot_be_checked_is_8() {
    let bench = Bench::new();
    bench.write("noise", &vec![9; 100_000]);
    assert!(bench.fails(8, &["fsck", "noise"]).contains("no file system that weft knows"));
}

/// Changes a volume by debugfs; `false` if that is not here.
fn debugfs(image: &Path, request: &str) -> bool {
    let args = ["-w", "-R", request].map(OsStr::new);
    tool("debugfs", args.into_iter().chain([image.as_os_str()])).is_some()
}

/// fsck(8) and systemd call a checker with `-a` or `-p`, and `-C` with a descriptor for the progress.
#[test]
fn it_takes_the_options_that_fsck_passes_on() {
    let bench = Bench::with_volume("ext2");
    for args in [&["-a"][..], &["-p"], &["-a", "-C0"], &["-p", "-C", "-1"]] {
        let said = bench.ok(&[&["fsck"], args, &["v.img"]].concat());
        assert!(said.contains("clean (it was unmounted"), "{args:?}: {said}");
    }
    for args in [&["-f"][..], &["-fn"], &["-fy"], &["-p", "-f"], &["-af", "-C0"]] {
        let said = bench.ok(&[&["fsck"], args, &["v.img"]].concat());
        assert!(said.contains("inodes and"), "{args:?}: {said}");
    }
    for args in [&["-p", "-y"][..], &["-p", "-n"], &["-n", "-y"]] {
        bench.fails(2, &[&["fsck"], args, &["v.img"]].concat());
    }
    // Lines of e2fsck, in a file that is open as descriptor 9.
    let weft = env!("CARGO_BIN_EXE_weft");
    let script = format!("{weft} fsck -f -C9 v.img 9>progress >/dev/null");
    let status = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(bench.dir())
        .status()
        .unwrap();
    assert!(status.success());
    let lines = std::fs::read_to_string(bench.path("progress")).unwrap();
    assert!(lines.starts_with("1 0 ") && lines.lines().all(|l| l.ends_with(" v.img")), "{lines}");
}

#[test]
fn preen_repairs_what_a_crash_leaves_and_no_damage() {
    let bench = Bench::with_volume("ext2");
    bench.write("f", &[7; 50_000]);
    bench.ok(&["put", "f", "v.img:/"]);
    let change = |request: &str| debugfs(&bench.path("v.img"), request);
    if !change("setb 3000 40") || !change("ssv state 0") {
        return;
    }
    let ran = bench.run(&["fsck", "-p", "v.img"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(bench.ok(&["fsck", "-p", "v.img"]).contains("clean (it was unmounted"));
    bench.e2fsck_clean("v.img");
    // A block outside the volume is no leftover of a crash.
    change("sif f block[2] 90000000");
    change("ssv state 0");
    let before = std::fs::read(bench.path("v.img")).unwrap();
    let ran = bench.run(&["fsck", "-a", "v.img"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.out.contains("nothing was changed") && ran.out.contains("--repair"), "{ran:?}");
    assert!(before == std::fs::read(bench.path("v.img")).unwrap());
    assert_eq!(bench.run(&["fsck", "-y", "v.img"]).code, 1);
}

/// A lost root or journal is repaired, and a journal that was not given is asked for.
#[test]
fn what_a_repair_does_about_a_lost_root_and_journal() {
    for inode in [2, 8] {
        let bench = Bench::with_volume("ext3");
        bench.write("f", b"content");
        bench.ok(&["put", "f", "v.img:/"]);
        if !debugfs(&bench.path("v.img"), &format!("clri <{inode}>")) {
            return;
        }
        let ran = bench.run(&["fsck", "v.img"]);
        assert_eq!(ran.code, 4, "{ran:?}");
        let ran = bench.run(&["fsck", "--repair", "v.img"]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(!ran.out.contains("--repair"), "{ran:?}");
        bench.e2fsck_clean("v.img");
        assert_eq!(bench.ok(&["cat", "v.img:/f"]), "content");
    }
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "32M", "--journal", "j.img", "--quiet"]);
    debugfs(&bench.path("v.img"), "feature needs_recovery");
    for verb in [&["fsck", "v.img"][..], &["fsck", "--repair", "v.img"]] {
        let ran = bench.run(verb);
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(ran.out.contains("--journal FILE"), "{ran:?}");
        assert!(!ran.out.contains("repairs what it can"), "{ran:?}");
    }
}
