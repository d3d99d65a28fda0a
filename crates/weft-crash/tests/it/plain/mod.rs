//! A format of a few hundred lines on the front of weft-unix. It shows the code that a format
//! needs, and that the front alone keeps the promises: it goes through the conformance suite and
//! the crash explorer.

mod attributes;
mod blocks;
mod check;
mod directories;
mod format;
mod inodes;
mod layout;

use crate::ext2::clean;
use format::Plain;
use layout::{BLOCK_BITS, FIRST_DATA, INODE_BITS, MAGIC, Pointers, encode, inode_place, record};
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_crash::{Config, Error, Findings, Mounted, Promises, Result, Target};
use weft_patch::{Engine, Options, Policy};
use weft_unix::{Atime, Inode, UnixFs};
use weft_vfs::conformance::{self, Limits};
use weft_vfs::{Caller, FileKind, FileSystem as _, Handle};

#[derive(Debug)]
struct PlainTarget {
    block_bytes: u32,
    blocks: u64,
}

fn told<E: std::fmt::Display>(e: E) -> Error {
    Error::Target(e.to_string())
}

/// Makes an empty volume.
fn mkfs(block_bytes: usize, blocks: u64) -> MemoryDevice {
    let device = MemoryDevice::new(blocks * block_bytes as u64);
    let write = |nr: u64, at: usize, bytes: &[u8]| {
        device.write_at(bytes, nr * block_bytes as u64 + at as u64).unwrap();
    };
    write(0, 0, MAGIC);
    let mut bits = vec![0_u8; block_bytes];
    (0..=FIRST_DATA as usize).for_each(|nr| bits[nr / 8] |= 1 << (nr % 8));
    write(BLOCK_BITS.0, 0, &bits);
    write(INODE_BITS.0, 0, &[1]);
    let mut pointers = Pointers::default();
    pointers.direct[0] = FIRST_DATA as u32;
    let root = Inode {
        mode: 0o040_755,
        links: 2,
        size_bytes: block_bytes as u64,
        blocks_512: block_bytes as u64 / 512,
        ..Inode::default()
    };
    let (nr, at) = inode_place(block_bytes, 1);
    write(nr.0, at, &encode(&root, &pointers));
    write(FIRST_DATA, 0, &record(1, b"."));
    write(FIRST_DATA, layout::RECORD_BYTES, &record(1, b".."));
    device
}

fn mount(device: Arc<dyn BlockDevice>, block_bytes: u32) -> weft_unix::Result<Arc<UnixFs<Plain>>> {
    // No thread: a run must repeat exactly.
    let options = Options { policy: Policy::Soft, background: false, ..Options::default() };
    let engine = Engine::new(Arc::clone(&device), block_bytes, options)?;
    let blocks = engine.len_blocks();
    let format = Plain::load(&mut engine.begin(0)?, block_bytes as usize, blocks)?;
    Ok(Arc::new(UnixFs::new(engine, device, format, false, Atime::Relative)?))
}

impl Target for PlainTarget {
    fn fresh(&self) -> Result<Image> {
        Ok(mkfs(self.block_bytes(), self.blocks).snapshot())
    }

    fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    fn promises(&self) -> Promises {
        Promises { clean_after_recovery: false, operations_in_order: false, no_stale_data: true }
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted> {
        let fs = mount(device, self.block_bytes).map_err(told)?;
        let engine = Arc::clone(fs.engine());
        Ok(Mounted::new(fs).with_write_back(move || engine.write_back().map_err(told)))
    }

    fn check(&self, device: Arc<dyn BlockDevice>, renames_dirs: bool) -> Result<Option<Findings>> {
        check::check(&*device, self.block_bytes(), renames_dirs).map(Some).map_err(told)
    }

    fn repair(&self, _: Arc<dyn BlockDevice>) -> Result<bool> {
        Ok(false)
    }

    fn heal(&self, _: Arc<dyn BlockDevice>) -> Result<bool> {
        Ok(false)
    }

    fn is_ext2(&self) -> bool {
        false
    }

    fn options(&self) -> String {
        format!("--plain --block-size {}", self.block_bytes)
    }
}

#[test]
fn it_conforms() {
    let limits = Limits {
        file_bytes: 4096 * (40 + 1024),
        long_bytes: 3 << 20,
        symlink_bytes: 4095,
        links: None,
        directory_links: None,
        xattr_bytes: 2048,
        names: 200,
        random_runs: 2,
        ..Limits::default()
    };
    let image = mkfs(4096, 4096).snapshot();
    conformance::run(
        || {
            let device = Arc::new(MemoryDevice::from_image(image.clone()));
            mount(device, 4096).unwrap() as Arc<dyn weft_vfs::FileSystem>
        },
        &limits,
    );
}

#[test]
fn it_is_clean_after_an_unmount() {
    let device = Arc::new(mkfs(1024, 1024));
    let fs = mount(device.clone(), 1024).unwrap();
    let caller = weft_vfs::Caller::ROOT;
    let dir = fs.mkdir(&caller, fs.root(), b"a", 0o755).unwrap().attr.ino;
    let file = fs.mknod(&caller, dir, b"file", FileKind::Regular, 0o644, 0).unwrap().attr.ino;
    fs.write(&Caller::ROOT, file, Handle::NONE, 0, &vec![7; 60_000]).unwrap();
    fs.rename(&Caller::ROOT, fs.root(), b"a", fs.root(), b"c", weft_vfs::RenameFlags::empty())
        .unwrap();
    fs.unmount().unwrap();
    assert_eq!(check::check(&*device, 1024, false).unwrap(), Findings::CLEAN);
}

#[test]
fn a_crash_leaves_nothing_but_leaks() {
    let target = PlainTarget { block_bytes: 1024, blocks: 512 };
    let report = clean(&Config { images: 1500, ..Config::new(Arc::new(target)) });
    assert!(report.images >= 1500 && report.counts.leaky > 0, "{report:?}");
}
