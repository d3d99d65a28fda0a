//! The core of the shared file service from outside: its state machines, simulated, and its bytes.

mod fence;
mod full;
mod proxy;
mod quiet;
mod samples;
mod sim;
mod wire;
