//! The shared file service from outside.

mod samples;
mod store;
mod wire;
