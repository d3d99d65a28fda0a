//! Free blocks are discarded on the device, and no others.

use crate::tools::{assert_clean, have_e2fsprogs};
use crate::volumes::{KINDS, Mounted, POLICIES, empty, options, plain};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode};
use weft_ext2::Ext2;
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, Ino, TrimRange};

const ALL: TrimRange = TrimRange { start: 0, len_bytes: u64::MAX, min_len_bytes: 0 };

/// A new file, without reserved blocks beyond its own.
fn file(fs: &dyn FileSystem, name: &[u8], content: &[u8]) -> Ino {
    let made = fs.mknod(&Caller::ROOT, fs.root(), name, FileKind::Regular, 0o644, 0);
    let ino = made.unwrap().attr.ino;
    assert_eq!(fs.write(&Caller::ROOT, ino, Handle::NONE, 0, content).unwrap(), content.len());
    fs.forget(ino, 1);
    fs.lookup(fs.root(), name).unwrap().attr.ino
}

fn read(fs: &dyn FileSystem, ino: Ino, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    let len = fs.read(ino, Handle::NONE, 0, &mut content).unwrap();
    content.truncate(len);
    content
}

fn free_bytes(fs: &dyn FileSystem) -> u64 {
    let st = fs.statfs().unwrap();
    st.blocks_free * u64::from(st.block_bytes)
}

/// The content of removed files is gone from the device; that of others is not.
#[test]
fn trimming_discards_all_that_is_free_and_nothing_else() {
    if !have_e2fsprogs() {
        return;
    }
    for policy in POLICIES {
        let journaled = matches!(policy, Policy::Journal(_));
        let image = empty(&KINDS[if journaled { 3 } else { 0 }]);
        let mounted = Mounted::open(&image, Options { policy, ..Options::default() });
        let fs = &mounted.fs;
        let kept: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 11) as u8 | 1).collect();
        let keeper = file(&**fs, b"kept", &kept);
        let gone = file(&**fs, b"gone", &vec![0xEE; 5_000_000]);
        fs.sync().unwrap();
        fs.unlink(&Caller::ROOT, fs.root(), b"gone").unwrap();
        fs.forget(gone, 1);
        let has_old_data = || {
            let image = mounted.device.snapshot();
            image.pages().any(|(_, page)| page.chunks_exact(64).any(|bytes| bytes == [0xEE; 64]))
        };
        assert!(has_old_data(), "{policy:?}: the test sees the old content");
        let free = free_bytes(&**fs);
        assert_eq!(fs.trim(&ALL).unwrap(), free, "{policy:?}");
        assert!(!has_old_data() || matches!(policy, Policy::Journal(JournalMode::Full)));
        assert!(read(&**fs, keeper, kept.len() + 1) == kept, "{policy:?}");
        // All of it can be used again, and is not discarded once it is.
        let again = file(&**fs, b"again", &vec![0xDD; 20_000_000]);
        let free = free_bytes(&**fs);
        assert_eq!(fs.trim(&ALL).unwrap(), free, "{policy:?}");
        assert!(read(&**fs, again, 20_000_001) == vec![0xDD; 20_000_000], "{policy:?}");
        mounted.check("a trimmed volume");
    }
}

/// Whatever was made durable is there after a cut at any moment: what the changes that freed the
/// blocks leave behind if they do not become durable still has its content.
#[test]
fn blocks_that_a_cut_brings_back_were_not_discarded() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let content = vec![0xAB; 300_000];
    let ino = file(&**fs, b"synced", &content);
    fs.sync().unwrap();
    // A file that is unlinked and still open has its blocks; one that is being unlinked has them
    // until that is durable, which trimming sees to.
    let opened = fs.open(&Caller::ROOT, ino, weft_vfs::OpenFlags::READ).unwrap();
    fs.unlink(&Caller::ROOT, fs.root(), b"synced").unwrap();
    let before = free_bytes(&**fs);
    assert_eq!(fs.trim(&ALL).unwrap(), before);
    assert!(read(&**fs, ino, content.len() + 1) == content);
    fs.release(ino, opened.handle).unwrap();
    fs.forget(ino, 1);
    assert!(fs.trim(&ALL).unwrap() >= before + 300_000);
    let image = mounted.device.snapshot();
    let after = Mounted::open(&image, Options::default());
    assert!(after.fs.lookup(after.fs.root(), b"synced").is_err(), "durable, as it was discarded");
}

