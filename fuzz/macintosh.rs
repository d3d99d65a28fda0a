//! The targets of the larger Macintosh formats: damaged HFS and HFS Plus volumes.

use super::{change, memory, walk};
use std::sync::{Arc, OnceLock};
use weft::block::{BlockDevice, Image, MemoryDevice, Rng};
use weft::hfs::layout::{Fork, Mdb, Name, ROOT_ID};
use weft::hfs::mkfs::{MkfsOptions, mkfs};
use weft::hfs::owners::{Content, Owners, entries};
use weft::hfs::volume::New;
use weft::hfs::{Hfs, OpenOptions, fsck};
use weft::patch::{self, JournalMode, Policy};
use weft::vfs::{Caller, FileSystem, Ino, RenameFlags, XattrSet};

/// An HFS volume with bytes changed as `data` says: checked, opened in either order of writes,
/// walked, changed at random, repaired. A repair that ends leaves a sound volume.
pub fn hfs(data: &[u8]) {
    let [choice, seed, changes @ ..] = data else { return };
    let (base, places) = &bases()[usize::from(choice & 1)];
    let mut image = base.clone();
    for change in changes.chunks_exact(4) {
        let (start, end) = places[usize::from(change[0]) % places.len()];
        let at = u64::from(u16::from_le_bytes([change[1], change[2]])) % (end - start);
        let _ = image.write(&change[3..4], start + at);
    }
    let device = Arc::new(MemoryDevice::from_image(image));
    let journaled = choice & 2 != 0;
    let open = |read_only| {
        let policy = if journaled { Policy::Journal(JournalMode::Ordered) } else { Policy::Soft };
        let journal: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let options = OpenOptions {
            read_only,
            engine: patch::Options { policy, background: false, ..patch::Options::default() },
            journal: journaled.then_some(journal),
            ..OpenOptions::default()
        };
        Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options)
    };
    let _ = fsck::check(&*device);
    if let Ok(owners) = Owners::read(&*device) {
        assert!(owners.content(2).is_some(), "the master directory block");
        let mut node = [0; 512];
        for block in 0..device.geometry().len_bytes / 512 {
            if let Some(Content::Node { .. }) = owners.content(block) {
                let read = device.read_at(&mut node, block * 512);
                let _ = read.map(|()| entries(&node));
            }
        }
    }
    if let Ok(fs) = open(true) {
        walk(&*fs);
    }
    if let Ok(fs) = open(false) {
        walk(&*fs);
        change(&*fs);
        operate(&fs, u64::from(*seed));
        let _ = fs.unmount();
    }
    let Ok(repaired) = fsck::repair(&*device) else { return };
    if repaired.before.problems.iter().any(|p| matches!(p, fsck::Problem::Cut { .. })) {
        // Nobody can repair what is not there: it is left as it is, and read as far as it goes.
        assert_eq!(repaired.before.problems, repaired.after.problems);
        return;
    }
    assert!(repaired.after.is_clean(), "{:?}", repaired.after.problems);
    let fs = open(false).expect("a repaired volume is opened");
    walk(&*fs);
    operate(&fs, u64::from(*seed) + 256);
    fs.unmount().expect("and closed");
    let after = fsck::check(&*device).expect("and checked");
    assert!(after.is_clean(), "{:?}", after.problems);
}

