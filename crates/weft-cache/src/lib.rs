//! A block cache: a slow device behind a fast one, which is warm at once after a restart or a
//! power cut, and never serves what is stale.
#![warn(missing_docs)]

mod error;
mod options;
pub mod policy;
pub mod simulate;
mod stats;
pub mod trace;

pub use error::{Error, Result};
pub use options::{
    AttachOptions, BLOCK_BYTES_MAX, CreateOptions, Mode, ORIGINS_MAX, OpenOptions, OriginId,
    SUB_BLOCK_BYTES,
};
pub use policy::PolicyKind;
pub use stats::Stats;
