//! File contents whose text is not sent to the server for search.

use std::collections::HashMap;

use weft_ringer::{RnodeId, Version};

/// The maximum number of remembered files whose text need not be sent.
const SKIPPED_MAX: usize = 100_000;

/// Contents that are not text, or that this client may not send.
#[derive(Debug, Default)]
pub(super) struct SkippedTexts(HashMap<RnodeId, Version>);

impl SkippedTexts {
    pub(super) fn has(&self, id: RnodeId, content: Version) -> bool {
        self.0.get(&id) == Some(&content)
    }

    pub(super) fn add(&mut self, id: RnodeId, content: Version) {
        if self.0.len() >= SKIPPED_MAX {
            // They will be checked once more.
            self.0.clear();
        }
        self.0.insert(id, content);
    }
}
