//! The mounted file system: operations on the engine, and the locks.
//!
//! # Locks
//!
//! A change takes an engine operation first and the state's lock second, and gives both back when
//! it is done; syncs and device reads of file data happen with neither. The counts of references
//! need only the state's lock.

use crate::format::Format;
use crate::needs::Need;
use crate::state::State;
use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weft_block::BlockDevice;
use weft_patch::{Engine, Op, Policy, ROOM_ATTEMPTS, Shortage, about_to_wait};
use weft_vfs::Error as FsError;

/// Below this many blocks or inodes that can be taken at once, freed ones are waited for.
const TIGHT_BLOCKS: u64 = 64;
const TIGHT_INODES: u64 = 4;

/// The condition under which reading a file changes its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// The access time is not newer than the last change, or a day old (as Linux mounts by
    /// default).
    #[default]
    Relative,
    /// None: it never changes.
    Never,
}

/// A mounted volume of a format: a [`FileSystem`](weft_vfs::FileSystem).
pub struct UnixFs<F: Format> {
    pub(crate) engine: Arc<Engine>,
    pub(crate) device: Arc<dyn BlockDevice>,
    state: Arc<Mutex<State<F>>>,
    pub(crate) block_bytes: u32,
    pub(crate) file_max_bytes: u64,
    read_only: AtomicBool,
    /// Set when space is short and [`make_room`](Self::make_room) would help, as some was freed or
    /// is about to be.
    tight: AtomicBool,
    /// Held for reading by every thread that deletes inodes without names.
    pub(crate) deletions: RwLock<()>,
    /// Set when many access times wait to be written.
    pub(crate) lazy_crowded: AtomicBool,
    pub(crate) atime: Atime,
    /// Held while free space is out of use to be discarded.
    pub(crate) trimming: Mutex<()>,
}

fn locked<F: Format>(state: &Mutex<State<F>>) -> MutexGuard<'_, State<F>> {
    // A panic elsewhere leaves the state as it was between two micro-operations, each of which is a
    // whole change.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Format> fmt::Debug for UnixFs<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixFs")
            .field("engine", &self.engine)
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

impl<F: Format> UnixFs<F> {
    /// Puts the front on a format whose volume lies on `device`, under `engine`, and loads the
    /// root.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the root is no directory, and those of the engine.
    pub fn new(
        engine: Arc<Engine>,
        device: Arc<dyn BlockDevice>,
        format: F,
        read_only: bool,
        atime: Atime,
    ) -> Result<Self> {
        let limits = format.limits();
        let state = Arc::new(Mutex::new(State::new(format, engine.policy())));
        let idle = Arc::clone(&state);
        engine.when_idle(move |op| locked(&idle).tidy(op));
        let fs = Self {
            state,
            engine,
            device,
            block_bytes: limits.block_bytes,
            file_max_bytes: limits.file_max_bytes,
            read_only: AtomicBool::new(read_only),
            tight: AtomicBool::new(false),
            deletions: RwLock::new(()),
            lazy_crowded: AtomicBool::new(false),
            atime: if read_only { Atime::Never } else { atime },
            trimming: Mutex::new(()),
        };
        fs.look(|st, op| {
            st.load_dir(op, limits.root)?.refs = 1;
            Ok(())
        })?;
        Ok(fs)
    }

    /// Keeps at most `max` inodes in memory, and those that are open or wait to be written.
    pub fn keep_inodes(&self, max: usize) {
        self.lock().nodes.set_max(max.max(1));
    }

