//! Patchgroups under random operations and power cuts, in every policy.
//!
//! The volume is a row of 4-byte slots. Change number `v` writes `v` into some slots of one sector, so
//! slots only ever grow. The model keeps the order that the groups demand as a graph of its own:
//! each *part* of a group, between two barriers, has the parts that come before it. An image that a
//! power cut can leave is right if, for every change that it shows, it shows all changes of all
//! earlier parts (or later ones in their place), and all changes that were synced.
//!
//! There are blocks of metadata; blocks of data that their file has had since ever; and blocks of data
//! that are allocated (a slot of the metadata points to them) and freed again. Of the last, an image
//! shows only what it has a pointer to.

use crate::device::Inspected;
use crate::log::{log_in, make_log};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use weft_block::{BlockDevice, MemoryDevice, Rng};
use weft_patch::jbd2::Features;
use weft_patch::{
    AtomicLimits, BlockNr, Engagement, Engine, Error, JournalMode, Op, Options, Owner, PatchGroup,
    PatchGroupError, PatchId, Policy, recover,
};

pub(crate) const BLOCK: usize = 1024;
const SECTOR: usize = 512;
const SLOTS: usize = BLOCK / 4;
pub(crate) const META: usize = 4;
/// The last block of metadata has the pointers, two slots for each allocation: made, and freed.
const POINTERS: usize = META - 1;
const DATA: usize = 3;
const SPARE: usize = 3;
/// So long that no operation has to wait for room: it may run while the log is being written.
pub(crate) const LOG: usize = 256;
pub(crate) const BLOCKS: usize = META + DATA + SPARE + LOG;

pub(crate) const POLICIES: [Policy; 5] = [
    Policy::Soft,
    Policy::Async,
    Policy::Journal(JournalMode::Metadata),
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
];

/// A part of a group.
#[derive(Default)]
struct Part {
    earlier: BTreeSet<usize>,
    changes: Vec<usize>,
}

#[derive(Debug)]
struct Made {
    first: usize,
    slots: usize,
    /// The allocation of its block, if it is one of those that come and go.
    allocation: Option<usize>,
    /// The parts that it is a change of.
    parts: Vec<usize>,
}

#[derive(Default)]
struct Model {
    parts: Vec<Part>,
    changes: Vec<Made>,
    /// The changes that must be there.
    synced: BTreeSet<usize>,
    atomic: Vec<AtomicGroup>,
}

struct AtomicGroup {
    handle: Weak<PatchGroup>,
    changes: Vec<usize>,
    /// Set at its end, if it was not cut.
    whole: bool,
}

impl AtomicGroup {
    /// Returns true if it was cut, as others had to wait for it.
    fn is_cut(&self) -> bool {
        let open = self.handle.upgrade().is_some_and(|h| h.atomic_blocks_left().is_some());
        !self.whole && !open
    }
}

fn slot(image: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(image[index * 4..index * 4 + 4].try_into().unwrap())
}

fn pointer(allocation: usize) -> usize {
    POINTERS * SLOTS + allocation * 2
}

impl Model {
    /// Returns true if the image has all of a change, or later ones in its place. The pointer to its
    /// block is a change of its own, perhaps of another group.
    fn shows_all(&self, image: &[u8], index: usize) -> bool {
        let made = &self.changes[index];
        made.allocation.is_some_and(|a| slot(image, pointer(a) + 1) > 0)
            || (made.first..made.first + made.slots).all(|s| slot(image, s) as usize > index)
    }

    /// Returns true if the image shows any of a change, or of later ones in its place.
    fn shows_any(&self, image: &[u8], index: usize) -> bool {
        let made = &self.changes[index];
        let is_there = made
            .allocation
            .is_none_or(|a| slot(image, pointer(a)) > 0 && slot(image, pointer(a) + 1) == 0);
        is_there && (made.first..made.first + made.slots).any(|s| slot(image, s) as usize > index)
    }

