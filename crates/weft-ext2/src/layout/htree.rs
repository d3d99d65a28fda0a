//! Hash trees of `dir_index` directories: only recognised, never walked. To a linear reader the
//! root's entries hide behind `..` and an inner node looks like one empty entry, so reading needs
//! no tree; before the first change the inode's INDEX flag is cleared, and the tree is then just
//! free space.

use super::bytes::{get8, get16, get32};

/// The root of a hash tree, in block 0 of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtreeRoot {
    /// 0x1C: 0 legacy, 1 half MD4, 2 TEA, 3 to 5 the same with unsigned characters.
    pub hash_version: u8,
    /// 0x1E: levels of inner nodes, 0 to 2.
    pub indirect_levels: u8,
    /// 0x20: entries there is room for.
    pub limit: u16,
    /// 0x22: entries there are.
    pub count: u16,
}

impl HtreeRoot {
    /// The root that the block 0 of a directory holds, if it holds one.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        let dot_len = get16(block, 4);
        let dotdot_end = 12 + usize::from(get16(block, 12 + 4));
        if block.len() < 1024 || dot_len != 12 || dotdot_end != block.len() {
            return None;
        }
        if get32(block, 0x18) != 0 || get8(block, 0x1D) != 8 {
            return None;
        }
        let root = Self {
            hash_version: get8(block, 0x1C),
            indirect_levels: get8(block, 0x1E),
            limit: get16(block, 0x20),
            count: get16(block, 0x22),
        };
        let room = (block.len() - 0x20) / 8;
        (root.hash_version <= 6
            && root.indirect_levels <= 2
            && usize::from(root.limit) <= room
            && root.count <= root.limit)
            .then_some(root)
    }
}

/// Reports whether the block 0 of a directory holds a hash tree's root.
#[must_use]
pub fn is_htree_root(block: &[u8]) -> bool {
    HtreeRoot::parse(block).is_some()
}
