//! `crash`: explores the states that a power failure can leave.

use super::{crash_live, crash_run};
use crate::cli;
use crate::cli::crash::CrashVerb;
use crate::failure::{DONE, Failure, Outcome, PROMISE_BROKEN};
use crate::output::{Output, count};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::Order;
use weft::block::{Image, OpenMode};
use weft::patch::Policy;
use weft::source::open_source;
use weft_crash::{Campaign, Config, CrashState, Ext2Target, HfsTarget, Report, Status};
use weft_crash::{Target, Workload, explore, replay};

/// The largest image that is taken as the volume that workloads begin with: every crash image is a
/// copy of it.
const IMAGE_MAX_BYTES: u64 = 256 << 20;

/// `crash`, of a program or of weft's own formats.
pub fn run(out: Output, args: &cli::Crash) -> Outcome {
    match &args.verb {
        None => explore_format(out, args),
        Some(CrashVerb::Run(args)) => crash_run::run(out, args),
        Some(CrashVerb::Mount(args)) => crash_live::mount(out, args),
        Some(CrashVerb::Report(args)) => crash_live::report(out, args),
        Some(CrashVerb::Lose(args)) => crash_live::lose(out, args),
        Some(CrashVerb::Sync(args)) => crash_live::sync(out, args),
        Some(CrashVerb::Worker) => {
            weft_crash_test::worker_main();
            Err(Failure::usage("weft crash worker is started by weft crash run"))
        }
    }
}

fn explore_format(out: Output, args: &cli::Crash) -> Outcome {
    let began = Instant::now();
    let order = args.order.unwrap_or(Order(Policy::Soft));
    let target = match &args.image {
        Some(source) => on_image(source, order, args)?,
        None if args.hfs => Arc::new(HfsTarget::new(order.0)),
        None => fresh_ext2(order, args),
    };
    let mut config = Config { seed: args.seed, images: args.states, ..Config::new(target) };
    config.time = args.seconds.map(Duration::from_secs);
    if args.all_pairs {
        config.campaign = Campaign::Long;
    }
    if let Some(text) = &args.workload {
        let workload: Workload = text.parse().map_err(|e| usage(&e))?;
        if let Some(state) = &args.state {
            let state: CrashState = state.parse().map_err(|e| usage(&e))?;
            return replay_one(out, &config, &workload, &state);
        }
        config.campaign = Campaign::Given(vec![workload]);
    } else if args.state.is_some() {
        return Err(Failure::usage("--state needs the --workload that it is a state of"));
    }
    let progress = out.progress("exploring");
    let told = |s: Status| {
        let broken =
            if s.violations > 0 { format!(", {} BROKEN", s.violations) } else { String::new() };
        progress.say(format!("{} workloads, {} images{broken}", s.workloads, s.images));
    };
    let report = explore(&config, &told).map_err(|e| Failure::new(e.to_string()))?;
    drop(progress);
    tell(out, order, &report, began.elapsed())
}

fn usage(e: &weft_crash::Error) -> Failure {
    Failure::usage(e.to_string())
}

fn fresh_ext2(order: Order, args: &cli::Crash) -> Arc<dyn Target> {
    let mut target = Ext2Target::new(order.0);
    if let Some(bytes) = args.block_size {
        target = target.block_bytes(bytes);
    }
    if let Some(bytes) = args.inode_size {
        target = target.inode_bytes(bytes);
    }
    Arc::new(target)
}

