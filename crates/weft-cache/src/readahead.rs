//! Read-ahead: fetches the blocks after a sequential read before the reader asks for them.
//!
//! [`ReadAhead`] detects the sequential streams of all origins. Once a stream has read some pieces
//! in order, threads of the cache prefetch the blocks after it, several requests at a time, as
//! fills: a reader that catches up waits for the fill, a write cancels it, and the data of a
//! finished fill is cached or staged.
//!
//! # Invariants
//!
//! - The prefetch window of a stream is never longer than its current run of misses (so a miss
//!   among hits causes next to no prefetch), nor than
//!   [`OpenOptions::readahead_bytes`](crate::OpenOptions::readahead_bytes). The window of a new
//!   stream grows with it, and little is fetched for a reader that turns elsewhere.
//! - A stream that newer streams have displaced from the table gets no further prefetch: its jobs
//!   that have not begun are dropped.
//! - A prefetch evicts no block: it fills free slots only, and only where admission agrees. All
//!   other prefetched data is [staged](crate::staging) in memory. So read-ahead works with a full
//!   cache, the normal case, as with one that has room; blocks are evicted only for data that a
//!   reader has asked for and admission has accepted, and the clean slots that writes need are left
//!   to them.
//! - Staged data is bounded in total, and each stream's by its share: a job that has no room is
//!   dropped.
//! - A failed prefetch is not an error of any request: the reader reads those blocks itself, and
//!   its stream gets no further prefetch.

use crate::SUB_BLOCK_BYTES;
use crate::admission::AdmissionOptions;
use crate::origin::Origin;
use crate::ranges::FILL_SUBS_MAX;
use crate::staging::Progress;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Threads that prefetch: the number of prefetch requests in progress at a time.
pub(crate) const THREADS: usize = 4;
/// Maximum number of streams in the table.
const STREAMS: usize = 16;
/// The distance, in sub-blocks, between the end of a stream and a read that still continues it:
/// requests of several queues overtake each other.
pub(crate) const SLACK_SUBS: u64 = 64;
/// The run of misses, in sub-blocks, from which on blocks are prefetched for a stream.
const COLD_SUBS_MIN: u64 = 64;
/// The shortest prefetch request, in sub-blocks, but for the last of a window.
const PIECE_SUBS_MIN: u64 = 32;
/// Maximum of staged data, in windows.
const STAGED_WINDOWS: u64 = 2;
/// Number of reads by other streams after which a stream is idle.
const IDLE_READS: u64 = 1024;
/// Maximum number of queued jobs; the blocks of a dropped job are read by the reader itself.
const JOBS_MAX: usize = 64;

/// Detects sequential streams and decides what to prefetch for each.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// The longest window, in sub-blocks; 0 turns read-ahead off.
    window_max: u64,
    streams: Vec<Stream>,
    clock: u64,
}

#[derive(Debug)]
struct Stream {
    /// Unique: the clock at the stream's first read.
    id: u64,
    origin: u16,
    /// The end of the reads so far, in sub-blocks.
    next: u64,
    /// The end of the prefetches so far, in sub-blocks.
    prefetched_to: u64,
    /// Length of the current run of misses; a block that was prefetched for the stream counts as one.
    cold_subs: u64,
    used: u64,
}

/// A range to prefetch for a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefetch {
    pub(crate) stream: u64,
    pub(crate) subs: Range<u64>,
    /// Whether admission counts the stream as long.
    pub(crate) long: bool,
}

impl ReadAhead {
    /// Creates a table with no streams. Under admission by reuse, read-ahead is off: a block that
    /// enters at its second use cannot be fetched before its first.
    pub(crate) fn new(readahead_bytes: u64, admission: &AdmissionOptions) -> Self {
        let window_max = if admission.by_reuse { 0 } else { readahead_bytes };
        Self { window_max: window_max / SUB_BLOCK_BYTES as u64, ..Self::default() }
    }

