//! MFS volumes against a model: written content comes back, a check finds nothing, and a power cut
//! at any write loses nothing that was synced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_block::{BlockDevice, Event, Image, MemoryDevice, Recorder, Rng};
use weft_hfs::mfs::{Mfs, MkfsOptions, OpenOptions, check, layout, mkfs};
use weft_patch::Options as EngineOptions;
use weft_vfs::{
    Caller, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, RenameFlags, SetAttr, Walker,
    XattrSet,
};

const FORK: &[u8] = b"user.com.apple.ResourceFork";
const INFO: &[u8] = b"user.com.apple.FinderInfo";

fn quiet() -> OpenOptions {
    let engine = EngineOptions { background: false, ..EngineOptions::default() };
    OpenOptions { engine, ..OpenOptions::default() }
}

fn empty(len_bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(len_bytes));
    mkfs(&*device, &MkfsOptions { name: b"Disk".to_vec(), ..MkfsOptions::default() }).unwrap();
    device
}

#[track_caller]
fn assert_clean(device: &dyn BlockDevice) {
    let report = check(device, false).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

fn bytes_at(device: &dyn BlockDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn volumes_of_every_size_are_laid_out_within_them() {
    let sizes = (40..3000).step_by(7).chain([800, 1600, 2880, 4096, 16_384, 65_534, 65_535]);
    for blocks in sizes {
        let device = MemoryDevice::new(blocks * 512);
        mkfs(&device, &MkfsOptions::default()).unwrap_or_else(|e| panic!("{blocks}: {e}"));
        assert_clean(&device);
        let mdb = layout::Mdb::parse(&bytes_at(&device, 1024, 64), blocks).unwrap();
        assert_eq!(mdb.free_blocks, mdb.alloc_blocks);
        assert!(mdb.copy_block(blocks).is_some(), "{blocks}");
    }
    // As the Macintosh makes it: 391 blocks of 1 KiB, directory of 12 blocks.
    let mdb = layout::Mdb::parse(&bytes_at(&*empty(409_600), 1024, 64), 800).unwrap();
    assert_eq!((mdb.alloc_blocks, mdb.alloc_block_bytes, mdb.alloc_start), (391, 1024, 16));
    for blocks in [0, 39, 65_536] {
        let device = MemoryDevice::new(blocks * 512);
        assert!(matches!(mkfs(&device, &MkfsOptions::default()), Err(Error::Invalid(_))));
    }
}

#[test]
fn both_forks_and_finder_information_are_kept() {
    let device = empty(409_600);
    let fs = Mfs::open(device.clone(), quiet()).unwrap();
    let walker = Walker::new(&*fs);
    let file = walker.write_file("/Über/Datei.txt".replace('/', "").as_bytes(), b"text", 0o644);
    drop(file.unwrap());
    let node = walker.write_file(b"/a:b", &[7; 5000], 0o644).unwrap();
    let ino = node.ino();
    let resources: Vec<u8> = (0..70_000_u32).map(|n| (n * 7) as u8).collect();
    fs.setxattr(&Caller::ROOT, ino, FORK, &resources, XattrSet::Any).unwrap();
    let info: Vec<u8> =
        b"APPLcrea\x21\x00\x00\x10\x00\x20\x00\x01".iter().copied().chain([0; 16]).collect();
    fs.setxattr(&Caller::ROOT, ino, INFO, &info, XattrSet::Any).unwrap();
    assert_eq!(fs.getxattr(ino, b"user.hfs.creator").unwrap(), b"crea");
    fs.setxattr(&Caller::ROOT, ino, b"user.hfs.type", b"TEST", XattrSet::Any).unwrap();
    let mut more = info.clone();
    more[20] = 1;
    assert!(matches!(
        fs.setxattr(&Caller::ROOT, ino, INFO, &more, XattrSet::Any),
        Err(Error::Unsupported(_))
    ));
    fs.setattr(&Caller::ROOT, ino, &SetAttr { perm: Some(0o444), ..SetAttr::default() }).unwrap();
    drop(node);
    fs.unmount().unwrap();
    assert_clean(&*device);
    // The copy at the end is that of the beginning.
    assert_eq!(bytes_at(&*device, 1024, 1024), bytes_at(&*device, 798 * 512, 1024));

    let fs = Mfs::open(device, quiet()).unwrap();
    let walker = Walker::new(&*fs);
    // Names are found whatever the case of their letters.
    assert!(walker.exists("/ÜBERDATEI.TXT".as_bytes()).unwrap());
    let node = walker.resolve(b"/A:B").unwrap();
    assert_eq!(node.read_all().unwrap(), [7; 5000]);
    assert_eq!(fs.getxattr(node.ino(), FORK).unwrap(), resources);
    assert_eq!(fs.getxattr(node.ino(), INFO).unwrap()[..10], *b"TESTcrea\x21\x00");
    assert_eq!(node.stat().unwrap().perm, 0o444);
    fs.removexattr(&Caller::ROOT, node.ino(), FORK).unwrap();
    assert!(matches!(fs.getxattr(node.ino(), FORK), Err(Error::NoAttribute)));
}

#[test]
fn names_are_those_of_the_macintosh_and_of_unix() {
    let device = empty(409_600);
    let fs = Mfs::open(device.clone(), quiet()).unwrap();
    let make = |name: &[u8]| {
        let entry = fs.mknod(&Caller::ROOT, fs.root(), name, FileKind::Regular, 0o644, 0)?;
        fs.forget(entry.attr.ino, 1);
        Ok::<_, Error>(entry.attr.ino)
    };
    let long = [b'x'; 255];
    make(&long).unwrap();
    assert!(matches!(make(&[b'x'; 256]), Err(Error::NameTooLong)));
    assert!(matches!(make("日本".as_bytes()), Err(Error::Invalid(_))));
    assert!(matches!(make(b"a/b"), Err(Error::Invalid(_))));
    make("Icon␍".as_bytes()).unwrap();
    assert!(matches!(make(b"icon\r"), Err(Error::Exists)));
    // 255 characters that take three bytes each in UTF-8 cannot be made through Unix; one that is
    // there is shown cut.
    assert!(matches!(make("∞".repeat(86).as_bytes()), Err(Error::NameTooLong)));
    fs.close().unwrap();
    let block = 4 * 512;
    let mut entries = bytes_at(&*device, block, 512);
    assert_eq!(entries[50], 255);
    entries[51..51 + 255].fill(0xb0);
    device.write_at(&entries, block).unwrap();
    let fs = Mfs::open(device, quiet()).unwrap();
    let walker = Walker::new(&*fs);
    let names: Vec<Vec<u8>> =
        walker.root().unwrap().list().unwrap().into_iter().map(|l| l.name).collect();
    let cut = names.iter().find(|name| name.ends_with(b"~1")).unwrap();
    assert!(cut.len() <= 255 && cut.starts_with("∞".as_bytes()));
    walker.remove(&[b"/", &cut[..]].concat()).unwrap();
}

#[test]
fn files_live_on_while_they_are_used() {
    let device = empty(409_600);
    let fs = Mfs::open(device.clone(), quiet()).unwrap();
    let walker = Walker::new(&*fs);
    let node = walker.write_file(b"/gone", &[1; 3000], 0o644).unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    walker.remove(b"/gone").unwrap();
    assert_eq!(node.read_all().unwrap(), [1; 3000]);
    node.write_at(&Caller::ROOT, 3000, &[2; 10]).unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    drop(node);
    assert_eq!(fs.statfs().unwrap().blocks_free, free + 3);
    walker.write_file(b"/old", b"old", 0o644).unwrap();
    let old = walker.resolve(b"/old").unwrap();
    walker.write_file(b"/new", b"new", 0o644).unwrap();
    walker.rename(b"/new", b"/OLD", RenameFlags::empty()).unwrap();
    assert_eq!(old.read_all().unwrap(), b"old");
    assert_eq!(walker.read_file(b"/old").unwrap(), b"new");
    drop(old);
    fs.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn a_full_volume_says_so_and_stays_whole() {
    let device = empty(409_600);
    let fs = Mfs::open(device.clone(), quiet()).unwrap();
    let walker = Walker::new(&*fs);
    let node = walker.create_file(b"/big", 0o644).unwrap();
    let all = 391 * 1024;
    let handle = fs.open(&Caller::ROOT, node.ino(), OpenFlags::WRITE).unwrap().handle;
    assert_eq!(fs.write(&Caller::ROOT, node.ino(), handle, 0, &vec![5; all + 5000]).unwrap(), all);
    assert!(matches!(
        fs.write(&Caller::ROOT, node.ino(), handle, all as u64, &[1]),
        Err(Error::NoSpace)
    ));
    assert!(matches!(
        fs.write(&Caller::ROOT, node.ino(), handle, 1 << 31, &[1]),
        Err(Error::TooLarge)
    ));
    // Released blocks can be used again at once, although nothing was synced.
    for _ in 0..5 {
        fs.setattr(
            &Caller::ROOT,
            node.ino(),
            &SetAttr { size_bytes: Some(0), ..SetAttr::default() },
        )
        .unwrap();
        assert_eq!(fs.write(&Caller::ROOT, node.ino(), handle, 0, &vec![6; all]).unwrap(), all);
    }
    fs.release(node.ino(), handle).unwrap();
    // A directory that is full.
    let mut made = 0;
    let full = loop {
        match walker.create_file(format!("/file number {made}").as_bytes(), 0o644) {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace) && made > 80, "{made} {full}");
    drop(node);
    fs.close().unwrap();
    assert_clean(&*device);
}

/// What is written to and read from volumes beside the volume itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct File {
    data: Vec<u8>,
    resource: Vec<u8>,
    info: [u8; 4],
}

type Model = BTreeMap<String, File>;

/// One random operation on both. Returns the names it touched.
fn step(fs: &Mfs, model: &mut Model, rng: &mut Rng) -> Vec<String> {
    // Mostly items that exist already.
    let known = model.keys().nth(rng.index(model.len().max(1))).cloned();
    let name = match known {
        Some(name) if rng.chance(3, 4) => name,
        _ => format!("{}{}", "n".repeat(rng.index(40)), rng.below(30)),
    };
    let path = format!("/{name}");
    let walker = Walker::new(fs);
    let content = |rng: &mut Rng| {
        let mut bytes = vec![0; rng.index(9000)];
        rng.fill(&mut bytes);
        bytes
    };
    let ino = |model: &Model| -> Option<Ino> {
        model.contains_key(&name).then(|| walker.resolve(path.as_bytes()).unwrap().ino())
    };
    match rng.below(12) {
        0..4 => {
            let caller = Caller::ROOT;
            match fs.mknod(&caller, fs.root(), name.as_bytes(), FileKind::Regular, 0o644, 0) {
                Ok(entry) => {
                    fs.forget(entry.attr.ino, 1);
                    let file = File { info: *b"????", ..File::default() };
                    assert!(model.insert(name.clone(), file).is_none());
                }
                Err(Error::NoSpace) => assert!(!model.contains_key(&name)),
                Err(Error::Exists) => assert!(model.contains_key(&name)),
                Err(e) => panic!("create {name}: {e}"),
            }
        }
        4..6 => {
            if let Some(ino) = ino(model) {
                let file = model.get_mut(&name).unwrap();
                let (at, bytes) = (rng.index(file.data.len() + 3000), content(rng));
                match fs.write(&Caller::ROOT, ino, Handle::NONE, at as u64, &bytes) {
                    Ok(n) => {
                        if n > 0 {
                            file.data.resize(file.data.len().max(at + n), 0);
                            file.data[at..at + n].copy_from_slice(&bytes[..n]);
                        }
                    }
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("write {name}: {e}"),
                }
            }
        }
        6 => {
            if let Some(ino) = ino(model) {
                let file = model.get_mut(&name).unwrap();
                let len = rng.index(file.data.len() + 2000);
                let set = SetAttr { size_bytes: Some(len as u64), ..SetAttr::default() };
                match fs.setattr(&Caller::ROOT, ino, &set) {
                    Ok(_) => file.data.resize(len, 0),
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("cut {name}: {e}"),
                }
            }
        }
        7 => {
            if let Some(ino) = ino(model) {
                let bytes = content(rng);
                match fs.setxattr(&Caller::ROOT, ino, FORK, &bytes, XattrSet::Any) {
                    Ok(()) => model.get_mut(&name).unwrap().resource = bytes,
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("resources of {name}: {e}"),
                }
            }
        }
        8 => {
            if let Some(ino) = ino(model) {
                let info = (rng.next_u64() as u32).to_be_bytes();
                fs.setxattr(&Caller::ROOT, ino, b"user.hfs.type", &info, XattrSet::Any).unwrap();
                model.get_mut(&name).unwrap().info = info;
            }
        }
        9 => {
            let other = model.keys().nth(rng.index(model.len().max(1))).cloned();
            if let Some(other) = other {
                let from = format!("/{other}");
                match walker.rename(from.as_bytes(), path.as_bytes(), RenameFlags::empty()) {
                    Ok(()) => {
                        let file = model.remove(&other).unwrap();
                        model.insert(name.clone(), file);
                    }
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("rename {other} to {name}: {e}"),
                }
                return vec![name, other];
            }
        }
        _ => match walker.remove(path.as_bytes()) {
            Ok(()) => assert!(model.remove(&name).is_some()),
            Err(Error::NotFound) => assert!(!model.contains_key(&name)),
            Err(e) => panic!("remove {name}: {e}"),
        },
    }
    vec![name]
}

/// Everything on a volume.
fn read_back(fs: &Mfs) -> Model {
    let root = Walker::new(fs).root().unwrap();
    let names = root.list().unwrap().into_iter().filter(|l| l.kind == FileKind::Regular);
    names
        .map(|listed| {
            let node = root.lookup(&listed.name).unwrap();
            let file = File {
                data: node.read_all().unwrap(),
                resource: fs.getxattr(node.ino(), FORK).unwrap_or_default(),
                info: fs.getxattr(node.ino(), b"user.hfs.type").unwrap().try_into().unwrap(),
            };
            (String::from_utf8(listed.name).unwrap(), file)
        })
        .collect()
}

#[test]
fn random_operations_agree_with_a_model() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let device = empty([60, 100, 409, 819][rng.index(4)] * 1024);
        let mut model = Model::new();
        for _ in 0..4 {
            let fs = Mfs::open(device.clone(), quiet()).unwrap();
            for i in 0..150 {
                step(&fs, &mut model, &mut rng);
                if i % 50 == 49 {
                    assert!(read_back(&fs) == model, "seed {seed}");
                }
                if rng.chance(1, 40) {
                    fs.sync().unwrap();
                    assert_clean(&*device);
                }
            }
            fs.close().unwrap();
            assert_clean(&*device);
        }
    }
}

