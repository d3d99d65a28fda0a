//! An inode and the reference held on it.

use crate::{Attr, Caller, DirCursor, Entry, Error, FileKind, FileSystem, Handle, Ino, Result};

/// An inode of a file system, with one reference that is released on drop.
pub struct Node<'a> {
    fs: &'a dyn FileSystem,
    entry: Entry,
    /// The root is named without a reference.
    held: bool,
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("entry", &self.entry).field("held", &self.held).finish()
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.held {
            self.fs.forget(self.entry.attr.ino, 1);
        }
    }
}

/// A name of a directory, as [`Node::list`] copies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The inode it names; no reference is held.
    pub ino: Ino,
    /// The kind of the inode.
    pub kind: FileKind,
    /// The cursor behind it.
    pub next: DirCursor,
}

/// A name and the node it names.
pub(super) type NamedNode<'a> = (Vec<u8>, Node<'a>);

impl<'a> Node<'a> {
    /// Returns the root.
    ///
    /// # Errors
    /// Those of [`FileSystem::getattr`].
    pub fn root(fs: &'a dyn FileSystem) -> Result<Self> {
        let entry = Entry { attr: fs.getattr(fs.root())?, generation: 0 };
        Ok(Self { fs, entry, held: false })
    }

    /// Takes over the reference that came with `entry`.
    #[must_use]
    pub fn from_entry(fs: &'a dyn FileSystem, entry: Entry) -> Self {
        Self { fs, entry, held: true }
    }

    /// Hands over the reference, if it is not the root: the caller releases it with
    /// [`forget`](FileSystem::forget).
    #[must_use]
    pub fn into_entry(mut self) -> Entry {
        self.held = false;
        self.entry
    }

