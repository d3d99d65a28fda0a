//! A worker process, seen from the parent, and from within.
//!
//! The parent starts a supervisor, which makes the namespaces and starts the worker in them. A
//! parent that ends, however it does, closes its end of the [`Channel`]: the worker sees that and
//! ends (a signal at the parent's death would come when the *thread* ends that started the process).
//! A supervisor that is killed takes the worker with it by such a signal. The end of the worker is
//! that of all processes in its namespace; without one the supervisor, as a subreaper, ends them, and
//! unmounts. Both ends of the channel are open until then, so that the parent sees the worker's end
//! when all is cleared away.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, getpid, set_child_subreaper, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::mutex::locked;

use super::{Channel, Error, Isolate, Isolation, Result, namespace, reap};

/// The variable by which a process knows that it is a supervisor or a worker, and how.
pub(crate) const VARIABLE: &str = "WEFT_CRASH_WORKER";

/// The most mounts at one mount point, one over the other, that are cleared away.
const MOUNTS_MAX: usize = 64;

/// The most time that starting a worker may take, and its end when it was told to.
const START_MAX: Duration = Duration::from_secs(30);
const END_MAX: Duration = Duration::from_secs(15);

/// The connections to all workers, by their supervisors, until [`interrupt`] is called.
static CONNECTIONS: Mutex<Option<BTreeMap<u32, UnixStream>>> = Mutex::new(Some(BTreeMap::new()));

/// Ends all workers of this process, and lets none be started any more: who waits for one has an
/// error, and clears away what it has. For a process that is told to end.
pub fn interrupt() {
    for connection in locked(&CONNECTIONS).take().into_iter().flat_map(BTreeMap::into_values) {
        // An error means that the worker has ended.
        let _ = connection.shutdown(Shutdown::Both);
    }
}

/// Where workers mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoints {
    /// The directory on which each worker mounts that has a namespace of its own.
    pub own: PathBuf,
    /// The directory for one mount point for each of the others.
    pub shared: PathBuf,
}

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The program: this one, unless it is a test.
    pub program: PathBuf,
    /// The arguments with which the program comes to call [`run_if_worker`], before it has started
    /// threads.
    pub arguments: Vec<OsString>,
    /// Where it mounts.
    pub mount_points: MountPoints,
    /// The number of this worker, which tells its mount point apart where all are seen.
    pub number: u32,
    /// How to keep it apart from the host.
    pub isolate: Isolate,
}

impl WorkerOptions {
    /// Makes the options of a worker that is started with these arguments, has its mount point in
    /// `directory`, and has namespaces if possible.
    pub fn new(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        directory: impl Into<PathBuf>,
    ) -> Self {
        let shared = directory.into();
        Self {
            program: "/proc/self/exe".into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            mount_points: MountPoints { own: shared.join("mnt"), shared },
            number: 0,
            isolate: Isolate::Auto,
        }
    }
}

/// What the variable says.
#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Supervisor { isolate: Isolate, why: String, mount_points: MountPoints, number: u32 },
    Worker { user: Option<bool>, why: String, mountpoint: PathBuf },
}

/// The first message of a worker.
#[derive(Debug, Serialize, Deserialize)]
enum Hello {
    Ready { isolation: Isolation, mountpoint: PathBuf },
    NoNamespaces(String),
    NoMountpoint { path: PathBuf, errno: Option<i32> },
}

/// A worker process. Dropping it ends it, with all processes that run in it.
#[derive(Debug)]
pub struct Worker {
    channel: Channel,
    supervisor: Child,
    isolation: Isolation,
    mountpoint: PathBuf,
}

impl Worker {
    /// Starts a worker.
    ///
    /// # Errors
    /// [`Error::Start`], [`Error::NoNamespaces`], [`Error::Mountpoint`]; [`Error::Gone`] if it ended
    /// at once: the program did not call [`run_if_worker`]; [`Error::TimedOut`].
    pub fn start(options: &WorkerOptions) -> Result<Self> {
        let asked = "it was asked for".to_owned();
        match Self::attempt(options, options.isolate, asked) {
            Err(Error::NoNamespaces(why)) if options.isolate == Isolate::Auto => {
                Self::attempt(options, Isolate::Subreaper, why)
            }
            other => other,
        }
    }

