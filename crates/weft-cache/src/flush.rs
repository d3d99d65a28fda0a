//! Flushing an origin, and what follows from a failed flush (see [`Origin`]).

use crate::cache::Cache;
use crate::origin::Origin;
use crate::stats::Count;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Origin {
    /// Flushes all data that was written to the origin before this call.
    pub(crate) fn flush(&self, cache: &Cache) -> Result<()> {
        let flushes = &self.flushes;
        let begun = flushes.begun.load(Ordering::Acquire);
        let failures = self.failures();
        let _one = flushes.one.lock();
        // A flush that began after this call and succeeded covers all these writes.
        if flushes.good.load(Ordering::Acquire) <= begun {
            let written = self.written.load(Ordering::Acquire);
            let number = flushes.begun.fetch_add(1, Ordering::AcqRel) + 1;
            cache.counters.origin_flushes.add(1);
            if let Err(error) = self.device.flush() {
                self.flush_failed(cache, written);
                return Err(self.failed(&cache.counters, error));
            }
            self.flushed.fetch_max(written, Ordering::AcqRel);
            flushes.good.store(number, Ordering::Release);
        }
        self.unless_failed_since(cache, failures)
    }

    /// Returns an error if a flush has failed since [`failures`](Self::failures) returned
    /// `failures`.
    pub(crate) fn unless_failed_since(&self, cache: &Cache, failures: u64) -> Result<()> {
        if self.failures() == failures {
            return Ok(());
        }
        Err(self.lost(cache, &(0..self.id.len_bytes)))
    }

    /// Flushes as [`flush`](Self::flush) does, for a user, and reports losses of earlier flushes
    /// that were not reported yet.
    pub(crate) fn flush_for_user(&self, cache: &Cache) -> Result<()> {
        let flushed = self.flush(cache);
        match self.untold().take() {
            Some(range) if flushed.is_ok() => Err(self.lost(cache, &range)),
            _ => flushed,
        }
    }

    fn flush_failed(&self, cache: &Cache, written: u64) {
        self.flushes.failed.fetch_add(1, Ordering::AcqRel);
        let range = cache.doubt_unflushed(self);
        self.flushes.lost.fetch_max(written, Ordering::AcqRel);
        if let Some(lost) = range {
            tracing::error!(origin = self.id.label, ?lost, "a flush failed: writes may be lost");
            let mut untold = self.untold();
            *untold = Some(untold.as_ref().map_or(lost.clone(), |before| {
                before.start.min(lost.start)..before.end.max(lost.end)
            }));
        }
    }

    fn lost(&self, cache: &Cache, range: &Range<u64>) -> Error {
        let why = "a flush failed before this one, and some of what was written may be lost";
        let why = std::io::Error::other(why);
        let len_bytes = range.end - range.start;
        self.failed(&cache.counters, weft_block::Error::io("flush", range.start, len_bytes, why))
    }
}

impl Cache {
    /// Handles a failed flush of an origin: drops the cached content of the writes since the last
    /// successful one, and keeps it from being trusted after this life. Returns the range of those
    /// writes, if there were any.
    fn doubt_unflushed(&self, origin: &Origin) -> Option<Range<u64>> {
        let nr = origin.nr;
        // The loss of an earlier failure is known already.
        let lost = origin.flushes.lost.load(Ordering::Acquire);
        let flushed = origin.flushed.load(Ordering::Acquire).max(lost);
        let mut st = self.lock();
        let shift = st.origins.of(nr).region_shift;
        // Without intents, the written regions are unknown.
        let all = !self.options.persistence || st.health.failed.is_some();
        let regions = if all {
            let any = origin.written.load(Ordering::Acquire) > flushed;
            let last = (origin.id.len_bytes.max(1) - 1) >> shift;
            if any { (0..=last as u32).collect() } else { Vec::new() }
        } else {
            st.dirty.regions.doubt(nr, flushed)
        };
        let per_region = (1_u64 << shift) / u64::from(st.log.sb.block_bytes);
        let subs = st.log.sb.subs() as u64;
        for region in &regions {
            // The lock is taken for each region anew, so that requests can run in between.
            let first = u64::from(*region) * per_region;
            st.requests.fills.cancel(nr, &(first * subs..(first + per_region) * subs));
            st.drop_clean_blocks(nr, first..first + per_region);
            drop(st);
            st = self.lock();
        }
        drop(st);
        self.notify();
        let (first, last) = (*regions.first()?, *regions.last()?);
        let end = ((u64::from(last) + 1) << shift).min(origin.id.len_bytes);
        Some(u64::from(first) << shift..end)
    }
}
