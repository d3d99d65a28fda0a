//! A block cache: a slow device behind a fast one, which is warm at once after a restart or a
//! power cut, and never serves what is stale.
//!
//! [`Cache::create`] makes a cache of a device, [`Cache::open`] opens it, [`Cache::attach`] puts it
//! in front of an origin and gives a [`CachedDevice`], which is a block device like any other. What
//! happens to reads and writes is the [`Mode`]'s, which can be changed at any time.
//!
//! # What it promises
//!
//! For an origin and a cache device that keep what was flushed, lose any of the rest, and tear
//! writes at 512 bytes:
//!
//! 1. A write that was acknowledged by a flush survives any power cut, in every mode.
//! 2. No read returns a value older than one that was served or acknowledged before in the same
//!    life; after a cut, none older than what was flushed; and never a mix of two blocks.
//! 3. After a cut, clean blocks are served as before where the origin cannot have been changed past
//!    them. No clean block is ever written to the origin.
//! 4. With write-back, a flush returns when data and record are durable on the cache device. Dirty
//!    data that was flushed is never overwritten in place.
//! 5. A fill waits for nothing: its record goes with the next group commit.
//! 6. A block is called clean durably only after its origin was flushed.
//! 7. At most 24 bytes of memory a block of 4 KiB. A cache of 64 GiB opens in less than a second,
//!    and serves while it loads.
//! 8. A warm cache is warm in order: the policy's state is part of the checkpoint.
//!
//! A flush of an origin that fails is, for what was written to it since the last good one, a cut of
//! its power: nothing of that is served from the cache any more, nor believed after this life, and
//! whoever flushes next is told of the range, if nobody was before. What is dirty stays dirty.
//!
//! Damage is found by a CRC32C of each 4 KiB: a clean block is healed from the origin, a dirty one
//! is an error that names its place ([`Error::DirtyDamaged`]). A cache whose metadata may have lost
//! dirty data is not opened; [`check`] says what is wrong with it, [`repair`] keeps what is good.
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
mod bitmap;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod device;
mod error;
mod filling;
mod fills;
mod forget;
pub mod format;
mod index;
mod loading;
mod lock;
#[cfg(test)]
mod model;
mod open;
mod options;
mod origin;
pub mod policy;
mod ranges;
mod read;
mod readahead;
mod regions;
mod resize;
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

pub use cache::Cache;
pub use check::{Dump, Finding, Report, Severity, SlotInfo, check, dump, info, repair};
pub use device::CachedDevice;

pub use error::{Error, Result};
pub use options::{
    AttachOptions, BLOCK_BYTES_MAX, CreateOptions, Mode, ORIGINS_MAX, OpenOptions, OriginId,
    SUB_BLOCK_BYTES,
};
pub use origin::OriginInfo;
pub use policy::PolicyKind;
pub use stats::Stats;
