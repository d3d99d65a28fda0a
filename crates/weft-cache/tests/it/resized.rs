//! Origins that have another length than when the cache left them.

use crate::torment::{Discard, Disk, Scope, World, cut};
use std::sync::Arc;
use weft_block::{BlockDevice, mix};
use weft_cache::{
    AttachOptions, Cache, CachedDevice, CreateOptions, Error, Mode, OpenOptions, OriginId,
};

/// A length with a part of a block, and of a sub-block, at its end.
const OLD: u64 = (1 << 20) + 1536;
const NEW: u64 = (2 << 20) + 512;
/// What is in the part that the origin got.
const GROWN: u8 = 0xee;

fn id(len_bytes: u64) -> OriginId {
    OriginId { len_bytes, label: "disk".into(), ..OriginId::default() }
}

fn content(len: u64) -> Vec<u8> {
    (0..len / 8).flat_map(|i| mix(i).to_le_bytes()).collect()
}

/// A dirty cache, and its origin, which has grown since; both without anything unflushed.
fn grown(block_bytes: u32, clean_end: bool) -> Vec<Disk> {
    let disks = vec![Disk::new(8 << 20, Discard::Zeroes), Disk::new(OLD, Discard::Zeroes)];
    let world = World::new(disks);
    let create = CreateOptions { block_bytes, ..CreateOptions::default() };
    Cache::create(&world.device(0), &create).unwrap();
    let (cache, device) = open(&world, OLD, false).unwrap();
    let bytes = content(OLD);
    // Partly clean, partly dirty; the end is dirty.
    device.write_at(&bytes[..512 << 10], 0).unwrap();
    device.write_back_all().unwrap();
    device.write_at(&bytes[512 << 10..], 512 << 10).unwrap();
    device.flush().unwrap();
    if clean_end {
        cache.close().unwrap();
    }
    drop((device, cache));
    let mut disks = world.at(world.events());
    cut(&mut disks, Scope::Both, 1);
    let longer = World::new(vec![Disk::new(NEW, Discard::Zeroes)]);
    let mut origin = vec![GROWN; NEW as usize];
    disks[1].medium().read(&mut origin[..OLD as usize], 0).unwrap();
    longer.device(0).write_at(&origin, 0).unwrap();
    longer.device(0).flush().unwrap();
    vec![disks.swap_remove(0), longer.at(longer.events()).swap_remove(0)]
}

fn open(
    world: &Arc<World>,
    len_bytes: u64,
    resized: bool,
) -> weft_cache::Result<(Arc<Cache>, Arc<CachedDevice>)> {
    let options =
        OpenOptions { background: false, max_dirty_age_ms: u64::MAX, ..OpenOptions::default() };
    let cache = Cache::open(world.device(0), options)?;
    let attach = AttachOptions { mode: Mode::WriteBack, resized, ..AttachOptions::default() };
    let device = cache.attach(world.device(1), &id(len_bytes), &attach)?;
    Ok((cache, device))
}

fn judge(device: &dyn BlockDevice, what: &str) {
    let mut got = vec![0; NEW as usize];
    device.read_at(&mut got, 0).unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = content(OLD);
    if let Some(at) = (0..want.len()).find(|at| got[*at] != want[*at]) {
        panic!("{what}: byte {at} of the old part");
    }
    if let Some(at) = (want.len()..got.len()).find(|at| got[*at] != GROWN) {
        panic!("{what}: byte {at} of the new part is {:#x}", got[at]);
    }
}

