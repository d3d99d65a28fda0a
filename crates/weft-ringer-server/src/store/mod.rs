//! Stores of cells: one SQLite file, or an etcd cluster. Their guarantees are described in
//! [`weft_ringer::store`], whose store in memory is the model that these are compared with.

#[cfg(feature = "etcd")]
mod etcd;
mod index;
#[cfg(feature = "etcd")]
mod local_index;
mod sqlite;

#[cfg(feature = "etcd")]
pub use etcd::{EtcdCell, EtcdOptions, EtcdStore, Taken};
pub use sqlite::{CHANGES_KEPT, SqliteStore};

use rusqlite::ErrorCode;
use weft_ringer::store::StoreError;

/// Why an operation of SQLite, or on the data in it, failed.
#[derive(Debug)]
enum SqlError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

type SqlResult<T> = Result<T, SqlError>;

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for SqlError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SqlError> for StoreError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Store(error) => error,
            SqlError::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Self::Full,
                _ => Self::Failed(error.to_string()),
            },
        }
    }
}
