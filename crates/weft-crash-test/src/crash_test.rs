//! A crash test within a test of Rust: its parts are functions of the test's own program.
//!
//! The program under test, and each check, must be a process of its own, as it can be killed, and has
//! the folder as its working directory. So the test's program is started again for each, with the
//! arguments by which the test harness runs this one test; the test comes to the same
//! [`CrashTest::report`], which sees by an environment variable that it is to call one of the functions, and ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Termination};
use std::time::Duration;

use crate::report::shell_word;
use crate::run::{CheckOptions, RecordOptions, check_recording, record_program};
use crate::{Bounds, Error, Header, Limits, Model, Pattern, Report, Result, WorkerCommand};

/// Says which part of which test a process is to run: the part, a blank, and the test's name.
const PART_VARIABLE: &str = "WEFT_CRASH_TEST_PART";

/// The beginning of a line of [`promise`].
const PROMISE_MARK: &str = "weft-promise: ";

/// The exit status of a process whose part has succeeded. That of one that never came to it is
/// another: a test that the harness does not find ends with 0.
const SUCCEEDED: i32 = 77;

/// A crash test, to be used within a test: `run` is the program under test, and `check` says of what a
/// power cut left of its files whether the program can live with it.
///
/// ```no_run
/// use std::fs;
/// use std::path::Path;
/// use weft_crash_test::CrashTest;
///
/// fn save(folder: &Path, settings: &str) -> std::io::Result<()> {
///     let (new, path) = (folder.join("settings.new"), folder.join("settings"));
///     fs::write(&new, settings)?;
///     fs::File::open(&new)?.sync_all()?; // without this, the test fails and names it
///     fs::rename(&new, &path)
/// }
///
/// #[test]
/// fn settings_survive_a_power_cut() {
///     CrashTest::new()
///         .setup(|folder| save(folder, "old"))
///         .run(|folder| save(folder, "new"))
///         .check(|folder, _promises| {
///             let settings = fs::read_to_string(folder.join("settings")).unwrap();
///             assert!(settings == "old" || settings == "new", "{settings:?}");
///         })
///         .assert_survives();
/// }
/// ```
///
/// Each function runs in a process of its own, in which the test runs from its beginning up to
/// [`assert_survives`](Self::assert_survives): what it does before should be little. A function has
/// succeeded if it returns, and returns no error; a check that panics fails. The folder is also the
/// working directory, and the same path in every process.
///
/// It needs Linux, FUSE (`/dev/fuse`), and a program that is linked with glibc dynamically, as those
/// of `cargo test` are by default.
pub struct CrashTest<'a> {
    name: String,
    arguments: Option<Vec<OsString>>,
    setup: Option<Part<'a>>,
    program: Option<Part<'a>>,
    check: Option<Part<'a>>,
    directory: PathBuf,
    record: RecordOptions,
    options: CheckOptions,
}

/// Gets the folder and the promises that were made, and returns whether it has succeeded.
type Function<'a> = dyn Fn(&Path, &[String]) -> bool + 'a;

/// A part of a crash test: a shell line, or a function of the test's program.
enum Part<'a> {
    Command(String),
    Function(Box<Function<'a>>),
}

impl std::fmt::Debug for CrashTest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrashTest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Default for CrashTest<'_> {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

/// Tells the crash test that what the program did until now is durable, as a program tells its user:
/// the checks of what is left by a power cut after this get the text among their promises.
///
/// It is a line on the standard output, `weft-promise: TEXT`; any program may print it.
///
/// # Panics
/// If it cannot be printed.
pub fn promise(text: &str) {
    let mut out = std::io::stdout().lock();
    // One write, as other threads may print, too; before it, the end of a line of theirs.
    let line = format!("\n{PROMISE_MARK}{}\n", text.replace('\n', " "));
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("promises can be printed");
}

