//! Deterministic simulation of a cell: random work on shared files and directories in random
//! weather. What callers saw is checked for linearizability, name by name and file by file; what is
//! in the store at the end is audited; once the weather is fine, every call comes back soon.
//!
//! A failing seed is named: `WEFT_SIM_SEED=that` runs it alone.

mod audit;
mod checker;
mod history;
mod world;

use std::collections::BTreeSet;

use weft_block::Rng;
use weft_ringer::client::{Call, Outcome};
use weft_ringer::locks::{Lock, LockStyle};
use weft_ringer::op::{Make, Op};
use weft_ringer::wire::RequestBody;
use weft_ringer::{
    Block, BlockHash, Body, Bytes, Name, POLICY_XATTR, Rnode, RnodeId, Text, Version,
};
use weft_vfs::FileKind;

use self::world::{MILLI, SECOND, Weather, World};

/// The longest time that a waiting call takes once all machines and the network are up: the restart
/// of a server, its grace period, and the end of the epochs of clients that do not reconnect.
const SOON: u64 = 25 * SECOND;

/// Where no epoch ends by a fault, a call that takes longer would have ended by the patience of a mount.
const PATIENCE: u64 = 10 * SECOND;

/// The state of a file as callers have seen it.
struct Seen {
    id: RnodeId,
    version: Version,
    value: u64,
}

/// Draws calls.
struct Work {
    names: Vec<Name>,
    dirs: Vec<RnodeId>,
    files: Vec<RnodeId>,
    seen: Vec<Seen>,
    next_value: u64,
    tells: bool,
    /// All callers link, move and remove the same few files.
    crowded: bool,
}

fn block(value: u64) -> Block {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&value.to_le_bytes());
    Block { hash: BlockHash(hash), len_bytes: 8 }
}

/// The value in a file's first block; 0 in an empty file.
fn value_of(body: &Body) -> Option<u64> {
    let Body::File { blocks, .. } = body else { return None };
    let first = blocks.get(&0).map(|b| b.hash.0[..8].try_into().expect("eight bytes"));
    Some(first.map_or(0, u64::from_le_bytes))
}

/// The text of a file with this value.
fn says(value: u64) -> Text {
    Text::of(format!("{value:08}").into_bytes()).expect("a text")
}

/// The text that a reader of a file reports to the server.
fn tell(rnode: &Rnode) -> Option<Call> {
    let Body::File { content, .. } = rnode.body else { return None };
    let value = value_of(&rnode.body).filter(|value| *value > 0)?;
    let body = RequestBody::Text { rnode: rnode.id, content, text: says(value) };
    Some(Call::Ask { body })
}

/// The same, now and then: everything is to be kept as it is, or what was kept is to go.
fn keep(rnode: &Rnode) -> Option<Call> {
    let value = value_of(&rnode.body).filter(|value| value % 4 == 0)?;
    let name = Name::new(format!("s{}", value / 4 % 2).as_bytes()).expect("a name");
    let dir = RnodeId::ROOT;
    let body = match value % 3 {
        0 => RequestBody::RemoveSnapshot { dir, name },
        _ => RequestBody::Snapshot { dir, name, mark: value },
    };
    Some(Call::Ask { body })
}

/// All files are to be found by what they say.
fn want_texts() -> Call {
    let (name, value) = (Bytes(POLICY_XATTR.to_vec()), Bytes(b"text=8".to_vec()));
    let op = Op::SetXattr { id: RnodeId::ROOT, name, value };
    Call::Apply { op, if_version: None }
}

/// Draws an operation of a crowded directory: names are created, removed, moved, and above all linked.
const CROWDED: [u64; 10] = [0, 4, 6, 8, 17, 17, 17, 17, 17, 19];

impl Work {
    fn new() -> Self {
        let names = (0..3).map(|n| Name::new(format!("n{n}").as_bytes()).expect("a name"));
        Self {
            names: names.collect(),
            dirs: vec![RnodeId::ROOT],
            files: Vec::new(),
            seen: Vec::new(),
            next_value: 1,
            tells: false,
            crowded: false,
        }
    }

