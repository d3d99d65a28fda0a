//! Many threads on overlapping blocks: no answer goes back in time, none mixes two blocks, and
//! what a flush acknowledged survives a cut at every event of the race.
//!
//! Each block has one writer, which numbers its versions. A sector says which block, sector and
//! version it is of. A reader takes, for each sector, the newest version that anybody has seen or
//! that was acknowledged *before* it reads, and the newest that was started *after*: what it gets
//! lies between. Which thread comes first is the scheduler's business and differs from run to run;
//! the promises do not.

use crate::torment::{Discard, Disk, Scope, World, cut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use weft_block::{BlockDevice, Rng, mix};
use weft_cache::{AttachOptions, Cache, CreateOptions, Mode, OpenOptions, OriginId};

const SECTOR: u64 = 512;
const WRITERS: usize = 3;
const READERS: usize = 3;

/// The shape of one race.
#[derive(Clone, Copy)]
struct Race {
    mode: Mode,
    block_bytes: u32,
    /// Blocks of the origin; the cache holds about half of them.
    blocks: u64,
    /// Operations of each thread.
    ops: u64,
    seed: u64,
}

fn stamp(block: u64, sector: u64, version: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    if version > 0 {
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            let value = match i {
                0 => version,
                _ => mix(version << 40 ^ block << 20 ^ sector << 8 ^ i as u64),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// The version of a sector, if it is one of this place.
fn version_of(block: u64, sector: u64, bytes: &[u8]) -> Result<u64, String> {
    let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    if version < 1 << 24 && bytes == stamp(block, sector, version) {
        return Ok(version);
    }
    Err(format!("block {block} sector {sector} is of no version: {:02x?}...", &bytes[..16]))
}

/// What is known of the versions, shared by all threads.
struct Known {
    /// By block: the newest version whose write was started, and the newest acknowledged.
    started: Vec<AtomicU64>,
    acked: Vec<AtomicU64>,
    /// By sector: the newest version that was read.
    seen: Vec<AtomicU64>,
    sectors: u64,
}

impl Known {
    fn new(race: &Race) -> Self {
        let zeroes = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
        let sectors = u64::from(race.block_bytes) / SECTOR;
        Self {
            started: zeroes(race.blocks),
            acked: zeroes(race.blocks),
            seen: zeroes(race.blocks * sectors),
            sectors,
        }
    }

    /// Reads whole blocks and judges every sector.
    fn read(&self, device: &dyn BlockDevice, first: u64, count: u64) -> Result<(), String> {
        let block_bytes = self.sectors * SECTOR;
        let sectors = first * self.sectors..(first + count) * self.sectors;
        let floor = |s: u64| {
            let acked = self.acked[(s / self.sectors) as usize].load(SeqCst);
            self.seen[s as usize].load(SeqCst).max(acked)
        };
        let floors: Vec<u64> = sectors.clone().map(floor).collect();
        let mut got = vec![0; (count * block_bytes) as usize];
        device.read_at(&mut got, first * block_bytes).map_err(|e| e.to_string())?;
        for ((s, floor), bytes) in sectors.zip(floors).zip(got.chunks(SECTOR as usize)) {
            let (block, sector) = (s / self.sectors, s % self.sectors);
            let version = version_of(block, sector, bytes)?;
            let ceiling = self.started[block as usize].load(SeqCst);
            if !(floor..=ceiling).contains(&version) {
                return Err(format!(
                    "block {block} sector {sector} is of version {version}; it had version \
                     {floor} before the read started, and at its end version {ceiling}"
                ));
            }
            self.seen[s as usize].fetch_max(version, SeqCst);
        }
        Ok(())
    }
}

/// Something that happened at an event of the disks.
enum Note {
    Started {
        event: usize,
        block: u64,
        version: u64,
    },
    /// All blocks of a writer up to these versions are durable.
    Flushed {
        event: usize,
        versions: Vec<(u64, u64)>,
    },
}

fn open(race: &Race, world: &Arc<World>) -> (Arc<Cache>, Arc<dyn BlockDevice>) {
    let options = OpenOptions {
        commit_interval_ms: 5,
        max_dirty_age_ms: 20,
        intent_idle_ms: 10,
        commit_records: 16,
        ..OpenOptions::default()
    };
    let cache = Cache::open(world.device(0), options).expect("opens");
    let id = OriginId {
        len_bytes: world.device(1).geometry().len_bytes,
        label: "race".into(),
        ..OriginId::default()
    };
    let attach = AttachOptions { mode: race.mode, ..AttachOptions::default() };
    let device = cache.attach(world.device(1), &id, &attach).expect("attaches");
    (cache, device)
}

fn writer(
    race: &Race,
    world: &World,
    device: &dyn BlockDevice,
    known: &Known,
    number: usize,
) -> Result<Vec<Note>, String> {
    let mut rng = Rng::stream(race.seed, number as u64);
    let mut notes = Vec::new();
    let own: Vec<u64> = (0..race.blocks).filter(|b| *b as usize % WRITERS == number).collect();
    for _ in 0..race.ops {
        if rng.chance(1, 12) {
            let acked = |b: &u64| (*b, known.acked[*b as usize].load(SeqCst));
            let versions = own.iter().map(acked).collect();
            device.flush().map_err(|e| e.to_string())?;
            notes.push(Note::Flushed { event: world.events(), versions });
            continue;
        }
        // A few blocks get most of the writes, so that they are under way everywhere at once.
        let block = own[if rng.chance(2, 3) { rng.index(4) } else { rng.index(own.len()) }];
        let version = known.started[block as usize].load(SeqCst) + 1;
        notes.push(Note::Started { event: world.events(), block, version });
        known.started[block as usize].store(version, SeqCst);
        let data: Vec<u8> = (0..known.sectors).flat_map(|s| stamp(block, s, version)).collect();
        let at = block * u64::from(race.block_bytes);
        // In one piece or in two: both are whole when the version is acknowledged.
        let half = if rng.chance(1, 4) { data.len() / 2 } else { data.len() };
        device.write_at(&data[..half], at).map_err(|e| e.to_string())?;
        device.write_at(&data[half..], at + half as u64).map_err(|e| e.to_string())?;
        known.acked[block as usize].store(version, SeqCst);
    }
    Ok(notes)
}

fn reader(
    race: &Race,
    device: &dyn BlockDevice,
    known: &Known,
    number: usize,
    writing: &AtomicUsize,
) -> Result<(), String> {
    let mut rng = Rng::stream(race.seed, 100 + number as u64);
    let mut done = 0;
    while done < race.ops || writing.load(SeqCst) > 0 {
        let first =
            if rng.chance(1, 2) { rng.below(WRITERS as u64 * 4) } else { rng.below(race.blocks) };
        let count = (1 + rng.below(6)).min(race.blocks - first);
        known.read(device, first, count)?;
        done += 1;
    }
    Ok(())
}

fn run(race: Race) {
    let len = race.blocks * u64::from(race.block_bytes);
    let cache_bytes = len / 2 + (2 << 20);
    let mut disks = vec![Disk::new(cache_bytes, Discard::Zeroes), Disk::new(len, Discard::Zeroes)];
    let world = World::new(disks.clone());
    let create = CreateOptions { block_bytes: race.block_bytes, ..CreateOptions::default() };
    Cache::create(&world.device(0), &create).expect("a cache is made");
    world.device(0).flush().expect("flushes");
    disks = world.at(world.events());

    let world = World::new(disks);
    let (cache, device) = open(&race, &world);
    let known = Known::new(&race);
    let writing = AtomicUsize::new(WRITERS);
    let (notes, failures) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (race, world, device, known, writing) =
                    (&race, &world, &*device, &known, &writing);
                scope.spawn(move || {
                    let notes = writer(race, world, device, known, n);
                    writing.fetch_sub(1, SeqCst);
                    notes
                })
            })
            .collect();
        let readers: Vec<_> = (0..READERS)
            .map(|n| {
                let (race, device, known, writing) = (&race, &*device, &known, &writing);
                scope.spawn(move || reader(race, device, known, n, writing))
            })
            .collect();
        let mut notes = Vec::new();
        let mut failures = Vec::new();
        for writer in writers {
            match writer.join().expect("no panic") {
                Ok(more) => notes.extend(more),
                Err(e) => failures.push(format!("a writer: {e}")),
            }
        }
        for reader in readers {
            failures
                .extend(reader.join().expect("no panic").err().map(|e| format!("a reader: {e}")));
        }
        (notes, failures)
    });
    assert!(failures.is_empty(), "seed {}: {failures:#?}", race.seed);
    known.read(&*device, 0, race.blocks).expect("at the end");
    let stats = cache.stats();
    assert!(stats.hits > 0 && stats.misses > 0, "the race is one: {stats:?}");
    let events = world.events();
    drop(device);
    cache.close().expect("closes");

    // The clean end.
    let after = World::new(world.at(world.events()));
    let (cache, device) = open(&race, &after);
    known.read(&*device, 0, race.blocks).expect("after a restart");
    drop(device);
    cache.close().expect("closes");

    // And every kind of bad one.
    for i in 0..60 {
        let at = (events * i) / 60;
        let scope = Scope::ALL[i % 3];
        let seed = mix(race.seed ^ at as u64);
        judge(&race, &world, &notes, at, scope, seed)
            .unwrap_or_else(|e| panic!("seed {} cut {at}/{}/{seed}: {e}", race.seed, scope.name()));
    }
}

