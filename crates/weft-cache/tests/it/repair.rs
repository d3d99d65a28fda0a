//! Damage to the metadata, then `repair`: each part, each field of the first ones, pairs of parts, and
//! several anywhere, on caches that were closed, cut, used once, and full of intents.
//!
//! Unless both copies of the superblock are gone, a repair works, and the cache opens after it, also
//! if the power goes as soon as the repair has returned. What was provably good, dirty data that the
//! remaining metadata lead to and whose checksum is right, is still there; whatever reads is of
//! its own block, and of no version but the last or, where dirty data was lost, the origin's.

use crate::damage::{BLOCKS, one_session, used, version};
use crate::rig::{BLOCK, Rig, block, read, write};
use crate::torment::number;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, Image, Rng};
use weft_cache::{Error, Mode, dump, repair};

/// A cache with its origin, and what its blocks hold.
struct Sample {
    name: &'static str,
    rig: Rig,
    cache: Image,
    origin: Image,
    /// Units of 4 KiB of metadata that are not zeroes.
    units: Vec<u64>,
    blocks: u64,
    last_version: fn(u64) -> u64,
    /// The origin holds version 0 of all blocks: what is lost shows it.
    written_back: bool,
}

impl Sample {
    fn new(
        name: &'static str,
        rig: Rig,
        blocks: u64,
        last_version: fn(u64) -> u64,
        written_back: bool,
    ) -> Self {
        let cache = rig.cache_disk.inner().inner().snapshot();
        let origin = rig.origin_disk.inner().inner().snapshot();
        let sb = weft_cache::info(&*rig.cache_disk).unwrap();
        let units = cache.pages().map(|(n, _)| n * BLOCK as u64);
        let units = units.filter(|at| *at < sb.data_offset).collect();
        Self { name, rig, cache, origin, units, blocks, last_version, written_back }
    }

    fn all() -> Vec<Self> {
        let mut all: Vec<Self> = [("closed", true), ("cut", false)]
            .into_iter()
            .map(|(name, clean_end)| Self::new(name, used(clean_end), BLOCKS, version, false))
            .collect();
        all.push(Self::new("used once", one_session(), 200, |_| 1, false));
        all.push(Self::new("intents", with_intents(), 64, |n| u64::from(n % 8 == 1), true));
        all
    }
}

/// Clean blocks and durable intents, the power gone.
fn with_intents() -> Rig {
    let rig = Rig::new(Mode::WriteThrough, 4 << 20, 256);
    let open = rig.open();
    for number in 0..64 {
        read(&*open.device, number).unwrap();
    }
    rig.pass_ms(&open, 60_000);
    open.cache.checkpoint_always().unwrap();
    for number in (0..64).filter(|n| n % 8 == 1) {
        write(&*open.device, number, 1).unwrap();
    }
    open.device.flush().unwrap();
    // The last batch of the log cannot be told from one that was being written: let it be of no
    // importance.
    for number in 100..102 {
        read(&*open.device, number).unwrap();
        rig.pass_ms(&open, 2000);
    }
    assert!(open.cache.stats().intents > 0);
    rig.cut(open);
    rig
}

/// What is done to a unit.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Bit(usize),
    Zeroes,
    Sector(usize),
    Garbage,
    /// A write that went to the wrong place: what another unit holds.
    From(u64),
}

/// Units, and what is done to each, in this order.
type Damage = [(u64, Harm)];

fn inflict(rig: &Rig, damage: &Damage) {
    let medium = rig.cache_disk.inner().inner();
    for (at, harm) in damage {
        let mut unit = vec![0; BLOCK];
        medium.read_at(&mut unit, *at).unwrap();
        match *harm {
            Harm::Bit(bit) => unit[bit / 8] ^= 1 << (bit % 8),
            Harm::Zeroes => unit.fill(0),
            Harm::Sector(nr) => unit[nr * 512..(nr + 1) * 512].fill(0),
            Harm::Garbage => Rng::new(*at).fill(&mut unit),
            Harm::From(other) => medium.read_at(&mut unit, other).unwrap(),
        }
        medium.write_at(&unit, *at).unwrap();
    }
}

/// Blocks of which dirty data is provably good: the metadata lead to it, and its checksum is right.
fn provable(rig: &Rig) -> HashSet<u64> {
    let mut good = HashSet::new();
    let mut slots = Vec::new();
    let Ok(dump) = dump(&*rig.cache_disk, |slot| slots.push(slot)) else { return good };
    for slot in slots.iter().filter(|slot| slot.dirty == 1 && slot.zero == 0) {
        let mut data = vec![0; BLOCK];
        rig.cache_disk.read_at(&mut data, dump.superblock.slot_offset(slot.slot)).unwrap();
        if crc32c::crc32c(&data) == slot.crcs[0] {
            good.insert(slot.offset / BLOCK as u64);
        }
    }
    good
}

