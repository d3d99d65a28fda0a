//! Creation, removal and renaming of names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{DirCursor, Entry, Error, FileKind, FileSystem, Ino, RenameFlags, Result};

use super::base::locked;
use super::decide::is_rules_file;
use super::file::{Attached, again};
use super::nodes::Node;
use super::rules::Trust;
use super::{NETWORK_ATTRIBUTE, RULES_NAME, TransformFs, join};
use crate::Write;
use crate::text::Text;

/// Maximum number of names that are checked before a directory moves; a directory with more is
/// copied by the client.
const LOOKED_AT_MAX: usize = 100_000;

impl TransformFs {
    /// Returns the node of a name that is about to be moved or removed, with one more use; `None`
    /// if it is not referenced.
    fn known(&self, parent: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let entry = self.ground.below.lookup(parent.below(), name).ok()?;
        let node = locked(&self.ground.nodes).acquire(entry.attr.ino);
        self.ground.below.forget(entry.attr.ino, 1);
        node
    }

    /// Releases the uses of [`known`](Self::known): not under the lock of names, because a commit
    /// may follow.
    fn done_with(&self, nodes: impl IntoIterator<Item = Option<Arc<Node>>>) {
        for node in nodes.into_iter().flatten() {
            let ino = node.ino;
            drop(node);
            self.give_back(ino, 1);
        }
    }

    /// Marks a node as unlinked if its inode has lost its last name.
    fn lost_name(&self, node: Option<&Arc<Node>>) {
        if let Some(node) = node
            && self.ground.below.getattr(node.below()).is_ok_and(|attr| attr.nlink == 0)
        {
            locked(&node.place).unlinked = true;
        }
    }

    /// Updates the location and path of a node that was moved.
    fn moved(&self, node: Option<&Arc<Node>>, parent: &Node, name: &[u8]) {
        let Some(node) = node else { return };
        let path = join(&locked(&parent.path), name);
        let old = std::mem::replace(&mut *locked(&node.path), path.clone());
        {
            let mut place = locked(&node.place);
            place.parent = parent.below();
            name.clone_into(&mut place.name);
        }
        if node.kind == FileKind::Directory {
            let inside = [&old[..], b"/"].concat();
            for other in locked(&self.ground.nodes).all() {
                let mut at = locked(&other.path);
                if let Some(rest) = at.strip_prefix(&inside[..]) {
                    *at = join(&path, rest);
                }
            }
            self.forget_rules();
        }
    }

    /// Rewrites a file that its new name brings under a rule through the network of that rule,
    /// before it moves: a file without network under any rule, and any file under a rule of the
    /// mount that names another network than the file's. A directory moves if the rules of the
    /// mount give all files in it the same networks as before; otherwise the client gets
    /// [`Error::CrossDevice`], and copies.
    fn convert_for(&self, parent: &Node, name: &[u8], to: &Node, new_name: &[u8]) -> Result<()> {
        if name == new_name && parent.ino == to.ino {
            return Ok(());
        }
        let path = join(&locked(&to.path), new_name);
        let ruled = self.of_mount(&path).is_some();
        let entry = match self.lookup(parent.ino, name) {
            Ok(entry) => entry,
            // The rename itself reports the error.
            Err(_) => return Ok(()),
        };
        let result = self.node(entry.attr.ino).and_then(|node| match node.kind {
            FileKind::Directory => {
                let old = join(&locked(&parent.path), name);
                self.check_same_below(&node, &old, &path)
            }
            FileKind::Regular if ruled => {
                let (attached, text) = self.of_rules(&path, Some(node.below()));
                self.convert_as_ruled(&node, attached, text.as_ref())
            }
            FileKind::Regular if !is_rules_file(&path) => {
                let (attached, text) = self.of_rules(&path, Some(node.below()));
                self.keep_network(&node)?;
                self.convert_plain(&node, attached, text.as_ref())
            }
            _ => Ok(()),
        });
        self.forget(entry.attr.ino, 1);
        result
    }

