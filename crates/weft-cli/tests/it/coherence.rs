//! Three mounts of one cell, at work on the same files while server and clients are killed: what each
//! read and write answered is checked for linearizability, file by file.
//!
//! What a killed client had written and not synced may have happened, or happen when it comes back,
//! or not at all; what it had read since then counts for nothing. That is what is promised.

use crate::ringer::Cell;
use crate::run::can_mount;
use checker::{Operation, Register, RegisterKind, Verdict, check};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft::block::Rng;

#[path = "../../../weft-ringer/tests/it/sim/checker.rs"]
#[allow(dead_code, reason = "the simulation uses more of it")]
mod checker;

const FILES: usize = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
struct Call {
    /// Which mount, and which life of it.
    by: (usize, u64),
    file: usize,
    operation: Operation<RegisterKind>,
}

/// One mount, as its callers see it.
struct Mount {
    dir: PathBuf,
    life: AtomicU64,
    /// Nothing is begun while it is away.
    away: AtomicBool,
    /// What came back before this moment is durable.
    synced: AtomicU64,
}

struct Run {
    began: Instant,
    mounts: Vec<Mount>,
    next_value: AtomicU64,
    calls: Mutex<Vec<Call>>,
    /// Lives that were killed, and up to when their work was durable.
    killed: Mutex<Vec<((usize, u64), u64)>>,
    stop: AtomicBool,
}

impl Run {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a short test")
    }

    /// One caller on one mount.
    fn work(&self, mount: usize, mut rng: Rng) {
        let own = &self.mounts[mount];
        // A file that stays open, with the life that it was opened in.
        let mut kept: Option<(u64, usize, File)> = None;
        while !self.stop.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(rng.below(20_000)));
            if own.away.load(Ordering::Acquire) {
                kept = None;
                continue;
            }
            let life = own.life.load(Ordering::Acquire);
            let file = rng.index(FILES);
            let path = own.dir.join(format!("f{file}"));
            let called = self.now();
            let (kind, came_back) = match rng.below(10) {
                0 => {
                    let synced = File::open(&own.dir).and_then(|d| d.sync_all()).is_ok();
                    if synced && own.life.load(Ordering::Acquire) == life {
                        own.synced.fetch_max(called, Ordering::AcqRel);
                    }
                    continue;
                }
                1..=5 => {
                    let handle = match kept.take() {
                        Some((of, f, handle)) if (of, f) == (life, file) => handle,
                        _ => match File::open(&path) {
                            Ok(handle) => handle,
                            Err(_) => continue,
                        },
                    };
                    let mut bytes = [0; 8];
                    if handle.read_exact_at(&mut bytes, 0).is_err() {
                        continue;
                    }
                    kept = (rng.below(2) == 0).then_some((life, file, handle));
                    (RegisterKind::Read(u64::from_le_bytes(bytes)), true)
                }
                _ => {
                    let value = self.next_value.fetch_add(1, Ordering::AcqRel);
                    let Ok(handle) = OpenOptions::new().write(true).open(&path) else { continue };
                    let written = handle.write_all_at(&value.to_le_bytes(), 0);
                    // One that failed may have happened all the same.
                    (RegisterKind::Write(value), written.is_ok())
                }
            };
            let returned = came_back.then(|| self.now());
            let operation = Operation { called, returned, kind };
            let call = Call { by: (mount, life), file, operation };
            self.calls.lock().expect("no panic").push(call);
        }
    }

    /// What counts of the history of a file.
    fn history(&self, file: usize) -> Vec<Operation<RegisterKind>> {
        let killed = self.killed.lock().expect("no panic").clone();
        let calls = self.calls.lock().expect("no panic").clone();
        let counts = |Call { by, operation, .. }: Call| {
            let is_lost = killed.iter().any(|(life, synced)| {
                *life == by && operation.returned.is_none_or(|returned| returned > *synced)
            });
            match operation.kind {
                _ if !is_lost => Some(operation),
                RegisterKind::Write(_) => Some(Operation { returned: None, ..operation }),
                RegisterKind::Read(_) | RegisterKind::Swap(..) => None,
            }
        };
        calls.into_iter().filter(|c| c.file == file).filter_map(counts).collect()
    }

    fn judge(&self, seed: u64) {
        for file in 0..FILES {
            let history = self.history(file);
            let count = |is: fn(&RegisterKind) -> bool| {
                history.iter().filter(|o| o.returned.is_some() && is(&o.kind)).count()
            };
            let reads = count(|k| matches!(k, RegisterKind::Read(_)));
            let writes = count(|k| matches!(k, RegisterKind::Write(_)));
            assert!(reads > 5 && writes > 5, "seed {seed}: {reads} reads, {writes} writes count");
            let verdict = check::<Register>(&0, &history);
            assert_eq!(verdict, Verdict::Linearizable, "seed {seed}, file {file}: {history:#?}");
        }
    }
}

