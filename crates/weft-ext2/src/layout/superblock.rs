//! The superblock: 1024 bytes at byte 1024 of the volume, with copies at the start of some groups.

use super::bytes::{get_array, get8, get16, get32, get64, put, put8, put16, put32, put64};
use super::features::{Compat, Features, Incompat, RoCompat};
use super::geometry::Geometry;
use super::inode::GOOD_OLD_FIRST_INO;
use crate::{Error, Result};
use bitflags::bitflags;

/// Byte offset of the primary superblock on the volume.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Byte offset of a backup superblock within the first block of its group.
pub const BACKUP_SUPERBLOCK_OFFSET: u64 = 0;
/// Size of a superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;

bitflags! {
    /// `s_state`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct State: u16 {
        /// Unmounted cleanly.
        const VALID = 1;
        /// Errors were found.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHANS = 4;
        const _ = !0;
    }
}

/// `s_creator_os`. It decides where the upper halves of owner ids lie: only Linux's place for
/// them is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreatorOs(pub u32);

impl CreatorOs {
    /// Linux.
    pub const LINUX: Self = Self(0);
    /// GNU Hurd.
    pub const HURD: Self = Self(1);
}

/// A superblock. Fields are as on disk; [`Superblock::geometry`] gives what follows from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// 0x00
    pub inodes: u32,
    /// 0x04
    pub blocks: u32,
    /// 0x08: blocks only the superuser may take.
    pub reserved_blocks: u32,
    /// 0x0C
    pub free_blocks: u32,
    /// 0x10
    pub free_inodes: u32,
    /// 0x14
    pub first_data_block: u32,
    /// 0x18: block size is 2^(10 + this).
    pub log_block_size: u32,
    /// 0x1C: fragment size; always equal to the block size.
    pub log_frag_size: u32,
    /// 0x20
    pub blocks_per_group: u32,
    /// 0x24: always equal to `blocks_per_group`.
    pub frags_per_group: u32,
    /// 0x28
    pub inodes_per_group: u32,
    /// 0x2C: last mount, seconds since 1970.
    pub mount_time: u32,
    /// 0x30: last write, seconds since 1970.
    pub write_time: u32,
    /// 0x34: mounts since the last check.
    pub mount_count: u16,
    /// 0x36: mounts after which a check is due; 0xFFFF never.
    pub max_mount_count: u16,
    /// 0x3A
    pub state: State,
    /// 0x3C: what to do on errors: 1 continue, 2 read-only, 3 panic.
    pub errors: u16,
    /// 0x3E
    pub minor_revision: u16,
    /// 0x40: last check, seconds since 1970.
    pub last_check: u32,
    /// 0x44: seconds between checks; 0 never.
    pub check_interval: u32,
    /// 0x48
    pub creator_os: CreatorOs,
    /// 0x4C: 0 good old, 1 with the fields from 0x54 on.
    pub revision: u32,
    /// 0x50: the user who may take reserved blocks.
    pub reserved_uid: u16,
    /// 0x52: the group that may take reserved blocks.
    pub reserved_gid: u16,
    /// 0x54
    pub first_inode: u32,
    /// 0x58: in bytes.
    pub inode_size: u16,
    /// 0x5A: the group of this copy.
    pub block_group: u16,
    /// 0x5C, 0x60, 0x64
    pub features: Features,
    /// 0x68
    pub uuid: [u8; 16],
    /// 0x78: padded with NUL.
    pub volume_name: [u8; 16],
    /// 0x88: padded with NUL.
    pub last_mounted: [u8; 64],
    /// 0xCE: blocks per group for the descriptor table to grow.
    pub reserved_gdt_blocks: u16,
    /// 0xD0: UUID of an external journal.
    pub journal_uuid: [u8; 16],
    /// 0xE0: inode of the journal, 0 if it is external.
    pub journal_inode: u32,
    /// 0xE4
    pub journal_device: u32,
    /// 0xE8: head of the list of orphaned inodes.
    pub last_orphan: u32,
    /// 0xEC: seed of directory hashes.
    pub hash_seed: [u32; 4],
    /// 0xFC: default hash of directories.
    pub hash_version: u8,
    /// 0xFD: 1 if `journal_backup` holds the journal inode's block array.
    pub journal_backup_type: u8,
    /// 0xFE: 0 or 32 without `64bit`.
    pub desc_size: u16,
    /// 0x100
    pub default_mount_options: u32,
    /// 0x104
    pub first_meta_group: u32,
    /// 0x108: seconds since 1970.
    pub made_time: u32,
    /// 0x10C: the journal inode's `i_block[15]` and the two halves of its size.
    pub journal_backup: [u32; 17],
    /// 0x15C: extra bytes that every inode has.
    pub min_extra_isize: u16,
    /// 0x15E: extra bytes that new inodes shall have.
    pub want_extra_isize: u16,
    /// 0x160: 1 signed, 2 unsigned characters in directory hashes.
    pub flags: u32,
    /// 0x178
    pub kbytes_written: u64,
    /// 0x194: errors found since the last check.
    pub error_count: u32,
    /// 0x24C: backups under `sparse_super2`.
    pub backup_groups: [u32; 2],
}

