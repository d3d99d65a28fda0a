//! A block cache: a slow device behind a fast one, which is warm at once after a restart or a
//! power cut, and never serves what is stale.
#![warn(missing_docs)]

pub mod policy;
