//! What a check says of a state.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weft_vfs::memfs::Snapshot;

use crate::Result;
use crate::states::State;
use crate::subject::Edit;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Exit status 0.
    Passed,
    /// Another exit status.
    Failed(i32),
    /// A signal.
    Killed(i32),
    /// It took longer than it may.
    TimedOut,
    /// It was not run: the volume cannot be mounted or read, or fsck found it damaged.
    Damaged,
}

/// How a check ended, and what it printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// Its standard output and error, as far as they are kept.
    pub output: String,
}

impl Verdict {
    /// Returns true if the state is no state that a power cut may leave.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.outcome != Outcome::Passed
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(status) => write!(f, "exit status {status}"),
            Self::Killed(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Damaged => f.write_str("not run, as the volume is damaged"),
        }
    }
}

/// A state to be judged.
#[derive(Debug)]
pub struct Case<'a> {
    /// The changes of the recording.
    pub edits: &'a [Edit],
    /// The state.
    pub state: &'a State,
    /// Its tree.
    pub tree: &'a Snapshot,
    /// The state is that of a volume that weft cannot mount, or that its fsck finds damaged.
    pub damage: Option<&'a str>,
    /// The promises that the program had made.
    pub promises: &'a [&'a str],
    /// The number of a file that has no content in the tree, though it has in the state.
    pub emptied: Option<u64>,
}

/// Passes all states but those whose volume is damaged.
pub(crate) struct VolumeJudge;

impl Judge for VolumeJudge {
    fn judge(&mut self, _: &Case<'_>) -> Result<Verdict> {
        Ok(Verdict { outcome: Outcome::Passed, output: String::new() })
    }
}

/// Runs a check on states.
pub trait Judge: Send {
    /// Tells the judge under which model the next states are legal.
    ///
    /// # Errors
    /// Those of [`judge`](Self::judge).
    fn begin(&mut self, model: crate::Model) -> Result<()> {
        let _ = model;
        Ok(())
    }

    /// Runs the check on one state.
    ///
    /// # Errors
    /// If the check could not be run: this is no verdict.
    fn judge(&mut self, case: &Case<'_>) -> Result<Verdict>;

    /// Returns the folder in which it runs its checks, once it has run one.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Judges one state: one whose volume is damaged fails without its check.
    ///
    /// # Errors
    /// Those of [`judge`](Self::judge).
    fn verdict(&mut self, case: &Case<'_>) -> Result<Verdict> {
        match case.damage {
            Some(damage) => Ok(Verdict { outcome: Outcome::Damaged, output: damage.to_owned() }),
            None => self.judge(case),
        }
    }
}
