//! A block cache: a slow device behind a fast one, which is warm at once after a restart or a
//! power cut, and never serves what is stale.
#![warn(missing_docs)]

mod bitmap;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod device;
mod error;
mod fills;
pub mod format;
mod index;
mod loading;
#[cfg(test)]
mod model;
mod open;
mod options;
mod origin;
pub mod policy;
mod ranges;
mod read;
mod regions;
mod resize;
pub mod simulate;
mod slots;
mod state;
mod stats;
mod store;
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
