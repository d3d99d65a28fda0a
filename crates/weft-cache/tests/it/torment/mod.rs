//! Torment: the promises of the cache under power cuts at every moment.
//!
//! A seeded script of everything that a cache can be asked for runs on disks with volatile caches.
//! Its last life is recorded, and the power is cut after every single write and flush of it, with
//! a random part of what was not flushed surviving, torn at 512 bytes: on all disks, on the
//! cache's alone, on the origins' alone, or on none of them (`kill -9`). What is left is opened,
//! read, cut again in the middle of recovery, opened, restarted, read and taken apart, and every
//! byte is held against an oracle.
//!
//! | file | what it is |
//! |---|---|
//! | `world` | the disks, their events, and what a cut leaves of them |
//! | `oracle` | what a reader may see |
//! | `script` | operations, generated from a seed |
//! | `life` | runs operations, and remembers what may be read after every event |
//! | `explore` | cuts the power everywhere, and judges |
//! | `shrink` | makes a failing case small |
//! | `subject`, `stack` | what is tormented: the cache |
//! | `toys` | what is tormented to torment the harness |
//!
//! A failure prints the seed, the operations that are needed, and the command that replays them.

mod explore;
mod life;
mod oracle;
mod script;
mod shrink;
mod stack;
mod subject;
mod toys;
mod world;

use crate::watchdog::within;
use explore::{Case, Counts, Cut, Failure, explore, judge_cut, run};
use script::{Config, Family};
use shrink::shrink;
use stack::Stack;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use subject::Subject;
pub use world::{Discard, Disk, Scope, World, cut};

/// Operations in one life of a script.
const OPS: usize = 50;

/// The variable that names a case to replay.
const REPLAY: &str = "WEFT_TORMENT";

/// Explores the case of a seed; a failure is made small and told.
fn torment<S: Subject>(family: Family, seed: u64, outcomes: u64) -> Result<Counts, String> {
    let case = Case::new(Config::generate(family, seed), OPS);
    let failure = match explore::<S>(&case, outcomes) {
        Ok(counts) => return Ok(counts),
        Err(failure) => failure,
    };
    let first = failure.text.clone();
    let (case, failure) =
        shrink(case, failure, 150, |case| explore::<S>(case, outcomes.max(2)).err());
    Err(tell(&case, &failure, &first))
}

fn tell(case: &Case, failure: &Failure, first: &str) -> String {
    let numbers: Vec<String> = case.script.iter().map(|(number, _)| number.to_string()).collect();
    let ops: Vec<String> = case.script.iter().map(|(n, op)| format!("  #{n} {op}\n")).collect();
    let cut = failure.cut.map_or("none".to_owned(), |cut| {
        format!("{}/{}/{}", cut.events, cut.scope.name(), cut.seed)
    });
    let family = case.config.family.name();
    let seed = case.config.seed;
    format!(
        "{}\n(before it was made small: {first})\n{:?}\n{}cut: {cut}\nreplay: \
         {REPLAY}='{family} {seed} {cut} {}' cargo test -p weft-cache --test it -- --ignored \
         --nocapture torment::replay\n",
        failure.text,
        case.config,
        ops.concat(),
        numbers.join(",")
    )
}

