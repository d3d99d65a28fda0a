//! Unix attributes of files and folders.

use super::hfs::Hfs;
use super::node::{Known, State, plain};
use super::store::OpStore;
use crate::Result;
use crate::interchange::extension;
use crate::layout::{FInfo, FileFlags, Fork};
use weft_vfs::{
    Attr, Error as FsError, FileKind, Ino, Result as FsResult, SetAttr, SetTime, StatFs,
};

/// Returns the type and creator for a new file, by its extension. An unknown extension gives none,
/// so that the Finder shows a plain document.
pub(super) fn info_by_name(name: &[u8]) -> FInfo {
    match extension::guess(name) {
        extension::UNKNOWN => FInfo::default(),
        (file_type, creator) => FInfo { file_type, creator, ..FInfo::default() },
    }
}

impl Hfs {
    pub(super) fn attr(&self, st: &mut State, s: &mut OpStore<'_, '_>, id: u32) -> Result<Attr> {
        let known = st.known(s, id)?;
        Ok(self.attr_of(st, id, &known))
    }

    /// Builds the attributes of a file or folder from its record.
    pub(super) fn attr_of(&self, st: &State, id: u32, known: &Known) -> Attr {
        let gone = st.nodes.get(&id).is_some_and(|node| node.gone.is_some());
        let io_bytes = st.vol.mdb().alloc_block_bytes;
        let (kind, locked, size, space, created, modified) = match known {
            Known::Folder(dir) => {
                (FileKind::Directory, false, u64::from(dir.valence), 0, dir.created, dir.modified)
            }
            Known::File(file) => {
                let locked = file.flags.contains(FileFlags::LOCKED);
                let space = u64::from(file.fork(Fork::Data).space_bytes)
                    + u64::from(file.fork(Fork::Resource).space_bytes);
                let size = u64::from(file.fork(Fork::Data).len_bytes);
                (FileKind::Regular, locked, size, space, file.created, file.modified)
            }
        };
        let time = self.time(modified);
        Attr {
            ino: Ino(u64::from(id)),
            kind,
            perm: self.permissions.perm(kind, locked),
            nlink: u32::from(!gone),
            uid: self.permissions.uid,
            gid: self.permissions.gid,
            rdev: 0,
            size_bytes: size,
            blocks_512: space / 512,
            io_bytes: io_bytes.min(1 << 20),
            atime: time,
            mtime: time,
            ctime: time,
            btime: Some(self.time(created)),
        }
    }

    pub(super) fn do_getattr(&self, ino: Ino) -> FsResult<Attr> {
        let id = plain(ino)?;
        Ok(self.look(|st, s| self.attr(st, s, id))?)
    }

    pub(super) fn do_setattr(&self, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let id = plain(ino)?;
        if set.uid.is_some_and(|uid| uid != self.permissions.uid)
            || set.gid.is_some_and(|gid| gid != self.permissions.gid)
        {
            return Err(FsError::NotPermitted);
        }
        if let Some(size) = set.size_bytes {
            self.do_set_len(id, Fork::Data, size)?;
        }
        let modified = match set.mtime {
            Some(SetTime::Now) => Some(self.date(self.now())),
            Some(SetTime::At(time)) => Some(self.date(time)),
            None => None,
        };
        // A file without write permissions is one that the Finder calls locked.
        let locked = set.perm.and_then(|perm| self.permissions.locks(perm));
        if modified.is_none() && locked.is_none() {
            return self.do_getattr(ino);
        }
        Ok(self.change(|st, s| {
            let patch = match st.known(s, id)? {
                Known::Folder(_) if st.nodes.get(&id).is_some_and(|n| n.gone.is_some()) => {
                    return self.attr(st, s, id);
                }
                // No item is older than its content: a copy is as old as what was copied.
                Known::Folder(_) => st.vol.change_folder(s, id, |dir| {
                    dir.modified = modified.unwrap_or(dir.modified);
                    dir.created = dir.created.min(modified.unwrap_or(u32::MAX));
                })?,
                Known::File(_) => st.with_file(s, id, |vol, s, file| {
                    vol.change_file(s, file, |record| {
                        record.modified = modified.unwrap_or(record.modified);
                        record.created = record.created.min(modified.unwrap_or(u32::MAX));
                        if let Some(locked) = locked {
                            record.flags.set(FileFlags::LOCKED, locked);
                        }
                    })
                })?,
            };
            st.changes.note(s, id, patch)?;
            self.attr(st, s, id)
        })?)
    }

    pub(super) fn do_statfs(&self) -> StatFs {
        let st = self.lock();
        let mdb = st.vol.mdb();
        let free = u64::from(st.vol.free_now());
        let ids = u64::from(i32::MAX.unsigned_abs());
        StatFs {
            block_bytes: mdb.alloc_block_bytes,
            blocks: u64::from(mdb.alloc_blocks),
            blocks_free: free,
            blocks_available: free,
            inodes: ids,
            inodes_free: ids.saturating_sub(u64::from(mdb.next_id)),
            // In UTF-8 a letter of MacRoman has up to three bytes.
            name_max_bytes: 93,
        }
    }
}
