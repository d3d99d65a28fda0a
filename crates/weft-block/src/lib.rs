//! The block plug: a [`BlockDevice`] is a row of bytes that can be read, written, flushed and
//! discarded, and everything in weft that stores anything stands on one.
//!
//! # What a device promises
//!
//! A write that has returned is visible to later reads, but it is *durable* only after a later
//! [`flush`](BlockDevice::flush) has returned: the device may hold it in a volatile cache and may
//! persist un-flushed writes in any order, in part, or not at all. Nothing wider than one
//! [`SECTOR_BYTES`] sector is written atomically. All code above the plug is written for that.
//!
//! # What is here
//!
//! | device | what it is |
//! |---|---|
//! | [`FileDevice`] | an image file or a block special file, locked against a second writer |
//! | [`MemoryDevice`] | sparse memory with cheap snapshots ([`Image`]) |
//! | [`Partition`] | one partition of another device, found with [`list_partitions`] |
//! | [`ReadOnly`] | another device, made sure not to change |
//! | [`SnapshotDevice`] | another device that can be frozen, and goes on changing |
//! | [`Recorder`] | another device, with every write, flush and discard written down |
//! | [`CrashDevice`] | another device behind a volatile cache, and a plug that can be pulled |
//! | [`FaultDevice`] | another device that fails on purpose |
//!
//! A device on top of another is a [`Filter`]: it states what it changes, and every other call goes to
//! the device below.
//!
//! Every device and every filter goes through the suite in [`conformance`].
//!
//! Images in other files and formats are taken apart by [`container`].
//!
//! [`open_source`] opens what a user types (`disk.img?partition=2`, `mem:64M`). Recordings are
//! read and written in the dm-log-writes format by [`LogReader`] and [`LogWriter`].
//!
//! # Example
//!
//! A write that was not flushed may be gone after a power cut; one that was, may not.
//!
//! ```
//! use weft_block::{BlockDevice, CrashDevice, MemoryDevice};
//!
//! let disk = CrashDevice::new(MemoryDevice::new(1 << 20), 42);
//! disk.write_at(b"kept", 0)?;
//! disk.flush()?;
//! disk.write_at(b"lost?", 4096)?;
//! disk.crash()?;
//! disk.power_on();
//!
//! let mut kept = [0; 4];
//! disk.read_at(&mut kept, 0)?;
//! assert_eq!(&kept, b"kept");
//! let mut perhaps = [0; 5];
//! disk.read_at(&mut perhaps, 4096)?;
//! assert!(perhaps == *b"lost?" || perhaps == [0; 5]);
//! # Ok::<(), weft_block::Error>(())
//! ```
#![warn(missing_docs)]

mod change;
pub mod conformance;
pub mod container;
mod crash;
mod device;
mod error;
mod fault;
mod file;
mod filter;
mod image_locks;
mod kernel_use;
mod log_writes;
mod memory;
mod overlay;
mod partition;
mod process;
mod range_lock;
mod read_only;
mod recorder;
mod rng;
mod snapshot;
mod source;

pub use change::{Change, ChangeKind};
pub use crash::{CrashDevice, CrashOutcome};
pub use device::{BlockDevice, Extent, ExtentKind, Geometry, SECTOR_BYTES, check_range};
pub use error::{Error, Result};
pub use fault::{Fault, FaultDevice, Request, Rule, RuleId};
pub use file::{FileDevice, OpenMode};
pub use filter::Filter;
pub use log_writes::{LOG_MAGIC, LOG_VERSION, LogReader, LogWriter};
pub use memory::{Image, MemoryDevice, PAGE_BYTES, Page};
pub use overlay::Overlay;
pub use partition::{
    Guid, Partition, PartitionInfo, PartitionTable, PartitionType, Scheme, list_partitions,
};
pub use process::{DroppedByOwner, OwnerProcess};
pub use read_only::ReadOnly;
pub use recorder::{Event, Recorder, replay};
pub use rng::{Rng, mix};
pub use snapshot::{Snapshot, SnapshotDevice};
pub use source::{
    Source, SourceDevice, SourceFilter, Window, filters_len_bytes, open_source, parse_size,
    scheme_of,
};
