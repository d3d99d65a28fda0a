//! Pass 1: inodes, and the blocks they claim.

use super::found::{AttrBlock, DirBlock, Found, InodeState};
use super::problem::{InodeProblem, Place, Problem};
use super::volume::Volume;
use crate::Result;
use crate::layout::bytes::{get16, get32};
use crate::layout::{
    BAD_INO, Compat, DIRECT_SLOTS, FAST_SYMLINK_MAX_BYTES, GOOD_OLD_INODE_BYTES, Inode, InodeFlags,
    JOURNAL_INO, RESIZE_INO, ROOT_INO, RoCompat, SLOT_INDIRECT, Superblock, XATTR_ENTRY_BYTES,
    file_type_code, mappable_bytes, parse_xattr_block, parse_xattr_inode, xattr_block_refcount,
    xattr_entry_hash,
};
use weft_vfs::FileKind;

/// The quota files' inodes, which ext2 and ext3 leave alone.
const USER_QUOTA_INO: u32 = 3;
const GROUP_QUOTA_INO: u32 = 4;
/// Flags that only features of ext4 give a meaning: AFS inodes, encryption, extents, data in the
/// inode, directories that ignore case.
pub(super) const EXT4_FLAGS: InodeFlags =
    InodeFlags::from_bits_retain(0x2000 | 0x800 | 0x8_0000 | 0x1000_0000 | 0x4000_0000);
/// Names without regard to case: an ext4 feature of directories.
const CASEFOLD: InodeFlags = InodeFlags::from_bits_retain(0x4000_0000);
/// The boot loader's inode, the only other reserved one that may be a file.
const BOOT_LOADER_INO: u32 = 5;

/// The findings of a walk through one inode's map.
#[derive(Debug, Default)]
struct Walk {
    /// Blocks claimed, indirect ones included.
    claimed: u64,
    /// Indirect blocks among them.
    indirect: u64,
    /// The last block of the file that is mapped.
    last: Option<u64>,
    /// Set if a part of the map could not be followed.
    damaged: bool,
    /// Directories: the first block that must come next for there to be no hole.
    next: u64,
}

/// Checks the attributes in an inode, with the hashes that Linux writes there but does not check.
pub(super) fn inner_attributes(region: &[u8]) -> std::result::Result<(), String> {
    let mut at = 4;
    for attr in parse_xattr_inode(region)? {
        let hash = get32(region, at + 12);
        if hash != 0 && attr.name.is_ascii() && hash != xattr_entry_hash(&attr.name, &attr.value) {
            return Err(format!("attribute entry at {at}: hash does not match"));
        }
        at += (XATTR_ENTRY_BYTES + attr.name.len()).next_multiple_of(4);
    }
    Ok(())
}

/// The pass.
pub(super) struct Scan<'a, 'v> {
    pub volume: &'a Volume<'v>,
    pub superblock: &'a Superblock,
    pub found: &'a mut Found,
    /// A buffer for each level of indirection.
    pub buffers: [Vec<u8>; 3],
}

impl Scan<'_, '_> {
    /// Looks at every inode.
    pub(super) fn run(&mut self, tick: impl Fn(u64)) -> Result<()> {
        let tables = self.found.tables.clone();
        let volume = self.volume;
        let per_group = volume.geometry.inodes_per_group;
        volume.for_each_inode(&tables, |ino, slot| {
            if (ino - 1) % per_group == 0 {
                tick(u64::from((ino - 1) / per_group));
            }
            self.inode(ino, slot)
        })?;
        if self.found.large_file
            && !volume.geometry.features.ro_compat.contains(RoCompat::LARGE_FILE)
            && self.superblock.revision > 0
        {
            self.found.report(Problem::Superblock {
                field: "features",
                problem: "lack large_file, but there are files of 2 GiB or more".into(),
            });
        }
        Ok(())
    }

    fn problem(&mut self, ino: u32, problem: InodeProblem) {
        self.found.report(Problem::Inode { ino, problem });
    }

