//! A folder in use, from which a power cut can be taken at any moment.
//!
//! The content of a directory is mounted elsewhere; what programs do there stays in memory, and the
//! directory follows what is durable under a [`Model`]. [`LiveFolder::report`] says what is not,
//! [`LiveFolder::lose`] takes it away.

mod callers;
mod control;
mod gate;
mod loss;
mod mirror;
mod pending;
mod trigger;
mod window;
#[cfg(test)]
mod workload;

use std::fmt;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_vfs::FileSystem;
use weft_vfs::memfs::{MemFs, MemLimits};

use crate::mutex::locked;
use crate::recorder::Recorder;
use crate::report::count;
use crate::{Error, Model, Result};
use callers::wait_until_gone;
use gate::{Fired, Gate};
use mirror::Mirror;
use trigger::Trigger;
use window::Window;

pub use control::{Address, Answer, Client, Request, Server};
pub use loss::{Loss, LossMode};
pub use pending::{Pending, PendingFile};
pub use trigger::{CALLS, CallPattern, CutPoint};

/// The interval at which the directory is brought up to date.
const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
/// The interval at which a request that waits for a call looks whether its client is still there.
const WAIT_PERIOD: Duration = Duration::from_millis(50);

/// The options of a [`LiveFolder`].
#[derive(Debug, Clone, Copy)]
pub struct LiveOptions {
    /// The model of persistence: which changes are durable, and in which order.
    pub model: Model,
    /// The size of the file system, in bytes. All of its content is in memory.
    pub size_bytes: u64,
    /// At most this much data is held that is not durable, in bytes. Of more, the oldest are written
    /// back, as a kernel does.
    pub unsynced_bytes: u64,
}

/// A directory, its content in memory, and what is durable of it.
#[derive(Debug)]
pub struct LiveFolder {
    memory: Arc<MemFs>,
    recorder: Arc<Recorder>,
    gate: Arc<Gate>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    window: Window,
    mirror: Mirror,
    /// The number of calls, of all, when the directory followed last.
    followed: u64,
    /// Why the directory does not follow.
    problem: Option<String>,
}

/// The answer to [`Request::Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveReport {
    /// The model.
    pub model: Model,
    /// The changes that a power cut could take away.
    #[serde(flatten)]
    pub pending: Pending,
    /// Calls that were written back although the program did not ask for it, because too much was
    /// held.
    pub written_back: u64,
    /// The number of requests that wait for a call.
    pub waiting: usize,
    /// Why the directory does not hold what is durable; `None` if it does.
    pub problem: Option<String>,
}

/// The result of a power cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The call at which it came, such as `fsync("wal/1")`.
    pub at: Option<String>,
    /// The changes that are lost.
    pub lost: Pending,
    /// A page that was written in part: of the last write, its file and the first byte of the page.
    pub torn: Option<(String, u64)>,
    /// The number of calls whose changes could have been lost, and were not.
    pub kept_calls: u64,
    /// The processes that were killed.
    pub killed: Vec<u32>,
    /// Why the directory does not hold what is left; `None` if it does.
    pub problem: Option<String>,
}

impl LiveFolder {
    /// Reads all of a directory.
    ///
    /// # Errors
    /// [`Error::Fs`].
    pub fn open(directory: Arc<dyn FileSystem>, options: &LiveOptions) -> Result<Arc<Self>> {
        let mirror = Mirror::load(directory, options.size_bytes).map_err(|e| match e {
            weft_vfs::Error::Busy => Error::Directory(
                "an earlier weft crash mount was interrupted while it wrote to the directory \
                 (it has a .weft-crash-staging)"
                    .into(),
            ),
            e => Error::Fs { what: "reading the directory".into(), source: e },
        })?;
        let limits = MemLimits { capacity_bytes: options.size_bytes, ..MemLimits::default() };
        let memory = Arc::new(MemFs::with_limits(limits));
        memory.restore(mirror.tree());
        let recorder = Arc::new(Recorder::unbounded(Arc::clone(&memory)));
        let window = Window::new(options.model, memory.snapshot(), options.unsynced_bytes);
        let inner = Inner { window, mirror, followed: 0, problem: None };
        let folder = Arc::new(Self {
            gate: Arc::new(Gate::new(Arc::clone(&recorder) as Arc<dyn FileSystem>)),
            memory,
            recorder,
            inner: Mutex::new(inner),
        });
        let (shortens, ends) = (Arc::downgrade(&folder), Arc::downgrade(&folder));
        folder.gate.set_hooks(
            Box::new(move || shortens.upgrade().map_or((), |folder| folder.shorten())),
            Box::new(move || ends.upgrade().map_or(Ok(()), |folder| folder.write_all())),
        );
        let follows = Arc::downgrade(&folder);
        let thread = std::thread::Builder::new().name("weft-crash-follow".into());
        thread
            .spawn(move || follow(&follows))
            .map_err(Error::io("starting the thread that writes to the directory"))?;
        Ok(folder)
    }

