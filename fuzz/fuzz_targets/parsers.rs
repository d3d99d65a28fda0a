//! Every parser of bytes that come from a disk, a stream or a command line.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::parsers(data));
