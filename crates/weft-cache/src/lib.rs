//! A block cache that puts a fast device in front of a slow one. It is warm immediately after a
//! restart or a power cut, and never serves stale data.
//!
//! [`Cache::create`] formats a device as a cache, [`Cache::open`] opens it, and [`Cache::attach`]
//! puts it in front of an origin and returns a [`CachedDevice`], which is a block device like any
//! other. The [`Mode`] says how reads and writes are handled; it can be changed at any time.
//!
//! # Guarantees
//!
//! For an origin and a cache device that keep flushed data, may lose any unflushed data, and may
//! tear writes at 512 bytes:
//!
//! 1. A write that was acknowledged by a flush survives any power cut, in every mode.
//! 2. No read returns a version older than one that was served or acknowledged since the cache was
//!    opened; after a power cut, none older than the flushed one; and never a mix of two blocks.
//! 3. After a power cut, clean blocks are served as before, unless the origin may have been changed
//!    without the cache. No clean block is ever written to the origin.
//! 4. With write-back, a flush returns when data and record are durable on the cache device. Dirty
//!    data that was flushed is never overwritten in place.
//! 5. A fill waits for nothing: its record goes with the next group commit.
//! 6. A block is durably recorded as clean only after its origin was flushed.
//! 7. At most 24 bytes of memory are used per block of 4 KiB. A cache of 64 GiB opens in less than
//!    a second, and serves requests while it loads.
//! 8. The replacement order survives a restart: the policy's state is part of the checkpoint.
//!
//! A failed flush of an origin is treated as a power cut of the origin for all data written to it
//! since the last successful flush: the cache no longer serves that data as clean, and does not
//! trust it when it is opened again. The next flush by a user returns an error that names the range, unless
//! a user got that error before. Dirty data stays dirty.
//!
//! Damage is detected by a CRC32C of each 4 KiB: a clean block is healed from the origin; a damaged
//! dirty block gives an error that names its position ([`Error::DirtyDamaged`]). A cache whose
//! metadata may have lost dirty data is not opened; [`check`] reports the damage, [`repair`] keeps
//! what is good.
//!
//! # How it works
//!
//! The cache device holds a superblock, a log, two checkpoints and slots, each for one block
//! ([`mod@format`] has the bytes).
//!
//! **A write with write-back.** The writer gets its blocks to itself, which cancels fills of them.
//! Each block is put into a slot: its own, or another one if a durable record marks data there as
//! dirty that the write would replace. The data is written there; then, under the lock, the block
//! is marked dirty and the slot *touched*, and the write is acknowledged. A flush commits: a record
//! of each touched slot goes into a batch behind the end of the log, and one flush of the device
//! covers data and batch. From then on the dirty data is *held*. Write-back reads held blocks in
//! the origin's order, checks them, writes neighbours in one request, flushes the origin, and marks
//! them clean; the next commit records that and releases the slots. If any flush of the origin
//! fails meanwhile, they stay dirty.
//!
//! **A write with write-through.** If a durable record may mark a block of the write as clean, an
//! *intent* for its region (1 MiB) must be durable before the origin is changed: the first write to
//! a region costs a commit, later ones nothing. Then the origin is written, and then the slot, in
//! place. The intent is cleared when no writes have come for a while, the origin was flushed, and
//! the new records are in the log.
//!
//! **Zeroes and discards** of more than 1 MiB go to the origin at once, in every mode. Dirty data in
//! the range is not dropped, but becomes zeroes that are dirty: a record that drops it could be durable
//! before the origin's zeroes are, and a power cut would then leave what the origin had before. Write-back
//! writes these zeroes again, and with its flush they are gone from the cache. The same holds for a
//! discard, so that it never uncovers a version older than the flushed one, although an origin may
//! ignore it, and block devices promise less.
//!
//! **A read.** Under the lock, the request is cut into parts: adjacent slots, runs that are
//! missing, and blocks that another request is filling. Slots are pinned, and the lock is released.
//! A missing run is one request to the origin; its data is copied to the reader, and a background
//! thread writes it to the cache. The first read of a slot after opening compares the data with its
//! checksum.
//!
//! **Recovery** reads the newest checkpoint's header, its intents and its map of used slots, then
//! the log behind it, batch by batch. Then it loads the entries of dirty blocks, and serves
//! requests; entries of clean blocks are loaded in the background, in the policy's order.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`mod@format`] | superblock, log, checkpoint, the record of a slot: bytes, and parsing that checks every field |
//! | `slots`, `index`, `bitmap` | the state of each slot, the slot of each block, the free slots |
//! | [`policy`], `policy_switch`, [`admission`] | which block is evicted, another policy, and which block is let in |
//! | `regions` | intents, and the regions with dirty blocks |
//! | `ranges`, `fills`, `pins`, `requests` | the requests in progress |
//! | `readahead`, `prefetch`, `staging` | streams of readers, the threads that fetch ahead of them, and fetched data that has no slot |
//! | `residency`, `dirty`, `log`, `origins` | the parts of the state, each with its invariants |
//! | `state`, `lock` | these parts behind one lock, and the steps that span them, without I/O; the order of all locks, checked in debug builds |
//! | `commit`, `tail`, `checkpoint` | the log's writer, recovery of its last batch, the checkpoint's writer |
//! | `open`, `load`, `loading` | recovery, and the clean entries that are loaded later |
//! | `read`, `filling`, `write`, `data`, `store`, `device` | requests of users |
//! | `writeback`, `send`, `flush`, `origin` | dirty blocks on their way to the origin, and its flushes |
//! | `attach`, `resized`, `forget`, `resize` | attaching an origin, one that has grown, forgetting one; another size of the cache |
//! | `check`, `finding` | checking and repairing a cache that is not in use |
//! | `workers`, `jobs` | background threads and their queues |
//! | [`trace`], [`simulate`], [`advise`] | recorded accesses, and the hit ratio of each size and policy |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use weft_block::{BlockDevice, MemoryDevice};
//! use weft_cache::{AttachOptions, Cache, CreateOptions, Mode, OpenOptions, OriginId};
//!
//! let ssd = Arc::new(MemoryDevice::new(4 << 20));
//! Cache::create(&*ssd, &CreateOptions::default())?;
//! let cache = Cache::open(ssd, OpenOptions::default())?;
//!
//! let volume = Arc::new(MemoryDevice::new(64 << 20));
//! let id = OriginId { len_bytes: 64 << 20, label: "volume".into(), ..OriginId::default() };
//! let options = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
//! let cached = cache.attach(volume, &id, &options)?;
//! cached.write_at(b"fast", 0)?;
//! cached.flush()?;
//! assert_eq!(cache.stats().dirty_bytes, 4096);
//! cache.detach(&cached)?;
//! assert_eq!(cache.stats().dirty_bytes, 0);
//! cache.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod admission;
pub mod advise;
mod attach;
mod bitmap;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod data;
mod device;
mod dirty;
mod error;
mod filling;
mod fills;
mod finding;
mod flush;
mod forget;
pub mod format;
mod index;
mod jobs;
mod load;
mod loading;
mod lock;
mod log;
#[cfg(test)]
mod model;
mod open;
mod options;
mod origin;
mod origins;
mod pins;
pub mod policy;
mod policy_switch;
mod prefetch;
mod ranges;
mod read;
mod readahead;
mod regions;
mod requests;
mod residency;
mod resize;
mod resized;
mod send;
pub mod simulate;
mod slots;
mod staging;
mod state;
mod stats;
mod store;
mod tail;
pub mod trace;
mod workers;
mod write;
mod writeback;

pub use attach::OriginInfo;
pub use cache::Cache;
pub use check::{Dump, Report, SlotInfo, check, dump, info, repair};
pub use device::CachedDevice;
pub use finding::{Finding, Severity};

pub use error::{Error, Result};
pub use options::{
    AttachOptions, BLOCK_BYTES_MAX, CreateOptions, Mode, ORIGINS_MAX, OpenOptions, OriginId,
    SUB_BLOCK_BYTES,
};
pub use policy::PolicyKind;
pub use stats::{Figure, Stats};
