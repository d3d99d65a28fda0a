//! The features and limits of a format under test, and the size of the test.

use crate::FileKind;

/// The features and limits of a format, and the size of the test.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Longest name in bytes.
    pub name_bytes: usize,
    /// A name may have any bytes but 0 and `/`, and need not be UTF-8.
    pub any_name_bytes: bool,
    /// A file may have several names.
    pub hard_links: bool,
    /// Symbolic links exist.
    pub symlinks: bool,
    /// Owner, group and all bits of the mode are kept.
    pub owners_and_modes: bool,
    /// Privileged metadata are visible: setuid and setgid bits of files, the numbers of device
    /// nodes, and `security.` attributes.
    pub privileges: bool,
    /// Access and change times are kept, apart from the modification time.
    pub own_times: bool,
    /// The number of a removed inode can be reused, and `statfs` counts it as free.
    pub reuses_inodes: bool,
    /// `statfs` shows at once the space that files allocate and free, and no other.
    pub counts_space: bool,
    /// Removing names frees all space that creating them allocated.
    pub names_give_back_space: bool,
    /// The link count of a directory is two more than it has subdirectories.
    pub counts_subdirectories: bool,
    /// Maximum link count of a file; `None` if too many to reach in a test.
    pub links: Option<u32>,
    /// Highest link count of a directory; `None` if too many to reach in a test.
    pub directory_links: Option<u32>,
    /// Longest file in bytes.
    pub file_bytes: u64,
    /// Longest target of a symbolic link in bytes, at most 4095.
    pub symlink_bytes: usize,
    /// Times are kept in multiples of this many nanoseconds.
    pub time_unit_nanos: u32,
    /// `setattr` can set the change time; if not, the cases wait for the clock to tick.
    pub sets_ctime: bool,
    /// First and last second since 1970 that a time can have.
    pub seconds: std::ops::RangeInclusive<i64>,
    /// A hole takes no space and can be found by seeking.
    pub holes: bool,
    /// Space of an empty file, in units of 512 bytes.
    pub empty_blocks_512: u64,
    /// `fallocate` can allocate.
    pub allocate: bool,
    /// `fallocate` can punch holes and zero ranges.
    pub punch: bool,
    /// Device nodes, FIFOs and sockets exist.
    pub special_files: bool,
    /// `RenameFlags::EXCHANGE` works.
    pub exchange: bool,
    /// Extended attributes: the longest value sure to fit in bytes, 0 without attributes.
    pub xattr_bytes: usize,
    /// Symbolic links and special files have `user.` attributes, and symbolic links a mode: both
    /// are refused by Linux itself, above any file system of its own.
    pub special_attributes: bool,
    /// Test a full volume (for volumes of some megabytes).
    pub fill: bool,
    /// Names in the directories of the listing cases.
    pub names: usize,
    /// Length in bytes of the longest file written whole.
    pub long_bytes: usize,
    /// The number of random comparisons.
    pub random_runs: u32,
    /// The number of operations in each.
    pub random_operations: usize,
    /// The seed of the first random comparison; the next ones count up.
    pub seed: u64,
    /// Run only cases whose name contains this.
    pub only: Option<String>,
}

impl Limits {
    /// Returns the visible part of the permissions that an inode was given.
    pub(super) fn shown(&self, kind: FileKind, perm: u16) -> u16 {
        if self.privileges || kind == FileKind::Directory { perm } else { perm & !0o6000 }
    }
}

impl Default for Limits {
    /// A format with all features; the test takes some seconds.
    fn default() -> Self {
        Self {
            name_bytes: 255,
            any_name_bytes: true,
            hard_links: true,
            symlinks: true,
            owners_and_modes: true,
            privileges: true,
            own_times: true,
            reuses_inodes: true,
            counts_space: true,
            names_give_back_space: true,
            counts_subdirectories: true,
            links: None,
            directory_links: None,
            file_bytes: i64::MAX.cast_unsigned(),
            symlink_bytes: 4095,
            time_unit_nanos: 1,
            sets_ctime: true,
            seconds: -(1 << 31)..=(1 << 33),
            holes: true,
            empty_blocks_512: 0,
            allocate: true,
            punch: true,
            special_files: true,
            exchange: true,
            xattr_bytes: 2048,
            special_attributes: true,
            fill: false,
            names: 1000,
            long_bytes: 3 << 20,
            random_runs: 8,
            random_operations: 400,
            seed: 1,
            only: None,
        }
    }
}
