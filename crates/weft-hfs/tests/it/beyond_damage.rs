//! Reading continues past damage, and counts it; a repair keeps its promises.

use crate::volume::{assert_sound, empty, mount, name, quiet};
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_hfs::layout::{CatalogRecord, Fork, Mdb, ROOT_ID, ThreadRecord};
use weft_hfs::volume::New;
use weft_hfs::{Hfs, OpenOptions, fsck};
use weft_vfs::path::{Tree, Walker};
use weft_vfs::{Caller, FileSystem, Ino};

/// Folders of files that contain their own names.
fn filled(folders: usize, files: usize) -> Arc<MemoryDevice> {
    let device = empty(2 << 20);
    let fs = mount(&device);
    for f in 0..folders {
        let folder = New::Folder { info: Default::default(), xinfo: Default::default() };
        let id = fs.create_item(ROOT_ID, &name(&format!("folder {f:03}")), &folder).unwrap();
        for i in 0..files {
            let file = name(&format!("file {i:03}"));
            fs.create_item(id, &file, &New::FILE).unwrap();
            fs.write_fork(id, &file, Fork::Data, 0, format!("{f}/{i}").as_bytes()).unwrap();
        }
    }
    fs.unmount().unwrap();
    device
}

fn find(device: &MemoryDevice, what: &[u8]) -> u64 {
    let mut all = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut all, 0).unwrap();
    all.windows(what.len()).position(|w| w == what).expect("it is there") as u64
}

fn only_read(device: &Arc<MemoryDevice>) -> Arc<Hfs> {
    let options = OpenOptions { read_only: true, ..quiet() };
    Hfs::open(Arc::clone(device) as Arc<dyn BlockDevice>, options).unwrap()
}

/// The paths of all files that a walk comes by, and how many errors it meets.
fn walk(fs: &Hfs) -> (Vec<String>, usize) {
    let (mut paths, mut errors) = (Vec::new(), 0);
    let walker = Walker::new(fs);
    for found in Tree::new(walker.resolve(b"/").unwrap()) {
        match found {
            Ok(found) if !found.node.is_dir() => {
                paths.push(String::from_utf8(found.path).unwrap());
            }
            Ok(_) => {}
            Err(_) => errors += 1,
        }
    }
    (paths, errors)
}

fn catalog_of(device: &MemoryDevice) -> (u64, Mdb) {
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024).unwrap();
    let mdb = Mdb::parse(&raw).unwrap();
    let per = mdb.blocks_per_alloc();
    let at = u64::from(mdb.first_block) + u64::from(mdb.catalog_file[0].start) * per;
    (at * 512, mdb)
}

/// A real disk has such a thread; Apple's checker and hfsutils do not mind.
#[test]
fn a_thread_with_another_name_hides_nothing() {
    let device = filled(5, 8);
    let thread = |text: &str, parent| {
        let thread = ThreadRecord { of_file: false, parent, name: name(text) };
        CatalogRecord::Thread(thread).encode().0
    };
    let at = find(&device, &thread("folder 002", ROOT_ID)[..46]);
    for other in [thread("Old name", ROOT_ID), thread("folder 002", 4711), [0; 102]] {
        let device = Arc::new(MemoryDevice::from_image(device.snapshot()));
        device.write_at(&other[..46], at).unwrap();
        for fs in [only_read(&device), mount(&device)] {
            let (paths, errors) = walk(&fs);
            assert_eq!((paths.len(), errors), (40, 0));
            let walker = Walker::new(&*fs);
            let folder = walker.resolve(b"/folder 002").unwrap();
            assert_eq!(folder.lookup(b"..").unwrap().ino(), Ino(2));
            assert_eq!(folder.list().unwrap().len(), 8);
        }
    }
    // It can be worked in, and renamed.
    device.write_at(&thread("Old name", ROOT_ID)[..46], at).unwrap();
    let fs = mount(&device);
    let walker = Walker::new(&*fs);
    let folder = walker.resolve(b"/folder 002").unwrap().ino();
    let flags = weft_vfs::RenameFlags::empty();
    fs.rename(&Caller::ROOT, folder, b"file 000", Ino(2), b"moved", flags).unwrap();
    fs.rename(&Caller::ROOT, Ino(2), b"moved", folder, b"back", flags).unwrap();
    fs.rename(&Caller::ROOT, Ino(2), b"folder 002", Ino(2), b"Renamed", flags).unwrap();
    fs.rmdir(&Caller::ROOT, Ino(2), b"Renamed").unwrap_err();
    fs.unmount().unwrap();
    assert_sound(&*device);
}

