//! Judges the models of persistence by the kernel's own file systems: whatever ext4, XFS and btrfs
//! leave of a random workload after a power cut, their model must allow.
//!
//! `judge_models FS [--seeds FROM..TO] [--states N] [--minutes N] [--threads N] [--pauses]
//! [--names] [--lying-disk] [--verbose]`, as root; FS is ext4, xfs, btrfs or all.
//!
//! A workload of some calls runs on a file system of the kernel, whose disk records each write and
//! flush, and alike on one in memory, which records the calls for the models. Each prefix of the
//! requests to the disk, and random parts of the writes after the last flush, are states of the
//! disk. The kernel mounts each, which replays its log, and the tree that it shows then must be one
//! that the model allows when as many calls had returned as had at that request. Two rules that are
//! too strong must be refuted, which shows that the comparison sees what it should. With a disk that
//! lies about flushes the models must be refuted as well. With `--names`
//! most calls change names or make them durable.
//!
//! Exit status: 0 if the models allow everything, and what must be refuted is; 1 if not; 2 if
//! nothing was judged.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test of the models")]

mod allowed;
mod disk;
mod host;
mod workload;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use weft_block::Rng;
use weft_crash_test::Model;
use weft_fuse::{Mount, MountOptions};
use weft_vfs::memfs::Snapshot;

use allowed::{Allowed, Answer, Rule};
use disk::{Disk, DiskState, Image, Request};
use host::{Kind, Loop, Mounted, Result};
use workload::Workload;

struct Options {
    kinds: Vec<Kind>,
    seeds: std::ops::Range<u64>,
    states: usize,
    until: Instant,
    threads: usize,
    pauses: bool,
    names: bool,
    lying: bool,
    verbose: bool,
}

impl Options {
    fn parse() -> Result<Self> {
        let mut arguments = std::env::args().skip(1);
        let name = arguments.next().ok_or("which file system? ext4, xfs, btrfs or all")?;
        let kinds = Kind::ALL.into_iter().filter(|kind| name == "all" || name == kind.name());
        let mut options = Self {
            kinds: kinds.collect(),
            seeds: 0..20,
            states: 40,
            until: Instant::now() + Duration::from_secs(24 * 3600),
            threads: 2,
            pauses: false,
            names: false,
            lying: false,
            verbose: false,
        };
        if options.kinds.is_empty() {
            return Err(format!("unknown file system {name}: give ext4, xfs, btrfs or all").into());
        }
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{option} needs a value"));
            match option.as_str() {
                "--seeds" => {
                    let text = value()?;
                    let (from, to) = text.split_once("..").ok_or("--seeds FROM..TO")?;
                    options.seeds = from.parse()?..to.parse()?;
                }
                "--states" => options.states = value()?.parse()?,
                "--threads" => options.threads = value()?.parse()?,
                "--minutes" => {
                    let minutes: u64 = value()?.parse()?;
                    options.until = Instant::now() + Duration::from_secs(60 * minutes);
                }
                "--names" => options.names = true,
                "--pauses" => options.pauses = true,
                "--lying-disk" => options.lying = true,
                "--verbose" => options.verbose = true,
                _ => return Err(format!("unknown option {option}").into()),
            }
        }
        Ok(options)
    }
}

/// The counters of one rule.
#[derive(Default)]
struct Tally {
    judged: u64,
    unjudged: u64,
    violations: u64,
    workloads_violated: u64,
    allowed: u64,
    produced: u64,
}

#[derive(Default)]
struct Totals {
    workloads: u64,
    calls: u64,
    requests: u64,
    states: u64,
    mounts: u64,
    refused: u64,
    trees: u64,
    rules: Vec<Tally>,
}

/// The disks and mounts of one thread.
struct Rig {
    kind: Kind,
    empty: Image,
    disk: Arc<Disk>,
    mount_at: PathBuf,
    // Dropped in this order: the devices before the files beneath them, and these before the mount
    // that they are in.
    disk_loop: Loop,
    crash_loop: Loop,
    disk_file: File,
    crash_file: File,
    _fuse: Mount,
}