/// Works for a while with this many mounts, and kills the server, or clients too, meanwhile.
fn run(seed: u64, mounts: usize, rounds: u32, kill_clients: bool) {
    let cell = Cell::new();
    let dirs: Vec<PathBuf> = NAMES[..mounts].iter().map(|name| cell.mount(name)).collect();
    for file in 0..FILES {
        fs::write(dirs[0].join(format!("f{file}")), [0; 8]).expect("a file");
    }
    File::open(&dirs[0]).and_then(|d| d.sync_all()).expect("durable");
    let new = |dir| Mount {
        dir,
        life: AtomicU64::new(0),
        away: AtomicBool::new(false),
        synced: AtomicU64::new(0),
    };
    let run = Run {
        began: Instant::now(),
        mounts: dirs.into_iter().map(new).collect(),
        next_value: AtomicU64::new(1),
        calls: Mutex::default(),
        killed: Mutex::default(),
        stop: AtomicBool::new(false),
    };
    let mut rng = Rng::stream(seed, 9);
    std::thread::scope(|scope| {
        for mount in 0..mounts {
            for caller in 0..2 {
                let (run, rng) = (&run, Rng::stream(seed, 10 * mount as u64 + caller));
                scope.spawn(move || run.work(mount, rng));
            }
        }
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(300 + rng.below(500)));
            if kill_clients && rng.below(2) == 0 {
                let victim = rng.index(mounts);
                let own = &run.mounts[victim];
                own.away.store(true, Ordering::Release);
                cell.kill(NAMES[victim]);
                let life = own.life.fetch_add(1, Ordering::AcqRel);
                let synced = own.synced.swap(0, Ordering::AcqRel);
                run.killed.lock().expect("no panic").push(((victim, life), synced));
                // Callers that were within the mount have got their error by now.
                std::thread::sleep(Duration::from_millis(100));
                cell.mount(NAMES[victim]);
                own.away.store(false, Ordering::Release);
            } else {
                cell.kill("server");
                std::thread::sleep(Duration::from_millis(rng.below(300)));
                cell.serve();
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        run.stop.store(true, Ordering::Release);
    });
    run.judge(seed);
}

/// On a busy machine a client may seldom not get back to a server that was started again, for as long
/// as its patience: its write fails then, was seen on its own mount meanwhile, and is undone. That is a
/// fault of the client, not of the test.
#[test]
#[ignore = "fails seldom, for the reason above: make test-long"]
fn what_two_and_three_mounts_answer_is_linearizable_while_the_server_is_killed() {
    if !can_mount() {
        return;
    }
    run(1, 2, 3, false);
    run(2, 3, 3, false);
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn what_mounts_answer_is_linearizable_while_all_are_killed() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(60_u64) / 8 + 1);
    let seeds = std::env::var("WEFT_SIM_SEED").ok().and_then(|s| s.parse().ok());
    let began = Instant::now();
    for seed in seeds.map_or(100..u64::MAX, |seed: u64| seed..seed + 1) {
        if began.elapsed() > time || !can_mount() {
            break;
        }
        run(seed, 2 + (seed % 2) as usize, 6, true);
    }
}
