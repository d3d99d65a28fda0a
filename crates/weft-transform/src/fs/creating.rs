//! Creation of regular files below.
//!
//! A file whose network has a header is made under a temporary name and gets its own name when header
//! and attribute are durable: a power cut never leaves an empty stored file, which would be taken for
//! a damaged one.

use std::sync::Arc;

use weft_vfs::{Caller, Entry, Error, FileKind, Ino, RenameFlags, Result};

use super::inode::{Attached, Inode, again};
use super::locks::locked;
use super::rules::is_rules_file;
use super::stored_file::{NewAttribute, begin_empty};
use super::transform_fs::TransformFs;
use crate::Network;
use crate::text::Text;

const EINVAL: i32 = 22;

impl TransformFs {
    /// Creates a regular file below, as the rules about its name say.
    pub(super) fn make_regular(
        &self,
        caller: &Caller,
        parent: &Inode,
        name: &[u8],
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let path = parent.path_of(name);
        let (attached, text) = match self.of_mount(&path) {
            None if is_rules_file(&path) => (Attached::Plain, None),
            _ => self.of_rules(&path, None),
        };
        match attached {
            Attached::Unusable(why) => Err(again(&why)),
            Attached::Network(network) if network.has_header() => {
                self.make_begun(caller, parent, name, perm, (&network, text))
            }
            _ => {
                let below = &self.mount.below;
                let _names = locked(&self.mount.names);
                below.mknod(caller, parent.below(), name, FileKind::Regular, perm, rdev)
            }
        }
    }

    fn make_begun(
        &self,
        caller: &Caller,
        parent: &Inode,
        name: &[u8],
        perm: u16,
        (network, text): (&Arc<Network>, Option<Text>),
    ) -> Result<Entry> {
        let (below, directory) = (&self.mount.below, parent.below());
        // Names that cannot be given fail before anything changes.
        self.check_no_name(directory, name)?;
        let (_, fresh) = self.mount.temporaries.new_name();
        let made = below.mknod(caller, directory, &fresh, FileKind::Regular, perm, 0)?;
        let attribute = match text.filter(|_| self.options.pin) {
            Some(text) => NewAttribute::Text { text: text.to_string(), required: false },
            None => NewAttribute::Same,
        };
        let begun = begin_empty(&self.mount, made.attr.ino, network, &attribute);
        let named =
            begun.map_err(Error::from).and_then(|()| self.name_new(caller, parent, &fresh, name));
        match named {
            Ok(()) => Ok(made),
            Err(e) => {
                if let Err(e) = below.unlink(&Caller::ROOT, directory, &fresh) {
                    tracing::warn!("a temporary file stays behind: {e}");
                }
                below.forget(made.attr.ino, 1);
                Err(e)
            }
        }
    }

    /// Gives a file its name in its directory, if no other file has it.
    fn name_new(&self, caller: &Caller, parent: &Inode, fresh: &[u8], name: &[u8]) -> Result<()> {
        let _names = locked(&self.mount.names);
        let (below, directory) = (&self.mount.below, parent.below());
        let rename = |flags| below.rename(caller, directory, fresh, directory, name, flags);
        match rename(RenameFlags::NO_REPLACE) {
            // Not every file system of a host knows the flag.
            Err(e) if matches!(e, Error::Unsupported(_)) || e.errno() == EINVAL => {
                self.check_no_name(directory, name)?;
                rename(RenameFlags::empty())
            }
            renamed => renamed,
        }
    }

    /// Checks that there is no file of a name, and could be one.
    fn check_no_name(&self, directory: Ino, name: &[u8]) -> Result<()> {
        match self.mount.below.lookup(directory, name) {
            Ok(there) => {
                self.mount.below.forget(there.attr.ino, 1);
                Err(Error::Exists)
            }
            Err(Error::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