/// Random operations. What fails, fails.
fn operate(fs: &Hfs, seed: u64) {
    let mut rng = Rng::new(seed);
    let root = Ino(u64::from(ROOT_ID));
    for _ in 0..40 {
        let name = |rng: &mut Rng| format!("file {}", rng.below(50));
        let (text, other) = (name(&mut rng), name(&mut rng));
        let Ok(hfs_name) = Name::new(text.as_bytes()) else { continue };
        let fork = Fork::ALL[rng.index(2)];
        match rng.below(8) {
            0 => drop(fs.create_item(ROOT_ID, &hfs_name, &New::FILE)),
            1 => drop(fs.unlink(&Caller::ROOT, root, text.as_bytes())),
            2 => {
                let flags = RenameFlags::empty();
                drop(fs.rename(
                    &Caller::ROOT,
                    root,
                    text.as_bytes(),
                    root,
                    other.as_bytes(),
                    flags,
                ));
            }
            3 => {
                let bytes = vec![7; rng.index(5000)];
                drop(fs.write_fork(ROOT_ID, &hfs_name, fork, rng.below(9000), &bytes));
            }
            4 => drop(fs.truncate_fork(ROOT_ID, &hfs_name, fork, rng.below(9000))),
            5 => {
                let mut buffer = [0; 3000];
                drop(fs.read_fork(ROOT_ID, &hfs_name, fork, rng.below(9000), &mut buffer));
            }
            6 => drop(fs.rename(
                &Caller::ROOT,
                root,
                text.as_bytes(),
                root,
                b"folder",
                RenameFlags::empty(),
            )),
            _ => drop(fs.sync()),
        }
    }
}

/// A sound volume, with the bytes where its structures lie.
type Base = (Image, Vec<(u64, u64)>);

/// Two of them: one of many small files, one of files in many pieces.
fn bases() -> &'static [Base; 2] {
    static BASES: OnceLock<[Base; 2]> = OnceLock::new();
    BASES.get_or_init(|| [base(400 << 10, 60, 1), base(1 << 20, 4, 90)])
}

fn base(len_bytes: u64, files: usize, pieces: usize) -> Base {
    let device = Arc::new(MemoryDevice::new(len_bytes));
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    mkfs(&*device, &MkfsOptions::new(name("Fuzz"), 3_000_000_000)).expect("an empty volume");
    let options = OpenOptions {
        engine: patch::Options { background: false, ..patch::Options::default() },
        ..OpenOptions::default()
    };
    let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).expect("opened");
    let folder = New::Folder { info: Default::default(), xinfo: Default::default() };
    let folder = fs.create_item(ROOT_ID, &name("folder"), &folder).expect("a folder");
    let place = |i: usize| if i.is_multiple_of(2) { ROOT_ID } else { folder };
    for i in 0..files {
        let text = name(&format!("file {i}"));
        fs.create_item(place(i), &text, &New::FILE).expect("a file");
    }
    // In turns, so that none can go on behind itself.
    for piece in 0..pieces {
        for i in 0..files {
            let text = name(&format!("file {i}"));
            for fork in Fork::ALL {
                let at = (piece * 512) as u64;
                fs.write_fork(place(i), &text, fork, at, &[i as u8; 512]).expect("content");
            }
        }
    }
    let info = Ino(u64::from(folder));
    fs.setxattr(&Caller::ROOT, info, b"user.com.apple.FinderInfo", &[1; 32], XattrSet::Any)
        .expect("info");
    fs.unmount().expect("closed");
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024).expect("the MDB");
    let mdb = Mdb::parse(&raw).expect("the MDB");
    let copy = len_bytes - 1024;
    let mut places = vec![(1024, 1024 + 162), (1536, 1536 + 512), (copy, copy + 162)];
    for extent in mdb.catalog_file.iter().chain(&mdb.extents_file).filter(|e| e.count > 0) {
        let at = |nr: u32| {
            u64::from(mdb.first_block) * 512 + u64::from(nr) * u64::from(mdb.alloc_block_bytes)
        };
        let (start, end) = (at(extent.start.into()), at(extent.end()));
        // The header, the first nodes, all of them.
        places.extend([(start, start + 512), (start, (start + 4096).min(end)), (start, end)]);
    }
    (device.snapshot(), places)
}

