//! Crash tests of programs: records the calls that a program makes in a mounted folder, builds the
//! states that a power cut could have left there, and runs a check on each of them.
#![warn(missing_docs)]

pub mod sandbox;
