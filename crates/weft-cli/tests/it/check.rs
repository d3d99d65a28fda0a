//! `fsck`: codes as fsck(8) has them, and what it repairs.

use crate::run::{Bench, tool};
use std::ffi::OsStr;

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
