//! Options: for creating a cache, for opening it, and for each origin.

use crate::admission::AdmissionOptions;
use crate::{Error, PolicyKind, Result};
use std::fmt;
use std::str::FromStr;

/// The unit of valid and dirty bits and of checksums, in bytes.
pub const SUB_BLOCK_BYTES: usize = 4096;

/// The largest block of a cache, in bytes: sixteen sub-blocks.
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of origins that share one cache.
pub const ORIGINS_MAX: usize = 16;

/// Parameters of a new cache. All but its length are fixed for as long as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// Size of a cached block, the unit that is given a slot: 4 to 64 KiB, a power of two. Larger
    /// blocks need less memory; their sub-blocks of 4 KiB are filled and written back separately.
    pub block_bytes: u32,
    /// A human-readable name, at most 64 bytes of UTF-8.
    pub label: String,
    /// The replacement policy.
    pub policy: PolicyKind,
    /// Length of the log in bytes; `None` chooses by the size of the cache. A longer log means
    /// fewer checkpoints and a longer recovery.
    pub log_bytes: Option<u64>,
    /// The cache's UUID; `None` draws one at random.
    pub uuid: Option<[u8; 16]>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            block_bytes: 4096,
            label: String::new(),
            policy: PolicyKind::default(),
            log_bytes: None,
            uuid: None,
        }
    }
}

/// Options for an open cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// Whether background threads do commits, write-back and fills. Without them, the caller drives
    /// the cache with [`Cache::tick`](crate::Cache::tick), and everything happens in the call that
    /// causes it, in the same order each time.
    pub background: bool,
    /// Whether the cache is opened read-only: it can be inspected, but no origin attached.
    pub read_only: bool,
    /// Whether the cache outlives this opening. Without persistence, it starts empty, writes no
    /// metadata, and holds no dirty data: only modes that write to the origin are possible. It is
    /// empty when it is next opened with persistence.
    pub persistence: bool,
    /// Whether the cache serves requests while its checkpoint is still being loaded.
    pub lazy_load: bool,
    /// Maximum age of a metadata change before it is written to the log, in milliseconds, if
    /// nothing requires it earlier.
    pub commit_interval_ms: u64,
    /// Number of changed slots that triggers a commit, whatever their age.
    pub commit_records: u32,
    /// Maximum dirty data, in bytes; beyond it, writes wait for write-back. `None`: half of the
    /// cache.
    pub dirty_limit_bytes: Option<u64>,
    /// Maximum age of dirty data before it is written back, in milliseconds.
    pub max_dirty_age_ms: u64,
    /// Maximum rate of write-back in bytes a second, while the dirty limit is not reached. `None`:
    /// no limit.
    pub writeback_bytes_per_second: Option<u64>,
    /// Number of write-back requests in flight at a time. More requests hide the latency of a
    /// remote origin; each takes up to 1 MiB of memory.
    pub writeback_requests: u32,
    /// Time that a write waits for room in a cache full of dirty data while its origin fails to
    /// take any, in milliseconds; then the write fails.
    pub full_wait_ms: u64,
    /// Whether writes pass to the origin even where the cache may have clean blocks, when the cache
    /// device has failed and marking it as out of date failed as well. If the device comes back and
    /// the cache is opened again, it may hold versions older than those writes; only the
    /// comparisons of [`Cache::attach`](crate::Cache::attach) guard against that. If false, such
    /// writes fail with [`Error::Unmarked`](crate::Error::Unmarked), all others pass, and nothing
    /// can become stale.
    pub pass_when_failed: bool,
    /// Time without writes after which the intent of a region of the origin is cleared, in
    /// milliseconds.
    pub intent_idle_ms: u64,
    /// Maximum data read from origins that waits to be written to the cache, in bytes. Beyond it,
    /// the reader writes its data to the cache itself.
    pub fill_queue_bytes: usize,
    /// Maximum read-ahead per sequential reader, in bytes; 0 turns read-ahead off. Data for which
    /// the cache has no free slot waits in memory: up to twice this amount, for all readers
    /// together. Needs the threads of `background`.
    pub readahead_bytes: u64,
    /// Whether checksums are compared at each read of a cached block, and not only at the first
    /// one after the cache was opened.
    pub verify_always: bool,
    /// Maximum pause between attempts to write back to an origin that fails, in milliseconds.
    pub retry_max_ms: u64,
    /// Rules that decide which blocks enter the cache.
    pub admission: AdmissionOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            background: true,
            read_only: false,
            persistence: true,
            lazy_load: true,
            commit_interval_ms: 1000,
            commit_records: 4096,
            dirty_limit_bytes: None,
            max_dirty_age_ms: 30_000,
            writeback_bytes_per_second: None,
            writeback_requests: 16,
            full_wait_ms: 30_000,
            pass_when_failed: true,
            intent_idle_ms: 5000,
            fill_queue_bytes: 32 << 20,
            readahead_bytes: 8 << 20,
            verify_always: false,
            retry_max_ms: 30_000,
            admission: AdmissionOptions::default(),
        }
    }
}

