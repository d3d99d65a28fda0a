//! Volumes to test on: made by the host's mke2fs, kept in memory, checked by e2fsck.

use crate::tools::assert_clean;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use weft_block::{FaultDevice, Image, MemoryDevice, PAGE_BYTES};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::FileSystem;

/// A kind of volume: mke2fs's arguments and size.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub args: &'static [&'static str],
    pub size: &'static str,
}

pub const KINDS: &[Kind] = &[
    Kind { name: "ext2, 4 KiB", args: &["-t", "ext2", "-b", "4096", "-I", "256"], size: "32M" },
    Kind { name: "ext2, 1 KiB", args: &["-t", "ext2", "-b", "1024", "-I", "128"], size: "24M" },
    Kind { name: "ext2, 2 KiB", args: &["-t", "ext2", "-b", "2048", "-I", "512"], size: "32M" },
    Kind { name: "ext3", args: &["-t", "ext3", "-b", "1024", "-I", "256"], size: "32M" },
    Kind { name: "revision 0", args: &["-t", "ext2", "-r", "0", "-b", "1024"], size: "16M" },
    // Several meta groups, and a last one without a second copy of its descriptors at the end.
    Kind {
        name: "meta_bg",
        args: &["-t", "ext2", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode"],
        size: "36M",
    },
    // An inode and the attributes in it span sectors.
    Kind {
        name: "inodes of 1 KiB",
        args: &["-t", "ext2", "-b", "4096", "-I", "1024"],
        size: "32M",
    },
];

/// Commit policies of each kind: soft updates, none, and a journal without and with file data.
pub const POLICIES: [Policy; 4] = [
    Policy::Soft,
    Policy::Async,
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
];

/// Makes a volume with mke2fs.
pub fn mke2fs(path: &Path, kind: &Kind) {
    let out = Command::new("mke2fs")
        .args(["-q", "-F"])
        .args(kind.args)
        .arg(path)
        .arg(kind.size)
        .output()
        .unwrap();
    assert!(out.status.success(), "mke2fs: {}", String::from_utf8_lossy(&out.stderr));
}

/// An empty volume of a kind, in memory.
pub fn empty(kind: &Kind) -> Image {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, kind);
    load(&path)
}

/// An image in a file, in memory.
pub fn load(path: &Path) -> Image {
    let bytes = std::fs::read(path).unwrap();
    let mut image = Image::new(bytes.len() as u64);
    for (i, chunk) in bytes.chunks(4096).enumerate() {
        if chunk.iter().any(|b| *b != 0) {
            image.write(chunk, i as u64 * 4096).unwrap();
        }
    }
    image
}

/// Writes an image to a file, with holes where it is empty.
pub fn store(device: &MemoryDevice, path: &Path) {
    let image = device.snapshot();
    let file = std::fs::File::create(path).unwrap();
    file.set_len(image.len_bytes()).unwrap();
    for (number, page) in image.pages() {
        if page.iter().any(|b| *b != 0) {
            file.write_all_at(&page[..], number * PAGE_BYTES as u64).unwrap();
        }
    }
}

/// A volume in use.
pub struct Mounted {
    pub fs: Arc<Ext2>,
    pub device: Arc<MemoryDevice>,
}

/// Options without a thread of the engine: the test decides the order of events.
pub fn options(engine: Options) -> OpenOptions {
    OpenOptions { engine, ..OpenOptions::default() }
}

impl Mounted {
    pub fn open(image: &Image, engine: Options) -> Self {
        Self::open_with(image, |_| options(engine))
    }

    /// As [`open`](Self::open), with other options than the usual ones.
    pub fn open_with(image: &Image, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Self {
        let device = Arc::new(MemoryDevice::from_image(image.clone()));
        let fs = Ext2::open(device.clone(), change(OpenOptions::default())).unwrap();
        Self { fs, device }
    }

    /// As [`open`](Self::open), on a device of which nothing can be read without waiting.
    pub fn open_waiting(image: &Image, engine: Options) -> Self {
        let device = Arc::new(MemoryDevice::from_image(image.clone()));
        let waiting = Arc::new(FaultDevice::new(device.clone()));
        let fs = Ext2::open(waiting, options(engine)).unwrap();
        Self { fs, device }
    }

    /// Unmounts and lets e2fsck look: it must find nothing.
    pub fn check(self, what: &str) -> Arc<MemoryDevice> {
        self.fs.unmount().unwrap();
        assert_eq!(self.fs.damage(), None, "{what}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        store(&self.device, &path);
        assert_clean(&path, what);
        self.device
    }
}

/// The 4 KiB volume, made once.
pub fn plain() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| empty(&KINDS[0]))
}
