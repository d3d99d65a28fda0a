//! A stored file in the file system below, as a [`Base`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_vfs::{
    Attr, Caller, Error as Fault, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr, SetTime,
    XattrSet,
};

use super::nodes::Nodes;
use super::reach::ACCESS_LIST;
use crate::Result;
use crate::store::{Base, FreshId, Store};

/// The prefix of the names of temporary files, which replace others. They are not listed, and
/// clients cannot name them.
pub(super) const FRESH_PREFIX: &[u8] = b".weft-fresh-";

/// The location of a file in the file system below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The current inode.
    pub(super) ino: Ino,
    /// A directory that contains it, as of the last lookup.
    pub(super) parent: Ino,
    /// Its name in that directory.
    pub(super) name: Vec<u8>,
    /// The file has no name any more.
    pub(super) unlinked: bool,
}

/// A location shared by a node and those that access its file.
pub(super) type SharedPlace = Arc<Mutex<Place>>;

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data under these locks is consistent after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of one inode.
struct FileStore {
    fs: Arc<dyn FileSystem>,
    ino: Ino,
}

impl Store for FileStore {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.fs.getattr(self.ino)?.size_bytes))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read(self.ino, Handle::NONE, offset, buf)?)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match self.fs.write(self.ino, Handle::NONE, offset + done as u64, &data[done..])? {
                0 => return Err(Fault::NoSpace.into()),
                taken => done += taken,
            }
        }
        Ok(())
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let set = SetAttr { size_bytes: Some(len_bytes), ..SetAttr::default() };
        self.fs.setattr(self.ino, &set)?;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        Ok(self.fs.fsync(self.ino, true)?)
    }

    // Never dirty: writes go directly to the file system below.
}

/// A file of the file system below, and the temporary files that replace it.
pub(super) struct FileBase {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) place: SharedPlace,
    /// Part of the names of temporary files, different for each mount.
    pub(super) session: u32,
    /// The other part: the number of temporary files that the mount has created. The names of the
    /// first 2^40 fit into the 31 bytes of HFS.
    pub(super) fresh_names: Arc<AtomicU64>,
    /// Held while names change.
    pub(super) names: Arc<Mutex<()>>,
    /// The nodes, which map inode numbers below to files.
    pub(super) nodes: Arc<Mutex<Nodes>>,
    /// The file may be new, with nothing written to it yet.
    pub(super) is_new: bool,
    pub(super) fresh: Vec<Fresh>,
}

/// A temporary file.
pub(super) struct Fresh {
    id: u64,
    ino: Ino,
    parent: Ino,
    name: Vec<u8>,
}

impl FileBase {
    fn take(&mut self, id: FreshId) -> Option<Fresh> {
        let at = self.fresh.iter().position(|fresh| fresh.id == id.0)?;
        Some(self.fresh.swap_remove(at))
    }

    fn try_adopt(&mut self, fresh: &Fresh) -> Result<()> {
        let names = self.names.clone();
        let _names = locked(&names);
        let place = locked(&self.place).clone();
        if place.unlinked {
            // The file has no name: neither does its new content.
            self.fs.unlink(fresh.parent, &fresh.name)?;
        } else {
            let there = self.fs.lookup(place.parent, &place.name)?;
            self.fs.forget(there.attr.ino, 1);
            if there.attr.ino != place.ino {
                let message = "the name of the file changed under it".to_owned();
                return Err(Fault::Io { errno: 16, message }.into());
            }
            copy_attributes(&*self.fs, &there.attr, fresh.ino)?;
            self.fs.fsync(fresh.ino, false)?;
            // A concurrent lookup of the name finds the same node by either inode.
            locked(&self.nodes).alias(place.ino, fresh.ino);
            let flags = RenameFlags::empty();
            let renamed =
                self.fs.rename(fresh.parent, &fresh.name, place.parent, &place.name, flags);
            if let Err(e) = renamed {
                locked(&self.nodes).drop_alias(fresh.ino);
                return Err(e.into());
            }
        }
        let mut nodes = locked(&self.nodes);
        nodes.alias(place.ino, fresh.ino);
        locked(&self.place).ino = fresh.ino;
        nodes.moved_below(place.ino, fresh.ino);
        drop(nodes);
        self.fs.forget(place.ino, 1);
        if !place.unlinked {
            // Until then a crash may restore the old file, intact.
            if let Err(e) = self.fs.fsync_dir(place.parent) {
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
                match fs.removexattr(to, ACCESS_LIST) {
                    Ok(()) | Err(Fault::NoAttribute) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            for name in names {
                let value = fs.getxattr(from.ino, &name)?;
                fs.setxattr(to, &name, &value, XattrSet::Any)?;
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
    fs.setattr(to, &set)?;
    Ok(())
}

impl Base for FileBase {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        let ino = locked(&self.place).ino;
        Ok(Box::new(FileStore { fs: self.fs.clone(), ino }))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let place = locked(&self.place).clone();
        let old = self.fs.getattr(place.ino)?;
        let id = self.fresh_names.fetch_add(1, Ordering::Relaxed);
        let suffix = format!("{:08x}-{id:x}", self.session);
        let name = [FRESH_PREFIX, suffix.as_bytes()].concat();
        let caller = Caller { uid: old.uid, gid: old.gid, ..Caller::default() };
        let make = |parent| self.fs.mknod(&caller, parent, &name, FileKind::Regular, 0o600, 0);
        // The directory of a file without a name may have been removed too.
        let (parent, made) = match make(place.parent) {
            Err(_) if place.unlinked => (self.fs.root(), make(self.fs.root())?),
            made => (place.parent, made?),
        };
        let fresh = Fresh { id, ino: made.attr.ino, parent, name };
        let store = FileStore { fs: self.fs.clone(), ino: fresh.ino };
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
            if let Err(e) = self.fs.unlink(fresh.parent, &fresh.name) {
                tracing::warn!("a temporary file stays behind: {e}");
            }
            self.fs.forget(fresh.ino, 1);
        }
    }
}
