//! The clean part of a checkpoint that is being loaded while the cache already serves requests.
//!
//! Until its entry is loaded, a block is simply not in the cache: the origin has it as well.
//! Changes of blocks meanwhile supersede their entries: an entry is valid only if its slot was not
//! recorded by the log, its block is not in the cache, and has not been since the checkpoint.

use crate::bitmap::Bitmap;
use crate::format::UNIT;
use crate::format::checkpoint::{AreaLayout, Header};
use crate::policy::BlockKey;
use hashbrown::HashSet;

#[derive(Debug)]
pub(crate) struct Loading {
    /// Byte offset of the area.
    pub(crate) area: u64,
    pub(crate) layout: AreaLayout,
    pub(crate) header: Header,
    pub(crate) next_page: u64,
    pub(crate) pages: u64,
    /// Slots whose state is known: from the log, or loaded.
    pub(crate) known: Bitmap,
    /// Blocks whose entries are superseded.
    superseded: HashSet<BlockKey>,
    /// Set if clean blocks may be stale, so that all of them are dropped.
    pub(crate) untrusted: bool,
}

impl Loading {
    pub(crate) fn new(
        area: u64,
        layout: AreaLayout,
        header: Header,
        slots: u32,
        untrusted: bool,
    ) -> Self {
        Self {
            area,
            layout,
            pages: layout.pages_of(header.entries),
            header,
            next_page: 0,
            known: Bitmap::new(slots),
            superseded: HashSet::new(),
            untrusted,
        }
    }

    /// Marks the checkpoint's entry of this block as superseded.
    pub(crate) fn supersede(&mut self, key: BlockKey) {
        self.superseded.insert(key);
    }

    /// Returns the number of pages, at the beginning, that have entries of dirty blocks.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.layout.pages_of(self.header.dirty)
    }

    pub(crate) fn page_offset(&self, page: u64) -> u64 {
        self.area + (self.layout.entries_at() + page) * UNIT as u64
    }

    /// Returns true if the entry of this block is superseded.
    pub(crate) fn is_superseded(&self, key: BlockKey) -> bool {
        self.superseded.contains(&key)
    }
}
