//! The reads of a slow device that files cost of which nothing is in memory: how many, and how many
//! of them at a time.

use crate::volumes::{KINDS, Kind, empty, options};
use std::sync::Arc;
use weft_block::{MemoryDevice, PAGE_BYTES};
use weft_ext2::Ext2;
use weft_patch::Options;
use weft_testing::ReadsDevice;
use weft_vfs::{Caller, DirCursor, FileSystem, Handle, Ino, Walker};

type Reads = Arc<ReadsDevice<MemoryDevice>>;

/// Fills a volume, and opens it again with nothing in memory.
fn cold(kind: &Kind, cache_bytes: usize, fill: impl FnOnce(&Walker<'_>)) -> (Reads, Arc<Ext2>) {
    let device = Arc::new(MemoryDevice::from_image(empty(kind)));
    let open = |device, clean_cache_bytes| {
        let engine = Options { background: false, clean_cache_bytes, ..Options::default() };
        Ext2::open(device, options(engine)).unwrap()
    };
    let fs = open(device.clone(), 64 << 20);
    fill(&Walker::new(&*fs));
    fs.unmount().unwrap();
    let reads = ReadsDevice::new(MemoryDevice::from_image(device.snapshot()));
    let fs = open(reads.clone(), cache_bytes);
    (reads, fs)
}

fn lookup(fs: &Ext2, dir: Ino, name: &str) -> Ino {
    fs.lookup(dir, name.as_bytes()).unwrap().attr.ino
}

fn read(fs: &Ext2, ino: Ino, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let len = fs.read(ino, Handle::NONE, 0, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

/// Files of 2 to 8 KiB, each with other content.
fn content(i: usize) -> Vec<u8> {
    (0..2000 + i * 97 % 6000).map(|at| (at * (i + 3) % 251) as u8).collect()
}

fn small_files(w: &Walker<'_>) {
    w.mkdir(b"/a", 0o755).unwrap();
    for i in 0..FILES {
        w.write_file(format!("/a/{i}").as_bytes(), &content(i), 0o644).unwrap();
    }
}

const FILES: usize = 64;

/// The inodes come with the first one, and a file in one piece in one request, whatever its length.
#[test]
fn a_small_file_costs_one_read() {
    let (device, fs) = cold(&KINDS[0], 64 << 20, small_files);
    let under_lock = fs.engine().counters().reads_under_lock;
    let a = lookup(&fs, fs.root(), "a");
    lookup(&fs, a, "0");
    device.take();
    for i in 0..FILES {
        let ino = lookup(&fs, a, &i.to_string());
        assert_eq!(read(&fs, ino, 64 << 10), content(i));
    }
    let reads = device.take();
    assert_eq!(reads.len(), FILES, "{reads:?}");
    assert_eq!(fs.engine().counters().reads_under_lock, under_lock);
    fs.unmount().unwrap();
}

/// A cache that is small for a part of the inode table is not filled with neighbours.
#[test]
fn a_small_cache_gets_no_neighbours() {
    let (device, fs) = cold(&KINDS[0], 64 * 4096, small_files);
    let a = lookup(&fs, fs.root(), "a");
    lookup(&fs, a, "0");
    let reads = device.take();
    let long: Vec<_> = reads.iter().filter(|read| read.end - read.start > 4096).collect();
    assert!(long.is_empty(), "{reads:?}");
    assert_eq!(fs.engine().counters().blocks_read_ahead, 0);
    fs.unmount().unwrap();
}

/// Directories below the root lie in groups of their own, and so do their inodes.
#[test]
fn the_inodes_of_a_listing_are_read_at_once() {
    const DIRS: usize = 8;
    let (device, fs) = cold(&KINDS[5], 64 << 20, |w| {
        for i in 0..DIRS {
            w.mkdir(format!("/{i}").as_bytes(), 0o755).unwrap();
        }
    });
    let under_lock = fs.engine().counters().reads_under_lock;
    fs.readdir(fs.root(), DirCursor(0), &mut |_| true).unwrap();
    device.take();
    device.hold();
    let lister = fs.clone();
    let listing = std::thread::spawn(move || {
        let mut names = 0;
        let count = &mut |_: weft_vfs::DirEntry<'_>, _| {
            names += 1;
            true
        };
        lister.readdir_plus(lister.root(), DirCursor(0), count).unwrap();
        names
    });
    device.wait_held(DIRS);
    device.release();
    // `.`, `..` and `lost+found`, too.
    assert_eq!(listing.join().unwrap(), DIRS + 3);
    let reads = device.take();
    assert_eq!(reads.len(), DIRS, "{reads:?}");
    assert_eq!(fs.engine().counters().reads_under_lock, under_lock);
    fs.unmount().unwrap();
}

/// The data of a small file lies around its map, and comes with it.
#[test]
fn a_small_file_with_a_map_costs_one_read() {
    let bytes: Vec<u8> = (0..20 * PAGE_BYTES + 77).map(|at| (at % 241) as u8).collect();
    let (device, fs) = cold(&KINDS[0], 64 << 20, |w| {
        w.write_file(b"/file", &bytes, 0o644).unwrap();
    });
    let ino = lookup(&fs, fs.root(), "file");
    device.take();
    assert_eq!(read(&fs, ino, 128 << 10), bytes);
    let reads = device.take();
    assert_eq!(reads.len(), 1, "{reads:?}");
    // A change of what was read ahead is what is read next.
    fs.write(&Caller::ROOT, ino, Handle::NONE, 70_000, b"changed").unwrap();
    fs.sync().unwrap();
    assert_eq!(read(&fs, ino, 128 << 10)[70_000..70_007], *b"changed");
    fs.unmount().unwrap();
}

/// The pieces of a file lie around the block of its map.
#[test]
fn the_pieces_of_a_file_are_read_at_once() {
    let bytes: Vec<u8> = (0..40 * PAGE_BYTES).map(|at| (at % 241) as u8).collect();
    let (device, fs) = cold(&KINDS[0], 64 << 20, |w| {
        w.write_file(b"/file", &bytes, 0o644).unwrap();
    });
    let ino = lookup(&fs, fs.root(), "file");
    // Brings in the map.
    fs.read(ino, Handle::NONE, 39 * PAGE_BYTES as u64, &mut [0; 9]).unwrap();
    device.take();
    device.hold();
    let reader = fs.clone();
    let read = std::thread::spawn(move || read(&reader, ino, 256 << 10));
    device.wait_held(2);
    device.release();
    assert_eq!(read.join().unwrap(), bytes);
    assert_eq!(device.take().len(), 2);
    fs.unmount().unwrap();
}

/// A long directory is listed in few requests.
#[test]
fn a_listing_reads_adjacent_blocks_together() {
    const NAMES: usize = 400;
    let (device, fs) = cold(&KINDS[0], 64 << 20, |w| {
        for i in 0..NAMES {
            w.write_file(format!("/{i:0>200}").as_bytes(), b"", 0o644).unwrap();
        }
    });
    device.take();
    let mut names = 0;
    let count = &mut |_: weft_vfs::DirEntry<'_>| {
        names += 1;
        true
    };
    fs.readdir(fs.root(), DirCursor(0), count).unwrap();
    let reads = device.take();
    assert_eq!(names, NAMES + 3);
    let blocks: u64 = reads.iter().map(|read| (read.end - read.start) / 4096).sum();
    assert!(blocks > 20 && reads.len() <= 4, "{reads:?}");
    fs.unmount().unwrap();
}
