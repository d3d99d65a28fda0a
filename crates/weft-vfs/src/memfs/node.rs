//! An inode of the file system in memory, and a directory's names.

use std::collections::{BTreeMap, HashMap};

use super::file::{Content, PAGE_BYTES};
use crate::acl::{self, Acl};
use crate::{Attr, Error, FileKind, Ino, Result, Time};

/// The names of a directory. An entry keeps its cookie as long as the name stands, and cookies
/// only grow, so a cursor is the last cookie seen.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) parent: u64,
    by_name: HashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, u64)>,
    next_cookie: u64,
}

impl Names {
    /// Cookies 1 and 2 are `.` and `..`.
    pub(super) fn new(parent: u64) -> Self {
        Self { parent, by_name: HashMap::new(), by_cookie: BTreeMap::new(), next_cookie: 3 }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, ino)| *ino)
    }

    /// Adds the name, or changes it to name `ino`.
    pub(super) fn set(&mut self, name: &[u8], ino: u64) {
        if let Some(cookie) = self.by_name.get(name) {
            if let Some(slot) = self.by_cookie.get_mut(cookie) {
                slot.1 = ino;
            }
            return;
        }
        self.by_name.insert(name.to_vec(), self.next_cookie);
        self.by_cookie.insert(self.next_cookie, (name.to_vec(), ino));
        self.next_cookie += 1;
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.by_name.remove(name) {
            self.by_cookie.remove(&cookie);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        self.by_name.len() as u64
    }

    /// Returns the entries after `cursor`, without `.` and `..`.
    pub(super) fn after(&self, cursor: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.by_cookie
            .range(cursor.saturating_add(1)..)
            .map(|(&cookie, (name, ino))| (cookie, name.as_slice(), *ino))
    }
}

#[derive(Debug)]
pub(super) enum Data {
    File(Content),
    Directory(Names),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: FileKind,
    pub(super) perm: u16,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) btime: Time,
    pub(super) data: Data,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// References taken and not yet released.
    pub(super) references: u64,
    /// Open handles.
    pub(super) opens: u64,
}

impl Node {
    pub(super) fn attr(&self, ino: u64) -> Attr {
        let (size_bytes, pages) = match &self.data {
            Data::File(content) => (content.size_bytes, content.pages()),
            Data::Directory(names) => (PAGE_BYTES, 1 + names.len() / 64),
            Data::Symlink(target) => (target.len() as u64, 0),
            Data::Special => (0, 0),
        };
        Attr {
            ino: Ino(ino),
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size_bytes,
            blocks_512: pages * (PAGE_BYTES / 512),
            io_bytes: PAGE_BYTES as u32,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
        }
    }

    pub(super) fn names(&self) -> Result<&Names> {
        match &self.data {
            Data::Directory(names) => Ok(names),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn names_mut(&mut self) -> Result<&mut Names> {
        match &mut self.data {
            Data::Directory(names) => Ok(names),
            _ => Err(Error::NotADirectory),
        }
    }

    pub(super) fn content(&self) -> Result<&Content> {
        match &self.data {
            Data::File(content) => Ok(content),
            Data::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.data {
            Data::File(content) => Ok(content),
            Data::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    /// Sets the permission bits, and with them those of the ACL.
    pub(super) fn chmod(&mut self, perm: u16) -> Result<()> {
        if let Some(value) = self.xattrs.get_mut(acl::ACCESS)
            && let Some(list) = Acl::parse(value)?
        {
            *value = list.with_perm(perm).to_xattr();
        }
        self.perm = perm;
        Ok(())
    }

    /// Sets or removes an ACL; an access ACL changes the mode too.
    pub(super) fn set_acl(&mut self, name: &[u8], list: Option<Acl>) -> Result<()> {
        if self.kind == FileKind::Symlink {
            return Err(Error::Unsupported("ACLs of symbolic links"));
        }
        if name == acl::DEFAULT && !self.is_dir() {
            return Err(Error::Access);
        }
        let mut kept = list;
        if name == acl::ACCESS
            && let Some(list) = kept.take()
        {
            self.perm = self.perm & !0o777 | list.perm();
            kept = (!list.is_mode()).then_some(list);
        }
        match kept {
            Some(list) => self.xattrs.insert(name.to_vec(), list.to_xattr()),
            None => self.xattrs.remove(name),
        };
        self.changed();
        Ok(())
    }

    /// Records a change of the content now.
    pub(super) fn modified(&mut self) {
        let now = Time::now();
        self.mtime = now;
        self.ctime = now;
    }

    /// Records a change of only the inode now.
    pub(super) fn changed(&mut self) {
        self.ctime = Time::now();
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
