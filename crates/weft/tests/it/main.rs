//! The library from outside.

mod transfer;