    /// From now on all link, move and remove the same few files, under many names and without a pause.
    fn crowd(&mut self) {
        self.crowded = true;
        self.names =
            (0..40).map(|n| Name::new(format!("n{n}").as_bytes()).expect("a name")).collect();
    }

    fn place(&self, rng: &mut Rng) -> (RnodeId, Name) {
        (self.dirs[rng.index(self.dirs.len())], self.names[rng.index(self.names.len())].clone())
    }

    fn write(&mut self, id: RnodeId) -> Op {
        self.next_value += 1;
        let blocks = vec![(0, Some(block(self.next_value)))];
        Op::Write { id, blocks, end_bytes: 8, kill_privileges: false }
    }

    /// One call in five is about locks. A caller that holds a lock waits for no other, so that no
    /// caller waits for ever.
    fn draw_lock(&self, rng: &mut Rng, owner: u64, locked: Option<RnodeId>) -> Option<Call> {
        if rng.below(5) > 0 || self.files.is_empty() {
            return None;
        }
        let (first, last) = (0, u64::MAX);
        let style = if rng.below(4) == 0 { LockStyle::Flock } else { LockStyle::Posix };
        let (a, b) = (rng.below(8), rng.below(8));
        let lock = Lock {
            style,
            owner,
            exclusive: rng.below(3) > 0,
            first: if style == LockStyle::Flock { first } else { a.min(b) },
            last: if style == LockStyle::Flock { last } else { a.max(b) },
            pid: 0,
        };
        let id = self.files[rng.index(self.files.len())];
        Some(match (locked, rng.below(4)) {
            (_, 0) => Call::FindLock { id, lock },
            (Some(_), 1) => Call::Lock { id, lock, wait: false },
            (Some(id), 2) => Call::Unlock { id, style, owner, first: 3, last: 5 },
            (Some(_), _) => return None,
            (None, _) => Call::Lock { id, lock, wait: rng.below(4) > 0 },
        })
    }

    fn draw(&mut self, rng: &mut Rng) -> Call {
        let apply = |op| Call::Apply { op, if_version: None };
        let (parent, name) = self.place(rng);
        let any_file = |rng: &mut Rng, files: &[RnodeId]| files[rng.index(files.len())];
        let draw = if self.crowded { CROWDED[rng.index(CROWDED.len())] } else { rng.below(20) };
        match draw {
            0..=3 => Call::Lookup { dir: parent, name },
            4..=5 => {
                let is_dir = rng.below(6) == 0;
                let make =
                    if is_dir { Make::Directory {} } else { Make::File { block_bytes: 1 << 16 } };
                let id = RnodeId::ROOT; // Filled in by the client.
                apply(Op::Create { parent, name, id, make, perm: 0o644, uid: 0, gid: 0 })
            }
            6 => apply(Op::Unlink { parent, name }),
            7 if rng.below(4) == 0 => apply(Op::Rmdir { parent, name }),
            7..=8 => {
                let (new_parent, new_name) = self.place(rng);
                apply(Op::Rename { parent, name, new_parent, new_name, flags: 0 })
            }
            9 => Call::List { dir: parent },
            10 => Call::Sync,
            11 => Call::Evict { id: parent },
            12 if !self.files.is_empty() => Call::Evict { id: any_file(rng, &self.files) },
            13..=15 if !self.files.is_empty() => {
                let id = any_file(rng, &self.files);
                apply(self.write(id))
            }
            16 if !self.seen.is_empty() => {
                let seen = &self.seen[rng.index(self.seen.len())];
                let (id, version) = (seen.id, seen.version);
                Call::Apply { op: self.write(id), if_version: Some((id, version)) }
            }
            17 if !self.files.is_empty() => {
                apply(Op::Link { id: any_file(rng, &self.files), parent, name })
            }
            _ if !self.files.is_empty() => Call::Get { id: any_file(rng, &self.files) },
            _ => Call::Lookup { dir: parent, name },
        }
    }

