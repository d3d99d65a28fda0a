//! The integration tests of weft-hfs.

mod crash;
mod damage;
mod hfsutils;
mod interchange;
mod model;
mod order;
mod tools;
mod volume;
