//! Apple's rules: weft does not write, finds and repairs all that its checker refuses; all that its
//! checker passes on real disks, weft passes.
//!
//! The rules are facts of Apple's `fsck_hfs`. Where that is at hand (`fsck_hfs` in `$PATH`, or
//! named by `WEFT_FSCK_HFS`) it judges the volumes written here; `scripts/apple-fsck.sh` is for
//! more.

use crate::tools::{have, run};
use crate::volume::{assert_sound, empty, mount, name, quiet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, MemoryDevice, OpenMode};
use weft_hfs::fsck;
use weft_hfs::layout::{CatalogRecord, Fork, Mdb, Name, ROOT_ID, ThreadRecord};
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::volume::New;
use weft_hfs::{Hfs, OpenOptions};
use weft_vfs::FileSystem;

fn mdb_of(device: &dyn BlockDevice) -> Mdb {
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024).unwrap();
    Mdb::parse(&raw).unwrap()
}

/// All blocks of the device.
fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut all, 0).unwrap();
    all
}

/// Where an encoded record lies on the device.
fn place_of(device: &MemoryDevice, record: &CatalogRecord) -> u64 {
    let (raw, len) = record.encode();
    bytes_of(device).windows(len).position(|w| w == &raw[..len]).expect("the record") as u64
}

fn record_of(fs: &Hfs, text: &str) -> CatalogRecord {
    fs.item(ROOT_ID, &name(text)).unwrap().1
}

/// A folder, a file in it, and files beside it. The dates are those of the first call.
fn small() -> Arc<MemoryDevice> {
    static MADE: std::sync::OnceLock<weft_block::Image> = std::sync::OnceLock::new();
    let image = MADE.get_or_init(|| make_small().snapshot());
    Arc::new(MemoryDevice::from_image(image.clone()))
}

fn make_small() -> Arc<MemoryDevice> {
    let device = empty(800 << 10);
    let fs = mount(&device);
    let folder = New::Folder { info: Default::default(), xinfo: Default::default() };
    let id = fs.create_item(ROOT_ID, &name("Folder"), &folder).unwrap();
    fs.create_item(id, &name("inside"), &New::FILE).unwrap();
    fs.write_fork(id, &name("inside"), Fork::Data, 0, b"in the folder").unwrap();
    for text in ["before", "file", "zebra"] {
        fs.create_item(ROOT_ID, &name(text), &New::FILE).unwrap();
        fs.write_fork(ROOT_ID, &name(text), Fork::Data, 0, &[b'a'; 3000]).unwrap();
    }
    fs.unmount().unwrap();
    device
}

fn problems(device: &dyn BlockDevice) -> Vec<String> {
    fsck::check(device).unwrap().problems.iter().map(ToString::to_string).collect()
}

/// Checks the geometry that Apple's checker computes from a volume's size.
fn keeps_apples_geometry(mdb: &Mdb, blocks: u64) {
    let per = mdb.blocks_per_alloc();
    let bitmap = (blocks / per).div_ceil(4096);
    assert!(blocks / per <= 65_535, "{blocks} blocks");
    assert!(u64::from(mdb.alloc_blocks) <= (blocks - 3 - bitmap) / per, "{blocks} blocks");
    assert!(
        u64::from(mdb.first_block) >= u64::from(mdb.bitmap_block) + bitmap,
        "{blocks} blocks: the bitmap of {bitmap} blocks begins in {}, the allocation blocks in {}",
        mdb.bitmap_block,
        mdb.first_block
    );
    let most = u32::from(mdb.alloc_blocks / 4).saturating_mul(mdb.alloc_block_bytes);
    let size = mdb.alloc_block_bytes;
    let file = mdb.clump_bytes;
    assert!(
        file > 0 && file.is_multiple_of(size) && file <= most && (file <= 1 << 20 || file == size),
        "{blocks} blocks: a clump of {file} bytes, allocation blocks of {size}"
    );
    for tree in [mdb.extents_clump_bytes, mdb.catalog_clump_bytes] {
        assert!(
            tree.is_multiple_of(size) && tree <= most,
            "{blocks} blocks: a tree's clump of {tree}"
        );
    }
}

