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
use weft_vfs::Result;

use super::base::locked;
use super::ground::Ground;
use super::nodes::Node;
use super::outputs::{Asked, output_ended};
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

/// The lowest scheduling priority.
const LOWEST_PRIORITY: i32 = 19;

/// An output that is being added to the cache; see the module page.
pub(super) struct Fill {
    pub(super) cache: Arc<OutputCache>,
    pub(super) filling: Mutex<Filling>,
    /// No more data is accepted.
    over: AtomicBool,
    queue: Mutex<Queue>,
    /// Signalled on changes of the queue and of `over`.
    changed: Condvar,
    /// A piece can be produced again at almost no cost.
    in_place: bool,
    pub(super) asked: Asked,
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
struct Piece {
    offset: u64,
    data: Vec<u8>,
    /// The output ends with this piece.
    last: bool,
}

enum Work {
    Write(Piece),
    /// A part to produce and write: its begin and end.
    Make(u64, u64),
}

/// The result of passing data to the queue.
enum Added {
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
        asked: Asked,
        content: Option<Hash>,
        looks: Option<Hash>,
    ) -> Self {
        let over = AtomicBool::new(false);
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let (filling, in_place) = (Mutex::new(filling), asked.in_place);
        Self { cache, filling, over, queue, changed, in_place, asked, content, looks }
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
    fn add(&self, offset: u64, buf: &[u8], got: usize) -> Added {
        let mut queue = locked(&self.queue);
        queue.readings += 1;
        let behind = queue.pieces.len() >= QUEUED_MAX || !queue.owed.is_empty();
        if self.in_place && behind && !self.is_over() {
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
    fn next(&self, calm: &mut bool) -> Option<Work> {
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
    fn end(&self) -> bool {
        let first = !self.over.swap(true, Ordering::Relaxed);
        *locked(&self.queue) = Queue::default();
        self.changed.notify_all();
        first
    }
}

/// Passes `got` bytes that were read into `buf` to the writer thread, starting it if needed.
pub(super) fn hand_over(
    ground: &Arc<Ground>,
    node: &Arc<Node>,
    fill: &Arc<Fill>,
    (offset, buf, got): (u64, &[u8], usize),
) {
    if fill.is_over() {
        return;
    }
    match fill.add(offset, buf, got) {
        Added::Taken => {}
        Added::Scattered => ended(ground, node, fill, End::Failed),
        Added::WantsThread => {
            // The file may be closed and forgotten before the writer thread has finished.
            locked(&ground.nodes).add_use(node);
            let (theirs, of, ours) = (ground.clone(), node.clone(), fill.clone());
            let work = move || {
                work(&theirs, &of, &ours);
                theirs.give_back_node(&of);
            };
            if let Err(e) = std::thread::Builder::new().name("weft-output".into()).spawn(work) {
                tracing::warn!("an output is not kept: {e}");
                ended(ground, node, fill, End::Failed);
                ground.give_back_node(node);
            }
        }
    }
}

/// Ends an output with an outcome. Must not be called under the lock of the file.
pub(super) fn ended(ground: &Ground, node: &Node, fill: &Fill, end: End) {
    if fill.end() {
        output_ended(ground, node, fill, end);
    }
}

fn work(ground: &Ground, node: &Node, fill: &Fill) {
    // No reader waits for this thread then.
    if fill.in_place
        && let Err(e) = rustix::process::setpriority_process(None, LOWEST_PRIORITY)
    {
        tracing::debug!("priority: {e}");
    }
    let mut calm = false;
    while let Some(work) = fill.next(&mut calm) {
        let piece = match work {
            Work::Write(piece) => piece,
            // The part has been written meanwhile.
            Work::Make(from, upto) if locked(&fill.filling).has(from, upto) => continue,
            Work::Make(from, upto) => match make(ground, node, from, upto) {
                Ok(Some(piece)) => piece,
                // The file has changed.
                Ok(None) => return ended(ground, node, fill, End::Failed),
                Err(e) => {
                    tracing::warn!("an output is not kept: {e}");
                    return ended(ground, node, fill, End::Failed);
                }
            },
        };
        let end = locked(&fill.filling).take(piece.offset, &piece.data, piece.last);
        if let Some(end) = end {
            return ended(ground, node, fill, end);
        }
    }
}

/// Produces a part of an output; returns `None` if the file is no longer read in place.
fn make(ground: &Ground, node: &Node, from: u64, upto: u64) -> Result<Option<Piece>> {
    // At most `MADE_BYTES`.
    let mut data = vec![0; (upto - from) as usize];
    let Some(read) = ground.read_in_place(node, from, &mut data) else { return Ok(None) };
    let got = read?;
    let last = got < data.len();
    data.truncate(got);
    Ok(Some(Piece { offset: from, data, last }))
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
