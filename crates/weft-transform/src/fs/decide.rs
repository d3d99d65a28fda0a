//! Determination of the network of a file.
//!
//! On a mount for several users, a rules file of the tree is used only if all of them may read it,
//! as its effects and its errors reveal its content. It applies to a file that some users may not
//! read only if the owner of the rules file is the owner of that file or root, so that only stages
//! which the owner trusts run over the file for other users. A file for which the rules file may
//! not be used is unusable (`EACCES`) and never read as plain. An error of a rules file names the
//! line and quotes none of its text: the owner of a directory can rename any file in it to
//! `.weftattributes`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{Caller, Error, Handle, Ino, Result, XattrSet, keeping_access_times};

use super::explanation::Source;
use super::inode::Attached;
use super::link::{LINK, is_link};
use super::locks::locked;
use super::options::NETWORK_ATTRIBUTE;
use super::path::join;
use super::rules::{Loaded, RULES_MAX_BYTES, RULES_NAME, Rules, RulesFile, Trust, is_rules_file};
use super::transform_fs::TransformFs;
use crate::Network;
use crate::text::Text;

/// The rule that matches a path.
pub(super) struct Found {
    /// `None` for no network.
    pub(super) network: Option<Text>,
    pub(super) source: Source,
    /// The owner of the rules file, if it is in the tree.
    owner: Option<u32>,
}

