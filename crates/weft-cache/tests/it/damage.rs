//! Silent damage: bits that changed on the cache device by themselves.
//!
//! A clean block heals from the origin. A dirty block is an error that names the range. Metadata
//! that is damaged is refused if dirty data may hang on it; it is never guessed.

use crate::rig::{BLOCK, Open, Rig, block, read, write};
use weft_block::{BlockDevice, Rng};
use weft_cache::{Error, Mode, check, repair};

/// Blocks of the origin.
pub const BLOCKS: u64 = 96;

/// Dirty ones are those with an odd number; they hold version 1.
pub fn version(number: u64) -> u64 {
    number % 2
}

/// A cache with clean and dirty blocks, used in three lives, closed or cut.
pub fn used(clean_end: bool) -> Rig {
    let rig = Rig::new(Mode::WriteBack, 3 << 20, BLOCKS);
    for life in 0..3_u64 {
        let open = rig.open();
        for number in 0..BLOCKS {
            if number % 3 == life {
                read(&*open.device, number).unwrap();
                if version(number) == 1 {
                    write(&*open.device, number, 1).unwrap();
                }
            }
            if number % 16 == 0 {
                open.device.flush().unwrap();
            }
        }
        open.device.flush().unwrap();
        if life < 2 {
            open.cache.close().unwrap();
            drop(open);
        } else {
            // The last batch of the log cannot be told from one that was being written: let it be
            // of no importance.
            write(&*open.device, 0, 0).unwrap();
            open.device.flush().unwrap();
            if clean_end {
                open.cache.close().unwrap();
                drop(open);
            } else {
                rig.cut(open);
            }
        }
    }
    rig
}

/// The places on the cache device that hold this content.
fn places(rig: &Rig, content: &[u8]) -> Vec<u64> {
    let image = rig.cache_disk.inner().inner().snapshot();
    let pages = image.pages().filter(|(_, page)| page[..] == *content);
    pages.map(|(number, _)| number * BLOCK as u64).collect()
}

fn flip(rig: &Rig, at: u64, bit: u8) {
    let medium = rig.cache_disk.inner().inner();
    let mut byte = [0];
    medium.read_at(&mut byte, at).unwrap();
    medium.write_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

#[test]
fn a_damaged_dirty_block_is_an_error_that_names_its_range() {
    for clean_end in [true, false] {
        let rig = used(clean_end);
        for at in places(&rig, &block(7, 1)) {
            flip(&rig, at + 1234, 3);
        }
        let open = rig.open();
        let error = read(&*open.device, 7).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("{}", 7 * BLOCK)), "{text}");
        assert_eq!(error.errno(), 5);
        assert!(open.device.read_at(&mut [0; 100], 7 * BLOCK as u64 + 50).is_err());
        assert!(open.cache.stats().dirty_damaged > 0);
        for number in (0..BLOCKS).filter(|n| *n != 7) {
            assert_eq!(read(&*open.device, number).unwrap(), block(number, version(number)));
        }
        // The rest can be saved, and the user is told of what cannot.
        assert!(open.cache.write_back_all().is_err());
        for number in (0..BLOCKS).filter(|n| *n != 7) {
            assert_eq!(rig.origin_block(number), block(number, version(number)));
        }
        assert_eq!(rig.origin_block(7), block(7, 0), "what is damaged is not written");
        // Whoever writes all of it anew has it whole again.
        write(&*open.device, 7, 2).unwrap();
        assert_eq!(read(&*open.device, 7).unwrap(), block(7, 2));
        open.cache.write_back_all().unwrap();
        assert_eq!(rig.durable_origin_block(7), block(7, 2));
    }
}

#[test]
fn one_damaged_copy_of_the_superblock_is_enough_to_go_on() {
    for copy in [0, 4096] {
        let rig = used(true);
        flip(&rig, copy + 200, 1);
        everything_is_there(&rig, &rig.open());
    }
    let rig = used(true);
    flip(&rig, 200, 1);
    flip(&rig, 4096 + 200, 1);
    assert!(rig.open_cache().is_err(), "two are too many");
}

fn everything_is_there(rig: &Rig, open: &Open) {
    for number in 0..BLOCKS {
        assert_eq!(read(&*open.device, number).unwrap(), block(number, version(number)));
    }
    open.cache.write_back_all().unwrap();
    for number in 0..BLOCKS {
        assert_eq!(rig.durable_origin_block(number), block(number, version(number)));
    }
}

/// What random damage did.
#[derive(Default, Debug)]
struct Outcomes {
    refused: u32,
    partly: u32,
    unharmed: u32,
}

