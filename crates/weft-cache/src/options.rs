//! What can be chosen: when a cache is made, when it is opened, and for each origin.

use crate::admission::AdmissionOptions;
use crate::{Error, PolicyKind, Result};
use std::fmt;
use std::str::FromStr;

/// The unit of valid and dirty bits and of checksums, in bytes.
pub const SUB_BLOCK_BYTES: usize = 4096;

/// The largest block of a cache, in bytes: sixteen sub-blocks.
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The most origins that share one cache.
pub const ORIGINS_MAX: usize = 16;

/// What a new cache is like. Fixed for its life, but for its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// The unit that has a place of its own in the cache: 4 to 64 KiB, a power of two. Larger
    /// blocks need less memory; parts of 4 KiB are filled and written back apart.
    pub block_bytes: u32,
    /// A name for people, at most 64 bytes of UTF-8.
    pub label: String,
    /// Which block is given up when room is needed.
    pub policy: PolicyKind,
    /// Length of the log in bytes; `None` chooses by the size of the cache. A longer log means
    /// fewer checkpoints and a longer recovery.
    pub log_bytes: Option<u64>,
    /// The cache's identity; `None` draws one.
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

/// How a cache is used while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// Whether threads do the work behind: commits, write-back, fills. Without, the caller drives
    /// the cache with [`Cache::tick`](crate::Cache::tick), and everything happens in the call
    /// that causes it, in the same order each time.
    pub background: bool,
    /// Nothing is written to the cache; it can be looked at, but no origin attached.
    pub read_only: bool,
    /// Whether the cache outlives this opening. Without, it starts empty, writes no metadata, and
    /// holds no dirty data: only modes that write to the origin are possible. A cache that was
    /// opened so is empty when it is next opened with persistence.
    pub persistence: bool,
    /// Whether the cache serves while its checkpoint is still being loaded.
    pub lazy_load: bool,
    /// The oldest a change of metadata gets before it is written to the log, in milliseconds,
    /// if nothing asks for it before.
    pub commit_interval_ms: u64,
    /// How many changed slots are committed at the latest, whatever their age.
    pub commit_records: u32,
    /// The most dirty data, in bytes; writes wait for write-back beyond it. `None`: half of the
    /// cache.
    pub dirty_limit_bytes: Option<u64>,
    /// The oldest dirty data gets before it is written back, in milliseconds.
    pub max_dirty_age_ms: u64,
    /// The most write-back in bytes a second, while the dirty limit is not reached. `None`: no
    /// limit.
    pub writeback_bytes_per_second: Option<u64>,
    /// How many requests of write-back are under way at a time. More hide the latency of an origin
    /// that is far; each takes up to 1 MiB of memory.
    pub writeback_requests: u32,
    /// How long a write waits for room in a cache that is full of dirty data while its origin fails
    /// to take any, in milliseconds; then the write fails.
    pub full_wait_ms: u64,
    /// When the cache device has failed, and refuses to be marked as out of date, too: let writes pass
    /// to the origin also where the cache may have clean blocks. Should the device come back, and the
    /// cache be opened again, it may have what was there before them; only the comparisons of
    /// [`Cache::attach`](crate::Cache::attach) stand against that. Without this, such writes fail with
    /// [`Error::Unmarked`](crate::Error::Unmarked), all others pass, and nothing can go stale.
    pub pass_when_failed: bool,
    /// How long a region of the origin must have been left alone before its intent is cleared, in
    /// milliseconds.
    pub intent_idle_ms: u64,
    /// The most data read from origins that waits to be written to the cache, in bytes. Beyond
    /// it, the reader writes it itself.
    pub fill_queue_bytes: usize,
    /// The most that is read from an origin ahead of a sequential reader, in bytes; 0: nothing is.
    /// What the cache has no free slot for waits in memory: up to twice as much, for all readers
    /// together. Needs the threads of `background`.
    pub readahead_bytes: u64,
    /// Whether checksums are compared at each read of a cached block, and not only at the first
    /// one after the cache was opened.
    pub verify_always: bool,
    /// The longest pause between attempts to write back to an origin that fails, in milliseconds.
    pub retry_max_ms: u64,
    /// Which blocks are put into the cache at all.
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

/// How one origin is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    /// What happens to reads and writes.
    pub mode: Mode,
    /// The most of the cache this origin may take, in bytes. `None`: all of it.
    pub quota_bytes: Option<u64>,
    /// Whether an origin that the cache does not know is added beside those that it knows.
    /// The first origin of an empty cache needs no such permission.
    pub add: bool,
    /// If the origin was changed without the cache, its clean blocks are dropped and it is
    /// attached. Dirty blocks are never dropped.
    pub invalidate: bool,
    /// How many cached blocks are compared with the origin to see whether it was changed.
    pub samples: u32,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            quota_bytes: None,
            add: false,
            invalidate: false,
            samples: 16,
        }
    }
}

/// What happens to the reads and writes of an origin.
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
    /// What the seed did.
    WriteInvalidate,
    /// A write buffer: reads do not displace what was written.
    WriteOnly,
    /// The cache is there, and unused.
    PassThrough,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WriteThrough,
        Self::WriteBack,
        Self::WriteAround,
        Self::WriteInvalidate,
        Self::WriteOnly,
        Self::PassThrough,
    ];

    /// Whether writes stay in the cache.
    #[must_use]
    pub fn writes_back(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteOnly)
    }

    /// Whether what is read from the origin is put into the cache.
    #[must_use]
    pub fn fills(self) -> bool {
        !matches!(self, Self::WriteOnly | Self::PassThrough)
    }

    /// Its name on command lines.
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

/// Who an origin is. The caller reads it off the origin; the cache records and compares it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginId {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// An identity that the origin carries itself (of its file system or partition table).
    pub uuid: Option<[u8; 16]>,
    /// Where it is found, or what it is called: what identifies it if it has no UUID. At most 96
    /// bytes of UTF-8.
    pub label: String,
    /// A number that grows when the origin is changed without the cache (a snapshot's number),
    /// if it has one; 0 otherwise.
    pub generation: u64,
}
