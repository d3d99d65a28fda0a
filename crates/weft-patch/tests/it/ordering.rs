//! The safety rule under random changes.
//!
//! The volume is a row of 4-byte slots, and in the last quarter of each block a row of bits. Change
//! number `v` writes `v` into one or more neighbouring slots of one block, or sets a bit that no
//! change has set yet, and names some earlier changes as befores. Slots only ever grow, so an image
//! obeys the rule if for every change that any of its slots shows (the change itself or a later
//! one of the same slots), every slot of each of its befores shows that before or a later change.
//! This is judged for every image that can arise: each sector of each un-flushed write alone on top
//! of what is durable, and all of them together. (Nothing in a sector of a round depends on another
//! sector of it, so if each alone is legal, every subset is.)
//!
//! Now and then other threads begin to sync while a round is in its flush. What any sync has
//! acknowledged must be durable when it returns.

use crate::device::Inspected;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use weft_block::{Fault, FaultDevice, Request, Rng, Rule};
use weft_patch::{BlockNr, Engine, Options, Owner, PatchId, Policy};
use weft_testing::yield_until;

const SECTOR: usize = 512;
const BLOCK: usize = 2 * SECTOR;
const BLOCKS: usize = 8;
const SLOTS: usize = BLOCK / 4;

enum Place {
    /// First slot of the volume, and how many.
    Slots(usize, usize),
    /// Bit of the volume.
    Bit(usize),
}

struct Made {
    place: Place,
    befores: Vec<usize>,
}

impl Made {
    /// Whether the image shows any (or all) of the change, or a later one in its place.
    fn shown(&self, image: &[u8], number: u32, all: bool) -> bool {
        match self.place {
            Place::Bit(bit) => image[bit / 8] & (1 << (bit % 8)) != 0,
            Place::Slots(first, n) if all => (first..first + n).all(|s| slot(image, s) >= number),
            Place::Slots(first, n) => (first..first + n).any(|s| slot(image, s) >= number),
        }
    }
}

fn slot(image: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(image[index * 4..index * 4 + 4].try_into().unwrap())
}

/// The number of a change is its index in `log` plus one.
fn judge(image: &[u8], log: &[Made], what: &str) {
    for (index, made) in log.iter().enumerate() {
        let number = index as u32 + 1;
        if !made.shown(image, number, false) {
            continue;
        }
        for &before in &made.befores {
            assert!(
                log[before].shown(image, before as u32 + 1, true),
                "{what}: change {number} is there without its before {}",
                before + 1
            );
        }
    }
}

/// Syncs that other threads begin in the next flush.
#[derive(Default)]
struct Others {
    engine: Weak<Engine>,
    /// Each a change with its number, or `None`: everything.
    wanted: Vec<Option<(PatchId, usize)>>,
    begun: Vec<JoinHandle<()>>,
}

impl Others {
    /// Begins the syncs; each waits when this returns. `acknowledged` is called with the number of
    /// the change that a successful one was for.
    fn begin(&mut self, acknowledged: &Arc<dyn Fn(usize) + Send + Sync>) {
        let Some(engine) = self.engine.upgrade() else { return };
        for wanted in self.wanted.drain(..) {
            if wanted.is_some_and(|(id, _)| engine.begin(0).unwrap().is_durable(id)) {
                continue;
            }
            let before = engine.counters().syncs;
            let (other, acknowledged) = (Arc::clone(&engine), Arc::clone(acknowledged));
            self.begun.push(std::thread::spawn(move || match wanted {
                Some((id, number)) => {
                    // The device may fail.
                    if other.sync_owner(Owner::NONE, &[id]).is_ok() {
                        acknowledged(number);
                    }
                }
                None => drop(other.sync()),
            }));
            yield_until("the sync waits", || engine.counters().syncs > before);
        }
    }
}