/// The dirty data of an origin that has grown reaches it, and nothing is written behind the old end;
/// a power cut at any moment changes nothing of that.
#[test]
fn an_origin_that_has_grown_is_adopted_with_its_dirty_data() {
    let cases = [(4096, true), (4096, false), (65536, true), (65536, false)];
    for (case, (block_bytes, clean_end)) in cases.into_iter().enumerate() {
        let what = format!("blocks of {block_bytes}, closed in good order: {clean_end}");
        let world = World::new(grown(block_bytes, clean_end));
        let error = open(&world, NEW, false).expect_err("not without being asked to");
        let Error::OriginResized { was_bytes, is_bytes, dirty_bytes, lost_bytes, .. } = error
        else {
            panic!("{what}: {error}");
        };
        assert_eq!((was_bytes, is_bytes, lost_bytes), (OLD, NEW, 0), "{what}");
        assert!(dirty_bytes > 0, "{what}");
        let world = World::new(world.at(world.events()));
        let (cache, device) = open(&world, NEW, true).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(cache.stats().dirty_bytes, 0, "{what}");
        let adopted = world.events();
        judge(&*device, &what);
        judge(&*device, &format!("{what}, again"));
        cache.check_invariants();
        // It is used in its new length.
        device.write_at(&[GROWN; 512], NEW - 512).unwrap();
        device.flush().unwrap();
        cache.close().unwrap();
        drop((device, cache));
        let (cache, device) = open(&world, NEW, false).unwrap_or_else(|e| panic!("{what}: {e}"));
        judge(&*device, &format!("{what}, opened again"));
        cache.detach(&device).unwrap();
        let mut bare = vec![0; NEW as usize];
        world.visible(1).read(&mut bare, 0).unwrap();
        assert!(bare[..OLD as usize] == content(OLD)[..], "{what}: the bare origin");
        for at in 0..=adopted {
            // Each scope in one of the four cases.
            let scope = Scope::ALL[(at + case) % 4];
            let mut disks = world.at(at);
            cut(&mut disks, scope, mix(at as u64));
            let left = World::new(disks);
            let what = format!("{what}, cut ({}) at event {at}", scope.name());
            let (_, device) = open(&left, NEW, true).unwrap_or_else(|e| panic!("{what}: {e}"));
            judge(&*device, &what);
        }
    }
}

/// What was changed behind the cache's back is found in the old part of an origin that has grown.
#[test]
fn an_origin_that_has_grown_and_changed_is_refused() {
    let world = World::new(grown(4096, true));
    world.device(1).write_at(&[1; 512], 0).unwrap();
    let error = open(&world, NEW, true).expect_err("it was changed");
    assert!(matches!(error, Error::OriginChanged { dirty_bytes: 1.., .. }), "{error}");
}

/// An origin that was cut off is refused, with what would be lost; as long as before, it is taken.
#[test]
fn an_origin_that_has_shrunk_is_refused_and_loses_nothing() {
    let disks = grown(4096, true);
    for short in [768 << 10, 256 << 10, OLD - 512] {
        let cut_off = World::new(vec![Disk::new(short, Discard::Zeroes)]);
        let mut bytes = vec![0; short as usize];
        disks[1].medium().read(&mut bytes, 0).unwrap();
        cut_off.device(0).write_at(&bytes, 0).unwrap();
        let mut both = vec![disks[0].clone()];
        both.extend(cut_off.at(cut_off.events()));
        let world = World::new(both);
        for resized in [false, true] {
            let error = open(&world, short, resized).expect_err("it has shrunk");
            let Error::OriginResized { dirty_bytes, lost_bytes, .. } = error else {
                panic!("{error}");
            };
            let sub = |len: u64| len.div_ceil(4096) * 4096;
            assert_eq!(dirty_bytes, sub(OLD) - (512 << 10));
            let kept = (short / 4096 * 4096).max(512 << 10);
            assert_eq!(lost_bytes, sub(OLD) - kept, "{short} bytes are left");
        }
    }
}

/// A source under another name is known by its length and content, if data of it is dirty.
#[test]
fn a_device_that_is_known_under_another_name_is_found() {
    for clean_end in [true, false] {
        let disks = grown(4096, clean_end);
        let mut old = vec![0; OLD as usize];
        disks[1].medium().read(&mut old, 0).unwrap();
        let cache = World::new(vec![disks[0].clone()]);
        let cache = Cache::open(cache.device(0), OpenOptions::default()).unwrap();
        let same = weft_block::MemoryDevice::new(OLD);
        same.write_at(&old, 0).unwrap();
        let found = cache.similar_origin(&same).unwrap();
        if clean_end {
            assert_eq!(found.map(|info| info.id), Some(id(OLD)));
        }
        let longer = weft_block::MemoryDevice::new(NEW);
        assert_eq!(cache.similar_origin(&longer).unwrap(), None);
        same.write_at(&[1; 4096], 0).unwrap();
        assert_eq!(cache.similar_origin(&same).unwrap(), None, "another content");
    }
}
