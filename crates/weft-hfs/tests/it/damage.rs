//! Damaged and hostile volumes: each is an error or is read as far as it can be, and is repaired.

use crate::model::Driver;
use crate::volume::{assert_sound, empty, mount, name, quiet};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_block::{BlockDevice, Event, MemoryDevice, Recorder, Rng};
use weft_hfs::fsck::{self, Problem};
use weft_hfs::layout::{CatalogRecord, Fork, ROOT_ID};
use weft_hfs::volume::New;
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
fn damaged_volumes_are_repaired() {
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

/// Found by fuzzing: where a fork ends for want of blocks, its later blocks are free again.
#[test]
fn a_fork_that_is_cut_off_gives_back_the_rest() {
    let device = empty(400 << 10);
    let fs = mount(&device);
    let write = |text: &str, len: usize| {
        let name = name(text);
        let at = match fs.item(ROOT_ID, &name) {
            Ok((_, CatalogRecord::File(file))) => u64::from(file.fork(Fork::Data).len_bytes),
            _ => {
                fs.create_item(ROOT_ID, &name, &New::FILE).unwrap();
                0
            }
        };
        fs.write_fork(ROOT_ID, &name, Fork::Data, at, &vec![7; len]).unwrap()
    };
    // One in two pieces, as others were made in between; and then nothing is free.
    write("whole", 10_000);
    write("cut", 5000);
    write("between", 500);
    write("cut", 5000);
    write("rest", 400 << 10);
    // But for the last one, which no file may have.
    assert_eq!(fs.volume_info().free_blocks, 1);
    let file = |fs: &Hfs, text: &str| match fs.item(ROOT_ID, &name(text)).unwrap().1 {
        CatalogRecord::File(file) => file,
        _ => panic!("{text} is a file"),
    };
    let (cut, whole) = (file(&fs, "cut"), file(&fs, "whole"));
    fs.unmount().unwrap();
    let [first, second, _] = cut.fork(Fork::Data).extents;
    assert!(first.count > 0 && second.count > 0, "{cut:?}");
    // It claims all blocks of the other instead: more than are free then.
    let mut wrong = cut;
    let (fork, theirs) = (wrong.fork_mut(Fork::Data), whole.fork(Fork::Data).extents[0]);
    assert!(theirs.count > first.count);
    fork.space_bytes += u32::from(theirs.count - first.count) * 512;
    fork.extents[0] = theirs;
    let mut all = vec![0; 400 << 10];
    device.read_at(&mut all, 0).unwrap();
    let record = |file| CatalogRecord::File(file).encode().0;
    let at = all.windows(102).position(|w| w == record(cut)).unwrap();
    device.write_at(&record(wrong), at as u64).unwrap();

    let done = fsck::repair(&*device).unwrap();
    let overlap = |p: &Problem| matches!(p, Problem::Overlap { .. });
    assert!(done.before.problems.iter().any(overlap), "{:?}", done.before.problems);
    assert!(done.after.is_clean(), "{:?}", done.after.problems);
    let fs = mount(&device);
    assert_eq!(file(&fs, "cut").fork(Fork::Data).space_bytes, 0);
    assert_eq!(file(&fs, "whole"), whole);
    let both = u32::from(first.count + second.count);
    assert_eq!(u32::from(fs.volume_info().free_blocks), both + 1);
}

/// All that a volume holds.
fn all_of(device: &MemoryDevice) -> BTreeMap<u32, (u32, String, [Vec<u8>; 2])> {
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let fs = Hfs::open(copy, OpenOptions { read_only: true, ..quiet() }).unwrap();
    let mut all = BTreeMap::new();
    let mut folders = vec![ROOT_ID];
    while let Some(folder) = folders.pop() {
        for (name, record) in fs.items(folder).unwrap() {
            let id = record.id().unwrap();
            let mut forks = [Vec::new(), Vec::new()];
            match record {
                CatalogRecord::Directory(_) => folders.push(id),
                CatalogRecord::File(file) => {
                    for fork in Fork::ALL {
                        let content = &mut forks[fork.index()];
                        content.resize(file.fork(fork).len_bytes as usize, 0);
                        fs.read_fork(folder, &name, fork, 0, content).unwrap();
                    }
                }
                CatalogRecord::Thread(_) => unreachable!("threads are not listed"),
            }
            all.insert(id, (folder, name.to_string(), forks));
        }
    }
    all
}

/// A repair is cut at each of its writes, and run again.
#[test]
fn a_repair_that_was_cut_is_run_again() {
    let device = empty(1 << 20);
    let fs = mount(&device);
    let mut driver = Driver::new(5);
    driver.items = 60;
    driver.write_bytes = 3000;
    for _ in 0..1500 {
        driver.step(&fs);
    }
    fs.unmount().unwrap();
    let whole = device.snapshot();
    let places = structures(&device);
    let mut rng = Rng::new(13);
    let mut cuts = 0;
    for round in 0..40 {
        let damaged = Arc::new(MemoryDevice::from_image(whole.clone()));
        for _ in 0..rng.below(3) + 1 {
            let range = &places[1 + rng.index(places.len() - 1)];
            let blocks = (range.end - range.start) / 512;
            // Not the header of a tree.
            let block = rng.below(blocks).max(1).min(blocks - 1);
            let at = range.start + block * 512 + rng.below(500);
            damaged.write_at(&vec![rng.below(256) as u8; 1 + rng.index(9)], at).unwrap();
        }
        if round % 8 == 0 {
            damaged.write_at(&[0; 162], 1024).unwrap();
        }
        let start = damaged.snapshot();
        let recorder = Recorder::new(damaged);
        let done = fsck::repair(&recorder).unwrap();
        assert!(!done.in_place, "there is room");
        let events = recorder.events();
        let want = {
            let image = MemoryDevice::from_image(start.clone());
            fsck::repair(&image).unwrap();
            all_of(&image)
        };
        let (mut durable, mut flushed) = (start, 0);
        for at in 0..events.len() {
            if let Event::Flush { covers } = &events[at] {
                for event in &events[flushed..*covers] {
                    if let Event::Write { offset, data, .. } = event {
                        durable.write(data, *offset).unwrap();
                    }
                }
                flushed = *covers;
                continue;
            }
            let mut image = durable.clone();
            let harsh = rng.below(101);
            for event in &events[flushed..=at] {
                let Event::Write { offset, data, .. } = event else { continue };
                for (i, sector) in data.chunks(512).enumerate() {
                    if rng.chance(harsh, 100) {
                        image.write(sector, offset + 512 * i as u64).unwrap();
                    }
                }
            }
            cuts += 1;
            let image = MemoryDevice::from_image(image);
            let again = fsck::repair(&image).unwrap_or_else(|e| panic!("{round}, {at}: {e}"));
            assert!(again.after.is_clean(), "{round}, {at}: {:?}", again.after.problems);
            assert!(all_of(&image) == want, "cut at event {at} of repair {round}");
        }
    }
    assert!(cuts > 500, "{cuts}");
}

/// A repair that was cut keeps the volume from being changed.
#[test]
fn an_inconsistent_volume_is_only_read() {
    let device = lived_in(6, 1 << 20);
    let mut raw = [0; 2];
    device.read_at(&mut raw, 1024 + 10).unwrap();
    device.write_at(&[raw[0] | 8], 1024 + 10).unwrap();
    let open = |read_only| {
        let options = OpenOptions { read_only, ..quiet() };
        Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options)
    };
    assert!(matches!(open(false), Err(weft_hfs::Error::Corrupt { .. })));
    read_all(&open(true).unwrap());
    assert!(!fsck::check(&*device).unwrap().is_clean());
    assert!(fsck::repair(&*device).unwrap().after.is_clean());
    open(false).unwrap();
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
fn a_device_without_a_volume_is_refused() {
    for bytes in [0_u64, 512, 1024, 1536, 400 << 10] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(bytes));
        assert!(matches!(Hfs::open(device, quiet()), Err(weft_hfs::Error::NotHfs { .. })));
    }
}