fn run(seed: u64, options: &Options, faults: bool) -> (weft_patch::Counters, usize) {
    let log: Arc<Mutex<Vec<Made>>> = Arc::default();
    let others: Arc<Mutex<Others>> = Arc::default();
    let (seen, at_flush) = (Arc::clone(&log), Arc::clone(&others));
    let inspected: Arc<Mutex<Weak<Inspected>>> = Arc::default();
    let (device, made) = (Arc::clone(&inspected), Arc::clone(&log));
    let acknowledged: Arc<dyn Fn(usize) + Send + Sync> = Arc::new(move |index| {
        let durable = device.lock().unwrap().upgrade().unwrap().durable();
        let shown = made.lock().unwrap()[index].shown(&durable, index as u32 + 1, true);
        assert!(shown, "seed {seed}: change {} was acknowledged and is not durable", index + 1);
    });
    let check = Arc::clone(&acknowledged);
    let device = Arc::new(Inspected::new(
        BLOCK * BLOCKS,
        Box::new(move |durable, pending| {
            at_flush.lock().unwrap().begin(&acknowledged);
            let log = seen.lock().unwrap();
            let mut all = durable.to_vec();
            for (offset, bytes) in pending {
                let at = *offset as usize;
                for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                    let mut one = durable.to_vec();
                    let at = at + index * SECTOR;
                    one[at..at + sector.len()].copy_from_slice(sector);
                    judge(&one, &log, &format!("seed {seed}, sector {} alone", at / SECTOR));
                }
                all[at..at + bytes.len()].copy_from_slice(bytes);
            }
            judge(&all, &log, &format!("seed {seed}, the whole round"));
        }),
    ));
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&device)));
    let engine =
        Engine::new(faulty.clone(), BLOCK as u32, Options { background: false, ..options.clone() })
            .expect("engine");
    *inspected.lock().unwrap() = Arc::downgrade(&device);
    others.lock().unwrap().engine = Arc::downgrade(&engine);
    let mut rng = Rng::new(seed);
    // Of its own stream, so that the changes of a seed stay what they were.
    let mut company = Rng::stream(seed, 1);
    let mut ids: Vec<PatchId> = Vec::new();
    let mut model = vec![0_u32; SLOTS * BLOCKS];
    let changes = 1 + rng.index(60);
    for _ in 0..changes {
        let mut op = engine.begin(1).unwrap();
        let block = rng.index(BLOCKS);
        // Few slots, so that changes overlap; none across sectors.
        let slots = 1 + rng.index(3);
        let first = rng.index(2) * (SECTOR / 4) + rng.index(6) * 2;
        let mut befores = Vec::new();
        if !ids.is_empty() {
            for _ in 0..rng.index(4) {
                befores.push(rng.index(ids.len()));
            }
        }
        let number = ids.len() as u32 + 1;
        let mut ids_of: Vec<PatchId> = befores.iter().map(|&b| ids[b]).collect();
        if rng.index(8) == 0 {
            ids_of = vec![op.join(&ids_of).unwrap()];
        }
        let nr = BlockNr(block as u64);
        let bit = rng.index(BLOCK * 2);
        let (word, mask) = (BLOCK * 3 / 4 + bit / 32 * 4, 1 << (bit % 32));
        let word_index = block * SLOTS + word / 4;
        let flips = rng.index(2) == 0 && model[word_index] & mask == 0;
        let place = if flips {
            Place::Bit((block * BLOCK + word) * 8 + bit % 32)
        } else {
            Place::Slots(block * SLOTS + first, slots)
        };
        log.lock().unwrap().push(Made { place, befores });
        let id = if flips {
            model[word_index] |= mask;
            op.flip(nr, word, mask, &ids_of).unwrap()
        } else {
            model[block * SLOTS + first..][..slots].fill(number);
            let bytes: Vec<u8> = (0..slots).flat_map(|_| number.to_le_bytes()).collect();
            op.write(nr, first * 4, &bytes, &ids_of).unwrap()
        };
        ids.push(id);
        drop(op);
        let others_wanted = if company.index(6) == 0 { company.index(4) } else { 0 };
        for _ in 0..others_wanted {
            let index = company.index(ids.len());
            let wanted = (company.index(5) > 0).then_some((ids[index], index));
            others.lock().unwrap().wanted.push(wanted);
        }
        match rng.index(30) {
            0 => engine.sync().unwrap(),
            3..=6 if faults => {
                // One write or flush of the sync fails; the next sync tries it again.
                let on = if rng.index(3) == 0 { Request::Flush } else { Request::Write };
                let fault = if rng.index(2) == 0 { Fault::Errno(5) } else { Fault::Short(512) };
                let rule = faulty.add(Rule::nth(on, 1 + rng.index(3) as u64, fault));
                let failed = engine.sync().is_err();
                assert_eq!(failed, faulty.fired(rule) > 0, "seed {seed}: an error was swallowed");
                faulty.clear();
            }
            1 | 2 => {
                let index = rng.index(ids.len());
                engine.sync_owner(Owner::NONE, &[ids[index]]).unwrap();
                assert!(engine.begin(0).unwrap().is_durable(ids[index]), "synced means durable");
                check(index);
            }
            _ => {}
        }
        let begun = std::mem::take(&mut others.lock().unwrap().begun);
        for other in begun {
            other.join().unwrap();
        }
    }
    others.lock().unwrap().wanted.clear();
    engine.sync().unwrap();
    let durable = device.durable();
    for (index, &expected) in model.iter().enumerate() {
        assert_eq!(slot(&durable, index), expected, "seed {seed}: slot {index} after sync");
    }
    let counters = engine.counters();
    assert_eq!(counters.patches_now, 0, "seed {seed}: patches left after sync");
    assert_eq!(counters.dependencies_now, 0, "seed {seed}: dependencies left after sync");
    assert_eq!(counters.undo_bytes_now, 0, "seed {seed}: undo data left after sync");
    assert_eq!(counters.dirty_blocks_now, 0, "seed {seed}");
    (counters, ids.len())
}

