//! Three mounts of one cell, at work on the same files while server and clients are killed, and cut off
//! from each other: what each read and write answered is checked for linearizability, file by file.
//!
//! What a client that was killed, or cut off for longer than its epoch, had written and not synced may
//! have happened, or happen when it comes back, or not at all; what it had read since then counts for
//! nothing. That is what is promised.

use crate::proxy::Proxy;
use crate::ringer::{Cell, EPOCH, mount};
use crate::run::can_mount;
use checker::{Operation, Register, RegisterKind, Verdict, check};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft::block::Rng;
use weft_testing::ends;

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

    /// What a mount did up to now may be lost, but for what was synced.
    fn ends_life(&self, mount: usize) {
        let own = &self.mounts[mount];
        let life = own.life.fetch_add(1, Ordering::AcqRel);
        let synced = own.synced.swap(0, Ordering::AcqRel);
        self.killed.lock().expect("no panic").push(((mount, life), synced));
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

/// What befalls a run.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The server is killed, and started again.
    ServerDies,
    /// A client is killed, and mounts again.
    ClientDies,
    /// A client does not reach the server for less than its epoch.
    ShortCut,
    /// The same for longer.
    LongCut,
}

/// Works for a while with this many mounts; each round one of these befalls them.
fn run(seed: u64, mounts: usize, rounds: u32, faults: &[Fault]) {
    let cell = Cell::new();
    let proxy =
        |name: &&str| Proxy::start(&cell.bench.path(&format!("{name}.way")), &cell.bench.path("s"));
    let ways: Vec<Proxy> = NAMES[..mounts].iter().map(proxy).collect();
    let mounted = NAMES.iter().zip(&ways).map(|(name, way)| cell.mount_by(name, &way.address()));
    let dirs: Vec<PathBuf> = mounted.collect();
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
            let victim = rng.index(mounts);
            let way = &ways[victim];
            match faults[rng.index(faults.len())] {
                Fault::ServerDies => {
                    cell.kill("server");
                    std::thread::sleep(Duration::from_millis(rng.below(300)));
                    cell.serve();
                }
                Fault::ClientDies => {
                    run.mounts[victim].away.store(true, Ordering::Release);
                    cell.kill(NAMES[victim]);
                    run.ends_life(victim);
                    // Callers that were within the mount have got their error by now.
                    std::thread::sleep(Duration::from_millis(100));
                    cell.mount_by(NAMES[victim], &way.address());
                    run.mounts[victim].away.store(false, Ordering::Release);
                }
                Fault::ShortCut => {
                    way.cut();
                    std::thread::sleep(Duration::from_millis(rng.below(700)));
                    way.heal();
                }
                Fault::LongCut => {
                    // Of much that may have happened or not, nobody could say whether it is right.
                    let began = run.now();
                    File::open(&run.mounts[victim].dir).and_then(|d| d.sync_all()).expect("synced");
                    run.mounts[victim].synced.fetch_max(began, Ordering::AcqRel);
                    run.mounts[victim].away.store(true, Ordering::Release);
                    run.ends_life(victim);
                    way.cut();
                    std::thread::sleep(EPOCH + EPOCH / 2);
                    way.heal();
                    let name = run.mounts[victim].dir.join("f0");
                    fs::read(&name).expect("it is back within its patience");
                    run.mounts[victim].away.store(false, Ordering::Release);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        run.stop.store(true, Ordering::Release);
    });
    run.judge(seed);
}

#[test]
fn what_two_and_three_mounts_answer_is_linearizable_while_the_server_is_killed() {
    if !can_mount() {
        return;
    }
    run(1, 2, 3, &[Fault::ServerDies]);
    run(2, 3, 3, &[Fault::ServerDies]);
}

#[test]
fn what_mounts_answer_is_linearizable_while_they_are_cut_off() {
    if !can_mount() {
        return;
    }
    run(3, 2, 4, &[Fault::ShortCut]);
    run(4, 3, 1, &[Fault::LongCut]);
    run(5, 3, 3, &[Fault::ShortCut, Fault::ServerDies]);
}

