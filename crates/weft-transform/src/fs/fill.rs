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
use super::outputs::Asked;
use crate::outputs::Filling;

/// Pieces that wait to be written, at most.
const QUEUED_MAX: usize = 8;

/// How long the thread waits for the next.
const LINGERS: Duration = Duration::from_millis(100);

/// Bytes that the thread makes at a time, from one multiple of them to the next: what is written so
/// lies in the page cache in folios as large as there are, and is read the faster.
const MADE_BYTES: u64 = 2 << 20;

/// Parts owed that do not touch each other, at most: who reads here and there reads not all.
const OWED_MAX: usize = 256;

/// The weakest claim to a processor.
const LOWEST_PRIORITY: i32 = 19;

/// See the module page.
pub(super) struct Fill {
    pub(super) filling: Mutex<Filling>,
    /// Nothing more is taken.
    over: AtomicBool,
    queue: Mutex<Queue>,
    /// Of the queue.
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
    /// What was read and not handed over: where it begins, and ends at the latest.
    owed: VecDeque<(u64, u64)>,
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

impl Queue {
    /// Adds what was read to what is owed, most often right behind the last of it.
    fn owe(&mut self, offset: u64, end: u64) {
        match self.owed.back_mut() {
            Some((_, last)) if *last == offset => *last = end,
            _ => self.owed.push_back((offset, end)),
        }
    }

    fn owed_step(&mut self) -> Option<Work> {
        let (from, upto) = self.owed.pop_front()?;
        let end = upto.min((from / MADE_BYTES + 1).saturating_mul(MADE_BYTES));
        if end < upto {
            self.owed.push_front((end, upto));
        }
        Some(Work::Make(from, end))
    }
}

impl Fill {
    pub(super) fn new(
        filling: Filling,
        in_place: bool,
        asked: Asked,
        content: Option<Hash>,
        looks: Option<Hash>,
    ) -> Self {
        let over = AtomicBool::new(false);
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let filling = Mutex::new(filling);
        Self { filling, over, queue, changed, in_place, asked, content, looks }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The output is so long.
    pub(super) fn ends_at(&self, len_bytes: u64) {
        // All of it is there, or none will be: who opens the file need not wait for the thread.
        if self.is_over() {
            return;
        }
        let mut filling = locked(&self.filling);
        filling.ends_at(len_bytes);
        self.over.store(filling.is_over(), Ordering::Relaxed);
    }

    /// Hands over what was read into `buf`, `got` bytes. Whether a thread is wanted.
    fn add(&self, offset: u64, buf: &[u8], got: usize) -> bool {
        let mut queue = locked(&self.queue);
        let behind = queue.pieces.len() >= QUEUED_MAX || !queue.owed.is_empty();
        if self.in_place && behind {
            queue.owe(offset, offset.saturating_add(buf.len() as u64));
            if queue.owed.len() > OWED_MAX {
                *queue = Queue::default();
                self.over.store(true, Ordering::Relaxed);
                return false;
            }
            // The thread is at work, or looks here before it ends.
            return !std::mem::replace(&mut queue.working, true);
        }
        while queue.pieces.len() >= QUEUED_MAX {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let (data, last) = (buf[..got].to_vec(), got < buf.len());
        queue.pieces.push_back(Piece { offset, data, last });
        self.changed.notify_all();
        !std::mem::replace(&mut queue.working, true)
    }

    /// What to do next; `None` once there was nothing for a while. What is owed waits until nobody
    /// has read anything for as long.
    fn next(&self, calm: &mut bool) -> Option<Work> {
        let mut queue = locked(&self.queue);
        while !*calm && queue.pieces.is_empty() {
            let owed = queue.owed.back().copied();
            let waited = self.changed.wait_timeout_while(queue, LINGERS, |q| q.pieces.is_empty());
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            *calm = queue.owed.back().copied() == owed;
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

    fn give_up(&self) {
        self.over.store(true, Ordering::Relaxed);
        *locked(&self.queue) = Queue::default();
        self.changed.notify_all();
    }

    /// Writes a piece. The length of the output when all of it is there: told once.
    fn write(&self, piece: &Piece) -> Option<u64> {
        let mut filling = locked(&self.filling);
        let all = filling.take(piece.offset, &piece.data, piece.last);
        self.over.store(filling.is_over(), Ordering::Relaxed);
        all
    }
}

/// Hands over `got` bytes that were read into `buf`, for a thread to write. `finish` is called, with
/// the length, once all of the output is there.
pub(super) fn hand_over(
    ground: &Arc<Ground>,
    node: &Arc<Node>,
    fill: &Arc<Fill>,
    (offset, buf, got): (u64, &[u8], usize),
    finish: impl FnMut(&Ground, &Node, u64) + Send + 'static,
) {
    if fill.is_over() || !fill.add(offset, buf, got) {
        return;
    }
    let (ground, node, ours) = (ground.clone(), node.clone(), fill.clone());
    let work = move || work(&ground, &node, &ours, finish);
    if let Err(e) = std::thread::Builder::new().name("weft-output".into()).spawn(work) {
        tracing::warn!("an output is not kept: {e}");
        fill.give_up();
    }
}

fn work(ground: &Ground, node: &Node, fill: &Fill, mut finish: impl FnMut(&Ground, &Node, u64)) {
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
            Work::Make(from, upto) => match make(ground, node, from, upto) {
                Ok(Some(piece)) => piece,
                // The file is not what it was, or cannot be read any more.
                Ok(None) => return fill.give_up(),
                Err(e) => {
                    tracing::debug!("an output is not kept: {e}");
                    return fill.give_up();
                }
            },
        };
        if let Some(len) = fill.write(&piece) {
            finish(ground, node, len);
        }
        if fill.is_over() {
            return fill.give_up();
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
            queue.owe(100 + at * 900_000, 100 + (at + 1) * 900_000);
        }
        queue.owe(9_000_000, 9_000_001);
        assert_eq!(queue.owed, [(100, 4_500_100), (9_000_000, 9_000_001)]);
        let mut made = Vec::new();
        while let Some(Work::Make(from, upto)) = queue.owed_step() {
            made.push((from, upto));
        }
        let step = MADE_BYTES;
        let want = [(100, step), (step, 2 * step), (2 * step, 4_500_100), (9_000_000, 9_000_001)];
        assert_eq!(made, want);
    }
}
