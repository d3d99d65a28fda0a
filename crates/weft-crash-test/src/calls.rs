//! The calls of a program, as they took effect in the mounted folder.
//!
//! A call is kept with what a model of persistence needs to know of it: the inodes that it changed,
//! the names, the bytes, and the sizes before and after. Only calls that succeeded are kept, in the
//! order in which they took effect.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weft_vfs::FileKind;

/// The number of an inode in a recording. The root has number 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeNr(pub u64);

/// The root of the mounted folder.
pub const ROOT: NodeNr = NodeNr(1);

/// The place of a call in its recording, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallNr(pub u32);

impl CallNr {
    /// The index in [`Recording::calls`](crate::Recording::calls).
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CallNr {
    /// Counted from 1, as the listing of a recording does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u64::from(self.0) + 1)
    }
}

/// A name in a directory. Names are bytes; in JSON they are arrays of numbers only if they are not
/// UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: NodeNr,
    /// The name in it.
    #[serde(with = "crate::text")]
    pub name: Vec<u8>,
}

/// What a new inode is before anything is written into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewNode {
    /// Its number.
    pub node: NodeNr,
    /// Its type.
    #[serde(with = "crate::text::kind")]
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of a device file.
    pub rdev: u32,
    /// The target of a symbolic link.
    #[serde(with = "crate::text")]
    pub target: Vec<u8>,
}

/// A change of the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The file.
    pub node: NodeNr,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len_bytes: u64,
    /// The file's size before, in bytes.
    pub size_before: u64,
    /// The file's size after, in bytes.
    pub size_after: u64,
}

/// What a call did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Action {
    /// `creat`, `mkdir`, `mknod`, `symlink`: a new inode with a name, or without one (`O_TMPFILE`).
    Create {
        /// The new inode.
        new: NewNode,
        /// Its name.
        at: Option<Place>,
    },
    /// `link`.
    Link {
        /// The inode.
        node: NodeNr,
        /// Its new name.
        at: Place,
    },
    /// `unlink` or `rmdir`.
    Remove {
        /// The name.
        at: Place,
        /// The inode that it named.
        node: NodeNr,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// `rename`.
    Rename {
        /// The old name.
        from: Place,
        /// The new name.
        to: Place,
        /// The inode that is renamed.
        node: NodeNr,
        /// The inode that had the new name.
        replaced: Option<NodeNr>,
        /// `RENAME_EXCHANGE`: `replaced` gets the old name.
        exchange: bool,
        /// Whether a directory is renamed, or replaced.
        is_dir: bool,
    },
    /// `write`; the bytes are in [`Call::data`].
    Write(Span),
    /// `fallocate` that makes a range read as zeroes.
    Zero(Span),
    /// `truncate`, `ftruncate`, `O_TRUNC`, or a `fallocate` that only changes the size.
    Resize(Span),
    /// `chmod`, `chown`, `utimes`: what the inode has afterwards.
    Attributes {
        /// The inode.
        node: NodeNr,
        /// Permission bits.
        perm: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// `setxattr`, with the value in [`Call::data`], or `removexattr`.
    Xattr {
        /// The inode.
        node: NodeNr,
        /// The attribute's name.
        #[serde(with = "crate::text")]
        name: Vec<u8>,
        /// Whether it is removed.
        removed: bool,
    },
    /// `fsync` or `fdatasync` of a file, also that of a write with `O_SYNC`.
    Fsync {
        /// The file.
        node: NodeNr,
        /// `fdatasync`.
        data_only: bool,
    },
    /// `fsync` of a directory.
    FsyncDir {
        /// The directory.
        dir: NodeNr,
    },
    /// `sync` or `syncfs`.
    Sync,
    /// The last descriptor of a file was closed.
    Close {
        /// The file.
        node: NodeNr,
    },
    /// A line that the program printed and that is a promise.
    Promise {
        /// The line, without its end.
        line: String,
    },
    /// A mark in a log of writes. As a promise, it stands for what is to be durable from here on.
    Mark {
        /// Its text.
        text: String,
    },
    /// The file system wrote to its volume; the bytes are in [`Call::data`].
    BlockWrite {
        /// The first byte on the volume.
        offset: u64,
        /// The size of a block in bytes: each is durable or lost on its own.
        block_bytes: u32,
        /// It was durable at once.
        durable: bool,
    },
    /// The file system discarded a range of its volume, which reads as zeroes then.
    BlockDiscard {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len_bytes: u64,
    },
    /// The file system flushed its volume.
    BlockFlush {
        /// Block writes and discards before this call are durable.
        covers: CallNr,
    },
    /// A call that is left out of a search.
    Nothing,
    /// The program ended.
    End,
}

/// The process that made a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Process {
    /// Its number in the program's PID namespace; 0 if the kernel made the call on its own account,
    /// as it writes mapped pages.
    pub pid: u32,
    /// The name of its command (`/proc/PID/comm`).
    pub command: String,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it did.
    pub action: Action,
    /// Who made it.
    pub process: Process,
    /// Time since the program was started, in nanoseconds.
    pub at_nanos: u64,
    /// The bytes that were written, or the value of an extended attribute.
    pub data: Bytes,
}

impl Action {
    /// The name of the call, as a program knows it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { new, at: Some(_) } => match new.kind {
                FileKind::Directory => "mkdir",
                FileKind::Symlink => "symlink",
                FileKind::Regular => "creat",
                _ => "mknod",
            },
            Self::Create { at: None, .. } => "open(O_TMPFILE)",
            Self::Link { .. } => "link",
            Self::Remove { is_dir: true, .. } => "rmdir",
            Self::Remove { .. } => "unlink",
            Self::Rename { .. } => "rename",
            Self::Write(_) => "write",
            Self::Zero(_) => "fallocate",
            Self::Resize(_) => "truncate",
            Self::Attributes { .. } => "chmod",
            Self::Xattr { removed: false, .. } => "setxattr",
            Self::Xattr { .. } => "removexattr",
            Self::Fsync { data_only: true, .. } => "fdatasync",
            Self::Fsync { .. } | Self::FsyncDir { .. } => "fsync",
            Self::Sync => "sync",
            Self::Close { .. } => "close",
            Self::Promise { .. } => "print",
            Self::Mark { .. } => "mark",
            Self::BlockWrite { .. } => "block write",
            Self::BlockDiscard { .. } => "block discard",
            Self::BlockFlush { .. } => "block flush",
            Self::Nothing => "",
            Self::End => "exit",
        }
    }

    /// Returns true for what the file system does with its volume, and no program.
    #[must_use]
    pub fn is_block(&self) -> bool {
        matches!(
            self,
            Self::BlockWrite { .. } | Self::BlockDiscard { .. } | Self::BlockFlush { .. }
        )
    }

    /// Returns true if the call of a program makes something durable.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Fsync { .. } | Self::FsyncDir { .. } | Self::Sync)
    }

    /// Returns true if the call changes something that a power cut can take back.
    #[must_use]
    pub fn is_change(&self) -> bool {
        let is_none = matches!(self, Self::Close { .. } | Self::End | Self::Nothing);
        !is_none && !self.is_sync() && self.promise().is_none()
    }

    /// The text of a promise, or of a mark.
    #[must_use]
    pub fn promise(&self) -> Option<&str> {
        match self {
            Self::Promise { line: text } | Self::Mark { text } => Some(text),
            _ => None,
        }
    }
}
