//! The wire format, apart from any I/O: functions between bytes and values. The records of the
//! store and of a client's journal are the same encoding.
//!
//! Sources: the format is our own. Numbers are LEB128 in its shortest form, so that a value has
//! one encoding and `encode(decode(bytes)) == bytes`; a list is its length and its elements; a
//! choice is its number and its fields. Nothing here trusts a length: a list allocates for what
//! the bytes can hold, and what does not fit is a [`WireError`] that says where.
//!
//! Why not serde: the bytes are a contract with other machines and with older stores, to be read in
//! one place; limits are checked where each field is read; and an encoding that is canonical can be
//! compared, hashed and signed.
//!
//! **Versions.** A [`frame`] carries the sender's version. A number of a choice is never given
//! another meaning. Messages may gain fields *at their end*, each with a default for its absence;
//! whoever reads a frame of a later version ignores what is left at its end, whoever reads one of
//! its own version or an earlier one refuses it. What changes more than that is a new choice, which
//! an older peer refuses by its number ([`WireError::Unknown`]) without losing the connection.

mod archives;
mod codec;
pub mod frame;
mod message;

pub use archives::{ArchiveInfo, SweepStep, Swept};
pub use codec::{
    LIST_MAX, Reader, Wire, WireError, decode, encode, put_bytes, wire_enum, wire_struct,
};
pub use message::{
    Claim, Enclosed, Entry, FromServer, Kept, KeptOwner, KeptVersion, Listed, Peeked, Refused,
    RemovedFile, Reply, Request, RequestBody, SnapshotEntry, ToServer, Welcome,
};
