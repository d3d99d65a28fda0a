//! What was fetched from others and may go when room is needed, by when it was last used.

use std::collections::{BTreeMap, HashMap};

use weft_ringer::{BlockHash, RnodeId};

pub(super) type Key = (RnodeId, BlockHash);

/// What was fetched, by when it was last used.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) bytes: u64,
    clock: u64,
    pub(super) used: HashMap<Key, (u64, u64)>,
    pub(super) oldest: BTreeMap<u64, Key>,
}

impl Fetched {
    pub(super) fn touch(&mut self, key: Key, len_bytes: Option<u64>) {
        let known = self.used.get(&key).copied();
        let Some(len_bytes) = len_bytes.or(known.map(|(_, len)| len)) else { return };
        if let Some((at, len)) = known {
            self.oldest.remove(&at);
            self.bytes -= len;
        }
        self.clock += 1;
        self.bytes += len_bytes;
        self.used.insert(key, (self.clock, len_bytes));
        self.oldest.insert(self.clock, key);
    }

    pub(super) fn remove(&mut self, key: Key) {
        if let Some((at, len)) = self.used.remove(&key) {
            self.oldest.remove(&at);
            self.bytes -= len;
        }
    }
}
