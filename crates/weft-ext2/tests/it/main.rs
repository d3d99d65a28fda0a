//! Tests of the crate through its front door, and against other people's tools.
mod fsck;
mod images;
mod mkfs;
mod tools;
