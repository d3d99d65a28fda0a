//! The `weft` command from outside, and the rules of the house.

mod cache;
mod cached;
mod careful;
mod check;
mod choices;
mod coherence;
mod crash_live;
mod crash_run;
mod crowds;
mod damaged_lengths;
mod derived;
mod documents;
mod exact_copies;
mod files;
mod flags;
mod foreign_code;
mod hfs;
mod house;
mod iscsi;
mod kept;
mod layers;
mod mkfs;
mod mount;
mod nbd;
mod order;
mod order_files;
mod past;
mod programs;
mod proxy;
mod pushed;
mod pytest;
mod rights_meanwhile;
mod ringer;
mod ringer_admission;
#[cfg(feature = "archive")]
mod ringer_archive;
mod ringer_care;
mod ringer_cells;
mod ringer_copies;
mod ringer_encryption;
#[cfg(feature = "etcd")]
mod ringer_etcd;
mod ringer_locks;
mod ringer_members;
mod ringer_permissions;
mod ringer_proxy;
#[cfg(feature = "quic")]
mod ringer_quic;
mod ringer_sharing;
mod ringer_snapshots;
mod ringer_text;
mod ringer_top;
mod run;
#[cfg(feature = "archive")]
mod s3;
mod scripts;
mod sources;
mod stopped;
mod tar;
mod trace;
mod transfer;
mod transform;
mod transformed;
mod trust;
mod usage;
