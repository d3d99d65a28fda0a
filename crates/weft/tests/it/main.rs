//! The library from outside.

mod counts;
mod transfer;