#[test]
fn volumes_of_every_size_have_apples_geometry() {
    let mut sizes: Vec<u64> = (800..900).chain(4090..4110).chain(8185..8205).collect();
    for power in 10..=32 {
        sizes.extend((0..12).map(|d| (1_u64 << power) - 6 + d));
    }
    // 16 GiB, where four allocation blocks are more than 1 MiB.
    sizes.extend([1 << 25, (1 << 25) + 65_536, 3 << 25]);
    sizes.retain(|n| (800..=1 << 32).contains(n));
    let dir = tempfile::tempdir().unwrap();
    for blocks in sizes {
        let path = dir.path().join("size.img");
        let _ = std::fs::remove_file(&path);
        let device = FileDevice::create(&path, blocks * 512).unwrap();
        mkfs(&device, &MkfsOptions::new(name("Size"), 3_000_000_000)).unwrap();
        keeps_apples_geometry(&mdb_of(&device), blocks);
        assert_sound(&device);
    }
}

/// An off-by-one that all of Apple's checkers share: no extent may end with the volume.
#[test]
fn the_last_allocation_block_stays_free() {
    for step in [512, 7000, 100_000] {
        let device = empty(400 << 10);
        let fs = mount(&device);
        let mut made = Vec::new();
        for i in 0.. {
            let text = format!("f{i}");
            if fs.create_item(ROOT_ID, &name(&text), &New::FILE).is_err() {
                break;
            }
            made.push(text.clone());
            match fs.write_fork(ROOT_ID, &name(&text), Fork::Data, 0, &vec![7; step]) {
                Ok(n) if n == step => {}
                _ => break,
            }
        }
        let last = u32::from(fs.volume_info().alloc_blocks);
        for text in &made {
            let CatalogRecord::File(file) = record_of(&fs, text) else { panic!("a file") };
            for extent in file.fork(Fork::Data).extents {
                assert!(extent.end() < last, "{text}: {extent:?} of {last}");
            }
        }
        let free = u64::from(fs.volume_info().free_blocks);
        assert_eq!(fs.statfs().unwrap().blocks_free, free - 1, "all but the last block");
        // Freed blocks come back, and no others.
        fs.delete_item(ROOT_ID, &name(&made[0])).unwrap();
        fs.sync().unwrap();
        let text = "again";
        fs.create_item(ROOT_ID, &name(text), &New::FILE).unwrap();
        let _ = fs.write_fork(ROOT_ID, &name(text), Fork::Data, 0, &vec![7; 2 * step]);
        let CatalogRecord::File(file) = record_of(&fs, text) else { panic!("a file") };
        assert!(file.fork(Fork::Data).extents.iter().all(|e| e.end() < last), "{file:?}");
        fs.unmount().unwrap();
        assert_sound(&*device);
    }
}

/// Damages a volume at one of Apple's points: the check names it, and a repair corrects it.
#[track_caller]
fn is_found(what: &str, damage: impl Fn(&MemoryDevice)) {
    let device = MemoryDevice::from_image(small().snapshot());
    damage(&device);
    let found = problems(&device);
    assert!(found.iter().any(|p| p.contains(what)), "{what}: {found:?}");
    let done = fsck::repair(&device).unwrap();
    assert!(done.after.is_clean(), "{what}: {:?}", done.after.problems);
    assert_sound(&device);
    let fs = mount(&Arc::new(device));
    let mut got = [0; 3000];
    assert_eq!(fs.read_fork(ROOT_ID, &name("file"), Fork::Data, 0, &mut got).unwrap(), 3000);
    assert!(got == [b'a'; 3000]);
}

