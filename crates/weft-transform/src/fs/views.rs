//! Files that show another file through a network: *views* by name and *links*. Both are read-only.
//!
//! A view by name is the name of a file, `@`, and the name of the view: `report.csv@json`. It is
//! hidden from listings, and a real file of that name takes precedence. The network of a view is
//! defined by a rule whose pattern has an `@` in its last part (`*.csv@json  view: json`); without
//! one the view's name consists of the names of stages, joined by `+` (`notes.txt@upper`,
//! `data@hex+upper`).
//!
//! A link is a regular file whose attribute (or rule) is `link`, and whose content names the base
//! and the network. It is text, and readable without weft too:
//!
//! ```text
//! weft link 1
//! base: ../data/report.csv
//! network: view: json
//! ```
//!
//! The base is resolved from the directory of the link, within the tree. Permissions are those of
//! the base, without writing, and for a link no more than the directories on the path to its base
//! allow ([`super::reach`]); a link is valid only if its owner is the base's owner or root.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_vfs::{Attr, Entry, Error, FileKind, FileSystem, Handle, Ino, Result};

use super::base::locked;
use super::decide::Found;
use super::file::Attached;
use super::ground::View;
use super::nodes::Node;
use super::reach::{Passed, Reach, may_search};
use super::{Source, TransformFs, join};
use crate::Network;
use crate::text::{Side, Text};

/// The separator between the name of a file and that of a view.
pub(super) const MARK: u8 = b'@';

/// The first line of a link.
pub const LINK_MAGIC: &str = "weft link 1";

