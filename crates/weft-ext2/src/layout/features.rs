//! Feature sets of the superblock, with the names mke2fs gives them.
//!
//! An unknown *compatible* feature is ignored, an unknown *read-only compatible* one forbids
//! changes, an unknown *incompatible* one forbids any use.

use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`, at 0x5C of the superblock.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Compat: u32 {
        /// Directories are preallocated (never used by Linux).
        const DIR_PREALLOC = 0x1;
        /// AFS server inodes.
        const IMAGIC_INODES = 0x2;
        /// The volume has a journal: ext3.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes may be present.
        const EXT_ATTR = 0x8;
        /// Inode 7 holds blocks for the descriptor table to grow into.
        const RESIZE_INODE = 0x10;
        /// Directories may carry a hash tree.
        const DIR_INDEX = 0x20;
        /// At most two backup superblocks, in the groups the superblock names.
        const SPARSE_SUPER2 = 0x200;
        /// The journal may hold fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID do not change.
        const STABLE_INODES = 0x800;
        /// Orphans are kept in a file.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// `s_feature_incompat`, at 0x60.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Incompat: u32 {
        /// Compressed files.
        const COMPRESSION = 0x1;
        /// Directory entries carry the kind of their inode.
        const FILETYPE = 0x2;
        /// The journal must be replayed.
        const RECOVER = 0x4;
        /// This is not a volume but an external journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptors lie in their meta groups.
        const META_BG = 0x10;
        /// Files are mapped by extents.
        const EXTENTS = 0x40;
        /// 64-bit block numbers.
        const SIXTY_FOUR_BIT = 0x80;
        /// Multiple-mount protection.
        const MMP = 0x100;
        /// Bitmaps and inode tables lie outside their groups.
        const FLEX_BG = 0x200;
        /// Large attribute values lie in inodes.
        const EA_INODE = 0x400;
        /// Data in directory entries.
        const DIRDATA = 0x1000;
        /// The checksum seed lies in the superblock.
        const CSUM_SEED = 0x2000;
        /// Three-level hash trees.
        const LARGEDIR = 0x4000;
        /// Data in inodes.
        const INLINE_DATA = 0x8000;
        /// Encrypted files.
        const ENCRYPT = 0x1_0000;
        /// Case-insensitive directories.
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }

    /// `s_feature_ro_compat`, at 0x64.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RoCompat: u32 {
        /// Backup superblocks only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// Some file is (or was) 2 GiB or larger.
        const LARGE_FILE = 0x2;
        /// Never used.
        const BTREE_DIR = 0x4;
        /// Block counts of files may be in volume blocks.
        const HUGE_FILE = 0x8;
        /// Descriptors have checksums.
        const GDT_CSUM = 0x10;
        /// Directories may have more than 65,000 subdirectories.
        const DIR_NLINK = 0x20;
        /// Inodes promise room for extra fields.
        const EXTRA_ISIZE = 0x40;
        /// Snapshots.
        const HAS_SNAPSHOT = 0x80;
        /// Quota inodes.
        const QUOTA = 0x100;
        /// Allocation in clusters.
        const BIGALLOC = 0x200;
        /// Checksums of all metadata.
        const METADATA_CSUM = 0x400;
        /// Never to be written.
        const READONLY = 0x1000;
        /// Project quotas.
        const PROJECT = 0x2000;
        /// Verity files.
        const VERITY = 0x8000;
        /// The orphan file is not empty.
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

impl Incompat {
    /// The features that this crate can use.
    pub const SUPPORTED: Self = Self::FILETYPE.union(Self::RECOVER).union(Self::META_BG);
}

impl RoCompat {
    /// The features with which this crate can change a volume.
    pub const SUPPORTED: Self =
        Self::SPARSE_SUPER.union(Self::LARGE_FILE).union(Self::BTREE_DIR).union(Self::EXTRA_ISIZE);
}

/// The three feature sets of a volume. Those of a revision 0 volume are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known for any use.
    pub incompat: Incompat,
    /// Must be known for changes.
    pub ro_compat: RoCompat,
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

fn names(bits: u32, table: &[(u32, &str)], set: &str) -> Vec<String> {
    (0..32)
        .map(|i| 1_u32 << i)
        .filter(|bit| bits & bit != 0)
        .map(|bit| {
            table
                .iter()
                .find(|(b, _)| *b == bit)
                .map_or_else(|| format!("{set} {bit:#x}"), |(_, name)| (*name).to_owned())
        })
        .collect()
}

impl Features {
    /// The names of all features, as `dumpe2fs` shows them.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut all = names(self.compat.bits(), COMPAT_NAMES, "compat");
        all.extend(names(self.incompat.bits(), INCOMPAT_NAMES, "incompat"));
        all.extend(names(self.ro_compat.bits(), RO_COMPAT_NAMES, "ro_compat"));
        all
    }

    /// The names of the features that forbid any use.
    #[must_use]
    pub fn unknown_incompat(&self) -> Vec<String> {
        names(self.incompat.bits() & !Incompat::SUPPORTED.bits(), INCOMPAT_NAMES, "incompat")
    }

    /// The names of the features that forbid changes.
    #[must_use]
    pub fn unknown_ro_compat(&self) -> Vec<String> {
        names(self.ro_compat.bits() & !RoCompat::SUPPORTED.bits(), RO_COMPAT_NAMES, "ro_compat")
    }

    /// The feature that a name of mke2fs's `-O` stands for, as a set of one.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let find = |table: &[(u32, &str)]| table.iter().find(|(_, n)| *n == name).map(|(b, _)| *b);
        let mut set = Self::default();
        if let Some(bit) = find(COMPAT_NAMES) {
            set.compat = Compat::from_bits_retain(bit);
        } else if let Some(bit) = find(INCOMPAT_NAMES) {
            set.incompat = Incompat::from_bits_retain(bit);
        } else {
            set.ro_compat = RoCompat::from_bits_retain(find(RO_COMPAT_NAMES)?);
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_named() {
        let features = Features {
            incompat: Incompat::FILETYPE | Incompat::EXTENTS | Incompat::from_bits_retain(1 << 30),
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
            ..Features::default()
        };
        assert_eq!(features.unknown_incompat(), ["extent", "incompat 0x40000000"]);
        assert_eq!(features.unknown_ro_compat(), ["metadata_csum"]);
    }

    #[test]
    fn names_find_their_bits() {
        assert_eq!(Features::by_name("has_journal").unwrap().compat, Compat::HAS_JOURNAL);
        assert_eq!(Features::by_name("large_file").unwrap().ro_compat, RoCompat::LARGE_FILE);
        assert!(Features::by_name("nonsense").is_none());
    }
}
