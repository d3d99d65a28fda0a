//! Tests of the crate through its front door, and against other people's tools.
mod cold;
mod cold_reads;
mod damage;
mod external_journal;
mod flags;
mod forgotten;
mod fs;
mod fsck;
mod healing;
mod images;
mod kernel;
mod mkfs;
mod removed;
mod tools;
mod trim;
mod unnamed;
mod volumes;