    /// Learns from what came back.
    fn learn(&mut self, call: &Call, outcome: &Outcome) {
        let mut knows = |id: RnodeId, kind: FileKind| {
            let (list, most) = match kind {
                FileKind::Directory => (&mut self.dirs, 4),
                _ => (&mut self.files, 4),
            };
            if !list.contains(&id) {
                if list.len() >= most {
                    list.remove(1);
                }
                list.push(id);
            }
        };
        match (call, outcome) {
            (Call::Lookup { .. }, Outcome::Found(Some(dirent))) => knows(dirent.id, dirent.kind),
            (Call::Apply { op: Op::Create { make, .. }, .. }, Outcome::Done(Some(id))) => {
                let is_dir = matches!(make, Make::Directory {});
                knows(*id, if is_dir { FileKind::Directory } else { FileKind::Regular });
            }
            (Call::Get { .. }, Outcome::Rnode(rnode)) => {
                if let Some(value) = value_of(&rnode.body) {
                    if self.seen.len() >= 4 {
                        self.seen.remove(0);
                    }
                    self.seen.push(Seen { id: rnode.id, version: rnode.version, value });
                }
            }
            _ => {}
        }
    }
}

/// Counts of a run, to be added over many.
#[derive(Debug, Default)]
struct Summary {
    calls: usize,
    void: usize,
    conflicts: usize,
    epochs_lost: usize,
    messages: u64,
    upstream: u64,
    locks: usize,
    unknown: usize,
    texts: usize,
    snapshots: usize,
    written_open: usize,
    sealed_at_start: usize,
}

/// Gives up everything that a caller has locked.
fn unlock_all(world: &mut World, i: usize, owner: u64, locked: &mut BTreeSet<RnodeId>) {
    for id in std::mem::take(locked) {
        for style in [LockStyle::Posix, LockStyle::Flock] {
            world.call(i, Call::Unlock { id, style, owner, first: 0, last: u64::MAX });
        }
    }
}

