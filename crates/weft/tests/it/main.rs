//! The library from outside.

mod counts;
mod documents;
mod fork;
mod fuzz;
mod groups;
mod transfer;
