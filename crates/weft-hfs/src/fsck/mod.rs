//! Checking a volume, repairing it, and recovering it after a power cut.
//!
//! A check reads and never writes. It walks both trees by their index, collects all items and
//! extents, and checks each derived structure against its source. A condition that Apple's checker
//! refuses is a problem here too, and one that it accepts is none: the rules are facts of Apple's
//! `fsck_hfs` (627) and of *Inside Macintosh: Files*.

mod census;
mod check;
mod mdb;
mod problem;
mod recover;
mod repair;
mod report;
mod walk;

#[cfg(feature = "std")]
pub use check::check;
pub use check::check_on;
pub use problem::Problem;
pub use recover::Recovered;
#[cfg(feature = "std")]
pub use repair::repair;
pub use repair::{Repaired, repair_on};
pub use report::Report;

/// The problem of a volume header that is read by its copy.
pub(crate) const BY_COPY: &str =
    "it is lost or damaged; its copy at the end of the volume is intact";