    fn attempt(options: &WorkerOptions, isolate: Isolate, why: String) -> Result<Self> {
        let (channel, theirs) = Channel::pair().map_err(Error::Start)?;
        let (mount_points, number) = (options.mount_points.clone(), options.number);
        let role = Role::Supervisor { isolate, why, mount_points, number };
        let supervisor = Command::new(&options.program)
            .args(&options.arguments)
            .env(VARIABLE, serde_json::to_string(&role)?)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            // The standard output of this program is for its results.
            .stdout(Stdio::null())
            // What a terminal sends to this program is not for the workers: they end with it.
            .process_group(0)
            .spawn()
            .map_err(Error::Start)?;
        let isolation = Isolation::Subreaper { why: String::new() };
        // From here on it is ended if something fails.
        let mut worker = Self { channel, supervisor, isolation, mountpoint: PathBuf::new() };
        let connection = worker.channel.as_fd().try_clone_to_owned().map_err(Error::Start)?;
        match &mut *locked(&CONNECTIONS) {
            Some(all) => all.insert(worker.supervisor(), connection.into()),
            None => return Err(Error::Interrupted),
        };
        match worker.channel.receive_within(START_MAX)? {
            Hello::Ready { isolation, mountpoint } => {
                (worker.isolation, worker.mountpoint) = (isolation, mountpoint);
                Ok(worker)
            }
            Hello::NoNamespaces(why) => Err(Error::NoNamespaces(why)),
            Hello::NoMountpoint { path, errno } => {
                let source = errno.map_or_else(
                    || std::io::Error::other("unknown"),
                    std::io::Error::from_raw_os_error,
                );
                Err(Error::Mountpoint { path, source })
            }
        }
    }

    /// Returns how the worker is kept apart from the host.
    #[must_use]
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// Returns the directory on which the worker mounts; nothing is seen there from outside of its
    /// namespace.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the connection to the worker.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Returns the process id of the supervisor, which ends after the worker.
    #[must_use]
    pub fn supervisor(&self) -> u32 {
        self.supervisor.id()
    }

    /// Ends the worker, and returns when all of its processes and its mount are gone.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if they are not after a while: a process waits for a device.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if let Some(all) = &mut *locked(&CONNECTIONS) {
            all.remove(&self.supervisor());
        }
        self.channel.end();
        let deadline = Instant::now() + END_MAX;
        let mut pause = Duration::from_micros(100);
        while Instant::now() < deadline {
            match self.supervisor.try_wait() {
                Ok(None) => std::thread::sleep(pause),
                Ok(Some(_)) => return Ok(()),
                Err(e) => return Err(Error::Wait(e)),
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        // The worker dies with it, at last when its device lets it.
        self.supervisor.kill().and_then(|()| self.supervisor.wait()).map_err(Error::Wait)?;
        Err(Error::TimedOut)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Err(e) = self.finish() {
            tracing::warn!("a worker was not ended: {e}");
        }
    }
}

/// What a worker has: its connection to the parent, and the directory to mount on.
#[derive(Debug)]
pub struct Seat {
    /// The connection to the parent.
    pub channel: Channel,
    /// How this process is kept apart from the host.
    pub isolation: Isolation,
    /// The directory to mount on.
    pub mountpoint: PathBuf,
}

/// Does the work of a worker, and ends the process, if it was started by [`Worker::start`]; returns
/// otherwise. To be called before the program has started threads, as a process with several can
/// make no namespace of users.
pub fn run_if_worker(work: impl FnOnce(Seat)) {
    let Some(role) = std::env::var_os(VARIABLE) else { return };
    let Ok(role) = serde_json::from_slice(role.as_encoded_bytes()) else {
        eprintln!("{VARIABLE} is not for you to set");
        exit(2);
    };
    let stream = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let Ok(stream) = stream else { exit(2) };
    let channel = Channel::new(stream);
    match role {
        Role::Supervisor { isolate, why, mount_points, number } => {
            supervise(channel, isolate, why, &mount_points, number)
        }
        Role::Worker { user, why, mountpoint } => run(channel, user, why, mountpoint, work),
    }
}

