//! `crash run`: a crash test of a program.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft::Order;
use weft_crash_test::{
    Bounds, CallNr, CallText, CheckOptions, Error, Limits, LogOptions, Model, Pattern, Progress,
    RecordOptions, Recording, Report, State, Verdict, VolumeFormat, VolumeOptions, WorkerCommand,
    check_each_sync, check_recording, check_state, describe, extract_state, junit_of_error,
    record_program, sandbox,
};

use crate::cli::crash::CrashRun;
use crate::failure::{DONE, FAILED, Failure, Outcome, PROMISE_BROKEN};
use crate::output::{Output, count};

/// The size of a file system in memory, and of an empty volume, in bytes.
const MEMORY_BYTES: u64 = 4 << 30;
const VOLUME_BYTES: u64 = 32 << 20;

/// The most that it may take to clear everything away when a signal ends the test.
const END_MAX: Duration = Duration::from_secs(20);

/// `crash run`.
pub fn run(out: Output, args: &CrashRun) -> Outcome {
    let began = Instant::now();
    let told_to_end = end_on_signals()?;
    let outcome = test(out, args, began);
    if let Some(signal) = *told_to_end.lock().unwrap_or_else(PoisonError::into_inner) {
        let code = u8::try_from(128 + signal).unwrap_or(FAILED);
        return Err(Failure { code, ..Failure::new(format!("ended by signal {signal}")) });
    }
    if let (Err(failure), Some(file)) = (&outcome, &args.junit)
        && failure.code == FAILED
    {
        let run = args.run.as_deref().unwrap_or("a recording");
        write_file(file, &junit_of_error(run, &failure.message, began.elapsed()))?;
    }
    outcome
}

/// Ends the test at a signal: its processes, and so this one, which clears away its directory on the
/// way out. Returns where the signal is noted.
fn end_on_signals() -> Result<Arc<Mutex<Option<i32>>>, Failure> {
    let noted = Arc::new(Mutex::new(None));
    let cannot = |e| Failure::new(format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot)?;
    let note = Arc::clone(&noted);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let Some(signal) = signals.forever().next() else { return };
            *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(signal);
            sandbox::interrupt();
            std::thread::sleep(END_MAX);
            // It hangs: as if nothing had waited for the signal.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        })
        .map_err(cannot)?;
    Ok(noted)
}

fn test(out: Output, args: &CrashRun, began: Instant) -> Outcome {
    let worker = WorkerCommand::this_program(&["crash", "worker"]);
    let mut recording = match (&args.replay, &args.log_writes, &args.run) {
        (Some(log), ..) => Recording::load(log).map_err(failure)?,
        (None, Some(log), _) => Recording::load_log(log, &log_options(args)).map_err(failure)?,
        (None, None, Some(run)) => {
            let progress = out.progress("recording");
            progress.say(run.clone());
            record_program(&worker, &record_options(args, run)).map_err(failure)?
        }
        (None, None, None) => {
            return Err(Failure::usage("give --run COMMAND, --replay LOG or --log-writes LOG"));
        }
    };
    if args.fsck {
        let Some(volume) = &mut recording.volume else {
            return Err(Failure::usage("--fsck judges a volume: give --order, or a log of one"));
        };
        volume.kind.fsck = true;
    }
    if let Some(log) = &args.record {
        recording.save(log).map_err(failure)?;
    }
    if args.list {
        return list(out, &recording);
    }
    // Without a check fsck alone judges.
    let check = args.check.as_deref().or(args.fsck.then_some(""));
    let Some(check) = check else {
        let calls = count(recording.calls.len() as u64, "call");
        out.confirm(
            &serde_json::json!({ "version": JSON_VERSION, "calls": recording.calls.len() }),
            &format!("{calls} recorded"),
        )?;
        return Ok(DONE);
    };
    let options = check_options(args, check);
    if args.state.is_some() && args.models.is_empty() && recording.volume.is_none() {
        return Err(Failure::usage("give the --model of the --state"));
    }
    if let Some(state) = &args.state {
        let state: State = state.parse().map_err(failure)?;
        if let Some(directory) = &args.extract {
            extract_state(&recording, options.models[0], &state, directory).map_err(failure)?;
        }
        let verdict = check_state(&worker, &recording, &options, &state).map_err(failure)?;
        return tell_verdict(out, &verdict);
    }
    if args.each_sync {
        let shown = Shown { bar: out.progress("judging"), last: Mutex::new(Instant::now()) };
        let all = check_each_sync(&worker, &recording, &options, &|m, p| shown.show(m, p))
            .map_err(failure)?;
        drop(shown);
        out.report(&Versioned::new(&all), |w| write!(w, "{all}"))?;
        return Ok(DONE);
    }
    let shown = Shown { bar: out.progress("judging"), last: Mutex::new(Instant::now()) };
    let mut report =
        check_recording(&worker, &recording, &options, &|model, p| shown.show(model, p))
            .map_err(failure)?;
    drop(shown);
    if let Some(file) = &args.junit {
        write_file(file, &report.junit(began.elapsed()))?;
    }
    add_replays(&mut report, args);
    let told = Told { passed: report.passed(), report: &report, text: report.to_string() };
    out.report(&Versioned::new(&told), |w| w.write_all(told.text.as_bytes()))?;
    Ok(if report.passed() { DONE } else { PROMISE_BROKEN })
}

/// The version of what `--json` prints. Fields may be added without a new one.
const JSON_VERSION: u32 = 1;

