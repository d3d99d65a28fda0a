//! What a server has said that does not change by waiting: this client was sent away, or the cell is an older
//! copy of itself.
//!
//! Calls that would wait for the server fail at once then, with an error that says so. A client that was sent
//! away goes on with what is under its leases until its epoch is over, as the server waits for that; one
//! whose cell is older answers nothing from its leases, since that server never gave them.

use weft_ringer_net::{Denial, Error, Result};

use super::engine::{Engine, locked};

/// `EACCES`
const EACCES: i32 = 13;
/// `ESTALE`
const ESTALE: i32 = 116;

/// What a server has said for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This client is no member, or none any more.
    Denied(Denial),
    /// The cell lacks what this client has seen.
    Older(String),
}

impl Engine {
    /// Takes how a connection has ended.
    pub(super) fn judge(&self, ended: &Result<()>) {
        let verdict = match ended {
            Err(Error::Denied(denial)) => Verdict::Denied(*denial),
            Err(Error::OlderCell(why)) => Verdict::Older(why.clone()),
            _ => return,
        };
        let is_new = locked(&self.verdict).replace(verdict.clone()).as_ref() != Some(&verdict);
        if is_new {
            match &verdict {
                Verdict::Denied(denial) => tracing::error!(
                    "the metadata server at {} does not let this client in: {denial}. What needs the \
                     server fails with EACCES (permission denied) from now on",
                    self.options.places()
                ),
                Verdict::Older(why) => {
                    tracing::error!("{why}. All calls fail with ESTALE until that is settled");
                }
            }
        }
        // Nobody is between looking and waiting.
        drop(locked(&self.inner));
        self.answered.notify_all();
    }

    /// A server has let this client in.
    pub(super) fn acquit(&self) {
        *locked(&self.verdict) = None;
    }

    /// The error of a call that has to wait for the server, if there is no use in it.
    pub(super) fn hopeless(&self) -> Option<weft_vfs::Error> {
        let verdict = locked(&self.verdict);
        let (errno, why) = match verdict.as_ref()? {
            Verdict::Denied(denial) => {
                (EACCES, format!("the metadata server does not let this client in: {denial}"))
            }
            Verdict::Older(why) => (ESTALE, why.clone()),
        };
        Some(weft_vfs::Error::Io { errno, message: why })
    }

    /// The error of any call, if the cell is not the one that the leases are of.
    pub(super) fn check_cell(&self) -> weft_vfs::Result<()> {
        match &*locked(&self.verdict) {
            Some(Verdict::Older(why)) => {
                Err(weft_vfs::Error::Io { errno: ESTALE, message: why.clone() })
            }
            _ => Ok(()),
        }
    }
}