    /// Notes a read, once for each, and returns the range to prefetch after it. `missing`: a part
    /// of the read was not in the cache. `end`: the end of the origin, in sub-blocks. `long`:
    /// admission counts the read as a part of a long stream.
    pub(crate) fn observe(
        &mut self,
        origin: u16,
        subs: &Range<u64>,
        end: u64,
        missing: bool,
        long: bool,
    ) -> Option<Prefetch> {
        if self.window_max == 0 {
            return None;
        }
        self.clock += 1;
        let distance = |s: &Stream| s.next.abs_diff(subs.start);
        let near = self.streams.iter_mut().filter(|s| s.origin == origin);
        let near = near.min_by_key(|s| distance(s)).filter(|s| distance(s) <= SLACK_SUBS);
        let Some(stream) = near else {
            self.begin(origin, subs);
            return None;
        };
        stream.used = self.clock;
        if missing || subs.start < stream.prefetched_to {
            stream.cold_subs += subs.end.saturating_sub(stream.next);
        } else {
            stream.cold_subs = 0;
        }
        stream.next = stream.next.max(subs.end);
        stream.prefetched_to = stream.prefetched_to.max(stream.next);
        if stream.cold_subs < COLD_SUBS_MIN {
            return None;
        }
        // Half a window at a time, so that requests are long and the other half is on its way.
        let window = stream.cold_subs.min(self.window_max);
        let until = (stream.next + window).min(end);
        if stream.prefetched_to >= until || stream.prefetched_to - stream.next > window / 2 {
            return None;
        }
        let subs = stream.prefetched_to..until;
        stream.prefetched_to = until;
        Some(Prefetch { stream: stream.id, subs, long })
    }

    fn begin(&mut self, origin: u16, subs: &Range<u64>) {
        let stream = Stream {
            id: self.clock,
            origin,
            next: subs.end,
            prefetched_to: subs.end,
            cold_subs: 0,
            used: self.clock,
        };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.used) {
            *oldest = stream;
        }
    }

    /// Returns true if the stream is still in the table and has not read past `subs` yet.
    pub(crate) fn wants(&self, stream: u64, subs: &Range<u64>) -> bool {
        self.streams.iter().any(|s| s.id == stream && s.next < subs.end)
    }

    /// Ends the run of misses of a stream, as the blocks after it are in the cache already.
    pub(crate) fn found_nothing(&mut self, stream: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|s| s.id == stream) {
            stream.cold_subs = 0;
        }
    }

    /// Returns the position of a stream, or `None` if it is not in the table any more.
    pub(crate) fn progress(&self, stream: u64) -> Option<Progress> {
        let stream = self.streams.iter().find(|s| s.id == stream)?;
        Some(Progress { next: stream.next, idle: stream.used + IDLE_READS < self.clock })
    }

    /// Returns the maximum of staged data for all streams, in bytes.
    pub(crate) fn staged_bytes_max(&self) -> u64 {
        self.window_max.saturating_mul(STAGED_WINDOWS * SUB_BLOCK_BYTES as u64)
    }

    pub(crate) fn give_up(&mut self, stream: u64) {
        self.streams.retain(|s| s.id != stream);
    }
}

/// One prefetch request, of at most [`FILL_SUBS_MAX`] sub-blocks.
pub(crate) struct Job {
    pub(crate) origin: Weak<Origin>,
    pub(crate) prefetch: Prefetch,
}

#[derive(Default)]
struct Jobs {
    list: VecDeque<Job>,
    /// Number of jobs that a thread has taken and not ended.
    running: usize,
    stop: bool,
}