#[test]
fn a_damaged_record_costs_itself_only() {
    let device = filled(5, 8);
    let fs = mount(&device);
    let folder = Walker::new(&*fs).resolve(b"/folder 002").unwrap().ino().0 as u32;
    let record = fs.item(folder, &name("file 003")).unwrap().1;
    fs.unmount().unwrap();
    drop(fs);
    let at = find(&device, &record.encode().0[..102]);
    // No such kind of record.
    device.write_at(&[9], at).unwrap();
    let fs = only_read(&device);
    let (paths, errors) = walk(&fs);
    assert_eq!((paths.len(), errors), (39, 0), "{paths:?}");
    assert_eq!(fs.damage().len(), 1, "{:?}", fs.damage());
}

#[test]
fn a_damaged_node_costs_its_records_only() {
    let device = filled(6, 20);
    let (catalog, mdb) = catalog_of(&device);
    let (mut lost, mut of_the_root) = (0, 0);
    for node in 2..u64::from(mdb.catalog_file_bytes / 512) {
        let image = Arc::new(MemoryDevice::from_image(device.snapshot()));
        let mut raw = [0; 512];
        image.read_at(&mut raw, catalog + node * 512).unwrap();
        if raw[8] != 0xff {
            continue;
        }
        // More records than a node can have.
        image.write_at(&[1, 1], catalog + node * 512 + 10).unwrap();
        let fs = only_read(&image);
        let (paths, errors) = walk(&fs);
        // The items of a folder whose own record is gone are not found.
        of_the_root += usize::from(paths.len() < 120 - 45);
        lost += usize::from(paths.len() < 120);
        assert!(!fs.damage().is_empty() || errors > 0);
    }
    assert!(lost > 10 && of_the_root <= 2, "{lost} nodes, {of_the_root} with records of the root");
}

#[test]
fn a_tree_whose_header_is_damaged_is_made_of_its_leaves() {
    let device = filled(6, 20);
    let whole = device.snapshot();
    let (catalog, mdb) = catalog_of(&device);
    let extents = u64::from(mdb.first_block) * 512;
    for (at, bytes) in [
        (catalog, vec![0; 512]),
        (catalog + 8, vec![7]),
        (catalog + 14 + 2, vec![0xff; 4]),
        (catalog + 14, vec![0, 99]),
        (catalog + 14 + 18, vec![0, 1]),
        (catalog + 14 + 20, vec![0, 1]),
        (catalog + 14 + 22, vec![0xff; 4]),
        (catalog, vec![0xff; 4]),
        (extents, vec![0; 512]),
        (extents + 14 + 2, vec![0xff; 4]),
    ] {
        let image = Arc::new(MemoryDevice::from_image(whole.clone()));
        image.write_at(&bytes, at).unwrap();
        let report = fsck::check(&*image).unwrap();
        assert!(!report.is_clean());
        let done = fsck::repair(&*image).unwrap_or_else(|e| panic!("byte {at}: {e}"));
        assert!(done.after.is_clean(), "byte {at}: {:?}", done.after.problems);
        let fs = mount(&image);
        let (paths, errors) = walk(&fs);
        assert_eq!((paths.len(), errors), (120, 0), "byte {at}");
    }
}

