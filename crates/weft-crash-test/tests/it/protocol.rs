//! What the tests ask their workers for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_crash_test::sandbox::Outcome;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Runs a line in a fresh tree.
    Run { line: String, limit: Duration },
    /// Runs `true` so many times, with a tree of so many files restored before each.
    Repeat { times: u32, files: u32 },
    /// Runs a line, and returns what was drained of its output.
    Drain { line: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ran { outcome: Outcome, in_place: bool },
    Repeated { mean: Duration },
    Drained(Vec<String>),
    Failed(String),
}