/// The queue of jobs for the prefetch threads.
#[derive(Default)]
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts a range into pieces, enough for all threads, and queues them.
    pub(crate) fn put(&self, origin: &Arc<Origin>, prefetch: &Prefetch) {
        let len = prefetch.subs.end - prefetch.subs.start;
        let piece = len.div_ceil(THREADS as u64).clamp(PIECE_SUBS_MIN, FILL_SUBS_MAX);
        let mut jobs = self.lock();
        let mut at = prefetch.subs.start;
        while at < prefetch.subs.end && jobs.list.len() < JOBS_MAX && !jobs.stop {
            let end = (at + piece).min(prefetch.subs.end);
            let prefetch = Prefetch { subs: at..end, ..prefetch.clone() };
            jobs.list.push_back(Job { origin: Arc::downgrade(origin), prefetch });
            self.more.notify_one();
            at = end;
        }
    }

    /// Waits for a job; returns `None` once the threads are to end.
    pub(crate) fn take(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if jobs.stop {
                return None;
            }
            if let Some(job) = jobs.list.pop_front() {
                jobs.running += 1;
                return Some(job);
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a job that was taken.
    pub(crate) fn done(&self) {
        self.lock().running -= 1;
    }

    /// Returns true if no job is queued or running.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn is_idle(&self) -> bool {
        let jobs = self.lock();
        jobs.list.is_empty() && jobs.running == 0
    }

    /// Tells the threads to end, each after its current job.
    pub(crate) fn stop(&self) {
        let mut jobs = self.lock();
        jobs.stop = true;
        jobs.list.clear();
        drop(jobs);
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1 << 20;

    fn new(window_max: u64) -> ReadAhead {
        ReadAhead::new(window_max * SUB_BLOCK_BYTES as u64, &AdmissionOptions::default())
    }

    fn read(streams: &mut ReadAhead, subs: Range<u64>) -> Option<Range<u64>> {
        streams.observe(0, &subs, END, true, false).map(|prefetch| prefetch.subs)
    }

    #[test]
    fn the_window_grows_with_the_stream_up_to_its_limit() {
        let mut streams = new(256);
        let (mut ahead, mut widest) = (0, 0);
        for at in 0..400 {
            let subs = at * 32..(at + 1) * 32;
            if let Some(range) = read(&mut streams, subs.clone()) {
                assert!(range.start == ahead.max(subs.end), "nothing is left out or fetched twice");
                ahead = range.end;
            }
            let window = ahead.saturating_sub(subs.end);
            assert!(window <= subs.end.min(256), "{window} sub-blocks ahead after {subs:?}");
            widest = window.max(widest);
        }
        assert_eq!(widest, 256);
    }

    /// As after a restart of a warm cache, the misses are few and far between.
    #[test]
    fn a_miss_among_hits_has_nothing_fetched() {
        let mut streams = new(2048);
        for at in 0..1000 {
            let subs = at * 32..(at + 1) * 32;
            assert_eq!(streams.observe(0, &subs, END, at % 5 == 0, false), None, "{at}");
        }
    }

    #[test]
    fn random_reads_have_nothing_fetched_and_displace_streams() {
        let mut streams = new(256);
        for at in 0..4 {
            read(&mut streams, at * 32..(at + 1) * 32);
        }
        let stream = streams.streams[0].id;
        assert!(streams.wants(stream, &(128..256)));
        for at in 1..=STREAMS as u64 {
            assert_eq!(read(&mut streams, at * 10_000..at * 10_000 + 32), None);
        }
        assert!(!streams.wants(stream, &(128..256)), "it was displaced");
        assert!(streams.streams.len() <= STREAMS);
    }

    #[test]
    fn reads_up_and_down_in_one_place_are_no_stream() {
        let mut streams = new(256);
        for at in 0..1000 {
            assert_eq!(read(&mut streams, at % 3 * 8..at % 3 * 8 + 8), None);
        }
    }

    #[test]
    fn nothing_is_fetched_past_the_end_for_a_warm_stream_or_without_a_window() {
        let mut streams = new(1 << 30);
        let all: Vec<Range<u64>> = (0..32)
            .filter_map(|at| read(&mut streams, END - (32 - at) * 64..END - (31 - at) * 64))
            .collect();
        assert_eq!(all.last().map(|range| range.end), Some(END));
        let mut warm = new(256);
        let mut off = new(0);
        for at in 0..100 {
            assert_eq!(warm.observe(0, &(at * 32..at * 32 + 32), END, false, false), None);
            assert_eq!(read(&mut off, at * 32..at * 32 + 32), None);
        }
    }
}
