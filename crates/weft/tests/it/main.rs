//! The library from outside.

mod counts;
mod fuzz;
mod groups;
mod transfer;
