//! WebAssembly modules that answer what they like, and modules that are hardly any.
#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::wasm_guests(data));
