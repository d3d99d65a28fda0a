//! Network texts, rules files, and stored files of every format.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::transforms(data));
