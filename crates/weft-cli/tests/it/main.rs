//! The `weft` command from outside, and the rules of the house.

mod cached;
mod check;
mod documents;
mod files;
mod house;
mod mkfs;
mod mount;
mod run;
mod trace;
mod transfer;
mod usage;
