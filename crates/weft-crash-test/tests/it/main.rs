//! Workers and commands on a real kernel.
//!
//! Needs `/dev/fuse` and the right to mount. Where something is missing a test says so.

mod protocol;
mod sandbox;
