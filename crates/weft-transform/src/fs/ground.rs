//! The state shared by all files of a tree, and internal reads, by which a view reads its base.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, Error, FileKind, FileSystem, Handle, Ino, Result};

use super::base::{FileBase, locked};
use super::file::{Around, Attached, File};
use super::nodes::{Node, Nodes};
use super::reach::{ACCESS_LIST, Reach};
use super::snapshot::attr_of_snapshot;
use crate::store::{Limits, Single, Store, open};
use crate::{Layer, Network, SizeRule};

/// The file system below, its nodes, and the state shared by all files.
pub(super) struct Ground {
    pub(super) below: Arc<dyn FileSystem>,
    pub(super) nodes: Arc<Mutex<Nodes>>,
    /// Held while names change.
    pub(super) names: Arc<Mutex<()>>,
    /// Part of the names of temporary files.
    pub(super) session: u32,
    /// The number of temporary files that this mount has created.
    pub(super) fresh_names: Arc<AtomicU64>,
    pub(super) limits: Limits,
    /// Only a single user, or users who may read all of it, can reach this file system.
    pub(super) one_user: AtomicBool,
}

impl Ground {
    /// Runs `call` with a file and its context, with the file locked.
    pub(super) fn with<T>(
        &self,
        node: &Node,
        call: impl FnOnce(&mut File, &Around<'_>) -> Result<T>,
    ) -> Result<T> {
        let base = || FileBase {
            fs: self.below.clone(),
            place: node.place.clone(),
            session: self.session,
            fresh_names: self.fresh_names.clone(),
            names: self.names.clone(),
            nodes: self.nodes.clone(),
            is_new: false,
            fresh: Vec::new(),
        };
        let around = Around {
            fs: &self.below,
            place: &node.place,
            limits: &self.limits,
            base: &base,
            cached_opens: &node.cached_opens,
        };
        call(&mut locked(&node.file), &around)
    }

    /// Returns true if a file has no network (or is not a regular file).
    pub(super) fn is_plain(node: &Node) -> bool {
        node.kind != FileKind::Regular || locked(&node.file).is_plain()
    }

    pub(super) fn commit(&self, node: &Node) -> Result<()> {
        if Self::is_plain(node) {
            return Ok(());
        }
        self.with(node, File::commit)
    }

    /// Releases `count` uses of an inode; with the last one written data is committed, and the
    /// inode below is forgotten.
    pub(super) fn give_back(&self, ino: Ino, count: u64) {
        let unused = locked(&self.nodes).drop_uses(ino, count);
        let Some(node) = unused else { return };
        if let Err(e) = self.commit(&node) {
            tracing::error!(ino = ino.0, "what was written last is lost: {e}");
        }
        if locked(&self.nodes).remove_unused(&node) {
            // A temporary file must be removed before the inode is forgotten.
            let below = node.below();
            let attached = locked(&node.file).close();
            self.let_go(&attached);
            if node.view.is_none() {
                self.below.forget(below, 1);
            }
        }
    }

    /// Releases one use of a node, if it is still the node of its inode number.
    pub(super) fn give_back_node(&self, node: &Arc<Node>) {
        let there = locked(&self.nodes).get(node.ino);
        if there.is_ok_and(|there| Arc::ptr_eq(&there, node)) {
            self.give_back(node.ino, 1);
        }
    }

    /// Releases the use that a view has of its base.
    pub(super) fn let_go(&self, attached: &Attached) {
        if let Attached::View(view) = attached {
            self.give_back(view.base.ino, 1);
        }
    }

    /// Reads a file whose stages all work in place, in parallel with other readers; returns `None`
    /// if they do not, or if the file changed during the read.
    pub(super) fn read_in_place(
        &self,
        node: &Node,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        let before = locked(&node.file).in_place(&node.place)?;
        let read = self.below.read(before.stored, Handle::NONE, offset, buf);
        let read = read.and_then(|got| {
            before.stages.apply(offset, &mut buf[..got])?;
            Ok(got)
        });
        let file = locked(&node.file);
        let after = file.in_place(&node.place)?;
        if (after.stored, after.versions) != (before.stored, before.versions) {
            return None;
        }
        file.count_read(&read);
        Some(read)
    }

    /// Returns the attributes that this file system reports, and whether the size is known.
    pub(super) fn attr(&self, node: &Node) -> Result<(Attr, bool)> {
        if let Some(mut attr) = attr_of_snapshot(node) {
            // The content is that of the snapshot; the permissions are the current ones of the
            // base.
            let view = locked(&node.file).view().cloned();
            let now = view.ok_or(Error::Stale(node.ino.0))?.shown_attr()?;
            (attr.perm, attr.uid, attr.gid) = (now.perm, now.uid, now.gid);
            return Ok((attr, true));
        }
        let (mut attr, known) = if Self::is_plain(node) {
            (self.below.getattr(node.below())?, true)
        } else {
            self.with(node, File::attr)?
        };
        attr.ino = node.ino;
        Ok((attr, known))
    }

    /// Returns the length of the content as its readers find it; `None` if it can be determined
    /// only by reading to the end.
    fn content_len(&self, node: &Node) -> Result<Option<u64>> {
        if let Some(attr) = attr_of_snapshot(node) {
            return Ok(Some(attr.size_bytes));
        }
        if Self::is_plain(node) {
            return Ok(Some(self.below.getattr(node.below())?.size_bytes));
        }
        self.with(node, File::content_len)
    }
}

/// A read-only view of another file through a network.
pub(super) struct View {
    pub(super) ground: Arc<Ground>,
    /// The base, with one use, which is released together with the node that shows the view.
    pub(super) base: Arc<Node>,
    pub(super) network: Arc<Network>,
    /// For a link, the permissions that the directories on the path to the base leave.
    pub(super) reach: Reach,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("base", &self.base.ino)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

impl View {
    pub(super) fn open(&self) -> crate::Result<Box<dyn Store>> {
        let through = Through { ground: self.ground.clone(), base: self.base.clone() };
        let base = Single::to_read(Box::new(through));
        open(Box::new(base), &self.network, &self.ground.limits)
    }

