//! Statistics of a cache: counters since it was opened, and gauges of its content.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One of the [`Stats`], for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// The name of its field.
    pub name: &'static str,
    /// Its description, in a sentence.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

macro_rules! stats {
    (
        counters { $($(#[doc = $doc:literal])* $counter:ident,)* }
        gauges { $($(#[doc = $gauge_doc:literal])* $gauge:ident,)* }
    ) => {
        /// The counters, updated by many threads without a lock.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $counter: AtomicU64,)* }

        /// Statistics of a cache: counters since it was opened, which only grow, and gauges of its
        /// present content.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])* pub $counter: u64,)*
            $($(#[doc = $gauge_doc])* pub $gauge: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    $($counter: self.$counter.load(Ordering::Relaxed),)*
                    ..Stats::default()
                }
            }
        }

        impl Stats {
            /// Returns each counter, in a fixed order.
            pub fn counters(&self) -> impl Iterator<Item = Figure> {
                [$(Figure {
                    name: stringify!($counter),
                    help: concat!($($doc),*),
                    value: self.$counter,
                },)*].into_iter()
            }

            /// Returns each gauge, in a fixed order.
            pub fn gauges(&self) -> impl Iterator<Item = Figure> {
                [$(Figure {
                    name: stringify!($gauge),
                    help: concat!($($gauge_doc),*),
                    value: self.$gauge,
                },)*].into_iter()
            }
        }
    };
}

stats! {
    counters {
        /// Blocks read that were found in the cache.
    hits,
    /// Blocks read that were not found in the cache.
    misses,
    /// Bytes read from the cache for readers.
    hit_bytes,
    /// Bytes read from origins for readers.
    miss_bytes,
    /// Reads of cached devices that have ended, successful or not.
    reads,
    /// Total duration of these reads, in nanoseconds.
    read_nanoseconds,
    /// Writes of cached devices that have ended, zeroes included.
    writes,
    /// Total duration of these writes, in nanoseconds.
    write_nanoseconds,
    /// Flushes of cached devices that have ended.
    flushes,
    /// Total duration of these flushes, in nanoseconds.
    flush_nanoseconds,
    /// Reads of origins that have ended.
    origin_reads,
    /// Total duration of these reads, in nanoseconds.
    origin_read_nanoseconds,
    /// Bytes read from origins before a reader asked for them.
    read_ahead_bytes,
    /// Of the bytes read from the cache for readers: those that were staged in memory, because the
    /// cache had no free slot for the read-ahead.
    staged_bytes,
    /// Blocks put into the cache by reads.
    fills,
    /// Missed blocks that were not put into the cache: admission or mode refused them, a write
    /// intervened, or there was no room.
    bypasses,
    /// Of the bypasses: blocks of long streams.
    bypasses_sequential,
    /// Of the bypasses: blocks that were not used before.
    bypasses_first_use,
    /// Of the bypasses: blocks that the budget of flash writes did not allow.
    bypasses_over_budget,
    /// Blocks evicted to make room for others.
    evictions,
    /// Bytes written by users of cached devices.
    user_bytes_written,
    /// Bytes written to the cache device in total.
    flash_bytes_written,
    /// Bytes of blocks written to the cache device (the rest is metadata).
    data_bytes_written,
    /// Bytes written back to origins.
    writeback_bytes,
    /// Write-back requests to origins.
    writeback_requests,
    /// Writes to the log.
    log_writes,
    /// Blocks of the log written.
    log_blocks,
    /// Changes of a slot's metadata.
    metadata_updates,
    /// Of these, the ones merged with a pending change of the same slot, or into a pending block of
    /// the log.
    batched_updates,
    /// Commits of the log.
    commits,
    /// Flushes of the cache device.
    cache_flushes,
    /// Flushes of origins.
    origin_flushes,
    /// Checkpoints written.
    checkpoints,
    /// Intents set.
    intents_set,
    /// Intents cleared.
    intents_cleared,
    /// Clean blocks that did not match their checksum, and were read from the origin again.
    heals,
    /// Dirty blocks that did not match their checksum.
    dirty_damaged,
    /// Requests that failed on an origin.
    origin_errors,
    /// Requests that failed on the cache device.
    cache_errors,
    /// Writes that waited because there was too much dirty data.
    throttled_writes,
    /// Clean blocks dropped when the cache was opened, because the origin may have been changed.
    dropped_at_open,
    }
    gauges {
    /// Number of slots.
    slots,
    /// The size of a block, in bytes.
    block_bytes,
    /// Number of slots that hold a block.
    used_slots,
    /// Bytes that are in the cache and not yet in the origin.
    dirty_bytes,
    /// Regions of origins with a durable intent.
    intents,
    /// Changed slots that are not in the log yet.
    pending_records,
    /// Blocks of the log in use.
    log_used_blocks,
    /// Blocks of the checkpoint that are still to be loaded.
    loading_pages,
    /// Memory of the index, the slot table and the policy, in bytes.
    memory_bytes,
    }
}

/// Counts a request and its duration when it is dropped.
pub(crate) struct Timed<'a> {
    requests: &'a AtomicU64,
    nanoseconds: &'a AtomicU64,
    began: Instant,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(requests: &'a AtomicU64, nanoseconds: &'a AtomicU64) -> Self {
        Self { requests, nanoseconds, began: Instant::now() }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.requests.add(1);
        self.nanoseconds.add(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

pub(crate) trait Count {
    fn add(&self, n: u64);
}

impl Count for AtomicU64 {
    fn add(&self, n: u64) {
        self.fetch_add(n, Ordering::Relaxed);
    }
}