/// Runs one world from its seed. Panics if a check fails.
fn run(seed: u64, proxy: bool) -> Summary {
    let mut rng = Rng::stream(seed, 1);
    let weather = match seed % 16 {
        0 => Weather::fine(3),
        8 => Weather::lockstep(3),
        _ => Weather::of(&mut rng),
    };
    let weather = if proxy { weather.with_proxy(&mut Rng::stream(seed, 6)) } else { weather };
    let mut world = World::new(seed, weather);
    let mut work = Work::new();
    // In some worlds callers tell what they have read.
    work.tells = seed % 8 == 7;
    if seed % 16 == 8 {
        work.crowd();
    }
    let mut lacks_policy = work.tells;
    let calls = 40 + rng.index(200);
    // A few callers on each client: when each calls next, and what it waits for.
    let mut callers: Vec<(usize, u64, Option<u64>)> =
        (0..world.weather.clients).flat_map(|i| (0..2).map(move |_| (i, 0, None))).collect();
    // The files that each caller has locked, or may have.
    let mut locked: Vec<BTreeSet<RnodeId>> = vec![BTreeSet::new(); callers.len()];
    let mut locks = 0;
    // The value that belongs to the version of a call.
    let mut expected = Vec::new();
    while world.calls.len() < calls && world.now < 300 * SECOND {
        for (n, caller) in callers.iter_mut().enumerate() {
            let (i, next, waits) = *caller;
            if waits.is_some() || world.now < next || world.calls.len() >= calls {
                continue;
            }
            let owner = n as u64;
            if !locked[n].is_empty() && rng.below(3) == 0 {
                unlock_all(&mut world, i, owner, &mut locked[n]);
                continue;
            }
            let about_locks = work.draw_lock(&mut rng, owner, locked[n].first().copied());
            let call = about_locks.unwrap_or_else(|| work.draw(&mut rng));
            if let Call::Lock { id, .. } = call {
                locked[n].insert(id);
                locks += 1;
            }
            let value = match &call {
                Call::Apply { if_version: Some((id, version)), .. } => {
                    let seen = work.seen.iter().find(|s| s.id == *id && s.version == *version);
                    seen.map(|s| s.value)
                }
                _ => None,
            };
            // Most of what is written goes into blocks that stay open, where that can be.
            let open = match &call {
                Call::Apply { op: Op::Write { id, blocks, .. }, if_version: None }
                    if rng.below(4) > 0 =>
                {
                    let first = world.write_open(i, *id, history::written(blocks));
                    // Others follow at once: they may take its place.
                    for _ in 0..first.map_or(0, |_| rng.below(4)) {
                        work.next_value += 1;
                        world.write_open(i, *id, work.next_value);
                    }
                    first
                }
                _ => None,
            };
            let called = if open.is_some() { open } else { world.call(i, call) };
            if let Some(id) = called {
                caller.2 = Some(id);
                expected.extend(value.map(|v| (id, v)));
            }
        }
        if lacks_policy && world.now > SECOND {
            lacks_policy = world.call(0, want_texts()).is_none();
        }
        settle(&mut world, &mut work, &mut callers, &mut rng);
        let until = world.now + 20 * MILLI;
        while world.step(until) {}
    }

    // Fine weather: everything comes to rest.
    world.calm_down();
    let patience = world.now + SOON;
    let is_at_rest = |world: &World| {
        let back = |c: &world::Called| c.returned.is_some() || c.void;
        world.is_quiet() && world.calls.values().all(back)
    };
    loop {
        settle(&mut world, &mut work, &mut callers, &mut rng);
        for (n, (i, _, waits)) in callers.iter().enumerate() {
            if waits.is_none() {
                unlock_all(&mut world, *i, n as u64, &mut locked[n]);
            }
        }
        // Calls on a machine that crashed never return.
        world.forget_crashed();
        if is_at_rest(&world) {
            break;
        }
        assert!(world.now < patience, "seed {seed}: stuck: {:?}", world.stuck());
        let until = world.now + 100 * MILLI;
        while world.step(until) {}
    }
    world.check_states();
    let (texts, snapshots) = audit::audit(seed, &world.store);
    let unknown = history::check(seed, &world, &expected);
    if !world.weather.ends_epochs() {
        assert_eq!((world.conflicts, world.calls.values().filter(|c| c.void).count()), (0, 0));
        check_patience(&world);
    }
    Summary {
        calls: world.calls.len(),
        void: world.calls.values().filter(|c| c.void).count(),
        conflicts: world.conflicts,
        epochs_lost: world.epochs_lost,
        messages: world.messages,
        upstream: world.upstream,
        locks,
        unknown,
        texts,
        snapshots,
        written_open: world.written_open,
        sealed_at_start: world.sealed_at_start,
    }
}

/// Every call returns before a mount would give it up, except those that wait for a lock.
fn check_patience(world: &World) {
    for called in world.calls.values() {
        let Some((returned, _)) = called.returned else { continue };
        let waits = matches!(called.call, Call::Lock { wait: true, .. });
        assert!(
            waits || returned - called.called < PATIENCE,
            "seed {}: {} us: {called:?}",
            world.seed,
            returned - called.called
        );
    }
}

