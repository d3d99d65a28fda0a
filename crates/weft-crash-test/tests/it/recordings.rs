//! The file of a recording.

use crate::program::Program;
use weft_crash_test::{Error, Recording};

fn recording() -> Recording {
    let long = vec![7; 10_000];
    Program::new()
        .mkdir("d")
        .put("d/f", b"old")
        .put("long", &long)
        .start()
        .put("d/f.tmp", &long)
        .fsync("d/f.tmp")
        .rename("d/f.tmp", "d/f")
        .fsync_dir("d")
        .print("saved")
        .unlink("long")
        .end()
}

#[test]
fn a_recording_is_read_as_it_was_written() {
    let before = recording();
    let after = Recording::from_bytes(&before.to_bytes().unwrap()).unwrap();
    assert_eq!(after.header, before.header);
    assert_eq!(after.calls, before.calls);
    assert_eq!(after.base.hash(), before.base.hash());
}

#[test]
fn a_recording_that_is_cut_off_or_damaged_is_refused() {
    let bytes = recording().to_bytes().unwrap();
    for len in 0..bytes.len() {
        let error = Recording::from_bytes(&bytes[..len]).unwrap_err();
        assert!(matches!(error, Error::Recording { .. }), "{len}: {error}");
    }
    // Each byte of the frames' lengths and texts in turn: an error or another recording, no panic.
    for at in 0..bytes.len().min(4000) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        let _ = Recording::from_bytes(&damaged);
    }
}
