//! The table of referenced inodes, by their number here and by device and number on the host.
//!
//! An inode does not own a descriptor. Its [`Way`] tells how to open it again, and whether the
//! inode with its number on the host is still the same.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{Statx, StatxFlags};

use super::attributes::kind;
use super::descriptors::Descriptor;
use super::handle::FileHandle;
use super::numbers::{Key, Numbers, key};
use crate::mutex::locked;
use crate::{Error, FileKind, Ino, Result};

/// The birth time of the inode, if the host reports it.
fn born(attributes: &Statx) -> Option<(i64, u32)> {
    let known = StatxFlags::from_bits_retain(attributes.stx_mask).contains(StatxFlags::BTIME);
    known.then_some((attributes.stx_btime.tv_sec, attributes.stx_btime.tv_nsec))
}

/// The way to open an inode again.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// The inode is held open: the root.
    Held,
    /// By its handle, independently of its names.
    Handle(FileHandle),
    /// By the name of its last lookup, if that still names it.
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
    /// The `O_PATH` descriptor of the inode, while it is open.
    named: Mutex<Weak<Descriptor>>,
    /// Keeps the inode open: the root, and inodes that may have lost their last name.
    pinned: Mutex<Option<Arc<Descriptor>>>,
    /// Opened for content I/O without a handle; and whether for writing.
    content: Mutex<(Weak<Descriptor>, bool)>,
    /// Length and times of change when a front last opened it.
    opened: Mutex<Option<Looks>>,
    /// References and open handles.
    uses: AtomicU64,
}

/// Length, and times of change in seconds and nanoseconds.
type Looks = (u64, (i64, u32), (i64, u32));

impl Inode {
    /// Returns true if the inode is unchanged since it was last opened, so that content cached
    /// since is still valid.
    pub(super) fn is_as_last_opened(&self, now: &Statx) -> bool {
        let (mtime, ctime) = (&now.stx_mtime, &now.stx_ctime);
        let looks = (now.stx_size, (mtime.tv_sec, mtime.tv_nsec), (ctime.tv_sec, ctime.tv_nsec));
        locked(&self.opened).replace(looks).is_none_or(|before| before == looks)
    }

    /// Returns the `O_PATH` descriptor, if it is open.
    pub(super) fn named(&self) -> Option<Arc<Descriptor>> {
        let named = locked(&self.named).upgrade();
        named.inspect(|named| named.touch())
    }

    pub(super) fn set_named(&self, descriptor: &Arc<Descriptor>) {
        *locked(&self.named) = Arc::downgrade(descriptor);
    }

    /// Keeps the inode open from now on, so that the host keeps it without a name.
    pub(super) fn pin(&self, descriptor: Arc<Descriptor>) {
        *locked(&self.pinned) = Some(descriptor);
    }

    /// Returns the descriptor of its content, if it is open with the needed access.
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

    /// Records another name of the inode.
    pub(super) fn is_named(&self, parent: &Arc<Inode>, name: &[u8]) {
        let mut way = locked(&self.way);
        if let Way::Name(..) = &*way {
            *way = Way::Name(parent.clone(), name.into());
        }
    }

    /// Returns true if a descriptor with the same device and number is of this inode.
    pub(super) fn is(&self, fd: &OwnedFd, attributes: &Statx) -> bool {
        if self.key != key(attributes) {
            return false;
        }
        // While the inode is open, the host does not reuse its number.
        if locked(&self.named).strong_count() > 0 || locked(&self.content).0.strong_count() > 0 {
            return true;
        }
        match &*locked(&self.way) {
            Way::Held => true,
            Way::Handle(handle) => FileHandle::of(fd.as_fd()).as_ref() == Some(handle),
            Way::Name(..) => self.born == born(attributes) && self.kind == kind(attributes),
        }
    }

    /// Returns its open descriptors, for the caller to close.
    fn descriptors(&self) -> Vec<Arc<Descriptor>> {
        let named = locked(&self.named).upgrade();
        named.into_iter().chain(locked(&self.content).0.upgrade()).collect()
    }
}

/// All referenced inodes.
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

    /// Returns the inode of this device and number on the host, if it is referenced.
    pub(super) fn of_host(&self, key: &Key) -> Option<Arc<Inode>> {
        self.host.get(key).and_then(|ino| self.here.get(ino)).cloned()
    }

    /// Returns the inode of a descriptor: the known one, or a new one with no uses.
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
        // The known inode was removed by another process, and the host has reused its number while
        // it is still referenced here.
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

    /// Returns the number here of an inode of the device of `directory`.
    pub(super) fn number(&mut self, directory: &Inode, host_ino: u64) -> Ino {
        self.numbers.number((directory.key.0, directory.key.1, host_ino))
    }

    pub(super) fn add_uses(&self, inode: &Inode, count: u64) {
        inode.uses.fetch_add(count, Ordering::Relaxed);
    }

    /// Releases uses; the last one removes the inode. Returns the descriptors to close.
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

    /// Releases all uses but those of `root`.
    pub(super) fn keep_only(&mut self, root: &Arc<Inode>) {
        self.here.retain(|ino, _| *ino == root.ino);
        self.host.retain(|_, ino| *ino == root.ino);
    }
}
