//! An attached origin: its device, its mode, and what is known of its writes and flushes.

use crate::lock::{Lock, LockOrder, Rank};
use crate::stats::{Count, Counters};
use crate::{Error, Mode, OriginId};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_block::BlockDevice;

/// The state of an origin's flushes, which run one at a time.
#[derive(Debug)]
pub(crate) struct Flushes {
    pub(crate) one: Lock<()>,
    /// Number of flushes begun, and of the last that succeeded.
    pub(crate) begun: AtomicU64,
    pub(crate) good: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Number of the last write that a failed flush is known to have put in doubt.
    pub(crate) lost: AtomicU64,
    /// Range that may be lost and that no error has reported to the user yet.
    pub(crate) untold: Mutex<Option<Range<u64>>>,
}

/// Whether requests go through the cache. Changed under the state's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Link {
    /// Requests go through the cache.
    Attached,
    /// The origin is being detached: requests that change it wait for the outcome.
    Leaving,
    /// Requests go to the origin, as if there were no cache; its number may belong to another
    /// origin.
    Gone,
}

/// An attached origin.
///
/// # Failed flushes
///
/// All data written since the last successful flush may then be intact, lost or torn, and no later
/// flush brings it back: kernels, for one, mark pages clean that they failed to write. So a failed
/// flush is a power cut of the origin, and the cache treats it as one:
///
/// - Clean blocks in the regions written since the last successful flush are dropped; they were the
///   content of those writes. The intents of those regions stay for the rest of this life, even
///   after a successful flush, because the origin may serve those writes from its volatile memory.
///   So no record of a clean block there outlives the life.
/// - A block that is being written back stays dirty if any flush failed since it was sent.
/// - Each failure that may have lost a write is reported: by the flush that failed, if a user asked
///   for it, or else by the user's next one. A flush that waited for a failed one fails too.
pub(crate) struct Origin {
    pub(crate) nr: u16,
    pub(crate) id: OriginId,
    pub(crate) device: Arc<dyn BlockDevice>,
    mode: AtomicU8,
    /// Number of writes to the origin that have returned.
    pub(crate) written: AtomicU64,
    /// Number of those writes that were flushed.
    pub(crate) flushed: AtomicU64,
    pub(crate) flushes: Flushes,
    link: AtomicU8,
    /// Time from which write-back may be retried, and the length of the next pause.
    pub(crate) retry_ms: AtomicU64,
    pub(crate) pause_ms: AtomicU64,
}

impl Origin {
    /// Creates an origin that is attached, and that no request has reached yet.
    pub(crate) fn new(
        order: LockOrder,
        nr: u16,
        id: OriginId,
        device: Arc<dyn BlockDevice>,
        mode: Mode,
    ) -> Self {
        let origin = Self {
            nr,
            id,
            device,
            mode: AtomicU8::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flushes: Flushes {
                one: Lock::new(order, Rank::OriginFlush, ()),
                begun: AtomicU64::new(0),
                good: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                lost: AtomicU64::new(0),
                untold: Mutex::default(),
            },
            link: AtomicU8::new(Link::Attached as u8),
            retry_ms: AtomicU64::new(0),
            pause_ms: AtomicU64::new(0),
        };
        origin.set_mode(mode);
        origin
    }

    pub(crate) fn mode(&self) -> Mode {
        let index = usize::from(self.mode.load(Ordering::Acquire));
        Mode::ALL.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        let index = Mode::ALL.iter().position(|m| *m == mode).unwrap_or(0);
        self.mode.store(index as u8, Ordering::Release);
    }

    pub(crate) fn link(&self) -> Link {
        match self.link.load(Ordering::Acquire) {
            0 => Link::Attached,
            1 => Link::Leaving,
            _ => Link::Gone,
        }
    }

    /// Changes the link; for [`Origins::set_link`](crate::origins::Origins::set_link).
    pub(crate) fn set_link(&self, link: Link) {
        self.link.store(link as u8, Ordering::Release);
    }

    /// Counts a failed request of the origin, and returns its error with the origin's label.
    pub(crate) fn failed(&self, counters: &Counters, source: weft_block::Error) -> Error {
        counters.origin_errors.add(1);
        Error::Origin { label: self.id.label.clone(), source }
    }

    /// Counts a write to the origin that has returned, and returns its number.
    pub(crate) fn count_write(&self) -> u64 {
        self.written.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the number of failed flushes.
    pub(crate) fn failures(&self) -> u64 {
        self.flushes.failed.load(Ordering::Acquire)
    }

    /// Marks unreported losses as reported: the user has got an error that says the same.
    pub(crate) fn is_told(&self) {
        self.untold().take();
    }

    /// Returns true if a user's flush has to go to the origin.
    pub(crate) fn flush_needed_by_user(&self) -> bool {
        self.flush_needed() || !self.mode().writes_back() || self.untold().is_some()
    }

    pub(crate) fn untold(&self) -> MutexGuard<'_, Option<Range<u64>>> {
        self.flushes.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn flush_needed(&self) -> bool {
        self.written.load(Ordering::Acquire) > self.flushed.load(Ordering::Acquire)
    }
}
