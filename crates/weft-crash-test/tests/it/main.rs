//! Tests through the public interface.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod models;
mod program;
mod recordings;
mod searches;
