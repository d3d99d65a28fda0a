//! Options for making a volume.

use crate::layout::{Compat, Features, Incompat, RoCompat};
use crate::{Error, Result};

/// The revision of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Revision {
    /// Revision 0: no features, inodes of 128 bytes.
    GoodOld,
    /// Revision 1.
    #[default]
    Dynamic,
}

/// The place of the journal of an ext3 volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// In the volume, of this many bytes; `None`: by the size of the volume, as mke2fs has it.
    Internal {
        /// Length in bytes, at least 1024 blocks.
        len_bytes: Option<u64>,
    },
    /// On a device made by [`format_journal_device`](super::format_journal_device), named by its
    /// uuid.
    External {
        /// The journal device's uuid.
        uuid: [u8; 16],
    },
}

/// Options of [`mkfs`](super::mkfs). `None` means: by the size of the volume.
#[derive(Debug, Clone, PartialEq)]
pub struct MkfsOptions {
    /// Block size in bytes: 1024, 2048 or 4096. By default 4096, below 16 MiB 1024 (a small
    /// volume has small files, and the metadata of one group is a few blocks).
    pub block_bytes: Option<u32>,
    /// Inode size in bytes, a power of two from 128. By default 256, which has room for
    /// nanoseconds, dates past 2038 and small attributes; 128 in revision 0.
    pub inode_bytes: Option<u32>,
    /// One inode for each so many bytes. By default as mke2fs: 16384, below 512 MiB 4096.
    pub bytes_per_inode: Option<u32>,
    /// Number of inodes, instead of `bytes_per_inode`. Rounded up to whole blocks of inodes.
    pub inodes: Option<u32>,
    /// Blocks of a group: a multiple of 8 from 256 to 8 times the block size, which is the default.
    pub blocks_per_group: Option<u32>,
    /// The volume's name, at most 16 bytes.
    pub label: Vec<u8>,
    /// The volume's uuid; `None`: random.
    pub uuid: Option<[u8; 16]>,
    /// Share of the blocks only root may take, in percent from 0 to 50.
    pub reserved_percent: f64,
    /// Features. Those that follow from other options are added: `has_journal` from `journal`,
    /// `large_file` where the resize inode needs it.
    pub features: Features,
    /// Revision.
    pub revision: Revision,
    /// The journal; `None`: ext2.
    pub journal: Option<Journal>,
    /// Set to write checksums in the journal's blocks (its descriptor and data blocks; the commit
    /// block is never torn without them, either).
    pub journal_checksums: bool,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Time of making, seconds since 1970; `None`: now.
    pub time: Option<u32>,
    /// Length of the volume in bytes; `None`: all of the device.
    pub len_bytes: Option<u64>,
    /// Set to discard the volume's part of the device first.
    pub discard: bool,
}

impl MkfsOptions {
    /// An ext2 volume with mke2fs's features.
    #[must_use]
    pub fn ext2() -> Self {
        Self {
            block_bytes: None,
            inode_bytes: None,
            bytes_per_inode: None,
            inodes: None,
            blocks_per_group: None,
            label: Vec::new(),
            uuid: None,
            reserved_percent: 5.0,
            features: Features {
                compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
                incompat: Incompat::FILETYPE,
                ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
            },
            revision: Revision::Dynamic,
            journal: None,
            journal_checksums: false,
            root_uid: 0,
            root_gid: 0,
            time: None,
            len_bytes: None,
            discard: true,
        }
    }

    /// An ext3 volume: as [`ext2`](Self::ext2), with a journal inside.
    #[must_use]
    pub fn ext3() -> Self {
        Self { journal: Some(Journal::Internal { len_bytes: None }), ..Self::ext2() }
    }

    /// Applies a list of features as mke2fs's `-O` has it: names separated by commas, `^` in front
    /// takes one away, `none` takes all away.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is unknown or a feature that is not supported.
    pub fn set_features(&mut self, list: &str) -> Result<()> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == "none" {
                self.features = Features::default();
                self.journal = None;
                continue;
            }
            let (name, add) = match word.strip_prefix('^') {
                Some(name) => (name, false),
                None => (word, true),
            };
            let Some(one) = Features::by_name(name) else {
                return Err(Error::Invalid(format!("there is no feature {name}")));
            };
            if one.compat == Compat::HAS_JOURNAL {
                let internal = Journal::Internal { len_bytes: None };
                self.journal = add.then(|| self.journal.unwrap_or(internal));
                continue;
            }
            let known = SETTABLE;
            if !known.compat.contains(one.compat)
                || !known.incompat.contains(one.incompat)
                || !known.ro_compat.contains(one.ro_compat)
            {
                if add {
                    return Err(Error::Invalid(format!("feature {name} is not one of ext2/ext3")));
                }
                continue;
            }
            self.features.compat.set(one.compat, add);
            self.features.incompat.set(one.incompat, add);
            self.features.ro_compat.set(one.ro_compat, add);
        }
        Ok(())
    }
}

/// Features a volume can be made with, besides the journal.
pub(super) const SETTABLE: Features = Features {
    compat: Compat::EXT_ATTR.union(Compat::RESIZE_INODE).union(Compat::DIR_INDEX),
    incompat: Incompat::FILETYPE,
    ro_compat: RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE),
};
