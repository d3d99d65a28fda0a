//! Promises of age: after N seconds of any load no durable state is older than promised.
//!
//! A volume is written on a simulated clock, by the engine's own write-back steps at the times at
//! which its thread would make them, on a disk whose requests take time. Programs go on while the
//! disk works. At every flush, before it has made anything durable, and between them, the volume is
//! mounted as a power cut would leave it (what was flushed and nothing else) and as a kill would
//! (all completed writes): every change that is older than promised must be there.

mod device;
mod load;
mod volume;

use device::{Moment, SimulatedTime, Speed, TimedDevice};
use load::{KINDS, Kind, Load};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use volume::{Format, JOURNALS, Setting};
use weft_patch::{Clock, Engine, Pace, Policy};
use weft_vfs::{Error, FileSystem, Result};

/// Time between two looks at what a crash would leave, in microseconds.
const LOOK_MICROS: u64 = 500_000;
/// Time that a call takes a program: a load as fast as possible makes so many calls.
const CALL_MICROS: u64 = 1000;

/// A disk as in a computer of today, and one that is slow at everything.
const QUICK: Speed = Speed { request_micros: 20, bytes_per_micro: 1000, flush_micros: 500 };
const SLOW: Speed = Speed { request_micros: 200, bytes_per_micro: 20, flush_micros: 25_000 };

/// How a load goes.
#[derive(Debug, Clone, Copy)]
struct Course {
    kind: Kind,
    /// Microseconds from one call to the next.
    every: u64,
    /// Time at which the load ends.
    ends: u64,
    /// Time at which the run ends.
    until: u64,
    seed: u64,
}

/// What was checked until now, of one kind of crash.
#[derive(Debug, Default)]
struct Checked {
    changes: usize,
}

struct Run {
    setting: Setting,
    course: Course,
    time: SimulatedTime,
    device: Arc<TimedDevice>,
    fs: Arc<dyn FileSystem>,
    engine: Arc<Engine>,
    load: Mutex<Load>,
    next_call: Mutex<u64>,
    /// Whether a step of write-back is in progress, so that programs may go on during its requests.
    writes_back: AtomicBool,
    looked: Mutex<u64>,
    killed: Mutex<Checked>,
    cut: Mutex<Checked>,
}

impl Run {
    fn start(setting: Setting, course: Course) -> Arc<Self> {
        let time = SimulatedTime::default();
        let device = Arc::new(TimedDevice::new(setting.fresh(), time.clone(), setting.speed));
        let clock = {
            let time = time.clone();
            Clock::new(move || Duration::from_micros(time.now()))
        };
        let (fs, engine) = setting.open(device.clone(), clock);
        let load = Load::new(&*fs, course.kind, course.seed);
        let run = Arc::new(Self {
            setting,
            course,
            next_call: Mutex::new(time.now()),
            time,
            device: Arc::clone(&device),
            fs,
            engine,
            load: Mutex::new(load),
            writes_back: AtomicBool::new(false),
            looked: Mutex::default(),
            killed: Mutex::default(),
            cut: Mutex::default(),
        });
        let observed = Arc::downgrade(&run);
        device.observe(Box::new(move |moment| {
            if let Some(run) = observed.upgrade()
                && run.writes_back.load(Ordering::SeqCst)
            {
                run.meanwhile(moment);
            }
        }));
        run
    }

    /// Lets programs go on while the disk works, as far as they need not wait for it.
    fn meanwhile(&self, moment: Moment) {
        match moment {
            Moment::Worked => while self.call_if_due(false).is_some_and(|called| called.is_ok()) {},
            Moment::BeforeFlush => self.look_now_and_then(),
        }
    }

