//! An inode: where it lies below, what is attached to it, and the state of its content.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, Error as Fault, FileKind, Handle, Ino, Time};

use super::access::Reach;
use super::attr_lifetime::AttrLifetime;
use super::locks::locked;
use super::output::Output;
use super::path::join;
use super::version::FileVersion;
use crate::Network;
use crate::meter::NetworkMeter;
use crate::outputs::Entry;
use crate::store::Store;
use crate::text::Text;

/// The location of a file in the file system below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    /// The current inode.
    pub(super) ino: Ino,
    /// A directory that contains it, as of the last lookup.
    pub(super) parent: Ino,
    /// Its name in that directory.
    pub(super) name: Vec<u8>,
    /// The file has no name any more.
    pub(super) unlinked: bool,
}

/// A location, shared by an inode and those that access its file.
pub(super) type SharedLocation = Arc<Mutex<Location>>;

/// A referenced inode.
pub(super) struct Inode {
    /// The inode number in this file system.
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) location: SharedLocation,
    /// A path of the inode, as of the last lookup.
    pub(super) path: Mutex<Vec<u8>>,
    pub(super) file: Mutex<FileState>,
    /// The number of changes made to the file, or the base of a view, through this file system. Not
    /// under the lock of the file: whoever changes the base need not wait for readers of a view.
    pub(super) version: Arc<AtomicU64>,
    /// The stages pushed by programs that have the file open.
    pub(super) runtime_stages: Mutex<RuntimeStages>,
    /// The name of a view: an inode that shares the location of its base, and has no inode below.
    pub(super) view_name: Option<Vec<u8>>,
    /// The snapshot that a view shows as long as the kernel reads it directly.
    pub(super) snapshot: Mutex<Option<Snapshot>>,
    /// The validity of cached attributes, shared by a file and its views.
    pub(super) attr_lifetime: Arc<Mutex<AttrLifetime>>,
    /// The number of the last link change in the file system in which this link was found to have
    /// another target, or other permissions, than before.
    pub(super) led_elsewhere: AtomicU64,
    /// The number of the last such change behind this file when its permissions were last reported
    /// to the kernel.
    pub(super) told: AtomicU64,
    /// The number of descriptors through which the kernel writes the file below directly.
    pub(super) passthrough_writers: AtomicU64,
    /// Something was written that may not be committed.
    pub(super) may_be_dirty: AtomicBool,
    /// The number of descriptors whose reads go through the kernel's cache, which relies on the
    /// length that was reported to it.
    pub(super) cached_opens: AtomicU64,
    /// References and open handles.
    pub(super) uses: AtomicU64,
}

impl Inode {
    /// Creates an inode with one use: a view, if `base` gives its base and its name.
    pub(super) fn new(
        ino: Ino,
        kind: FileKind,
        location: SharedLocation,
        path: Vec<u8>,
        attached: Attached,
        base: Option<(&Self, &[u8])>,
    ) -> Self {
        let file = FileState::new(attached);
        Self {
            ino,
            kind,
            location,
            path: Mutex::new(path),
            version: file.version.clone(),
            file: Mutex::new(file),
            runtime_stages: Mutex::default(),
            view_name: base.map(|(_, name)| name.to_vec()),
            snapshot: Mutex::default(),
            attr_lifetime: base.map_or_else(Arc::default, |(base, _)| base.attr_lifetime.clone()),
            led_elsewhere: AtomicU64::new(0),
            told: AtomicU64::new(0),
            passthrough_writers: AtomicU64::new(0),
            may_be_dirty: AtomicBool::new(false),
            cached_opens: AtomicU64::new(0),
            uses: AtomicU64::new(1),
        }
    }

    /// Returns the inode below.
    pub(super) fn below(&self) -> Ino {
        locked(&self.location).ino
    }

    /// Returns the number of changes.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the path, as of the last lookup.
    pub(super) fn path(&self) -> Vec<u8> {
        locked(&self.path).clone()
    }

    /// Records the name that the inode has now, and returns its path before.
    pub(super) fn moved_to(&self, parent: &Self, name: &[u8]) -> Vec<u8> {
        let (directory, path) = (parent.below(), parent.path_of(name));
        let mut location = locked(&self.location);
        location.parent = directory;
        name.clone_into(&mut location.name);
        drop(location);
        std::mem::replace(&mut *locked(&self.path), path)
    }

    /// Returns the path of a name in this directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        join(&locked(&self.path), name)
    }

    /// Returns true if a file has no network (or is not a regular file).
    pub(super) fn is_plain(&self) -> bool {
        self.kind != FileKind::Regular || locked(&self.file).is_plain()
    }

    /// Returns the view that is attached to a view by name or a link.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        locked(&self.file).view().cloned()
    }

    /// Returns the attributes of an inode while it is a snapshot.
    pub(super) fn attr_of_snapshot(&self) -> Option<Attr> {
        locked(&self.snapshot).as_ref().map(|there| there.attr)
    }
}

/// The network or view attached to a file.
#[derive(Default, Clone)]
pub(super) enum Attached {
    /// None: the file is read and written unchanged.
    #[default]
    Plain,
    /// A network.
    Network(Arc<Network>),
    /// A view of another file.
    View(Arc<View>),
    /// An invalid network, or one that cannot be built here, with the reason. The file then cannot
    /// be read at all, rather than its stored form.
    Unusable(Arc<Fault>),
}

