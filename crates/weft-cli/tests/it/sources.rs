//! docs/sources.md: filters in front of a source, through the real command.

use crate::run::{Bench, can_mount};
use std::fs;
use std::io::Cursor;
use std::time::{Duration, Instant};
use weft::block::{BlockDevice, Event, LogReader, MemoryDevice, replay};

fn events(bench: &Bench, log: &str) -> Vec<Event> {
    let log = fs::read(bench.path(log)).unwrap_or_else(|e| panic!("{log}: {e}"));
    LogReader::new(Cursor::new(log)).expect("a log").read_all().expect("a whole log")
}

/// Demands that the image holds what the logs say was written, one after the other, to a device of
/// zeroes.
fn assert_logs_give(bench: &Bench, logs: &[&str], image: &str) {
    let expected = fs::read(bench.path(image)).unwrap();
    let device = MemoryDevice::new(expected.len() as u64);
    for log in logs {
        replay(&events(bench, log), &device).unwrap();
    }
    let mut bytes = vec![0; expected.len()];
    device.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == expected, "{logs:?} replayed differ from {image}");
}

#[test]
fn a_volume_is_recorded_from_its_first_write_on() {
    let bench = Bench::new();
    bench.write("file", b"recorded");
    bench.ok(&["mkfs", "ext2", "record=a.log:v.img", "--size", "16M"]);
    bench.ok(&["put", "file", "delay=1us:record=b.log:v.img:/"]);
    assert_eq!(bench.ok(&["cat", "record=none.log:v.img:/file"]), "recorded");
    assert!(!bench.path("none.log").exists(), "reading records nothing");
    assert_logs_give(&bench, &["a.log", "b.log"], "v.img");
    // A log is not overwritten, and neither is the image by a slip of the pen.
    let before = fs::read(bench.path("v.img")).unwrap();
    for log in ["a.log", "v.img"] {
        let error = bench.fails(1, &["mkdir", &format!("record={log}:v.img:/d")]);
        assert!(error.contains(log) && error.contains("there already"), "{error}");
    }
    assert!(fs::read(bench.path("v.img")).unwrap() == before);
    bench.e2fsck_clean("v.img");
}

#[test]
fn each_request_of_a_delayed_device_takes_longer() {
    let bench = Bench::with_volume("ext2");
    let began = Instant::now();
    bench.ok(&["ls", "delay=300ms:v.img:/"]);
    assert!(began.elapsed() >= Duration::from_millis(300), "the superblock is read at least");
}

#[test]
fn a_mount_keeps_its_filters_and_is_found_by_its_image() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let before = fs::read(bench.path("v.img")).unwrap();
    fs::create_dir(bench.path("m")).unwrap();
    bench.ok(&["mount", "delay=10us:record=m.log:v.img", "m", "--background"]);
    let error = bench.fails(1, &["mkdir", "v.img:/d"]);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let absolute = |name: &str| bench.path(name).canonicalize().unwrap().display().to_string();
    let source = format!("delay=10us:record={}:{}", absolute("m.log"), absolute("v.img"));
    let shown = table.contains(&source);
    fs::write(bench.path("m/file"), b"through a mount").unwrap();
    let unmounted = bench.run(&["umount", "m"]);
    assert_eq!(unmounted.code, 0, "{unmounted:?}");
    assert!(shown, "{source} in {table}");
    assert!(error.contains("in use") && error.contains("mounted on"), "{error}");
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "through a mount");

    let device = MemoryDevice::new(before.len() as u64);
    device.write_at(&before, 0).unwrap();
    replay(&events(&bench, "m.log"), &device).unwrap();
    let mut bytes = vec![0; before.len()];
    device.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == fs::read(bench.path("v.img")).unwrap(), "the log is complete after umount");
}

#[test]
fn a_description_that_makes_no_sense_is_wrong_usage_and_says_which_part() {
    let bench = Bench::with_volume("ext2");
    for (source, part) in [
        ("dealy=1ms:v.img", "dealy=1ms"),
        ("delay=soon:v.img", "delay=soon"),
        ("delay=1h:v.img", "60s"),
        ("record=:v.img", "log is missing"),
        ("v.img?partition=0", "partition=0"),
        ("ftp://host/v.img", "nbd+unix"),
    ] {
        let error = bench.fails(2, &["info", source]);
        assert!(error.contains(part), "{source}: {error}");
    }
    // What exists under a name that reads like a filter is that file.
    fs::rename(bench.path("v.img"), bench.path("delay=1h:v.img")).unwrap();
    bench.ok(&["info", "delay=1h:v.img"]);
}
