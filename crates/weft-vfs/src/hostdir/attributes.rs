//! Attributes: conversion from the host's, and setting them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, chmodat, chownat, fchmod, fchown, ftruncate, getxattr,
    getxattr_query, makedev, statx, utimensat,
};
use rustix::io::Errno;

use super::descriptors::magic;
use super::errno::os;
use crate::access::without_privileges;
use crate::{Attr, Caller, Error, FileKind, Ino, Result, SetAttr, SetTime, Time};

/// The fields requested from `statx`.
pub(super) const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Returns the attributes of the inode of a descriptor.
pub(super) fn stat(fd: impl AsFd) -> Result<Statx> {
    statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW, WANTED).map_err(os)
}

/// Converts the kind of a file from the host's.
pub(super) fn kind_of(file_type: FileType) -> FileKind {
    match file_type {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}

/// Returns the kind of the inode with these attributes.
pub(super) fn kind(attributes: &Statx) -> FileKind {
    kind_of(FileType::from_raw_mode(attributes.stx_mode.into()))
}

fn time(t: &StatxTimestamp) -> Time {
    Time { secs: t.tv_sec, nanos: t.tv_nsec }
}

pub(super) fn attr(ino: Ino, from: &Statx) -> Attr {
    let rdev = makedev(from.stx_rdev_major, from.stx_rdev_minor);
    Attr {
        ino,
        kind: kind(from),
        perm: from.stx_mode & 0o7777,
        nlink: from.stx_nlink,
        uid: from.stx_uid,
        gid: from.stx_gid,
        // Numbers of 12 and 20 bits, as the kernel has them, fit in 32.
        rdev: u32::try_from(rdev).unwrap_or(0),
        size_bytes: from.stx_size,
        blocks_512: from.stx_blocks,
        io_bytes: from.stx_blksize,
        atime: time(&from.stx_atime),
        mtime: time(&from.stx_mtime),
        ctime: time(&from.stx_ctime),
        btime: StatxFlags::from_bits_retain(from.stx_mask)
            .contains(StatxFlags::BTIME)
            .then(|| time(&from.stx_btime)),
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
    }
}

/// Sets the length of the file that is open in `content`.
pub(super) fn set_size(content: impl AsFd, size_bytes: u64) -> Result<()> {
    ftruncate(content, size_bytes).map_err(|e| match e {
        // The error of `ftruncate` for a length that the file system does not support.
        Errno::INVAL => Error::TooLarge,
        e => os(e),
    })
}

/// Sets owner, mode and times of the inode named by `fd`, as far as they are in `set`; the host sets
/// the change time itself.
pub(super) fn set(fd: impl AsFd, kind: FileKind, set: &SetAttr) -> Result<()> {
    let before = stat(&fd)?.stx_mode & 0o7777;
    let mut perm = set.perm.map_or(before, |perm| perm & 0o7777);
    if set.kill_privileges && set.perm.is_none() && kind != FileKind::Directory {
        perm = without_privileges(perm);
    }
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
        chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(os)?;
    }
    // A change of owner clears setuid on the host, which the caller did not ask for.
    let now = stat(&fd)?.stx_mode & 0o7777;
    if kind != FileKind::Symlink && (set.perm.is_some() || now != perm) {
        chmodat(CWD, magic(fd.as_fd()), Mode::from_raw_mode(perm.into()), AtFlags::empty())
            .map_err(os)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let times =
            Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
        utimensat(&fd, "", &times, AtFlags::EMPTY_PATH).map_err(os)?;
    }
    Ok(())
}

/// Returns the value of an extended attribute.
pub(super) fn extended(path: &str, name: &[u8]) -> Result<Vec<u8>> {
    loop {
        let len = getxattr_query(path, name).map_err(os)?;
        let mut value = vec![0; len];
        match getxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            // The value grew between the two calls.
            Err(Errno::RANGE) => {}
            Err(e) => return Err(os(e)),
        }
    }
}

/// Returns true if this process may give new inodes to other users.
pub(super) fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// The attributes of a new inode.
pub(super) struct New<'a> {
    pub(super) caller: &'a Caller,
    pub(super) kind: FileKind,
    pub(super) perm: u16,
    /// The directory's mode: new inodes in a setgid directory inherit its group, which the host has
    /// done already.
    pub(super) parent: &'a Statx,
}

impl New<'_> {
    fn inherits(&self) -> bool {
        self.parent.stx_mode & 0o2000 != 0
    }

    fn owner(&self) -> Option<(Uid, Option<Gid>)> {
        let gid = (!self.inherits()).then(|| Gid::from_raw(self.caller.gid));
        is_privileged().then(|| (Uid::from_raw(self.caller.uid), gid))
    }

    fn mode(&self) -> Mode {
        let setgid = self.inherits() && self.kind == FileKind::Directory;
        Mode::from_raw_mode((self.perm & 0o7777 | if setgid { 0o2000 } else { 0 }).into())
    }

    /// Sets the owner and mode of a new inode, open in `file`.
    pub(super) fn finish_file(&self, file: &OwnedFd) -> Result<()> {
        if let Some((uid, gid)) = self.owner() {
            fchown(file, Some(uid), gid).map_err(os)?;
        }
        fchmod(file, self.mode()).map_err(os)
    }

    /// Sets the owner and mode of a new inode, named by `fd`. If another process has replaced it
    /// meanwhile, the replacement is not changed.
    pub(super) fn finish(&self, fd: &OwnedFd) -> Result<()> {
        let found = stat(fd)?;
        let kind = kind(&found);
        let ours = rustix::process::geteuid().as_raw();
        if kind != self.kind || found.stx_uid != ours {
            return Err(Error::Exists);
        }
        if let Some((uid, gid)) = self.owner() {
            chownat(fd, "", Some(uid), gid, AtFlags::EMPTY_PATH).map_err(os)?;
        }
        if kind == FileKind::Symlink {
            return Ok(());
        }
        chmodat(CWD, magic(fd.as_fd()), self.mode(), AtFlags::empty()).map_err(os)
    }
}
