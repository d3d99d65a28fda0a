//! The types of the file plug.

use bitflags::bitflags;

/// An inode number. That of the root is returned by [`FileSystem::root`](crate::FileSystem::root).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// An open file or directory, as the file system numbered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

impl Handle {
    /// No open file: I/O by inode number alone, with no append and no synchronous writes. File
    /// systems number their handles from 1.
    pub const NONE: Self = Self(0);
}

/// A point in time: seconds since 1970 (may be negative) and nanoseconds below 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since the epoch.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

impl Time {
    /// The system clock's time, as of its last tick: what the kernel stamps its own inodes with,
    /// and what `time(2)` reads. The finer clock runs up to a tick ahead of those, and a volume
    /// stamped by it is from the future for a moment (as e2fsck says when it comes soon enough).
    #[must_use]
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "below 10^9")]
        let nanos = now.tv_nsec as u32;
        Self { secs: now.tv_sec, nanos }
    }
}

impl From<std::time::SystemTime> for Time {
    fn from(t: std::time::SystemTime) -> Self {
        match t.duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => Self { secs: d.as_secs().cast_signed(), nanos: d.subsec_nanos() },
            Err(e) => {
                let d = e.duration();
                let (secs, nanos) = (d.as_secs().cast_signed(), d.subsec_nanos());
                if nanos == 0 {
                    Self { secs: -secs, nanos: 0 }
                } else {
                    Self { secs: -secs - 1, nanos: 1_000_000_000 - nanos }
                }
            }
        }
    }
}

/// The kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block special file.
    BlockDevice,
    /// A character special file.
    CharDevice,
    /// A FIFO.
    Fifo,
    /// A Unix socket.
    Socket,
}

impl FileKind {
    /// Returns the `S_IFMT` bits of a mode for this kind.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Returns the kind of the `S_IFMT` bits of a mode, if they are valid.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// An inode's attributes, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of a mode.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` packs it.
    pub rdev: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks_512: u64,
    /// Preferred I/O size in bytes.
    pub io_bytes: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth time, if the format has it.
    pub btime: Option<Time>,
}

/// The result of a lookup or a creation: the inode with its attributes, and one reference on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The attributes, inode number included.
    pub attr: Attr,
    /// Distinguishes two files that had the same inode number one after the other.
    pub generation: u64,
}

/// An opened file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle for later calls.
    pub handle: Handle,
    /// Whether a front may keep cached content.
    pub keep_cache: bool,
    /// Whether a front must not cache (an unknown or changing size).
    pub direct_io: bool,
}

/// The answer of a file to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Linux's error number, 0 for success: the error of `ioctl(2)`. The data are returned in both
    /// cases.
    pub errno: i32,
    /// The data to return.
    pub data: Vec<u8>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(Time),
}

/// The attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (low 12 bits of a mode).
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New length in bytes; growing leaves a hole.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (only a front that owns the time sends it).
    pub ctime: Option<Time>,
    /// Clear setuid and setgid as a write by a caller without privilege does.
    pub kill_privileges: bool,
}

/// The position in a directory listing. [`DirCursor::START`] is the beginning; the others are from
/// [`DirEntry::next`], and stay valid while names are added and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirCursor(pub u64);

impl DirCursor {
    /// The beginning of a directory.
    pub const START: Self = Self(0);
}

/// One name of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: Ino,
    /// The kind of the inode, if the directory stores it.
    pub kind: FileKind,
    /// The name: 1 to 255 bytes, no `/`, no NUL.
    pub name: &'a [u8],
    /// The cursor after this entry.
    pub next: DirCursor,
}

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// Blocks of the volume that files can use.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that a caller without privilege may take.
    pub blocks_available: u64,
    /// Inodes of the volume.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max_bytes: u32,
}

