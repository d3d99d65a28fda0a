//! An output on its way into the cache, and the thread that writes it there.
//!
//! The thread is handed what is read. Where it falls behind, who reads waits for it if making a piece
//! again would cost much, as with a program; where stages work in place, and a piece can be made
//! again for what copying it costs, the reader goes on, and the thread makes the rest by itself once
//! nobody is reading, at the lowest priority. (Waiting halved the rate at which 512 MiB were read
//! first: the cache's file system takes a GiB in about a second.)

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

/// Pieces that wait to be written, at most.
const QUEUED_MAX: usize = 8;

/// How long the thread waits for the next.
const LINGERS: Duration = Duration::from_millis(100);

/// How often it waits so for the readers to pause before it makes a part that is owed all the same.
const PAUSES_MAX: usize = 10;

/// Bytes that the thread makes at a time, from one multiple of them to the next: what is written so
/// lies in the page cache in folios as large as there are, and is read the faster.
const MADE_BYTES: u64 = 2 << 20;

/// Parts owed that do not touch each other, at most: who reads here and there reads not all.
const OWED_MAX: usize = 256;

/// The weakest claim to a processor.
const LOWEST_PRIORITY: i32 = 19;

/// See the module page.
pub(super) struct Fill {
    pub(super) cache: Arc<OutputCache>,
    pub(super) filling: Mutex<Filling>,
    /// Nothing more is taken.
    over: AtomicBool,
    queue: Mutex<Queue>,
    /// Of the queue, or `over`.
    changed: Condvar,
    /// A piece can be made again for next to nothing.
    in_place: bool,
    pub(super) asked: Asked,
    /// The hash of what is stored, if it was worth taking before.
    pub(super) content: Option<Hash>,
    pub(super) looks: Option<Hash>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// What was read and not handed over.
    owed: Spans,
    /// How often something was read.
    readings: u64,
    /// A thread takes them.
    working: bool,
}

/// A piece of an output.
struct Piece {
    offset: u64,
    data: Vec<u8>,
    /// The output ends with it.
    last: bool,
}

enum Work {
    Write(Piece),
    /// To make a part first: from where, and to where.
    Make(u64, u64),
}

/// What becomes of what was handed over.
enum Added {
    /// A thread takes it, or nobody any more.
    Taken,
    /// A thread is to be started that takes it.
    WantsThread,
    /// It was read here and there so much that all of it will not be read.
    Scattered,
}

impl Queue {
    fn owed_step(&mut self) -> Option<Work> {
        let (from, upto) = self.owed.first()?;
        let end = upto.min((from / MADE_BYTES + 1).saturating_mul(MADE_BYTES));
        self.owed.remove_before(end);
        Some(Work::Make(from, end))
    }

    /// Whether a thread is to be started: from here on there is one.
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

    /// The output is so long. How it ends, if it ends with that.
    pub(super) fn ends_at(&self, len_bytes: u64) -> Option<End> {
        // All of it is there, or none will be: who opens the file need not wait for the thread.
        if self.is_over() {
            return None;
        }
        locked(&self.filling).ends_at(len_bytes)
    }

    /// Hands over what was read into `buf`, `got` bytes.
    fn add(&self, offset: u64, buf: &[u8], got: usize) -> Added {
        let mut queue = locked(&self.queue);
        queue.readings += 1;
        let behind = queue.pieces.len() >= QUEUED_MAX || !queue.owed.is_empty();
        if self.in_place && behind && !self.is_over() {
            queue.owed.add(offset, offset.saturating_add(buf.len() as u64));
            if queue.owed.count() > OWED_MAX {
                return Added::Scattered;
            }
            // The thread is at work, or looks here before it ends.
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

    /// What to do next; `None` once there was nothing for a while. What is owed waits until nobody
    /// has read anything for as long, but not for ever: then it is a part at a time.
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

    /// Takes nothing from now on. Whether it did until now.
    fn end(&self) -> bool {
        let first = !self.over.swap(true, Ordering::Relaxed);
        *locked(&self.queue) = Queue::default();
        self.changed.notify_all();
        first
    }
}

/// Hands over `got` bytes that were read into `buf`, for a thread to write.
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
            // The file may be closed and forgotten before the thread is done with it.
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

/// An output ends so. Not under the lock of the file.
pub(super) fn ended(ground: &Ground, node: &Node, fill: &Fill, end: End) {
    if fill.end() {
        output_ended(ground, node, fill, end);
    }
}

fn work(ground: &Ground, node: &Node, fill: &Fill) {
    // Nobody waits for this thread then.
    if fill.in_place
        && let Err(e) = rustix::process::setpriority_process(None, LOWEST_PRIORITY)
    {
        tracing::debug!("priority: {e}");
    }
    let mut calm = false;
    while let Some(work) = fill.next(&mut calm) {
        let piece = match work {
            Work::Write(piece) => piece,
            // It was read again and again.
            Work::Make(from, upto) if locked(&fill.filling).has(from, upto) => continue,
            Work::Make(from, upto) => match make(ground, node, from, upto) {
                Ok(Some(piece)) => piece,
                // The file is not what it was.
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

/// Makes a part of an output; `None` if that is not done in place any more.
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