    /// Returns the inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.entry.attr.ino
    }

    /// Returns the attributes as they were when this node was found.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.entry.attr
    }

    /// Returns the kind of inode, which never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.entry.attr.kind
    }

    /// Returns true for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Returns the current attributes.
    ///
    /// # Errors
    /// Those of [`FileSystem::getattr`].
    pub fn stat(&self) -> Result<Attr> {
        self.fs.getattr(self.ino())
    }

    /// Returns the node of a name in this directory; a symbolic link is not followed.
    ///
    /// # Errors
    /// Those of [`FileSystem::lookup`].
    pub fn lookup(&self, name: &[u8]) -> Result<Self> {
        Ok(Self::from_entry(self.fs, self.fs.lookup(self.ino(), name)?))
    }

    /// Makes an empty regular file in this directory.
    ///
    /// # Errors
    /// Those of [`FileSystem::mknod`].
    pub fn create(&self, caller: &Caller, name: &[u8], perm: u16) -> Result<Self> {
        self.mknod(caller, name, FileKind::Regular, perm, 0)
    }

    /// Makes a node of any kind but a directory or a symbolic link.
    ///
    /// # Errors
    /// Those of [`FileSystem::mknod`].
    pub fn mknod(
        &self,
        caller: &Caller,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Self> {
        let entry = self.fs.mknod(caller, self.ino(), name, kind, perm, rdev)?;
        Ok(Self::from_entry(self.fs, entry))
    }

    /// Makes a directory in this one.
    ///
    /// # Errors
    /// Those of [`FileSystem::mkdir`].
    pub fn mkdir(&self, caller: &Caller, name: &[u8], perm: u16) -> Result<Self> {
        Ok(Self::from_entry(self.fs, self.fs.mkdir(caller, self.ino(), name, perm)?))
    }

    /// Makes a symbolic link in this directory.
    ///
    /// # Errors
    /// Those of [`FileSystem::symlink`].
    pub fn symlink(&self, caller: &Caller, name: &[u8], target: &[u8]) -> Result<Self> {
        Ok(Self::from_entry(self.fs, self.fs.symlink(caller, self.ino(), name, target)?))
    }

    /// Gives this node another name in `parent`.
    ///
    /// # Errors
    /// Those of [`FileSystem::link`].
    pub fn link_as(&self, caller: &Caller, parent: &Node<'_>, name: &[u8]) -> Result<()> {
        let entry = self.fs.link(caller, self.ino(), parent.ino(), name)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(())
    }

    /// Removes a name in this directory, also that of an empty directory.
    ///
    /// # Errors
    /// Those of [`FileSystem::unlink`] and [`FileSystem::rmdir`].
    pub fn remove(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        match self.fs.unlink(caller, self.ino(), name) {
            Err(Error::IsADirectory) => self.fs.rmdir(caller, self.ino(), name),
            other => other,
        }
    }

    /// Returns the target of this symbolic link.
    ///
    /// # Errors
    /// Those of [`FileSystem::readlink`].
    pub fn readlink(&self) -> Result<Vec<u8>> {
        self.fs.readlink(self.ino())
    }

    /// Reads into `buf` from byte `offset` on; fewer bytes only at the end.
    ///
    /// # Errors
    /// Those of [`FileSystem::read`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(self.ino(), Handle::NONE, offset, buf)
    }

    /// Writes all of `data` at byte `offset`.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`]; [`Error::NoSpace`] if only part of it was taken.
    pub fn write_at(&self, caller: &Caller, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset.checked_add(done as u64).ok_or(Error::TooLarge)?;
            match self.fs.write(caller, self.ino(), Handle::NONE, at, &data[done..])? {
                0 => return Err(Error::NoSpace),
                taken => done += taken,
            }
        }
        Ok(())
    }

    /// Reads the whole content of this file, which must fit into memory.
    ///
    /// # Errors
    /// Those of [`FileSystem::read`]; [`Error::TooLarge`] if memory cannot hold it.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let size = usize::try_from(self.stat()?.size_bytes).map_err(|_| Error::TooLarge)?;
        let mut content = Vec::new();
        content.try_reserve_exact(size).map_err(|_| Error::TooLarge)?;
        content.resize(size, 0);
        let got = self.read_at(0, &mut content)?;
        content.truncate(got);
        Ok(content)
    }

    /// Returns the names of this directory without `.` and `..`, in its own order.
    ///
    /// # Errors
    /// Those of [`FileSystem::readdir`].
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut names = Vec::new();
        self.list_from(DirCursor::START, usize::MAX, &mut names)?;
        Ok(names)
    }

    /// Appends up to `max` names after `cursor` (again without `.` and `..`).
    ///
    /// # Errors
    /// Those of [`FileSystem::readdir`].
    pub fn list_from(&self, cursor: DirCursor, max: usize, names: &mut Vec<Listed>) -> Result<()> {
        let end = names.len().saturating_add(max);
        if max == 0 {
            return Ok(());
        }
        self.fs.readdir(self.ino(), cursor, &mut |dirent| {
            if dirent.name != b"." && dirent.name != b".." {
                names.push(Listed {
                    name: dirent.name.to_vec(),
                    ino: dirent.ino,
                    kind: dirent.kind,
                    next: dirent.next,
                });
            }
            names.len() < end
        })
    }

    /// Returns up to `max` names after `cursor` with their nodes, and the cursor after the last of
    /// them.
    pub(super) fn nodes_from(
        &self,
        cursor: DirCursor,
        max: usize,
    ) -> Result<(Vec<NamedNode<'a>>, Option<DirCursor>)> {
        let mut found = Vec::new();
        let mut last = None;
        self.fs.readdir_plus(self.ino(), cursor, &mut |dirent, entry| {
            // An entry refused here carries no reference and comes again with the next batch.
            if found.len() >= max {
                return false;
            }
            last = Some(dirent.next);
            if dirent.name != b"." && dirent.name != b".." {
                found.push((dirent.name.to_vec(), Self::from_entry(self.fs, entry)));
            }
            true
        })?;
        Ok((found, last))
    }

    pub(super) fn fs(&self) -> &'a dyn FileSystem {
        self.fs
    }
}