/// Runs the cases of some seeds of a family, prints how much that was, and fails if one does.
fn campaign(family: Family, seeds: std::ops::Range<u64>, outcomes: u64) {
    let started = Instant::now();
    let mut total = Counts::default();
    for seed in seeds.clone() {
        match torment::<Stack>(family, seed, outcomes) {
            Ok(counts) => {
                total.cuts += counts.cuts;
                total.events += counts.events;
            }
            Err(text) => panic!("{} seed {seed}: {text}", family.name()),
        }
    }
    println!(
        "{}: {} cuts at {} events of {} cases, no promise broken, {:.1} s",
        family.name(),
        total.cuts,
        total.events,
        seeds.end - seeds.start,
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn write_through_survives_cuts_everywhere() {
    campaign(Family::parse("write-through").unwrap(), 0..4, 1);
}

#[test]
fn write_back_survives_cuts_everywhere() {
    campaign(Family::parse("write-back").unwrap(), 0..4, 1);
}

#[test]
fn write_around_survives_cuts_everywhere() {
    campaign(Family::parse("write-around").unwrap(), 0..4, 1);
}

#[test]
fn write_invalidate_survives_cuts_everywhere() {
    campaign(Family::parse("write-invalidate").unwrap(), 0..4, 1);
}

#[test]
fn write_only_survives_cuts_everywhere() {
    campaign(Family::parse("write-only").unwrap(), 0..4, 1);
}

#[test]
fn pass_through_survives_cuts_everywhere() {
    campaign(Family::parse("pass-through").unwrap(), 0..4, 1);
}

#[test]
fn changing_modes_survives_cuts_everywhere() {
    campaign(Family::Mixed, 0..4, 1);
}

/// A flush of the origin that fails has lost some of what was written before it, at once or when
/// the power goes next: the cache believes nothing of it, and its user is told.
#[test]
fn failed_flushes_of_the_origin_survive_cuts_everywhere() {
    for (family, _) in Family::ALL.iter().filter(|(family, _)| family.fails()) {
        campaign(*family, 0..3, 1);
    }
}

#[test]
fn a_cache_without_persistence_survives_cuts_everywhere() {
    campaign(Family::Forgetful, 0..4, 1);
}

/// Zeroes, discards, writes and reads of every length up to all of the origin.
#[test]
fn requests_of_every_length_survive_cuts_everywhere() {
    for (family, _) in Family::ALL.iter().filter(|(family, _)| family.is_long()) {
        campaign(*family, 0..3, 1);
    }
}

#[test]
fn a_cache_that_is_still_loading_survives_cuts() {
    campaign(Family::Large, 0..3, 1);
}

/// Cases that once broke a promise.
#[test]
fn what_failed_once_holds() {
    // Both copies of the superblock in flight: one of a killed process, one of the recovery.
    campaign(Family::Only(weft_cache::Mode::PassThrough), 1008..1009, 2);
    // A write over a block that a failed flush had dropped, and whose durable record still counted.
    campaign(Family::parse("failing-mixed").unwrap(), 5003..5004, 2);
    // A detach told of a failed flush, and the next one again.
    campaign(Family::parse("failing-write-through").unwrap(), 5007..5008, 2);
    // A lost marker, and behind it a batch that counted in a later life.
    campaign(Family::parse("failing-write-back").unwrap(), 5010..5011, 2);
    // Told of a discard that may be lost, by a disk that had ignored it: no promise is broken.
    campaign(Family::parse("failing-mixed").unwrap(), 7_000_037..7_000_038, 2);
    // What was lost is not there again because a discard of it, which did nothing, was flushed.
    campaign(Family::parse("failing-mixed").unwrap(), 7_100_025..7_100_026, 2);
    // Nor is what write-back had lost, once a discard has taken it from the cache.
    campaign(Family::parse("failing-mixed").unwrap(), 5055..5056, 2);
}

/// How long one case may take, far beyond what it needs on a busy machine: longer is a hang.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// When a campaign ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Cuts(u64),
    At(Instant),
}

impl End {
    /// After `WEFT_TORMENT_CUTS`, or else in the share of `WEFT_LONG_SECONDS` that is this
    /// campaign's.
    fn from_environment() -> Self {
        match number("WEFT_TORMENT_CUTS") {
            Some(cuts) => Self::Cuts(cuts),
            None => {
                let seconds = number("WEFT_LONG_SECONDS").unwrap_or(600) / 6;
                Self::At(Instant::now() + Duration::from_secs(seconds))
            }
        }
    }

    fn has_come(self, cuts: u64) -> bool {
        match self {
            Self::Cuts(wanted) => cuts >= wanted,
            Self::At(end) => Instant::now() >= end,
        }
    }
}

/// A number in the environment.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Hundreds of thousands of cuts. A case that hangs is a failure, with the stacks of all threads.
#[test]
#[ignore = "a campaign: scripts/torture-cache.sh"]
fn long_campaign() {
    let (end, began) = (End::from_environment(), Instant::now());
    let first = number("WEFT_TORMENT_FIRST").unwrap_or(1000);
    let totals = Mutex::new([Counts::default(); Family::ALL.len()]);
    let failures = Mutex::new(Vec::new());
    let next = AtomicU64::new(0);
    let cuts = AtomicU64::new(0);
    let work = || {
        while !end.has_come(cuts.load(Ordering::Relaxed)) && failures.lock().unwrap().len() < 5 {
            let case = next.fetch_add(1, Ordering::Relaxed);
            let which = case as usize % Family::ALL.len();
            let (family, seed) = (Family::ALL[which].0, first + case / Family::ALL.len() as u64);
            let name = format!("{} seed {seed}", family.name());
            // A panic is a failure like others: it is told with its seed, and the campaign goes on.
            let case = AssertUnwindSafe(|| torment::<Stack>(family, seed, 2));
            let done = within(CASE_LIMIT, &name, || catch_unwind(case));
            match done.unwrap_or_else(|_| Err("panicked, as told above".into())) {
                Ok(counts) => {
                    cuts.fetch_add(counts.cuts, Ordering::Relaxed);
                    let total = &mut totals.lock().unwrap()[which];
                    total.cuts += counts.cuts;
                    total.events += counts.events;
                }
                Err(text) => {
                    eprintln!("{name}: {text}");
                    failures.lock().unwrap().push(name);
                }
            }
        }
    };
    let threads = number("WEFT_TORMENT_THREADS").map_or_else(
        || std::thread::available_parallelism().map_or(1, NonZero::get),
        |n| n as usize,
    );
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (totals, failures) = (totals.into_inner().unwrap(), failures.into_inner().unwrap());
    for ((_, name), total) in Family::ALL.iter().zip(&totals) {
        println!("{name}: {} cuts at {} events", total.cuts, total.events);
    }
    let (cuts, seconds) = (cuts.into_inner(), began.elapsed().as_secs_f64());
    let seeds = next.into_inner() / Family::ALL.len() as u64;
    println!(
        "{cuts} power cuts in {seconds:.0} s on {threads} threads, {:.0} a second, seeds {first} to \
         {}, {} failures",
        cuts as f64 / seconds,
        first + seeds,
        failures.len()
    );
    assert!(failures.is_empty(), "{failures:?}");
}

/// Replays what a failure printed.
#[test]
#[ignore = "needs a case in WEFT_TORMENT, which a failing test prints"]
fn replay() {
    let Ok(text) = std::env::var(REPLAY) else { return };
    let mut words = text.split_whitespace();
    let family = words.next().and_then(Family::parse).expect("a family");
    let seed = words.next().and_then(|w| w.parse().ok()).expect("a seed");
    let cut = words.next().map(parse_cut).expect("a cut");
    let mut case = Case::new(Config::generate(family, seed), OPS);
    if let Some(numbers) = words.next() {
        let numbers: Vec<u32> = numbers.split(',').map(|n| n.parse().expect("a number")).collect();
        case.script.retain(|(number, _)| numbers.contains(number));
    }
    println!("{:?}", case.config);
    for (number, op) in &case.script {
        println!("  #{number} {op}");
    }
    let life = run::<Stack>(&case).unwrap_or_else(|e| panic!("{e}"));
    println!("{} events", life.world.events());
    if let Some(cut) = cut {
        judge_cut(&life, cut).unwrap_or_else(|e| panic!("{cut:?}: {e}"));
    }
}

fn parse_cut(word: &str) -> Option<Cut> {
    let mut parts = word.split('/');
    let events = parts.next()?.parse().ok()?;
    let scope = Scope::parse(parts.next()?)?;
    let seed = parts.next()?.parse().ok()?;
    Some(Cut { events, scope, seed })
}
