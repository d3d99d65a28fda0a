//! The content of each block of a volume: for reports about blocks, such as those of crash tests.
//!
//! The volume is read as it is: a journal is not replayed, and damage is passed over, as a report is
//! wanted most where something is damaged. Of two inodes that claim a block the first one has it.

use crate::fsck::volume::Volume;
use crate::layout::bytes::get32;
use crate::layout::{Geometry, Inode, Superblock};
use crate::{Result, superblock};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use weft_block::BlockDevice;
use weft_vfs::FileKind;

/// The content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The superblock, or a copy of it in another group.
    Superblock {
        /// The group.
        group: u32,
    },
    /// Group descriptors, or a copy of them.
    Descriptors {
        /// The first group that is described.
        first: u32,
        /// The number of groups.
        count: u32,
    },
    /// A group's bitmap of blocks.
    BlockBitmap {
        /// The group.
        group: u32,
    },
    /// A group's bitmap of inodes.
    InodeBitmap {
        /// The group.
        group: u32,
    },
    /// A part of a group's inode table.
    InodeTable {
        /// The group.
        group: u32,
        /// The first inode in the block.
        first_ino: u32,
    },
    /// Pointers to blocks of a file: an indirect block.
    Pointers {
        /// The inode.
        ino: u32,
        /// The first block of the file that it maps.
        first: u64,
        /// The blocks of the file that each pointer stands for.
        each: u64,
    },
    /// Content of a file, a directory, a symbolic link or the journal.
    Data {
        /// The inode.
        ino: u32,
        /// The number of the block in the file.
        index: u64,
        /// The type of the file.
        kind: FileKind,
    },
    /// Extended attributes, which inodes may share.
    Attributes {
        /// The first inode that has them.
        ino: u32,
    },
}

/// The contents of all blocks of a volume that hold something.
#[derive(Debug, Clone)]
pub struct Owners {
    superblock: Superblock,
    geometry: Geometry,
    contents: HashMap<u64, Content>,
}

