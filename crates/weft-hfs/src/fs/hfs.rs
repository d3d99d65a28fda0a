//! A mounted volume, and its operations under the lock.

use super::node::State;
use super::store::{OpStore, engine_error};
use crate::layout::{BLOCK_BYTES, EPOCH_1904_SECS};
use crate::store::device_error;
use crate::volume::Reserved;
use crate::{Error, Permissions, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_block::BlockDevice;
use weft_patch::{Engine, Op, ROOM_ATTEMPTS, Shortage};
use weft_vfs::Time;

/// A mounted HFS volume.
pub struct Hfs {
    pub(super) engine: Arc<Engine>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) state: Mutex<State>,
    pub(super) read_only: AtomicBool,
    /// Seconds by which local time is ahead of UTC.
    pub(super) utc_offset_secs: i32,
    /// A fixed time, in place of the system's clock.
    pub(super) clock: Option<Time>,
    /// The first block of the allocation blocks, and the number of blocks of each.
    pub(super) geometry: (u64, u64),
    /// File data is not ordered: `async`.
    pub(super) loose_data: bool,
    pub(super) permissions: Permissions,
}

impl fmt::Debug for Hfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hfs")
            .field("engine", &self.engine)
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

/// The most blocks that an operation may change: paths of both trees with all their splits, the
/// bitmap, header, map and MDB; and the data that is journaled with them, two blocks of the engine
/// for each allocation block of a step.
pub(super) const BLOCKS: u32 = 160 + 2 * STEP_ALLOC_BLOCKS as u32;

/// The number of allocation blocks of a fork that one operation writes under a journal. A block of
/// the journal that is not within one allocation block is journaled whatever its content, and an
/// operation must fit the log.
pub(super) const STEP_ALLOC_BLOCKS: usize = 64;