/// Maximum length of a link, in bytes.
const LINK_MAX_BYTES: usize = 16 << 10;

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
    pub(super) fn view(&self, parent: &Node, name: &[u8]) -> Result<Entry> {
        let at = name.iter().rposition(|&b| b == MARK).ok_or(Error::NotFound)?;
        let (base, view) = (&name[..at], &name[at + 1..]);
        if base.is_empty() || view.is_empty() {
            return Err(Error::NotFound);
        }
        if let Some(tree) = self.tree(parent.ino, base, view) {
            return tree;
        }
        let path = join(&locked(&parent.path), name);
        let Some(network) = self.view_network(&path, view)? else { return Err(Error::NotFound) };
        let _deeper = Deeper::enter()?;
        let base = self.lookup(parent.ino, base)?;
        let node = match self.node(base.attr.ino) {
            Ok(node) if node.kind == FileKind::Regular => {
                self.leave_old_snapshot(node.ino, name);
                let ground = self.ground.clone();
                let (network, reach) = (Arc::new(network), Reach::ALL);
                let view = View { ground, base: node.clone(), network, reach };
                let (node, made) = locked(&self.ground.nodes).insert_view(&node, name, path, view);
                if !made {
                    // The existing view already has a use of the base.
                    self.give_back(base.attr.ino, 1);
                }
                node
            }
            _ => {
                self.give_back(base.attr.ino, 1);
                return Err(Error::NotFound);
            }
        };
        match self.attr(&node) {
            Ok(attr) => Ok(Entry { attr, generation: base.generation }),
            Err(e) => {
                self.give_back(node.ino, 1);
                Err(e)
            }
        }
    }

    /// Returns the network of a view by name.
    fn view_network(&self, path: &[u8], view: &[u8]) -> Result<Option<Network>> {
        let rule = self.find_rule(path, true).map_err(|e| super::file::again(&e))?;
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
        let got = self.ground.below.read(below, Handle::NONE, 0, &mut content)?;
        let (base, network) = parse_link(&content[..got])?;
        let network = self.registry.parse(network)?;
        let looks_as = self.looks_as(below)?;
        let _deeper = Deeper::enter()?;
        let directory = path.rsplitn(2, |&b| b == b'/').nth(1).unwrap_or_default();
        let (node, way) = self.walk(directory, base.as_bytes(), looks_as)?;
        let checked = self.attr(&node).and_then(|attr| {
            if looks_as.is_some_and(|owner| owner != attr.uid) {
                return Err(Error::Access);
            }
            if node.kind != FileKind::Regular {
                return Err(Error::Invalid("the base of a link is no regular file"));
            }
            Ok(attr)
        });
        let attr = match checked {
            Ok(attr) => attr,
            Err(e) => {
                self.give_back(node.ino, 1);
                return Err(e);
            }
        };
        let reach = Reach::through(&way, &attr);
        let ground = self.ground.clone();
        Ok(Arc::new(View { ground, base: node, network: Arc::new(network), reach }))
    }

    /// Returns the owner of the link `below`, whose permissions apply on the path to the base,
    /// because errors reveal what exists, and who must own the base. `None` if root owns the link,
    /// which may lead anywhere.
    fn looks_as(&self, below: Ino) -> Result<Option<u32>> {
        const OTHERS_WRITE: u16 = 0o022;
        let link = self.ground.below.getattr(below)?;
        if link.perm & OTHERS_WRITE != 0 && !self.ground.is_of_one_user() {
            let message = "users other than its owner may write this link (chmod go-w)".to_owned();
            return Err(Error::Io { errno: Error::Access.errno(), message });
        }
        Ok(Some(link.uid).filter(|owner| *owner != 0))
    }

    /// Resolves a path, from a directory given by its own path, and returns its node with one more
    /// use. `..` leads no higher than the root, symbolic links are not followed. Also returns the
    /// directories on the path that do not lead to `directory`; the user `looks_as` must be able to
    /// search each of them.
    fn walk(
        &self,
        directory: &[u8],
        path: &[u8],
        looks_as: Option<u32>,
    ) -> Result<(Arc<Node>, Vec<Passed>)> {
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
        let looks_as = looks_as.filter(|_| !self.ground.is_of_one_user());
        let mut way: Vec<Passed> = Vec::new();
        for (nr, name) in names.into_iter().enumerate() {
            let shut = looks_as.zip(way.last()).is_some_and(|(user, last)| !may_search(last, user));
            let found = if shut { Err(Error::Access) } else { self.lookup(at, name) };
            if held {
                self.give_back(at, 1);
            }
            let attr = found?.attr;
            at = attr.ino;
            held = true;
            if attr.kind == FileKind::Directory && nr >= shared {
                let below = self.node(at).map(|node| node.below());
                way.push((attr, below.ok().and_then(|below| self.ground.access_list(below))));
            }
        }
        if !held {
            return Err(Error::IsADirectory);
        }
        Ok((self.node(at)?, way))
    }

    /// Resolves the link again that a node is, or is a view of. A link may have another target by
    /// now, or a broken one may have become valid.
    ///
    /// The kernel is not notified: it would discard attributes that it requested before the notice
    /// and receives after it, and use the permissions that it knew. Its cached content is dropped
    /// when the link is opened next.
    pub(super) fn look_again(&self, node: &Node) -> Result<()> {
        if node.view.is_some() {
            let view = locked(&node.file).view().cloned();
            return view.map_or(Ok(()), |view| self.look_again(&view.base));
        }
        let may_differ = {
            let file = locked(&node.file);
            file.is_view() || matches!(file.attached, Attached::Unusable(_))
        };
        if !may_differ {
            return Ok(());
        }
        let path = locked(&node.path).clone();
        let fresh = self.decide(node.below(), &path, false);
        let linking = locked(&self.linking);
        let fresh = match self.check_circle(node, &fresh) {
            Ok(()) => fresh,
            Err(e) => {
                self.let_go(&fresh);
                Attached::Unusable(Arc::new(e))
            }
        };
        let mut file = locked(&node.file);
        if let (Some(old), Attached::View(new)) = (file.view(), &fresh)
            && Arc::ptr_eq(&old.base, &new.base)
            && old.network.text() == new.network.text()
            && old.reach == new.reach
        {
            drop(file);
            drop(linking);
            self.let_go(&fresh);
            return Ok(());
        }
        let is_usable = !matches!(fresh, Attached::Unusable(_));
        let leads_somewhere = matches!(fresh, Attached::View(_));
        let old = file.replace(fresh);
        drop(file);
        drop(linking);
        let led_somewhere = matches!(old, Attached::View(_));
        self.let_go(&old);
        if is_usable && (led_somewhere || leads_somewhere) {
            let change = self.link_changes.fetch_add(1, Ordering::AcqRel) + 1;
            node.led_elsewhere.fetch_max(change, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Returns the number of the last change of target of the links behind a node. Clients admitted
    /// by the previous permissions must look the name up again: until the permissions are reported
    /// to the kernel anew, or the kernel has tried to open the node once
    /// ([`Self::who_has_it_must_ask_again`]). (A broken link has a mode of its own.)
    pub(super) fn led_elsewhere(node: &Node) -> u64 {
        let view = locked(&node.file).view().cloned();
        let behind = view.map_or(0, |view| Self::led_elsewhere(&view.base));
        behind.max(node.led_elsewhere.load(Ordering::Acquire))
    }

    /// Returns true, once, if the kernel uses outdated permissions.
    pub(super) fn who_has_it_must_ask_again(node: &Node) -> bool {
        let now = Self::led_elsewhere(node);
        node.told.swap(now, Ordering::AcqRel) != now
    }

    /// Checks that attaching this to `node` creates no cycle: a view of itself would deadlock on
    /// the node's lock. A caller that attaches a view to a file that is already known holds
    /// `linking` from here until it is attached, and takes the locks of files under it, never the
    /// other way round.
    ///
    /// # Errors
    /// [`Error::SymlinkLoop`].
    pub(super) fn check_circle(&self, node: &Node, attached: &Attached) -> Result<()> {
        let mut next = match attached {
            Attached::View(view) => Some(Arc::clone(&view.base)),
            _ => None,
        };
        while let Some(base) = next {
            if std::ptr::eq(&*base, node) {
                return Err(Error::SymlinkLoop);
            }
            next = locked(&base.file).view().map(|view| Arc::clone(&view.base));
        }
        Ok(())
    }

    /// Releases the use that a view has of its base.
    pub(super) fn let_go(&self, attached: &Attached) {
        self.ground.let_go(attached);
    }

    /// Invalidates the kernel's caches of a file's views, whose content is about to change.
    pub(super) fn changed(&self, node: &Node) {
        if node.kind != FileKind::Regular {
            return;
        }
        let wait = locked(&node.vouched).change(Instant::now());
        locked(&node.file).version += 1;
        let views = locked(&self.ground.nodes).views_of(node.ino);
        for view in views {
            self.announce(view.ino);
            self.changed(&view);
        }
        std::thread::sleep(wait);
    }

    /// Announces that the permissions of a file are about to change, but not its content. The
    /// kernel requests the permissions of derived files again, as soon as those reported before
    /// have expired.
    pub(super) fn permissions_change(node: &Node) {
        let wait = locked(&node.vouched).change(Instant::now());
        std::thread::sleep(wait);
    }

    /// Returns true if a view is derived from the target of a link.
    pub(super) fn is_through_link(node: &Node) -> bool {
        let view = locked(&node.file).view().cloned();
        view.is_some_and(|view| node.view.is_none() || Self::is_through_link(&view.base))
    }

    /// Invalidates the names of a file's views, when the name of the file is removed.
    pub(super) fn views_lose_names(&self, node: Option<&Arc<Node>>, parent: &Node) {
        let Some(node) = node else { return };
        let views = locked(&self.ground.nodes).views_of(node.ino);
        for view in views {
            if let (Some(name), Some(sink)) = (&view.view, &*locked(&self.sink)) {
                sink.entry(parent.ino, name);
            }
            self.views_lose_names(Some(&view), parent);
        }
    }

    fn announce(&self, ino: Ino) {
        if let Some(sink) = &*locked(&self.sink) {
            sink.inode(ino, true);
        }
    }
}

/// Returns the attributes of a view, which is read-only and has one name.
pub(super) fn shown(mut attr: Attr) -> Attr {
    attr.perm &= !0o6222;
    attr.nlink = 1;
    attr
}

/// Parses the base and the network of a link.
fn parse_link(content: &[u8]) -> Result<(&str, &str)> {
    let wrong = Error::Invalid(
        "no link of weft: it says \"weft link 1\", \"base: PATH\" and \"network: TEXT\"",
    );
    let Ok(text) = std::str::from_utf8(content) else { return Err(wrong) };
    if text.len() >= LINK_MAX_BYTES {
        return Err(wrong);
    }
    let mut lines = text.lines();
    if lines.next() != Some(LINK_MAGIC) {
        return Err(wrong);
    }
    let (mut base, mut network) = (None, None);
    for line in lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let value = |name: &str| line.strip_prefix(name).map(str::trim);
        match (value("base:"), value("network:")) {
            (Some(value), _) if base.is_none() => base = Some(value),
            (_, Some(value)) if network.is_none() => network = Some(value),
            _ => return Err(wrong),
        }
    }
    base.zip(network).ok_or(wrong)
}

/// Returns the content of a link.
#[must_use]
pub fn link_content(base: &str, network: &Network) -> String {
    format!("{LINK_MAGIC}\nbase: {base}\nnetwork: {network}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_nonsense_is_not() {
        let text = "weft link 1\n# why\nbase: ../a b.csv\n\nnetwork: view: json | upper\n";
        assert_eq!(
            parse_link(text.as_bytes()).expect("a link"),
            ("../a b.csv", "view: json | upper")
        );
        for bad in [
            "",
            "weft link 2\nbase: a\nnetwork: b",
            "weft link 1\nbase: a",
            "weft link 1\nbase: a\nbase: b\nnetwork: c",
            "weft link 1\nbase: a\nnetwork: b\nmore",
        ] {
            assert!(parse_link(bad.as_bytes()).is_err(), "{bad}");
        }
        let long = format!("weft link 1\nbase: {}\nnetwork: b", "a".repeat(LINK_MAX_BYTES));
        assert!(parse_link(long.as_bytes()).is_err());
    }
}