    /// Returns the attributes of the derived file, from those of the base; the length is that of
    /// the base.
    pub(super) fn shown_attr(&self) -> Result<Attr> {
        let mut attr = super::views::shown(self.base_attr()?.0);
        self.reach.restrict(&mut attr, || self.base_has_list());
        Ok(attr)
    }

    /// Returns true if all users who can reach this file system may read the view.
    pub(super) fn all_may_read(&self) -> Result<bool> {
        if self.ground.is_of_one_user() {
            return Ok(true);
        }
        let attr = self.shown_attr()?;
        Ok(self.ground.all_may_read(&attr, || self.base_has_list()))
    }

    /// Returns true for a link that leads through a directory which not all users may search. The
    /// length of its base must not be revealed to users who can look up such a link.
    pub(super) fn is_behind_closed_directories(&self) -> bool {
        self.reach != Reach::ALL
    }

    /// Returns the length, if it follows from the length of the base, whatever the content.
    pub(super) fn len_by_base(&self) -> Result<Option<u64>> {
        if self.is_behind_closed_directories() {
            return Ok(None);
        }
        let (attr, known) = self.ground.attr(&self.base)?;
        let keeps = |layer: &Layer| layer.declares().size == SizeRule::Preserved;
        let keeps = known && self.network.layers().iter().all(keeps);
        Ok(keeps.then_some(attr.size_bytes))
    }

    /// Returns the access list that applies to the derived file.
    pub(super) fn access_list(&self) -> Option<Vec<u8>> {
        let further = locked(&self.base.file).view().cloned();
        let list = match further {
            Some(view) => view.access_list(),
            None => self.ground.below.getxattr(self.base.below(), ACCESS_LIST).ok(),
        };
        // Without the list the mode applies, from which `Reach::restrict` has then removed group
        // and others.
        list.filter(|_| !self.is_behind_closed_directories())
    }

    pub(super) fn base_has_list(&self) -> bool {
        let further = locked(&self.base.file).view().cloned();
        match further {
            Some(view) => view.base_has_list(),
            None => self.ground.access_list(self.base.below()).is_some(),
        }
    }

    /// Returns the attributes of the base, and its version: the number of changes made through this
    /// file system.
    pub(super) fn base_attr(&self) -> Result<(Attr, u64)> {
        let version = locked(&self.base.file).version;
        Ok((self.ground.attr(&self.base)?.0, version))
    }
}

/// A store of the content of a file as its readers see it.
pub(super) struct Through {
    pub(super) ground: Arc<Ground>,
    pub(super) base: Arc<Node>,
}

impl Store for Through {
    fn len_bytes(&mut self) -> crate::Result<Option<u64>> {
        Ok(self.ground.content_len(&self.base)?)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> crate::Result<usize> {
        if Ground::is_plain(&self.base) {
            return Ok(self.ground.below.read(self.base.below(), Handle::NONE, offset, buf)?);
        }
        Ok(self.ground.with(&self.base, |file, around| file.read(around, offset, buf))?)
    }
}