/// Options for attaching one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    /// Handling of reads and writes.
    pub mode: Mode,
    /// Maximum share of the cache for this origin, in bytes. `None`: all of it.
    pub quota_bytes: Option<u64>,
    /// Whether an unknown origin is added beside those that the cache has records of. The first
    /// origin of an empty cache needs no such permission.
    pub add: bool,
    /// Whether to drop the clean blocks of an origin that was changed without the cache, and attach
    /// it. Dirty blocks are never dropped.
    pub invalidate: bool,
    /// Whether to adopt the length of an origin that has grown without the cache. Its dirty data is
    /// written back first.
    pub resized: bool,
    /// Number of cached blocks that are compared with the origin to detect a change.
    pub samples: u32,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            quota_bytes: None,
            add: false,
            invalidate: false,
            resized: false,
            samples: 16,
        }
    }
}

/// Handling of the reads and writes of an origin.
///
/// | mode | read miss | write |
/// |---|---|---|
/// | write-through | fills | to the origin, and to the cache |
/// | write-back | fills | to the cache; to the origin later |
/// | write-around | fills | to the origin; a cached block is kept up to date, none is added |
/// | write-invalidate | fills | to the origin; a cached block is dropped |
/// | write-only | passes | to the cache; to the origin later |
/// | pass-through | passes | to the origin; a cached block is dropped |
///
/// A block that is dirty is served from the cache in every mode, and a write to it stays in the
/// cache until it was written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Mode {
    /// Acknowledged when the origin has it. The cache may be lost at any time.
    #[default]
    WriteThrough,
    /// Acknowledged when the cache has it. The cache is part of the volume until it is detached.
    WriteBack,
    /// For data that is written and not read soon.
    WriteAround,
    /// The behaviour of the seed.
    WriteInvalidate,
    /// A write buffer: reads do not displace what was written.
    WriteOnly,
    /// Reads and writes bypass the cache.
    PassThrough,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 6] = [
        Self::WriteThrough,
        Self::WriteBack,
        Self::WriteAround,
        Self::WriteInvalidate,
        Self::WriteOnly,
        Self::PassThrough,
    ];

    /// Returns true if writes stay in the cache.
    #[must_use]
    pub fn writes_back(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteOnly)
    }

    /// Returns true if data read from the origin is put into the cache.
    #[must_use]
    pub fn fills(self) -> bool {
        !matches!(self, Self::WriteOnly | Self::PassThrough)
    }

    /// Returns the mode's name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
            Self::WriteAround => "write-around",
            Self::WriteInvalidate => "write-invalidate",
            Self::WriteOnly => "write-only",
            Self::PassThrough => "pass-through",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == s).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|mode| mode.name()).collect();
            Error::Invalid(format!("{s:?} is no mode of a cache; there are {}", names.join(", ")))
        })
    }
}

/// Identity of an origin. The caller reads it from the origin; the cache records and compares it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginId {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// An identity that the origin itself carries (of its file system or partition table).
    pub uuid: Option<[u8; 16]>,
    /// Its path or name, which identifies it if it has no UUID. At most 96 bytes of UTF-8.
    pub label: String,
    /// A number that grows when the origin is changed without the cache (a snapshot's number),
    /// if it has one; 0 otherwise.
    pub generation: u64,
}

impl OriginId {
    /// Returns true if both identities are of one origin.
    pub(crate) fn is_same_origin(&self, other: &Self) -> bool {
        match (self.uuid, other.uuid) {
            (Some(a), Some(b)) => a == b,
            (None, None) => self.label == other.label,
            _ => false,
        }
    }
}
