//! Files that show another file through a network: *views* by name and *links*. Both are read-only.
//!
//! A view by name is the name of a file, `@`, and the name of the view: `report.csv@json`. It is
//! hidden from listings, and a real file of that name takes precedence. The network of a view is
//! defined by a rule whose pattern has an `@` in its last part (`*.csv@json  view: json`); without
//! one the view's name consists of the names of stages, joined by `+` (`notes.txt@upper`,
//! `data@hex+upper`).
//!
//! A link is a file that names its base and network ([`super::link`]).
//! The base is resolved from the directory of the link, within the tree. Permissions are those of
//! the base, without writing, and for a link no more than the directories on the path to its base
//! allow ([`super::derived`]); a link is valid only if its owner is the base's owner or root.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_vfs::{Entry, Error, FileKind, FileSystem, Handle, Ino, Result, keeping_access_times};

use super::access::{Passed, Reach, may_search};
use super::decide::Found;
use super::explanation::Source;
use super::inode::{Attached, Inode, View, again};
use super::link::{LINK_MAX_BYTES, parse_link};
use super::locks::locked;
use super::path::MARK;
use super::transform_fs::TransformFs;
use crate::Network;
use crate::text::{Side, Text};

/// Maximum nesting of views of views, and links to links. Each level multiplies the work of a
/// lookup by about four, because a derived file requests the attributes of its base several times.
const DEPTH_MAX: u32 = 4;

