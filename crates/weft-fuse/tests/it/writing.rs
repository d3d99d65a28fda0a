//! Bytes through the page cache, and around it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags};

use super::both_caches;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn big_and_small_writes() {
    both_caches(|m| {
        let want = bytes(5 << 20);
        fs::write(m.at("big"), &want).expect("write");
        assert!(fs::read(m.at("big")).expect("read") == want);
        let mut file = File::create(m.at("small")).expect("create");
        for piece in want[..100_000].chunks(7) {
            file.write_all(piece).expect("write");
        }
        drop(file);
        assert!(fs::read(m.at("small")).expect("read") == want[..100_000]);
        // What the kernel cached is what the file system has.
        let small = weft_vfs::Walker::new(&*m.fs).read_file(b"/small").expect("read inside");
        assert!(small == want[..100_000]);
    });
}

#[test]
fn write_only_files_change_parts_of_pages() {
    both_caches(|m| {
        fs::write(m.at("file"), bytes(10_000)).expect("write");
        rustix::fs::fsync(File::open(m.at("file")).expect("open")).expect("fsync");
        let file = OpenOptions::new().write(true).open(m.at("file")).expect("open");
        file.write_all_at(b"changed", 5000).expect("write");
        drop(file);
        let mut want = bytes(10_000);
        want[5000..5007].copy_from_slice(b"changed");
        assert!(fs::read(m.at("file")).expect("read") == want);
    });
}

#[test]
fn appending() {
    both_caches(|m| {
        let open = || OpenOptions::new().append(true).create(true).open(m.at("log")).expect("open");
        let (mut one, mut two) = (open(), open());
        for round in 0..500 {
            writeln!(one, "one {round}").expect("write");
            writeln!(two, "two {round}").expect("write");
        }
        let want: String = (0..500).map(|r| format!("one {r}\ntwo {r}\n")).collect();
        assert_eq!(fs::read_to_string(m.at("log")).expect("read"), want);
    });
}

#[test]
fn truncating() {
    both_caches(|m| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(m.at("file")).expect("open");
        file.write_all(&bytes(20_000)).expect("write");
        file.set_len(5000).expect("cut");
        file.set_len(12_000).expect("grow");
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("seek");
        file.read_to_end(&mut content).expect("read");
        assert_eq!(content.len(), 12_000);
        assert!(content[..5000] == bytes(5000) && content[5000..].iter().all(|&b| b == 0));
        // O_TRUNC of an existing file.
        drop(File::create(m.at("file")).expect("create"));
        assert_eq!(fs::metadata(m.at("file")).expect("stat").len(), 0);
        assert!(fs::read(m.at("file")).expect("read").is_empty());
    });
}

#[test]
fn unlinked_while_open() {
    both_caches(|m| {
        let file = File::options().read(true).write(true).create_new(true).open(m.at("gone"));
        let file = file.expect("create");
        file.write_all_at(b"before", 0).expect("write");
        fs::remove_file(m.at("gone")).expect("remove");
        // The name may come back as another file.
        fs::write(m.at("gone"), b"other").expect("write");
        file.write_all_at(b" and after", 6).expect("write");
        file.sync_all().expect("fsync");
        let mut content = [0; 16];
        file.read_exact_at(&mut content, 0).expect("read");
        assert_eq!(&content, b"before and after");
        assert_eq!(fs::read(m.at("gone")).expect("read"), b"other");
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&file.metadata().expect("stat")), 0);
    });
}

#[test]
fn direct_and_synchronous() {
    both_caches(|m| {
        let direct = |options: &mut OpenOptions| {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed()).open(m.at("file"))
        };
        fs::write(m.at("file"), bytes(16_384)).expect("write");
        let file = direct(File::options().read(true).write(true)).expect("open");
        file.write_all_at(&bytes(8192), 4096).expect("direct write");
        let mut content = vec![0; 16_384];
        file.read_exact_at(&mut content, 0).expect("direct read");
        let mut want = bytes(16_384);
        want[4096..12_288].copy_from_slice(&bytes(8192));
        assert!(content == want);
        assert!(fs::read(m.at("file")).expect("read through the cache") == want);
        let sync = OFlags::SYNC.bits().cast_signed();
        let mut file = File::options().append(true).custom_flags(sync).open(m.at("file"));
        file.as_mut().expect("open").write_all(b"synchronous").expect("write");
        let inside = weft_vfs::Walker::new(&*m.fs).read_file(b"/file").expect("read inside");
        assert!(inside.ends_with(b"synchronous"), "it has reached the file system");
    });
}

#[test]
fn allocating_and_holes() {
    both_caches(|m| {
        let file = File::options().read(true).write(true).create_new(true).open(m.at("file"));
        let file = file.expect("create");
        let fallocate = |flags, at, len| rustix::fs::fallocate(file.as_fd(), flags, at, len);
        fallocate(FallocateFlags::empty(), 0, 50_000).expect("allocate");
        assert_eq!(file.metadata().expect("stat").len(), 50_000);
        file.write_all_at(&bytes(50_000), 0).expect("write");
        fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192)
            .expect("punch");
        let mut content = vec![1; 50_000];
        file.read_exact_at(&mut content, 0).expect("read");
        let mut want = bytes(50_000);
        want[4096..12_288].fill(0);
        assert!(content == want);
        let seek = |from| rustix::fs::seek(file.as_fd(), from);
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
        assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(12_288));
        assert_eq!(seek(rustix::fs::SeekFrom::Data(60_000)), Err(rustix::io::Errno::NXIO));
        let collapse = fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    });
}

#[test]
fn copy_file_range() {
    both_caches(|m| {
        fs::write(m.at("from"), bytes(3 << 20)).expect("write");
        let (from, to) = (File::open(m.at("from")), File::create(m.at("to")));
        let (from, to) = (from.expect("open"), to.expect("create"));
        let (mut at, mut to_at) = (100, 5000);
        let mut left = 1 << 20;
        while left > 0 {
            let (source, target) = (Some(&mut at), Some(&mut to_at));
            let done = rustix::fs::copy_file_range(&from, source, &to, target, left).expect("copy");
            assert!(done > 0);
            left -= done;
        }
        let content = fs::read(m.at("to")).expect("read");
        assert!(content[..5000].iter().all(|&b| b == 0));
        assert!(content[5000..] == bytes(3 << 20)[100..100 + (1 << 20)]);
    });
}

#[test]
fn full_volume() {
    let Some(m) = super::mounted() else { return };
    // The model holds 1 GiB; a sparse file does not fill it, an allocation does.
    let file = File::create(m.at("file")).expect("create");
    let refused = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 30);
    assert_eq!(refused, Err(rustix::io::Errno::NOSPC));
    file.write_all_at(b"still works", 0).expect("write");
}

#[test]
fn locks() {
    let Some(m) = super::mounted() else { return };
    let open = || File::options().write(true).create(true).truncate(false).open(m.at("lock"));
    let (one, two) = (open().expect("open"), open().expect("open"));
    one.lock().expect("lock");
    assert!(two.try_lock().is_err(), "held by the other");
    one.unlock().expect("unlock");
    two.try_lock().expect("free again");
}

/// By default the kernel keeps nothing back: what was written is known of at once.
#[test]
fn written_data_takes_space_and_is_no_hole() {
    let Some(m) = super::mounted() else { return };
    let file = File::create(m.at("file")).expect("create");
    file.write_all_at(&bytes(1 << 20), 4096).expect("write");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("stat"));
    assert_eq!(blocks * 512, 1 << 20);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(4096));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(4096)), Ok((1 << 20) + 4096));
}
