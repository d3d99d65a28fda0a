//! The five defects of the code this cache goes back to (the seed), each as a test.
//!
//! Each was tried: with the defect put back into the core by hand, its test fails.

use crate::rig::{BLOCK, Counter, Rig, block, read, write};
use std::sync::Arc;
use weft_block::{BlockDevice, Fault, MemoryDevice, Request, Rule};
use weft_cache::{AttachOptions, Cache, CachedDevice, CreateOptions, Mode, OpenOptions, OriginId};
use weft_testing::{At, GateDevice};

/// 1. The seed's loader gave the entries of a metadata sector the wrong numbers, so that after a
///    crash blocks were found under the names of others.
#[test]
fn entries_are_found_at_their_own_index_after_a_crash() {
    let rig = Rig::new(Mode::WriteThrough, 8 << 20, 1200);
    let mut open = rig.open();
    for life in 0..5_u64 {
        // Not in order and with gaps, so that no number is right by accident.
        for i in 0..300 {
            let number = (i * 7 + life * 131) % 1200;
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 0), "life {life}");
        }
        rig.pass_ms(&open, 60_000);
        open.device.flush().unwrap();
        rig.cut(open);
        open = rig.open();
        let misses = Counter::new(&rig.origin_disk, Request::Read);
        for i in 0..300 {
            let number = (i * 7 + life * 131) % 1200;
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 0), "life {life}");
        }
        assert!(misses.count() <= 3, "life {life}: {} of 300 were lost", misses.count());
    }
}

/// 2. The seed saved an entry only if its state was VALID or was DIRTY: a block that was both,
///    which every block is that is read and then written, was not saved, and its data lost.
#[test]
fn a_block_that_is_valid_and_dirty_keeps_both() {
    // Over the log alone, and over a checkpoint (a clean end).
    for clean in [false, true] {
        let rig = Rig::new(Mode::WriteBack, 8 << 20, 64);
        let open = rig.open();
        for number in 0..64 {
            read(&*open.device, number).unwrap();
        }
        for number in (0..64).step_by(2) {
            write(&*open.device, number, 1).unwrap();
        }
        open.device.flush().unwrap();
        if clean {
            open.cache.close().unwrap();
            drop(open);
        } else {
            rig.cut(open);
        }
        let open = rig.open();
        for number in 0..64 {
            let version = u64::from(number % 2 == 0);
            assert_eq!(read(&*open.device, number).unwrap(), block(number, version));
        }
        open.cache.write_back_all().unwrap();
        for number in 0..64 {
            let version = u64::from(number % 2 == 0);
            assert_eq!(rig.durable_origin_block(number), block(number, version));
        }
    }
}

/// A cache with threads before a gate, in memory.
struct Raced {
    cache_disk: Arc<GateDevice<Arc<MemoryDevice>>>,
    origin_disk: Arc<GateDevice<Arc<MemoryDevice>>>,
    cache: Arc<Cache>,
    device: Arc<CachedDevice>,
}

fn raced(mode: Mode, cache_mem: &Arc<MemoryDevice>, origin_mem: &Arc<MemoryDevice>) -> Raced {
    let cache_disk = GateDevice::new(Arc::clone(cache_mem));
    let origin_disk = GateDevice::new(Arc::clone(origin_mem));
    // Commits happen when a test asks for them.
    let options = OpenOptions { commit_interval_ms: 3_600_000, ..OpenOptions::default() };
    let cache = Cache::open(cache_disk.clone(), options).unwrap();
    let id = OriginId {
        len_bytes: origin_mem.geometry().len_bytes,
        label: "raced".into(),
        ..OriginId::default()
    };
    let attach = AttachOptions { mode, ..AttachOptions::default() };
    let device = cache.attach(origin_disk.clone(), &id, &attach).unwrap();
    Raced { cache_disk, origin_disk, cache, device }
}