/// Damages a sector of the used part of the device at random and opens it: it is refused, or
/// whatever can be read is right. Nothing stale, nothing of another block, ever.
#[test]
fn random_damage_is_refused_or_reported_and_never_believed() {
    let mut outcomes = Outcomes::default();
    for clean_end in [true, false] {
        let rig = used(clean_end);
        let (cache, origin) =
            (rig.cache_disk.inner().inner().snapshot(), rig.origin_disk.inner().inner().snapshot());
        let pages: Vec<u64> = cache.pages().map(|(number, _)| number).collect();
        for seed in 0..400 {
            let mut rng = Rng::stream(seed, u64::from(clean_end));
            let rig = rig.on(&cache, &origin);
            for _ in 0..1 + rng.below(3) {
                let at = pages[rng.index(pages.len())] * BLOCK as u64 + rng.below(8) * 512;
                let mut sector = [0; 512];
                let medium = rig.cache_disk.inner().inner();
                medium.read_at(&mut sector, at).unwrap();
                match rng.below(4) {
                    0 => sector[rng.index(512)] ^= 1 << rng.below(8),
                    1 => sector = [0; 512],
                    2 => rng.fill(&mut sector),
                    // A write that went to the wrong place.
                    _ => {
                        let from =
                            pages[rng.index(pages.len())] * BLOCK as u64 + rng.below(8) * 512;
                        medium.read_at(&mut sector, from).unwrap();
                    }
                }
                medium.write_at(&sector, at).unwrap();
            }
            judge(&rig, seed, clean_end, &mut outcomes);
        }
    }
    println!("{outcomes:?}");
    assert!(outcomes.refused > 0 && outcomes.partly > 0 && outcomes.unharmed > 0, "{outcomes:?}");
}

fn judge(rig: &Rig, seed: u64, clean_end: bool, outcomes: &mut Outcomes) {
    let open = match rig.try_open() {
        Ok(open) => open,
        Err(Error::Damaged { .. } | Error::NotACache(_) | Error::DirtyDamaged { .. }) => {
            outcomes.refused += 1;
            repaired(rig, seed, clean_end);
            return;
        }
        Err(e) => panic!("seed {seed}, clean {clean_end}: {e:?}"),
    };
    let mut failed = 0;
    for number in 0..BLOCKS {
        match read(&*open.device, number) {
            Ok(got) => assert!(
                got == block(number, version(number)),
                "seed {seed}, clean {clean_end}: block {number} is wrong"
            ),
            Err(_) => failed += 1,
        }
    }
    if failed > 0 {
        outcomes.partly += 1;
    } else {
        outcomes.unharmed += 1;
    }
    let saved = open.cache.write_back_all();
    assert_eq!(saved.is_err(), failed > 0, "seed {seed}, clean {clean_end}: {saved:?}");
    for number in 0..BLOCKS {
        let got = rig.origin_block(number);
        let right = got == block(number, version(number)) || failed > 0 && got == block(number, 0);
        assert!(right, "seed {seed}, clean {clean_end}: the origin's block {number} is wrong");
    }
}

/// What was refused is repaired: then it opens, and what it holds is right. What is lost, only
/// dirty data can be, shows the origin's old content, and was reported.
fn repaired(rig: &Rig, seed: u64, clean_end: bool) {
    let Ok(report) = check(&*rig.cache_disk, true) else {
        // Both superblocks: nothing can be proved of such a cache.
        return;
    };
    assert!(report.needs_repair(), "seed {seed}, clean {clean_end}: {report:?}");
    repair(rig.cache_disk.clone())
        .unwrap_or_else(|e| panic!("seed {seed}, clean {clean_end}: {e}"));
    let open = rig.try_open().unwrap_or_else(|e| panic!("seed {seed}, clean {clean_end}: {e}"));
    for number in 0..BLOCKS {
        let Ok(got) = read(&*open.device, number) else { continue };
        let right = got == block(number, version(number)) || got == block(number, 0);
        assert!(right, "seed {seed}, clean {clean_end}: block {number} is wrong after a repair");
    }
}

/// Where the intents cannot be read, no clean block is believed.
#[test]
fn damaged_intents_leave_nothing_stale() {
    let rig = Rig::new(Mode::WriteThrough, 4 << 20, 256);
    let open = rig.open();
    for number in 0..64 {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 60_000);
    write(&*open.device, 1, 1).unwrap();
    open.cache.checkpoint_always().unwrap();
    // Announced already: no record of it is durable.
    write(&*open.device, 2, 1).unwrap();
    rig.origin_disk.flush().unwrap();
    rig.cut(open);
    let dump = weft_cache::dump(&*rig.cache_disk, |_| {}).unwrap();
    let newest = dump.checkpoints.iter().flatten().max_by_key(|header| header.sequence).unwrap();
    assert_eq!(newest.intent_pages, 1);
    flip(&rig, dump.superblock.checkpoints[(newest.sequence & 1) as usize] + 4096 + 40, 0);
    let open = rig.open();
    for number in 0..64 {
        let got = read(&*open.device, number).unwrap();
        assert!(got == rig.origin_block(number), "block {number} is stale");
    }
}