impl Default for Superblock {
    /// An empty superblock of revision 1 with Linux's usual constants.
    fn default() -> Self {
        let mut raw = [0_u8; SUPERBLOCK_BYTES];
        put16(&mut raw, 0x38, MAGIC);
        put32(&mut raw, 0x4C, 1);
        put16(&mut raw, 0x3C, 1);
        put16(&mut raw, 0x36, 0xFFFF);
        put16(&mut raw, 0x3A, State::VALID.bits());
        put32(&mut raw, 0x54, GOOD_OLD_FIRST_INO);
        put16(&mut raw, 0x58, 128);
        Self::fields(&raw)
    }
}

fn bad<T>(problem: impl Into<std::borrow::Cow<'static, str>>) -> Result<T> {
    Err(Error::corrupt("superblock", 0, problem))
}

impl Superblock {
    /// Reads a superblock from its 1024 bytes and checks every field that others are computed
    /// from. Features are not judged: see [`check_features`](Self::check_features).
    ///
    /// # Errors
    /// [`Error::NotExt2`], [`Error::Corrupt`].
    pub fn parse(raw: &[u8]) -> Result<Self> {
        if raw.len() < SUPERBLOCK_BYTES {
            return bad(format!("truncated at {} bytes", raw.len()));
        }
        let magic = get16(raw, 0x38);
        if magic != MAGIC {
            return Err(Error::NotExt2 { found: magic });
        }
        let sb = Self::fields(raw);
        // An external journal has a superblock with hardly a field of a volume.
        if sb.features.incompat.contains(Incompat::JOURNAL_DEV) {
            return Err(Error::Incompatible { features: "journal_dev".into() });
        }
        sb.check()?;
        Ok(sb)
    }

