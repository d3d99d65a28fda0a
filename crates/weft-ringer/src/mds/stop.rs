//! The reason why a change or a request was not carried out.

use crate::error::Refusal;
use crate::store::StoreError;

/// A refusal, which the client is told, or a failure of the store, which ends the server.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    Store(StoreError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