    fn judge(&self, image: &[u8], what: &str) {
        for &index in &self.synced {
            let made = &self.changes[index];
            let there = self.shows_all(image, index);
            assert!(there, "{what}: change {} was synced: {made:?}", index + 1);
        }
        for group in self.atomic.iter().filter(|group| !group.is_cut()) {
            let shown = |index: &&usize| self.shows_any(image, **index);
            let Some(shown) = group.changes.iter().find(shown) else { continue };
            assert!(group.whole, "{what}: change {} of an open group is there", shown + 1);
            for &other in &group.changes {
                assert!(
                    self.shows_all(image, other),
                    "{what}: change {} of an atomic group is there without change {}",
                    shown + 1,
                    other + 1
                );
            }
        }
        for (index, made) in self.changes.iter().enumerate() {
            if !self.shows_any(image, index) {
                continue;
            }
            for before in made.parts.iter().flat_map(|&part| &self.parts[part].earlier) {
                for &before in &self.parts[*before].changes {
                    assert!(
                        self.shows_all(image, before),
                        "{what}: change {} is there without change {} of an earlier group",
                        index + 1,
                        before + 1
                    );
                }
            }
        }
    }

    /// Judges an image of a volume, which may have a log to recover.
    fn judge_volume(&self, image: Vec<u8>, policy: Policy, what: &str) {
        if !matches!(policy, Policy::Journal(_)) {
            return self.judge(&image, what);
        }
        let device = Arc::new(MemoryDevice::new(image.len() as u64));
        device.write_at(&image, 0).unwrap();
        let log = log_in(device.clone(), BLOCK, BLOCKS - LOG..BLOCKS);
        recover(&*device, BLOCK as u32, log).unwrap();
        let mut recovered = image;
        device.read_at(&mut recovered, 0).unwrap();
        self.judge(&recovered, what);
    }

    /// Judges what a power cut before a flush could leave.
    fn judge_cuts(
        &self,
        seed: u64,
        policy: Policy,
        durable: &[u8],
        pending: &[(u64, Vec<u8>)],
        cuts: usize,
    ) {
        let sectors: Vec<(usize, &[u8])> = pending
            .iter()
            .flat_map(|(offset, bytes)| {
                let numbered = bytes.chunks(SECTOR).enumerate();
                numbered.map(|(i, sector)| (*offset as usize + i * SECTOR, sector))
            })
            .collect();
        let mut rng = Rng::stream(seed, pending.len() as u64);
        let journaled = matches!(policy, Policy::Journal(_));
        // Each sector alone; with a log a few parts, as its recovery takes them together.
        let alone = if journaled { 0 } else { sectors.len() };
        for cut in 0..2 + alone + cuts {
            let mut image = durable.to_vec();
            for (number, (at, sector)) in sectors.iter().enumerate() {
                let is_there = match cut {
                    0 => false,
                    1 => true,
                    n if n < 2 + alone => n - 2 == number,
                    _ => rng.index(2) == 0,
                };
                if is_there {
                    image[*at..*at + sector.len()].copy_from_slice(sector);
                }
            }
            self.judge_volume(image, policy, &format!("seed {seed}, {policy:?}, cut {cut}"));
        }
    }
}

struct Group {
    handle: Arc<PatchGroup>,
    /// Its place among the model's atomic groups.
    atomic: Option<usize>,
    engagement: Option<Engagement>,
    part: usize,
    is_linear: bool,
    is_new: bool,
    is_followed: bool,
}

impl Group {
    /// Notes in the model that the group ends with the next call, if it is atomic, and whether it is
    /// whole.
    fn ends(&self, model: &mut Model) -> Result<(), PatchGroupError> {
        let Some(atomic) = self.atomic else { return Ok(()) };
        let atomic = &mut model.atomic[atomic];
        atomic.whole |= self.handle.atomic_blocks_left().is_some();
        if atomic.whole { Ok(()) } else { Err(PatchGroupError::Cut) }
    }

    /// Orders later changes after the present ones.
    fn divide(&mut self, model: &mut Model) {
        let mut earlier = model.parts[self.part].earlier.clone();
        earlier.insert(self.part);
        model.parts.push(Part { earlier, changes: Vec::new() });
        self.part = model.parts.len() - 1;
    }
}

/// A block that comes and goes.
#[derive(Clone, Copy)]
struct Spare {
    nr: usize,
    /// Its present allocation.
    allocation: Option<usize>,
    /// The patch that must be durable before the block is allocated again.
    freed: PatchId,
}

