//! Which network a file carries.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{Error, Handle, Ino, Result, XattrSet};

use super::base::locked;
use super::file::Attached;
use super::rules::{RULES_MAX_BYTES, RULES_NAME, Rules, Trust};
use super::{LINK, NETWORK_ATTRIBUTE, Source, TransformFs, join};
use crate::text::{Element, Text};

/// The rules files of directories by path, as far as they were looked for.
#[derive(Default)]
pub(super) struct RulesCache {
    directories: HashMap<Vec<u8>, Loaded>,
}

/// `None` if there is none; an error if it cannot be used.
type Loaded = Result<Option<Arc<Rules>>, Arc<Error>>;

impl TransformFs {
    /// What the inode `below` at `path` carries. A `new` file that a rule is about gets the
    /// attribute.
    pub(super) fn decide(&self, below: Ino, path: &[u8], new: bool) -> Attached {
        if self.of_mount(path).is_some() {
            return self.decide_by_rules(below, path, new);
        }
        if is_rules_file(path) {
            return Attached::Plain;
        }
        match self.ground.below.getxattr(below, NETWORK_ATTRIBUTE) {
            Ok(text) if text == LINK => self.of_link(below, path),
            Ok(text) => self.of_attribute(&text),
            Err(Error::NoAttribute | Error::Unsupported(_)) => {
                self.decide_by_rules(below, path, new)
            }
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    fn decide_by_rules(&self, below: Ino, path: &[u8], new: bool) -> Attached {
        let (attached, text) = self.of_rules(path);
        if text.as_ref().is_some_and(is_link) {
            // A new one is empty, and is written as it is.
            return if new { Attached::Plain } else { self.of_link(below, path) };
        }
        if let Some(text) = text.filter(|_| new && self.options.pin) {
            self.pin(below, &text);
        }
        attached
    }

    /// What the rules of the mount say of a file, `None` for no network, where they go before all that
    /// lies in the tree.
    pub(super) fn of_mount(&self, path: &[u8]) -> Option<Option<&Text>> {
        if self.options.trust == Trust::Tree {
            return None;
        }
        let ruling = self.options.rules.ruling(Path::new(OsStr::from_bytes(path)))?;
        Some(ruling.network)
    }

    /// Whether the rules of the mount leave it to others what a file carries, or say the same.
    pub(super) fn check_rules_of_mount(&self, path: &[u8], text: &str) -> Result<()> {
        let Some(ruled) = self.of_mount(path) else { return Ok(()) };
        // Compared as they are kept.
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

    /// Whether the rules file in a directory is one: not if the rules of the mount have a network for
    /// it, as for any other file.
    fn has_rules_file(&self, directory: &[u8]) -> bool {
        !matches!(self.of_mount(&join(directory, RULES_NAME)), Some(Some(_)))
    }

    /// What a link says.
    pub(super) fn of_link(&self, below: Ino, path: &[u8]) -> Attached {
        match self.link_view(below, path) {
            Ok(view) => Attached::View(view),
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    /// What an attribute says.
    pub(super) fn of_attribute(&self, text: &[u8]) -> Attached {
        if text.is_empty() {
            return Attached::Plain;
        }
        let made = match std::str::from_utf8(text) {
            Ok(text) => self.registry.parse(text).map_err(Error::from),
            Err(_) => Err(Error::Invalid("the network of a file is UTF-8")),
        };
        match made {
            Ok(network) => Attached::Network(Arc::new(network)),
            Err(e) => Attached::Unusable(Arc::new(e)),
        }
    }

    /// What the rules say of a path, and the text.
    pub(super) fn of_rules(&self, path: &[u8]) -> (Attached, Option<Text>) {
        match self.rule(path, false) {
            Ok(None) => (Attached::Plain, None),
            Ok(Some(text)) if is_link(&text) => (Attached::Plain, Some(text)),
            Ok(Some(text)) => match self.registry.network(&text) {
                Ok(network) => (Attached::Network(Arc::new(network)), Some(text)),
                Err(e) => (Attached::Unusable(Arc::new(e.into())), None),
            },
            Err(e) => (Attached::Unusable(e), None),
        }
    }

    /// The network that the nearest rule gives to a path, if any; that of a view by name if `view`.
    pub(super) fn rule(&self, path: &[u8], view: bool) -> Result<Option<Text>, Arc<Error>> {
        Ok(self.rule_and_source(path, view)?.and_then(|(text, _)| text))
    }

    /// The nearest rule about a path: its network (`None` for none), and where it stands.
    pub(super) fn rule_and_source(
        &self,
        path: &[u8],
        view: bool,
    ) -> Result<Option<(Option<Text>, Source)>, Arc<Error>> {
        let ruling = |rules: &Rules, path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            let ruling = if view { rules.view_ruling(path) } else { rules.ruling(path) };
            ruling.map(|ruling| match ruling.error {
                None => Ok((ruling.network.cloned(), ruling.line)),
                Some(error) => Err(Arc::new(Error::Io {
                    errno: Error::Invalid("").errno(),
                    message: format!("{}: {error}", String::from_utf8_lossy(RULES_NAME)),
                })),
            })
        };
        let of_mount = || -> Result<_, Arc<Error>> {
            let found = ruling(&self.options.rules, path).transpose()?;
            Ok(found.map(|(network, line)| (network, Source::MountRules { line })))
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
            if let Some(rules) = self.rules_of(directory)?
                && let Some((network, line)) = ruling(&rules, relative).transpose()?
            {
                let directory = String::from_utf8_lossy(directory).into_owned();
                return Ok(Some((network, Source::RulesFile { directory, line })));
            }
        }
        of_mount()
    }

    /// The rules file in a directory.
    fn rules_of(&self, directory: &[u8]) -> Loaded {
        if let Some(loaded) = locked(&self.rules).directories.get(directory) {
            return loaded.clone();
        }
        let loaded = self.load_rules(directory).map_err(Arc::new);
        if let Err(e) = &loaded {
            let directory = String::from_utf8_lossy(directory);
            tracing::error!("the rules in /{directory} cannot be used: {e}");
        }
        locked(&self.rules).directories.insert(directory.to_vec(), loaded.clone());
        loaded
    }

    fn load_rules(&self, directory: &[u8]) -> Result<Option<Arc<Rules>>> {
        if !self.has_rules_file(directory) {
            return Ok(None);
        }
        let names = directory.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let mut at = self.ground.below.root();
        for name in names.chain([RULES_NAME]) {
            let found = self.ground.below.lookup(at, name);
            if at != self.ground.below.root() {
                self.ground.below.forget(at, 1);
            }
            match found {
                Ok(entry) => at = entry.attr.ino,
                Err(Error::NotFound | Error::NotADirectory) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let mut content = vec![0; RULES_MAX_BYTES + 1];
        let got = self.ground.below.read(at, Handle::NONE, 0, &mut content);
        self.ground.below.forget(at, 1);
        content.truncate(got?);
        let rules = Rules::parse_lines(&content, |e| {
            let directory = String::from_utf8_lossy(directory);
            tracing::error!("a rule in /{directory} cannot be used: {e}");
        });
        Ok(Some(Arc::new(rules?)))
    }

    /// What rules say may have changed.
    pub(super) fn forget_rules(&self) {
        locked(&self.rules).directories.clear();
    }

    /// Writes down the network that a file was made with, where attributes can be.
    pub(super) fn pin(&self, below: Ino, text: &Text) {
        let text = text.to_string();
        match self.ground.below.setxattr(below, NETWORK_ATTRIBUTE, text.as_bytes(), XattrSet::Any) {
            Ok(()) | Err(Error::Unsupported(_)) => {}
            Err(e) => tracing::warn!("the network of a new file is not written down: {e}"),
        }
    }
}

/// Whether a rule says that files are links.
pub(super) fn is_link(text: &Text) -> bool {
    match &text.pipe[..] {
        [Element::Stage(stage)] => stage.name.as_bytes() == LINK && stage.parameters.is_empty(),
        _ => false,
    }
}

/// Whether a path names a rules file.
pub(super) fn is_rules_file(path: &[u8]) -> bool {
    path.rsplit(|&b| b == b'/').next() == Some(RULES_NAME)
}