/// An HFS Plus volume with bytes changed as `data` says: opened and read.
pub fn hfs_plus(data: &[u8]) {
    use weft::hfs::hfsplus::{HfsPlus, OpenOptions};
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    let base = BASE.get_or_init(plus::volume);
    let Some((&choice, changes)) = data.split_first() else { return };
    let mut bytes = base.clone();
    for change in changes.chunks_exact(3) {
        // The header, and the trees.
        let at = usize::from(u16::from_le_bytes([change[0] & 0x7f, change[1]]));
        let at = if change[0] & 0x80 == 0 { 1024 + at % 512 } else { at % plus::CONTENT_AT };
        bytes[at] = change[2];
    }
    if choice & 1 != 0 {
        bytes.truncate(bytes.len() * usize::from(choice) / 256);
    }
    if let Ok(fs) = HfsPlus::open(memory(&bytes), OpenOptions::default()) {
        walk(&*fs);
    } else {
        assert!(!changes.is_empty() || choice & 1 != 0, "the volume to start from is sound");
    }
}

/// A small HFS Plus volume, written here as nothing else does (TN1150).
mod plus {
    const BLOCK: usize = 512;
    const NODE: usize = 1024;
    const EXTENTS_AT: usize = 8;
    const CATALOG_AT: usize = 16;
    const ATTRIBUTES_AT: usize = 48;
    /// Where the trees end, in bytes.
    pub const CONTENT_AT: usize = 64 * BLOCK;
    const BLOCKS: usize = 200;

    type Records = Vec<(Vec<u8>, Vec<u8>)>;

    fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
        to[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A fork's 80 bytes.
    fn fork(len_bytes: usize, extents: &[(usize, usize)]) -> Vec<u8> {
        let mut raw = vec![0; 80];
        put(&mut raw, 0, &(len_bytes as u64).to_be_bytes());
        put(&mut raw, 12, &(len_bytes.div_ceil(BLOCK) as u32).to_be_bytes());
        put(&mut raw, 16, &run(extents));
        raw
    }

    fn run(extents: &[(usize, usize)]) -> Vec<u8> {
        let numbers = extents.iter().take(8).flat_map(|&(start, count)| [start, count]);
        numbers.flat_map(|n| (n as u32).to_be_bytes()).collect()
    }

    fn name(text: &str) -> Vec<u8> {
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut raw = (units.len() as u16).to_be_bytes().to_vec();
        raw.extend(units.iter().flat_map(|unit| unit.to_be_bytes()));
        raw
    }

    fn node(next: usize, kind: u8, height: u8, records: &[Vec<u8>]) -> Vec<u8> {
        let mut raw = vec![0; NODE];
        put(&mut raw, 0, &(next as u32).to_be_bytes());
        put(&mut raw, 8, &[kind, height]);
        put(&mut raw, 10, &(records.len() as u16).to_be_bytes());
        let mut at = 14;
        for (i, record) in records.iter().chain([&Vec::new()]).enumerate() {
            put(&mut raw, NODE - 2 * (i + 1), &(at as u16).to_be_bytes());
            put(&mut raw, at, record);
            at += record.len();
        }
        raw
    }

    /// A tree of a header, leaves of two records each, and one index node if there are several.
    fn tree(records: &Records) -> Vec<u8> {
        let with_key = |key: &[u8], data: &[u8]| {
            let mut raw = (key.len() as u16).to_be_bytes().to_vec();
            raw.extend_from_slice(key);
            raw.resize(raw.len().next_multiple_of(2), 0);
            raw.extend_from_slice(data);
            raw
        };
        let leaves: Vec<&[(Vec<u8>, Vec<u8>)]> = records.chunks(2).collect();
        let mut nodes = Vec::new();
        for (i, leaf) in leaves.iter().enumerate() {
            let next = if i + 1 < leaves.len() { i + 2 } else { 0 };
            let all: Vec<_> = leaf.iter().map(|(key, data)| with_key(key, data)).collect();
            nodes.extend(node(next, 0xff, 1, &all));
        }
        let (mut root, mut depth) = (1, 1);
        if leaves.len() > 1 {
            (root, depth) = (leaves.len() + 1, 2);
            let entries: Vec<_> = leaves
                .iter()
                .enumerate()
                .map(|(i, leaf)| with_key(&leaf[0].0, &(i as u32 + 1).to_be_bytes()))
                .collect();
            nodes.extend(node(0, 0, 2, &entries));
        }
        let mut header = node(0, 1, 0, &[vec![0; 106]]);
        put(&mut header, 14, &(depth as u16).to_be_bytes());
        put(&mut header, 16, &(root as u32).to_be_bytes());
        put(&mut header, 32, &(NODE as u16).to_be_bytes());
        put(&mut header, 36, &((nodes.len() / NODE + 1) as u32).to_be_bytes());
        header.extend(nodes);
        header
    }

    fn key(parent: u32, text: &str) -> Vec<u8> {
        [parent.to_be_bytes().to_vec(), name(text)].concat()
    }

    fn item(id: u32, folder: bool) -> Vec<u8> {
        let mut raw = vec![0; if folder { 88 } else { 248 }];
        raw[1] = if folder { 1 } else { 2 };
        put(&mut raw, 8, &id.to_be_bytes());
        raw
    }

    fn thread(parent: u32, text: &str, folder: bool) -> Vec<u8> {
        let mut raw = vec![0, if folder { 3 } else { 4 }, 0, 0];
        raw.extend(parent.to_be_bytes());
        raw.extend(name(text));
        raw
    }

    pub fn volume() -> Vec<u8> {
        let mut catalog = Records::new();
        let mut add = |parent: u32, text: &str, id: u32, record: Vec<u8>, folder: bool| {
            catalog.push((key(parent, text), record));
            catalog.push((key(id, ""), thread(parent, text, folder)));
        };
        add(1, "Plus", 2, item(2, true), true);
        add(2, "folder", 16, item(16, true), true);
        for i in 0..6 {
            let mut record = item(20 + i, false);
            let content = CONTENT_AT / BLOCK;
            // One has more pieces than its record.
            let pieces: Vec<_> =
                (0..if i == 0 { 9 } else { 2 }).map(|n| (content + 2 * n, 1)).collect();
            put(&mut record, 88, &fork(pieces.len() * BLOCK - 3, &pieces));
            put(&mut record, 168, &fork(700, &[(content + 40, 2)]));
            add(if i < 3 { 2 } else { 16 }, &format!("file {i}"), 20 + i, record, false);
        }
        catalog.sort_by_key(|(key, _)| (key[..4].to_vec(), key[6..].to_vec()));
        let mut overflow_key = vec![0, 0];
        overflow_key.extend(20_u32.to_be_bytes());
        overflow_key.extend(8_u32.to_be_bytes());
        let mut more = run(&[(CONTENT_AT / BLOCK + 16, 1)]);
        more.resize(64, 0);
        let overflow = vec![(overflow_key, more)];
        let mut attribute_key = vec![0, 0];
        attribute_key.extend(21_u32.to_be_bytes());
        attribute_key.extend([0; 4]);
        attribute_key.extend(name("x"));
        let mut value = vec![0; 24];
        value[3] = 0x10;
        value[15] = 5;
        let attributes = vec![(attribute_key, value)];

        let mut raw = vec![0; BLOCKS * BLOCK];
        let header = 1024;
        put(&mut raw, header, b"H+\0\x04");
        put(&mut raw, header + 40, &(BLOCK as u32).to_be_bytes());
        put(&mut raw, header + 44, &(BLOCKS as u32).to_be_bytes());
        for (at, field, records) in [
            (EXTENTS_AT, 192, overflow),
            (CATALOG_AT, 272, catalog),
            (ATTRIBUTES_AT, 352, attributes),
        ] {
            let bytes = tree(&records);
            put(&mut raw, header + field, &fork(bytes.len(), &[(at, bytes.len() / BLOCK)]));
            put(&mut raw, at * BLOCK, &bytes);
        }
        raw[CONTENT_AT..].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        raw
    }
}