    fn inode(&mut self, ino: u32, slot: &[u8]) -> Result<()> {
        let reserved = ino < self.volume.geometry.first_inode && ino != ROOT_INO;
        let (mode, links, dtime) = (get16(slot, 0x00), get16(slot, 0x1A), get32(slot, 0x14));
        // A time this small is the next inode of the list of orphaned inodes.
        let chained = dtime != 0 && dtime < self.volume.geometry.inodes;
        if chained && (reserved || links == 0) {
            self.problem(ino, InodeProblem::Orphan);
        }
        if reserved {
            if let Some(state) = self.found.inode_mut(ino) {
                state.used = true;
                state.links = links;
            }
            return self.reserved_inode(ino, slot, mode);
        }
        if links == 0 {
            if mode != 0 && dtime == 0 {
                self.problem(ino, InodeProblem::Orphan);
            }
            return Ok(());
        }
        if dtime != 0 {
            self.problem(ino, InodeProblem::Deleted);
        }
        self.used_inode(ino, slot)
    }

    /// One of the inodes below the first for files, which are in use by definition.
    fn reserved_inode(&mut self, ino: u32, slot: &[u8], mode: u16) -> Result<()> {
        let compat = self.volume.geometry.features.compat;
        let is_journal = ino == JOURNAL_INO
            && compat.contains(Compat::HAS_JOURNAL)
            && self.superblock.journal_inode == JOURNAL_INO;
        let regular = mode & 0o170_000 == 0o100_000;
        if ino == RESIZE_INO && compat.contains(Compat::RESIZE_INODE) {
            // Its map is compared as a whole: see `start`.
            if let Ok(inode) = Inode::parse(slot) {
                self.fields(ino, slot, &inode, FileKind::Regular);
            }
            return Ok(());
        }
        if is_journal || (ino == BOOT_LOADER_INO && mode != 0) {
            if regular {
                return self.used_inode(ino, slot);
            }
            self.problem(ino, InodeProblem::Mode(mode));
            return Ok(());
        }
        let has_map = (0..15).any(|i| get32(slot, 0x28 + 4 * i) != 0);
        if ino == BAD_INO {
            // A list of bad blocks: a map, and nothing that makes a file.
            if mode != 0
                || get16(slot, 0x1A) != 0
                || get16(slot, 0x02) != 0
                || get16(slot, 0x18) != 0
                || get32(slot, 0x68) != 0
            {
                self.problem(
                    ino,
                    InodeProblem::Content("is the bad blocks inode, but has the fields of a file"),
                );
                return Ok(());
            }
            let Ok(inode) = Inode::parse(slot) else { return Ok(()) };
            let mut walk = self.walk(ino, &inode, false)?;
            // It counts the bad blocks alone (libext2fs, `ext2fs_update_bb_inode`).
            walk.claimed -= walk.indirect;
            return self.block_count(ino, &inode, &walk);
        }
        // As e2fsck decides whether an inode is in use that should not be.
        let in_use = match ino {
            RESIZE_INO => has_map,
            USER_QUOTA_INO | GROUP_QUOTA_INO | JOURNAL_INO => {
                get16(slot, 0x1A) != 0 || get32(slot, 0x1C) != 0 || get32(slot, 0x28) != 0
            }
            _ => mode != 0,
        };
        let found = get32(slot, 0x1C);
        let size = u64::from(get32(slot, 0x04)) | u64::from(get32(slot, 0x6C)) << 32;
        let quota = matches!(ino, USER_QUOTA_INO | GROUP_QUOTA_INO);
        // No implementation reads the other fields of these while they are not in use.
        let unread = quota || ino == JOURNAL_INO;
        if size > mappable_bytes(&self.volume.geometry) && !unread {
            self.problem(ino, InodeProblem::Size { found: size, expected: 0, lags: false });
        }
        if self.volume.geometry.contains_block(u64::from(get32(slot, 0x68))) && !unread {
            self.problem(ino, InodeProblem::Attributes("a reserved inode cannot have any".into()));
        }
        let flags = InodeFlags::from_bits_retain(get32(slot, 0x20));
        let wrong = match ino {
            JOURNAL_INO => CASEFOLD.union(InodeFlags::EXTENTS),
            _ if quota => CASEFOLD,
            _ => CASEFOLD.union(InodeFlags::INDEX),
        };
        if flags.intersects(wrong) {
            self.problem(ino, InodeProblem::Field("i_flags"));
        }
        if in_use {
            self.problem(ino, InodeProblem::Content("is reserved, but in use"));
        } else if found != 0 && ino != RESIZE_INO {
            self.problem(ino, InodeProblem::BlockCount { found, expected: 0 });
        }
        Ok(())
    }