    /// Records the network that the rules of the mount give a file, so that it keeps the network
    /// where they do not match.
    fn keep_network(&self, node: &Node) -> Result<()> {
        let network = match &locked(&node.file).attached {
            Attached::Network(network) => network.clone(),
            _ => return Ok(()),
        };
        let ruled = self.of_mount(&locked(&node.path).clone()).is_some();
        if ruled && self.options.pin && locked(&node.runtime_stages).is_empty() {
            self.pin(node.below(), network.text());
        }
        Ok(())
    }

    fn convert_plain(&self, node: &Node, attached: Attached, text: Option<&Text>) -> Result<()> {
        let has_attribute = self.ground.below.getxattr(node.below(), NETWORK_ATTRIBUTE).is_ok();
        if matches!(attached, Attached::Plain) || has_attribute {
            return Ok(());
        }
        if !locked(&node.runtime_stages).is_empty() {
            // The client then copies, and the copy comes under the rule.
            return Err(Error::CrossDevice);
        }
        if !Self::is_plain(node) {
            return Ok(());
        }
        self.convert_to(node, attached, text)
    }

    fn convert_as_ruled(&self, node: &Node, ruled: Attached, text: Option<&Text>) -> Result<()> {
        let same = match (&locked(&node.file).attached, &ruled) {
            (Attached::Plain, Attached::Plain) => true,
            (Attached::Network(one), Attached::Network(other)) => {
                one.to_string() == other.to_string()
            }
            // The client copies the content that a link shows.
            (Attached::View(_) | Attached::Unusable(_), _) => return Err(Error::CrossDevice),
            _ => false,
        };
        if let Attached::Unusable(why) = &ruled {
            return Err(again(why));
        }
        if !locked(&node.runtime_stages).is_empty() {
            return Err(Error::CrossDevice);
        }
        if !same {
            self.convert_to(node, ruled, text)?;
        }
        if text.is_none() {
            match self.ground.below.removexattr(node.below(), NETWORK_ATTRIBUTE) {
                Ok(()) | Err(Error::NoAttribute | Error::Unsupported(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn convert_to(&self, node: &Node, attached: Attached, text: Option<&Text>) -> Result<()> {
        self.wait_not_past(node.ino);
        self.with(node, |file, around| {
            self.check_not_past(node.ino).map_err(|_| Error::CrossDevice)?;
            file.convert(around, attached)
        })?;
        if let Some(text) = text.filter(|_| self.options.pin) {
            self.pin(node.below(), text);
        }
        Ok(())
    }

    /// Checks that the rules of the mount give all files in a directory the same networks under
    /// both paths.
    fn check_same_below(&self, directory: &Node, old: &[u8], new: &[u8]) -> Result<()> {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let rules = &self.options.rules;
        if self.options.trust == Trust::Tree || rules.say_the_same_below(path(old), path(new)) {
            return Ok(());
        }
        let differs = |name: &[u8]| {
            let said = |directory| {
                let ruling = rules.ruling(Path::new(OsStr::from_bytes(&join(directory, name))));
                ruling.map(|ruling| ruling.network.map(ToString::to_string))
            };
            said(old) != said(new)
        };
        let mut left = LOOKED_AT_MAX;
        // The directories to visit: the inode below, and the path relative to the directory that
        // moves.
        let mut todo = vec![(directory.below(), Vec::new())];
        let mut result = Ok(());
        while let Some((at, within)) = todo.pop() {
            let mut names = Vec::new();
            let listed = self.ground.below.readdir(at, DirCursor::START, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.kind, join(&within, entry.name), entry.name.to_vec()));
                }
                names.len() <= left
            });
            for (kind, inner, name) in names {
                left = left.saturating_sub(1);
                if left == 0 || kind == FileKind::Regular && differs(&inner) {
                    result = Err(Error::CrossDevice);
                }
                if result.is_ok()
                    && kind == FileKind::Directory
                    && let Ok(entry) = self.ground.below.lookup(at, &name)
                {
                    todo.push((entry.attr.ino, inner));
                }
            }
            if at != directory.below() {
                self.ground.below.forget(at, 1);
            }
            result = result.and(listed);
            if result.is_err() {
                break;
            }
        }
        for (at, _) in todo.into_iter().filter(|(at, _)| *at != directory.below()) {
            self.ground.below.forget(at, 1);
        }
        result
    }

    /// Drops the cached rules if the changed name is that of a rules file.
    pub(super) fn named(&self, name: &[u8]) {
        if name == RULES_NAME {
            self.forget_rules();
        }
    }

    pub(super) fn add_name(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let (node, parent) = (self.node(ino)?, self.node(new_parent)?);
        Self::check_visible(new_name)?;
        if node.view.is_some() {
            return Err(Error::ReadOnly);
        }
        let new_path = join(&locked(&parent.path), new_name);
        if !self.ruled_alike(&locked(&node.path).clone(), &new_path) {
            return Err(Error::CrossDevice);
        }
        if !Self::is_plain(&node) {
            let rewrites = match &locked(&node.file).attached {
                Attached::Network(network) => network.can().write == Write::Rewrite,
                _ => false,
            };
            // The file changes its inode at every commit; other names would keep the old one.
            if rewrites {
                return Err(Error::TooManyLinks);
            }
        }
        let entry = {
            let _names = locked(&self.ground.names);
            self.ground.below.link(node.below(), parent.below(), new_name)?
        };
        self.named(new_name);
        self.ground.below.forget(entry.attr.ino, 1);
        locked(&self.ground.nodes).add_use(&node);
        Ok(Entry { attr: self.attr(&node)?, ..entry })
    }

    pub(super) fn remove_name(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        Self::check_visible(name).map_err(|_| Error::NotFound)?;
        let names = locked(&self.ground.names);
        let node = self.known(&parent, name);
        let result = self.ground.below.unlink(parent.below(), name);
        self.lost_name(node.as_ref());
        drop(names);
        self.views_lose_names(node.as_ref(), &parent);
        self.named(name);
        self.done_with([node]);
        result
    }

    pub(super) fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        let node = self.known(&parent, name);
        let mut result = self.ground.below.rmdir(parent.below(), name);
        if matches!(result, Err(Error::NotEmpty)) && name != b".." {
            // The directory may contain only temporary files of interrupted commits, which listing
            // removes.
            if let Ok(entry) = self.lookup(parent.ino, name) {
                let mut names = 0;
                self.list(entry.attr.ino, DirCursor::START, &mut |_| {
                    names += 1;
                    true
                })?;
                self.forget(entry.attr.ino, 1);
                if names <= 2 {
                    result = self.ground.below.rmdir(parent.below(), name);
                }
            }
        }
        self.forget_rules();
        self.lost_name(node.as_ref());
        self.done_with([node]);
        result
    }

    pub(super) fn change_name(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (parent, new_parent) = (self.node(parent)?, self.node(new_parent)?);
        Self::check_visible(name).map_err(|_| Error::NotFound)?;
        Self::check_visible(new_name)?;
        self.convert_for(&parent, name, &new_parent, new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange {
            self.convert_for(&new_parent, new_name, &parent, name)?;
        }
        let names = locked(&self.ground.names);
        let moving = self.known(&parent, name);
        let there = self.known(&new_parent, new_name);
        let result =
            self.ground.below.rename(parent.below(), name, new_parent.below(), new_name, flags);
        let same = moving.as_ref().zip(there.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        if result.is_ok() && !same {
            self.moved(moving.as_ref(), &new_parent, new_name);
            if exchange {
                self.moved(there.as_ref(), &parent, name);
            } else {
                self.lost_name(there.as_ref());
            }
        }
        drop(names);
        self.views_lose_names(moving.as_ref(), &parent);
        self.views_lose_names(there.as_ref(), &new_parent);
        self.done_with([moving, there]);
        for name in [name, new_name] {
            self.named(name);
        }
        result
    }
}