/// The user and the process on whose behalf a call is made: credentials for permission checks and
/// for the ownership of new inodes, and the process that changes belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User id. 0 has all privileges.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups, if the front knows them.
    pub groups: Vec<u32>,
    /// Process (or thread) id, 0 when unknown.
    pub pid: u32,
    /// `umask(2)`: permission bits that a new inode does not get, unless its directory has a
    /// default ACL. For file systems that [have ACLs](crate::FileSystem::has_acls); for others the
    /// front has already applied it to the mode.
    pub umask: u16,
    /// The open file by which the call is made (`ftruncate(2)`, `fsync(2)`, ...), as the called file
    /// system numbered it; [`Handle::NONE`] when there is none, or none is known. A file system that
    /// numbers handles itself translates it for the one below ([`by`](Self::by)).
    pub handle: Handle,
}

impl Caller {
    /// The superuser, of no known process: for what a program does on its own account.
    pub const ROOT: Self =
        Self { uid: 0, gid: 0, groups: Vec::new(), pid: 0, umask: 0, handle: Handle::NONE };

    /// Returns the same caller by another open file.
    #[must_use]
    pub fn by(&self, handle: Handle) -> Self {
        Self { handle, ..self.clone() }
    }
}

bitflags! {
    /// The flags of opening a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 1 << 1;
        /// Each write goes to the end.
        const APPEND = 1 << 2;
        /// Cut to length 0 first.
        const TRUNCATE = 1 << 3;
        /// Each write is durable, with the attributes needed to read it, when it returns.
        const DSYNC = 1 << 4;
        /// Each write is durable, with all attributes, when it returns.
        const SYNC = 1 << 5;
        /// `create` fails if the name exists.
        const EXCLUSIVE = 1 << 6;
        /// Bypasses the cache of a front and passthrough: all I/O goes through the file system
        /// (`O_DIRECT`).
        const DIRECT = 1 << 7;
        /// Reading leaves the access time as it is (`O_NOATIME`). A file system without open files
        /// sees it in [`keeps_access_times`](crate::keeps_access_times).
        const NOATIME = 1 << 8;
    }

    /// The flags of `chattr(1)` and `lsattr(1)`, in Linux's numbers (`FS_*_FL`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FileFlags: u32 {
        /// Each write, or each change of a directory, is durable when it returns.
        const SYNC = 0x8;
        /// The inode is immutable, and may neither get nor lose a name.
        const IMMUTABLE = 0x10;
        /// A file may only be appended to, a directory may only gain names.
        const APPEND = 0x20;
        /// Excluded by `dump(8)`.
        const NODUMP = 0x40;
        /// Reading does not change the access time.
        const NOATIME = 0x80;
        const _ = !0;
    }

    /// The treatment of an existing target, and of the old name, by a rename.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with [`Error::Exists`](crate::Error::Exists) if the target exists.
        const NO_REPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 1 << 1;
        /// Leave a whiteout under the old name: a character device with the number 0:0, by which an
        /// overlay hides what lies below it. Only for a file system that
        /// [has whiteouts](crate::FileSystem::has_whiteouts).
        const WHITEOUT = 1 << 2;
    }
}

/// The free space to discard on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimRange {
    /// The first byte of the range, in bytes of the volume.
    pub start: u64,
    /// The length of the range in bytes.
    pub len_bytes: u64,
    /// Shorter free extents are skipped.
    pub min_len_bytes: u64,
}

/// The treatment of an existing attribute by `setxattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrSet {
    /// Create or replace.
    Any,
    /// Fail with `EEXIST` if it exists.
    Create,
    /// Fail with `ENODATA` if it does not.
    Replace,
}

/// The operation of `fallocate` on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate; `keep_size` keeps the length.
    Allocate {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Make a hole; the length stays.
    PunchHole,
    /// Make the range read as zeroes; `keep_size` keeps the length.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
}

/// The target of `lseek` from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekFrom {
    /// The next byte that holds data.
    Data(u64),
    /// The next hole; the end of the file counts as one.
    Hole(u64),
}