/// The output of `--json`.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    of: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    fn new(of: &'a T) -> Self {
        Self { version: JSON_VERSION, of }
    }
}

#[derive(Serialize)]
struct Told<'a> {
    passed: bool,
    #[serde(flatten)]
    report: &'a Report,
    /// The output without --json.
    text: String,
}

fn failure(e: Error) -> Failure {
    match e {
        Error::UnknownModel(_) | Error::State(_) => Failure::usage(e.to_string()),
        Error::NotTested(_) => Failure { kind: Some("not_tested"), ..Failure::new(e.to_string()) },
        Error::NoFuse(_) => Failure { kind: Some("no_fuse"), ..Failure::new(e.to_string()) },
        e => Failure::new(e.to_string()),
    }
}

/// Adds to each finding the command that judges its state again, if the recording is kept.
fn add_replays(report: &mut Report, args: &CrashRun) {
    let mut options: Vec<String> = Vec::new();
    let mut add = |option: &str, value: &str| options.extend([option.to_owned(), value.to_owned()]);
    if let Some(log) = args.record.as_ref().or(args.replay.as_ref()) {
        add("--replay", &log.to_string_lossy());
    } else if let Some(log) = &args.log_writes {
        add("--log-writes", &log.to_string_lossy());
        if let Some(volume) = &args.volume {
            add("--volume", &volume.to_string_lossy());
        }
        if let Some(mark) = &args.after_mark {
            add("--after-mark", mark);
        }
        if let Some(order) = args.order {
            add("--order", order.name());
        }
        if let Some(size) = args.size {
            add("--size", &size.to_string());
        }
    } else {
        return;
    }
    if let Some(check) = &args.check {
        add("--check", check);
    }
    if args.fsck {
        options.push("--fsck".into());
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    report.add_replays(&options);
}

fn log_options(args: &CrashRun) -> LogOptions {
    LogOptions {
        volume: args.volume.clone(),
        size_bytes: args.size,
        after_mark: args.after_mark.clone(),
        order: args.order.map(|order| order.name().to_owned()),
    }
}

fn record_options(args: &CrashRun, run: &str) -> RecordOptions {
    RecordOptions {
        setup: args.setup.clone(),
        run: run.to_owned(),
        promise: args.stdout_is_promise.as_deref().map(Pattern::new),
        time_limit: args.run_limit,
        write_limit_bytes: args.write_limit,
        size_bytes: args.size.unwrap_or(MEMORY_BYTES),
        any_exit: args.any_exit,
        volume: (args.order.is_some() || args.volume.is_some() || args.hfs).then(|| {
            VolumeOptions {
                order: args.order.map_or("soft", Order::name).to_owned(),
                image: args.volume.clone(),
                format: if args.hfs { VolumeFormat::Hfs } else { VolumeFormat::Ext },
                size_bytes: args.size.unwrap_or(VOLUME_BYTES),
            }
        }),
    }
}

fn check_options(args: &CrashRun, check: &str) -> CheckOptions {
    let bounds = Bounds { seed: args.seed, torn: !args.no_torn, ..Bounds::default() };
    let models = match args.models.as_slice() {
        [] => Model::COMMON.to_vec(),
        models => models.to_vec(),
    };
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    CheckOptions {
        check: check.to_owned(),
        serves: args.check_server,
        time_limit: args.check_limit,
        models,
        limits: Limits {
            bounds,
            states: args.states,
            time: args.time,
            findings: args.findings,
            ..Limits::default()
        },
        jobs: args.jobs.unwrap_or(cpus),
        size_bytes: args.size.unwrap_or(MEMORY_BYTES),
    }
}

/// A progress line that changes a few times a second, as formatting costs more than a state.
struct Shown {
    bar: crate::output::Progress,
    last: Mutex<Instant>,
}

impl Shown {
    fn show(&self, model: Model, progress: &Progress) {
        const PERIOD: Duration = Duration::from_millis(100);
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() < PERIOD {
            return;
        }
        *last = Instant::now();
        let Progress { epochs, epochs_done, tried, distinct, judged, failed, .. } = progress;
        let failed = if *failed > 0 { format!(", {failed} FAIL") } else { String::new() };
        self.bar.say(format!(
            "{model}: {epochs_done} of {epochs} parts done, {tried} states tried, {distinct} distinct, \
             {judged} judged{failed}",
        ));
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    weft::vfs::host_file::replace(path, text.as_bytes(), 0o666)
        .map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display())))
}

#[derive(Serialize)]
struct Listed {
    calls: Vec<CallText>,
}

fn list(out: Output, recording: &Recording) -> Outcome {
    let numbers = (0..recording.calls.len() as u32).map(CallNr);
    let calls: Vec<CallText> =
        numbers.map(|nr| describe(&recording.base, &recording.calls, nr)).collect();
    let width = calls.iter().map(|call| call.by.len()).max().unwrap_or(0);
    let listed = Listed { calls };
    out.report(&Versioned::new(&listed), |w| {
        listed.calls.iter().try_for_each(|CallText { nr, by, text, .. }| {
            writeln!(w, "{nr:>6}  {by:width$}  {text}")
        })
    })?;
    Ok(DONE)
}

fn tell_verdict(out: Output, verdict: &Verdict) -> Outcome {
    out.report(&Versioned::new(verdict), |w| {
        writeln!(w, "the check: {}", verdict.outcome)?;
        w.write_all(verdict.output.as_bytes())
    })?;
    Ok(if verdict.fails() { PROMISE_BROKEN } else { DONE })
}
