//! A stored file in the file system below, as a [`Base`].
//!
//! A file that is replaced is written beside, with its owner, mode, times and attributes, and made
//! durable as a whole; then it takes the name. So after a power cut a name leads to the old file or
//! to the new one, each with the attribute that tells how to read it ([`Replacement`]).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_vfs::{
    Attr, Caller, Error as Fault, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr, SetTime,
    XattrSet,
};

use super::access::ACCESS_LIST;
use super::inode::{Inode, Location, SharedLocation};
use super::locks::locked;
use super::mount::Mount;
use super::options::NETWORK_ATTRIBUTE;
use crate::store::{Base, FreshId, Single, Store, open};
use crate::{Network, Result};

/// The bytes of one inode.
struct InodeStore {
    fs: Arc<dyn FileSystem>,
    ino: Ino,
    /// Set once the file has a name that readers use. Before that a commit need not flush: the file
    /// is made durable as a whole before it gets the name.
    is_current: Arc<AtomicBool>,
}

impl Store for InodeStore {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.fs.getattr(self.ino)?.size_bytes))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read(self.ino, Handle::NONE, offset, buf)?)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match self.fs.write(
                &Caller::ROOT,
                self.ino,
                Handle::NONE,
                offset + done as u64,
                &data[done..],
            )? {
                0 => return Err(Fault::NoSpace.into()),
                taken => done += taken,
            }
        }
        Ok(())
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let set = SetAttr { size_bytes: Some(len_bytes), ..SetAttr::default() };
        self.fs.setattr(&Caller::ROOT, self.ino, &set)?;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if self.is_current.load(Ordering::Acquire) {
            self.fs.fsync(&Caller::ROOT, self.ino, true)?;
        }
        Ok(())
    }

    // Never dirty: writes go directly to the file system below.
}

/// A file of the file system below, and the temporary files that replace it.
pub(super) struct StoredFile {
    mount: Arc<Mount>,
    location: SharedLocation,
    /// The file may be new, with nothing written to it yet.
    is_new: bool,
    fresh: Vec<Fresh>,
}

/// A temporary file.
struct Fresh {
    id: u64,
    ino: Ino,
    name: Vec<u8>,
    is_current: Arc<AtomicBool>,
}

/// The attribute of the file that replaces another.
pub(super) enum NewAttribute {
    /// The attribute of the old file, if it has one.
    Same,
    /// The text of another network. `required`: fails if the file system below has no attributes.
    Text { text: String, required: bool },
    /// None.
    Removed,
}

/// The name of the file that replaces another, in place of the name of the old file.
pub(super) struct NewName<'a> {
    pub(super) caller: &'a Caller,
    pub(super) parent: &'a Inode,
    pub(super) name: &'a [u8],
    pub(super) flags: RenameFlags,
    /// The file that had the name before, with one more use: the caller releases it under no lock.
    pub(super) there: Cell<Option<Arc<Inode>>>,
}

/// How a file replaces another.
pub(super) struct Replacement<'a> {
    pub(super) attribute: NewAttribute,
    /// `None` for the name of the old file.
    pub(super) to: Option<&'a NewName<'a>>,
}

/// The error after a file was replaced under a new name, of removing its old name: both names are
/// there then, and each is intact.
pub(super) type OldNameStays = Option<Fault>;

impl StoredFile {
    pub(super) fn new(mount: Arc<Mount>, location: SharedLocation, is_new: bool) -> Self {
        Self { mount, location, is_new, fresh: Vec::new() }
    }

    fn take(&mut self, id: FreshId) -> Option<Fresh> {
        let at = self.fresh.iter().position(|fresh| fresh.id == id.0)?;
        Some(self.fresh.swap_remove(at))
    }