fn memories(blocks: u64) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let cache_mem = Arc::new(MemoryDevice::new(8 << 20));
    Cache::create(&*cache_mem, &CreateOptions::default()).unwrap();
    let origin_mem = Arc::new(MemoryDevice::new(blocks * BLOCK as u64));
    for number in 0..blocks {
        origin_mem.write_at(&block(number, 0), number * BLOCK as u64).unwrap();
    }
    (cache_mem, origin_mem)
}

/// 3. The seed cleared a metadata sector's "pending" flag after the sector was written: an update
///    that came in between believed that it was still to be written, and was lost.
#[test]
fn an_update_during_the_write_of_the_metadata_is_written_too() {
    // Held at the start of the write, and after it.
    for at in [At::WriteStart, At::WriteDone] {
        let (cache_mem, origin_mem) = memories(64);
        let raced_cache = raced(Mode::WriteBack, &cache_mem, &origin_mem);
        let Raced { cache_disk, cache, device, .. } = &raced_cache;
        for number in 0..32 {
            write(&**device, number, 1).unwrap();
        }
        // The next write to the cache's disk is the log's: the data is there already.
        cache_disk.arm(at, 0..u64::MAX);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| device.flush());
            cache_disk.wait_held();
            // The same blocks again, and new ones, while the log is being written.
            let second = scope.spawn(|| {
                for number in 16..48 {
                    write(&**device, number, 2).unwrap();
                }
                device.flush().unwrap();
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            cache_disk.release();
            first.join().unwrap().unwrap();
            second.join().unwrap();
        });
        // What the disk holds now is what a power cut leaves.
        let left = Arc::new(MemoryDevice::from_image(cache_mem.snapshot()));
        let again = raced(Mode::WriteBack, &left, &origin_mem);
        for number in 0..64 {
            let version = match number {
                0..16 => 1,
                16..48 => 2,
                _ => 0,
            };
            let got = read(&*again.device, number).unwrap();
            assert_eq!(got, block(number, version), "block {number}, held at {at:?}");
        }
        drop(cache.close());
    }
}

/// 4. In the seed a write that came while the block was being filled from the origin found nothing
///    to invalidate, and the fill then put the old content in.
#[test]
fn a_write_during_a_fill_leaves_no_old_data() {
    for mode in Mode::ALL {
        for partial in [false, true] {
            let (cache_mem, origin_mem) = memories(16);
            let raced_cache = raced(mode, &cache_mem, &origin_mem);
            let Raced { origin_disk, cache, device, .. } = &raced_cache;
            let mut new = block(5, 0);
            let (from, to) = if partial { (1024, 2048) } else { (0, BLOCK) };
            new[from..to].copy_from_slice(&block(5, 1)[from..to]);
            // The reader has the old content in its hands and does not go on.
            origin_disk.arm(At::ReadDone, 5 * BLOCK as u64..6 * BLOCK as u64);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| read(&**device, 5).unwrap());
                origin_disk.wait_held();
                let writer = scope.spawn(|| {
                    device.write_at(&new[from..to], (5 * BLOCK + from) as u64).unwrap();
                });
                // Whether the write waits for the fill or passes it is the cache's affair.
                std::thread::sleep(std::time::Duration::from_millis(30));
                origin_disk.release();
                writer.join().unwrap();
                let got = reader.join().unwrap();
                assert!(got == block(5, 0) || got == new, "{mode}: the reader got a mixture");
            });
            assert_eq!(read(&**device, 5).unwrap(), new, "{mode}");
            assert_eq!(read(&**device, 5).unwrap(), new, "{mode}: the second time");
            cache.close().unwrap();
            let again = raced(mode, &cache_mem, &origin_mem);
            assert_eq!(read(&*again.device, 5).unwrap(), new, "{mode}: after a restart");
        }
    }
}

