//! A store of objects that keeps copies of a cell's files: a directory, or a bucket of S3.
//!
//! ```text
//! weft-archive          which archive this is, and of which cell
//! blocks/HH/HASH        a block, under its BLAKE3 hash in hex; HH is its first two digits
//! ```
//!
//! An object is never changed: its name is the hash of its bytes. So to put one twice, or from two
//! clients at once, does no harm, and a returned object is checked by its name. Clients talk to the
//! archive themselves; a metadata server knows its URL and never its credentials.
//!
//! Invariants:
//! - A block is durable in the archive when [`Archive::put`] has returned.
//! - A block returned by [`Archive::get`] has the hash that was asked for.
//! - No call takes longer than the limit it is given.
//! - An archive is used by the cell that it was [claimed](Archive::claim) for, and no other: so a
//!   directory that is not mounted is not taken for an empty archive. The marker is not trusted for
//!   longer than a request (`directory`) or a file (the client checks it again before it reports).

mod directory;
mod error;
mod http;
mod store;
mod sweep;

pub use self::error::{ArchiveError, Result};
pub use self::store::{Archive, Opener, by_url};
pub use self::sweep::{SweepFailure, SweepReport, sweep};