    /// Replaces the file by `fresh`. On an error nothing has changed.
    fn try_adopt(&mut self, fresh: &Fresh, how: &Replacement<'_>) -> Result<OldNameStays> {
        let mount = self.mount.clone();
        let below = &*mount.below;
        let _names = locked(&mount.names);
        let location = locked(&self.location).clone();
        let beside = mount.temporaries.parent(fresh.id);
        if location.unlinked {
            // The file has no name: neither does its new content.
            below.unlink(&Caller::ROOT, beside, &fresh.name)?;
            self.is_now(&location, fresh);
            return Ok(None);
        }
        let there = below.lookup(location.parent, &location.name)?;
        below.forget(there.attr.ino, 1);
        if there.attr.ino != location.ino {
            let message = "the name of the file changed under it".to_owned();
            return Err(Fault::Io { errno: 16, message }.into());
        }
        if there.attr.nlink > 1 && !matches!(how.attribute, NewAttribute::Same) {
            // Its other names would keep the old file.
            return Err(Fault::TooManyLinks.into());
        }
        copy_attributes(below, &there.attr, fresh.ino)?;
        how.attribute.write(below, fresh.ino)?;
        below.fsync(&Caller::ROOT, fresh.ino, false)?;
        // A concurrent lookup of the name finds the same inode by either number below.
        mount.inodes().alias(location.ino, fresh.ino);
        let (caller, parent, name, flags) = match how.to {
            Some(to) => (to.caller, to.parent.below(), to.name, to.flags),
            None => (&Caller::ROOT, location.parent, &location.name[..], RenameFlags::empty()),
        };
        let there = how.to.and_then(|_| mount.known(parent, name));
        let renamed = below.rename(caller, beside, &fresh.name, parent, name, flags);
        if renamed.is_ok() {
            mount.lost_name(there.as_ref());
        } else {
            mount.inodes().drop_alias(fresh.ino);
        }
        if let Some(to) = how.to {
            to.there.set(there);
        }
        renamed?;
        // Until then a crash may restore the old file, intact.
        let durable = below.fsync_dir(&Caller::ROOT, parent);
        let mut stays = None;
        if how.to.is_some() {
            // The old name goes only when the new one is certain.
            let remove = |()| below.unlink(caller, location.parent, &location.name);
            stays = durable.and_then(remove).err();
        } else if let Err(e) = durable {
            tracing::warn!("the directory of a file written anew is not durable: {e}");
        }
        self.is_now(&location, fresh);
        if how.to.is_some() {
            let mut location = locked(&self.location);
            location.parent = parent;
            name.clone_into(&mut location.name);
        }
        Ok(stays)
    }

    /// Notes that the file is `fresh` from now on.
    fn is_now(&self, old: &Location, fresh: &Fresh) {
        fresh.is_current.store(true, Ordering::Release);
        let mut inodes = self.mount.inodes();
        inodes.alias(old.ino, fresh.ino);
        locked(&self.location).ino = fresh.ino;
        inodes.moved_below(old.ino, fresh.ino);
        drop(inodes);
        self.mount.below.forget(old.ino, 1);
    }

    /// Replaces the file by one created by [`fresh`](Base::fresh).
    ///
    /// # Errors
    /// As [`adopt`](Base::adopt).
    pub(super) fn adopt_as(
        &mut self,
        fresh: FreshId,
        how: &Replacement<'_>,
    ) -> Result<OldNameStays> {
        let Some(fresh) = self.take(fresh) else { return Ok(None) };
        let result = self.try_adopt(&fresh, how);
        if result.is_ok() {
            self.mount.temporaries.gone(fresh.id);
        } else {
            self.fresh.push(fresh);
        }
        result
    }
}

impl NewAttribute {
    fn write(&self, fs: &dyn FileSystem, ino: Ino) -> Result<()> {
        let written = match self {
            Self::Same => Ok(()),
            Self::Text { text, .. } => {
                fs.setxattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE, text.as_bytes(), XattrSet::Any)
            }
            Self::Removed => fs.removexattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE),
        };
        match (written, self) {
            (Err(Fault::NoAttribute | Fault::Unsupported(_)), Self::Removed)
            | (Err(Fault::Unsupported(_)), Self::Text { required: false, .. }) => Ok(()),
            (written, _) => Ok(written?),
        }
    }
}