/// The image that a cut before event `at` leaves: all that was flushed, and of the rest whatever
/// the seed says, sector by sector.
fn cut_at(start: &Image, events: &[Event], at: usize, rng: &mut Rng) -> Image {
    let mut image = start.clone();
    let durable = events[..at]
        .iter()
        .rev()
        .find_map(|e| if let Event::Flush { covers } = e { Some(*covers) } else { None })
        .unwrap_or(0);
    let all = rng.chance(1, 4);
    for (i, event) in events[..at].iter().enumerate() {
        if let Event::Write { offset, data, .. } = event {
            for (n, sector) in data.chunks(512).enumerate() {
                if i < durable || all || rng.chance(1, 2) {
                    image.write(sector, offset + n as u64 * 512).unwrap();
                }
            }
        }
    }
    image
}

#[test]
fn a_power_cut_at_any_write_loses_nothing_that_was_synced() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut rng = Rng::new(1000 + seed);
        let start = empty([60, 409][rng.index(2)] * 1024).snapshot();
        let device = Arc::new(Recorder::new(MemoryDevice::from_image(start.clone())));
        let fs = Mfs::open(device.clone(), quiet()).unwrap();
        let mut model = Model::new();
        // After each operation: the events so far, what it touched; at a sync, the model.
        let mut history: Vec<(usize, Vec<String>, Option<Model>)> =
            vec![(0, vec![], Some(Model::new()))];
        for _ in 0..120 {
            let touched = step(&fs, &mut model, &mut rng);
            history.push((device.event_count(), touched, None));
            if rng.chance(1, 8) {
                fs.sync().unwrap();
                history.push((device.event_count(), vec![], Some(model.clone())));
            }
        }
        let events = device.events();
        for at in 0..=events.len() {
            let image = cut_at(&start, &events, at, &mut rng);
            let device = Arc::new(MemoryDevice::from_image(image));
            let report = check(&*device, false).unwrap();
            assert!(report.damage.is_empty(), "seed {seed}, cut at {at}: {:?}", report.damage);
            let fs = Mfs::open(device.clone(), quiet()).unwrap();
            assert_clean(&*device);
            let found = read_back(&fs);
            // The last sync that had returned, and what has been touched since.
            let last = history
                .iter()
                .rposition(|(count, _, synced)| *count <= at && synced.is_some())
                .unwrap();
            let synced = history[last].2.as_ref().unwrap();
            let touched: BTreeSet<&String> = history[last..].iter().flat_map(|h| &h.1).collect();
            for (name, file) in synced.iter().filter(|(name, _)| !touched.contains(name)) {
                assert!(found.get(name) == Some(file), "seed {seed}, cut at {at}: {name}");
            }
            for name in found.keys() {
                assert!(
                    synced.contains_key(name) || touched.contains(name),
                    "seed {seed}, cut at {at}: {name}"
                );
            }
            // And it can be used.
            if at % 16 == 0 {
                step(&fs, &mut found.clone(), &mut rng);
                fs.close().unwrap();
                assert_clean(&*device);
            }
        }
    }
}

