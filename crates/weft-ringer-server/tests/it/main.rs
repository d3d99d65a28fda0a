//! Stores of cells from outside, and a metadata server on them.

#[cfg(feature = "testing")]
mod etcd;
mod store;
mod store_crash;
mod text;