/// 5. The seed passed on neither FLUSH nor FUA, and its checksum was switched off.
#[test]
fn a_flush_reaches_the_disk_that_holds_the_data() {
    for mode in Mode::ALL {
        let rig = Rig::new(mode, 8 << 20, 16);
        let open = rig.open();
        for version in 1..4 {
            for number in 0..16 {
                write(&*open.device, number, version).unwrap();
            }
            let (cache, origin) = (
                Counter::new(&rig.cache_disk, Request::Flush),
                Counter::new(&rig.origin_disk, Request::Flush),
            );
            open.device.flush().unwrap();
            let (cache, origin) = (cache.count(), origin.count());
            assert!(if mode.writes_back() { cache > 0 } else { origin > 0 }, "{mode}");
        }
        rig.cut(open);
        let open = rig.open();
        for number in 0..16 {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, 3), "{mode}");
        }
    }
}

/// 5, second half.
#[test]
fn a_block_that_does_not_match_its_checksum_is_never_served() {
    let (cache_mem, origin_mem) = memories(64);
    let first = raced(Mode::WriteThrough, &cache_mem, &origin_mem);
    for number in 0..64 {
        read(&*first.device, number).unwrap();
    }
    // Fills are written by a thread; closing the cache would leave out what is still waiting.
    for _ in 0..1000 {
        if first.cache.stats().fills == 64 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    first.cache.close().unwrap();
    drop(first);
    // A bit of every block, wherever it lies on the cache device.
    let mut flipped = 0;
    let image = cache_mem.snapshot();
    for (page, content) in image.pages() {
        if (0..64).any(|number| block(number, 0) == content[..]) {
            let at = page * BLOCK as u64 + page * 61 % BLOCK as u64;
            let byte = content[(at % BLOCK as u64) as usize] ^ 0x10;
            cache_mem.write_at(&[byte], at).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 64, "every block was cached");
    let again = raced(Mode::WriteThrough, &cache_mem, &origin_mem);
    for number in 0..64 {
        assert_eq!(read(&*again.device, number).unwrap(), block(number, 0));
    }
    assert_eq!(again.cache.stats().heals, 64);
    for number in 0..64 {
        assert_eq!(read(&*again.device, number).unwrap(), block(number, 0));
    }
    assert_eq!(again.cache.stats().heals, 64, "they are healed, and hits again");
}

/// A dirty sub-block that moves to another slot together with a write is verified like one that is
/// read: its damage is counted, and the error names the origin.
#[test]
fn damage_that_a_write_finds_names_its_origin_and_is_counted() {
    let create = CreateOptions { block_bytes: 2 * BLOCK as u32, ..CreateOptions::default() };
    let rig = Rig::with(Mode::WriteBack, 4 << 20, 64, &create);
    let open = rig.open();
    write(&*open.device, 0, 1).unwrap();
    write(&*open.device, 1, 1).unwrap();
    // From here on the block is held, and the next write of a half moves the other.
    open.device.flush().unwrap();
    let pages = (0..rig.cache_disk.geometry().len_bytes).step_by(BLOCK);
    let mut page = vec![0; BLOCK];
    for at in pages {
        rig.cache_disk.read_at(&mut page, at).unwrap();
        if page == block(1, 1) {
            rig.cache_disk.write_at(&[page[0] ^ 1], at).unwrap();
        }
    }
    let error = write(&*open.device, 0, 2).unwrap_err().to_string();
    assert!(error.contains("\"origin\""), "{error}");
    assert_eq!(open.cache.stats().dirty_damaged, 1);
}

/// A block of zeroes that cannot be read from the cache is not taken for one that was read: what
/// the buffer holds after a failed read is compared with nothing.
#[test]
fn a_failed_read_for_a_writer_is_not_compared_with_a_checksum() {
    let rig = Rig::new(Mode::WriteThrough, 4 << 20, 64);
    let open = rig.open();
    open.device.write_at(&[0; BLOCK], 0).unwrap();
    let rule = rig.cache_disk.add(Rule::every(Request::Read, Fault::EIO));
    open.device.write_at(&[1; 100], 0).unwrap();
    rig.cache_disk.remove(rule);
    assert_eq!(open.cache.stats().heals, 1, "the origin was read instead");
    let mut expected = vec![0; BLOCK];
    expected[..100].fill(1);
    assert_eq!(read(&*open.device, 0).unwrap(), expected);
}
