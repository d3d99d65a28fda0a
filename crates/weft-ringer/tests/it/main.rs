//! The shared file service from outside.

mod quiet;
mod samples;
mod sim;
mod store;
mod wire;
