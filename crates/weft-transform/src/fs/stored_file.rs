//! A stored file in the file system below, as a [`Base`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_vfs::{
    Attr, Caller, Error as Fault, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr, SetTime,
    XattrSet,
};

use super::access::ACCESS_LIST;
use super::inode::SharedLocation;
use super::locks::locked;
use super::mount::Mount;
use super::path::FRESH_PREFIX;
use crate::Result;
use crate::store::{Base, FreshId, Store};

/// The bytes of one inode.
struct InodeStore {
    fs: Arc<dyn FileSystem>,
    ino: Ino,
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
        Ok(self.fs.fsync(&Caller::ROOT, self.ino, true)?)
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
    parent: Ino,
    name: Vec<u8>,
}

impl StoredFile {
    pub(super) fn new(mount: Arc<Mount>, location: SharedLocation, is_new: bool) -> Self {
        Self { mount, location, is_new, fresh: Vec::new() }
    }

    fn take(&mut self, id: FreshId) -> Option<Fresh> {
        let at = self.fresh.iter().position(|fresh| fresh.id == id.0)?;
        Some(self.fresh.swap_remove(at))
    }

    fn try_adopt(&mut self, fresh: &Fresh) -> Result<()> {
        let _names = locked(&self.mount.names);
        let location = locked(&self.location).clone();
        if location.unlinked {
            // The file has no name: neither does its new content.
            self.mount.below.unlink(&Caller::ROOT, fresh.parent, &fresh.name)?;
        } else {
            let there = self.mount.below.lookup(location.parent, &location.name)?;
            self.mount.below.forget(there.attr.ino, 1);
            if there.attr.ino != location.ino {
                let message = "the name of the file changed under it".to_owned();
                return Err(Fault::Io { errno: 16, message }.into());
            }
            copy_attributes(&*self.mount.below, &there.attr, fresh.ino)?;
            self.mount.below.fsync(&Caller::ROOT, fresh.ino, false)?;
            // A concurrent lookup of the name finds the same inode by either number below.
            self.mount.inodes().alias(location.ino, fresh.ino);
            let flags = RenameFlags::empty();
            let renamed = self.mount.below.rename(
                &Caller::ROOT,
                fresh.parent,
                &fresh.name,
                location.parent,
                &location.name,
                flags,
            );
            if let Err(e) = renamed {
                self.mount.inodes().drop_alias(fresh.ino);
                return Err(e.into());
            }
        }
        let mut inodes = self.mount.inodes();
        inodes.alias(location.ino, fresh.ino);
        locked(&self.location).ino = fresh.ino;
        inodes.moved_below(location.ino, fresh.ino);
        drop(inodes);
        self.mount.below.forget(location.ino, 1);
        if !location.unlinked {
            // Until then a crash may restore the old file, intact.
            if let Err(e) = self.mount.below.fsync_dir(&Caller::ROOT, location.parent) {
                tracing::warn!("the directory of a file written anew is not durable: {e}");
            }
        }
        Ok(())
    }
}

/// Copies the owner, mode, times and extended attributes of another file to `to`.
fn copy_attributes(fs: &dyn FileSystem, from: &Attr, to: Ino) -> Result<()> {
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
        perm: Some(from.perm),
        uid: Some(from.uid),
        gid: Some(from.gid),
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
        Ok(Box::new(InodeStore { fs: self.mount.below.clone(), ino }))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let location = locked(&self.location).clone();
        let old = self.mount.below.getattr(location.ino)?;
        let id = self.mount.fresh_names.fetch_add(1, Ordering::Relaxed);
        let suffix = format!("{:08x}-{id:x}", self.mount.session);
        let name = [FRESH_PREFIX, suffix.as_bytes()].concat();
        let caller = Caller { uid: old.uid, gid: old.gid, ..Caller::ROOT };
        let make =
            |parent| self.mount.below.mknod(&caller, parent, &name, FileKind::Regular, 0o600, 0);
        // The directory of a file without a name may have been removed too.
        let (parent, made) = match make(location.parent) {
            Err(_) if location.unlinked => {
                (self.mount.below.root(), make(self.mount.below.root())?)
            }
            made => (location.parent, made?),
        };
        let fresh = Fresh { id, ino: made.attr.ino, parent, name };
        let store = InodeStore { fs: self.mount.below.clone(), ino: fresh.ino };
        self.fresh.push(fresh);
        Ok((FreshId(id), Box::new(store)))
    }

    fn adopt(&mut self, fresh: FreshId) -> Result<()> {
        let Some(fresh) = self.take(fresh) else { return Ok(()) };
        let result = self.try_adopt(&fresh);
        if result.is_err() {
            self.fresh.push(fresh);
        }
        result
    }

    fn may_be_new(&self) -> bool {
        self.is_new
    }

    fn discard(&mut self, fresh: FreshId) {
        if let Some(fresh) = self.take(fresh) {
            if let Err(e) = self.mount.below.unlink(&Caller::ROOT, fresh.parent, &fresh.name) {
                tracing::warn!("a temporary file stays behind: {e}");
            }
            self.mount.below.forget(fresh.ino, 1);
        }
    }
}