/// One session, two hundred blocks flushed, and the power gone.
pub fn one_session() -> Rig {
    let rig = Rig::new(Mode::WriteBack, 4 << 20, 256);
    let open = rig.open();
    for number in 0..200 {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.flush().unwrap();
    rig.cut(open);
    rig
}

/// Whatever becomes of one copy, the other knows whose blocks there are.
#[test]
fn a_damaged_copy_of_the_superblock_after_the_first_session_costs_nothing() {
    for copy in [0, 4096] {
        for kind in 0..3 {
            let rig = one_session();
            let medium = rig.cache_disk.inner().inner();
            match kind {
                0 => flip(&rig, copy + 600, 1),
                1 => medium.write_at(&[0; 4096], copy).unwrap(),
                _ => medium.write_at(&[0xd5; 512], copy + 512).unwrap(),
            }
            let open = rig.open();
            let said = open.cache.findings().iter().any(|f| f.to_string().contains("superblock"));
            assert!(said, "{:?}", open.cache.findings());
            for number in 0..200 {
                let got = read(&*open.device, number).unwrap();
                assert!(
                    got == block(number, 1),
                    "copy {copy}, kind {kind}: block {number} is stale"
                );
            }
            drop(open);
            let again = rig.open();
            assert!(again.cache.stats().dirty_bytes > 0, "and again");
            assert_eq!(again.cache.findings(), &[], "it was written anew");
        }
    }
}

/// What was flushed is known to have been: damage to one block of it is damage to that block.
#[test]
fn a_damaged_block_of_the_last_flush_costs_that_block_alone() {
    let rig = one_session();
    let at = places(&rig, &block(7, 1));
    assert_eq!(at.len(), 1);
    flip(&rig, at[0] + 99, 2);
    let open = rig.open();
    for number in 0..200 {
        match read(&*open.device, number) {
            Ok(got) => assert!(number != 7 && got == block(number, 1), "block {number} is stale"),
            Err(error) => assert!(number == 7, "block {number}: {error}"),
        }
    }
}

/// As before, but the power went between the flush and what says that it had returned: the damaged
/// block cannot be told from one that was being written. It stays as it was, that is said, and all
/// others count.
#[test]
fn a_last_commit_that_may_have_been_cut_keeps_what_matches_and_names_the_rest() {
    let rig = one_session();
    let dump = weft_cache::dump(&*rig.cache_disk, |_| {}).unwrap();
    let sb = &dump.superblock;
    // The marker behind the last batch.
    let marker = sb.log_offset + (dump.log.end - 1) % sb.log_blocks * 4096;
    rig.cache_disk.inner().inner().write_at(&[0; 4096], marker).unwrap();
    let at = places(&rig, &block(7, 1));
    flip(&rig, at[0] + 99, 2);
    let report = check(&*rig.cache_disk, false).unwrap();
    assert!(!report.needs_repair(), "an ordinary cut leaves the same: {report:?}");
    for life in 0..2 {
        let open = rig.open();
        for number in 0..200 {
            let version = u64::from(number != 7);
            let got = read(&*open.device, number).unwrap();
            assert!(got == block(number, version), "life {life}: block {number}");
        }
        let said: Vec<String> = open.cache.findings().iter().map(ToString::to_string).collect();
        let named = said.iter().any(|text| text.contains("bytes 28672..32768 of \"origin\""));
        assert_eq!(named, life == 0, "{said:?}");
    }
}

/// Any one part of the metadata: what is refused opens after a repair.
#[test]
fn a_repair_opens_whatever_one_damaged_part_has_closed() {
    for clean_end in [true, false] {
        let rig = used(clean_end);
        let sb = weft_cache::info(&*rig.cache_disk).unwrap();
        let (cache, origin) =
            (rig.cache_disk.inner().inner().snapshot(), rig.origin_disk.inner().inner().snapshot());
        let units: Vec<u64> =
            cache.pages().map(|(n, _)| n * 4096).filter(|at| *at < sb.data_offset).collect();
        let mut refused = 0;
        for (n, at) in units.iter().enumerate() {
            for kind in 0..4 {
                let rig = rig.on(&cache, &origin);
                let medium = rig.cache_disk.inner().inner();
                let mut unit = vec![0; 4096];
                medium.read_at(&mut unit, *at).unwrap();
                match kind {
                    0 => unit[100 + n % 400] ^= 4,
                    1 => unit.fill(0),
                    2 => Rng::new(*at).fill(&mut unit),
                    // A write that went to the wrong place.
                    _ => medium.read_at(&mut unit, units[(n * 7 + 1) % units.len()]).unwrap(),
                }
                medium.write_at(&unit, *at).unwrap();
                let what = format!("clean {clean_end}, byte {at}, kind {kind}");
                if rig.try_open().is_ok() {
                    continue;
                }
                refused += 1;
                let report = repair(rig.cache_disk.clone())
                    .unwrap_or_else(|e| panic!("{what}: the repair: {e}"));
                assert!(report.needs_repair(), "{what}: {report:?}");
                let open = rig
                    .try_open()
                    .unwrap_or_else(|e| panic!("{what}: after the repair: {e}\n{report:?}"));
                for number in 0..BLOCKS {
                    let got = read(&*open.device, number).unwrap();
                    let right = got == block(number, version(number)) || got == block(number, 0);
                    assert!(right, "{what}: block {number} after the repair");
                }
            }
        }
        println!(
            "clean {clean_end}: {} parts, {refused} of {} refused",
            units.len(),
            units.len() * 4
        );
    }
}