impl<'a> CrashTest<'a> {
    /// Makes a crash test under the models of file systems that people use, with the limits of
    /// `weft crash run`.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let size_bytes = 4 << 30;
        Self {
            name: name_of(Location::caller()),
            arguments: None,
            setup: None,
            program: None,
            check: None,
            directory: std::env::temp_dir(),
            record: RecordOptions {
                setup: None,
                run: String::new(),
                promise: Some(Pattern::new(PROMISE_MARK)),
                time_limit: Duration::from_secs(600),
                write_limit_bytes: 1 << 30,
                size_bytes,
                any_exit: false,
                volume: None,
            },
            options: CheckOptions {
                check: String::new(),
                serves: false,
                time_limit: Duration::from_secs(30),
                models: Model::COMMON.to_vec(),
                limits: Limits { states: 20_000, ..Limits::default() },
                jobs: cpus,
                size_bytes,
            },
        }
    }

    /// Prepares the folder. What this leaves is taken to be durable.
    #[must_use]
    pub fn setup<T: Termination>(mut self, function: impl Fn(&Path) -> T + 'a) -> Self {
        self.setup = Some(Part::new(move |folder, _| function(folder)));
        self
    }

    /// As [`setup`](Self::setup), with a line for `/bin/sh`.
    #[must_use]
    pub fn setup_command(mut self, line: impl Into<String>) -> Self {
        self.setup = Some(Part::Command(line.into()));
        self
    }

    /// The program under test. It may say what is durable with [`promise`].
    #[must_use]
    pub fn run<T: Termination>(mut self, function: impl Fn(&Path) -> T + 'a) -> Self {
        self.program = Some(Part::new(move |folder, _| function(folder)));
        self
    }

    /// As [`run`](Self::run), with a line for `/bin/sh`.
    #[must_use]
    pub fn run_command(mut self, line: impl Into<String>) -> Self {
        self.program = Some(Part::Command(line.into()));
        self
    }

    /// Judges what a power cut left in the folder, which it may change, with the promises that were
    /// made before the power cut.
    #[must_use]
    pub fn check<T: Termination>(mut self, function: impl Fn(&Path, &[String]) -> T + 'a) -> Self {
        self.check = Some(Part::new(function));
        self
    }

    /// As [`check`](Self::check), with a line for `/bin/sh`; the promises are the lines of the file
    /// that the variable `WEFT_PROMISES` names.
    #[must_use]
    pub fn check_command(mut self, line: impl Into<String>) -> Self {
        self.check = Some(Part::Command(line.into()));
        self
    }

    /// Takes the lines of the program's output that match for promises, instead of those of
    /// [`promise`]. `*` stands for any text.
    #[must_use]
    pub fn promises(mut self, pattern: &str) -> Self {
        self.record.promise = Some(Pattern::new(pattern));
        self
    }

    /// The models of what file systems may lose and reorder.
    #[must_use]
    pub fn models(mut self, models: impl IntoIterator<Item = Model>) -> Self {
        self.options.models = models.into_iter().collect();
        self
    }

    /// The seed of the random states, where there are too many for all.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.limits.bounds.seed = seed;
        self
    }

    /// The limits of the search under each model.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// The most time of the search under each model.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.options.limits.time = time;
        self
    }

    /// Sets whether a power cut may leave a page written in part.
    #[must_use]
    pub fn torn(mut self, torn: bool) -> Self {
        self.options.limits.bounds = Bounds { torn, ..self.options.limits.bounds };
        self
    }

    /// The most time that a check may take: one that takes longer fails.
    #[must_use]
    pub fn check_limit(mut self, limit: Duration) -> Self {
        self.options.time_limit = limit;
        self
    }

    /// The most time that the setup and the program may take: one that takes longer is not tested.
    #[must_use]
    pub fn run_limit(mut self, limit: Duration) -> Self {
        self.record.time_limit = limit;
        self
    }

    /// The size of the file system that the program runs on.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: u64) -> Self {
        self.record.size_bytes = size_bytes;
        self.options.size_bytes = size_bytes;
        self
    }

    /// The number of checks that run at the same time.
    #[must_use]
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.options.jobs = jobs;
        self
    }

    /// The directory in which the recording of a test that fails is kept; by default that for
    /// temporary files.
    #[must_use]
    pub fn keep_in(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// The arguments with which this program comes to the same test again. By default those by which
    /// the test harness of Rust runs the one test whose name the thread has.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments = Some(arguments.into_iter().map(Into::into).collect());
        self
    }

    /// Runs the test, and panics with the report if a state fails, or if nothing was tested. A
    /// report without failures is printed.
    ///
    /// # Panics
    /// As said.
    #[track_caller]
    pub fn assert_survives(&self) {
        match self.report() {
            Ok(report) if report.passed() => println!("{report}"),
            Ok(report) => panic!("a power cut can leave what the check does not accept\n{report}"),
            Err(e) => panic!("{e}"),
        }
    }

    /// Runs the test and returns its report; that of a test that fails says how to repeat it with
    /// `weft crash run`.
    ///
    /// In a test with several crash tests, the processes of a later one come by here, too, and get a
    /// report of nothing, under no model: a test that looks at reports should have only one.
    ///
    /// # Errors
    /// [`Error::NotTested`] if the program or the check cannot be tested, and why;
    /// [`Error::NoFuse`]; [`Error::Io`]; [`Error::Sandbox`].
    pub fn report(&self) -> Result<Report> {
        let (Some(program), Some(check)) = (&self.program, &self.check) else {
            let what = if self.program.is_none() { "run" } else { "check" };
            return Err(Error::NotTested(format!("the test has no {what}: give it one")));
        };
        if let Some(wanted) = std::env::var_os(PART_VARIABLE) {
            let wanted = wanted.to_string_lossy();
            let parts =
                [("setup", self.setup.as_ref()), ("run", Some(program)), ("check", Some(check))];
            for (word, part) in parts {
                if let (Some(Part::Function(function)), true) =
                    (part, wanted == format!("{word} {}", self.name))
                {
                    call(&**function);
                }
            }
            // This process is for another crash test of the same test.
            return Ok(nothing());
        }
        let line = |word: &str, part: &Part<'_>| match part {
            Part::Command(line) => Ok(line.clone()),
            Part::Function(_) => self.line_of(word),
        };
        let record = RecordOptions {
            setup: self.setup.as_ref().map(|setup| line("setup", setup)).transpose()?,
            run: line("run", program)?,
            ..self.record.clone()
        };
        let options = CheckOptions { check: line("check", check)?, ..self.options.clone() };
        let worker = WorkerCommand::this_binary();
        let recording = record_program(&worker, &record)?;
        let mut report = check_recording(&worker, &recording, &options, &|_, _| ())?;
        if !report.passed() {
            let log = tempfile::Builder::new()
                .prefix("weft-crash-")
                .suffix(".recording")
                .tempfile_in(&self.directory)
                .and_then(|file| Ok(file.into_temp_path().keep()?))
                .map_err(Error::io(format!("making a file in {}", self.directory.display())))?;
            recording.save(&log)?;
            let log = log.to_string_lossy();
            report.add_replays(&["--replay", &log, "--check", &options.check]);
        }
        Ok(report)
    }

    /// The shell line that starts this program again to call a function.
    fn line_of(&self, word: &str) -> Result<String> {
        let program = std::env::current_exe().map_err(Error::io("looking for this program"))?;
        let arguments = match &self.arguments {
            Some(arguments) => arguments.clone(),
            None => harness_arguments()?,
        };
        let mut line = format!(
            "{PART_VARIABLE}={} {}",
            shell_word(&format!("{word} {}", self.name)),
            shell_word(&program.to_string_lossy())
        );
        for argument in arguments {
            line.push(' ');
            line.push_str(&shell_word(&argument.to_string_lossy()));
        }
        let lost = format!("the test ended before it came to the {word} of {}", self.name);
        line.push_str(&format!(
            "; code=$?; case $code in {SUCCEEDED}) exit 0;; 0) echo {} >&2; exit 127;; esac; exit $code",
            shell_word(&lost)
        ));
        Ok(line)
    }
}

