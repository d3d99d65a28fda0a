//! Files that keep both forks of a Macintosh file.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::interchange(data));
