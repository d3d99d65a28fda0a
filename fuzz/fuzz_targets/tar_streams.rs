//! Tar streams that were good before some bytes of them changed.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::tar_streams(data));