    /// The file system to be mounted. Its [`unmount`](FileSystem::unmount) writes everything to the
    /// directory.
    #[must_use]
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.gate) as Arc<dyn FileSystem>
    }

    /// Returns what is not durable now. The directory holds the rest when this returns.
    ///
    /// # Errors
    /// [`Error::Fs`].
    pub fn report(&self) -> Result<LiveReport> {
        let mut inner = locked(&self.inner);
        let moment = inner.window.moment(&self.recorder);
        inner.follow(&moment.durable()?, moment.end());
        Ok(LiveReport {
            model: inner.window.model(),
            pending: Pending::of(&moment, |_| true),
            written_back: inner.window.written_back(),
            waiting: self.gate.armed(),
            problem: inner.problem.clone(),
        })
    }

    /// Makes everything durable, as `sync` does on a disk. Pages that were changed through a mapping,
    /// and that the kernel has not written yet, are not known here.
    ///
    /// # Errors
    /// [`Error::Fs`].
    pub fn sync(&self) -> Result<()> {
        let mut inner = locked(&self.inner);
        let quiet = self.gate.hold_calls();
        let tree = self.memory.snapshot();
        inner.window.restart(tree.clone(), &self.recorder);
        drop(quiet);
        let end = inner.window.end(&self.recorder);
        inner.follow(&tree, end);
        match &inner.problem {
            Some(problem) => Err(Error::Directory(problem.clone())),
            None => Ok(()),
        }
    }

    /// Cuts the power now: takes away what `loss` says. Files that are open are gone; a call with
    /// them fails with `ESTALE`. `kill_for`: kills the processes that have used the folder before, but
    /// for this one and its ancestors.
    ///
    /// # Errors
    /// [`Error::Pattern`], [`Error::NothingToLose`], [`Error::StillRunning`]: nothing is lost.
    pub fn lose(&self, loss: &Loss, kill_for: Option<u32>) -> Result<Lost> {
        self.gate.power_off();
        let killed = kill_for.map(|asker| self.gate.kill_callers(asker)).unwrap_or_default();
        self.take(loss, None, killed)
    }

    /// Cuts the power at a call. `armed` is called when each later call counts; then `goes_on` is
    /// asked now and then whether to wait on. Returns `None` if it said no.
    ///
    /// # Errors
    /// As [`lose`](Self::lose).
    pub fn lose_at(
        &self,
        loss: &Loss,
        at: &CutPoint,
        kill_for: Option<u32>,
        armed: &dyn Fn(),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Lost>> {
        let id = self.gate.arm(Trigger::new(at)?, kill_for);
        armed();
        loop {
            if let Some(Fired { call, killed }) = self.gate.wait_for(id, WAIT_PERIOD) {
                self.gate.wait_for_calls();
                return self.take(loss, Some(call), killed).map(Some);
            }
            if !goes_on() {
                if self.gate.disarm(id) {
                    // It came just now, and nobody listens: the disk was only away for a moment.
                    self.gate.power_on();
                }
                return Ok(None);
            }
        }
    }

    /// Takes away what is lost, while the power is off, and turns it on.
    fn take(&self, loss: &Loss, at: Option<String>, killed: Vec<u32>) -> Result<Lost> {
        let taken = match wait_until_gone(&killed) {
            Some(pid) => Err(Error::StillRunning(pid)),
            None => self.take_from(loss),
        };
        self.gate.power_on();
        let (mut lost, tree) = taken?;
        (lost.at, lost.killed) = (at, killed);
        let mut inner = locked(&self.inner);
        let end = inner.window.end(&self.recorder);
        inner.follow(&tree, end);
        lost.problem.clone_from(&inner.problem);
        Ok(lost)
    }

    fn take_from(&self, loss: &Loss) -> Result<(Lost, weft_vfs::memfs::Snapshot)> {
        let mut inner = locked(&self.inner);
        let moment = inner.window.moment(&self.recorder);
        let state = loss.state(&moment)?;
        // The kernel drops what it has cached, and writes what was changed through mappings: that
        // fails, as the power is off.
        let known = self.gate.take_known();
        if let Some(sink) = self.memory.invalidate() {
            known.into_iter().for_each(|ino| sink.inode(ino, true));
            sink.settle();
        }
        let is_lost = |place: usize| !state.kept.contains(place);
        let lost = Lost {
            at: None,
            lost: Pending::of(&moment, is_lost),
            torn: state.torn.and_then(|torn| moment.page_of(torn.place as usize)),
            kept_calls: Pending::of(&moment, |place| !is_lost(place)).calls,
            killed: Vec::new(),
            problem: None,
        };
        self.memory.restore(&moment.tree(&state)?);
        let tree = self.memory.snapshot();
        inner.window.restart(tree.clone(), &self.recorder);
        Ok((lost, tree))
    }

    /// Drops what is recorded of calls that are durable, if there is much of it.
    fn shorten(&self) {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is shortened, or restored, at the moment; waiting for that here might be waited for.
            Err(TryLockError::WouldBlock) => return,
        };
        if inner.window.is_long(&self.recorder)
            && let Err(e) = inner.window.shorten(&self.recorder)
        {
            tracing::error!("weft crash mount: {e}");
        }
    }

    /// Brings the directory to what is durable, if that may have changed.
    fn follow(&self) {
        let mut inner = locked(&self.inner);
        if inner.followed == inner.window.end(&self.recorder) {
            return;
        }
        let moment = inner.window.moment(&self.recorder);
        match moment.durable() {
            Ok(tree) => inner.follow(&tree, moment.end()),
            Err(e) => inner.problem = Some(e.to_string()),
        }
    }

    /// Brings the directory to what is in memory.
    fn write_all(&self) -> weft_vfs::Result<()> {
        let mut inner = locked(&self.inner);
        inner.mirror.follow(&self.memory.snapshot())?;
        inner.mirror.fs().sync()
    }
}