/// A read-only view of another file through a network.
pub(super) struct View {
    /// The base, with one use, which is released together with the inode that shows the view.
    pub(super) base: Arc<Inode>,
    pub(super) network: Arc<Network>,
    /// For a link, the permissions that the directories on the path to the base leave.
    pub(super) reach: Reach,
}

impl View {
    /// Returns true for a link that leads through a directory which not all users may search. The
    /// length of its base must not be revealed to users who can look up such a link.
    pub(super) fn is_behind_closed_directories(&self) -> bool {
        self.reach != Reach::ALL
    }
}

/// The state of one file. Its lock is held while the file is read or written.
#[derive(Default)]
pub(super) struct FileState {
    pub(super) attached: Attached,
    /// The network, and its text, that a plain file is to get when the kernel writes it past this file
    /// system no longer.
    pub(super) pending: Option<(Attached, String)>,
    /// Opened when first needed.
    pub(super) store: Option<Box<dyn Store>>,
    /// The state of the stored file when the content was opened.
    pub(super) seen: Option<FileVersion>,
    /// The state of the stored file when a front end last opened it.
    pub(super) opened: Option<FileVersion>,
    /// The front end's cached content is outdated; reset when the file is opened.
    pub(super) cached_is_old: bool,
    /// The number of changes made through this file system; that of the inode.
    version: Arc<AtomicU64>,
    /// The state of the file's output in the output cache.
    pub(super) output: Output,
    /// The length to report for content that could not be measured, in a state of the stored file: a
    /// reader gets to what cannot be read.
    pub(super) failing: Option<(FileVersion, u64)>,
    /// mtime and ctime of the uncommitted changes, which the file system below does not know.
    pub(super) stamp: Option<(Time, Time)>,
    /// Nothing was written to the file yet: an empty stored file is not damage.
    pub(super) is_new: bool,
}

impl FileState {
    pub(super) fn new(attached: Attached) -> Self {
        Self { attached, ..Self::default() }
    }

    /// Drops the content; uncommitted data is lost. Returns what was attached.
    pub(super) fn close(&mut self) -> Attached {
        self.replace(Attached::Plain)
    }

    /// Attaches something else, as if the file had just been found; returns what was attached.
    pub(super) fn replace(&mut self, attached: Attached) -> Attached {
        let fresh = self.next(attached);
        std::mem::replace(self, fresh).attached
    }

    /// Returns the state of the same file with something else attached. The kernel's cached content
    /// is marked as outdated, because the notice may reach the kernel after the next open.
    pub(super) fn next(&self, attached: Attached) -> Self {
        self.version.fetch_add(1, Ordering::AcqRel);
        let version = self.version.clone();
        Self { version, cached_is_old: true, ..Self::new(attached) }
    }

    /// Returns the number of changes.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.attached, Attached::Plain)
    }

    pub(super) fn view(&self) -> Option<&Arc<View>> {
        match &self.attached {
            Attached::View(view) => Some(view),
            _ => None,
        }
    }

    pub(super) fn is_view(&self) -> bool {
        self.view().is_some()
    }

    /// Returns the network, if the file has a usable one.
    pub(super) fn network(&self) -> Result<&Arc<Network>, Fault> {
        match &self.attached {
            Attached::Network(network) => Ok(network),
            Attached::View(view) => Ok(&view.network),
            Attached::Plain => Err(Fault::Invalid("the file carries no network")),
            Attached::Unusable(why) => Err(again(why)),
        }
    }

    /// Updates the counters of the file's network.
    pub(super) fn count(&self, what: impl FnOnce(&NetworkMeter)) {
        if let Ok(network) = self.network() {
            network.count(what);
        }
    }

    /// Counts a read.
    pub(super) fn count_read(&self, read: &weft_vfs::Result<usize>) {
        self.count(|meter| match read {
            Ok(len) => {
                meter.reads.add(1);
                meter.read_bytes.add(*len as u64);
            }
            Err(_) => meter.errors.add(1),
        });
    }

    /// Returns true if the length is known, from the opened content or else from the output cache.
    pub(super) fn is_settled(&mut self) -> bool {
        match &mut self.store {
            Some(store) => matches!(store.len_bytes(), Ok(Some(_))),
            None => self.output.is_kept(),
        }
    }

    /// Drops the opened content of a file that is no longer open, if its length is not known yet:
    /// this ends a program that produces it. Of other content the length stays known.
    pub(super) fn stop_reading(&mut self) {
        if self.is_dirty() {
            return;
        }
        if !self.is_settled() {
            self.store = None;
        }
        if let Some(store) = &mut self.store {
            store.release_buffers();
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_dirty())
    }
}

/// The cached output that the kernel reads in place of a view.
pub(super) struct Snapshot {
    pub(super) entry: Arc<Entry>,
    pub(super) file: Arc<OwnedFd>,
    pub(super) attr: Attr,
    /// The state of the view and its base at the time of the snapshot.
    pub(super) of: (FileVersion, u64),
    /// The number of handles that the kernel reads directly.
    pub(super) open: u64,
    /// The name of the view leads to another inode by now.
    pub(super) replaced: bool,
}

/// The networks pushed on a file.
#[derive(Default)]
pub(super) struct RuntimeStages {
    /// The file's own network; `None` while nothing is pushed.
    pub(super) below: Option<Attached>,
    /// The pushed networks, from the stored file up, each with the descriptor that pushed it.
    pub(super) stack: Vec<(Handle, Text)>,
}

/// Copies an error, because the error type of the file system has no `Clone`.
pub(super) fn again(fault: &Fault) -> Fault {
    Fault::Io { errno: fault.errno(), message: fault.to_string() }
}
