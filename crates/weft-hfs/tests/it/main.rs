//! The integration tests of weft-hfs.

mod order;
mod tools;
