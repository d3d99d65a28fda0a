//! A file system stacked on another, with networks attached to its regular files.
//!
//! The network of a file is determined on its first lookup: by the rules of the mount, or else by
//! its extended attribute [`NETWORK_ATTRIBUTE`] (empty: none), or else by the nearest rules file
//! ([`Rules`]); with [`Trust::Tree`] the rules of the mount come last. A file created under a rule
//! gets the attribute, so that it can be read wherever it is moved; a file without network that is
//! moved under a rule is rewritten through the rule's network, so that the rules of a directory
//! also hold for editors that save by renaming. [`views`] are files that show others through a
//! network.
//!
//! Lock order: a file's lock, then the lock of names, then that of the nodes; calls to the file
//! system below are made under the first two at most.

mod attach_ioctl;
mod attributes;
mod base;
mod calls;
mod decide;
mod explain;
mod file;
mod fill;
mod ground;
mod lifetimes;
mod listing;
mod names;
mod nodes;
mod opening;
mod outputs;
mod own;
mod reach;
mod rules;
mod shown;
mod snapshot;
mod trees;
mod views;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_vfs::{
    Attr, Entry, Error, FileKind, FileSystem, Handle, HandleTable, Ino, Invalidate, OpenFlags,
    Result,
};

use crate::store::Limits;
use crate::{Meters, OutputCache, Registry};
use base::{FRESH_PREFIX, Place, locked};
use decide::RulesCache;
use file::{Around, Attached, File};
use ground::Ground;
use nodes::Node;
use own::Own;
use trees::Trees;

pub use attach_ioctl::{COMMAND_BYTES, POP_COMMAND, PUSH_COMMAND, SHOW_COMMAND};
pub use explain::{Explanation, Source, StageExplanation};
pub use rules::{RULES_NAME, Rules, Ruling, Trust};
pub use views::{LINK_MAGIC, link_content};

/// The extended attribute that holds the text of a file's network.
pub const NETWORK_ATTRIBUTE: &[u8] = b"user.weft.network";

/// Setting this extended attribute to the text of a network rewrites the content of a file through
/// that network (empty: none). It cannot be read.
pub const CONVERT_ATTRIBUTE: &[u8] = b"user.weft.convert";

/// Reading this extended attribute returns an [`Explanation`] in JSON.
pub const EXPLAIN_ATTRIBUTE: &[u8] = b"user.weft.explain";

/// The value of [`NETWORK_ATTRIBUTE`] that marks a link.
pub const LINK: &[u8] = b"link";

/// The options of a [`TransformFs`].
#[derive(Debug)]
pub struct TransformOptions {
    /// The rules of the mount, which apply from the root down.
    pub rules: Rules,
    /// The source that takes precedence for a file that these rules match, if the tree names
    /// another network.
    pub trust: Trust,
    /// Whether rules files in the directories apply.
    pub rules_files: bool,
    /// Whether a file created under a rule gets the attribute.
    pub pin: bool,
    /// The resource limits for a stored file.
    pub limits: Limits,
    /// Other processes may change the files below at any time: a front end's cache of a file is
    /// kept only while the file appears unchanged each time that it is opened.
    pub shared: bool,
    /// The counters of networks; with them the root has a directory `.weft`, hidden from listings,
    /// that shows the counters.
    pub meters: Option<Arc<Meters>>,
    /// The cache of network outputs on disk.
    pub outputs: Option<Arc<OutputCache>>,
    /// Views by name are snapshots if their [`outputs`](Self::outputs) are cached: a front end may
    /// let the kernel read the cached files directly, and a client that has a view open does not
    /// see changes of its base.
    pub snapshot_views: bool,
    /// An identifier that distinguishes the inodes of this tree from those of all others, if inode
    /// number, length and change times (in nanoseconds) tell whether a file is unchanged, even
    /// after a remount. Without it a stored file is read once to find its entry in
    /// [`outputs`](Self::outputs).
    pub identity: Option<String>,
}

impl Default for TransformOptions {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            trust: Trust::default(),
            rules_files: true,
            pin: true,
            limits: Limits::default(),
            shared: false,
            meters: None,
            outputs: None,
            snapshot_views: false,
            identity: None,
        }
    }
}

/// A file system stacked on another, with networks attached to its regular files.
pub struct TransformFs {
    ground: Arc<Ground>,
    registry: Registry,
    options: TransformOptions,
    rules: Mutex<RulesCache>,
    handles: Mutex<HandleTable<Open>>,
    /// The sink for invalidations of the front end's caches.
    sink: Mutex<Option<Arc<dyn Invalidate>>>,
    /// Held while a view is attached to a file that is already known, so that no cycle of links
    /// arises.
    linking: Mutex<()>,
    /// The number of times that a link was found to have another target than before.
    link_changes: AtomicU64,
    own: Option<Own>,
    trees: Mutex<Trees>,
}

/// An open file.
#[derive(Debug, Clone, Copy)]
struct Open {
    ino: Ino,
    flags: OpenFlags,
    /// The inode and handle below, if the file had no network when it was opened.
    below: Option<(Ino, Handle)>,
    /// Reads and writes bypass the kernel's cache.
    direct_io: bool,
    /// Passthrough: the kernel accesses the file below directly.
    past: bool,
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
        let ground = Ground {
            below,
            nodes: Arc::default(),
            names: Arc::default(),
            session,
            fresh_names: Arc::default(),
            limits: options.limits,
            one_user: AtomicBool::new(false),
        };
        let own = options.meters.clone().map(Own::new);
        let registry = match &own {
            Some(own) => registry.counting(own.meters.clone()),
            None => registry,
        };
        let fs = Self {
            ground: Arc::new(ground),
            registry,
            options,
            rules: Mutex::default(),
            handles: Mutex::default(),
            sink: Mutex::default(),
            linking: Mutex::default(),
            link_changes: AtomicU64::new(0),
            own,
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
        self.ground.one_user.store(true, Ordering::Release);
    }