impl Hfs {
    /// Returns the engine under the volume, which has counters and the commit policy.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns true if changes are refused: by the mount options, by a lock on the volume, or since
    /// damage was found.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Returns the damage that opening and the listings so far have passed over, in words, each
    /// item once.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        let st = self.lock();
        st.at_opening.iter().cloned().chain(st.vol.passed_over()).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The panic of another thread has been reported; each change of the volume is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        self.clock.unwrap_or_else(Time::now)
    }

    /// Converts a time to the volume's dates: seconds since 1904 in local time.
    pub(super) fn date(&self, time: Time) -> u32 {
        let secs = time.secs.saturating_add(EPOCH_1904_SECS + i64::from(self.utc_offset_secs));
        u32::try_from(secs.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
    }

    /// Converts a date of the volume to a time.
    pub(super) fn time(&self, date: u32) -> Time {
        let secs = i64::from(date) - EPOCH_1904_SECS - i64::from(self.utc_offset_secs);
        Time { secs, nanos: 0 }
    }

    /// Runs `f` with a store that it must not change, and runs it again when blocks that it reads
    /// were not in memory: see [`Engine::look`]. What `f` does to the state before it has read all
    /// that it reads must be right to do twice.
    pub(super) fn look<R>(
        &self,
        mut f: impl FnMut(&mut State, &mut OpStore<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let looked = self.engine.look(|op| self.with_store(&mut self.lock(), op, &mut f));
        looked.map_err(|e| engine_error(&e))?
    }

    /// Runs `f` with a store of which it changes at most `max_blocks`.
    pub(super) fn operate<R>(
        &self,
        max_blocks: u32,
        f: impl FnOnce(&mut State, &mut OpStore<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let mut op = self.engine.begin(max_blocks).map_err(|e| engine_error(&e))?;
        let mut st = self.lock();
        self.with_store(&mut st, &mut op, f)
    }

    /// Runs `f` as one operation. A failed `f` must not have changed anything: if space is short
    /// while some is being freed, makes room and runs `f` again.
    ///
    /// # Errors
    /// Those of `f`; [`Error::NoSpace`] only if no space would come by waiting.
    pub(super) fn change<R>(
        &self,
        mut f: impl FnMut(&mut State, &mut OpStore<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let (mut last, mut zeroed) = (None, Vec::new());
        for _ in 0..ROOM_ATTEMPTS {
            let (result, shortage) = loop {
                match self.attempt(&mut zeroed, &mut f) {
                    (Err(Error::Unzeroed), _) => self.zero(&mut zeroed)?,
                    ended => break ended,
                }
            };
            if !zeroed.is_empty() {
                // The operation did not begin.
                self.lock().vol.drop_zeroed(std::mem::take(&mut zeroed));
            }
            if !matches!(result, Err(Error::NoSpace)) || !shortage.can_end(last) {
                return result;
            }
            self.make_room()?;
            last = Some(shortage.changes);
        }
        Err(Error::NoSpace)
    }

    /// Runs `f` as one operation, once.
    pub(super) fn change_once<R>(
        &self,
        f: impl FnOnce(&mut State, &mut OpStore<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let mut zeroed = Vec::new();
        let (result, _) = self.attempt(&mut zeroed, f);
        self.lock().vol.drop_zeroed(zeroed);
        result
    }

    /// Zeroes blocks that an operation reserved, on the device and without the locks. Nothing on
    /// the disk leads to them yet.
    pub(super) fn zero(&self, reserved: &mut Vec<Reserved>) -> Result<()> {
        let mut result = Ok(());
        for (block, count) in reserved.iter_mut().flat_map(|r| std::mem::take(&mut r.parts)) {
            let bytes = BLOCK_BYTES as u64;
            result = result.and_then(|()| self.device.write_zeroes(block * bytes, count * bytes));
        }
        let result = result.and_then(|()| self.device.flush());
        result.map_err(|e| {
            self.lock().vol.drop_zeroed(std::mem::take(reserved));
            device_error(&e)
        })
    }

    /// Runs `f` as one operation, and returns how short space was at its end. `zeroed` are the
    /// blocks that were zeroed for it; if it returns [`Error::Unzeroed`], they are those of the
    /// next attempt.
    pub(super) fn attempt<R>(
        &self,
        zeroed: &mut Vec<Reserved>,
        f: impl FnOnce(&mut State, &mut OpStore<'_, '_>) -> Result<R>,
    ) -> (Result<R>, Shortage) {
        if self.is_read_only() {
            return (Err(Error::ReadOnly), Shortage::default());
        }
        let mut op = match self.engine.begin(BLOCKS) {
            Ok(op) => op,
            Err(e) => return (Err(engine_error(&e)), Shortage::default()),
        };
        let mut st = self.lock();
        st.vol.set_now(self.date(self.now()));
        st.vol.zeroed = std::mem::take(zeroed);
        let (result, finished) = self.with_store(&mut st, &mut op, |st, s| {
            let result = f(st, s);
            (result, st.vol.finish(s))
        });
        let unused = std::mem::take(&mut st.vol.zeroed);
        match &result {
            Err(Error::Unzeroed) => {
                *zeroed = unused;
                zeroed.extend(st.vol.unzeroed.take());
            }
            _ => st.vol.drop_zeroed(unused),
        }
        match &result {
            Ok(_) => st.change_count += 1,
            Err(e @ Error::Corrupt { .. }) => {
                st.found_damage(e);
                self.read_only.store(true, Ordering::Relaxed);
                tracing::error!("the volume is damaged and now read-only: {e}");
            }
            Err(_) => {}
        }
        let short = matches!(result, Err(Error::NoSpace));
        let waits = short && (!st.pending.is_empty() || !st.ending().is_empty());
        (finished.and(result), Shortage { waits, changes: st.change_count })
    }

    /// Runs `f` with the state and a store of the operation.
    pub(super) fn with_store<'e, R>(
        &'e self,
        st: &mut State,
        op: &mut Op<'e>,
        f: impl FnOnce(&mut State, &mut OpStore<'_, '_>) -> R,
    ) -> R {
        // The store lists the freed blocks meanwhile. If `f` panics they are lost to this mount.
        let mut pending = std::mem::take(&mut st.pending);
        let store = OpStore::new(op, &self.engine, &*self.device, &mut pending, self.geometry);
        let mut store = if self.loose_data { store.with_loose_data() } else { store };
        let result = f(st, &mut store);
        st.pending = pending;
        result
    }

    /// Makes the space of removed files available: frees their blocks, and makes the changes that
    /// freed space durable.
    pub(super) fn make_room(&self) -> Result<()> {
        let ending = self.lock().ending();
        for id in ending {
            self.end_life(id);
        }
        if self.lock().pending.is_empty() {
            return Ok(());
        }
        self.engine.sync().map_err(|e| engine_error(&e))?;
        self.look(|st, s| {
            st.vol.settle(s);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::OpenOptions;
    use crate::layout::Name;
    use crate::mkfs::{MkfsOptions, mkfs};
    use std::sync::Weak;
    use weft_block::{Change, Filter, MemoryDevice};
    use weft_patch::{JournalMode, Options, Policy};
    use weft_vfs::{Caller, FileKind, FileSystem, Handle, SetAttr};

    /// A device that is not written or flushed while the volume is locked.
    struct Watched {
        below: MemoryDevice,
        fs: Mutex<Weak<Hfs>>,
    }

    impl Watched {
        fn assert_unlocked(&self, what: &str) {
            if let Some(fs) = self.fs.lock().unwrap().upgrade() {
                assert!(fs.state.try_lock().is_ok(), "{what} under the lock");
            }
        }
    }

    impl Filter for Watched {
        type Below = MemoryDevice;

        fn below(&self) -> &MemoryDevice {
            &self.below
        }

        fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
            self.assert_unlocked("the device is written");
            change.apply(&self.below)
        }

        fn filter_flush(&self) -> weft_block::Result<()> {
            self.assert_unlocked("the device is flushed");
            self.below.flush()
        }
    }

    /// Long forks are zeroed, and trees grow.
    #[test]
    fn the_device_is_neither_written_nor_flushed_under_the_lock() {
        for policy in [Policy::Soft, Policy::Async, Policy::Journal(JournalMode::Ordered)] {
            let below = MemoryDevice::new(64 << 20);
            mkfs(&below, &MkfsOptions::new(Name::new(b"volume").unwrap(), 3_000_000_000)).unwrap();
            // The old content of the disk.
            let used = below.geometry().len_bytes / 4;
            let old = vec![0xEE; usize::try_from(used).unwrap()];
            below.write_at(&old, 2 * used).unwrap();
            let device = Arc::new(Watched { below, fs: Mutex::default() });
            let journal = matches!(policy, Policy::Journal(_))
                .then(|| Arc::new(MemoryDevice::new(4 << 20)) as Arc<dyn BlockDevice>);
            let engine = Options { policy, background: false, ..Options::default() };
            let options = OpenOptions { engine, journal, ..OpenOptions::default() };
            let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
            *device.fs.lock().unwrap() = Arc::downgrade(&fs);
            let make = |name: &[u8]| {
                let made = fs.mknod(&Caller::ROOT, fs.root(), name, FileKind::Regular, 0o644, 0);
                made.unwrap().attr.ino
            };
            let (long, gap) = (make(b"long"), make(b"gap"));
            let len = SetAttr { size_bytes: Some(30_000_000), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, long, &len).unwrap();
            fs.write(&Caller::ROOT, gap, Handle::NONE, 20_000_001, b"end").unwrap();
            for i in 0..3000 {
                make(format!("a long name of file {i:06}").as_bytes());
            }
            fs.sync().unwrap();
            let mut buf = vec![1; 30_000_000];
            assert_eq!(fs.read(long, Handle::NONE, 0, &mut buf).unwrap(), buf.len());
            assert!(buf.iter().all(|&b| b == 0), "{policy:?}");
            assert_eq!(fs.read(gap, Handle::NONE, 0, &mut buf).unwrap(), 20_000_004);
            assert!(buf.iter().take(20_000_001).all(|&b| b == 0), "{policy:?}");
            assert_eq!(buf.get(20_000_001..20_000_004), Some(&b"end"[..]));
            let free = fs.lock().vol.free_now();
            fs.setattr(&Caller::ROOT, long, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })
                .unwrap();
            fs.sync().unwrap();
            assert!(fs.lock().vol.free_now() > free, "{policy:?}");
            fs.unmount().unwrap();
            let report = crate::fsck::check(&device.below).unwrap();
            assert!(report.is_clean(), "{policy:?}: {:?}", report.problems);
        }
    }

    /// The blocks that are reserved to be zeroed are free again when the operation fails.
    #[test]
    fn an_operation_that_fails_gives_zeroed_blocks_back() {
        let below = MemoryDevice::new(8 << 20);
        mkfs(&below, &MkfsOptions::new(Name::new(b"volume").unwrap(), 3_000_000_000)).unwrap();
        let engine = Options { background: false, ..Options::default() };
        let options = OpenOptions { engine, ..OpenOptions::default() };
        let fs = Hfs::open(Arc::new(below), options).unwrap();
        let made = fs.mknod(&Caller::ROOT, fs.root(), b"file", FileKind::Regular, 0o644, 0);
        let ino = made.unwrap().attr.ino;
        let free = fs.lock().vol.free_now();
        let id = u32::try_from(ino.0).unwrap();
        let mut attempts = 0;
        let result = fs.change(|st, s| {
            attempts += 1;
            if attempts > 1 {
                return Err(Error::Refused("another reason"));
            }
            st.with_file(s, id, |vol, s, file| {
                vol.set_len(s, file, crate::layout::Fork::Data, 4_000_000).map(|_| ())
            })
        });
        assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");
        assert_eq!((attempts, fs.lock().vol.free_now()), (2, free));
        fs.unmount().unwrap();
    }
}