#[test]
fn each_of_apples_points_is_found_and_repaired() {
    let whole = small();
    let mdb = mdb_of(&*whole);
    let fs = mount(&whole);
    let file = record_of(&fs, "file");
    let CatalogRecord::File(record) = file else { panic!("a file") };
    let folder = record_of(&fs, "Folder");
    drop(fs);
    let put = |at: u64, bytes: &[u8]| {
        let bytes = bytes.to_vec();
        move |d: &MemoryDevice| d.write_at(&bytes, at).unwrap()
    };
    let in_record = |at: u64, bytes: &[u8]| {
        let bytes = bytes.to_vec();
        move |d: &MemoryDevice| d.write_at(&bytes, place_of(d, &file) + at).unwrap()
    };
    let most = u32::from(mdb.alloc_blocks / 4) * mdb.alloc_block_bytes;
    let over = (most + mdb.alloc_block_bytes).to_be_bytes();
    for (what, at) in [("clump size", 24), ("extents clump", 74), ("catalog clump", 78)] {
        is_found(what, |d| {
            put(1024 + at, &over)(d);
            put((800 << 10) - 1024 + at, &over)(d);
        });
    }
    for at in 124..130 {
        is_found("drVCSize", put(1024 + at, &[1]));
    }
    is_found("attributes", put(1024 + 11, &[4]));
    // Unused slots of extents: in a file's record, of the catalog, of the extents file.
    is_found("unused extent", in_record(74 + 4, &[0, 77]));
    is_found("unused extent", in_record(86, &[0, 77]));
    is_found("unused extent", put(1024 + 134 + 8, &[0, 9]));
    is_found("unused extent", put(1024 + 150 + 8, &[0, 9]));
    is_found("cdrResrv2", in_record(1, &[3]));
    is_found("cdrResrv2", move |d| d.write_at(&[3], place_of(d, &folder) + 1).unwrap());
    // Bits of the maps past their last node or block.
    let catalog =
        u64::from(mdb.first_block) + u64::from(mdb.catalog_file[0].start) * mdb.blocks_per_alloc();
    let nodes = mdb.catalog_file_bytes / 512;
    is_found("map", put(catalog * 512 + 248 + u64::from(nodes / 8) + 1, &[0x10]));
    is_found("map", put(catalog * 512 + 248 + 255, &[1]));
    let used = u64::from(mdb.alloc_blocks / 8);
    is_found("bitmap", put(1536 + used + 1, &[1]));
    is_found("the next id", put(1024 + 30, &90_000_u32.to_be_bytes()));
    is_found("date", put(1024 + 2, &[1, 2, 3, 4]));
    is_found("header", put(catalog * 512 + 14 + 36, &[1]));

    // A file in the last allocation block.
    let last = mdb.alloc_blocks - 1;
    let mut moved = record;
    let blocks = record.fork(Fork::Data).extents[0].count;
    moved.fork_mut(Fork::Data).extents[0].start = last + 1 - blocks;
    is_found("last allocation block", |d| {
        let from = record.fork(Fork::Data).extents[0].start;
        let at = |block: u16| u64::from(mdb.first_block) * 512 + u64::from(block) * 512;
        let mut content = vec![0; usize::from(blocks) * 512];
        d.read_at(&mut content, at(from)).unwrap();
        d.write_at(&content, at(last + 1 - blocks)).unwrap();
        d.write_at(&CatalogRecord::File(moved).encode().0, place_of(d, &file)).unwrap();
        fsck::repair(&MemoryDevice::from_image(d.snapshot())).unwrap();
    });
}

/// Deviations that real disks have and Apple's checker accepts.
#[test]
fn oddities_of_real_disks_pass() {
    let passes = |what: &str, damage: &dyn Fn(&MemoryDevice)| {
        let device = Arc::new(MemoryDevice::from_image(small().snapshot()));
        damage(&device);
        let report = fsck::check(&*device).unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.problems);
        // It stays so when the volume is used.
        let fs = mount(&device);
        fs.create_item(ROOT_ID, &name("more"), &New::FILE).unwrap();
        fs.write_fork(ROOT_ID, &name("more"), Fork::Data, 0, &[9; 9000]).unwrap();
        fs.unmount().unwrap();
        let report = fsck::check(&*device).unwrap();
        assert!(report.is_clean(), "{what}, used: {:?}", report.problems);
    };
    let whole = small();
    let fs = mount(&whole);
    let file = record_of(&fs, "file");
    let CatalogRecord::File(record) = file else { panic!("a file") };
    let folder = record_of(&fs, "Folder");
    drop(fs);
    // Desktop DB and Desktop DF of System 7.
    passes("filTyp", &|d| d.write_at(&[0xff], place_of(d, &file) + 3).unwrap());
    passes("dirResrv", &|d| d.write_at(&[1, 2, 3], place_of(d, &folder) + 54).unwrap());
    let mut shorter = record;
    shorter.fork_mut(Fork::Data).space_bytes -= 512;
    shorter.fork_mut(Fork::Data).len_bytes -= 512;
    let shorter = CatalogRecord::File(shorter).encode().0;
    passes("more blocks than its space", &|d| {
        d.write_at(&shorter, place_of(d, &file)).unwrap();
    });
    let thread = |text: &str| {
        CatalogRecord::Thread(ThreadRecord { of_file: false, parent: ROOT_ID, name: name(text) })
    };
    passes("a thread with another name", &|d| {
        let at = place_of(d, &thread("Folder"));
        d.write_at(&thread("Old name").encode().0[..46], at).unwrap();
    });
}

