//! The inodes that somebody refers to, by number here and by device and number on the host.
//!
//! A descriptor is held for each, so that the host gives its number to no other inode meanwhile.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{CWD, FileType, Mode, OFlags, Statx, openat};

use super::errno::os;
use super::{kind_of, locked, magic};
use crate::{Error, FileKind, Ino, Result};

/// Device and inode number.
pub(super) type Key = (u32, u32, u64);

pub(super) fn key(attributes: &Statx) -> Key {
    (attributes.stx_dev_major, attributes.stx_dev_minor, attributes.stx_ino)
}

/// An inode.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    /// Names the inode (`O_PATH`).
    pub(super) fd: OwnedFd,
    /// Opened for its content, once somebody used it without a handle.
    content: Mutex<Option<Content>>,
    key: Key,
    /// Length and times of change when a front last opened it.
    opened: Mutex<Option<Looks>>,
    /// References and open handles.
    uses: AtomicU64,
}

/// Length, and times of change in seconds and nanoseconds.
type Looks = (u64, (i64, u32), (i64, u32));

#[derive(Debug, Clone)]
struct Content {
    file: Arc<OwnedFd>,
    writable: bool,
}

impl Inode {
    /// Whether it looks as it did when it was last opened, so that what was cached since is right.
    pub(super) fn is_as_last_opened(&self, now: &Statx) -> bool {
        let (mtime, ctime) = (&now.stx_mtime, &now.stx_ctime);
        let looks = (now.stx_size, (mtime.tv_sec, mtime.tv_nsec), (ctime.tv_sec, ctime.tv_nsec));
        locked(&self.opened).replace(looks).is_none_or(|before| before == looks)
    }

    /// Opens the inode anew.
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        openat(CWD, magic(self.fd.as_fd()), flags, Mode::empty()).map_err(os)
    }

    /// The content, to read and (if `write`) to write.
    pub(super) fn content(&self, write: bool) -> Result<Arc<OwnedFd>> {
        match self.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        let mut content = locked(&self.content);
        if let Some(content) = content.as_ref().filter(|content| content.writable || !write) {
            return Ok(content.file.clone());
        }
        let (file, writable) = match self.open(OFlags::RDWR) {
            Ok(file) => (file, true),
            // A file that only may be read, or a program that runs.
            Err(_) if !write => (self.open(OFlags::RDONLY)?, false),
            Err(e) => return Err(e),
        };
        let file = Arc::new(file);
        *content = Some(Content { file: file.clone(), writable });
        Ok(file)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    here: HashMap<Ino, Arc<Inode>>,
    host: HashMap<Key, Ino>,
    /// How many numbers were made up, for inodes of other devices below the directory.
    made_up: u64,
}

impl Inodes {
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.here.get(&ino).cloned().ok_or(Error::Stale(ino.0))
    }

    /// The inode of a descriptor: the one that is there, or a new one with no uses.
    pub(super) fn add(&mut self, fd: OwnedFd, attributes: &Statx) -> Arc<Inode> {
        let key = key(attributes);
        if let Some(inode) = self.host.get(&key).and_then(|ino| self.here.get(ino)) {
            return inode.clone();
        }
        let mut ino = Ino(attributes.stx_ino);
        while self.here.contains_key(&ino) {
            self.made_up += 1;
            ino = Ino(u64::MAX / 2 + self.made_up);
        }
        let kind = kind_of(FileType::from_raw_mode(attributes.stx_mode.into()));
        let (content, opened, uses) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let inode = Arc::new(Inode { ino, kind, fd, content, key, opened, uses });
        self.here.insert(ino, inode.clone());
        self.host.insert(key, ino);
        inode
    }

    /// The number here of an inode of the device of `directory`.
    pub(super) fn number(&self, directory: &Inode, host_ino: u64) -> Ino {
        let key = (directory.key.0, directory.key.1, host_ino);
        self.host.get(&key).copied().unwrap_or(Ino(host_ino))
    }

    pub(super) fn add_uses(&self, inode: &Inode, count: u64) {
        inode.uses.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives back uses; with the last one the inode goes.
    pub(super) fn drop_uses(&mut self, ino: Ino, count: u64) {
        let Some(inode) = self.here.get(&ino) else { return };
        let uses = inode.uses.load(Ordering::Relaxed);
        inode.uses.store(uses.saturating_sub(count), Ordering::Relaxed);
        if uses <= count {
            let key = inode.key;
            self.here.remove(&ino);
            self.host.remove(&key);
        }
    }

    /// Gives back all uses but those of `root`.
    pub(super) fn keep_only(&mut self, root: &Arc<Inode>) {
        self.here.retain(|ino, _| *ino == root.ino);
        self.host.retain(|_, ino| *ino == root.ino);
    }
}
