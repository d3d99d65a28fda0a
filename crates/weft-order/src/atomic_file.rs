//! Atomic writes of one file, by the commands of F2FS: after a crash, all writes between start and commit
//! are there, or none. SQLite uses them where it is built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`, and
//! writes no rollback journal then.
//!
//! Source of the commands: `include/uapi/linux/f2fs.h` of Linux; their use: `os_unix.c` of SQLite.
//!
//! The writes are changes of an atomic group of the volume's engine, and so need a journal. What they
//! overwrite is kept in memory, and written back, in the same group, if they are aborted: by a command,
//! by the end of the process, or after [`OPEN_MAX`], since syncs of others wait meanwhile.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::io::Errno;
use weft_patch::{AtomicLimits, Engagement, PatchGroup, PatchGroups};
use weft_vfs::{Error, FileSystem, Ino, Invalidate, Result};

use crate::process::Process;
use crate::undo::UndoLog;

/// `F2FS_IOC_START_ATOMIC_WRITE`.
pub(crate) const START: u32 = 0xF501;
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
pub(crate) const COMMIT: u32 = 0xF502;
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`, `F2FS_IOC_ABORT_VOLATILE_WRITE` once.
pub(crate) const ABORT: u32 = 0xF505;
/// `F2FS_IOC_GET_FEATURES`.
pub(crate) const GET_FEATURES: u32 = 0x8004_F50C;
/// All of them.
pub(crate) const COMMANDS: [u32; 4] = [START, COMMIT, ABORT, GET_FEATURES];
/// `F2FS_FEATURE_ATOMIC_WRITE`.
pub(crate) const FEATURE_ATOMIC_WRITE: u32 = 4;

/// The longest time from start to commit.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// The longest time for which the engine waits for the group: enough to write back what was overwritten.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// The fewest blocks of a group that can be undone: the reserve, and some to change.
pub(crate) const BLOCKS_MIN: u32 = 192;
/// The most files at a time.
const FILES_MAX: usize = 16;
/// The size of a block at least, in bytes.
const BLOCK_BYTES_MIN: u32 = 512;

/// The files of a mount with atomic writes in progress.
pub(crate) struct AtomicFiles {
    below: Arc<dyn FileSystem>,
    groups: PatchGroups,
    files: Mutex<HashMap<Ino, Arc<Mutex<AtomicFile>>>>,
    count: AtomicUsize,
    sink: Mutex<Option<Arc<dyn Invalidate>>>,
}

/// A file with atomic writes in progress.
struct AtomicFile {
    ino: Ino,
    owner: Process,
    since: Instant,
    group: PatchGroup,
    /// `None` after the end.
    engagement: Option<Engagement>,
    log: UndoLog,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AtomicFiles {
    pub fn new(below: Arc<dyn FileSystem>, groups: PatchGroups) -> Self {
        Self {
            below,
            groups,
            files: Mutex::default(),
            count: AtomicUsize::new(0),
            sink: Mutex::default(),
        }
    }

    pub fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        *locked(&self.sink) = Some(sink);
    }

    /// Returns a group for atomic writes, or `None` if the volume has no journal that is large enough.
    fn group(&self) -> Option<PatchGroup> {
        let limits = AtomicLimits { open_max: HOLD_MAX, ..AtomicLimits::default() };
        let group = self.groups.create_atomic(limits).ok()?;
        group.atomic_blocks_left().is_some_and(|left| left >= BLOCKS_MIN).then_some(group)
    }

    /// Returns true if files of the volume can be written atomically.
    pub fn is_supported(&self) -> bool {
        self.group().is_some() && !self.below.is_stateful()
    }

    /// Begins atomic writes of a file, by a process. Does nothing if it has begun some.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; `EBUSY` for a file that another process writes so; `EMFILE` for too many files.
    pub fn start(&self, ino: Ino, owner: &Process) -> std::result::Result<(), Errno> {
        if !self.is_supported() {
            return Err(Errno::OPNOTSUPP);
        }
        let group = self.group().ok_or(Errno::OPNOTSUPP)?;
        let mut log = UndoLog::default();
        log.keep_attributes(&*self.below, ino).map_err(|_| Errno::IO)?;
        let engagement = group.engage().map_err(|_| Errno::BUSY)?;
        let mut files = locked(&self.files);
        if let Some(file) = files.get(&ino) {
            return if locked(file).owner == *owner { Ok(()) } else { Err(Errno::BUSY) };
        }
        if files.len() >= FILES_MAX {
            return Err(Errno::MFILE);
        }
        let file = AtomicFile {
            ino,
            owner: owner.clone(),
            since: Instant::now(),
            group,
            engagement: Some(engagement),
            log,
        };
        files.insert(ino, Arc::new(Mutex::new(file)));
        self.count.store(files.len(), Ordering::Release);
        Ok(())
    }

    fn find(&self, ino: Ino) -> Option<Arc<Mutex<AtomicFile>>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        locked(&self.files).get(&ino).cloned()
    }

    fn remove(&self, ino: Ino) {
        let mut files = locked(&self.files);
        files.remove(&ino);
        self.count.store(files.len(), Ordering::Release);
    }

    /// Returns true if a file is being written atomically.
    pub fn has(&self, ino: Ino) -> bool {
        self.find(ino).is_some()
    }

    /// Writes to a file that may be written atomically: `write` does it.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        write: impl FnOnce() -> Result<usize>,
    ) -> Result<usize> {
        let Some(file) = self.find(ino) else { return write() };
        let mut file = locked(&file);
        if file.engagement.is_none() {
            drop(file);
            return write();
        }
        let left = file.group.atomic_blocks_left().unwrap_or(0);
        if u64::from(left) < file.log.reserve_blocks(BLOCK_BYTES_MIN) {
            return Err(Error::TooLarge);
        }
        file.log.keep_content(&*self.below, ino, offset, len_bytes, false)?;
        let engagement = file.engagement.as_ref().expect("just seen");
        engagement.enter_for(write)
    }

    /// Makes the atomic writes of a file durable, all or none.
    ///
    /// # Errors
    /// `EINVAL` if the process has begun none; `ETIMEDOUT` if they took too long, and were undone; the
    /// error of the device.
    pub fn commit(&self, ino: Ino, owner: &Process) -> std::result::Result<(), weft_patch::Error> {
        weft_patch::about_to_wait()?;
        let invalid = || weft_patch::Error::Invalid("no atomic writes of this process".into());
        let file = self.find(ino).ok_or_else(invalid)?;
        let mut file = locked(&file);
        if file.owner != *owner || file.engagement.take().is_none() {
            return Err(invalid());
        }
        self.remove(ino);
        file.group.sync()
    }

    /// Undoes the atomic writes of a file. Does nothing if the process has begun none.
    ///
    /// # Errors
    /// Those of writing back.
    pub fn abort(&self, ino: Ino, owner: &Process) -> Result<()> {
        let Some(file) = self.find(ino) else { return Ok(()) };
        let mut file = locked(&file);
        if file.owner != *owner {
            return Ok(());
        }
        self.undo(&mut file)?;
        drop(file);
        self.announce(ino);
        Ok(())
    }

    /// Announces the old content to the caches above. A write that waits for the file would be waited for:
    /// it is not locked.
    fn announce(&self, ino: Ino) {
        let Some(sink) = locked(&self.sink).clone() else { return };
        sink.inode(ino, true);
        sink.settle();
    }

    fn undo(&self, file: &mut AtomicFile) -> Result<()> {
        let file_log = &mut file.log;
        let Some(engagement) = &file.engagement else { return Ok(()) };
        engagement.enter_for(|| file_log.undo(&*self.below))?;
        file.engagement = None;
        self.remove(file.ino);
        // Nobody is told that it took too long: nothing is left that could be half there.
        let _ = file.group.commit();
        Ok(())
    }

    fn undo_or_keep(&self, file: &mut AtomicFile) {
        if let Err(e) = self.undo(file) {
            tracing::error!("atomic writes could not be undone, and are kept: {e}");
            file.engagement = None;
            self.remove(file.ino);
        }
    }

    /// Undoes all writes.
    pub fn undo_all(&self) {
        let files: Vec<_> = locked(&self.files).values().cloned().collect();
        for file in files {
            let ino = {
                let mut file = locked(&file);
                self.undo_or_keep(&mut file);
                file.ino
            };
            self.announce(ino);
        }
    }

    /// Undoes the writes of processes that have ended, and those that take too long. Returns the
    /// processes of the others, and the time at which the first of them takes too long.
    pub fn sweep(&self) -> (Vec<Arc<OwnedFd>>, Option<Instant>) {
        let files: Vec<_> = locked(&self.files).values().cloned().collect();
        let (mut processes, mut until) = (Vec::new(), None);
        for file in files {
            let mut file = locked(&file);
            let overdue = file.since + OPEN_MAX;
            if Instant::now() >= overdue || !file.owner.is_alive() {
                self.undo_or_keep(&mut file);
                let ino = file.ino;
                drop(file);
                self.announce(ino);
                continue;
            }
            if file.engagement.is_some() {
                processes.push(Arc::clone(&file.owner.ended));
                until = until.into_iter().chain([overdue]).min();
            }
        }
        (processes, until)
    }
}
