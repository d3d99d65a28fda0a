//! Which network a file carries.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weft_vfs::{Error, Handle, Ino, Result, XattrSet};

use super::base::locked;
use super::file::Attached;
use super::rules::{RULES_MAX_BYTES, RULES_NAME, Rules};
use super::{NETWORK_ATTRIBUTE, TransformFs};
use crate::text::Text;

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
        if is_rules_file(path) {
            return Attached::Plain;
        }
        match self.below.getxattr(below, NETWORK_ATTRIBUTE) {
            Ok(text) => self.of_attribute(&text),
            Err(Error::NoAttribute | Error::Unsupported(_)) => {
                let (attached, text) = self.of_rules(path);
                if let Some(text) = text.filter(|_| new && self.options.pin) {
                    self.pin(below, &text);
                }
                attached
            }
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
        match self.rule(path) {
            Ok(None) => (Attached::Plain, None),
            Ok(Some(text)) => match self.registry.network(&text) {
                Ok(network) => (Attached::Network(Arc::new(network)), Some(text)),
                Err(e) => (Attached::Unusable(Arc::new(e.into())), None),
            },
            Err(e) => (Attached::Unusable(e), None),
        }
    }

    /// The network that the nearest rule gives to a path, if any.
    fn rule(&self, path: &[u8]) -> Result<Option<Text>, Arc<Error>> {
        let as_path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let mut directory = path;
        while self.options.rules_files && !directory.is_empty() {
            let cut = directory.iter().rposition(|&b| b == b'/').unwrap_or(0);
            directory = &directory[..cut];
            let relative = path.get(cut..).unwrap_or_default();
            let relative = relative.strip_prefix(b"/").unwrap_or(relative);
            if let Some(rules) = self.rules_of(directory)?
                && let Some(ruling) = rules.ruling(as_path(relative))
            {
                return Ok(ruling.network.cloned());
            }
        }
        let ruling = self.options.rules.ruling(as_path(path));
        Ok(ruling.and_then(|ruling| ruling.network.cloned()))
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
        let names = directory.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let mut at = self.below.root();
        for name in names.chain([RULES_NAME]) {
            let found = self.below.lookup(at, name);
            if at != self.below.root() {
                self.below.forget(at, 1);
            }
            match found {
                Ok(entry) => at = entry.attr.ino,
                Err(Error::NotFound | Error::NotADirectory) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let mut content = vec![0; RULES_MAX_BYTES + 1];
        let got = self.below.read(at, Handle::NONE, 0, &mut content);
        self.below.forget(at, 1);
        content.truncate(got?);
        Ok(Some(Arc::new(Rules::parse(&content)?)))
    }

    /// What rules say may have changed.
    pub(super) fn forget_rules(&self) {
        locked(&self.rules).directories.clear();
    }

    /// Writes down the network that a file was made with, where attributes can be.
    pub(super) fn pin(&self, below: Ino, text: &Text) {
        let text = text.to_string();
        match self.below.setxattr(below, NETWORK_ATTRIBUTE, text.as_bytes(), XattrSet::Any) {
            Ok(()) | Err(Error::Unsupported(_)) => {}
            Err(e) => tracing::warn!("the network of a new file is not written down: {e}"),
        }
    }
}

/// Whether a path names a rules file.
pub(super) fn is_rules_file(path: &[u8]) -> bool {
    path.rsplit(|&b| b == b'/').next() == Some(RULES_NAME)
}