#[test]
fn ranges_and_short_extents_are_obeyed() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    let free = free_bytes(&**fs);
    let half = 16 << 20;
    let low = fs.trim(&TrimRange { start: 0, len_bytes: half, min_len_bytes: 0 }).unwrap();
    let high = fs.trim(&TrimRange { start: half, len_bytes: u64::MAX, min_len_bytes: 0 }).unwrap();
    assert_eq!(low + high, free);
    assert!(low > half / 2 && low < half && high > half / 2 && high <= half);
    // Holes of one block each, beside the free space in one piece.
    let bs = 4096;
    let content = vec![1; 100 * bs as usize];
    let ino = file(&**fs, b"holes", &content);
    for i in 0..50 {
        fs.fallocate(&Caller::ROOT, ino, weft_vfs::FallocateMode::PunchHole, 2 * i * bs, bs)
            .unwrap();
    }
    fs.sync().unwrap();
    let free = free_bytes(&**fs);
    let long = fs.trim(&TrimRange { min_len_bytes: 2 * bs, ..ALL }).unwrap();
    assert_eq!(long, free - 50 * bs);
    for refused in [
        TrimRange { start: 32 << 20, ..ALL },
        TrimRange { len_bytes: bs - 1, ..ALL },
        TrimRange { min_len_bytes: u64::MAX, ..ALL },
    ] {
        assert!(matches!(fs.trim(&refused), Err(Error::Invalid(_))), "{refused:?}");
    }
    mounted.check("holes");
}

/// Writers that fill the volume meanwhile find all of its room.
#[test]
fn writers_find_the_room_that_is_being_trimmed() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(plain(), Options::default());
    let fs = &mounted.fs;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                fs.trim(&ALL).unwrap();
            }
        });
        for round in 0..10 {
            let ino = file(&**fs, b"large", &vec![round; 28_000_000]);
            assert!(read(&**fs, ino, 28_000_001) == vec![round; 28_000_000]);
            fs.unlink(&Caller::ROOT, fs.root(), b"large").unwrap();
            fs.forget(ino, 1);
        }
    });
    mounted.check("trimmed while it was filled");
}

#[test]
fn an_image_file_gives_its_blocks_back_to_the_host() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    crate::volumes::mke2fs(&path, &KINDS[0]);
    let device = Arc::new(FileDevice::open(&path, OpenMode::READ_WRITE).unwrap());
    let fs = Ext2::open(device.clone(), options(Options::default())).unwrap();
    let ino = file(&*fs, b"large", &vec![7; 20 << 20]);
    fs.sync().unwrap();
    let full = path.metadata().unwrap().blocks();
    fs.unlink(&Caller::ROOT, fs.root(), b"large").unwrap();
    fs.forget(ino, 1);
    fs.trim(&ALL).unwrap();
    device.flush().unwrap();
    let trimmed = path.metadata().unwrap().blocks();
    assert!(trimmed + (19 << 20) / 512 <= full, "{full} units of 512 bytes, then {trimmed}");
    fs.unmount().unwrap();
    drop(fs);
    assert_clean(&path, "a trimmed image file");
}

#[test]
fn a_volume_that_is_only_read_is_not_trimmed() {
    if !have_e2fsprogs() {
        return;
    }
    let device = Arc::new(weft_block::MemoryDevice::from_image(plain().clone()));
    let read_only = weft_ext2::OpenOptions { read_only: true, ..options(Options::default()) };
    let fs = Ext2::open(device, read_only).unwrap();
    assert!(matches!(fs.trim(&ALL), Err(Error::ReadOnly)));
}
