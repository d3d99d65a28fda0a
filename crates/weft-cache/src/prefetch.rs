//! Prefetching: the threads that fetch what follows a stream ([`crate::readahead`]), as fills.

use crate::SUB_BLOCK_BYTES;
use crate::cache::Cache;
use crate::fills::{FillId, Purpose};
use crate::origin::{Link, Origin};
use crate::policy::BlockKey;
use crate::readahead::{Job, Prefetch, Queue, SLACK_SUBS};
use crate::staging::Piece;
use crate::state::CacheState;
use crate::stats::Count;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Maximum age of staged data that no reader has read, in milliseconds.
const STAGED_MS: u64 = 60_000;

/// The missing runs of a job, each with the purpose of its fill.
type Missing = Vec<(Range<u64>, Purpose)>;

/// The fills that were entered for a job.
struct Entered {
    fills: Vec<(FillId, Range<u64>, Purpose)>,
    /// True if the staging memory has room for data that gets no slot.
    room: bool,
}

/// Runs jobs until the queue is stopped or the cache is dropped.
pub(crate) fn fetch_loop(cache: &Weak<Cache>, queue: &Queue) {
    while let Some(job) = queue.take() {
        let Some(cache) = cache.upgrade() else { return };
        cache.prefetch(&job);
        queue.done();
    }
}

impl Cache {
    /// Queues a prefetch for the threads.
    pub(crate) fn queue_prefetch(&self, origin: &Arc<Origin>, prefetch: Option<Prefetch>) {
        if let Some(prefetch) = prefetch
            && self.workers.are_running()
        {
            self.workers.prefetches.put(origin, &prefetch);
        }
    }

    fn prefetch(&self, job: &Job) {
        let Some((origin, entered)) = self.begin_prefetch(job) else { return };
        let mut failed = false;
        for (id, subs, purpose) in &entered.fills {
            let fetched = if failed { None } else { self.fetch(&origin, *id, subs).ok() };
            if let Some(data) = fetched {
                self.counters.read_ahead_bytes.add(data.len() as u64);
                if *purpose == Purpose::Ahead {
                    self.put_fill(&origin, *id, &data);
                }
                if entered.room {
                    self.stage(&origin, *id, job.prefetch.stream, data);
                }
            } else {
                failed = true;
            }
        }
        // Dropped before the fills end: a detach waits for them, and then the origin must have no
        // user.
        drop(origin);
        for (id, ..) in entered.fills {
            self.end_fill(id);
        }
        if failed {
            self.lock().readahead.give_up(job.prefetch.stream);
        }
    }

    /// Stages the data of a fill, except for blocks that are in the cache by now or that a write
    /// has overtaken.
    fn stage(&self, origin: &Origin, id: FillId, stream: u64, data: Arc<Vec<u8>>) {
        let mut guard = self.lock();
        let st = &mut *guard;
        let usable = !st.health.closed
            && st.health.failed.is_none()
            && origin.link() == Link::Attached
            && st.readahead.progress(stream).is_some();
        let Some(fill) = st.requests.fills.get(id).filter(|_| usable) else { return };
        let subs = fill.subs.clone();
        let staged = |sub: u64| !fill.cancelled(sub) && !st.is_valid(origin.nr, sub);
        let live: Vec<bool> = subs.clone().map(staged).collect();
        let piece = Piece { first: subs.start, data };
        let live = |sub: u64| live[(sub - subs.start) as usize];
        st.requests.fills.staging.put(origin.nr, stream, piece, st.now_ms, live);
    }