struct Workload {
    rng: Rng,
    groups: Vec<Group>,
    spares: Vec<Spare>,
    allocations: usize,
    /// A change of metadata, and the slots that it is in, which a later one may replace in its patch.
    last: Option<(PatchId, (usize, usize))>,
}

impl Workload {
    fn new(seed: u64) -> Self {
        let spare = |i| Spare { nr: META + DATA + i, allocation: None, freed: PatchId::DURABLE };
        let spares = (0..SPARE).map(spare).collect();
        Self { rng: Rng::new(seed), groups: Vec::new(), spares, allocations: 0, last: None }
    }

    /// Makes, orders, engages or ends a group.
    fn change_groups(&mut self, engine: &Engine, model: &mut Model) {
        let rng = &mut self.rng;
        if self.groups.len() < 2 || rng.index(3) == 0 {
            model.parts.push(Part::default());
            let (groups, kind) = (engine.patchgroups(), rng.index(4));
            // It is cut as soon as somebody waits.
            let limits = AtomicLimits { open_max: Duration::ZERO, ..AtomicLimits::default() };
            let atomic = (kind > 1).then(|| groups.create_atomic(limits).ok()).flatten();
            let is_atomic = atomic.is_some();
            let linear = || if kind == 0 { groups.create_linear() } else { groups.create() };
            let handle = Arc::new(atomic.unwrap_or_else(linear));
            if is_atomic {
                let handle = Arc::downgrade(&handle);
                model.atomic.push(AtomicGroup { handle, changes: Vec::new(), whole: false });
            }
            self.groups.push(Group {
                handle,
                atomic: is_atomic.then(|| model.atomic.len() - 1),
                engagement: None,
                part: model.parts.len() - 1,
                is_linear: kind == 0,
                is_new: true,
                is_followed: false,
            });
            return;
        }
        let (a, b) = (rng.index(self.groups.len()), rng.index(self.groups.len()));
        match rng.index(8) {
            0..=2 => {
                let expected = if a == b {
                    Err(PatchGroupError::Itself)
                } else if !self.groups[a].is_new {
                    Err(PatchGroupError::Released)
                } else if self.groups[b].engagement.is_some() {
                    Err(PatchGroupError::Engaged)
                } else {
                    self.groups[b].ends(model)
                };
                let depends = self.groups[a].handle.depend(&self.groups[b].handle);
                assert_eq!(depends, expected);
                if expected == Err(PatchGroupError::Cut) {
                    (self.groups[b].is_new, self.groups[b].is_followed) = (false, true);
                }
                if expected.is_ok() {
                    let before = self.groups[b].part;
                    let mut earlier = model.parts[before].earlier.clone();
                    earlier.insert(before);
                    model.parts[self.groups[a].part].earlier.extend(earlier);
                    self.groups[b].is_followed = true;
                    self.groups[b].is_new = false;
                }
            }
            3 => {
                self.groups[a].handle.barrier();
                self.groups[a].divide(model);
            }
            4 | 5 => match self.groups[a].handle.engage() {
                Ok(engagement) => {
                    assert!(!self.groups[a].is_followed);
                    self.groups[a].engagement = Some(engagement);
                    self.groups[a].is_new = false;
                }
                Err(e) => assert!(self.groups[a].is_followed, "{e}"),
            },
            6 => {
                let group = &mut self.groups[a];
                let engaged = group.atomic.is_some() && group.engagement.is_some();
                let expected =
                    if engaged { Err(PatchGroupError::Engaged) } else { group.ends(model) };
                assert_eq!(group.handle.commit(), expected);
                if group.atomic.is_some() && !engaged {
                    (group.is_new, group.is_followed) = (false, true);
                }
            }
            _ if self.groups[a].engagement.is_some() => self.groups[a].engagement = None,
            // What a group has ordered stays ordered.
            _ => {
                let group = self.groups.swap_remove(a);
                let _ = group.ends(model);
            }
        }
    }

