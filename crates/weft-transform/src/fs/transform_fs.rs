//! The file system: its state, and the inodes of names that were looked up.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_vfs::{
    Attr, Caller, Entry, Error, FileKind, FileSystem, Handle, HandleTable, Ino, Invalidate,
    OpenFlags, Result,
};

use super::archive_tree::Trees;
use super::inode::{Attached, Inode, Location};
use super::inodes::is_synthetic;
use super::locks::locked;
use super::meter_directory::MeterDirectory;
use super::mount::Mount;
use super::options::TransformOptions;
use super::rules::RulesCache;
use crate::Registry;

/// A file system stacked on another, with networks attached to its regular files.
pub struct TransformFs {
    pub(super) mount: Arc<Mount>,
    pub(super) registry: Registry,
    pub(super) options: TransformOptions,
    pub(super) rules: Mutex<RulesCache>,
    pub(super) handles: Mutex<HandleTable<Open>>,
    /// The sink for invalidations of the front end's caches.
    pub(super) sink: Mutex<Option<Arc<dyn Invalidate>>>,
    /// Held while a view is attached to a file that is already known, so that no cycle of links
    /// arises.
    pub(super) linking: Mutex<()>,
    /// The number of times that a link was found to have another target than before.
    pub(super) link_changes: AtomicU64,
    pub(super) meter_directory: Option<MeterDirectory>,
    pub(super) trees: Mutex<Trees>,
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    /// The inode and handle below, if the file had no network when it was opened.
    pub(super) below: Option<(Ino, Handle)>,
    /// Reads and writes bypass the kernel's cache.
    pub(super) direct_io: bool,
    /// Passthrough: the kernel accesses the file below directly.
    pub(super) passthrough: bool,
}

impl fmt::Debug for TransformFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformFs").field("options", &self.options).finish_non_exhaustive()
    }
}

impl TransformFs {
    /// Creates a file system over `below`, with networks built by `registry`.
    ///
    /// # Errors
    /// The attributes of the root cannot be read, or no random numbers are available.
    pub fn new(
        below: Arc<dyn FileSystem>,
        registry: Registry,
        options: TransformOptions,
    ) -> Result<Self> {
        let root = below.getattr(below.root())?;
        let session =
            getrandom::u32().map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
        let meter_directory = options.meters.clone().map(MeterDirectory::new);
        let registry = match &options.meters {
            Some(meters) => registry.counting(meters.clone()),
            None => registry,
        };
        let fs = Self {
            mount: Arc::new(Mount::new(below, session, options.limits)),
            registry,
            options,
            rules: Mutex::default(),
            handles: Mutex::default(),
            sink: Mutex::default(),
            linking: Mutex::default(),
            link_changes: AtomicU64::new(0),
            meter_directory,
            trees: Mutex::default(),
        };
        fs.add_root(&root);
        Ok(fs)
    }

    /// Declares that from now on only a single user, whom the front end distinguishes from all
    /// others, can reach this file system: the lengths of all derived files are then reported,
    /// whatever the permissions of their bases. Without it they are reported only as far as all
    /// users may read the bases.
    pub fn serve_one_user(&self) {
        self.mount.one_user.store(true, Ordering::Release);
    }

    /// Adds the root, which needs no reference, and so keeps one use for ever.
    pub(super) fn add_root(&self, attr: &Attr) {
        let location =
            Location { ino: attr.ino, parent: attr.ino, name: Vec::new(), unlinked: false };
        let mut inodes = self.mount.inodes();
        inodes.insert(location, FileKind::Directory, Vec::new(), &Attached::Plain);
    }