/// Ids of removed files are not so far behind the next one that Apple's checker calls that wrong.
#[test]
fn thousands_of_removed_files_leave_a_next_id_that_apple_takes() {
    let device = empty(4 << 20);
    let fs = mount(&device);
    fs.create_item(ROOT_ID, &name("first"), &New::FILE).unwrap();
    for i in 0..4200 {
        let name = name(&format!("f{i}"));
        fs.create_item(ROOT_ID, &name, &New::FILE).unwrap();
        fs.delete_item(ROOT_ID, &name).unwrap();
    }
    fs.unmount().unwrap();
    let mdb = mdb_of(&*device);
    assert!(mdb.next_id <= 17 + 4096, "the next id is {} after 16", mdb.next_id);
    assert_sound(&*device);
}

/// The dates of the volume, which can be set, are in the copy of the MDB too.
#[test]
fn the_copy_of_the_mdb_has_the_volumes_date() {
    let device = small();
    let fs = mount(&device);
    let volume: &dyn weft_hfs::streams::MacVolume = &*fs;
    let mut meta = volume.volume_meta();
    meta.created = 2_000_000_000;
    volume.set_volume_meta(&meta).unwrap();
    fs.unmount().unwrap();
    let mut raw = [0; 512];
    device.read_at(&mut raw, (800 << 10) - 1024).unwrap();
    assert_eq!(Mdb::parse(&raw).unwrap().created, 2_000_000_000);
    assert_sound(&*device);
}

/// Apple's checker, if it is at hand and may be given a block device.
fn judge() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).any(|dir| dir.join("fsck_hfs").is_file());
    let named = std::env::var("WEFT_FSCK_HFS").ok();
    if named.is_none() && !installed {
        println!("not here: fsck_hfs, which no Debian package brings (see scripts/apple-fsck.sh)");
        return None;
    }
    // It asks for a block device.
    let root = Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !root || !have(&["losetup"]) {
        println!("skipped: fsck_hfs takes loop devices, which need root");
        return None;
    }
    Some(named.unwrap_or_else(|| "fsck_hfs".into()))
}

#[track_caller]
fn apple_passes(judge: &str, image: &Path) {
    let out = run(Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(image));
    let device = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    let out = Command::new(judge).args(["-n", "-f", "-d", &device]).output().unwrap();
    run(Command::new("losetup").args(["--detach", &device]));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{}: {said}", image.display());
    assert!(said.contains("appears to be OK"), "{}: {said}", image.display());
}

#[test]
fn apples_checker_passes_the_volumes_of_weft() {
    let Some(judge) = judge() else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("apple.img");
    for blocks in [800, 4097, 4099, 20_480, 1 << 21, (1 << 21) + 1, 1 << 25, 1 << 31] {
        let _ = std::fs::remove_file(&image);
        let device = FileDevice::create(&image, blocks * 512).unwrap();
        mkfs(&device, &MkfsOptions::new(name("Apple"), 3_000_000_000)).unwrap();
        drop(device);
        apple_passes(&judge, &image);
        let device = FileDevice::open(&image, OpenMode::READ_WRITE).unwrap();
        let options = OpenOptions { ..quiet() };
        let fs = Hfs::open(Arc::new(device) as Arc<dyn BlockDevice>, options).unwrap();
        let mut driver = crate::model::Driver::new(blocks);
        driver.items = 300;
        driver.write_bytes = 3 * u64::from(fs.volume_info().alloc_block_bytes).min(20_000);
        for _ in 0..1500 {
            driver.step(&fs);
        }
        fs.unmount().unwrap();
        apple_passes(&judge, &image);
    }
    // A full one.
    let device = empty(400 << 10);
    let fs = mount(&device);
    for i in 0..1000 {
        let file = Name::new(format!("f{i}").as_bytes()).unwrap();
        if fs.create_item(ROOT_ID, &file, &New::FILE).is_err()
            || fs.write_fork(ROOT_ID, &file, Fork::Data, 0, &[1; 5000]).is_err()
        {
            break;
        }
    }
    fs.unmount().unwrap();
    std::fs::write(&image, bytes_of(&device)).unwrap();
    apple_passes(&judge, &image);
}
