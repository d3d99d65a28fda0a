//! Servers for tests: etcd, and connections that break.
//!
//! Everything here panics when it cannot do what a test needs of it.

mod cluster;
mod lossy;

pub use cluster::Cluster;
pub use lossy::Lossy;