    fn fields(raw: &[u8]) -> Self {
        let revision = get32(raw, 0x4C);
        let dynamic = revision >= 1;
        let words4 = |at: usize| [0, 4, 8, 12].map(|i| get32(raw, at + i));
        let mut journal_backup = [0; 17];
        for (i, word) in journal_backup.iter_mut().enumerate() {
            *word = get32(raw, 0x10C + 4 * i);
        }
        Self {
            inodes: get32(raw, 0x00),
            blocks: get32(raw, 0x04),
            reserved_blocks: get32(raw, 0x08),
            free_blocks: get32(raw, 0x0C),
            free_inodes: get32(raw, 0x10),
            first_data_block: get32(raw, 0x14),
            log_block_size: get32(raw, 0x18),
            log_frag_size: get32(raw, 0x1C),
            blocks_per_group: get32(raw, 0x20),
            frags_per_group: get32(raw, 0x24),
            inodes_per_group: get32(raw, 0x28),
            mount_time: get32(raw, 0x2C),
            write_time: get32(raw, 0x30),
            mount_count: get16(raw, 0x34),
            max_mount_count: get16(raw, 0x36),
            state: State::from_bits_retain(get16(raw, 0x3A)),
            errors: get16(raw, 0x3C),
            minor_revision: get16(raw, 0x3E),
            last_check: get32(raw, 0x40),
            check_interval: get32(raw, 0x44),
            creator_os: CreatorOs(get32(raw, 0x48)),
            revision,
            reserved_uid: get16(raw, 0x50),
            reserved_gid: get16(raw, 0x52),
            first_inode: if dynamic { get32(raw, 0x54) } else { GOOD_OLD_FIRST_INO },
            inode_size: if dynamic { get16(raw, 0x58) } else { 128 },
            block_group: get16(raw, 0x5A),
            features: if dynamic {
                Features {
                    compat: Compat::from_bits_retain(get32(raw, 0x5C)),
                    incompat: Incompat::from_bits_retain(get32(raw, 0x60)),
                    ro_compat: RoCompat::from_bits_retain(get32(raw, 0x64)),
                }
            } else {
                Features::default()
            },
            uuid: get_array(raw, 0x68),
            volume_name: get_array(raw, 0x78),
            last_mounted: get_array(raw, 0x88),
            reserved_gdt_blocks: get16(raw, 0xCE),
            journal_uuid: get_array(raw, 0xD0),
            journal_inode: get32(raw, 0xE0),
            journal_device: get32(raw, 0xE4),
            last_orphan: get32(raw, 0xE8),
            hash_seed: words4(0xEC),
            hash_version: get8(raw, 0xFC),
            journal_backup_type: get8(raw, 0xFD),
            desc_size: get16(raw, 0xFE),
            default_mount_options: get32(raw, 0x100),
            first_meta_group: get32(raw, 0x104),
            made_time: get32(raw, 0x108),
            journal_backup,
            min_extra_isize: get16(raw, 0x15C),
            want_extra_isize: get16(raw, 0x15E),
            flags: get32(raw, 0x160),
            kbytes_written: get64(raw, 0x178),
            error_count: get32(raw, 0x194),
            backup_groups: [get32(raw, 0x24C), get32(raw, 0x250)],
        }
    }

    fn check(&self) -> Result<()> {
        if self.log_block_size > 2 {
            return match self.log_block_size {
                3..=6 => Err(Error::Incompatible {
                    features: format!("blocks of {} bytes", 1024_u64 << self.log_block_size),
                }),
                n => bad(format!("log_block_size is {n}")),
            };
        }
        if self.revision > 1 {
            return Err(Error::Incompatible { features: format!("revision {}", self.revision) });
        }
        let block_bytes = 1024_u32 << self.log_block_size;
        let bits = block_bytes * 8;
        if self.log_frag_size != self.log_block_size
            && !self.features.ro_compat.contains(RoCompat::BIGALLOC)
        {
            return bad("fragments are not blocks");
        }
        if self.first_data_block != u32::from(block_bytes == 1024) {
            return bad(format!("first_data_block is {}", self.first_data_block));
        }
        if self.blocks_per_group == 0
            || self.blocks_per_group > bits
            || !self.blocks_per_group.is_multiple_of(8)
        {
            return bad(format!("blocks_per_group is {}", self.blocks_per_group));
        }
        if self.inodes_per_group == 0 || self.inodes_per_group > bits {
            return bad(format!("inodes_per_group is {}", self.inodes_per_group));
        }
        let inode_bytes = u32::from(self.inode_size);
        if !inode_bytes.is_power_of_two() || inode_bytes < 128 || inode_bytes > block_bytes {
            return bad(format!("inode_size is {inode_bytes}"));
        }
        if self.blocks <= self.first_data_block {
            return bad(format!("blocks is {}", self.blocks));
        }
        let groups = (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group);
        if u64::from(groups) * u64::from(self.inodes_per_group) != u64::from(self.inodes) {
            return bad(format!(
                "{} inodes are not {groups} groups of {}",
                self.inodes, self.inodes_per_group
            ));
        }
        if self.first_inode < GOOD_OLD_FIRST_INO || self.first_inode > self.inodes {
            return bad(format!("first_inode is {}", self.first_inode));
        }
        if self.reserved_blocks > self.blocks {
            return bad(format!("reserved_blocks is {}", self.reserved_blocks));
        }
        let geometry = self.geometry();
        let meta_bg = self.features.incompat.contains(Incompat::META_BG);
        if meta_bg && self.first_meta_group > geometry.desc_blocks() {
            return bad(format!("first_meta_bg is {}", self.first_meta_group));
        }
        let overhead = geometry.group_overhead_blocks(0);
        let table = u64::from(geometry.inode_table_blocks());
        if overhead + table + 2 > geometry.group_blocks(0) {
            return bad(format!(
                "group 0 has {} blocks for {} of metadata",
                geometry.group_blocks(0),
                overhead + table + 2
            ));
        }
        if inode_bytes > 128 {
            for extra in [self.min_extra_isize, self.want_extra_isize] {
                if u32::from(extra) > inode_bytes - 128 || !extra.is_multiple_of(4) {
                    return bad(format!("extra inode size is {extra}"));
                }
            }
        }
        Ok(())
    }