impl Rig {
    fn new(kind: Kind, dir: &Path) -> Result<Self> {
        let at = |name: &str| -> Result<PathBuf> {
            fs::create_dir_all(dir.join(name))?;
            Ok(dir.join(name))
        };
        let (fuse_at, mount_at) = (at("fuse")?, at("mount")?);
        let image = dir.join("image");
        kind.make(&image)?;
        let empty = host::read_image(&mut File::open(&image)?)?;
        let disk = Arc::new(Disk::new());
        let options = MountOptions { source: "judge".into(), ..MountOptions::default() };
        let fuse = weft_fuse::mount(Arc::clone(&disk) as _, &fuse_at, &options)?;
        let disk_path = fuse_at.join(disk::NAME);
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let (disk_file, crash_file) = (open(&disk_path)?, open(&image)?);
        disk_file.set_len(kind.size_bytes())?;
        let (disk_loop, crash_loop) = (Loop::new(&disk_path)?, Loop::new(&image)?);
        Ok(Self {
            kind,
            empty,
            disk,
            mount_at,
            disk_loop,
            crash_loop,
            disk_file,
            crash_file,
            _fuse: fuse,
        })
    }

    /// Runs a workload; returns it with the disk's content at the beginning and the requests.
    fn run(&self, seed: u64, pauses: bool, names: bool) -> Result<Run> {
        host::fill(&self.disk_file, self.kind.size_bytes(), &self.empty, &Image::new())?;
        let mut mounted = Mounted::new(self.kind, &self.disk_loop, &self.mount_at)?;
        let requests = || self.disk.len();
        let mut workload = Workload::new(mounted.path(), seed, &requests)?;
        workload.write_back()?;
        if Rng::stream(seed, 1).chance(1, 2) {
            drop(mounted);
            mounted = Mounted::new(self.kind, &self.disk_loop, &self.mount_at)?;
        }
        workload.write_back()?;
        let base_tree = workload.start();
        let base = self.disk.content();
        self.disk.start();
        workload.run(pauses, names)?;
        workload.write_back()?;
        let log = self.disk.stop();
        let seen = host::read_tree(&mounted.path().join(workload::FOLDER))?;
        if seen.hash() != workload.tree().hash() {
            return Err(format!("seed {seed}: the two file systems differ without a crash").into());
        }
        let (recording, steps, returned) = workload.finish(base_tree);
        Ok(Run { seed, recording, steps, returned, base, log })
    }

    /// The tree that the kernel finds on a disk; an error if it refuses it.
    fn tree(&self, base: &Image, state: &DiskState) -> Result<Snapshot> {
        host::fill(&self.crash_file, self.kind.size_bytes(), base, &state.changed)?;
        let mounted = Mounted::new(self.kind, &self.crash_loop, &self.mount_at)?;
        host::read_tree(&mounted.path().join(workload::FOLDER))
    }
}

struct Run {
    seed: u64,
    recording: weft_crash_test::Recording,
    steps: Vec<String>,
    returned: Vec<usize>,
    base: Image,
    log: Vec<Request>,
}

impl Run {
    /// The states of the disk: prefixes, then parts of what lies after the last flush.
    fn states(&self, most: usize, lying: bool) -> Vec<DiskState> {
        let mut rng = Rng::stream(self.seed, 2);
        let len = self.log.len();
        let mut seen = HashSet::new();
        let mut states = Vec::new();
        let mut add = |upto: usize, lost: u64, rng: &mut Rng| {
            let state = disk::state(&self.base, &self.log, upto, lost, rng, lying);
            if seen.insert((self.calls_returned(upto), state.hash())) {
                states.push(state);
            }
            states.len()
        };
        let prefixes: Vec<usize> = if len < most / 2 {
            (0..=len).collect()
        } else {
            (0..most / 2).map(|_| rng.index(len + 1)).collect()
        };
        for upto in prefixes {
            add(upto, 0, &mut rng);
        }
        for _ in 0..4 * most {
            let (upto, lost) = (rng.index(len + 1), *rng.pick(&[1, 4, 7]).unwrap());
            if add(upto, lost, &mut rng) >= most {
                break;
            }
        }
        states
    }

