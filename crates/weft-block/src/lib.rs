//! The block plug: a [`BlockDevice`] is a row of bytes that can be read, written, flushed and
//! discarded, and everything in weft that stores anything stands on one.
//!
//! # What a device promises
//!
//! A write that has returned is visible to later reads, but it is *durable* only after a later
//! [`flush`](BlockDevice::flush) has returned: the device may hold it in a volatile cache and may
//! persist un-flushed writes in any order, in part, or not at all. Nothing wider than one
//! [`SECTOR_BYTES`] sector is written atomically. All code above the plug is written for that.

mod device;
mod error;

pub use device::{BlockDevice, Geometry, SECTOR_BYTES, check_range};
pub use error::{Error, Result};
