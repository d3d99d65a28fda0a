//! The shared file service from outside.

#[cfg(feature = "testing")]
mod etcd;
mod fence;
mod front;
mod live;
mod quiet;
mod samples;
mod sim;
mod store;
mod store_crash;
#[cfg(feature = "sqlite")]
mod text;
mod wire;
