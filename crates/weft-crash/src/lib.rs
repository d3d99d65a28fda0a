//! Crash testing: runs workloads on a recorded volume, builds the images that a power cut could
//! leave at every moment, and judges each of them.
//!
//! 1. [`record`] runs a [`Workload`] on a [`Target`] and keeps every write and flush.
//! 2. [`states`] enumerates the possible images: any subset of the unflushed writes, each torn at
//!    512 bytes.
//! 3. [`judge`] examines each image: the file system's own checker and e2fsck find no damage; it
//!    mounts; everything that was fsynced is there with its content; names are old or new; no file
//!    contains data that was never written into it; repair leaves it clean; and using it without a
//!    repair does no damage.
//! 4. [`shrink`] reduces a violation of a promise to a small one, and prints the command that
//!    reproduces it.
//!
//! [`explore`] does all of this:
//!
//! ```
//! use std::sync::Arc;
//! use weft_crash::{Config, Ext2Target, explore};
//! use weft_patch::Policy;
//!
//! let target = Arc::new(Ext2Target::new(Policy::Soft));
//! let config = Config { seed: 7, images: 100, ..Config::new(target) };
//! let report = explore(&config, &|status| eprintln!("{} images", status.images))?;
//! for violation in &report.violations {
//!     println!("{violation}");
//! }
//! assert!(report.images >= 100 && report.violations.is_empty());
//! # Ok::<(), weft_crash::Error>(())
//! ```
#![warn(missing_docs)]

mod config;
pub mod e2fsck;
mod error;
mod explore;
mod ext2;
pub mod generate;
mod hfs;
pub mod history;
pub mod judge;
pub mod model;
pub mod observe;
mod one_workload;
pub mod record;
pub mod shrink;
pub mod states;
mod target;
pub mod workload;

pub use config::{Campaign, Config};
pub use error::{Error, Result};
pub use explore::{Report, Status, explore, replay, replay_image};
pub use ext2::Ext2Target;
pub use hfs::HfsTarget;
pub use judge::{Fault, Kind};
pub use one_workload::Violation;
pub use states::{Bounds, CrashState};
pub use target::{Findings, Mounted, Promises, Severity, Target, Tree};
pub use workload::{OPERATIONS, Op, Workload};