/// The first half of an image is there.
#[test]
fn a_cut_image_is_read_as_far_as_it_goes() {
    let device = filled(4, 6);
    let fs = mount(&device);
    fs.create_item(ROOT_ID, &name("long"), &New::FILE).unwrap();
    let long: Vec<u8> = (0..1_500_000_u32).map(|i| (i >> 7) as u8).collect();
    fs.write_fork(ROOT_ID, &name("long"), Fork::Data, 0, &long).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let mut bytes = vec![0; 1 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    let cut = Arc::new(MemoryDevice::new(1 << 20));
    cut.write_at(&bytes, 0).unwrap();
    let fs = only_read(&cut);
    let (paths, errors) = walk(&fs);
    assert_eq!((paths.len(), errors), (25, 0));
    let mut got = vec![0; 400_000];
    assert_eq!(fs.read_fork(ROOT_ID, &name("long"), Fork::Data, 0, &mut got).unwrap(), 400_000);
    assert!(got == long[..400_000]);
    let e = fs.read_fork(ROOT_ID, &name("long"), Fork::Data, 1_400_000, &mut got).unwrap_err();
    assert!(e.to_string().contains("ends"), "{e}");
    // Nothing may be changed, and nothing is promised.
    let opened = Hfs::open(Arc::clone(&cut) as Arc<dyn BlockDevice>, quiet());
    assert!(opened.unwrap_err().to_string().contains("truncated"));
    let report = fsck::check(&*cut).unwrap();
    let said: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert!(said[0].contains("truncated"), "{said:?}");
    let done = fsck::repair(&*cut).unwrap();
    assert!(!done.after.is_clean());
    let mut after = vec![0; 1 << 20];
    cut.read_at(&mut after, 0).unwrap();
    assert!(after == bytes, "a truncated image is left as it is");
}

/// Where only the copy of the MDB is cut off, no other block is taken for its place.
#[test]
fn a_copy_of_the_mdb_is_not_written_over_data() {
    let whole = empty(2 << 20);
    let fs = mount(&whole);
    let mdb = fs.volume_info();
    fs.unmount().unwrap();
    drop(fs);
    let end = mdb.end_block() * 512;
    let mut bytes = vec![0; end as usize];
    whole.read_at(&mut bytes, 0).unwrap();
    let cut = Arc::new(MemoryDevice::new(end));
    cut.write_at(&bytes, 0).unwrap();
    // Something lies in the last blocks, which were never written by a volume of its own.
    cut.write_at(&[0x5a; 1024], end - 1024).unwrap();
    let _ = fsck::repair(&*cut);
    if let Ok(fs) = Hfs::open(Arc::clone(&cut) as Arc<dyn BlockDevice>, quiet()) {
        // The catalog grows, and would have its copy written.
        for i in 0..2000 {
            let _ = fs.create_item(ROOT_ID, &name(&format!("a long name {i:06}")), &New::FILE);
        }
        let _ = fs.unmount();
    }
    let mut last = [0; 1024];
    cut.read_at(&mut last, end - 1024).unwrap();
    assert!(last == [0x5a; 1024], "it was written over");
}

/// Thread records as machfs writes them: only as long as their names. No listing needs them.
#[test]
fn short_thread_records_are_passed_over_without_a_word() {
    let device = filled(1, 2);
    let (catalog, mdb) = catalog_of(&device);
    let mut node = [0; 512];
    let header = |at: usize, raw: &[u8]| usize::from(raw[at]) << 8 | usize::from(raw[at + 1]);
    device.read_at(&mut node, catalog).unwrap();
    // The first leaf, by the header record.
    let leaf = catalog + 512 * u64::from(u32::from_be_bytes(node[24..28].try_into().unwrap()));
    device.read_at(&mut node, leaf).unwrap();
    assert_eq!((node[8], mdb.alloc_block_bytes), (0xff, 512), "a leaf");
    let count = header(10, &node);
    let mut records: Vec<Vec<u8>> = (0..count)
        .map(|n| node[header(510 - 2 * n, &node)..header(508 - 2 * n, &node)].to_vec())
        .collect();
    let mut shortened = 0;
    for record in &mut records {
        let key = usize::from(record[0] | 1) + 1;
        if record[key] == 3 {
            let len = (15 + usize::from(record[key + 14])).next_multiple_of(2);
            record.truncate(key + len);
            shortened += 1;
        }
    }
    assert!(shortened >= 1);
    let mut at = 14;
    node[14..].fill(0);
    for (n, record) in records.iter().enumerate() {
        node[510 - 2 * n..512 - 2 * n].copy_from_slice(&(at as u16).to_be_bytes());
        node[at..at + record.len()].copy_from_slice(record);
        at += record.len();
    }
    node[510 - 2 * count..512 - 2 * count].copy_from_slice(&(at as u16).to_be_bytes());
    device.write_at(&node, leaf).unwrap();

    let fs = only_read(&device);
    let (paths, errors) = walk(&fs);
    assert_eq!((paths.len(), errors), (2, 0), "{paths:?}");
    // After the listings: they note what they pass over.
    assert_eq!(fs.damage(), [""; 0]);
    drop(fs);
    // A check says it all the same, and a repair makes them whole.
    assert!(!fsck::check(&*device).unwrap().is_clean());
    assert!(fsck::repair(&*device).unwrap().after.is_clean());
}

/// The header is lost, or a bit of one of the fields that say where everything is. The copy at the
/// end is intact.
#[test]
fn a_lost_header_is_read_by_its_copy() {
    let whole = filled(3, 20);
    let all = walk(&only_read(&whole)).0;
    let snapshot = whole.snapshot();
    let mut damages: Vec<(u64, u8)> = (0..8).map(|bit| (18, 1 << bit)).collect();
    for at in [19, 20, 21, 22, 28, 29] {
        damages.extend((0..8).map(|bit| (at, 1 << bit)));
    }
    let lost: [&dyn Fn(&MemoryDevice); 2] =
        [&|device| device.write_zeroes(1024, 512).unwrap(), &|device| {
            device.write_at(&[0x4e; 512], 1024).unwrap();
        }];
    let check = |what: &str, damage: &dyn Fn(&MemoryDevice)| {
        let device = Arc::new(MemoryDevice::from_image(snapshot.clone()));
        damage(&device);
        let before = bytes(&device);
        let fs = only_read(&device);
        let (paths, errors) = walk(&fs);
        assert_eq!((&paths, errors), (&all, 0), "{what}");
        let by_copy = fs.damage().iter().any(|told| told.contains("copy"));
        assert_eq!(by_copy, !fs.damage().is_empty(), "{what}: {:?}", fs.damage());
        drop(fs);
        assert!(bytes(&device) == before, "{what}: nothing is written");
        if !by_copy {
            // A block less than there are is a volume, too.
            assert!(fsck::repair(&*device).unwrap().after.is_clean(), "{what}");
            assert_eq!(walk(&only_read(&device)).0, all, "{what}");
            return false;
        }
        // It is not changed before it is repaired.
        let refused = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, quiet());
        assert!(refused.unwrap_err().to_string().contains("repair"), "{what}");
        assert!(bytes(&device) == before, "{what}: nothing is written");
        let told = fsck::check(&*device).unwrap_err().to_string();
        assert!(told.contains("copy"), "{what}: {told}");
        let done = fsck::repair(&*device).unwrap();
        assert!(done.after.is_clean(), "{what}: {:?}", done.after.problems);
        assert_sound(&*device);
        assert_eq!(walk(&only_read(&device)).0, all, "{what}");
        true
    };
    for damage in lost {
        assert!(check("lost", damage));
    }
    let (mut by_copy, count) = (0, damages.len());
    for (at, bit) in damages {
        let damage = |device: &MemoryDevice| {
            let mut byte = [0];
            device.read_at(&mut byte, 1024 + at).unwrap();
            device.write_at(&[byte[0] ^ bit], 1024 + at).unwrap();
        };
        by_copy += usize::from(check(&format!("byte {at}, bit {bit:#x}"), &damage));
    }
    assert!(by_copy + 2 >= count, "{by_copy} of {count}");
    // Without a copy there is nothing.
    let device = MemoryDevice::from_image(snapshot.clone());
    device.write_zeroes(1024, 512).unwrap();
    device.write_zeroes((2 << 20) - 1024, 512).unwrap();
    assert!(!weft_hfs::has_copy_of_header(&device));
    assert!(!weft_hfs::has_copy_of_header(&*whole));
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut all, 0).unwrap();
    all
}