#[test]
fn a_rename_over_a_file_is_one_or_the_other_after_a_cut() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let device = empty(409_600);
        let fs = Mfs::open(device.clone(), quiet()).unwrap();
        let walker = Walker::new(&*fs);
        // Far enough apart to be in different blocks, or not.
        walker.write_file(b"/target", b"old content", 0o644).unwrap();
        for i in 0..rng.index(15) {
            walker.create_file(format!("/between {i}").as_bytes(), 0o644).unwrap();
        }
        walker.write_file(b"/source", b"new content", 0o644).unwrap();
        fs.close().unwrap();
        let start = device.snapshot();
        let device = Arc::new(Recorder::new(MemoryDevice::from_image(start.clone())));
        let fs = Mfs::open(device.clone(), quiet()).unwrap();
        Walker::new(&*fs).rename(b"/source", b"/target", RenameFlags::empty()).unwrap();
        fs.sync().unwrap();
        let events = device.events();
        for at in 0..=events.len() {
            let device = Arc::new(MemoryDevice::from_image(cut_at(&start, &events, at, &mut rng)));
            let fs = Mfs::open(device, quiet()).unwrap();
            let walker = Walker::new(&*fs);
            let content = walker.read_file(b"/target").unwrap();
            match &content[..] {
                b"old content" => assert!(walker.exists(b"/source").unwrap()),
                b"new content" => assert!(!walker.exists(b"/source").unwrap()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A volume with files, closed.
fn sample() -> Arc<MemoryDevice> {
    let device = empty(409_600);
    let fs = Mfs::open(device.clone(), quiet()).unwrap();
    let walker = Walker::new(&*fs);
    for i in 0..20 {
        let path = format!("/file {i}");
        let node =
            walker.write_file(path.as_bytes(), &vec![i; 700 * usize::from(i)], 0o644).unwrap();
        fs.setxattr(&Caller::ROOT, node.ino(), FORK, &vec![i; 100 * usize::from(i)], XattrSet::Any)
            .unwrap();
    }
    fs.close().unwrap();
    device
}

#[test]
fn damage_is_named_and_intact_files_can_be_read() {
    let hurt: [(&str, u64, &[u8]); 7] = [
        // The first entry: its start, its length, its number, its name.
        ("data fork", 4 * 512 + 52 + 6 + 22, &[0x0f, 0x00]),
        ("resource fork", 5 * 512 + 32, &[0, 9]),
        ("number", 4 * 512 + 18, &[0, 0, 0, 3]),
        ("directory in block 6", 6 * 512 + 50, &[70]),
        ("contains a NUL", 6 * 512 + 50, &[255]),
        ("duplicate name", 4 * 512 + 51, b"file 1"),
        ("master directory block", 1024, &[0; 40]),
    ];
    for (what, at, bytes) in hurt {
        let device = sample();
        device.write_at(bytes, at).unwrap();
        let report = check(&*device, false).unwrap();
        assert!(report.damage.iter().any(|d| d.contains(what)), "{what}: {report:?}");
        let before = device.snapshot();
        let fs = Mfs::open(device.clone(), quiet()).unwrap();
        assert!(!fs.damage().is_empty());
        assert!(read_back(&fs).len() >= 12, "{what}");
        let refused = Walker::new(&*fs).create_file(b"/new", 0o644);
        assert!(matches!(refused, Err(Error::ReadOnly)), "{what}");
        fs.close().unwrap();
        assert!(device.snapshot().pages_apart(&before).is_empty(), "{what}: nothing is written");
        assert!(check(&*device, true).unwrap().repaired, "{what}");
        assert_clean(&*device);
        let fs = Mfs::open(device, quiet()).unwrap();
        Walker::new(&*fs).create_file(b"/new", 0o644).unwrap();
    }
}

#[test]
fn any_damage_is_read_checked_and_repaired_without_a_panic() {
    let start = sample().snapshot();
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut image = start.clone();
        for _ in 0..1 + rng.index(12) {
            // Where the metadata is: blocks 2 to 15.
            let at = 1024 + rng.below(14 * 512);
            image.write(&rng.next_u64().to_le_bytes()[..1 + rng.index(4)], at).unwrap();
        }
        let device = Arc::new(MemoryDevice::from_image(image));
        if let Ok(fs) = Mfs::open(device.clone(), quiet()) {
            read_back(&fs);
            let mut model = read_back(&fs);
            if fs.damage().is_empty() {
                step(&fs, &mut model, &mut rng);
            }
            fs.close().unwrap();
        }
        if let Ok(report) = check(&*device, true) {
            assert!(report.is_clean() || report.repaired, "seed {seed}: {report:?}");
            assert_clean(&*device);
        }
    }
}
