//! A volume with some bytes changed: opened, walked, changed, checked, repaired.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::mount_and_walk(data));