/// Opens what a cut left and holds every sector against the notes.
fn judge(
    race: &Race,
    world: &Arc<World>,
    notes: &[Note],
    at: usize,
    scope: Scope,
    seed: u64,
) -> Result<(), String> {
    let mut range = vec![(0, 0); race.blocks as usize];
    for note in notes {
        match note {
            Note::Started { event, block, version } if *event <= at => {
                let ceiling = &mut range[*block as usize].1;
                *ceiling = (*ceiling).max(*version);
            }
            Note::Flushed { event, versions } if *event <= at => {
                for (block, version) in versions {
                    let floor = &mut range[*block as usize].0;
                    *floor = (*floor).max(*version);
                }
            }
            _ => {}
        }
    }
    let mut disks = world.at(at);
    cut(&mut disks, scope, seed);
    let world = World::new(disks);
    let (cache, device) = open(race, &world);
    let block_bytes = u64::from(race.block_bytes);
    let mut first = vec![0; (race.blocks * block_bytes) as usize];
    device.read_at(&mut first, 0).map_err(|e| e.to_string())?;
    for (s, bytes) in first.chunks(SECTOR as usize).enumerate() {
        let (block, sector) = (s as u64 * SECTOR / block_bytes, s as u64 % (block_bytes / SECTOR));
        let version = version_of(block, sector, bytes)?;
        let (floor, ceiling) = range[block as usize];
        if !(floor..=ceiling).contains(&version) {
            return Err(format!(
                "block {block} sector {sector} is of version {version}; {floor} was flushed, \
                 {ceiling} was started"
            ));
        }
    }
    let mut second = vec![0; first.len()];
    device.read_at(&mut second, 0).map_err(|e| e.to_string())?;
    if first != second {
        return Err("a second read gives something else".into());
    }
    drop(device);
    cache.close().map_err(|e| e.to_string())
}

fn race(mode: Mode, seed: u64) -> Race {
    Race { mode, block_bytes: 4096, blocks: 96, ops: 400, seed }
}

#[test]
fn write_through_holds_against_races() {
    run(race(Mode::WriteThrough, 1));
}

#[test]
fn write_back_holds_against_races() {
    run(race(Mode::WriteBack, 2));
}

#[test]
fn write_around_holds_against_races() {
    run(race(Mode::WriteAround, 3));
}

#[test]
fn write_invalidate_holds_against_races() {
    run(race(Mode::WriteInvalidate, 4));
}

#[test]
fn blocks_of_sixteen_sub_blocks_hold_against_races() {
    run(Race { block_bytes: 65536, blocks: 24, ops: 200, ..race(Mode::WriteBack, 5) });
}