    /// Returns an inode of the file system below. Fails with [`Error::ReadOnly`] for
    /// synthetic inodes, such as those of an archive's tree.
    pub(super) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        if is_synthetic(ino) {
            return Err(Error::ReadOnly);
        }
        self.mount.inodes().get(ino)
    }

    /// Returns the attributes that this file system reports.
    pub(super) fn attr(&self, inode: &Inode) -> Result<Attr> {
        Ok(self.attr_and_size(inode)?.0)
    }

    /// Returns the attributes, and whether the size is known.
    pub(super) fn attr_and_size(&self, inode: &Inode) -> Result<(Attr, bool)> {
        self.resolve_link_again(inode)?;
        inode.told.store(Self::led_elsewhere(inode), Ordering::Release);
        self.mount.attr(inode)
    }

    /// Returns the entry of a name that was looked up below: creates or finds its inode, which takes
    /// over the reference, and adds one use. On error the reference is released.
    pub(super) fn found(
        &self,
        parent: &Inode,
        name: &[u8],
        below: Entry,
        new: bool,
    ) -> Result<Entry> {
        let ino = below.attr.ino;
        let known = self.mount.inodes().acquire(ino);
        let moved = matches!(name, b"." | b"..");
        let inode = match known {
            Some(inode) => {
                self.mount.below.forget(ino, 1);
                if !moved {
                    self.check_other_name(&inode, &parent.path_of(name), &below.attr)
                        .inspect_err(|_| self.mount.release_uses(inode.ino, 1))?;
                    inode.moved_to(parent, name);
                }
                inode
            }
            None => {
                let path = parent.path_of(name);
                let attached = if below.attr.kind == FileKind::Regular {
                    self.decide(ino, &path, new)
                } else {
                    Attached::Plain
                };
                let location =
                    Location { ino, parent: parent.below(), name: name.to_vec(), unlinked: false };
                let kind = below.attr.kind;
                let (inode, made) = self.mount.inodes().insert(location, kind, path, &attached);
                if !made {
                    // Another thread inserted the inode first, with its own reference.
                    self.mount.below.forget(ino, 1);
                    self.mount.release_base(&attached);
                }
                inode
            }
        };
        if new {
            let begun = self.begin_new(parent, name, &inode);
            begun.inspect_err(|_| self.mount.release_uses(inode.ino, 1))?;
        }
        self.entry(&inode, below.generation)
    }

    /// Returns the entry of an inode; on error its use is released.
    pub(super) fn entry(&self, inode: &Inode, generation: u64) -> Result<Entry> {
        let attr = self.attr(inode);
        let attr = attr.inspect_err(|_| self.mount.release_uses(inode.ino, 1))?;
        Ok(Entry { attr, generation })
    }

    /// Refuses a hard link to which the rules of the mount give another network than the file has by the
    /// name that was looked up first: it would be read and written without the network of this name.
    fn check_other_name(&self, inode: &Inode, path: &[u8], attr: &Attr) -> Result<()> {
        let several = inode.kind == FileKind::Regular && attr.nlink > 1;
        if !several || self.ruled_alike(&inode.path(), path) {
            return Ok(());
        }
        let own = locked(&inode.runtime_stages).below.clone();
        let own = own.unwrap_or_else(|| locked(&inode.file).attached.clone());
        let is_same = match (own, self.stored_network_at(attr.ino, path)) {
            (Attached::Plain, Attached::Plain) => true,
            (Attached::Network(own), Attached::Network(other)) => {
                own.to_string() == other.to_string()
            }
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let message = "the rules of the mount have another network for another name of this file";
        Err(Error::Io { errno: 5, message: message.to_owned() })
    }

    /// Initializes a new file as empty through its network; removes the file if that fails.
    fn begin_new(&self, parent: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        if inode.kind != FileKind::Regular {
            return Ok(());
        }
        let begun = self.mount.file(inode).begin();
        begun.inspect_err(|_| {
            if self.mount.below.unlink(&Caller::ROOT, parent.below(), name).is_ok() {
                locked(&inode.location).unlinked = true;
            }
        })
    }

    pub(super) fn commit_all(&self) -> Result<()> {
        // No file that is only read, as its reader may be waiting for a program under its lock.
        let mut all = self.mount.inodes().all();
        all.retain(|inode| inode.may_be_dirty.load(Ordering::Acquire));
        // All are committed, and the first error is returned.
        let results: Vec<_> = all.iter().map(|inode| self.mount.commit(inode)).collect();
        results.into_iter().collect()
    }

    pub(super) fn new_handle(&self, open: Open) -> Handle {
        locked(&self.handles).open(open)
    }
}
