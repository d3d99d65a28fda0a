//! Moves between rules: what becomes of a file when it is renamed.
//!
//! A name and the network of the file that it leads to agree at every moment, also after a power
//! cut, although the rules may give the file one network under its old name and another under the
//! new one. A file whose network changes is written anew under the new name, durably, before the old
//! name is removed: after a power cut both names may be there. A file that keeps its network gets
//! the attribute that says so before it moves.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{
    Caller, DirCursor, Entry, Error, FileKind, FileSystem, Ino, RenameFlags, Result, XattrSet,
};

use super::decide::Found;
use super::explanation::Source;
use super::inode::{Attached, Inode, again};
use super::link::is_link;
use super::locks::locked;
use super::options::NETWORK_ATTRIBUTE;
use super::path::join;
use super::rules::{Trust, is_rules_file};
use super::stored_file::{NewAttribute, NewName, Replacement};
use super::transform_fs::TransformFs;

/// Maximum number of names that are checked before a directory moves; a directory with more is
/// copied by the client.
const LOOKED_AT_MAX: usize = 100_000;

/// What a rename does to the file that it moves.
pub(super) enum Move {
    /// It changes the name.
    Name,
    /// It changes the name; then the attribute of this inode below is removed, which a rule about
    /// the new name overrides.
    DropAttribute(Ino),
    /// The file is written anew, through another network.
    Convert(Conversion),
}

/// A file that is written anew when it moves.
pub(super) struct Conversion {
    inode: Arc<Inode>,
    attached: Attached,
    attribute: NewAttribute,
}

/// A name in a directory.
type Place<'a> = (&'a Inode, &'a [u8]);

