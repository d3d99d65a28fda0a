//! An output that is being added to the cache, and the writer thread that writes it there.
//!
//! Readers pass the data they read to the writer thread. If it falls behind, readers wait for it if
//! producing a piece again would be expensive, as with a program; if all stages work in place, and
//! producing a piece again costs no more than copying it, readers go on, and the writer thread
//! produces the missing parts itself once no client is reading, at the lowest priority. (Waiting
//! halved the rate of the first read of 512 MiB: the cache's file system takes a GiB in about a
//! second.)

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use blake3::Hash;
use weft_vfs::{Attr, Ino};

use super::locks::locked;
use super::version::FileVersion;
use crate::OutputCache;
use crate::outputs::{End, Filling, Spans};

/// Maximum number of pieces in the queue.
const QUEUED_MAX: usize = 8;

/// The time that the writer thread waits for the next piece.
const LINGERS: Duration = Duration::from_millis(100);

/// The number of such waits for readers to pause, after which the writer thread produces a missing
/// part regardless.
const PAUSES_MAX: usize = 10;

/// Bytes that the writer thread produces at a time, aligned to multiples of this size: the written
/// data then lies in the largest folios of the page cache, and is read faster.
const MADE_BYTES: u64 = 2 << 20;

/// Maximum number of disjoint missing parts: a client that reads at random does not read the whole
/// output.
const OWED_MAX: usize = 256;

/// A request to the cache for the output of a file.
pub(super) struct OutputRequest {
    pub(super) seen: FileVersion,
    pub(super) version: u64,
    pub(super) stored: Ino,
    /// The attributes of the stored file.
    pub(super) attr: Attr,
    pub(super) network: Hash,
    /// All stages work in place: a piece can be produced again at almost no cost.
    pub(super) in_place: bool,
}

impl OutputRequest {
    /// Returns the state of the file at the time of the request.
    pub(super) fn of(&self) -> (FileVersion, u64) {
        (self.seen, self.version)
    }
}

/// An output that is being added to the cache; see the module page.
pub(super) struct Fill {
    pub(super) cache: Arc<OutputCache>,
    pub(super) filling: Mutex<Filling>,
    /// No more data is accepted.
    over: AtomicBool,
    queue: Mutex<Queue>,
    /// Signalled on changes of the queue and of `over`.
    changed: Condvar,
    pub(super) request: OutputRequest,
    /// The hash of the stored content, if it was computed before.
    pub(super) content: Option<Hash>,
    pub(super) looks: Option<Hash>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// The missing parts: ranges that were read but not passed to the writer thread.
    owed: Spans,
    /// The number of reads.
    readings: u64,
    /// A writer thread is running.
    working: bool,
}

/// A piece of an output.
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
    /// The output ends with this piece.
    pub(super) last: bool,
}

pub(super) enum Work {
    Write(Piece),
    /// A part to produce and write: its begin and end.
    Make(u64, u64),
}

/// The result of passing data to the queue.
pub(super) enum Added {
    /// A writer thread takes the data, or it is no longer needed.
    Taken,
    /// The caller must start a writer thread.
    WantsThread,
    /// The reads are too scattered for the output to be read completely.
    Scattered,
}

impl Queue {
    fn owed_step(&mut self) -> Option<Work> {
        let (from, upto) = self.owed.first()?;
        let end = upto.min((from / MADE_BYTES + 1).saturating_mul(MADE_BYTES));
        self.owed.remove_before(end);
        Some(Work::Make(from, end))
    }

    /// Marks the writer thread as running, and returns whether the caller must start it.
    fn wants_thread(&mut self) -> Added {
        if std::mem::replace(&mut self.working, true) { Added::Taken } else { Added::WantsThread }
    }
}

impl Fill {
    pub(super) fn new(
        cache: Arc<OutputCache>,
        filling: Filling,
        request: OutputRequest,
        content: Option<Hash>,
        looks: Option<Hash>,
    ) -> Self {
        let over = AtomicBool::new(false);
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let filling = Mutex::new(filling);
        Self { cache, filling, over, queue, changed, request, content, looks }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Sets the length of the output. Returns the outcome, if this ends the output.
    pub(super) fn ends_at(&self, len_bytes: u64) -> Option<End> {
        // The outcome is decided: the caller, which opens the file, need not wait for the writer
        // thread.
        if self.is_over() {
            return None;
        }
        locked(&self.filling).ends_at(len_bytes)
    }

    /// Queues the `got` bytes that were read into `buf`.
    pub(super) fn add(&self, offset: u64, buf: &[u8], got: usize) -> Added {
        let mut queue = locked(&self.queue);
        queue.readings += 1;
        let behind = queue.pieces.len() >= QUEUED_MAX || !queue.owed.is_empty();
        if self.request.in_place && behind && !self.is_over() {
            queue.owed.add(offset, offset.saturating_add(buf.len() as u64));
            if queue.owed.count() > OWED_MAX {
                return Added::Scattered;
            }
            // A running writer thread checks the queue before it ends.
            return queue.wants_thread();
        }
        while queue.pieces.len() >= QUEUED_MAX && !self.is_over() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_over() {
            return Added::Taken;
        }
        let (data, last) = (buf[..got].to_vec(), got < buf.len());
        queue.pieces.push_back(Piece { offset, data, last });
        self.changed.notify_all();
        queue.wants_thread()
    }

    /// Returns the next task of the writer thread; `None` once there was none for a while. Missing
    /// parts wait until no client has read for as long, but not for ever: then they are produced
    /// one at a time.
    pub(super) fn next(&self, calm: &mut bool) -> Option<Work> {
        let mut queue = locked(&self.queue);
        for _ in 0..PAUSES_MAX {
            if *calm || !queue.pieces.is_empty() {
                break;
            }
            let before = queue.readings;
            let waits = |queue: &mut Queue| queue.pieces.is_empty() && !self.is_over();
            let waited = self.changed.wait_timeout_while(queue, LINGERS, waits);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            *calm = queue.readings == before;
        }
        let work = match queue.pieces.pop_front() {
            Some(piece) => {
                *calm = false;
                Some(Work::Write(piece))
            }
            None => queue.owed_step(),
        };
        queue.working = work.is_some();
        self.changed.notify_all();
        work
    }

    /// Accepts no more data from now on. Returns true if it did until now.
    pub(super) fn end(&self) -> bool {
        let first = !self.over.swap(true, Ordering::Relaxed);
        *locked(&self.queue) = Queue::default();
        self.changed.notify_all();
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_made_in_steps_and_in_order() {
        let mut queue = Queue::default();
        for at in 0..5_u64 {
            queue.owed.add(100 + at * 900_000, 100 + (at + 1) * 900_000);
        }
        queue.owed.add(9_000_000, 9_000_001);
        let mut made = Vec::new();
        while let Some(Work::Make(from, upto)) = queue.owed_step() {
            made.push((from, upto));
        }
        let step = MADE_BYTES;
        let want = [(100, step), (step, 2 * step), (2 * step, 4_500_100), (9_000_000, 9_000_001)];
        assert_eq!(made, want);
    }
}