/// Calls that wait for a client that died must not hold up those that wait for nobody: not even when
/// there are more of them than a mount has threads.
#[test]
fn calls_that_wait_hold_up_no_others() {
    if !can_mount() {
        return;
    }
    const WAITING: usize = 12;
    // Neither the lease nor the patience ends before the test does.
    let cell = Cell::with_long_leases();
    let a = mount(&cell.bench, "a", &cell.address(), &["--patience", "3600"]);
    let b = cell.mount("b");
    fs::write(a.join("mine"), [7; 100]).expect("a file");
    for file in 0..WAITING {
        fs::write(b.join(format!("f{file}")), [0; 8]).expect("a file");
    }
    // Both know the names; only `b` knows what it writes now.
    assert_eq!(fs::read_dir(&a).expect("names").count(), WAITING + 1);
    for file in 0..WAITING {
        fs::write(b.join(format!("f{file}")), [1; 8]).expect("a file");
    }
    fs::metadata(a.join("mine")).expect("leased");
    cell.kill("b");
    let done = Arc::new(AtomicU64::new(0));
    // They end with the mount.
    for file in 0..WAITING {
        let (path, done) = (a.join(format!("f{file}")), Arc::clone(&done));
        std::thread::spawn(move || {
            let _ = fs::metadata(path);
            done.fetch_add(1, Ordering::AcqRel);
        });
    }
    // Time for them to wait: if it is too short, a mistake is not found.
    std::thread::sleep(Duration::from_millis(300));
    let mine = a.join("mine");
    ends("others are not held up", move || {
        for _ in 0..10 {
            fs::write(&mine, [8; 100]).expect("its own file");
            assert_eq!(fs::metadata(&mine).expect("leased").len(), 100);
        }
    });
    // Fewer than all have come back, or nothing was shown.
    assert!(done.load(Ordering::Acquire) < WAITING as u64, "they waited for nobody");
}

/// A write that has to wait for its lease is seen by nobody before it has it: also not by readers of
/// the same mount, whose kernel has the file in its cache.
#[test]
fn a_write_that_waits_is_not_seen() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    for len in [8, 4096, 10_000] {
        let path = a.join(format!("f{len}"));
        fs::write(&path, vec![1; len]).expect("a file");
        // From here on both have a lease to read, and the kernel has it cached for `a`.
        assert_eq!(fs::read(b.join(format!("f{len}"))).expect("a file"), vec![1; len]);
        assert_eq!(fs::read(&path).expect("a file"), vec![1; len]);
        cell.kill("server");
        let is_written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = OpenOptions::new().write(true).open(&path).expect("the file");
                file.write_all_at(&vec![2; len], 0).expect("the server comes back");
                is_written.store(true, Ordering::Release);
            });
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(600) {
                let mut bytes = vec![0; len];
                let file = File::open(&path).expect("the file");
                file.read_exact_at(&mut bytes, 0).expect("leased");
                assert!(bytes == vec![1; len], "{len} bytes were seen before they were written");
            }
            assert!(!is_written.load(Ordering::Acquire), "it waited for nobody");
            cell.serve();
        });
        assert_eq!(fs::read(&path).expect("a file"), vec![2; len]);
        assert_eq!(fs::read(b.join(format!("f{len}"))).expect("a file"), vec![2; len]);
    }
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn what_mounts_answer_is_linearizable_while_anything_happens() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(60_u64) / 8 + 1);
    let seeds = std::env::var("WEFT_SIM_SEED").ok().and_then(|s| s.parse().ok());
    let began = Instant::now();
    for seed in seeds.map_or(100..u64::MAX, |seed: u64| seed..seed + 1) {
        if began.elapsed() > time || !can_mount() {
            break;
        }
        let mut faults =
            vec![Fault::ServerDies, Fault::ClientDies, Fault::ShortCut, Fault::LongCut];
        // Some worlds are spared one of them.
        faults.remove((seed / 2 % 4) as usize);
        run(seed, 2 + (seed % 2) as usize, 6, &faults);
    }
}