/// Makes the namespaces and the worker, and waits for its end.
fn supervise(
    mut channel: Channel,
    isolate: Isolate,
    why: String,
    mount_points: &MountPoints,
    number: u32,
) -> ! {
    let user = if isolate == Isolate::Subreaper {
        // What the worker leaves when it is killed is for this process to clear away.
        let _ = set_child_subreaper(Some(getpid()));
        None
    } else {
        match namespace::enter(isolate == Isolate::UserNamespace) {
            Ok(user) => Some(user),
            Err(why) => refuse(&mut channel, &Hello::NoNamespaces(why)),
        }
    };
    // What others see must not be shared.
    let mountpoint = match user {
        Some(_) => mount_points.own.clone(),
        None => mount_points.shared.join(format!("mnt-{number}")),
    };
    if let Err(e) = fs::create_dir_all(&mountpoint) {
        refuse(&mut channel, &Hello::NoMountpoint { path: mountpoint, errno: e.raw_os_error() });
    }
    let role = Role::Worker { user, why, mountpoint: mountpoint.clone() };
    let Ok(role) = serde_json::to_string(&role) else { exit(1) };
    let worker = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, role)
        .spawn();
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(e) if user.is_some() => {
            // The limit of namespaces appears only now.
            refuse(&mut channel, &Hello::NoNamespaces(format!("a process in them: {e}")))
        }
        Err(e) => {
            eprintln!("cannot start a worker process: {e}");
            exit(1)
        }
    };
    let status = worker.wait();
    if user.is_none() {
        reap::end_all(false);
        clear_mount(&mountpoint);
        // One that is not empty is none that is to be removed.
        let _ = fs::remove_dir(&mountpoint);
    }
    exit(status.ok().and_then(|status| status.code()).unwrap_or(1))
}

fn refuse(channel: &mut Channel, hello: &Hello) -> ! {
    // An error means that the parent has ended.
    let _ = channel.send(hello);
    exit(1)
}

/// Unmounts what a worker that was killed has left, and what its commands have mounted over it. The
/// directory is the worker's own: what is mounted there is, too.
fn clear_mount(mountpoint: &Path) {
    for _ in 0..MOUNTS_MAX {
        match unmount(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(rustix::io::Errno::PERM) => {
                let helper = Command::new("fusermount3")
                    .args(["-u", "-z", "-q", "--"])
                    .arg(mountpoint)
                    .stdin(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
                if !helper.is_ok_and(|status| status.success()) {
                    return;
                }
            }
            // Nothing is mounted there any more.
            Err(_) => return,
        }
    }
}

fn run(
    channel: Channel,
    user: Option<bool>,
    why: String,
    mountpoint: PathBuf,
    work: impl FnOnce(Seat),
) -> ! {
    // If the supervisor has ended before this, the parent's end of the channel still ends it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // Commands must not hold the connection open, nor read from it.
    let null = fs::File::open("/dev/null");
    if null.is_ok_and(|null| rustix::stdio::dup2_stdin(null).is_err()) {
        exit(1);
    }
    let isolation = match user {
        Some(user) => Isolation::Namespaces { user, proc: namespace::complete() },
        None => {
            let _ = set_child_subreaper(Some(getpid()));
            Isolation::Subreaper { why }
        }
    };
    let watched = channel.as_fd().try_clone_to_owned();
    let Ok(watched) = watched else { exit(1) };
    let watch = std::thread::Builder::new().name("weft-crash-parent".into());
    let watching = watch.spawn(move || {
        // Without a request for input only the hang-up ends this.
        let mut fds = [PollFd::new(&watched, PollFlags::RDHUP)];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        exit(1);
    });
    let mut seat = Seat { channel, isolation, mountpoint };
    let hello =
        Hello::Ready { isolation: seat.isolation.clone(), mountpoint: seat.mountpoint.clone() };
    if watching.is_err() || seat.channel.send(&hello).is_err() {
        exit(1);
    }
    work(seat);
    exit(0)
}

/// The variable that commands are not to have.
pub(super) fn variable() -> &'static str {
    VARIABLE
}