    fn calls_returned(&self, upto: usize) -> usize {
        self.returned.partition_point(|requests| *requests <= upto)
    }
}

fn judge(rig: &Rig, seed: u64, options: &Options, totals: &Mutex<Totals>) -> Result<()> {
    let run = rig.run(seed, options.pauses, options.names)?;
    let rules = rules(rig.kind);
    let states = run.states(options.states, options.lying);
    let mut mounts = 0;
    let mut refused = 0;
    let mut trees: HashMap<u64, Option<Snapshot>> = HashMap::new();
    for state in &states {
        let hash = state.hash();
        if trees.contains_key(&hash) {
            continue;
        }
        mounts += 1;
        let tree = match rig.tree(&run.base, state) {
            Ok(tree) => Some(tree),
            Err(error) => {
                refused += 1;
                println!("{} seed {seed}, {} requests: {error}", rig.kind.name(), state.upto);
                None
            }
        };
        trees.insert(hash, tree);
    }
    let found: HashSet<u128> = trees.values().flatten().map(Snapshot::hash).collect();
    let mut tallies = Vec::new();
    for rule in rules {
        let allowed = Allowed::new(&run.recording, rule)
            .map_err(|e| format!("{}: {e}: {:?}", rule.name(), run.steps))?;
        let mut tally = Tally::default();
        for state in &states {
            let Some(Some(tree)) = trees.get(&state.hash()) else { continue };
            let returned = run.calls_returned(state.upto);
            match allowed.answer(returned, tree.hash()) {
                Answer::TooMany => tally.unjudged += 1,
                Answer::Allowed => tally.judged += 1,
                Answer::Forbidden => {
                    tally.judged += 1;
                    tally.violations += 1;
                    if tally.violations == 1 && (!rule.must_fail() || options.verbose) {
                        report(rig.kind, &run, rule, &allowed, state, tree)?;
                    }
                }
            }
        }
        tally.workloads_violated += u64::from(tally.violations > 0);
        let all = allowed.trees();
        tally.allowed += all.len() as u64;
        tally.produced += all.intersection(&found).count() as u64;
        tallies.push(tally);
    }
    let mut totals = totals.lock().unwrap();
    totals.workloads += 1;
    totals.calls += run.recording.calls.len() as u64 - 1;
    totals.requests += run.log.len() as u64;
    totals.states += states.len() as u64;
    totals.mounts += mounts;
    totals.refused += refused;
    totals.trees += found.len() as u64;
    totals.rules.resize_with(tallies.len(), Tally::default);
    for (total, tally) in totals.rules.iter_mut().zip(tallies) {
        total.judged += tally.judged;
        total.unjudged += tally.unjudged;
        total.violations += tally.violations;
        total.workloads_violated += tally.workloads_violated;
        total.allowed += tally.allowed;
        total.produced += tally.produced;
    }
    Ok(())
}

fn rules(kind: Kind) -> [Rule; 4] {
    let model = kind.model();
    [Rule::Model(model), Rule::Model(Model::Posix), Rule::FsyncIsSync(model), Rule::AtOnce]
}