    /// Makes the next call of the load if its time has come. Unless it may wait, one that would
    /// waits for its turn.
    fn call_if_due(&self, may_wait: bool) -> Option<Result<()>> {
        let mut next = self.next_call.lock().unwrap();
        let now = self.time.now();
        if *next > now || now > self.course.ends {
            return None;
        }
        let mut load = self.load.lock().unwrap();
        let mut outcome = Err(Error::WouldBlock);
        let mut step = || outcome = load.step(&*self.fs, || self.time.now());
        if may_wait {
            step();
        } else {
            // A format that cannot promise not to wait makes no calls then.
            self.fs.without_waiting(&mut step);
        }
        match &outcome {
            Ok(()) => *next = next.max(now.saturating_sub(1_000_000)) + self.course.every,
            Err(Error::WouldBlock) => {}
            Err(e) => panic!("{self:?}: {e:?}"),
        }
        Some(outcome)
    }

    fn look_now_and_then(&self) {
        let mut looked = self.looked.lock().unwrap();
        if self.time.now() >= *looked + LOOK_MICROS {
            *looked = self.time.now();
            self.look();
        }
    }

    /// Checks what is left by a kill and by a power cut at this moment.
    fn look(&self) {
        let calm = self.course.ends < self.course.until;
        let promised = self.setting.promised_ms(calm) * 1000;
        let Some(until) = self.time.now().checked_sub(promised) else { return };
        let load = self.load.lock().unwrap();
        let crashes = [
            ("a kill", self.device.after_a_kill(), &self.killed),
            ("a power cut", self.device.after_a_power_cut(), &self.cut),
        ];
        for (crash, image, checked) in crashes {
            let (fs, _engine) = self.setting.recover(image);
            let mut checked = checked.lock().unwrap();
            let at = load.check(&*fs, checked.changes, until);
            checked.changes = at.unwrap_or_else(|lost| {
                let now = self.time.now() / 1000;
                panic!("{self:?}: {crash} at {now} ms leaves what is older than promised: {lost}")
            });
        }
    }

    fn write_back(&self, pace: &mut Pace, pressed: bool) -> u64 {
        self.writes_back.store(true, Ordering::SeqCst);
        let wait = self.engine.write_back_step(pace, pressed).unwrap();
        self.writes_back.store(false, Ordering::SeqCst);
        u64::try_from(wait.as_micros()).unwrap()
    }

    /// Runs the load and the write-back to the end. Returns the number of changes that were checked.
    fn run(&self) -> usize {
        let mut pace = Pace::default();
        let mut next_step = self.time.now();
        while self.time.now() < self.course.until {
            if self.time.now() >= next_step {
                let wait = self.write_back(&mut pace, false);
                // A thread that need not wait is not faster than its processor.
                next_step = self.time.now() + wait.max(100);
                self.look_now_and_then();
            }
            self.call();
            let forgotten = std::mem::take(&mut self.load.lock().unwrap().forgotten);
            for ino in forgotten {
                self.fs.forget(ino, 1);
            }
            let next_call = *self.next_call.lock().unwrap();
            let goes_on = next_call <= self.course.ends;
            let next = if goes_on { next_call.min(next_step) } else { next_step };
            self.time.pass_until(next);
        }
        self.look();
        assert!(self.load.lock().unwrap().made() > 0);
        self.cut.lock().unwrap().changes.min(self.killed.lock().unwrap().changes)
    }

    /// Makes a call if it is time for one; under memory pressure the thread is woken, as an
    /// operation that waits wakes it.
    fn call(&self) {
        let counters = self.engine.counters();
        let dirty_bytes = counters.dirty_blocks_now * u64::from(self.engine.block_bytes());
        if dirty_bytes > self.setting.memory_bytes as u64 * 3 / 4 {
            self.write_back(&mut Pace::default(), true);
        }
        // An error would have ended the run.
        let _ = self.call_if_due(true);
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setting { format, policy, speed, .. } = &self.setting;
        write!(f, "{format:?}, {policy:?}, {speed:?}, {:?}", self.course)
    }
}

