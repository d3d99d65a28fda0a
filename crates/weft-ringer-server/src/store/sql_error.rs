//! Errors of the stores and indexes in SQLite.

use rusqlite::ErrorCode;
use weft_ringer::store::StoreError;

/// Why an operation of SQLite, or on the data in it, failed.
#[derive(Debug)]
pub(super) enum SqlError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

pub(super) type SqlResult<T> = Result<T, SqlError>;

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
