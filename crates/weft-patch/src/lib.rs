//! The engine: changes to blocks as patches with dependencies.

#![warn(missing_docs)]

pub mod jbd2;