thread_local! {
    /// The nesting depth of the lookups of views and links in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A guard that increments the nesting depth until it is dropped.
struct Deeper;

impl Deeper {
    fn enter() -> Result<Self> {
        let depth = DEPTH.get();
        if depth >= DEPTH_MAX {
            return Err(Error::SymlinkLoop);
        }
        DEPTH.set(depth + 1);
        Ok(Self)
    }
}

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl TransformFs {
    /// Looks up the view of a name that no file has; [`Error::NotFound`] if the name is not that of
    /// a view.
    pub(super) fn view(&self, parent: &Inode, name: &[u8]) -> Result<Entry> {
        let at = name.iter().rposition(|&b| b == MARK).ok_or(Error::NotFound)?;
        let (base, view) = (&name[..at], &name[at + 1..]);
        if base.is_empty() || view.is_empty() {
            return Err(Error::NotFound);
        }
        if let Some(tree) = self.tree(parent.ino, base, view) {
            return tree;
        }
        let path = parent.path_of(name);
        let Some(network) = self.view_network(&path, view)? else { return Err(Error::NotFound) };
        let _deeper = Deeper::enter()?;
        let base = self.lookup(parent.ino, base)?;
        let inode = match self.inode(base.attr.ino) {
            Ok(inode) if inode.kind == FileKind::Regular => {
                self.leave_old_snapshot(inode.ino, name);
                let (network, reach) = (Arc::new(network), Reach::ALL);
                let view = View { base: inode.clone(), network, reach };
                let (inode, made) = self.mount.inodes().insert_view(&inode, name, path, view);
                if !made {
                    // The existing view already has a use of the base.
                    self.mount.release_uses(base.attr.ino, 1);
                }
                inode
            }
            _ => {
                self.mount.release_uses(base.attr.ino, 1);
                return Err(Error::NotFound);
            }
        };
        self.entry(&inode, base.generation)
    }

    /// Returns the network of a view by name.
    fn view_network(&self, path: &[u8], view: &[u8]) -> Result<Option<Network>> {
        let rule = self.find_rule(path, true).map_err(|e| again(&e))?;
        if let Some(Found { network: Some(mut text), source, .. }) = rule {
            // A view is only read, so the network runs on the view side.
            text.side = Side::View;
            if text.records() && !matches!(source, Source::MountRules { .. }) {
                return Err(Error::Access);
            }
            return Ok(Some(self.network_of_rule(&text, &source)?));
        }
        let Ok(view) = std::str::from_utf8(view) else { return Ok(None) };
        // Many ordinary names contain the mark: they are not views.
        Ok(self.network_of_name(view).ok())
    }

    /// Builds the network of the stages in a name. Every user who may search a directory can look
    /// up such a name for any file in it, so these stages may not write to a log: only rules of the
    /// mount may, and networks that the owner has attached to a file.
    pub(super) fn network_of_name(&self, stages: &str) -> crate::Result<Network> {
        let text: Text = format!("view: {}", stages.replace('+', " | ")).parse()?;
        if text.records() {
            let message = "is in no name; a rule of the mount can say it for names".to_owned();
            return Err(crate::Error::Parameter { stage: "log".to_owned(), message });
        }
        self.registry.network(&text)
    }

    /// Returns the view of the link that is stored in the inode `below` at `path`.
    pub(super) fn link_view(&self, below: Ino, path: &[u8]) -> Result<Arc<View>> {
        let mut content = vec![0; LINK_MAX_BYTES];
        let read = || self.mount.below.read(below, Handle::NONE, 0, &mut content);
        let got = keeping_access_times(true, read)?;
        let (base, network) = parse_link(&content[..got])?;
        let network = self.registry.parse(network)?;
        let looks_as = self.looks_as(below)?;
        let _deeper = Deeper::enter()?;
        let directory = path.rsplitn(2, |&b| b == b'/').nth(1).unwrap_or_default();
        let (inode, way) = self.walk(directory, base.as_bytes(), looks_as)?;
        let checked = self.attr(&inode).and_then(|attr| {
            if looks_as.is_some_and(|owner| owner != attr.uid) {
                return Err(Error::Access);
            }
            if inode.kind != FileKind::Regular {
                return Err(Error::Invalid("the base of a link is no regular file"));
            }
            Ok(attr)
        });
        let attr = checked.inspect_err(|_| self.mount.release_uses(inode.ino, 1))?;
        let reach = Reach::through(&way, &attr);
        Ok(Arc::new(View { base: inode, network: Arc::new(network), reach }))
    }

    /// Returns the owner of the link `below`, whose permissions apply on the path to the base,
    /// because errors reveal what exists, and who must own the base. `None` if root owns the link,
    /// which may lead anywhere.
    fn looks_as(&self, below: Ino) -> Result<Option<u32>> {
        const OTHERS_WRITE: u16 = 0o022;
        let link = self.mount.below.getattr(below)?;
        if link.perm & OTHERS_WRITE != 0 && !self.mount.is_of_one_user() {
            let message = "users other than its owner may write this link (chmod go-w)".to_owned();
            return Err(Error::Io { errno: Error::Access.errno(), message });
        }
        Ok(Some(link.uid).filter(|owner| *owner != 0))
    }

    /// Resolves a path, from a directory given by its own path, and returns its inode with one more
    /// use. `..` leads no higher than the root, symbolic links are not followed. Also returns the
    /// directories on the path that do not lead to `directory`; the user `looks_as` must be able to
    /// search each of them.
    fn walk(
        &self,
        directory: &[u8],
        path: &[u8],
        looks_as: Option<u32>,
    ) -> Result<(Arc<Inode>, Vec<Passed>)> {
        let mut names: Vec<&[u8]> = Vec::new();
        let from: &[u8] = if path.starts_with(b"/") { b"" } else { directory };
        for name in from.split(|&b| b == b'/').chain(path.split(|&b| b == b'/')) {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        let start = directory.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let shared = names.iter().zip(start).take_while(|(name, there)| *name == there).count();
        let mut at = self.root();
        let mut held = false;
        let looks_as = looks_as.filter(|_| !self.mount.is_of_one_user());
        let mut way: Vec<Passed> = Vec::new();
        for (nr, name) in names.into_iter().enumerate() {
            let shut = looks_as.zip(way.last()).is_some_and(|(user, last)| !may_search(last, user));
            let found = if shut { Err(Error::Access) } else { self.lookup(at, name) };
            if held {
                self.mount.release_uses(at, 1);
            }
            let attr = found?.attr;
            at = attr.ino;
            held = true;
            if attr.kind == FileKind::Directory && nr >= shared {
                let below = self.inode(at).map(|inode| inode.below());
                way.push((attr, below.ok().and_then(|below| self.mount.access_list(below))));
            }
        }
        if !held {
            return Err(Error::IsADirectory);
        }
        Ok((self.inode(at)?, way))
    }

    /// Resolves the link again that an inode is, or is a view of. A link may have another target by
    /// now, or a broken one may have become valid.
    ///
    /// The kernel is not notified: it would discard attributes that it requested before the notice
    /// and receives after it, and use the permissions that it knew. Its cached content is dropped
    /// when the link is opened next.
    pub(super) fn resolve_link_again(&self, inode: &Inode) -> Result<()> {
        if inode.view_name.is_some() {
            let view = inode.view();
            return view.map_or(Ok(()), |view| self.resolve_link_again(&view.base));
        }
        let may_differ = {
            let file = locked(&inode.file);
            file.is_view() || matches!(file.attached, Attached::Unusable(_))
        };
        if !may_differ {
            return Ok(());
        }
        let path = inode.path();
        let fresh = self.decide(inode.below(), &path, false);
        let linking = locked(&self.linking);
        let fresh = match self.check_circle(inode, &fresh) {
            Ok(()) => fresh,
            Err(e) => {
                self.mount.release_base(&fresh);
                Attached::Unusable(Arc::new(e))
            }
        };
        let mut file = locked(&inode.file);
        if let (Some(old), Attached::View(new)) = (file.view(), &fresh)
            && Arc::ptr_eq(&old.base, &new.base)
            && old.network.text() == new.network.text()
            && old.reach == new.reach
        {
            drop(file);
            drop(linking);
            self.mount.release_base(&fresh);
            return Ok(());
        }
        let is_usable = !matches!(fresh, Attached::Unusable(_));
        let leads_somewhere = matches!(fresh, Attached::View(_));
        let old = file.replace(fresh);
        drop(file);
        drop(linking);
        let led_somewhere = matches!(old, Attached::View(_));
        self.mount.release_base(&old);
        if is_usable && (led_somewhere || leads_somewhere) {
            let change = self.link_changes.fetch_add(1, Ordering::AcqRel) + 1;
            inode.led_elsewhere.fetch_max(change, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Returns the number of the last change of target of the links behind an inode. Clients admitted
    /// by the previous permissions must look the name up again: until the permissions are reported
    /// to the kernel anew, or the kernel has tried to open the inode once
    /// ([`Self::who_has_it_must_ask_again`]). (A broken link has a mode of its own.)
    pub(super) fn led_elsewhere(inode: &Inode) -> u64 {
        let view = inode.view();
        let behind = view.map_or(0, |view| Self::led_elsewhere(&view.base));
        behind.max(inode.led_elsewhere.load(Ordering::Acquire))
    }

    /// Returns true, once, if the kernel uses outdated permissions.
    pub(super) fn who_has_it_must_ask_again(inode: &Inode) -> bool {
        let now = Self::led_elsewhere(inode);
        inode.told.swap(now, Ordering::AcqRel) != now
    }

    /// Checks that attaching this to `inode` creates no cycle: a view of itself would deadlock on
    /// the inode's lock. A caller that attaches a view to a file that is already known holds
    /// `linking` from here until it is attached, and takes the locks of files under it, never the
    /// other way round.
    ///
    /// # Errors
    /// [`Error::SymlinkLoop`].
    pub(super) fn check_circle(&self, inode: &Inode, attached: &Attached) -> Result<()> {
        let Attached::View(view) = attached else { return Ok(()) };
        let mut next = Some(Arc::clone(&view.base));
        while let Some(base) = next {
            if std::ptr::eq(&*base, inode) {
                return Err(Error::SymlinkLoop);
            }
            next = base.view().map(|view| Arc::clone(&view.base));
        }
        Ok(())
    }

    /// Invalidates the kernel's caches of a file's views, whose content is about to change.
    pub(super) fn changed(&self, inode: &Inode) {
        if inode.kind != FileKind::Regular {
            return;
        }
        let wait = locked(&inode.attr_lifetime).change(Instant::now());
        inode.version.fetch_add(1, Ordering::AcqRel);
        let views = self.mount.inodes().views_of(inode.ino);
        for view in views {
            self.announce(view.ino);
            self.changed(&view);
        }
        std::thread::sleep(wait);
    }

    /// Announces that the permissions of a file are about to change, but not its content. The
    /// kernel requests the permissions of derived files again, as soon as those reported before
    /// have expired.
    pub(super) fn permissions_change(inode: &Inode) {
        let wait = locked(&inode.attr_lifetime).change(Instant::now());
        std::thread::sleep(wait);
    }

    /// Returns true if a view is derived from the target of a link.
    pub(super) fn is_through_link(inode: &Inode) -> bool {
        let view = inode.view();
        view.is_some_and(|view| inode.view_name.is_none() || Self::is_through_link(&view.base))
    }

    /// Invalidates the names of a file's views, when the name of the file is removed.
    pub(super) fn views_lose_names(&self, inode: Option<&Arc<Inode>>, parent: &Inode) {
        let Some(inode) = inode else { return };
        let views = self.mount.inodes().views_of(inode.ino);
        for view in views {
            if let (Some(name), Some(sink)) = (&view.view_name, &*locked(&self.sink)) {
                sink.entry(parent.ino, name);
            }
            self.views_lose_names(Some(&view), parent);
        }
    }

    /// Invalidates the kernel's cache of a file.
    pub(super) fn announce(&self, ino: Ino) {
        if let Some(sink) = &*locked(&self.sink) {
            sink.inode(ino, true);
        }
    }
}
