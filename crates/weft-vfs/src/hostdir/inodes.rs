//! The inodes that somebody refers to, by number here and by device and number on the host.
//!
//! None holds a descriptor by itself. How to open it again, its [`Way`], also says whether what has
//! its number on the host is still the same inode.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{FileType, Statx, StatxFlags};

use super::descriptors::Descriptor;
use super::handle::FileHandle;
use super::numbers::Numbers;
use super::{kind_of, locked};
use crate::{Error, FileKind, Ino, Result};

/// Device and inode number.
pub(super) type Key = (u32, u32, u64);

pub(super) fn key(attributes: &Statx) -> Key {
    (attributes.stx_dev_major, attributes.stx_dev_minor, attributes.stx_ino)
}

/// When the inode was made, where the host tells.
fn born(attributes: &Statx) -> Option<(i64, u32)> {
    let known = StatxFlags::from_bits_retain(attributes.stx_mask).contains(StatxFlags::BTIME);
    known.then_some((attributes.stx_btime.tv_sec, attributes.stx_btime.tv_nsec))
}

/// How an inode is opened again.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// It is held open: the root.
    Held,
    /// By its handle, whatever names it has.
    Handle(FileHandle),
    /// By the name that it had when it was last looked up, if that is still its own.
    Name(Arc<Inode>, Box<[u8]>),
}

/// An inode.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) key: Key,
    born: Option<(i64, u32)>,
    way: Mutex<Way>,
    /// Names the inode (`O_PATH`), while it is open.
    named: Mutex<Weak<Descriptor>>,
    /// Holds it open: the root, and what may have lost its last name.
    pinned: Mutex<Option<Arc<Descriptor>>>,
    /// Opened for its content, by somebody who used it without a handle; whether to be written.
    content: Mutex<(Weak<Descriptor>, bool)>,
    /// Length and times of change when a front last opened it.
    opened: Mutex<Option<Looks>>,
    /// References and open handles.
    uses: AtomicU64,
}

/// Length, and times of change in seconds and nanoseconds.
type Looks = (u64, (i64, u32), (i64, u32));

impl Inode {
    /// Whether it looks as it did when it was last opened, so that what was cached since is right.
    pub(super) fn is_as_last_opened(&self, now: &Statx) -> bool {
        let (mtime, ctime) = (&now.stx_mtime, &now.stx_ctime);
        let looks = (now.stx_size, (mtime.tv_sec, mtime.tv_nsec), (ctime.tv_sec, ctime.tv_nsec));
        locked(&self.opened).replace(looks).is_none_or(|before| before == looks)
    }

    /// The descriptor that names it, if it is open.
    pub(super) fn named(&self) -> Option<Arc<Descriptor>> {
        let named = locked(&self.named).upgrade();
        named.inspect(|named| named.touch())
    }

    pub(super) fn set_named(&self, descriptor: &Arc<Descriptor>) {
        *locked(&self.named) = Arc::downgrade(descriptor);
    }

    /// Holds it open from now on, so that the host keeps it without a name.
    pub(super) fn pin(&self, descriptor: Arc<Descriptor>) {
        *locked(&self.pinned) = Some(descriptor);
    }

    /// The descriptor of its content, if it is open and good for that.
    pub(super) fn content(&self, write: bool) -> Option<Arc<Descriptor>> {
        let (content, writable) = &*locked(&self.content);
        let content = content.upgrade().filter(|_| *writable || !write);
        content.inspect(|content| content.touch())
    }

    pub(super) fn set_content(&self, descriptor: &Arc<Descriptor>, writable: bool) {
        *locked(&self.content) = (Arc::downgrade(descriptor), writable);
    }

    pub(super) fn way(&self) -> Way {
        locked(&self.way).clone()
    }

    /// It has another name now.
    pub(super) fn is_named(&self, parent: &Arc<Inode>, name: &[u8]) {
        let mut way = locked(&self.way);
        if let Way::Name(..) = &*way {
            *way = Way::Name(parent.clone(), name.into());
        }
    }

