//! Archives, in a build without the feature `archive`: there are none.

use std::time::Instant;

use weft_ringer::wire::{ArchiveInfo, Peeked};
use weft_ringer::{BlockHash, Holders, RnodeId};
use weft_vfs::{Error, Result};

use super::client_fs::ClientFs;
use super::copies::{Content, Wanted};

impl ClientFs {
    #[expect(clippy::unused_self, reason = "the other has some")]
    pub(super) fn known_archives(&self) -> Vec<ArchiveInfo> {
        Vec::new()
    }

    pub(super) fn fetch_block(
        &self,
        id: RnodeId,
        hash: &BlockHash,
        holders: &Holders,
    ) -> Result<Vec<u8>, String> {
        self.engine
            .peers
            .fetch(id, hash, holders, self.engine.options.patience)
            .map_err(|e| e.to_string())
    }

    /// No archive can be asked, so none counts.
    #[expect(clippy::unused_self, reason = "the other has archives")]
    pub(super) fn is_in_an_archive(&self, _: RnodeId, _: &Content, _: &Peeked) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "the other has archives")]
    pub(super) fn archive(&self, _: RnodeId, _: Wanted, _: Instant) -> Result<()> {
        Err(Error::Unsupported("archives: weft was built without them"))
    }
}
