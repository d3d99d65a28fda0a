//! The integration tests of weft-hfs.

mod interchange;
mod order;
mod tools;
