//! The library from outside.

mod counts;
mod fuzz;
mod transfer;