    fn make(
        op: &mut Op<'_>,
        model: &mut Model,
        parts: &[usize],
        (first, slots): (usize, usize),
        kind: (Option<usize>, bool),
        befores: &[PatchId],
    ) -> PatchId {
        let number = model.changes.len() as u32 + 1;
        let bytes: Vec<u8> = (0..slots).flat_map(|_| number.to_le_bytes()).collect();
        let (nr, offset) = (first / SLOTS, first % SLOTS * 4);
        let (allocation, fresh) = kind;
        for &part in parts {
            model.parts[part].changes.push(model.changes.len());
        }
        model.changes.push(Made { first, slots, allocation, parts: parts.to_vec() });
        if nr < META {
            return op.write(BlockNr(nr as u64), offset, &bytes, befores).unwrap();
        }
        let owner = Owner(nr as u64);
        op.write_data(BlockNr(nr as u64), owner, offset, &bytes, fresh, befores).unwrap()
    }

    /// Changes the time of a file, as file systems do with each write of its data.
    fn note_time(op: &mut Op<'_>, model: &mut Model, parts: &[usize], nr: usize, data: PatchId) {
        Self::make(op, model, parts, (SLOTS - 1 - nr, 1), (None, false), &[data]);
    }

    /// Runs an operation of a few changes, in some of the groups; if it runs while the device is in a
    /// call, of blocks that are in memory.
    fn operation(&mut self, engine: &Engine, model: &Mutex<Model>, may_read: bool) {
        let rng = &mut self.rng;
        let mut parts = Vec::new();
        let mut entered = Vec::new();
        let is_in: Vec<bool> = self.groups.iter().map(|_| rng.index(2) == 0).collect();
        for (group, is_in) in self.groups.iter().zip(&is_in) {
            if let (Some(engagement), true) = (&group.engagement, is_in) {
                parts.push(group.part);
                entered.push(engagement.enter());
            }
        }
        let mut op = match engine.begin(12) {
            Ok(op) => op,
            Err(Error::AtomicTooLarge { .. } | Error::PatchGroup(PatchGroupError::Cut)) => return,
            Err(e) => panic!("{e}"),
        };
        let model = &mut *model.lock().unwrap();
        let first = model.changes.len();
        for _ in 0..1 + rng.index(3) {
            let slots = 1 + rng.index(3);
            let within = rng.index(2) * (SECTOR / 4) + rng.index(4) * 2;
            let nr = rng.index(META - 1 + DATA + SPARE);
            if nr < META - 1 + DATA {
                let nr = if nr < POINTERS { nr } else { nr + 1 };
                // Now and then a whole block, which needs no content of the disk.
                let whole = nr >= META && rng.index(5) == 0;
                let place = if whole { (0, SLOTS) } else { (within, slots) };
                let place = (nr * SLOTS + place.0, place.1);
                if !may_read && op.cached(BlockNr(nr as u64)).is_none() {
                    continue;
                }
                if let Some((change, place)) = self.last.take()
                    && rng.index(2) == 0
                {
                    let number = model.changes.len() as u32 + 1;
                    let bytes = number.to_le_bytes().repeat(place.1);
                    let (nr, offset) = (BlockNr((place.0 / SLOTS) as u64), place.0 % SLOTS * 4);
                    if op.take_back(nr, offset, &bytes, change).unwrap() {
                        for &part in &parts {
                            model.parts[part].changes.push(model.changes.len());
                        }
                        let (first, slots) = place;
                        let parts = parts.clone();
                        model.changes.push(Made { first, slots, allocation: None, parts });
                    }
                }
                let made = Self::make(&mut op, model, &parts, place, (None, false), &[]);
                if nr < META {
                    self.last = Some((made, place));
                }
                if nr >= META {
                    Self::note_time(&mut op, model, &parts, nr, made);
                }
                continue;
            }
            let at = nr - (META - 1 + DATA);
            let spare = self.spares[at];
            let place = (spare.nr * SLOTS + within, slots);
            match spare.allocation {
                None if !op.is_durable(spare.freed) || self.allocations * 2 + 2 > SLOTS => {}
                None => {
                    let a = self.allocations;
                    self.allocations += 1;
                    let kind = (Some(a), true);
                    let data = Self::make(&mut op, model, &parts, place, kind, &[]);
                    let to = (pointer(a), 1);
                    Self::make(&mut op, model, &parts, to, (None, false), &[data]);
                    self.spares[at].allocation = Some(a);
                }
                Some(a) if rng.index(3) == 0 => {
                    let to = (pointer(a) + 1, 1);
                    let made = Self::make(&mut op, model, &parts, to, (None, false), &[]);
                    op.free(BlockNr(spare.nr as u64), made);
                    self.spares[at].freed = op.join(&[made]).unwrap();
                    self.spares[at].allocation = None;
                }
                Some(_) if !may_read && op.cached(BlockNr(spare.nr as u64)).is_none() => {}
                Some(a) => {
                    let made = Self::make(&mut op, model, &parts, place, (Some(a), false), &[]);
                    Self::note_time(&mut op, model, &parts, spare.nr, made);
                }
            }
        }
        drop(op);
        drop(entered);
        for (group, is_in) in self.groups.iter_mut().zip(is_in) {
            if group.engagement.is_some() && is_in {
                if let Some(atomic) = group.atomic {
                    model.atomic[atomic].changes.extend(first..model.changes.len());
                }
                if group.is_linear {
                    group.divide(model);
                }
            }
        }
    }

