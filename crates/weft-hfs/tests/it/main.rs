//! The integration tests of weft-hfs.

mod crash;
mod interchange;
mod model;
mod order;
mod tools;
mod volume;