fn sweep(name: &str, options: &Options, faults: bool) {
    let first: u64 = std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let many: u64 = std::env::var("WEFT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3000);
    let mut rollbacks = 0;
    for seed in first..first + many {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, options, faults)));
        match result {
            Ok((counters, _)) => rollbacks += counters.rollbacks,
            Err(panic) => {
                eprintln!("replay: WEFT_SEED={seed} WEFT_SEEDS=1 cargo test -p weft-patch {name}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(rollbacks > 0, "the workload must need rollbacks, or it shows nothing");
}

#[test]
fn every_image_obeys_the_rule_with_all_optimisations() {
    sweep("every_image_obeys_the_rule_with_all_optimisations", &Options::default(), false);
}

#[test]
fn every_image_obeys_the_rule_with_none() {
    let options = Options {
        hard_patches: false,
        merge: false,
        ready_lists: false,
        cancel: false,
        ..Options::default()
    };
    sweep("every_image_obeys_the_rule_with_none", &options, false);
}

#[test]
fn every_image_obeys_the_rule_with_hard_patches_only() {
    let options = Options { merge: false, ..Options::default() };
    sweep("every_image_obeys_the_rule_with_hard_patches_only", &options, false);
}

#[test]
fn every_image_obeys_the_rule_with_merging_only() {
    let options = Options { hard_patches: false, ..Options::default() };
    sweep("every_image_obeys_the_rule_with_merging_only", &options, false);
}

#[test]
fn every_image_obeys_the_rule_in_crowded_blocks() {
    let options = Options { indexed_patches: 2, ..Options::default() };
    sweep("every_image_obeys_the_rule_in_crowded_blocks", &options, false);
}

#[test]
fn every_image_obeys_the_rule_on_a_failing_device() {
    sweep("every_image_obeys_the_rule_on_a_failing_device", &Options::default(), true);
}

#[test]
fn the_judge_sees_a_breach() {
    let result = std::panic::catch_unwind(|| {
        for seed in 0..500 {
            run(seed, &Options { policy: Policy::Async, ..Options::default() }, false);
        }
    });
    assert!(result.is_err(), "without dependencies some image must break the rule");
}