impl TransformFs {
    /// Determines what is attached to the inode `below` at `path`. A `new` file that a rule matches
    /// gets the attribute.
    pub(super) fn decide(&self, below: Ino, path: &[u8], new: bool) -> Attached {
        if self.of_mount(path).is_some() {
            return self.decide_by_rules(below, path, new);
        }
        if is_rules_file(path) {
            return Attached::Plain;
        }
        match self.mount.below.getxattr(below, NETWORK_ATTRIBUTE) {
            Ok(text) if text == LINK => self.of_link(below, path),
            Ok(text) => self.of_attribute(&text),
            Err(Error::NoAttribute | Error::Unsupported(_)) => {
                self.decide_by_rules(below, path, new)
            }
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    /// Returns the network that the inode `below` has at `path`, if it is no link.
    pub(super) fn stored_network_at(&self, below: Ino, path: &[u8]) -> Attached {
        if self.of_mount(path).is_none() {
            match self.mount.below.getxattr(below, NETWORK_ATTRIBUTE) {
                Ok(text) if text != LINK => return self.of_attribute(&text),
                Err(Error::NoAttribute | Error::Unsupported(_)) => {}
                _ => return Attached::Unusable(Arc::new(Error::Invalid("a link"))),
            }
        }
        self.of_rules(path, Some(below)).0
    }

    fn decide_by_rules(&self, below: Ino, path: &[u8], new: bool) -> Attached {
        // A new file belongs to its creator, and has no content.
        let (attached, text) = self.of_rules(path, (!new).then_some(below));
        if text.as_ref().is_some_and(is_link) {
            // A new link is empty, and is written as a plain file.
            return if new { Attached::Plain } else { self.of_link(below, path) };
        }
        if let Some(text) = text.filter(|_| new && self.options.pin) {
            self.pin(below, &text);
        }
        attached
    }

    /// Returns the ruling of the rules of the mount about a file, `Some(None)` for no network;
    /// `None` if no rule matches, or if the tree takes precedence.
    pub(super) fn of_mount(&self, path: &[u8]) -> Option<Option<&Text>> {
        if self.options.trust == Trust::Tree {
            return None;
        }
        let ruling = self.options.rules.ruling(Path::new(OsStr::from_bytes(path)))?;
        Some(ruling.network)
    }

    /// Returns true if the rules of the mount give two names the same network, or none.
    pub(super) fn ruled_alike(&self, one: &[u8], other: &[u8]) -> bool {
        one == other || self.of_mount(one).flatten() == self.of_mount(other).flatten()
    }

    /// Checks that the rules of the mount have no rule for a file, or name the same network as
    /// `text`.
    pub(super) fn check_rules_of_mount(&self, path: &[u8], text: &str) -> Result<()> {
        let Some(ruled) = self.of_mount(path) else { return Ok(()) };
        // The canonical texts are compared.
        let ruled = match ruled {
            Some(ruled) if is_link(ruled) => String::from_utf8_lossy(LINK).into_owned(),
            Some(ruled) => self.registry.network(ruled).map_err(Error::from)?.to_string(),
            None => String::new(),
        };
        if ruled == text {
            return Ok(());
        }
        let ruled = if ruled.is_empty() { "none" } else { &ruled };
        let message = format!("the rules of the mount say what this file carries: {ruled}");
        Err(Error::Io { errno: Error::NotPermitted.errno(), message })
    }

    /// Returns true if a rules file in `directory` is used as such: it is not if the rules of the
    /// mount give it a network, as to any other file.
    fn has_rules_file(&self, directory: &[u8]) -> bool {
        !matches!(self.of_mount(&join(directory, RULES_NAME)), Some(Some(_)))
    }

    /// Attaches the view that a link describes.
    pub(super) fn of_link(&self, below: Ino, path: &[u8]) -> Attached {
        match self.link_view(below, path) {
            Ok(view) => Attached::View(view),
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    /// Attaches the network of an attribute.
    pub(super) fn of_attribute(&self, text: &[u8]) -> Attached {
        if text.is_empty() {
            return Attached::Plain;
        }
        let invalid = |_| Error::Invalid("the network of a file is UTF-8");
        let text = std::str::from_utf8(text).map_err(invalid);
        match text.and_then(|text| Ok(self.registry.parse(text)?)) {
            Ok(network) => Attached::Network(Arc::new(network)),
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    /// Attaches the network of the rules about a path, and returns it with the rule's text. `below`
    /// is the inode of an existing file, for which the owner of the rule is checked.
    pub(super) fn of_rules(&self, path: &[u8], below: Option<Ino>) -> (Attached, Option<Text>) {
        let found = self.find_rule(path, false).and_then(|found| {
            if let (Some(found), Some(below)) = (&found, below) {
                self.check_owner_of_rules(found, below)?;
            }
            Ok(found.and_then(|found| Some((found.network?, found.source))))
        });
        match found {
            Ok(None) => (Attached::Plain, None),
            Ok(Some((text, _))) if is_link(&text) => (Attached::Plain, Some(text)),
            Ok(Some((text, source))) => match self.network_of_rule(&text, &source) {
                Ok(network) => (Attached::Network(Arc::new(network)), Some(text)),
                Err(e) => (Attached::Unusable(Arc::new(e)), None),
            },
            Err(e) => (Attached::Unusable(e), None),
        }
    }

    /// Builds the network of a rule; for a rules file of the tree the error names only the line.
    pub(super) fn network_of_rule(&self, text: &Text, source: &Source) -> Result<Network> {
        self.registry.network(text).map_err(|e| match source {
            Source::RulesFile { directory, line } => {
                unusable_line(directory.as_bytes(), *line, Error::from(e).errno())
            }
            _ => e.into(),
        })
    }

    /// Checks that the owner of a rule may choose the network of the inode `below`.
    fn check_owner_of_rules(&self, found: &Found, below: Ino) -> Result<(), Arc<Error>> {
        let owner = found.owner.filter(|owner| *owner != 0 && !self.mount.is_of_one_user());
        let Some(owner) = owner.filter(|_| found.network.is_some()) else { return Ok(()) };
        let attr = self.mount.below.getattr(below)?;
        let has_list = || self.mount.access_list(below).is_some();
        if attr.uid == owner || self.mount.all_may_read(&attr, has_list) {
            return Ok(());
        }
        let message = "the rules file that is about it is another user's, and not all may read this \
                       file: give both one owner, attach the network to the file, or let root own \
                       the rules file";
        Err(Arc::new(Error::Io { errno: Error::Access.errno(), message: message.to_owned() }))
    }

    /// Returns the nearest rule that matches a path, or a view by name if `view`.
    pub(super) fn find_rule(&self, path: &[u8], view: bool) -> Result<Option<Found>, Arc<Error>> {
        let ruling = |rules: &Rules, path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            let ruling = if view { rules.view_ruling(path) } else { rules.ruling(path) };
            ruling.map(|ruling| match ruling.error {
                None => Ok((ruling.network.cloned(), ruling.line)),
                Some(_) => Err(ruling.line),
            })
        };
        let invalid = Error::Invalid("").errno();
        let of_mount = || -> Result<_, Arc<Error>> {
            let found = ruling(&self.options.rules, path).transpose();
            // Rules of the mount with an error are refused when mounting.
            let found = found.map_err(|line| unusable_line(b"", line, invalid))?;
            Ok(found.map(|(network, line)| {
                let source = Source::MountRules { line };
                Found { network, source, owner: None }
            }))
        };
        if self.options.trust == Trust::Mount
            && let Some(found) = of_mount()?
        {
            return Ok(Some(found));
        }
        let mut directory = path;
        while self.options.rules_files && !directory.is_empty() {
            let cut = directory.iter().rposition(|&b| b == b'/').unwrap_or(0);
            directory = &directory[..cut];
            let relative = path.get(cut..).unwrap_or_default();
            let relative = relative.strip_prefix(b"/").unwrap_or(relative);
            let Some(file) = self.rules_of(directory)? else { continue };
            let found = ruling(&file.rules, relative).transpose();
            let found = found.map_err(|line| unusable_line(directory, line, invalid))?;
            if let Some((network, line)) = found {
                let directory = String::from_utf8_lossy(directory).into_owned();
                let (source, owner) = (Source::RulesFile { directory, line }, Some(file.owner));
                return Ok(Some(Found { network, source, owner }));
            }
        }
        of_mount()
    }

    /// Returns the rules file in a directory, from the cache or loaded.
    pub(super) fn rules_of(&self, directory: &[u8]) -> Loaded {
        if let Some(loaded) = locked(&self.rules).get(directory) {
            return loaded.clone();
        }
        let loaded = self.load_rules(directory).map_err(Arc::new);
        if let Err(e) = &loaded {
            let directory = String::from_utf8_lossy(directory);
            tracing::error!("the rules in /{directory} cannot be used: {e}");
        }
        locked(&self.rules).insert(directory.to_vec(), loaded.clone());
        loaded
    }

    fn load_rules(&self, directory: &[u8]) -> Result<Option<Arc<RulesFile>>> {
        if !self.has_rules_file(directory) {
            return Ok(None);
        }
        let names = directory.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let mut at = self.mount.below.root();
        let mut attr = None;
        for name in names.chain([RULES_NAME]) {
            let found = self.mount.below.lookup(at, name);
            if at != self.mount.below.root() {
                self.mount.below.forget(at, 1);
            }
            match found {
                Ok(entry) => {
                    at = entry.attr.ino;
                    attr = Some(entry.attr);
                }
                Err(Error::NotFound | Error::NotADirectory) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let Some(attr) = attr else { return Ok(None) };
        let has_list = || self.mount.access_list(at).is_some();
        if !self.mount.all_may_read(&attr, has_list) {
            self.mount.below.forget(at, 1);
            let message = format!(
                "{} in /{} counts only if all users of this mount may read it (chmod a+r)",
                String::from_utf8_lossy(RULES_NAME),
                String::from_utf8_lossy(directory)
            );
            return Err(Error::Io { errno: Error::Access.errno(), message });
        }
        let mut content = vec![0; RULES_MAX_BYTES + 1];
        let read = || self.mount.below.read(at, Handle::NONE, 0, &mut content);
        let got = keeping_access_times(true, read);
        self.mount.below.forget(at, 1);
        content.truncate(got?);
        let rules = Rules::parse_lines(&content, |line| {
            tracing::error!("{}", unusable_line(directory, line, Error::Invalid("").errno()));
        });
        Ok(Some(Arc::new(RulesFile { rules: rules?, owner: attr.uid })))
    }

    /// Drops the cached rules files, which may have changed.
    pub(super) fn forget_rules(&self) {
        locked(&self.rules).clear();
    }

    /// Records the network of a file in its attribute, if the file system below supports
    /// attributes.
    pub(super) fn pin(&self, below: Ino, text: &Text) {
        let text = text.to_string();
        match self.mount.below.setxattr(
            &Caller::ROOT,
            below,
            NETWORK_ATTRIBUTE,
            text.as_bytes(),
            XattrSet::Any,
        ) {
            Ok(()) | Err(Error::Unsupported(_)) => {}
            Err(e) => tracing::warn!("the network of a new file is not written down: {e}"),
        }
    }
}

/// Returns the error about a line of a rules file in a directory of the tree.
fn unusable_line(directory: &[u8], line: usize, errno: i32) -> Error {
    let message = format!(
        "line {line} of {} in /{} cannot be used: {}",
        String::from_utf8_lossy(RULES_NAME),
        String::from_utf8_lossy(directory),
        "it needs a pattern, white space, and a network of known stages, parameters and keys"
    );
    Error::Io { errno, message }
}
