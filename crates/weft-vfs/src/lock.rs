//! File locks (`fcntl(2)` and `flock(2)`) of a file system that keeps its own, because other
//! machines use it too.

/// The kind of a lock; locks of different kinds do not conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockStyle {
    /// A record lock of `fcntl(2)`: on a range of bytes, owned by a process. A new one replaces the
    /// locks of its owner in the range.
    Posix,
    /// A lock of `flock(2)`: on the whole file, owned by an open file.
    Flock,
}

/// A lock that is held or requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The kind of lock.
    pub style: LockStyle,
    /// The owner: a number that the front gives a process (or an open file).
    pub owner: u64,
    /// Whether it is exclusive (a write lock), not shared.
    pub exclusive: bool,
    /// The first byte.
    pub first: u64,
    /// The last byte; `i64::MAX` for the end of the file, wherever it is.
    pub last: u64,
    /// The process, 0 if it is on another machine.
    pub pid: u32,
}