    /// Syncs a group. Its changes until now are durable, and those of earlier parts.
    fn sync_group(&mut self, model: &Mutex<Model>) {
        let Some(group) = (!self.groups.is_empty()).then(|| self.rng.index(self.groups.len()))
        else {
            return;
        };
        let group = &mut self.groups[group];
        if group.atomic.is_some() {
            group.engagement = None;
            (group.is_new, group.is_followed) = (false, true);
        }
        let whole = group.ends(&mut model.lock().unwrap());
        if whole.is_err() {
            let cut = group.handle.sync().unwrap_err();
            assert!(matches!(cut, Error::PatchGroup(PatchGroupError::Cut)), "{cut}");
            return;
        }
        let promised: Vec<usize> = {
            let model = model.lock().unwrap();
            let part = &model.parts[group.part];
            let earlier = part.earlier.iter().flat_map(|&p| &model.parts[p].changes);
            earlier.chain(&part.changes).copied().collect()
        };
        group.handle.sync().unwrap();
        assert!(group.handle.is_durable());
        model.lock().unwrap().synced.extend(promised);
    }
}

fn run(seed: u64, policy: Policy, cuts: usize) -> u64 {
    let model: Arc<Mutex<Model>> = Arc::default();
    let workload = Arc::new(Mutex::new(Workload::new(seed)));
    let opened: Arc<Mutex<Weak<Engine>>> = Arc::default();
    // Whether nothing else runs while blocks are written.
    let alone = Arc::new(AtomicBool::new(false));
    let hook = {
        let (model, workload) = (Arc::clone(&model), Arc::clone(&workload));
        let (opened, alone) = (Arc::clone(&opened), Arc::clone(&alone));
        let during = Mutex::new(Rng::new(!seed));
        move |durable: &[u8], pending: &[(u64, Vec<u8>)]| {
            let Some(engine) = opened.lock().unwrap().upgrade() else { return };
            model.lock().unwrap().judge_cuts(seed, policy, durable, pending, cuts);
            // Others go on while a round or a transaction is written.
            if !alone.load(Ordering::Relaxed)
                && during.lock().unwrap().index(3) == 0
                && let Ok(mut workload) = workload.try_lock()
                && !workload.groups.iter().any(|g| g.handle.atomic_blocks_left().is_some())
            {
                workload.operation(&engine, &model, false);
            }
        }
    };
    let device = Arc::new(Inspected::new(BLOCK * BLOCKS, Box::new(hook)));
    let options = Options { policy, background: false, ..Options::default() };
    let engine = if matches!(policy, Policy::Journal(_)) {
        let log = make_log(device.clone(), BLOCK, BLOCKS - LOG..BLOCKS, Features::revoke());
        Engine::with_journal(device.clone(), BLOCK as u32, options, log).unwrap()
    } else {
        Engine::new(device.clone(), BLOCK as u32, options).unwrap()
    };
    // An operation that runs while blocks are written must not wait for a read.
    for nr in 0..(META + DATA) as u64 {
        engine.begin(0).unwrap().read(BlockNr(nr)).unwrap();
    }
    *opened.lock().unwrap() = Arc::downgrade(&engine);
    let mut rng = Rng::stream(seed, 1);
    let mut emptied = 0;
    for _ in 0..10 + rng.index(60) {
        let mut working = workload.lock().unwrap();
        for _ in 0..rng.index(3) {
            working.change_groups(&engine, &mut model.lock().unwrap());
        }
        working.operation(&engine, &model, true);
        drop(working);
        match rng.index(16) {
            0 => {
                let before = model.lock().unwrap().changes.len();
                engine.sync().unwrap();
                model.lock().unwrap().synced.extend(0..before);
            }
            1 | 2 => {
                let groups = std::mem::take(&mut workload.lock().unwrap().groups);
                // Those that run meanwhile are in no group.
                let mut other = Workload { groups, ..Workload::new(rng.next_u64()) };
                other.sync_group(&model);
                workload.lock().unwrap().groups = other.groups;
            }
            3 => {
                let nr = META + rng.index(DATA);
                let promised: Vec<usize> = {
                    let model = model.lock().unwrap();
                    let of_file = |(_, made): &(usize, &Made)| made.first / SLOTS == nr;
                    model.changes.iter().enumerate().filter(of_file).map(|(i, _)| i).collect()
                };
                engine.sync_owner(Owner(nr as u64), &[]).unwrap();
                model.lock().unwrap().synced.extend(promised);
            }
            // Write-back in place, as age would cause it.
            4 | 5 => engine.write_back().unwrap(),
            _ => {}
        }
        if engine.counters().transactions - emptied > 4 {
            alone.store(true, Ordering::Relaxed);
            engine.sync().unwrap();
            engine.write_back().unwrap();
            emptied = engine.counters().transactions;
            alone.store(false, Ordering::Relaxed);
        }
    }
    for group in workload.lock().unwrap().groups.drain(..) {
        let _ = group.ends(&mut model.lock().unwrap());
    }
    alone.store(true, Ordering::Relaxed);
    engine.shutdown().unwrap();
    let mut model = model.lock().unwrap();
    model.synced = (0..model.changes.len()).collect();
    model.judge(&device.durable(), &format!("seed {seed}, {policy:?}, after shutdown"));
    let counters = engine.counters();
    assert_eq!((counters.dirty_blocks_now, counters.dependencies_now), (0, 0), "seed {seed}");
    counters.rollbacks
}

