//! A cache device with some bytes changed: checked, opened, used, repaired.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::cache_device(data));