    /// Refuses unknown incompatible features by name.
    ///
    /// # Errors
    /// [`Error::Incompatible`].
    pub fn check_features(&self) -> Result<()> {
        let mut unknown = self.features.unknown_incompat();
        if self.creator_os == CreatorOs::HURD {
            unknown.push("inodes of GNU Hurd".into());
        }
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(Error::Incompatible { features: unknown.join(", ") })
        }
    }

    /// Block size in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        1024 << self.log_block_size.min(6)
    }

    /// Length of the volume in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_bytes())
    }

    /// The measures that follow from this superblock.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let per_group = self.blocks_per_group.max(1);
        Geometry {
            block_bytes: self.block_bytes(),
            blocks: u64::from(self.blocks),
            first_data_block: self.first_data_block,
            blocks_per_group: per_group,
            inodes_per_group: self.inodes_per_group.max(1),
            inodes: self.inodes,
            inode_bytes: u32::from(self.inode_size).max(128),
            first_inode: self.first_inode,
            groups: self.blocks.saturating_sub(self.first_data_block).div_ceil(per_group),
            reserved_gdt_blocks: if self.features.compat.contains(Compat::RESIZE_INODE) {
                u32::from(self.reserved_gdt_blocks)
            } else {
                0
            },
            first_meta_group: if self.features.incompat.contains(Incompat::META_BG) {
                self.first_meta_group
            } else {
                u32::MAX
            },
            backup_groups: self.backup_groups,
            features: self.features,
        }
    }

    /// Puts the fields over a superblock's 1024 bytes; fields that this type does not know stay.
    pub fn encode_into(&self, raw: &mut [u8]) {
        for (at, value) in [
            (0x00, self.inodes),
            (0x04, self.blocks),
            (0x08, self.reserved_blocks),
            (0x0C, self.free_blocks),
            (0x10, self.free_inodes),
            (0x14, self.first_data_block),
            (0x18, self.log_block_size),
            (0x1C, self.log_frag_size),
            (0x20, self.blocks_per_group),
            (0x24, self.frags_per_group),
            (0x28, self.inodes_per_group),
            (0x2C, self.mount_time),
            (0x30, self.write_time),
            (0x40, self.last_check),
            (0x44, self.check_interval),
            (0x48, self.creator_os.0),
            (0x4C, self.revision),
        ] {
            put32(raw, at, value);
        }
        for (at, value) in [
            (0x34, self.mount_count),
            (0x36, self.max_mount_count),
            (0x38, MAGIC),
            (0x3A, self.state.bits()),
            (0x3C, self.errors),
            (0x3E, self.minor_revision),
            (0x50, self.reserved_uid),
            (0x52, self.reserved_gid),
        ] {
            put16(raw, at, value);
        }
        if self.revision == 0 {
            return;
        }
        for (at, value) in [
            (0x54, self.first_inode),
            (0x5C, self.features.compat.bits()),
            (0x60, self.features.incompat.bits()),
            (0x64, self.features.ro_compat.bits()),
            (0xE0, self.journal_inode),
            (0xE4, self.journal_device),
            (0xE8, self.last_orphan),
            (0x100, self.default_mount_options),
            (0x104, self.first_meta_group),
            (0x108, self.made_time),
            (0x160, self.flags),
            (0x194, self.error_count),
            (0x24C, self.backup_groups[0]),
            (0x250, self.backup_groups[1]),
        ] {
            put32(raw, at, value);
        }
        for (at, value) in [
            (0x58, self.inode_size),
            (0x5A, self.block_group),
            (0xCE, self.reserved_gdt_blocks),
            (0xFE, self.desc_size),
            (0x15C, self.min_extra_isize),
            (0x15E, self.want_extra_isize),
        ] {
            put16(raw, at, value);
        }
        put(raw, 0x68, &self.uuid);
        put(raw, 0x78, &self.volume_name);
        put(raw, 0x88, &self.last_mounted);
        put(raw, 0xD0, &self.journal_uuid);
        for (i, word) in self.hash_seed.iter().enumerate() {
            put32(raw, 0xEC + 4 * i, *word);
        }
        put8(raw, 0xFC, self.hash_version);
        put8(raw, 0xFD, self.journal_backup_type);
        for (i, word) in self.journal_backup.iter().enumerate() {
            put32(raw, 0x10C + 4 * i, *word);
        }
        put64(raw, 0x178, self.kbytes_written);
    }

    /// The 1024 bytes of a new superblock.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = vec![0; SUPERBLOCK_BYTES];
        self.encode_into(&mut raw);
        raw
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An 8 MiB volume with 1 KiB blocks in one group.
    pub(crate) fn small() -> Superblock {
        Superblock {
            inodes: 2048,
            blocks: 8192,
            first_data_block: 1,
            blocks_per_group: 8192,
            frags_per_group: 8192,
            inodes_per_group: 2048,
            ..Superblock::default()
        }
    }

    #[test]
    fn round_trip() {
        let mut sb = small();
        sb.features = Features {
            compat: Compat::EXT_ATTR,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER,
        };
        sb.uuid = [7; 16];
        sb.hash_seed = [1, 2, 3, 4];
        sb.journal_backup[16] = 99;
        assert_eq!(Superblock::parse(&sb.encode()).unwrap(), sb);
    }

    #[test]
    fn absurd_fields_are_refused() {
        type Break = fn(&mut Superblock);
        let breaks: &[Break] = &[
            |s| s.log_block_size = 40,
            |s| s.blocks_per_group = 0,
            |s| s.blocks_per_group = 1 << 20,
            |s| s.inodes_per_group = 0,
            |s| s.inodes = 5,
            |s| s.blocks = 1,
            |s| s.inode_size = 100,
            |s| s.inode_size = 2048,
            |s| s.first_inode = 3,
            |s| s.first_data_block = 0,
            |s| s.reserved_blocks = u32::MAX,
            |s| s.blocks = u32::MAX,
        ];
        for (i, b) in breaks.iter().enumerate() {
            let mut sb = small();
            b(&mut sb);
            assert!(Superblock::parse(&sb.encode()).is_err(), "case {i}");
        }
        assert!(matches!(Superblock::parse(&[0; 1024]), Err(Error::NotExt2 { found: 0 })));
        assert!(Superblock::parse(&[0; 100]).is_err());
    }

    #[test]
    fn sparse_super_groups() {
        let mut sb = small();
        sb.features.ro_compat = RoCompat::SPARSE_SUPER;
        let geometry = sb.geometry();
        let with: Vec<u32> = (0..60).filter(|&g| geometry.has_super(g)).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49]);
        sb.features.ro_compat = RoCompat::empty();
        assert!((0..60).all(|g| sb.geometry().has_super(g)));
    }

    #[test]
    fn positions() {
        let geometry = small().geometry();
        assert_eq!(geometry.inode_group(1), Some((0, 0)));
        assert_eq!(geometry.inode_group(0), None);
        assert_eq!(geometry.inode_group(2049), None);
        assert_eq!(geometry.block_group(0), None);
        assert_eq!(geometry.block_group(1), Some((0, 0)));
        assert_eq!(geometry.block_group(8192), None);
        assert_eq!(geometry.inode_position(100, 9), (101, 128));
        assert_eq!(geometry.desc_position(0), (2, 0));
    }
}
