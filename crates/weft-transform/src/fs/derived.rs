//! Access control of derived files: only a user who may read the base may read a file derived from
//! it.
//!
//! Invariant of views by name, links and trees, whose stages the caller chooses: in a call whose
//! caller may not read the base, no byte of the base is read and no answer depends on its content.
//! The kernel checks permissions when it opens a file or a directory, or searches a directory; it
//! checks none when it looks up a name or reads attributes, and shows these to all users. So with
//! any front end, the results of `lookup`, `getattr`, `listxattr` and the lifetimes for a derived
//! file follow only from its name and from mode, owner, length and times of its base (for a link
//! that leads through directories which not all users may search, not from length and times
//! either), unless all users who can reach this file system may read the base
//! ([`Mount::all_may_read`]): its length is that of the base if the stages preserve lengths, and
//! otherwise unknown; and a tree is a directory whatever the content of its base, which is opened
//! when the tree is listed or a name in it is looked up. (One exception: a file that a reader
//! opened while all users could read it keeps the length that the reader's kernel relies on until
//! it is closed.)
//!
//! The network of a file itself (by a rule of the mount, by its attribute, or by a rules file of
//! its owner or of root) is not chosen by the caller, and the length through that network is the
//! file's own.
//!
//! A link is resolved with the permissions of its owner only, because its errors reveal what
//! exists; only the owner may write it.
//!
//! A kernel that checks permissions uses the mode, owner and access list that are reported to it.
//! So a view, a link and the root of a tree have those of their base, and a link no more than the
//! directories on the path to its base allow.

use std::sync::Arc;

use weft_vfs::{Attr, Result};

use super::inode::{Inode, View};
use super::mount::Mount;
use crate::{Layer, SizeRule};

impl Mount {
    /// Returns true if all users who can reach this file system may read a file with these
    /// attributes. An access list may deny it to some.
    pub(super) fn all_may_read(&self, attr: &Attr, has_list: impl FnOnce() -> bool) -> bool {
        const ALL: u16 = 0o444;
        self.is_of_one_user() || attr.perm & ALL == ALL && !has_list()
    }

    /// As [`all_may_read`](Self::all_may_read), for a referenced inode.
    pub(super) fn all_may_read_inode(self: &Arc<Self>, inode: &Inode) -> Result<bool> {
        if self.is_of_one_user() {
            return Ok(true);
        }
        let attr = self.attr(inode)?.0;
        Ok(self.all_may_read(&attr, || self.has_list(inode)))
    }

    /// Returns the attributes of the derived file, from those of the base; the length is that of
    /// the base.
    pub(super) fn view_attr(self: &Arc<Self>, view: &View) -> Result<Attr> {
        let mut attr = read_only(self.base_attr(view)?.0);
        view.reach.restrict(&mut attr, || self.has_list(&view.base));
        Ok(attr)
    }

    /// Returns true if all users who can reach this file system may read the view.
    pub(super) fn all_may_read_view(self: &Arc<Self>, view: &View) -> Result<bool> {
        if self.is_of_one_user() {
            return Ok(true);
        }
        let attr = self.view_attr(view)?;
        Ok(self.all_may_read(&attr, || self.has_list(&view.base)))
    }

    /// Returns the length, if it follows from the length of the base, whatever the content.
    pub(super) fn len_by_base(self: &Arc<Self>, view: &View) -> Result<Option<u64>> {
        if view.is_behind_closed_directories() {
            return Ok(None);
        }
        let (attr, known) = self.attr(&view.base)?;
        let keeps = |layer: &Layer| layer.declares().size == SizeRule::Preserved;
        let keeps = known && view.network.layers().iter().all(keeps);
        Ok(keeps.then_some(attr.size_bytes))
    }

    /// Returns the access list of an inode: a view has that of its base.
    pub(super) fn list_of(&self, inode: &Inode) -> Option<Vec<u8>> {
        let Some(view) = inode.view() else { return self.access_list(inode.below()) };
        // Without the list the mode applies, from which `Reach::restrict` has then removed group
        // and others.
        self.list_of(&view.base).filter(|_| !view.is_behind_closed_directories())
    }

    /// Returns true if the file that an inode is derived from has an access list.
    pub(super) fn has_list(&self, inode: &Inode) -> bool {
        match inode.view() {
            Some(view) => self.has_list(&view.base),
            None => self.access_list(inode.below()).is_some(),
        }
    }

    /// Returns the attributes of the base, and its version: the number of changes made through this
    /// file system.
    pub(super) fn base_attr(self: &Arc<Self>, view: &View) -> Result<(Attr, u64)> {
        let version = view.base.version();
        Ok((self.attr(&view.base)?.0, version))
    }
}

/// Returns the attributes of a view, which is read-only and has one name.
pub(super) fn read_only(mut attr: Attr) -> Attr {
    attr.perm &= !0o6222;
    attr.nlink = 1;
    attr
}
