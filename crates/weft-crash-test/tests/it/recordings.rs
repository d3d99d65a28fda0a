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

#[test]
fn calls_on_a_file_that_was_removed_before_are_left_out() {
    let fs = std::sync::Arc::new(weft_vfs::memfs::MemFs::new());
    let recorder = weft_crash_test::Recorder::new(fs.clone(), 1 << 20);
    let fs: &dyn weft_vfs::FileSystem = &*fs;
    let (root, caller) = (fs.root(), weft_vfs::Caller::ROOT);
    let ino =
        fs.mknod(&caller, root, b"f", weft_vfs::FileKind::Regular, 0o644, 0).unwrap().attr.ino;
    fs.unlink(&caller, root, b"f").unwrap();
    // As a program that is tested later sees it: the kernel still has the file open.
    let base = Program::new().start().end().base;
    recorder.start(None, None);
    let recorded: &dyn weft_vfs::FileSystem = &recorder;
    recorded.write(&caller, ino, weft_vfs::Handle::NONE, 0, b"late").unwrap();
    recorded.mknod(&caller, root, b"g", weft_vfs::FileKind::Regular, 0o644, 0).unwrap();
    let calls = recorder.stop().unwrap();
    assert_eq!(calls.len(), 3);
    let recording = Recording::new(weft_crash_test::Header::default(), base, calls);
    assert_eq!(recording.calls.len(), 2);
    crate::program::search_all(&recording, weft_crash_test::Model::Posix, |_, _| true);
}
