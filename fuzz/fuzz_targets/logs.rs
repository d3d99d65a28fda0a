//! Logs of dm-log-writes, and the states that are built from them.
#![no_main]

#[path = "../recordings.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::logs(data));
