//! Damaged and hostile volumes: each is an error or is read as far as it can be, and is repaired.

use crate::model::Driver;
use crate::volume::{assert_sound, empty, mount, quiet};
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice, Rng};
use weft_hfs::fsck::{self, Problem};
use weft_hfs::layout::{Fork, ROOT_ID};
use weft_hfs::{Hfs, OpenOptions};
use weft_vfs::{FileSystem, Ino};

/// A volume with a few hundred items, some in pieces.
fn lived_in(seed: u64, bytes: u64) -> Arc<MemoryDevice> {
    let device = empty(bytes);
    let fs = mount(&device);
    let mut driver = Driver::new(seed);
    for _ in 0..2000 {
        driver.step(&fs);
    }
    fs.unmount().unwrap();
    device
}

/// Reads all that can be reached; errors are fine.
fn read_all(fs: &Hfs) {
    let mut folders = vec![ROOT_ID];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        seen += 1;
        if seen > 5000 {
            break;
        }
        for (name, record) in fs.items(folder).unwrap_or_default() {
            match record {
                weft_hfs::layout::CatalogRecord::Directory(dir) => folders.push(dir.id),
                _ => {
                    for fork in Fork::ALL {
                        let _ = fs.read_fork(folder, &name, fork, 0, &mut [0; 4096]);
                    }
                }
            }
        }
        let _ = fs.getattr(Ino(u64::from(folder)));
    }
}

/// Bytes that hold the volume's structures, on a volume of `mdb`.
fn structures(device: &MemoryDevice) -> Vec<std::ops::Range<u64>> {
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024).unwrap();
    let mdb = weft_hfs::layout::Mdb::parse(&raw).unwrap();
    let mut all = vec![1024..1024 + 162, 1536..1536 + mdb.bitmap_blocks() * 512];
    for extent in mdb.catalog_file.iter().chain(&mdb.extents_file) {
        let at = |block: u32| {
            (u64::from(mdb.first_block) + u64::from(block) * mdb.blocks_per_alloc()) * 512
        };
        all.push(at(u32::from(extent.start))..at(extent.end()));
    }
    all.retain(|range| !range.is_empty());
    all
}

#[test]
fn any_damage_is_an_error_or_is_read() {
    let device = lived_in(1, 1 << 20);
    let whole = device.snapshot();
    let places = structures(&device);
    let mut rng = Rng::new(7);
    for round in 0..400 {
        let image = Arc::new(MemoryDevice::from_image(whole.clone()));
        for _ in 0..rng.below(6) + 1 {
            let range = &places[rng.index(places.len())];
            let at = range.start + rng.below(range.end - range.start);
            let bytes: Vec<u8> = match rng.below(3) {
                0 => vec![rng.below(256) as u8],
                1 => vec![0xff; 4],
                _ => (0..rng.below(8) + 1).map(|_| rng.below(256) as u8).collect(),
            };
            let n = bytes.len().min((range.end - at) as usize);
            image.write_at(&bytes[..n], at).unwrap();
        }
        let _ = fsck::check(&*image);
        let options = OpenOptions { read_only: true, ..quiet() };
        if let Ok(fs) = Hfs::open(Arc::clone(&image) as Arc<dyn BlockDevice>, options) {
            read_all(&fs);
        }
        if let Ok(fs) = Hfs::open(Arc::clone(&image) as Arc<dyn BlockDevice>, quiet()) {
            let mut driver = Driver::new(round);
            driver.careless = true;
            for _ in 0..30 {
                driver.step(&fs);
            }
            let _ = fs.unmount();
        }
    }
}

#[test]
fn what_was_damaged_is_repaired() {
    let device = lived_in(2, 2 << 20);
    let whole = device.snapshot();
    let places = structures(&device);
    let mut rng = Rng::new(11);
    let mut repaired = 0;
    for _ in 0..300 {
        let image = MemoryDevice::from_image(whole.clone());
        for _ in 0..rng.below(4) + 1 {
            // The MDB and the headers of the trees are another matter.
            let range = &places[1 + rng.index(places.len() - 1)];
            let block = rng
                .below((range.end - range.start) / 512)
                .max(1)
                .min((range.end - range.start) / 512 - 1);
            let at = range.start + block * 512 + rng.below(500);
            image.write_at(&vec![rng.below(256) as u8; rng.below(9) as usize + 1], at).unwrap();
        }
        let before = fsck::check(&image).unwrap();
        match fsck::repair(&image) {
            Ok(done) => {
                let left: Vec<_> = done.after.problems.iter().map(ToString::to_string).collect();
                assert!(left.is_empty(), "before: {:#?}\nafter: {left:#?}", before.problems);
                assert_sound(&image);
                repaired += usize::from(!before.is_clean());
            }
            Err(e) => panic!("{e}: {:#?}", before.problems),
        }
    }
    assert!(repaired > 100, "{repaired}");
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let device = lived_in(3, 1 << 20);
    let whole = device.snapshot();
    let mut raw = [0; 512];
    device.read_at(&mut raw, 1024).unwrap();
    let check = |change: &dyn Fn(&MemoryDevice)| {
        let image = MemoryDevice::from_image(whole.clone());
        change(&image);
        let report = fsck::check(&image).unwrap();
        assert!(!report.is_clean());
        let done = fsck::repair(&image).unwrap();
        assert!(done.after.is_clean(), "{:?}", done.after.problems);
        report.problems
    };
    let found = check(&|d| d.write_at(&[0xff; 4], 1536 + 200).unwrap());
    assert!(matches!(found[0], Problem::Bitmap { .. }), "{found:?}");
    let found = check(&|d| d.write_at(&99_u32.to_be_bytes(), 1024 + 84).unwrap());
    assert!(matches!(found[0], Problem::Count { what: "the number of files", .. }), "{found:?}");
    let found = check(&|d| d.write_at(&17_u32.to_be_bytes(), 1024 + 30).unwrap());
    assert!(matches!(found[0], Problem::Count { what: "the next id", .. }), "{found:?}");
    let found = check(&|d| d.write_at(&[0; 162], (1 << 20) - 1024).unwrap());
    assert!(matches!(found[0], Problem::Copy { .. }), "{found:?}");
}

#[test]
fn the_copy_of_the_mdb_stands_in_for_it() {
    let device = lived_in(4, 1 << 20);
    device.write_at(&[0; 162], 1024).unwrap();
    assert!(Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, quiet()).is_err());
    let done = fsck::repair(&*device).unwrap();
    assert!(done.after.is_clean(), "{:?}", done.after.problems);
    let fs = mount(&device);
    read_all(&fs);
}

/// A journal, a table of zeroes, and noise are no volumes.
#[test]
fn what_is_no_volume_is_told() {
    for bytes in [0_u64, 512, 1024, 1536, 400 << 10] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(bytes));
        assert!(matches!(Hfs::open(device, quiet()), Err(weft_hfs::Error::NotHfs { .. })));
    }
}
