//! Final statements of a server, which waiting does not change: this client was revoked, or the
//! cell is an older copy of itself.
//!
//! Calls that would wait for the server then fail at once, with an error that says so. A revoked
//! client goes on with its leases until its epoch is over, as the server waits for that; a client
//! whose cell is older answers nothing from its leases, since that server never gave them.

use weft_ringer_net::{Error, Result};

use super::engine::{Engine, Verdict};
use super::mutex::locked;

/// `EACCES`
const EACCES: i32 = 13;
/// `ESTALE`
const ESTALE: i32 = 116;

impl Engine {
    /// Records why a connection has ended, if that is final.
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
                    "the metadata server at {} refuses this client: {denial}. Calls that need \
                    the server fail with EACCES from now on",
                    self.options.places()
                ),
                Verdict::Older(why) => {
                    tracing::error!("{why}. All calls fail with ESTALE until then");
                }
            }
        }
        // The lock makes sure that no thread is between its check and its wait.
        drop(locked(&self.inner));
        self.answered.notify_all();
    }

    /// Clears the verdict: a server has accepted this client.
    pub(super) fn acquit(&self) {
        *locked(&self.verdict) = None;
    }

    /// The error for a call that would wait for the server in vain.
    pub(super) fn hopeless(&self) -> Option<weft_vfs::Error> {
        let verdict = locked(&self.verdict);
        let (errno, why) = match verdict.as_ref()? {
            Verdict::Denied(denial) => {
                (EACCES, format!("the metadata server refuses this client: {denial}"))
            }
            Verdict::Older(why) => (ESTALE, why.clone()),
        };
        Some(weft_vfs::Error::Io { errno, message: why })
    }

    /// The error for any call, if the cell is not the one that granted the leases.
    pub(super) fn check_cell(&self) -> weft_vfs::Result<()> {
        match &*locked(&self.verdict) {
            Some(Verdict::Older(why)) => {
                Err(weft_vfs::Error::Io { errno: ESTALE, message: why.clone() })
            }
            _ => Ok(()),
        }
    }
}