/// Makes an empty inode below an empty file of a network, with the attribute, durably. It has no
/// name yet that readers use.
pub(super) fn begin_empty(
    mount: &Mount,
    ino: Ino,
    network: &Network,
    attribute: &NewAttribute,
) -> Result<()> {
    let fs = mount.below.clone();
    attribute.write(&*fs, ino)?;
    let is_current = Arc::new(AtomicBool::new(false));
    let raw = Single::new(Box::new(InodeStore { fs, ino, is_current }), false);
    open(Box::new(raw), network, &mount.limits)?.begin()?;
    Ok(mount.below.fsync(&Caller::ROOT, ino, false)?)
}

/// Copies the owner, mode, times and extended attributes of another file to `to`.
fn copy_attributes(fs: &dyn FileSystem, from: &Attr, to: Ino) -> Result<()> {
    // A change of the owner removes some attributes.
    let set = SetAttr {
        perm: Some(from.perm),
        uid: Some(from.uid),
        gid: Some(from.gid),
        ..SetAttr::default()
    };
    fs.setattr(&Caller::ROOT, to, &set)?;
    match fs.listxattr(from.ino) {
        Ok(names) => {
            // `to` may have inherited an access list from the directory that the file does not
            // have.
            if fs.has_acls() && !names.iter().any(|name| name == ACCESS_LIST) {
                match fs.removexattr(&Caller::ROOT, to, ACCESS_LIST) {
                    Ok(()) | Err(Fault::NoAttribute) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            for name in names {
                let value = fs.getxattr(from.ino, &name)?;
                fs.setxattr(&Caller::ROOT, to, &name, &value, XattrSet::Any)?;
            }
        }
        Err(Fault::Unsupported(_)) => {}
        Err(e) => return Err(e.into()),
    }
    let set = SetAttr {
        atime: Some(SetTime::At(from.atime)),
        mtime: Some(SetTime::At(from.mtime)),
        ..SetAttr::default()
    };
    fs.setattr(&Caller::ROOT, to, &set)?;
    Ok(())
}

impl Base for StoredFile {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        let ino = locked(&self.location).ino;
        let is_current = Arc::new(AtomicBool::new(true));
        Ok(Box::new(InodeStore { fs: self.mount.below.clone(), ino, is_current }))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let location = locked(&self.location).clone();
        let old = self.mount.below.getattr(location.ino)?;
        let (id, name) = self.mount.temporaries.new_name();
        let caller = Caller { uid: old.uid, gid: old.gid, ..Caller::ROOT };
        let make =
            |parent| self.mount.below.mknod(&caller, parent, &name, FileKind::Regular, 0o600, 0);
        // The directory of a file without a name may have been removed too, or is going to be.
        let root = self.mount.below.root();
        let in_root = if location.unlinked { make(root).ok() } else { None };
        let (parent, made) = match in_root {
            Some(made) => (root, made),
            None => (location.parent, make(location.parent)?),
        };
        self.mount.temporaries.made(id, parent);
        let is_current = Arc::new(AtomicBool::new(false));
        let fs = self.mount.below.clone();
        let store = InodeStore { fs, ino: made.attr.ino, is_current: is_current.clone() };
        let fresh = Fresh { id, ino: made.attr.ino, name, is_current };
        self.fresh.push(fresh);
        Ok((FreshId(id), Box::new(store)))
    }

    fn adopt(&mut self, fresh: FreshId) -> Result<()> {
        let how = Replacement { attribute: NewAttribute::Same, to: None };
        self.adopt_as(fresh, &how).map(drop)
    }

    fn may_be_new(&self) -> bool {
        self.is_new
    }

    fn discard(&mut self, fresh: FreshId) {
        if let Some(fresh) = self.take(fresh) {
            let _names = locked(&self.mount.names);
            let parent = self.mount.temporaries.parent(fresh.id);
            if let Err(e) = self.mount.below.unlink(&Caller::ROOT, parent, &fresh.name) {
                tracing::warn!("a temporary file stays behind: {e}");
            }
            self.mount.temporaries.gone(fresh.id);
            self.mount.below.forget(fresh.ino, 1);
        }
    }
}