impl Inner {
    fn follow(&mut self, tree: &weft_vfs::memfs::Snapshot, end: u64) {
        self.followed = end;
        let problem = self.mirror.follow(tree).err().map(|e| e.to_string());
        if let Some(problem) =
            problem.as_ref().filter(|problem| Some(*problem) != self.problem.as_ref())
        {
            tracing::error!("weft crash mount: cannot write to the directory: {problem}");
        }
        self.problem = problem;
    }
}

/// The directory follows until the folder is gone.
fn follow(folder: &Weak<LiveFolder>) {
    loop {
        std::thread::sleep(FOLLOW_PERIOD);
        let Some(folder) = folder.upgrade() else { return };
        folder.follow();
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pending.is_empty() {
            writeln!(f, "everything is durable (model {})", self.model)?;
        } else {
            let Pending { calls, bytes, .. } = self.pending;
            let (calls, bytes) = (count(calls, "call"), count(bytes, "byte"));
            writeln!(f, "not durable (model {}): {calls}, {bytes}", self.model)?;
            write!(f, "{}", self.pending)?;
        }
        if self.written_back > 0 {
            let calls = count(self.written_back, "call");
            writeln!(f, "written back unasked, as more was held than --unsynced-limit: {calls}")?;
        }
        match &self.problem {
            Some(problem) => writeln!(f, "THE DIRECTORY IS NOT UP TO DATE: {problem}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            writeln!(f, "the power was cut at {at}")?;
        }
        if self.lost.is_empty() && self.torn.is_none() {
            writeln!(f, "nothing is lost: everything was durable")?;
        } else {
            let Pending { calls, bytes, .. } = self.lost;
            writeln!(f, "lost: of {}, {}", count(calls, "call"), count(bytes, "byte"))?;
            write!(f, "{}", self.lost)?;
        }
        if let Some((path, at)) = &self.torn {
            writeln!(f, "{path:?}: the page at byte {at} was written in part")?;
        }
        if self.kept_calls > 0 {
            let calls = count(self.kept_calls, "call");
            writeln!(f, "kept, though not durable: changes of {calls}")?;
        }
        if !self.killed.is_empty() {
            let pids: Vec<String> = self.killed.iter().map(u32::to_string).collect();
            writeln!(f, "killed: {}", pids.join(", "))?;
        }
        match &self.problem {
            Some(problem) => writeln!(f, "THE DIRECTORY IS NOT UP TO DATE: {problem}"),
            None => Ok(()),
        }
    }
}