impl Owners {
    /// Reads a volume.
    ///
    /// # Errors
    /// Those of the superblock, and of the device.
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let superblock = superblock::read(device)?;
        let geometry = superblock.geometry();
        let volume = Volume { device, geometry: geometry.clone(), overlay: HashMap::new() };
        let mut owners = Self { superblock, geometry, contents: HashMap::new() };
        owners.structures(&volume)?;
        Ok(owners)
    }

    /// The volume's superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The content of a block; `None` if it is free, or holds nothing that is known.
    #[must_use]
    pub fn content(&self, block: u64) -> Option<Content> {
        self.contents.get(&block).copied()
    }

    /// The blocks of a file, by their numbers in it.
    #[must_use]
    pub fn blocks_of(&self, ino: u32) -> BTreeMap<u64, u64> {
        let of = |(block, content): (&u64, &Content)| match content {
            Content::Data { ino: owner, index, .. } if *owner == ino => Some((*index, *block)),
            _ => None,
        };
        self.contents.iter().filter_map(of).collect()
    }

    fn set(&mut self, block: u64, content: Content) -> bool {
        let is_new = self.geometry.blocks > block && !self.contents.contains_key(&block);
        if is_new {
            self.contents.insert(block, content);
        }
        is_new
    }

    fn structures(&mut self, volume: &Volume<'_>) -> Result<()> {
        let geometry = volume.geometry.clone();
        for group in (0..geometry.groups).filter(|group| geometry.has_super(*group)) {
            self.set(geometry.group_first_block(group), Content::Superblock { group });
        }
        let per_block = geometry.descs_per_block();
        for index in 0..geometry.desc_blocks() {
            let first = index * per_block;
            let count = per_block.min(geometry.groups.saturating_sub(first));
            let copies = geometry.desc_backups(index);
            for block in std::iter::once(geometry.desc_block(index)).chain(copies) {
                self.set(block, Content::Descriptors { first, count });
            }
        }
        let inodes_per_block = geometry.block_bytes / geometry.inode_bytes;
        let table_blocks = geometry.inode_table_blocks();
        let mut tables = Vec::new();
        for (group, desc) in (0..).zip(volume.descriptors()?) {
            self.set(u64::from(desc.block_bitmap), Content::BlockBitmap { group });
            self.set(u64::from(desc.inode_bitmap), Content::InodeBitmap { group });
            for nr in 0..table_blocks {
                let first_ino = geometry.inode_number(group, nr * inodes_per_block);
                let block = u64::from(desc.inode_table) + u64::from(nr);
                self.set(block, Content::InodeTable { group, first_ino });
            }
            let end = u64::from(desc.inode_table) + u64::from(table_blocks);
            tables.push((end <= geometry.blocks).then_some(desc.inode_table));
        }
        volume.for_each_inode(&tables, |ino, slot| {
            // An inode that has lost its last name keeps its blocks until they are freed.
            if let Ok(inode) = Inode::parse(slot)
                && (inode.links > 0 || inode.mode != 0)
            {
                self.inode(volume, ino, &inode);
            }
            Ok(())
        })
    }

    fn inode(&mut self, volume: &Volume<'_>, ino: u32, inode: &Inode) {
        let block_bytes = volume.geometry.block_bytes;
        let Some(kind) = inode.kind() else { return };
        if inode.file_acl != 0 {
            self.set(u64::from(inode.file_acl), Content::Attributes { ino });
        }
        if !inode.has_blocks(block_bytes) {
            return;
        }
        let p = u64::from(volume.geometry.pointers_per_block());
        let (mut first, mut each) = (0, 1);
        for (slot, pointer) in inode.block.iter().enumerate() {
            let depth = slot.saturating_sub(crate::layout::DIRECT_SLOTS - 1);
            if depth > 0 {
                each *= p;
            }
            self.pointer(volume, *pointer, (ino, kind), first, each);
            first += each;
        }
    }

    /// Follows a pointer that stands for `each` blocks of a file, from `first` on.
    fn pointer(
        &mut self,
        volume: &Volume<'_>,
        pointer: u32,
        file: (u32, FileKind),
        first: u64,
        each: u64,
    ) {
        let (ino, kind) = file;
        let block = u64::from(pointer);
        if pointer == 0 {
            return;
        }
        if each == 1 {
            self.set(block, Content::Data { ino, index: first, kind });
            return;
        }
        // Each block is followed once, so that damaged maps end.
        let each = each / u64::from(volume.geometry.pointers_per_block());
        let mut content = Vec::new();
        if self.set(block, Content::Pointers { ino, first, each })
            && volume.read(block, &mut content).is_ok()
        {
            for (nr, at) in (0..).zip((0..content.len()).step_by(4)) {
                self.pointer(volume, get32(&content, at), file, first + nr * each, each);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{Ext2, OpenOptions};
    use std::sync::Arc;
    use weft_block::MemoryDevice;
    use weft_vfs::{FileSystem, Walker};

    #[test]
    fn blocks_of_a_file_are_found_by_their_content() {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        mkfs(&*device, &MkfsOptions { block_bytes: Some(1024), ..MkfsOptions::ext2() }).unwrap();
        let fs = Ext2::open(Arc::clone(&device) as Arc<dyn BlockDevice>, OpenOptions::default());
        let fs = fs.unwrap();
        let walker = Walker::new(&*fs);
        // Direct blocks, one block of pointers, and two levels of them.
        let content: Vec<u8> =
            (0..400_u32).flat_map(|nr| [nr as u8 ^ (nr >> 8) as u8 | 1; 1024]).collect();
        walker.mkdir(b"/d", 0o755).unwrap();
        walker.write_file(b"/d/f", &content, 0o644).unwrap();
        let ino = walker.resolve(b"/d/f").unwrap().ino().0 as u32;
        fs.unmount().unwrap();
        let owners = Owners::read(&*device).unwrap();
        let mut seen = vec![false; 400];
        let (mut pointers, mut tables) = (0, 0);
        for block in 0..8192 {
            match owners.content(block) {
                Some(Content::Data { ino: of, index, kind }) if of == ino => {
                    assert_eq!(kind, FileKind::Regular);
                    let mut found = vec![0; 1024];
                    device.read_at(&mut found, block * 1024).unwrap();
                    let index = index as usize;
                    assert_eq!(found, content[index * 1024..][..1024], "block {index}");
                    seen[index] = true;
                    assert_eq!(owners.blocks_of(ino).get(&(index as u64)), Some(&block));
                }
                Some(Content::Pointers { ino: of, .. }) if of == ino => pointers += 1,
                Some(Content::InodeTable { first_ino, group: 0 }) => {
                    let per_block = 1024 / u32::from(owners.superblock().inode_size);
                    tables += u32::from((first_ino..first_ino + per_block).contains(&ino));
                }
                _ => {}
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
        assert_eq!((pointers, tables), (3, 1));
        assert_eq!(owners.content(1), Some(Content::Superblock { group: 0 }));
        assert_eq!(owners.content(2), Some(Content::Descriptors { first: 0, count: 1 }));
    }
}
