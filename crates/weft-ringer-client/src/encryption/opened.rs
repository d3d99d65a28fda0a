//! The ciphers of files in use, and a cache of decrypted blocks: a block is decrypted as a whole, and often read bit by bit.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use weft_ringer::{BlockHash, Encryption, RnodeId};

use super::block::FileCipher;
use crate::mutex::locked;

/// The ciphers of files in use, and decrypted blocks.
#[derive(Debug, Default)]
pub(in super::super) struct Encrypted {
    pub(super) known: Mutex<HashMap<RnodeId, Option<Arc<FileCipher>>>>,
    pub(super) opened: Opened,
}

impl Encrypted {
    /// Forgets a file that this client no longer uses.
    pub(in super::super) fn forget(&self, id: RnodeId) {
        locked(&self.known).remove(&id);
    }
}

/// The capacity of the cache, in bytes: some large blocks, read by several threads at once.
const KEPT_MAX_BYTES: usize = 32 << 20;

/// The ciphertext's hash, file and index: a block valid at one position is not valid at another.
type Of = (BlockHash, Encryption, u32);

#[derive(Debug, Default)]
struct Kept {
    blocks: HashMap<Of, (u64, Arc<Vec<u8>>)>,
    oldest: BTreeMap<u64, Of>,
    clock: u64,
    bytes: usize,
}

/// The cache, in memory alone.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<Kept>);

impl Opened {
    pub(super) fn get(&self, of: &Of) -> Option<Arc<Vec<u8>>> {
        let mut kept = locked(&self.0);
        kept.clock += 1;
        let clock = kept.clock;
        let (used, bytes) = kept.blocks.get_mut(of)?;
        let before = std::mem::replace(used, clock);
        let bytes = Arc::clone(bytes);
        kept.oldest.remove(&before);
        kept.oldest.insert(clock, *of);
        Some(bytes)
    }

    pub(super) fn put(&self, of: Of, bytes: &Arc<Vec<u8>>) {
        let mut kept = locked(&self.0);
        kept.clock += 1;
        let clock = kept.clock;
        kept.bytes += bytes.len();
        kept.oldest.insert(clock, of);
        if let Some((used, before)) = kept.blocks.insert(of, (clock, Arc::clone(bytes))) {
            kept.oldest.remove(&used);
            kept.bytes -= before.len();
        }
        while kept.bytes > KEPT_MAX_BYTES {
            let Some((_, of)) = kept.oldest.pop_first() else { break };
            kept.bytes -= kept.blocks.remove(&of).map_or(0, |(_, bytes)| bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::{FileId, KeyId};

    #[test]
    fn oldest_entries_are_evicted() {
        let opened = Opened::default();
        let encryption = Encryption { key: KeyId([1; 16]), file: FileId([2; 16]) };
        let of = |index| (BlockHash([3; 32]), encryption, index);
        let bytes = Arc::new(vec![7; KEPT_MAX_BYTES / 4]);
        for index in [0, 1, 2, 3, 3, 0, 4] {
            opened.put(of(index), &bytes);
        }
        assert!(opened.get(&of(0)).is_some(), "used of late");
        assert!(opened.get(&of(1)).is_none(), "the oldest");
        assert_eq!(locked(&opened.0).bytes, KEPT_MAX_BYTES);
        assert_eq!(locked(&opened.0).oldest.len(), 4);
    }
}