fn report(
    kind: Kind,
    run: &Run,
    rule: Rule,
    allowed: &Allowed,
    state: &DiskState,
    tree: &Snapshot,
) -> Result<()> {
    let returned = run.calls_returned(state.upto);
    let mut text = format!(
        "\n{} seed {}: {} does not allow what {} of {} requests{} left, {returned} calls returned\n",
        kind.name(),
        run.seed,
        rule.name(),
        state.upto,
        run.log.len(),
        if state.whole { "" } else { " (in part)" },
    );
    text += &format!("  at the beginning {:?}\n", allowed::lines(&run.recording.base));
    for step in &run.steps {
        text += &format!("  {step}\n");
    }
    let calls: Vec<_> = run.recording.calls.iter().map(|call| call.action.name()).collect();
    text += &format!("  in flight: {} of {calls:?}\n", calls.get(returned).unwrap_or(&"none"));
    for line in allowed::lines(tree) {
        text += &format!("    {line}\n");
    }
    text += "  nearest allowed (- there, + here):\n";
    for line in allowed.nearest(returned, tree)? {
        text += &format!("    {line}\n");
    }
    let (name, seed) = (kind.name(), run.seed);
    println!("{text}  again: judge_models {name} --seeds {seed}..{}", seed + 1);
    Ok(())
}

fn print(kind: Kind, totals: &Totals, took: Duration) {
    let Totals { workloads, calls, requests, states, mounts, refused, trees, .. } = totals;
    println!(
        "{}: {workloads} workloads, {calls} calls, {requests} requests to the disk, {states} states \
         of it ({mounts} mounted, {refused} refused), {trees} trees, in {} s",
        kind.name(),
        took.as_secs()
    );
    for (rule, tally) in rules(kind).into_iter().zip(&totals.rules) {
        println!(
            "  {}: {} violations in {} workloads, {} states judged ({} not: too many states), {} \
             of {} allowed trees were left",
            rule.name(),
            tally.violations,
            tally.workloads_violated,
            tally.judged,
            tally.unjudged,
            tally.produced,
            tally.allowed,
        );
    }
}

/// Runs all workloads on one file system; returns true if all is as it must be.
fn judge_all(kind: Kind, dir: &Path, options: &Options) -> Result<bool> {
    let next = AtomicU64::new(options.seeds.start);
    let totals = Mutex::new(Totals::default());
    let started = Instant::now();
    let work = |thread: usize| -> Result<()> {
        let rig = Rig::new(kind, &dir.join(format!("{}{thread}", kind.name())))?;
        while Instant::now() < options.until {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= options.seeds.end {
                break;
            }
            judge(&rig, seed, options, &totals).map_err(|e| format!("seed {seed}: {e}"))?;
        }
        Ok(())
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..options.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let totals = totals.into_inner().unwrap();
    print(kind, &totals, started.elapsed());
    for result in results {
        result?;
    }
    let expected = |(rule, tally): (Rule, &Tally)| {
        (rule.must_fail() || options.lying) == (tally.violations > 0)
    };
    Ok(rules(kind).into_iter().zip(&totals.rules).all(expected))
}

/// Returns true if this process is in a mount namespace of its own.
const OWN_MOUNTS: &str = "WEFT_JUDGE_OWN_MOUNTS";

fn main() -> Result<ExitCode> {
    let options = Options::parse()?;
    if !rustix::process::geteuid().is_root() {
        eprintln!("not judged: this mounts file systems of the kernel, and needs root for it");
        return Ok(ExitCode::from(2));
    }
    if std::env::var_os(OWN_MOUNTS).is_none() {
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe()?);
        let status = again.args(std::env::args_os().skip(1)).env(OWN_MOUNTS, "1").status()?;
        return Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
    }
    for kind in &options.kinds {
        let known = fs::read_to_string("/proc/filesystems")?;
        let tool = host::run(Command::new(format!("mkfs.{}", kind.name())).arg("-V"));
        if !known.split_whitespace().any(|name| name == kind.name()) || tool.is_err() {
            let name = kind.name();
            eprintln!("not judged: the kernel has no {name}, or mkfs.{name} is not installed");
            return Ok(ExitCode::from(2));
        }
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    let dir = tempfile::tempdir()?;
    rustix::mount::mount("judge", dir.path(), "tmpfs", MountFlags::empty(), None)?;
    let mut good = true;
    for kind in &options.kinds {
        good &= judge_all(*kind, dir.path(), &options)?;
    }
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
