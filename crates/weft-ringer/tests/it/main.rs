//! The shared file service from outside.

mod fence;
mod live;
mod quiet;
mod samples;
mod sim;
mod store;
mod store_crash;
mod wire;