impl Move {
    /// Does what is left to do after the rename.
    pub(super) fn finish(&self, below: &dyn FileSystem) -> Result<()> {
        let Self::DropAttribute(ino) = self else { return Ok(()) };
        match below.removexattr(&Caller::ROOT, *ino, NETWORK_ATTRIBUTE) {
            Ok(()) | Err(Error::NoAttribute | Error::Unsupported(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl TransformFs {
    /// Determines what a rename of the file `entry` does, and makes the attribute durable by which
    /// it keeps its network. A file without network that comes under any rule is written anew, and
    /// any file that comes under a rule of the mount that names another network than the file's. A
    /// directory moves if the files in it can keep their networks.
    ///
    /// # Errors
    /// [`Error::CrossDevice`], on which the client copies: of a directory in which files would get
    /// another network, and of a file that has another name or pushed stages.
    pub(super) fn plan_move(&self, entry: &Entry, from: Place<'_>, to: Place<'_>) -> Result<Move> {
        let inode = self.inode(entry.attr.ino)?;
        let (old, new) = (from.0.path_of(from.1), to.0.path_of(to.1));
        if old == new {
            return Ok(Move::Name);
        }
        match inode.kind {
            FileKind::Directory => self.check_same_below(&inode, &old, &new).map(|()| Move::Name),
            FileKind::Regular if inode.view_name.is_some() => Ok(Move::Name),
            // One file has one network, whatever its names.
            FileKind::Regular if entry.attr.nlink > 1 && !self.ruled_alike(&old, &new) => {
                Err(Error::CrossDevice)
            }
            FileKind::Regular if self.of_mount(&new).is_some() => self.plan_ruled(inode, &new),
            FileKind::Regular if is_rules_file(&new) => Ok(Move::Name),
            FileKind::Regular => self.plan_unruled(inode, &old, &new, entry.attr.nlink),
            _ => Ok(Move::Name),
        }
    }

    /// Plans the move of a file to a name about which the mount has a rule.
    fn plan_ruled(&self, inode: Arc<Inode>, new: &[u8]) -> Result<Move> {
        let (ruled, text) = self.of_rules(new, Some(inode.below()));
        let same = match (&locked(&inode.file).attached, &ruled) {
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
        if !locked(&inode.runtime_stages).stack.is_empty() {
            return Err(Error::CrossDevice);
        }
        Ok(match text {
            text if !same => self.to_convert(inode, ruled, text.map(|text| text.to_string())),
            None => Move::DropAttribute(inode.below()),
            Some(_) => Move::Name,
        })
    }

    /// Plans the move of a file to a name about which the mount has no rule: a file that has a
    /// network, or the attribute that says that it has none, stays as it is.
    fn plan_unruled(&self, inode: Arc<Inode>, old: &[u8], new: &[u8], nlink: u32) -> Result<Move> {
        let was_ruled = self.of_mount(old).is_some();
        let attribute = self.mount.below.getxattr(inode.below(), NETWORK_ATTRIBUTE).ok();
        if attribute.is_some() && !was_ruled {
            return Ok(Move::Name);
        }
        let (own, is_pushed) = {
            let stages = locked(&inode.runtime_stages);
            let own = stages.below.clone();
            let own = own.unwrap_or_else(|| locked(&inode.file).attached.clone());
            (own, !stages.stack.is_empty())
        };
        let (next, text) = match attribute {
            Some(_) => (Attached::Plain, None),
            None => self.of_rules(new, Some(inode.below())),
        };
        match (&own, &next) {
            (Attached::Network(own), Attached::Network(next))
                if attribute.is_none() && own.to_string() == next.to_string() =>
            {
                Ok(Move::Name)
            }
            (Attached::Network(own), _) => {
                self.keep_network(&inode, &own.to_string()).map(|()| Move::Name)
            }
            // A rule has overridden the attribute.
            (Attached::Plain, _) if attribute.as_ref().is_some_and(|text| !text.is_empty()) => {
                self.keep_network(&inode, "").map(|()| Move::Name)
            }
            (Attached::Plain, Attached::Plain) => Ok(Move::Name),
            (Attached::Plain, Attached::Unusable(why)) => Err(again(why)),
            (Attached::Plain, _) if is_pushed || nlink > 1 => Err(Error::CrossDevice),
            (Attached::Plain, _) => {
                let next = next.clone();
                Ok(self.to_convert(inode, next, text.map(|text| text.to_string())))
            }
            _ => Ok(Move::Name),
        }
    }

    fn to_convert(&self, inode: Arc<Inode>, attached: Attached, text: Option<String>) -> Move {
        let attribute = match text.filter(|_| self.options.pin) {
            Some(text) => NewAttribute::Text { text, required: false },
            None => NewAttribute::Removed,
        };
        Move::Convert(Conversion { inode, attached, attribute })
    }

    /// Records the network of a file durably, so that it keeps the network under a name that the
    /// rule of its old name does not match.
    fn keep_network(&self, inode: &Inode, text: &str) -> Result<()> {
        let (below, ino) = (&self.mount.below, inode.below());
        if !self.options.pin {
            return Err(Error::CrossDevice);
        }
        let text = text.as_bytes();
        match below.setxattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE, text, XattrSet::Any) {
            Ok(()) => below.fsync(&Caller::ROOT, ino, false),
            Err(Error::Unsupported(_)) => Err(Error::CrossDevice),
            Err(e) => Err(e),
        }
    }

    /// Moves a file that is written anew through another network.
    pub(super) fn move_converted(
        &self,
        caller: &Caller,
        conversion: Conversion,
        from: Place<'_>,
        (parent, name): Place<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let Conversion { inode, attached, attribute } = conversion;
        if flags != RenameFlags::empty() && flags != RenameFlags::NO_REPLACE {
            return Err(Error::CrossDevice);
        }
        if flags.contains(RenameFlags::NO_REPLACE)
            && let Ok(there) = self.mount.below.lookup(parent.below(), name)
        {
            self.mount.below.forget(there.attr.ino, 1);
            return Err(Error::Exists);
        }
        self.wait_no_passthrough(inode.ino);
        let to = NewName { caller, parent, name, flags, there: Cell::default() };
        let how = Replacement { attribute, to: Some(&to) };
        let mut file = self.mount.file(&inode);
        self.check_no_passthrough(inode.ino).map_err(|_| Error::CrossDevice)?;
        let result = file.convert(attached, &how).map_err(|e| match e {
            // Another name was made meanwhile.
            Error::TooManyLinks => Error::CrossDevice,
            e => e,
        });
        drop(file);
        let there = to.there.take();
        self.views_lose_names(Some(&inode), from.0);
        self.views_lose_names(there.as_ref(), parent);
        self.mount.done_with([there]);
        result
    }

    /// Returns true if there are rules files in the directories above a path.
    fn has_rules_above(&self, path: &[u8]) -> bool {
        let mut directory = path;
        while self.options.rules_files && !directory.is_empty() {
            let cut = directory.iter().rposition(|&b| b == b'/').unwrap_or(0);
            directory = &directory[..cut];
            if !matches!(self.rules_of(directory), Ok(None)) {
                return true;
            }
        }
        false
    }

    /// Checks that the rules give all files in a directory the same networks under both paths.
    fn check_same_below(&self, directory: &Inode, old: &[u8], new: &[u8]) -> Result<()> {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let rules = &self.options.rules;
        let of_mount =
            self.options.trust == Trust::Mount && !rules.say_the_same_below(path(old), path(new));
        let of_files = self.has_rules_above(old) || self.has_rules_above(new);
        if !of_mount && !of_files {
            return Ok(());
        }
        let mut left = LOOKED_AT_MAX;
        // The directories to visit: the inode below, and the path relative to the directory that
        // moves.
        let mut todo = vec![(directory.below(), Vec::new())];
        let (mut result, mut keeps) = (Ok(()), false);
        while let Some((at, within)) = todo.pop() {
            let mut names = Vec::new();
            let listed = self.mount.below.readdir(at, DirCursor::START, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.kind, join(&within, entry.name), entry.name.to_vec()));
                }
                names.len() <= left
            });
            for (kind, inner, name) in names {
                left = left.saturating_sub(1);
                let (old_path, new_path) = (join(old, &inner), join(new, &inner));
                let paths = (&old_path[..], &new_path[..]);
                let is_file = kind == FileKind::Regular && result.is_ok();
                let mut differs = false;
                if is_file && of_mount && !self.ruled_alike(paths.0, paths.1) {
                    match self.keep_moving((at, &name), paths) {
                        Ok(kept) => (differs, keeps) = (!kept, keeps || kept),
                        Err(e) => result = Err(e),
                    }
                } else if is_file && of_files {
                    differs = self.differs_by_rules_files((at, &name), old, paths);
                }
                if left == 0 || differs {
                    result = result.and(Err(Error::CrossDevice));
                }
                if result.is_ok()
                    && kind == FileKind::Directory
                    && let Ok(entry) = self.mount.below.lookup(at, &name)
                {
                    todo.push((entry.attr.ino, inner));
                }
            }
            if at != directory.below() {
                self.mount.below.forget(at, 1);
            }
            result = result.and(listed);
            if result.is_err() {
                break;
            }
        }
        for (at, _) in todo.into_iter().filter(|(at, _)| *at != directory.below()) {
            self.mount.below.forget(at, 1);
        }
        if keeps && result.is_ok() {
            // The attributes are durable before the directory has its new name.
            return self.mount.below.sync();
        }
        result
    }

    /// Lets a file in a directory that moves out of a rule of the mount keep its network, by its
    /// attribute. Returns false if it cannot.
    fn keep_moving(&self, (at, name): (Ino, &[u8]), (old, new): (&[u8], &[u8])) -> Result<bool> {
        if self.of_mount(new).is_some() || !self.options.pin {
            return Ok(false);
        }
        let network = match self.of_mount(old) {
            Some(Some(text)) if is_link(text) => return Ok(false),
            Some(Some(text)) => self.registry.network(text).map_err(Error::from)?.to_string(),
            Some(None) => String::new(),
            None => return Ok(false),
        };
        let below = &self.mount.below;
        let entry = below.lookup(at, name)?;
        let ino = entry.attr.ino;
        let pinned = below.getxattr(ino, NETWORK_ATTRIBUTE).ok();
        // A plain file needs no attribute, but in place of another, or of a rules file.
        let is_kept = pinned.as_deref() == Some(network.as_bytes());
        let set = match entry.attr.nlink {
            _ if is_kept => Ok(true),
            1 => {
                let (text, how) = (network.as_bytes(), XattrSet::Any);
                below.setxattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE, text, how).map(|()| true)
            }
            _ => Ok(false),
        };
        let several = entry.attr.nlink > 1;
        below.forget(ino, 1);
        match set {
            Ok(kept) => Ok(kept && !several),
            Err(Error::Unsupported(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns true if a file without an attribute, in the directory `moving`, would get another
    /// network from the rules files above that directory.
    fn differs_by_rules_files(
        &self,
        (at, name): (Ino, &[u8]),
        moving: &[u8],
        (old, new): (&[u8], &[u8]),
    ) -> bool {
        if is_rules_file(old) || self.of_mount(old).is_some() {
            return false;
        }
        let below = &self.mount.below;
        let Ok(entry) = below.lookup(at, name) else { return false };
        let has_attribute = below.getxattr(entry.attr.ino, NETWORK_ATTRIBUTE).is_ok();
        below.forget(entry.attr.ino, 1);
        if has_attribute {
            return false;
        }
        let (was, is) = (self.find_rule(old, false), self.find_rule(new, false));
        // A rules file that moves along says the same under both paths, and is not there yet under
        // the new one.
        if let Ok(Some(Found { source: Source::RulesFile { directory, .. }, .. })) = &was
            && let Some(rest) = directory.as_bytes().strip_prefix(moving)
            && (rest.is_empty() || rest.starts_with(b"/"))
        {
            return false;
        }
        let said = |found: Result<Option<Found>, Arc<Error>>| {
            Some(found.ok()?.and_then(|found| found.network).map(|text| text.to_string()))
        };
        said(was) != said(is)
    }
}