    /// Adds the root, which needs no reference, and so keeps one use for ever.
    fn add_root(&self, attr: &Attr) {
        let place = Place { ino: attr.ino, parent: attr.ino, name: Vec::new(), unlinked: false };
        let mut nodes = locked(&self.ground.nodes);
        nodes.insert(place, FileKind::Directory, Vec::new(), &Attached::Plain);
    }

    /// Returns the node of an inode of the file system below. Fails with [`Error::ReadOnly`] for
    /// synthetic inodes, such as those of an archive's tree.
    fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        if shown::is_shown(ino) {
            return Err(Error::ReadOnly);
        }
        locked(&self.ground.nodes).get(ino)
    }

    /// Runs `call` with a file and its context, with the file locked.
    fn with<T>(
        &self,
        node: &Node,
        call: impl FnOnce(&mut File, &Around<'_>) -> Result<T>,
    ) -> Result<T> {
        self.ground.with(node, call)
    }

    /// Returns true if a file has no network (or is not a regular file).
    fn is_plain(node: &Node) -> bool {
        Ground::is_plain(node)
    }

    /// Returns the attributes that this file system reports.
    fn attr(&self, node: &Node) -> Result<Attr> {
        Ok(self.attr_and_size(node)?.0)
    }

    /// Returns the attributes, and whether the size is known.
    fn attr_and_size(&self, node: &Node) -> Result<(Attr, bool)> {
        self.look_again(node)?;
        node.told.store(Self::led_elsewhere(node), Ordering::Release);
        self.ground.attr(node)
    }

    /// Returns the entry of a name that was looked up below: creates or finds its node, which takes
    /// over the reference, and adds one use. On error the reference is released.
    fn found(&self, parent: &Node, name: &[u8], below: Entry, new: bool) -> Result<Entry> {
        let ino = below.attr.ino;
        let known = locked(&self.ground.nodes).acquire(ino);
        let moved = matches!(name, b"." | b"..");
        let node = match known {
            Some(node) => {
                self.ground.below.forget(ino, 1);
                if !moved {
                    self.check_other_name(&node, &join(&locked(&parent.path), name), &below.attr)
                        .inspect_err(|_| self.give_back(node.ino, 1))?;
                    let mut place = locked(&node.place);
                    place.parent = parent.below();
                    name.clone_into(&mut place.name);
                    drop(place);
                    *locked(&node.path) = join(&locked(&parent.path), name);
                }
                node
            }
            None => {
                let path = join(&locked(&parent.path), name);
                let attached = if below.attr.kind == FileKind::Regular {
                    self.decide(ino, &path, new)
                } else {
                    Attached::Plain
                };
                let place =
                    Place { ino, parent: parent.below(), name: name.to_vec(), unlinked: false };
                let kind = below.attr.kind;
                let (node, made) = locked(&self.ground.nodes).insert(place, kind, path, &attached);
                if !made {
                    // Another thread inserted the node first, with its own reference.
                    self.ground.below.forget(ino, 1);
                    self.let_go(&attached);
                }
                node
            }
        };
        let begun = if new { self.begin_new(parent, name, &node) } else { Ok(()) };
        match begun.and_then(|()| self.attr(&node)) {
            Ok(attr) => Ok(Entry { attr, generation: below.generation }),
            Err(e) => {
                self.give_back(node.ino, 1);
                Err(e)
            }
        }
    }

    /// Refuses a hard link to which the rules of the mount give another network than to the name of
    /// the file that was looked up first, whose network the file has: it would be read and written
    /// without the network of this name.
    fn check_other_name(&self, node: &Node, path: &[u8], attr: &Attr) -> Result<()> {
        let several = node.kind == FileKind::Regular && attr.nlink > 1;
        if !several || self.ruled_alike(&locked(&node.path).clone(), path) {
            return Ok(());
        }
        let message = "the rules of the mount have another network for another name of this file";
        Err(Error::Io { errno: 5, message: message.to_owned() })
    }

    /// Initializes a new file as empty through its network; removes the file if that fails.
    fn begin_new(&self, parent: &Node, name: &[u8], node: &Node) -> Result<()> {
        if node.kind != FileKind::Regular {
            return Ok(());
        }
        self.with(node, File::begin).inspect_err(|_| {
            if self.ground.below.unlink(parent.below(), name).is_ok() {
                locked(&node.place).unlinked = true;
            }
        })
    }

    /// Releases `count` uses of an inode.
    fn give_back(&self, ino: Ino, count: u64) {
        self.ground.give_back(ino, count);
    }

    fn commit(&self, node: &Node) -> Result<()> {
        self.ground.commit(node)
    }

    fn commit_all(&self) -> Result<()> {
        let all = locked(&self.ground.nodes).all();
        let mut result = Ok(());
        for node in all {
            result = result.and(self.commit(&node));
        }
        result
    }

    /// Refuses the names of temporary files, which clients cannot use.
    fn check_visible(name: &[u8]) -> Result<()> {
        if name.starts_with(FRESH_PREFIX) { Err(Error::NotPermitted) } else { Ok(()) }
    }

    fn new_handle(&self, open: Open) -> Handle {
        locked(&self.handles).open(open)
    }
}

/// Returns the path of a name in a directory; the path of the root is empty.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
