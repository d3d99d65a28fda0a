//! Blocks fetched from other clients, which may be removed when room is needed, in LRU order.

use std::collections::{BTreeMap, HashMap};

use weft_ringer::{BlockHash, RnodeId};

pub(super) type Key = (RnodeId, BlockHash);

/// The fetched blocks, in LRU order.
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
