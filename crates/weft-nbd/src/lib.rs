//! The NBD protocol: a block device of another machine, and any block device for other machines.
//!
//! Written from the protocol's public document (NetworkBlockDevice/nbd, `doc/proto.md`).
#![warn(missing_docs)]