/// Makes a target that begins with a copy of the volume in `source`, which is not changed.
fn on_image(source: &str, order: Order, args: &cli::Crash) -> Result<Arc<dyn Target>, Failure> {
    let info = weft::info(source)?;
    let len_bytes = match &info {
        weft::VolumeInfo::Ext(info) => info.len_bytes,
        weft::VolumeInfo::Mac(info) if info.format == "hfs" => info.len_bytes,
        weft::VolumeInfo::Mac(_) => {
            return Err(Failure::usage(format!(
                "{source} is no ext and no HFS volume: weft crash explores those"
            )));
        }
    };
    if len_bytes > IMAGE_MAX_BYTES {
        return Err(Failure::new(format!(
            "{source} is too large to be copied for every crash image: take one of at most {} MiB",
            IMAGE_MAX_BYTES >> 20
        )));
    }
    let device = weft::image::unwrap(source, open_source(source, OpenMode::READ_ONLY)?)?.device;
    let image = Image::copy_of(&*device)?;
    Ok(match info {
        weft::VolumeInfo::Ext(info) => {
            if matches!(args.order, Some(Order(Policy::Journal(_)))) && !info.has_journal {
                return Err(Failure::usage(format!("{source} has no journal to order writes by")));
            }
            let target = Ext2Target::new(order.0).block_bytes(info.block_bytes);
            Arc::new(target.inode_bytes(info.inode_bytes).on_image(image))
        }
        weft::VolumeInfo::Mac(_) => Arc::new(HfsTarget::new(order.0).on_image(image)),
    })
}

#[derive(Serialize)]
struct Explored {
    order: String,
    workloads: u64,
    states: u64,
    images: u64,
    judged_by_e2fsck: u64,
    repaired: u64,
    used_after_the_crash: u64,
    with_leaks: u64,
    seconds: f64,
    violations: Vec<Broken>,
}

#[derive(Serialize)]
struct Broken {
    workload: String,
    state: Option<String>,
    faults: Vec<String>,
    replay: String,
}

fn tell(out: Output, order: Order, report: &Report, took: Duration) -> Outcome {
    let explored = Explored {
        order: order.to_string(),
        workloads: report.workloads,
        states: report.states,
        images: report.images,
        judged_by_e2fsck: report.counts.e2fsck,
        repaired: report.counts.repairs,
        used_after_the_crash: report.counts.aftermaths,
        with_leaks: report.counts.leaky,
        seconds: took.as_secs_f64(),
        violations: report
            .violations
            .iter()
            .map(|v| Broken {
                workload: v.workload.to_string(),
                state: v.state.as_ref().map(ToString::to_string),
                faults: v.faults.iter().map(|f| format!("{}: {}", f.kind, f.what)).collect(),
                replay: v.command.clone(),
            })
            .collect(),
    };
    out.report(&explored, |w| {
        for violation in &report.violations {
            writeln!(w, "{violation}\n")?;
        }
        writeln!(
            w,
            "{order}: {} with {} crash states, {} distinct images, each judged, in {:.1} s",
            count(report.workloads, "workload"),
            report.states,
            report.images,
            took.as_secs_f64()
        )?;
        writeln!(
            w,
            "{} by e2fsck as well, {} repaired and clean after it, {} used without a repair; {} had \
             leaks, which soft updates may leave",
            report.counts.e2fsck, report.counts.repairs, report.counts.aftermaths, report.counts.leaky
        )?;
        match report.violations.len() {
            0 => writeln!(w, "no promise was broken"),
            n => writeln!(w, "{} BROKEN; each is printed above with its replay", count(n as u64, "promise")),
        }
    })?;
    Ok(if report.violations.is_empty() { DONE } else { PROMISE_BROKEN })
}

#[derive(Serialize)]
struct Replayed {
    faults: Vec<String>,
}

fn replay_one(out: Output, config: &Config, workload: &Workload, state: &CrashState) -> Outcome {
    let faults = replay(config, workload, state).map_err(|e| Failure::new(e.to_string()))?;
    let report =
        Replayed { faults: faults.iter().map(|f| format!("{}: {}", f.kind, f.what)).collect() };
    out.report(&report, |w| {
        for fault in &report.faults {
            writeln!(w, "{fault}")?;
        }
        if faults.is_empty() {
            writeln!(w, "this state breaks no promise")?;
        }
        Ok(())
    })?;
    Ok(if faults.is_empty() { DONE } else { PROMISE_BROKEN })
}
