//! The shared file service from outside.

mod samples;
mod sim;
mod store;
mod wire;
