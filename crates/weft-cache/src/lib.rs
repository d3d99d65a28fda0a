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
//! 2. No read returns a version older than one that was served or acknowledged before in the same
//!    life (one opening of the cache); after a power cut, none older than the flushed one; and
//!    never a mix of two blocks.
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
//! trust it after this life. The next flush by a user returns an error that names the range, unless
//! a user got that error before. Dirty data stays dirty.
//!
//! Damage is detected by a CRC32C of each 4 KiB: a clean block is healed from the origin; a damaged
//! dirty block gives an error that names its position ([`Error::DirtyDamaged`]). A cache whose
//! metadata may have lost dirty data is not opened; [`check`] reports the damage, [`repair`] keeps
//! what is good.
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
mod prefetch;
mod ranges;
mod read;
mod readahead;
mod regions;
mod requests;
mod residency;
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