    /// Whether a descriptor that has its device and number is of this inode.
    pub(super) fn is(&self, fd: &OwnedFd, attributes: &Statx) -> bool {
        if self.key != key(attributes) {
            return false;
        }
        // As long as it is open, the host gives its number to no other.
        if locked(&self.named).strong_count() > 0 || locked(&self.content).0.strong_count() > 0 {
            return true;
        }
        match &*locked(&self.way) {
            Way::Held => true,
            Way::Handle(handle) => FileHandle::of(fd.as_fd()).as_ref() == Some(handle),
            Way::Name(..) => self.born == born(attributes) && self.kind == kind(attributes),
        }
    }

    /// Its descriptors, to be closed.
    fn descriptors(&self) -> Vec<Arc<Descriptor>> {
        let named = locked(&self.named).upgrade();
        named.into_iter().chain(locked(&self.content).0.upgrade()).collect()
    }
}

fn kind(attributes: &Statx) -> FileKind {
    kind_of(FileType::from_raw_mode(attributes.stx_mode.into()))
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    here: HashMap<Ino, Arc<Inode>>,
    host: HashMap<Key, Ino>,
    numbers: Numbers,
}

impl Inodes {
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.here.get(&ino).cloned().ok_or(Error::Stale(ino.0))
    }

    /// The inode of this device and number on the host, if somebody refers to it.
    pub(super) fn of_host(&self, key: &Key) -> Option<Arc<Inode>> {
        self.host.get(key).and_then(|ino| self.here.get(ino)).cloned()
    }

    /// The inode of a descriptor: the one that is there, or a new one with no uses.
    pub(super) fn add(
        &mut self,
        fd: &OwnedFd,
        attributes: &Statx,
        way: impl FnOnce() -> Way,
    ) -> Arc<Inode> {
        let key = key(attributes);
        let there = self.of_host(&key);
        if let Some(inode) = there.as_ref().filter(|inode| inode.is(fd, attributes)) {
            return inode.clone();
        }
        let mut ino = self.numbers.number(key);
        // Removed by somebody else, and its number on the host taken by another inode, while
        // somebody here refers to the one before.
        while self.here.contains_key(&ino) {
            ino = self.numbers.make_up(key);
        }
        let inode = Arc::new(Inode {
            ino,
            kind: kind(attributes),
            key,
            born: born(attributes),
            way: Mutex::new(way()),
            named: Mutex::default(),
            pinned: Mutex::default(),
            content: Mutex::default(),
            opened: Mutex::default(),
            uses: AtomicU64::new(0),
        });
        self.here.insert(ino, inode.clone());
        self.host.insert(key, ino);
        inode
    }

    /// The number here of an inode of the device of `directory`.
    pub(super) fn number(&mut self, directory: &Inode, host_ino: u64) -> Ino {
        self.numbers.number((directory.key.0, directory.key.1, host_ino))
    }

    pub(super) fn add_uses(&self, inode: &Inode, count: u64) {
        inode.uses.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives back uses; with the last one the inode goes. What is to be closed then.
    pub(super) fn drop_uses(&mut self, ino: Ino, count: u64) -> Vec<Arc<Descriptor>> {
        let Some(inode) = self.here.get(&ino) else { return Vec::new() };
        let uses = inode.uses.load(Ordering::Relaxed);
        inode.uses.store(uses.saturating_sub(count), Ordering::Relaxed);
        if uses > count {
            return Vec::new();
        }
        let (key, open) = (inode.key, inode.descriptors());
        self.here.remove(&ino);
        if self.host.get(&key) == Some(&ino) {
            self.host.remove(&key);
        }
        open
    }

    /// Gives back all uses but those of `root`.
    pub(super) fn keep_only(&mut self, root: &Arc<Inode>) {
        self.here.retain(|ino, _| *ino == root.ino);
        self.host.retain(|_, ino| *ino == root.ino);
    }
}
