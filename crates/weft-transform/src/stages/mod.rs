//! The stages that weft supplies: one file each, with its entry for the registry.

mod aead;
mod base;
mod bytes;
mod charset;
mod exec;
mod filter;
mod guard;
mod gzip;
mod json;
mod line_ends;
mod lz4;
pub(crate) mod merge;
mod seek_table;
mod tee;
#[cfg(feature = "wasm")]
pub(crate) mod wasm;
#[cfg(feature = "xz")]
mod xz;
#[cfg(feature = "zstd")]
mod zstd;

use crate::parameters::StageInfo;

pub use crate::model::{Merge, MergeBy};
pub use crate::parameters::{LogSink, Program};
pub use tee::Tee;

/// All supplied stages.
pub(crate) const SUPPLIED: &[&[StageInfo]] = &[
    bytes::STAGES,
    tee::STAGES,
    merge::STAGES,
    line_ends::STAGES,
    charset::STAGES,
    filter::STAGES,
    exec::STAGES,
    json::STAGES,
    base::STAGES,
    aead::STAGES,
    guard::STAGES,
    lz4::STAGES,
    gzip::STAGES,
    #[cfg(feature = "xz")]
    xz::STAGES,
    #[cfg(feature = "wasm")]
    wasm::STAGES,
    #[cfg(feature = "zstd")]
    zstd::STAGES,
];
