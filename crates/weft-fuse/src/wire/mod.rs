//! The FUSE wire format (`include/uapi/linux/fuse.h`, protocol 7.40), apart from any I/O.
//!
//! All numbers are in the byte order of the machine. A request is a [`Header`] and a body that
//! [`Body`] parses without ever reading past its end; a reply is built in a [`Reply`].

mod opcode;
mod reply;
mod request;

pub(crate) use opcode::Opcode;
pub(crate) use reply::{
    HEADER_BYTES as REPLY_HEADER_BYTES, Lifetimes, Listing, Reply, put_listed, put_listed_plus,
    put_name_plus,
};
pub(crate) use request::{
    Body, HEADER_BYTES as REQUEST_HEADER_BYTES, Header, Malformed, WRITE_OVERHEAD_BYTES,
};

/// The node id of the root.
pub(crate) const ROOT_ID: u64 = 1;

/// Bits of `fuse_setattr_in::valid`.
pub(crate) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of `fuse_write_in::write_flags`.
pub(crate) mod write_flags {
    /// The write comes from the page cache, not from one caller.
    pub(crate) const CACHE: u32 = 1 << 0;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 2;
}

/// Bit of `fuse_read_in::read_flags`: the request is a call of read(2) that waits, and fills no page of
/// the page cache.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;

/// Bit of `fuse_fsync_in::fsync_flags`: only the data.
pub(crate) const FSYNC_DATA_ONLY: u32 = 1;

/// `O_DIRECT`
pub(crate) const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
/// `O_APPEND`
pub(crate) const O_APPEND: u32 = 0o2000;
/// `O_NOATIME`
pub(crate) const O_NOATIME: u32 = rustix::fs::OFlags::NOATIME.bits();
/// `O_DSYNC`, which `O_SYNC` contains.
pub(crate) const O_DSYNC: u32 = 0o10000;

/// The file must not exist.
pub(crate) const O_EXCL: u32 = 0o200;

/// The file is truncated to length 0.
pub(crate) const O_TRUNC: u32 = 0o1000;

/// Kinds of `fuse_file_lock`, and flags of `fuse_lk_in`.
pub(crate) mod lk {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const UNLOCK: u32 = 2;
    /// Requested by `flock(2)`.
    pub(crate) const FLOCK: u32 = 1 << 0;
}

/// Bit of `fuse_release_in::release_flags`: locks of `flock(2)` are released.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// Modes of `fallocate(2)`.
pub(crate) mod falloc {
    pub(crate) const KEEP_SIZE: u32 = 1;
    pub(crate) const PUNCH_HOLE: u32 = 2;
    pub(crate) const ZERO_RANGE: u32 = 0x10;
}

/// `whence` of `lseek(2)`.
pub(crate) mod whence {
    pub(crate) const DATA: u32 = 3;
    pub(crate) const HOLE: u32 = 4;
}

/// Flags of `setxattr(2)`.
pub(crate) mod xattr {
    pub(crate) const CREATE: u32 = 1;
    pub(crate) const REPLACE: u32 = 2;
    /// Of `fuse_setxattr_in::setxattr_flags`: the new ACL removes setgid.
    pub(crate) const ACL_KILL_SGID: u32 = 1;
}

/// Bits of `fuse_ioctl_in::flags`.
pub(crate) mod ioctl_flags {
    /// The caller gives the address of its data: only for commands that `weft` does not support.
    pub(crate) const UNRESTRICTED: u32 = 1 << 1;
}

/// Errors that the kernel understands as replies of the protocol.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const EINTR: i32 = 4;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOLCK: i32 = 37;
    pub(crate) const ERANGE: i32 = 34;
    /// There is no such command of `ioctl(2)`.
    pub(crate) const ENOTTY: i32 = 25;
    pub(crate) const EBUSY: i32 = 16;
    /// The kernel never sends this request again.
    pub(crate) const ENOSYS: i32 = 38;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const ENOSPC: i32 = 28;
}