impl<'a> Part<'a> {
    fn new<T: Termination>(function: impl Fn(&Path, &[String]) -> T + 'a) -> Self {
        // The report of an error prints it.
        let succeeds = move |folder: &Path, promises: &[String]| {
            function(folder, promises).report() == ExitCode::SUCCESS
        };
        Self::Function(Box::new(succeeds))
    }
}

/// The arguments by which libtest runs only the test of this thread, also if it is ignored.
fn harness_arguments() -> Result<Vec<OsString>> {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if name != "main" => Ok([
            name,
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--quiet",
            "--test-threads=1",
        ]
        .map(OsString::from)
        .to_vec()),
        _ => Err(Error::NotTested(
            "the name of the test is not known, as this is not the thread in which the test harness \
             runs it: call the crash test there, or say with arguments() how this program comes here"
                .into(),
        )),
    }
}

/// The name of a crash test: the place where it is made, and how often this test has been there. It is
/// the same in each process that runs the same test.
fn name_of(place: &Location<'_>) -> String {
    thread_local! {
        static COUNTS: RefCell<HashMap<String, u32>> = RefCell::default();
    }
    let place = format!("{}:{}:{}", place.file(), place.line(), place.column());
    // All tests may have one thread.
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let count = COUNTS.with_borrow_mut(|counts| {
        let count = counts.entry(format!("{test} {place}")).or_default();
        *count += 1;
        *count
    });
    if count == 1 { place } else { format!("{place} ({count})") }
}

/// Calls a function in the folder, and ends the process.
fn call(function: &Function<'_>) -> ! {
    let folder = std::env::var_os("WEFT_MNT").map(PathBuf::from).unwrap_or_default();
    let promises = std::env::var_os("WEFT_PROMISES").map(PathBuf::from);
    let promises = promises.and_then(|path| std::fs::read_to_string(path).ok());
    let promises: Vec<String> = promises
        .unwrap_or_default()
        .lines()
        .map(|line| line.split_once(PROMISE_MARK).map_or(line, |(_, text)| text).to_owned())
        .collect();
    let succeeded = function(&folder, &promises);
    std::process::exit(if succeeded { SUCCEEDED } else { 1 });
}

/// The report of a test that is not to be run in this process.
fn nothing() -> Report {
    Report {
        recorded: Header::default(),
        calls: 0,
        block_writes: 0,
        syncs: 0,
        promises: 0,
        models: Vec::new(),
        notes: Vec::new(),
    }
}
