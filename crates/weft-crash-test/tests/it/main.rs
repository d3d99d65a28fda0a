//! Tests through the public interface.
//!
//! Those of `sandbox` need `/dev/fuse` and the right to mount. Where something is missing a test
//! says so.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod crash_tests;
mod fuzz;
mod live;
mod logs;
mod models;
mod ordinary_user;
mod program;
mod protocol;
mod recordings;
mod sandbox;
mod searches;