    /// Begins the fills for the blocks of a job that are missing in the cache.
    fn begin_prefetch(&self, job: &Job) -> Option<(Arc<Origin>, Entered)> {
        let Prefetch { stream, ref subs, long } = job.prefetch;
        let mut st = self.lock();
        // A detach waits for fills, so the origin may be kept alive only while one is entered.
        let origin = job.origin.upgrade()?;
        let usable = !st.health.closed
            && st.health.failed.is_none()
            && origin.link() == Link::Attached
            && origin.mode().fills();
        if !usable || !st.readahead.wants(stream, subs) {
            return None;
        }
        let room = st.has_room_to_stage(stream, (subs.end - subs.start) * SUB_BLOCK_BYTES as u64);
        let Some(missing) = st.missing_runs(origin.nr, subs, long, room) else {
            st.readahead.found_nothing(stream);
            return None;
        };
        let begin = |(subs, purpose): (Range<u64>, Purpose)| {
            (st.requests.fills.begin_for(purpose, origin.nr, subs.clone()), subs, purpose)
        };
        let fills = missing.into_iter().map(begin).collect();
        Some((origin, Entered { fills, room }))
    }
}

impl CacheState {
    /// Returns true if a stream may stage `len_bytes` more.
    fn has_room_to_stage(&mut self, stream: u64, len_bytes: u64) -> bool {
        let progress = |stream| self.readahead.progress(stream);
        self.requests.fills.staging.has_room(stream, len_bytes, SLACK_SUBS, progress)
    }

    /// Drops staged data that has no reader any more.
    pub(crate) fn recycle_staged(&mut self) {
        if !self.requests.fills.staging.is_empty() {
            let progress = |stream| self.readahead.progress(stream);
            self.requests.fills.staging.drop_passed(SLACK_SUBS, progress);
            self.requests.fills.staging.drop_older(self.now_ms.saturating_sub(STAGED_MS));
        }
    }

    /// Returns true if a sub-block is in the cache.
    fn is_valid(&self, nr: u16, sub: u64) -> bool {
        let per_block = self.log.sb.subs() as u64;
        let slot = self.residency.lookup(BlockKey::new(nr, sub / per_block));
        slot.is_some_and(|slot| self.residency.masks(slot).valid >> (sub % per_block) & 1 != 0)
    }

    /// Returns the runs of a range that are neither cached nor staged nor being fetched: those for
    /// which admission and a free slot allow a prefetch into the cache, and, with `room` to stage
    /// them, the others. Returns `None` if no part of the range is missing.
    fn missing_runs(
        &mut self,
        nr: u16,
        subs: &Range<u64>,
        long: bool,
        room: bool,
    ) -> Option<Missing> {
        let per_block = self.log.sb.subs() as u64;
        let mut all_there = true;
        let mut runs: Missing = Vec::new();
        let mut at = subs.start;
        while at < subs.end {
            let block = at / per_block;
            let block_end = ((block + 1) * per_block).min(subs.end);
            let valid = self
                .residency
                .lookup(BlockKey::new(nr, block))
                .map_or(0, |s| self.residency.masks(s).valid);
            let free = |st: &Self, sub: u64| {
                valid >> (sub % per_block) & 1 == 0
                    && st.requests.fills.covering(nr, sub).is_none()
                    && st.requests.fills.staging.get(nr, sub).is_none()
            };
            let from = (at..block_end).find(|sub| free(self, *sub)).unwrap_or(block_end);
            let to = (from..block_end).find(|sub| !free(self, *sub)).unwrap_or(block_end);
            if from < to {
                all_there = false;
                let written = self.requests.writers.overlaps(nr, &(block..block + 1));
                let len = (to - from) as u32;
                let purpose = if written {
                    None
                } else if self.admits_prefetch(BlockKey::new(nr, block), len, long) {
                    Some(Purpose::Ahead)
                } else {
                    room.then_some(Purpose::Staged)
                };
                match (runs.last_mut(), purpose) {
                    (_, None) => {}
                    (Some((run, same)), Some(purpose)) if run.end == from && *same == purpose => {
                        run.end = to;
                    }
                    (_, Some(purpose)) => runs.push((from..to, purpose)),
                }
            }
            at = to.max(at + 1);
        }
        (!all_there).then_some(runs)
    }
}
