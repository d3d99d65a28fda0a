//! The content of each block of a volume: for reports about blocks, such as those of crash tests.
//!
//! The volume is read as it is, as far as its trees can be read.

use crate::btree::TreeKind;
use crate::btree::node::View;
use crate::layout::{BLOCK_BYTES, CatalogKey, CatalogRecord, Extent, Fork, MDB_BLOCK, NodeKind};
use crate::store::{Bare, Raw};
use crate::volume::Volume;
use crate::{Error, Result};
use std::collections::BTreeMap;
use weft_block::BlockDevice;

/// The content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The Master Directory Block, or its copy at the end.
    Mdb {
        /// True for the copy.
        copy: bool,
    },
    /// A part of the bitmap of allocation blocks.
    Bitmap {
        /// The first allocation block that it has a bit for.
        first: u64,
    },
    /// A node of a tree.
    Node {
        /// The tree.
        tree: TreeKind,
        /// Its number.
        node: u32,
    },
    /// Content of a file.
    Fork {
        /// The file's id.
        id: u32,
        /// The fork.
        fork: Fork,
        /// The first byte of the block in the fork.
        offset: u64,
    },
}

/// A leaf record of the catalog: where it is, and what it says.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The folder, and the name in it; a thread has no name.
    pub key: CatalogKey,
    /// The record.
    pub record: CatalogRecord,
}

/// The contents of all blocks of a volume that hold something.
#[derive(Debug, Clone)]
pub struct Owners {
    /// By the first of some consecutive blocks: the block behind the last, and the content of the
    /// first.
    runs: BTreeMap<u64, (u64, Content)>,
}

impl Owners {
    /// Reads a volume.
    ///
    /// # Errors
    /// [`Error::NotHfs`]; [`Error::Corrupt`] if the trees cannot be opened or read; those of the
    /// device.
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let blocks = device.geometry().len_bytes / BLOCK_BYTES as u64;
        let mut store = Bare::new(Raw(device));
        let volume = Volume::open(&mut store, blocks)?;
        let mdb = volume.mdb();
        let mut owners = Self { runs: BTreeMap::new() };
        owners.add(MDB_BLOCK, 1, Content::Mdb { copy: false });
        if let Some(copy) = mdb.copy_block(blocks) {
            owners.add(copy, 1, Content::Mdb { copy: true });
        }
        owners.add(u64::from(mdb.bitmap_block), mdb.bitmap_blocks(), Content::Bitmap { first: 0 });
        let (first_block, per_alloc) = (u64::from(mdb.first_block), mdb.blocks_per_alloc());
        let mut extents = |extents: &[Extent], content: &dyn Fn(u64) -> Content| {
            let mut done = 0;
            for extent in extents.iter().filter(|extent| extent.count > 0) {
                let count = u64::from(extent.count) * per_alloc;
                let at = first_block + u64::from(extent.start) * per_alloc;
                owners.add(at, count, content(done));
                done += count;
            }
        };
        for tree in [&volume.catalog, &volume.extents] {
            // A tree has fewer nodes than a number of 32 bits counts.
            extents(&tree.extents, &|done| Content::Node { tree: tree.kind, node: done as u32 });
        }
        let mut files = Vec::new();
        volume.catalog.scan_past(
            &mut store,
            &[0; 7],
            |_| Ok(()),
            |_, value| {
                if let Ok(CatalogRecord::File(file)) = CatalogRecord::parse(value) {
                    files.push(file);
                }
                Ok(true)
            },
        )?;
        for file in files {
            for fork in Fork::ALL {
                let Ok(map) = volume.extents_of(&mut store, &file, fork) else { continue };
                let id = file.id;
                extents(&map, &|done| Content::Fork {
                    id,
                    fork,
                    offset: done * BLOCK_BYTES as u64,
                });
            }
        }
        Ok(owners)
    }

    fn add(&mut self, first: u64, count: u64, content: Content) {
        self.runs.entry(first).or_insert((first + count, content));
    }

    /// The content of a block of 512 bytes; `None` if it is free, or holds nothing that is known.
    #[must_use]
    pub fn content(&self, block: u64) -> Option<Content> {
        let (first, (end, content)) = self.runs.range(..=block).next_back()?;
        let past = block - first;
        (block < *end).then_some(match *content {
            Content::Bitmap { first } => {
                Content::Bitmap { first: first + past * 8 * BLOCK_BYTES as u64 }
            }
            Content::Node { tree, node } => Content::Node { tree, node: node + past as u32 },
            Content::Fork { id, fork, offset } => {
                Content::Fork { id, fork, offset: offset + past * BLOCK_BYTES as u64 }
            }
            mdb @ Content::Mdb { .. } => mdb,
        })
    }
}

/// The records of a leaf of the catalog; none for another node, or one that is damaged.
#[must_use]
pub fn entries(node: &[u8]) -> Vec<Entry> {
    let Ok(view) = View::parse(TreeKind::Catalog, node) else { return Vec::new() };
    if view.head.kind != NodeKind::Leaf {
        return Vec::new();
    }
    let entry = |i| -> Result<Entry, Error> {
        let key = CatalogKey::parse(view.key(i))?;
        Ok(Entry { key, record: CatalogRecord::parse(view.value(i))? })
    };
    (0..view.count()).filter_map(|i| entry(i).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Name;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{Hfs, OpenOptions};
    use std::sync::Arc;
    use weft_block::MemoryDevice;
    use weft_vfs::{FileSystem, Walker};

    #[test]
    fn blocks_of_a_file_are_found_by_their_content() {
        let device = Arc::new(MemoryDevice::new(4 << 20));
        mkfs(&*device, &MkfsOptions::new(Name::new(b"Disk").unwrap(), 0)).unwrap();
        let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, OpenOptions::default());
        let fs = fs.unwrap();
        let walker = Walker::new(&*fs);
        let content: Vec<u8> = (0..200_u32).flat_map(|nr| [nr as u8 + 1; 512]).collect();
        walker.mkdir(b"/d", 0o755).unwrap();
        walker.write_file(b"/d/f", &content, 0o644).unwrap();
        let id = walker.resolve(b"/d/f").unwrap().ino().0 as u32;
        fs.unmount().unwrap();
        let owners = Owners::read(&*device).unwrap();
        let (mut seen, mut names) = (0, 0);
        for block in 0..8192 {
            let mut found = [0; 512];
            device.read_at(&mut found, block * 512).unwrap();
            match owners.content(block) {
                Some(Content::Fork { id: of, fork: Fork::Data, offset }) if of == id => {
                    // The last allocation block may have space behind the end.
                    if let Some(expected) = content.get(offset as usize..offset as usize + 512) {
                        assert_eq!(found, expected, "byte {offset}");
                        seen += 1;
                    }
                }
                Some(Content::Node { tree: TreeKind::Catalog, .. }) => {
                    let is_it = |entry: &&Entry| entry.key.name.as_bytes() == b"f";
                    names += entries(&found).iter().filter(is_it).count();
                }
                _ => {}
            }
        }
        assert_eq!((seen, names), (200, 1));
        assert_eq!(owners.content(2), Some(Content::Mdb { copy: false }));
        assert_eq!(owners.content(8190), Some(Content::Mdb { copy: true }));
    }
}