    /// The engine under the volume: counters, policy.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Reports whether the volume refuses changes: it was opened read-only, or damage was found
    /// since.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Returns the description of the first damage found since the volume was opened, if there is
    /// any.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.lock().format.damage().map(str::to_owned)
    }

    /// The commit policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.engine.policy()
    }

    /// Locks the state and returns it.
    pub fn lock(&self) -> MutexGuard<'_, State<F>> {
        locked(&self.state)
    }

    /// Runs `f` with an operation that changes nothing, and runs it again when blocks that it reads
    /// were not in memory: see [`Engine::look`]. What `f` does to the state before it has read all
    /// that it reads must be right to do twice.
    ///
    /// # Errors
    /// Those of `f` and of the engine.
    pub fn look<R>(&self, mut f: impl FnMut(&mut State<F>, &mut Op<'_>) -> Result<R>) -> Result<R> {
        self.engine.look(|op| {
            let mut st = self.lock();
            let result = f(&mut st, op);
            st.trim(op);
            result
        })?
    }

    /// Runs `f` as one operation of at most `max_blocks` changed blocks, which reads what `needs`
    /// says, then deletes the inodes whose last name it removed.
    ///
    /// # Errors
    /// Those of `f` and of the engine; [`FsError::ReadOnly`].
    pub fn change<R>(
        &self,
        max_blocks: u32,
        needs: &[Need<'_>],
        f: impl FnMut(&mut State<F>, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        let result = self.change_only(max_blocks, needs, f);
        self.reap();
        result
    }

    /// Runs `f` as [`change`](Self::change) does, and deletes no inodes: for changes that remove no
    /// names.
    ///
    /// # Errors
    /// Those of [`change`](Self::change); [`FsError::NoSpace`] only if no space would come by waiting.
    pub fn change_only<R>(
        &self,
        max_blocks: u32,
        needs: &[Need<'_>],
        mut f: impl FnMut(&mut State<F>, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut last = None;
        for _ in 0..ROOM_ATTEMPTS {
            if self.is_read_only() {
                return Err(FsError::ReadOnly.into());
            }
            if self.tight.load(Ordering::Relaxed) {
                self.make_room()?;
            }
            let (result, shortage) = self.attempt(max_blocks, needs, &mut f);
            let is_short = matches!(result, Err(Error::Vfs(FsError::NoSpace)));
            if !is_short || !shortage.can_end(last) {
                return result;
            }
            self.make_room()?;
            last = Some(shortage.changes);
        }
        Err(FsError::NoSpace.into())
    }

    /// Runs `f` as [`change_only`](Self::change_only) does, for changes that allocate nothing: does
    /// not wait for freed space.
    pub(crate) fn change_without_room<R>(
        &self,
        max_blocks: u32,
        needs: &[Need<'_>],
        f: impl FnOnce(&mut State<F>, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        self.attempt(max_blocks, needs, f).0
    }

    /// Runs `f` as one operation, and returns how short space was at its end.
    fn attempt<R>(
        &self,
        max_blocks: u32,
        needs: &[Need<'_>],
        f: impl FnOnce(&mut State<F>, &mut Op<'_>) -> Result<R>,
    ) -> (Result<R>, Shortage) {
        let (mut op, mut st) = loop {
            let bring = |op: &mut Op<'_>| self.lock().bring(op, needs);
            let op = match self.engine.begin_after(max_blocks, bring) {
                Ok(op) => op,
                Err(e) => return (Err(e.into()), Shortage::default()),
            };
            let st = self.lock();
            if !st.format.is_held_up() {
                break (op, st);
            }
            drop(st);
            drop(op);
            if let Err(e) = about_to_wait() {
                return (Err(e.into()), Shortage::default());
            }
            self.wait_for_trim();
        };
        let result = f(&mut st, &mut op);
        let finished = st.format.finish(&mut op);
        st.trim(&op);
        let (blocks, inodes) = st.format.at_once();
        let waits = st.format.has_pending() || !st.nameless.is_empty();
        let tight = waits && (blocks < TIGHT_BLOCKS || inodes < TIGHT_INODES);
        self.tight.store(tight, Ordering::Relaxed);
        if result.is_ok() {
            st.changes += 1;
        }
        if let Err(e @ Error::Corrupt { .. }) = &result {
            self.found_damage(&mut st, e);
        }
        let shortage = Shortage { waits, changes: st.changes };
        (finished.and(result), shortage)
    }

    /// Notes damage that a change met, and makes the volume read-only so that it does not spread.
    fn found_damage(&self, st: &mut State<F>, error: &Error) {
        st.format.note_damage(error.to_string());
        if !self.read_only.swap(true, Ordering::Relaxed) {
            tracing::error!("the volume is damaged and now read-only: {error}");
        }
    }

    /// Makes the space of removed files, and freed space, available.
    pub(crate) fn make_room(&self) -> Result<()> {
        about_to_wait()?;
        self.finish_deletions();
        self.settle_pending()
    }

    /// Makes freed space available, by making the changes durable that freed it.
    pub(crate) fn settle_pending(&self) -> Result<()> {
        if !self.lock().format.has_pending() {
            return Ok(());
        }
        self.engine.sync()?;
        self.look(|st, op| {
            st.format.settle(op);
            Ok(())
        })
    }

    /// Releases all references, deletes the inodes that only these kept alive, makes everything
    /// durable, then runs `mark` as the last change, and ends the engine. Writes nothing to a
    /// volume that is read-only and has no damage.
    ///
    /// # Errors
    /// Those of the engine: something may not be durable.
    pub fn close(&self, mark: impl FnOnce(&mut F, &mut Op<'_>) -> Result<()>) -> Result<()> {
        about_to_wait()?;
        self.lock().give_up_references();
        self.reap();
        if self.is_read_only() && self.lock().format.damage().is_none() {
            return Ok(self.engine.shutdown()?);
        }
        self.do_sync()?;
        // What a sync has made durable must not wait behind the mark.
        self.read_only.store(false, Ordering::Relaxed);
        let marked = self.change_without_room(1, &[], |st, op| mark(&mut st.format, op));
        self.read_only.store(true, Ordering::Relaxed);
        marked?;
        Ok(self.engine.shutdown()?)
    }
}