    fn used_inode(&mut self, ino: u32, slot: &[u8]) -> Result<()> {
        let inode = match Inode::parse(slot) {
            Ok(inode) => inode,
            Err(_) => {
                self.problem(ino, InodeProblem::Field("i_extra_isize"));
                // The rest of the inode is still known.
                match Inode::parse(slot.get(..GOOD_OLD_INODE_BYTES).unwrap_or(slot)) {
                    Ok(inode) => inode,
                    Err(_) => return Ok(()),
                }
            }
        };
        let kind = inode.kind();
        if let Some(state) = self.found.inode_mut(ino) {
            *state = InodeState {
                used: true,
                kind: kind.map_or(0, file_type_code),
                empty: inode.size_bytes == 0 && inode.blocks_512 == 0 && inode.block == [0; 15],
                bad: kind.is_none(),
                links: inode.links,
                names: state.names,
            };
        }
        let Some(kind) = kind else {
            self.problem(ino, InodeProblem::Mode(inode.mode));
            return Ok(());
        };
        self.fields(ino, slot, &inode, kind);
        let mut attr_blocks = 0;
        if inode.file_acl != 0 {
            attr_blocks = self.attributes(ino, inode.file_acl)?;
        }
        self.inner_attributes(ino, slot, &inode);
        let block_bytes = self.volume.geometry.block_bytes;
        let mut walk = match kind {
            FileKind::Regular => self.walk(ino, &inode, false)?,
            FileKind::Directory => {
                self.found.dirs.entry(ino).or_default().indexed =
                    inode.flags.contains(InodeFlags::INDEX);
                let walk = self.walk(ino, &inode, true)?;
                self.directory_end(ino, &inode, &walk);
                walk
            }
            // As e2fsck decides it: by the size.
            FileKind::Symlink if inode.size_bytes <= FAST_SYMLINK_MAX_BYTES as u64 => {
                self.fast_symlink(ino, slot, &inode);
                Walk::default()
            }
            FileKind::Symlink => {
                let walk = self.walk(ino, &inode, false)?;
                self.slow_symlink(ino, &inode)?;
                walk
            }
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                // Linux leaves old numbers behind in the slots of devices: they mean nothing,
                // unless the inode is so odd that it cannot be a device.
                if inode.flags.intersects(InodeFlags::IMMUTABLE.union(InodeFlags::APPEND))
                    && inode.block.iter().skip(4).any(|&slot| slot != 0)
                {
                    self.problem(
                        ino,
                        InodeProblem::Content("is a special file, but has block pointers"),
                    );
                }
                Walk::default()
            }
        };
        if kind == FileKind::Regular {
            self.file_size(ino, &inode, &walk, u64::from(block_bytes));
        }
        walk.claimed += attr_blocks;
        self.block_count(ino, &inode, &walk)
    }

    /// Fields that have only one possible value.
    fn fields(&mut self, ino: u32, slot: &[u8], inode: &Inode, kind: FileKind) {
        let directory = kind == FileKind::Directory;
        // No implementation reads these of an inode that has no name.
        let named = ino == ROOT_INO || ino >= self.volume.geometry.first_inode;
        let wrong = [
            (named && get32(slot, 0x70) != 0, "i_faddr"),
            (named && get16(slot, 0x74) != 0, "i_blocks_hi"),
            (named && get16(slot, 0x76) != 0, "i_file_acl_hi"),
            (
                kind != FileKind::Regular && get32(slot, 0x6C) != 0,
                "i_size_high: it is not a regular file",
            ),
            (inode.flags.intersects(EXT4_FLAGS), "i_flags: a flag of ext4"),
            (
                inode.flags.contains(InodeFlags::INDEX) && !directory,
                "i_flags: INDEX, but it is not a directory",
            ),
            (
                inode.flags.contains(InodeFlags::INDEX)
                    && directory
                    && !self.volume.geometry.features.compat.contains(Compat::DIR_INDEX),
                "i_flags: INDEX, but the volume lacks dir_index",
            ),
            (
                matches!(
                    kind,
                    FileKind::BlockDevice
                        | FileKind::CharDevice
                        | FileKind::Fifo
                        | FileKind::Socket
                ) && inode.size_bytes != 0,
                "i_size: a special file has none",
            ),
        ];
        for (is, field) in wrong {
            if is {
                self.problem(ino, InodeProblem::Field(field));
            }
        }
    }

    fn block_count(&mut self, ino: u32, inode: &Inode, walk: &Walk) -> Result<()> {
        let expected = walk.claimed * u64::from(self.volume.geometry.block_bytes / 512);
        if !walk.damaged && u64::from(inode.blocks_512) != expected {
            let found = inode.blocks_512;
            self.problem(ino, InodeProblem::BlockCount { found, expected });
        }
        Ok(())
    }

    fn file_size(&mut self, ino: u32, inode: &Inode, walk: &Walk, block_bytes: u64) {
        let found = inode.size_bytes;
        if found > i32::MAX as u64 {
            self.found.large_file = true;
        }
        if let Some(last) = walk.last
            && found < last * block_bytes
        {
            // Blocks past the end are data whose size had not been written yet.
            let expected = (last + 1) * block_bytes;
            self.problem(ino, InodeProblem::Size { found, expected, lags: true });
        } else if found > mappable_bytes(&self.volume.geometry) {
            let expected = walk.last.map_or(0, |last| (last + 1) * block_bytes);
            self.problem(ino, InodeProblem::Size { found, expected, lags: false });
        }
    }

    /// Size and holes of a directory.
    fn directory_end(&mut self, ino: u32, inode: &Inode, walk: &Walk) {
        let block_bytes = u64::from(self.volume.geometry.block_bytes);
        let found = inode.size_bytes & u64::from(u32::MAX);
        let mapped = walk.last.map_or(0, |last| last + 1);
        if found != mapped * block_bytes && !walk.damaged {
            let lags = found < mapped * block_bytes && found.is_multiple_of(block_bytes);
            let expected = mapped * block_bytes;
            self.problem(ino, InodeProblem::Size { found, expected, lags });
        }
        if mapped == 0 {
            self.hole(ino, 0, 1);
        }
    }

    fn hole(&mut self, ino: u32, first: u64, count: u64) {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        self.found.report(Problem::Hole { ino, first: small(first), count: small(count) });
    }

    fn fast_symlink(&mut self, ino: u32, slot: &[u8], inode: &Inode) {
        let target = slot.get(0x28..0x28 + FAST_SYMLINK_MAX_BYTES + 1).unwrap_or_default();
        let len = target.iter().position(|&b| b == 0);
        let fits = len.is_some_and(|len| len > 0 && len as u64 == inode.size_bytes);
        if !fits {
            self.problem(ino, InodeProblem::Content("is a symbolic link with an invalid target"));
        }
    }

    fn slow_symlink(&mut self, ino: u32, inode: &Inode) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes);
        let first = u64::from(inode.block[0]);
        let mut fits = inode.size_bytes < block_bytes
            && self.volume.geometry.contains_block(first)
            && inode.block.iter().skip(1).all(|&slot| slot == 0);
        if fits {
            let mut buf = Vec::new();
            self.volume.read(first, &mut buf)?;
            fits = buf.iter().position(|&b| b == 0).map(|n| n as u64) == Some(inode.size_bytes);
        }
        if !fits {
            self.problem(ino, InodeProblem::Content("is a symbolic link with an invalid target"));
        }
        Ok(())
    }

    /// The attribute block an inode points to; how many blocks the inode is charged for it.
    fn attributes(&mut self, ino: u32, block: u32) -> Result<u64> {
        let geometry = &self.volume.geometry;
        let place = Place::Attributes;
        if !geometry.contains_block(u64::from(block)) {
            self.found.report(Problem::Pointer { ino, block, place });
            return Ok(0);
        }
        if !geometry.features.compat.contains(Compat::EXT_ATTR) {
            self.problem(ino, InodeProblem::Attributes("the volume lacks ext_attr".into()));
        }
        if let Some(known) = self.found.attrs.get_mut(&block) {
            known.refs = known.refs.saturating_add(1);
            return Ok(1);
        }
        if !self.found.blocks.set(u64::from(block)) {
            self.found.report(Problem::CrossLink { ino, block, place });
            return Ok(1);
        }
        let mut buf = Vec::new();
        self.volume.read(u64::from(block), &mut buf)?;
        if let Err(problem) = parse_xattr_block(&buf) {
            self.problem(ino, InodeProblem::Attributes(problem));
        }
        let refs_found = xattr_block_refcount(&buf);
        self.found.attrs.insert(block, AttrBlock { refs_found, refs: 1 });
        Ok(1)
    }

    fn inner_attributes(&mut self, ino: u32, slot: &[u8], inode: &Inode) {
        let start = GOOD_OLD_INODE_BYTES + usize::from(inode.extra_bytes);
        if slot.len() > GOOD_OLD_INODE_BYTES
            && inode.extra_bytes >= 4
            && let Some(region) = slot.get(start..)
            && let Err(problem) = inner_attributes(region)
        {
            self.problem(ino, InodeProblem::Attributes(problem));
        }
    }

    /// Claims the blocks of an inode's map.
    fn walk(&mut self, ino: u32, inode: &Inode, directory: bool) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut buffers = std::mem::take(&mut self.buffers);
        let pointers = u64::from(self.volume.geometry.pointers_per_block());
        let mut logical = 0_u64;
        for (slot, &block) in inode.block.iter().enumerate() {
            let level = if slot < DIRECT_SLOTS { 0 } else { slot - SLOT_INDIRECT + 1 };
            let spans = (0..level).fold(1_u64, |n, _| n * pointers);
            let place = Place::Slot(slot);
            self.pointer(ino, block, place, level, logical, directory, &mut walk, &mut buffers)?;
            logical += spans;
        }
        self.buffers = buffers;
        Ok(walk)
    }

    /// Follows one pointer. An indirect block that is claimed already is not followed: so the
    /// whole check looks at each block once, whatever the pointers say.
    #[expect(clippy::too_many_arguments, reason = "the state of one recursion, three deep")]
    fn pointer(
        &mut self,
        ino: u32,
        block: u32,
        place: Place,
        level: usize,
        logical: u64,
        directory: bool,
        walk: &mut Walk,
        buffers: &mut [Vec<u8>],
    ) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        if !self.volume.geometry.contains_block(u64::from(block)) {
            self.found.report(Problem::Pointer { ino, block, place });
            walk.damaged = true;
            return Ok(());
        }
        walk.claimed += 1;
        walk.indirect += u64::from(level > 0);
        let fresh = self.found.blocks.set(u64::from(block));
        if !fresh {
            self.found.report(Problem::CrossLink { ino, block, place });
        }
        let Some(below) = level.checked_sub(1) else {
            walk.last = Some(logical);
            if directory {
                if logical > walk.next {
                    self.hole(ino, walk.next, logical - walk.next);
                }
                walk.next = logical + 1;
                let logical = u32::try_from(logical).unwrap_or(u32::MAX);
                self.found.dir_blocks.push(DirBlock { ino, logical, block });
            }
            return Ok(());
        };
        if !fresh {
            walk.damaged = true;
            return Ok(());
        }
        let Some((buf, deeper)) = buffers.split_first_mut() else { return Ok(()) };
        self.volume.read(u64::from(block), buf)?;
        let pointers = u64::from(self.volume.geometry.pointers_per_block());
        let spans = (0..below).fold(1_u64, |n, _| n * pointers);
        for index in 0..self.volume.block_len() / 4 {
            let next = get32(buf, 4 * index);
            if next != 0 {
                let place = Place::Entry { block: u64::from(block), index };
                let at = logical + index as u64 * spans;
                self.pointer(ino, next, place, below, at, directory, walk, deeper)?;
            }
        }
        Ok(())
    }
}
