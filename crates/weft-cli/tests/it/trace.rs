//! `trace`: what waits for what, on a copy of the volume; and a journal beside a volume.

use crate::run::{Bench, tool};
use std::ffi::OsStr;

const WORKLOAD: &str = "mkdir D; creat D/a; write D/a 0 9000";

#[test]
fn it_says_what_a_block_waits_for_and_changes_nothing() {
    let bench = Bench::with_volume("ext2");
    let before = std::fs::read(bench.path("v.img")).unwrap();
    let blocks = bench.json(&["trace", "v.img", "--workload", WORKLOAD]);
    let blocks = blocks.as_array().unwrap();
    let find = |verdict: &str| blocks.iter().find(|b| b["verdict"] == verdict);
    assert!(find("ready").is_some(), "bitmaps and data can be written at once: {blocks:#?}");
    let blocked = find("blocked").expect("inodes wait for data");
    let waits = blocked["patches"][0]["waits_for_blocks"].as_array().unwrap();
    assert!(!waits.is_empty(), "{blocked:#?}");
    let dot = bench.ok(&["trace", "v.img", "--workload", WORKLOAD, "--dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("->"), "{dot}");
    for said in [
        "an arrow: a change waits for the one it points to",
        r#"directory \"D\" (adds \".\", adds \"..\", adds \"a\")"#,
    ] {
        assert!(dot.contains(said), "{said}: {dot}");
    }
    assert!(std::fs::read(bench.path("v.img")).unwrap() == before, "the image is not changed");
}

#[test]
fn it_says_what_each_block_holds_and_which_operation_changed_it() {
    for (format, more) in [("ext2", &[][..]), ("ext3", &["--order", "journal=ordered"])] {
        let bench = Bench::with_volume(format);
        let trace = [&["trace", "v.img", "--workload", WORKLOAD][..], more].concat();
        let text = bench.ok(&trace);
        for said in [
            r#"it holds bytes 0 to 4096 of "D/a", from write("D/a", bytes 0 to 9000)"#,
            "it holds bitmap of the inodes of group",
            "it holds bitmap of the blocks of group",
            r#"it holds directory "D" (adds ".", adds "..", adds "a")"#,
            r#"it holds directory "." (adds "D"), from mkdir("D")"#,
            "hard: written with its block, or not at all",
        ] {
            assert!(text.contains(said), "{format}: {said}: {text}");
        }
        let blocks = bench.json(&trace);
        let blocks = blocks.as_array().unwrap();
        assert!(blocks.iter().all(|block| block["holds"].is_string()), "{blocks:#?}");
        let data = blocks.iter().find(|block| block["structure"] == "file").expect("data");
        assert_eq!(data["path"], "D/a", "{data}");
        assert_eq!(data["changed_by"], "write(\"D/a\", bytes 0 to 9000)");
    }
}

#[test]
fn it_lists_the_operations_that_it_takes() {
    let bench = Bench::with_volume("ext2");
    for verb in ["trace", "crash"] {
        let help = bench.ok(&[verb, "--help"]);
        for form in
            ["write PATH OFFSET LENGTH", "rename OLD NEW", "falloc PATH OFFSET LENGTH [keep]"]
        {
            assert!(help.contains(form), "{verb}: {form}: {help}");
        }
    }
    let error = bench.fails(2, &["trace", "v.img", "--workload", "write d/a 8192"]);
    assert!(error.contains("write PATH OFFSET LENGTH"), "{error}");
    let error = bench.fails(2, &["trace", "v.img", "--workload", "fly a"]);
    assert!(error.contains("the operations are creat PATH; "), "{error}");
}

#[test]
fn it_records_in_the_format_of_dm_log_writes() {
    let bench = Bench::with_volume("ext2");
    bench.ok(&["trace", "v.img", "--workload", WORKLOAD, "--record", "log"]);
    let log = std::fs::read(bench.path("log")).unwrap();
    assert_eq!(log[..8], 0x006a_7366_7773_6872_u64.to_le_bytes());
}

#[test]
fn a_journal_beside_a_volume_is_asked_for_and_used() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "64M", "--journal", "v.journal"]);
    bench.write("file", b"content");
    bench.ok(&["put", "--journal", "v.journal", "--order", "journal=full", "file", "v.img:/"]);
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "content");
    bench.fails(1, &["put", "--order", "journal=full", "file", "v.img:/other"]);
    let (journal, image) = (bench.path("v.journal"), bench.path("v.img"));
    let args = [OsStr::new("-fn"), OsStr::new("-j"), journal.as_os_str(), image.as_os_str()];
    let Some(ran) = tool("e2fsck", args) else { return };
    assert_eq!(ran.code, 0, "{ran:#?}");
}