/// Hands callers what came back.
fn settle(
    world: &mut World,
    work: &mut Work,
    callers: &mut [(usize, u64, Option<u64>)],
    rng: &mut Rng,
) {
    for id in std::mem::take(&mut world.back) {
        let called = world.calls[&id].clone();
        if let Some((_, outcome)) = &called.returned {
            work.learn(&called.call, outcome);
            let read = match (&called.call, outcome) {
                (Call::Get { .. }, Outcome::Rnode(rnode)) if work.tells => Some(rnode),
                _ => None,
            };
            for call in read.into_iter().flat_map(|rnode| [tell(rnode), keep(rnode)]).flatten() {
                world.call(called.client, call);
            }
        }
    }
    for caller in callers {
        let Some(id) = caller.2 else { continue };
        let called = &world.calls[&id];
        if called.returned.is_some() || called.void || world.is_lost(id) {
            let think = [0, 5 * MILLI, 100 * MILLI, 1500 * MILLI][rng.index(4)];
            let think = if work.crowded { 0 } else { think };
            (caller.1, caller.2) = (world.now + rng.below(think + 1), None);
        }
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn run_all(seeds: impl Iterator<Item = u64>, proxy: bool) -> (u64, Summary) {
    let (mut runs, mut sum) = (0, Summary::default());
    for seed in seeds {
        let one = std::panic::catch_unwind(|| run(seed, proxy));
        let Ok(one) = one else {
            panic!("WEFT_SIM_SEED={seed} runs this world alone (proxy: {proxy})")
        };
        runs += 1;
        sum.calls += one.calls;
        sum.void += one.void;
        sum.conflicts += one.conflicts;
        sum.epochs_lost += one.epochs_lost;
        sum.messages += one.messages;
        sum.upstream += one.upstream;
        sum.locks += one.locks;
        sum.unknown += one.unknown;
        sum.texts += one.texts;
        sum.snapshots += one.snapshots;
        sum.written_open += one.written_open;
        sum.sealed_at_start += one.sealed_at_start;
    }
    println!("{runs} worlds: {sum:?}");
    (runs, sum)
}

#[test]
fn worlds_are_linearizable() {
    let only = from_env("WEFT_SIM_SEED");
    let first = only.unwrap_or(0);
    let last = only.map_or(from_env("WEFT_SIM_SEEDS").unwrap_or(300), |seed| seed + 1);
    let (runs, sum) = run_all(first..last, false);
    if only.is_none() && runs >= 300 {
        // The weather did what it is there for, and most of the work was judged.
        assert!(sum.epochs_lost > 300 && sum.conflicts > 30, "{sum:?}");
        assert!(sum.locks > 3000, "{sum:?}");
        assert!(sum.written_open > 1000 && sum.sealed_at_start > 30, "{sum:?}");
        assert!(sum.void * 5 < sum.calls && sum.unknown == 0, "{sum:?}");
        assert!(sum.texts > 0 && sum.snapshots > 0, "{sum:?}");
    }
}

#[test]
fn worlds_behind_a_proxy_are_linearizable() {
    let only = from_env("WEFT_SIM_SEED");
    let first = only.unwrap_or(0);
    let last = only.map_or(from_env("WEFT_SIM_SEEDS").unwrap_or(300), |seed| seed + 1);
    let (runs, sum) = run_all(first..last, true);
    if only.is_none() && runs >= 300 {
        assert!(sum.epochs_lost > 300 && sum.conflicts > 30, "{sum:?}");
        assert!(sum.locks > 3000, "{sum:?}");
        assert!(sum.void * 4 < sum.calls && sum.unknown == 0, "{sum:?}");
    }
}

#[test]
fn a_world_is_the_same_each_time() {
    let summary = |proxy| format!("{:?}", run(5, proxy));
    assert_eq!(summary(false), summary(false));
    assert_eq!(summary(true), summary(true));
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS, from WEFT_SIM_SEED on"]
fn long_worlds() {
    let seconds = from_env("WEFT_LONG_SECONDS").unwrap_or(60) / 16 + 1;
    let time = std::time::Duration::from_secs(seconds);
    let first = from_env("WEFT_SIM_SEED").unwrap_or(1000);
    for proxy in [false, true] {
        let began = std::time::Instant::now();
        run_all((first..).take_while(|_| began.elapsed() < time), proxy);
    }
}
