//! Networks, run over streams and stored files.

mod archives;
mod common;
mod crash;
mod damage;
mod flushes;
mod forwarding;
mod graphs;
mod hooked;
mod interrupts;
mod mounted;
mod names;
mod networks;
mod outputs;
mod peers;
mod power_cuts;
mod rules_of_others;
mod stores;
mod streams;
mod told;
mod tree;
mod trees;
mod unknown_length;
mod views;
#[cfg(feature = "wasm")]
mod wasm;
mod writes;
