//! Crash tests of programs: records the calls that a program makes in a mounted folder, builds the
//! states that a power cut could have left there, and runs a check on each of them.
#![warn(missing_docs)]

mod backend;
mod before_main;
mod calls;
mod crash_test;
mod effects;
mod error;
mod finding;
mod folder;
mod hints;
mod image;
mod inode_log;
pub mod live;
mod load;
mod log_writes;
mod mapped;
mod mend;
mod model;
mod mutex;
mod recorder;
mod recording;
mod report;
mod rounds;
mod run;
pub mod sandbox;
mod scratch;
mod search;
mod shrink;
mod states;
mod subject;
mod text;
mod verdict;
mod volume;
mod words;
mod worker;

pub use calls::{Action, Call, CallNr, NewNode, NodeNr, Place, Process, ROOT, Span};
pub use crash_test::{CrashTest, promise};
pub use effects::{Change, Effect, PAGE_BYTES, PageBytes, Resizing};
pub use error::{Error, Result};
pub use finding::{Finding, FindingKind, LostCall, Nature};
pub use log_writes::LogOptions;
pub use mend::{Mend, mend};
pub use model::{Model, Unit, UnitNr, Units};
pub use recorder::{Pattern, Recorder};
pub use recording::{Header, Recording};
pub use report::{EachSync, ModelReport, Report, SyncReport, junit_of_error};
pub use run::{
    CheckOptions, RecordOptions, check_each_sync, check_recording, check_state, extract_state,
    record_program,
};
pub use search::{Found, Limits, Progress, search};
pub use shrink::{Cause, shrink};
pub use states::{Bounds, Epoch, Kept, State, Torn, epochs};
pub use subject::{Cursor, Edit, Subject};
pub use verdict::{Case, Judge, Outcome, Verdict};
pub use volume::{BlockText, Volume, VolumeFormat, VolumeKind, VolumeOptions, WatchedVolume};
pub use words::{CallText, Paths, describe};
pub use worker::{WorkerCommand, worker_main};