fn sweep(name: &str, policy: Policy, many: u64) {
    let number =
        |name, other| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(other);
    let (first, many) = (number("WEFT_SEED", 0), number("WEFT_SEEDS", many));
    let mut rollbacks = 0;
    for seed in first..first + many {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, policy, 4)));
        match result {
            Ok(found) => rollbacks += found,
            Err(panic) => {
                eprintln!("replay: WEFT_SEED={seed} WEFT_SEEDS=1 cargo test -p weft-patch {name}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let expected = policy != Policy::Journal(JournalMode::Full);
    assert!(many < 100 || !expected || rollbacks > 0, "the workload must need rollbacks");
}

#[test]
fn groups_keep_their_order_in_soft_updates() {
    sweep("groups_keep_their_order_in_soft_updates", Policy::Soft, 1500);
}

#[test]
fn groups_keep_their_order_without_any_other() {
    sweep("groups_keep_their_order_without_any_other", Policy::Async, 1500);
}

#[test]
fn groups_keep_their_order_in_a_journal_of_metadata() {
    let policy = Policy::Journal(JournalMode::Metadata);
    sweep("groups_keep_their_order_in_a_journal_of_metadata", policy, 800);
}

#[test]
fn groups_keep_their_order_in_an_ordered_journal() {
    let policy = Policy::Journal(JournalMode::Ordered);
    sweep("groups_keep_their_order_in_an_ordered_journal", policy, 800);
}

#[test]
fn groups_keep_their_order_in_a_full_journal() {
    let policy = Policy::Journal(JournalMode::Full);
    sweep("groups_keep_their_order_in_a_full_journal", policy, 800);
}
