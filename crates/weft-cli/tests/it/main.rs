//! The `weft` command from outside, and the rules of the house.

mod cache;
mod cached;
mod check;
mod coherence;
mod documents;
mod files;
mod foreign_code;
mod hfs;
mod house;
mod iscsi;
mod kept;
mod mkfs;
mod mount;
mod nbd;
mod past;
mod proxy;
mod pushed;
mod ringer;
#[cfg(feature = "archive")]
mod ringer_archive;
mod ringer_cells;
mod ringer_copies;
mod ringer_encryption;
#[cfg(feature = "etcd")]
mod ringer_etcd;
mod ringer_front;
mod ringer_locks;
mod ringer_members;
#[cfg(feature = "quic")]
mod ringer_quic;
mod ringer_sharing;
mod ringer_snapshots;
mod ringer_text;
mod ringer_top;
mod run;
#[cfg(feature = "archive")]
mod s3;
mod trace;
mod transfer;
mod transform;
mod transformed;
mod usage;
