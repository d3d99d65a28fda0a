//! The wire format, without I/O: functions between bytes and values. The records of the store and
//! of a client's journal use the same encoding.
//!
//! Sources: the format is our own. Numbers are LEB128 in its shortest form, so that a value has one
//! encoding and `encode(decode(bytes)) == bytes`; a list is its length and its elements; an enum is
//! the number of its variant and its fields. Lengths are not trusted: a list allocates for what the
//! bytes can hold, and invalid bytes give a [`WireError`] that names the part.
//!
//! Why not serde: the bytes are a contract with other machines and with older stores, to be read in
//! one place; limits are checked where each field is read; and an encoding that is canonical can be
//! compared, hashed and signed.
//!
//! **Versions.** A [`frame`] carries the sender's version. The number of a variant is never reused.
//! Messages may gain fields *at their end*, each with a default for its absence; a receiver ignores
//! bytes left at the end of a frame of a later version, and refuses them in a frame of its own or
//! an earlier version. Larger changes are new variants, which an older peer refuses by their number
//! ([`WireError::Unknown`]) without losing the connection.

mod archives;
mod codec;
pub mod frame;
mod message;

pub use crate::error::Refused;
pub use archives::{ArchiveInfo, SweepStep, Swept};
pub use codec::{
    LIST_MAX, Reader, Wire, WireError, decode, encode, put_bytes, wire_enum, wire_struct,
};
pub use message::{
    Claim, Enclosed, Entry, FromServer, Kept, KeptOwner, KeptVersion, Listed, Peeked, RemovedFile,
    Reply, Request, RequestBody, SnapshotEntry, ToServer, Welcome,
};
