//! A volume of which nothing is in memory: an operation that needs a block waits for it, others do
//! not, and no block that is on its way is taken for damage.

use crate::volume::{assert_sound, empty};
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_hfs::{Hfs, OpenOptions};
use weft_patch::Options;
use weft_testing::{At, GateDevice, ends};
use weft_vfs::{Caller, DirCursor, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr};

const CALLER: &Caller = &Caller::ROOT;
const FOLDERS: u32 = 40;
const FILES: u32 = 40;

fn open(device: Arc<dyn BlockDevice>) -> Arc<Hfs> {
    let engine = Options { background: false, ..Options::default() };
    Hfs::open(device, OpenOptions { engine, ..OpenOptions::default() }).unwrap()
}

fn folder(i: u32) -> Vec<u8> {
    format!("folder {i:03}").into_bytes()
}

fn file(i: u32) -> Vec<u8> {
    format!("file {i:03}").into_bytes()
}

/// Makes a volume whose catalog has hundreds of nodes.
fn volume() -> Arc<MemoryDevice> {
    let device = empty(8 << 20);
    let fs = open(device.clone());
    for i in 0..FOLDERS {
        let dir = fs.mkdir(CALLER, fs.root(), &folder(i), 0o755).unwrap().attr.ino;
        for j in 0..FILES {
            let made = fs.mknod(CALLER, dir, &file(j), FileKind::Regular, 0o644, 0).unwrap();
            fs.write(CALLER, made.attr.ino, Handle::NONE, 0, &[7; 1500]).unwrap();
        }
    }
    fs.unmount().unwrap();
    device
}

fn find(fs: &Hfs, dir: Ino, name: &[u8]) -> Ino {
    fs.lookup(dir, name).unwrap().attr.ino
}

/// Lookups and listings of a cold volume find every item, and report no damage.
#[test]
fn nothing_is_read_under_the_lock_to_look() {
    let device = volume();
    let fs = open(device.clone());
    let before = fs.engine().counters();
    let mut listed = 0;
    for i in (0..FOLDERS).rev() {
        let dir = find(&fs, fs.root(), &folder(i));
        fs.readdir_plus(dir, DirCursor(0), &mut |_, _| {
            listed += 1;
            true
        })
        .unwrap();
        let ino = find(&fs, dir, &file(i));
        assert_eq!(fs.getattr(ino).unwrap().size_bytes, 1500);
        let mut buf = [0; 1500];
        assert_eq!(fs.read(ino, Handle::NONE, 0, &mut buf).unwrap(), 1500);
        assert_eq!(buf, [7; 1500]);
    }
    assert_eq!(listed, FOLDERS * (FILES + 2));
    let after = fs.engine().counters();
    assert!(after.blocks_read - before.blocks_read > 100, "the volume was cold");
    assert_eq!(after.reads_under_lock, before.reads_under_lock);
    assert_eq!(fs.damage(), Vec::<String>::new());
    fs.unmount().unwrap();
    assert_sound(&*device);
}

/// Changes are right whether what they need is in memory or not.
#[test]
fn changes_of_a_cold_volume_are_whole() {
    let device = volume();
    for i in 0..8 {
        let fs = open(device.clone());
        let (from, to) = (find(&fs, fs.root(), &folder(i)), find(&fs, fs.root(), &folder(39 - i)));
        fs.unlink(CALLER, from, &file(3)).unwrap();
        fs.rename(CALLER, from, &file(5), to, b"moved", RenameFlags::empty()).unwrap();
        fs.mkdir(CALLER, to, b"made", 0o755).unwrap();
        let ino = find(&fs, from, &file(20));
        let shorter = SetAttr { size_bytes: Some(700), ..SetAttr::default() };
        fs.setattr(CALLER, ino, &shorter).unwrap();
        fs.write(CALLER, ino, Handle::NONE, 699, b"text").unwrap();
        fs.unmount().unwrap();
        assert_sound(&*device);
    }
    let fs = open(device);
    assert_eq!(fs.damage(), Vec::<String>::new());
    for i in 0..8 {
        let (from, to) = (find(&fs, fs.root(), &folder(i)), find(&fs, fs.root(), &folder(39 - i)));
        assert!(fs.lookup(from, &file(3)).is_err() && fs.lookup(from, &file(5)).is_err());
        assert_eq!(fs.lookup(to, b"moved").unwrap().attr.size_bytes, 1500);
        assert_eq!(fs.getattr(find(&fs, from, &file(20))).unwrap().size_bytes, 703);
        find(&fs, to, b"made");
    }
    fs.unmount().unwrap();
}

/// While a cold node of the catalog is on its way, others work with what is in memory.
#[test]
fn a_cold_folder_holds_up_nobody_else() {
    let gate = GateDevice::new(MemoryDevice::from_image(volume().snapshot()));
    let fs = open(gate.clone());
    let near = find(&fs, fs.root(), &folder(0));
    let ino = find(&fs, near, &file(1));
    fs.write(CALLER, ino, Handle::NONE, 0, b"warm").unwrap();
    let root = fs.root();
    gate.arm(At::ReadDone, 0..u64::MAX);
    let looker = fs.clone();
    let cold = std::thread::spawn(move || {
        let dir = looker.lookup(root, &folder(33)).unwrap().attr.ino;
        looker.lookup(dir, &file(30)).unwrap().attr.size_bytes
    });
    gate.wait_held();
    let other = fs.clone();
    ends("the others end beside the cold lookup", move || {
        assert_eq!(find(&other, near, &file(1)), ino);
        assert_eq!(other.getattr(ino).unwrap().size_bytes, 1500);
        assert_eq!(other.write(CALLER, ino, Handle::NONE, 10, b"more").unwrap(), 4);
        other.sync().unwrap();
    });
    assert!(!cold.is_finished(), "the lookup waits for its block");
    gate.release();
    assert_eq!(cold.join().unwrap(), 1500);
    fs.unmount().unwrap();
}
