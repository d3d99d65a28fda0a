//! Silent damage: bits that changed on the cache device by themselves.
//!
//! A clean block heals from the origin. A dirty block is an error that names the range. Metadata
//! that is damaged is refused if dirty data may hang on it; it is never guessed.

use crate::rig::{BLOCK, Open, Rig, block, read, write};
use weft_block::{BlockDevice, Rng};
use weft_cache::{Error, Mode, check, repair};

/// Blocks of the origin.
const BLOCKS: u64 = 96;

/// Dirty ones are those with an odd number; they hold version 1.
fn version(number: u64) -> u64 {
    number % 2
}

/// A cache with clean and dirty blocks, used in three lives, closed or cut.
fn used(clean_end: bool) -> Rig {
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