/// Damages, repairs and opens. Returns whether a repair was needed.
fn judge(sample: &Sample, damage: &Damage) -> bool {
    let what = format!("{}, {damage:x?}", sample.name);
    let rig = sample.rig.on(&sample.cache, &sample.origin);
    inflict(&rig, damage);
    let good = provable(&rig);
    let report = match repair(rig.cache_disk.clone()) {
        Ok(report) => report,
        // Nothing can be proved of a cache without a superblock.
        Err(Error::NotACache(_) | Error::Damaged { .. }) => {
            let hit = |copy: u64| damage.iter().any(|(at, _)| *at == copy);
            assert!(hit(0) && hit(BLOCK as u64), "{what}: a superblock is whole");
            return true;
        }
        Err(e) => panic!("{what}: the repair: {e}"),
    };
    rig.cache_disk.inner().crash().unwrap();
    rig.cache_disk.inner().power_on();
    let open =
        rig.try_open().unwrap_or_else(|e| panic!("{what}: after the repair: {e}\n{report:?}"));
    for number in 0..sample.blocks {
        let last = (sample.last_version)(number);
        let got = read(&*open.device, number)
            .unwrap_or_else(|e| panic!("{what}: block {number} after the repair: {e}"));
        let right = got == block(number, last);
        assert!(
            right || !sample.written_back && got == block(number, 0),
            "{what}: block {number} is stale after the repair"
        );
        let lost = good.contains(&number) && last == 1 && !right;
        assert!(!lost, "{what}: block {number} was good, and is lost\n{report:?}");
    }
    open.cache.write_back_all().unwrap_or_else(|e| panic!("{what}: write-back: {e}"));
    drop(open);
    report.needs_repair()
}

fn harms(units: &[u64], n: usize) -> [Harm; 5] {
    [
        Harm::Bit(800 + n % 3200),
        Harm::Zeroes,
        Harm::Sector(n % 8),
        Harm::Garbage,
        Harm::From(units[(n * 7 + 1) % units.len()]),
    ]
}

#[test]
fn each_part_of_the_metadata() {
    for sample in Sample::all() {
        let mut refused = 0;
        for (n, at) in sample.units.iter().enumerate() {
            for harm in harms(&sample.units, n) {
                refused += u32::from(judge(&sample, &[(*at, harm)]));
            }
        }
        println!("{}: {} parts, {refused} needed a repair", sample.name, sample.units.len());
    }
}

/// One bit in every eight bytes of the superblock, and of the first unit of log and checkpoints.
#[test]
fn each_field_of_superblock_log_and_checkpoint() {
    for sample in Sample::all() {
        let sb = weft_cache::info(&*sample.rig.cache_disk).unwrap();
        for at in [0, BLOCK as u64, sb.log_offset, sb.checkpoints[0], sb.checkpoints[1]] {
            for word in 0..32 {
                judge(&sample, &[(at, Harm::Bit(word * 64 + word % 64))]);
            }
        }
    }
}

#[test]
fn pairs_of_parts() {
    for sample in Sample::all() {
        let mut rng = Rng::new(1);
        // All pairs of what there is once or twice, and some of all others.
        let (few, many) = sample.units.split_at(sample.units.len().min(5));
        for (n, a) in few.iter().enumerate() {
            for b in &few[n + 1..] {
                judge(&sample, &[(*a, Harm::Garbage), (*b, Harm::Zeroes)]);
            }
        }
        for _ in 0..100 {
            let pick = |rng: &mut Rng| *rng.pick(&sample.units).unwrap();
            let (a, b) = (pick(&mut rng), pick(&mut rng));
            judge(&sample, &[(a, Harm::Garbage), (b, Harm::Zeroes)]);
        }
        assert!(!many.is_empty(), "{}: metadata beside the first parts", sample.name);
    }
}

/// One to six parts at random, from seeds.
fn several(samples: &[Sample], seeds: std::ops::Range<u64>) -> u32 {
    let mut refused = 0;
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let sample = &samples[rng.index(samples.len())];
        let mut damage = Vec::new();
        for _ in 0..1 + rng.below(6) {
            let at = *rng.pick(&sample.units).unwrap();
            let harm = harms(&sample.units, rng.index(4000))[rng.index(5)];
            damage.push((at, harm));
        }
        refused += u32::from(judge(sample, &damage));
    }
    refused
}

#[test]
fn several_parts_at_random() {
    let refused = several(&Sample::all(), 0..400);
    assert!(refused > 40, "{refused} needed a repair");
}

#[test]
#[ignore = "a campaign: make test-long"]
fn long_damage() {
    let seconds = number("WEFT_LONG_SECONDS").unwrap_or(600) / 20;
    let until = Instant::now() + Duration::from_secs(seconds);
    let (samples, mut seed, mut refused) = (Sample::all(), 1000, 0);
    while Instant::now() < until {
        refused += several(&samples, seed..seed + 50);
        seed += 50;
    }
    println!("{} damaged caches, {refused} needed a repair, all opened", seed - 1000);
}
