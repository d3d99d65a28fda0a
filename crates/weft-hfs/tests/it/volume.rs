//! Volumes through the file plug and the lower interface, with the check after each step.

use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_hfs::layout::{Fork, Name, ROOT_ID};
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::volume::New;
use weft_hfs::{Hfs, OpenOptions, fsck};
use weft_patch::Options;
use weft_vfs::{Caller, FileSystem};

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn empty(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    mkfs(&*device, &MkfsOptions::new(name("Test Volume"), 3_000_000_000)).unwrap();
    device
}

pub fn quiet() -> OpenOptions {
    OpenOptions {
        engine: Options { background: false, ..Options::default() },
        ..OpenOptions::default()
    }
}

pub fn mount(device: &Arc<MemoryDevice>) -> Arc<Hfs> {
    Hfs::open(Arc::clone(device) as Arc<dyn BlockDevice>, quiet()).unwrap()
}

#[track_caller]
pub fn assert_sound(device: &dyn BlockDevice) {
    let report = fsck::check(device).unwrap();
    assert!(
        report.is_clean(),
        "{}",
        report.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn an_empty_volume_is_sound() {
    let device = empty(800 << 10);
    assert_sound(&*device);
    let fs = mount(&device);
    assert!(fs.items(ROOT_ID).unwrap().is_empty());
    fs.unmount().unwrap();
    assert_sound(&*device);
}

/// The map of nodes has bits for nodes that do not exist yet. They may have any value; when
/// the tree grows they must be clear.
#[test]
fn a_tree_grows_whatever_the_bits_past_its_last_node_are() {
    let device = empty(800 << 10);
    let mut mdb = [0; 512];
    device.read_at(&mut mdb, 1024).unwrap();
    let number = |at: usize| u64::from(mdb[at]) << 8 | u64::from(mdb[at + 1]);
    let header = (number(28) + number(150) * number(22) / 512) * 512;
    let mut node = [0; 512];
    device.read_at(&mut node, header).unwrap();
    assert_eq!((node[8], node[9]), (1, 0), "the header of the catalog");
    let nodes = usize::from(node[14 + 24]) << 8 | usize::from(node[14 + 25]);
    node[248 + nodes / 8 + 1] |= 0x5a;
    device.write_at(&node, header).unwrap();
    let fs = mount(&device);
    for i in 0..600 {
        let name = name(&format!("a long name of file {i:06}"));
        fs.create_item(ROOT_ID, &name, &New::FILE).unwrap();
    }
    fs.sync().unwrap();
    device.read_at(&mut node, header).unwrap();
    let now = usize::from(node[14 + 24]) << 8 | usize::from(node[14 + 25]);
    assert!(now > nodes + 16, "{nodes} nodes, now {now}");
    fs.unmount().unwrap();
    assert_sound(&*device);
}

#[test]
fn thousands_of_files_come_and_go() {
    let device = empty(8 << 20);
    let fs = mount(&device);
    let names: Vec<Name> =
        (0..3000).map(|i| name(&format!("file {:04}", i * 7919 % 3000))).collect();
    for name in &names {
        fs.create_item(ROOT_ID, name, &New::FILE).unwrap();
    }
    fs.sync().unwrap();
    assert_sound(&*device);
    assert_eq!(fs.items(ROOT_ID).unwrap().len(), 3000);
    for name in &names[..2000] {
        fs.unlink(&Caller::ROOT, weft_vfs::Ino(2), name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    assert_sound(&*device);
    for name in &names[2000..] {
        fs.unlink(&Caller::ROOT, weft_vfs::Ino(2), name.as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    assert_sound(&*device);
    let report = fsck::check(&*device).unwrap();
    assert_eq!((report.files, report.unmounted), (0, true));
}

#[test]
fn both_forks_keep_their_content() {
    let device = empty(4 << 20);
    let fs = mount(&device);
    let file = name("both");
    fs.create_item(ROOT_ID, &file, &New::FILE).unwrap();
    let data: Vec<u8> = (0..100_000_u32).map(|i| (i * 7) as u8).collect();
    let resource: Vec<u8> = (0..70_000_u32).map(|i| (i * 13) as u8).collect();
    for (fork, bytes) in [(Fork::Data, &data), (Fork::Resource, &resource)] {
        for (i, piece) in bytes.chunks(777).enumerate() {
            let at = (i * 777) as u64;
            assert_eq!(fs.write_fork(ROOT_ID, &file, fork, at, piece).unwrap(), piece.len());
        }
    }
    let check = |fs: &Hfs| {
        for (fork, bytes) in [(Fork::Data, &data), (Fork::Resource, &resource)] {
            let mut got = vec![0; bytes.len() + 10];
            let n = fs.read_fork(ROOT_ID, &file, fork, 0, &mut got).unwrap();
            assert_eq!(&got[..n], &bytes[..]);
        }
    };
    check(&fs);
    fs.unmount().unwrap();
    assert_sound(&*device);
    check(&mount(&device));
}