fn setting(format: Format, policy: Policy, speed: Speed) -> Setting {
    // Little memory, so that little may be dirty: the slower the disk, the less.
    let memory_bytes = if speed.bytes_per_micro < 100 { 8 << 20 } else { 32 << 20 };
    Setting { format, policy, speed, memory_bytes }
}

/// Runs a load of a kind at a number of calls a second, and returns the number of changes checked.
fn steady(setting: Setting, kind: Kind, per_second: u64) -> usize {
    // Some seconds of changes grow old enough.
    let until = (setting.promised_ms(false) + 6000) * 1000;
    let every = (1_000_000 / per_second).max(CALL_MICROS);
    let course = Course { kind, every, ends: until, until, seed: per_second };
    Run::start(setting, course).run()
}

/// Runs a load that ends after two seconds, and waits: what is left to do needs no more calls.
fn burst(setting: Setting, kind: Kind) -> usize {
    let until = 2_000_000 + setting.promised_ms(true) * 1000;
    let course = Course { kind, every: 5000, ends: 2_000_000, until, seed: kind as u64 };
    Run::start(setting, course).run()
}

const AS_FAST_AS_POSSIBLE: u64 = 1_000_000;

fn campaign(format: Format, policies: &[Policy]) {
    for &policy in policies {
        let quick = setting(format, policy, QUICK);
        for per_second in [1, 10, 200, AS_FAST_AS_POSSIBLE] {
            let checked = steady(quick, Kind::Mixed, per_second);
            assert!(checked >= 4, "{format:?} {policy:?} {per_second}/s: {checked}");
        }
        for kind in KINDS {
            let checked = steady(quick, kind, 50);
            assert!(checked >= 100, "{format:?} {policy:?} {kind:?}: {checked}");
        }
        for kind in [Kind::New, Kind::Rename, Kind::Nested, Kind::Mixed] {
            let checked = burst(quick, kind);
            assert!(checked >= 100, "{format:?} {policy:?} {kind:?}, a burst: {checked}");
        }
        for kind in [Kind::Stream, Kind::Mixed] {
            steady(setting(format, policy, SLOW), kind, AS_FAST_AS_POSSIBLE);
        }
    }
}

#[test]
fn no_state_of_ext2_is_older_than_promised() {
    campaign(Format::Ext, &[Policy::Soft, Policy::Async]);
}

#[test]
fn no_state_of_ext3_is_older_than_promised() {
    campaign(Format::Ext, &JOURNALS);
}

#[test]
fn no_state_of_hfs_is_older_than_promised() {
    campaign(Format::Hfs, &[Policy::Soft, Policy::Async]);
}

#[test]
fn no_state_of_journaled_hfs_is_older_than_promised() {
    // A journal beside a volume holds no file data.
    campaign(Format::Hfs, &JOURNALS[..2]);
}

/// All kinds at all rates, on both disks, with other seeds in every run.
#[test]
#[ignore = "long"]
fn long_ages() {
    let seconds: u64 =
        std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(600);
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    let seed = std::env::var("WEFT_AGES_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    println!("to run it again: WEFT_AGES_SEED={seed}");
    let mut rng = weft_block::Rng::new(seed);
    let (mut runs, mut checked) = (0, 0);
    while std::time::Instant::now() < end {
        let format = [Format::Ext, Format::Hfs][rng.index(2)];
        let policy = match rng.index(if format == Format::Hfs { 4 } else { 5 }) {
            0 => Policy::Soft,
            1 => Policy::Async,
            at => JOURNALS[at - 2],
        };
        let speed = if rng.chance(1, 2) { QUICK } else { SLOW };
        let kind = KINDS[rng.index(KINDS.len())];
        let every = CALL_MICROS.max(1_000_000 >> rng.below(12));
        let until = 15_000_000 + rng.below(60_000_000);
        let course = Course { kind, every, ends: until, until, seed: rng.next_u64() };
        checked += Run::start(setting(format, policy, speed), course).run();
        runs += 1;
    }
    println!("{runs} runs, {checked} changes were durable in time");
}
