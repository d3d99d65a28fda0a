//! Stores of cells: one SQLite file, or an etcd cluster. Their guarantees are described in
//! [`weft_ringer::store`], whose store in memory is the model that these are compared with.

#[cfg(feature = "etcd")]
mod etcd;
mod index;
#[cfg(feature = "etcd")]
mod local_index;
mod sql_error;
mod sqlite;

#[cfg(feature = "etcd")]
pub use etcd::{EtcdCell, EtcdOptions, EtcdStore, Taken};
pub use sqlite::{CHANGES_KEPT, SqliteStore};
