//! Resolution of paths to nodes.

use crate::access::{self, Access};
use crate::{Caller, Error, FileKind, FileSystem, RenameFlags, Result, SetAttr};

use super::node::Node;
use super::tree::{self, Tree};

/// The maximum number of symbolic links on one path, as in Linux.
pub const SYMLINKS_MAX: u32 = 40;

/// The longest path, in bytes, as in Linux.
pub const PATH_MAX_BYTES: usize = 4096;

/// Resolves paths on one file system on behalf of one caller.
#[derive(Clone)]
pub struct Walker<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
    checks: bool,
}

impl std::fmt::Debug for Walker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walker").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// A directory and a name in it, which need not exist: the parent and last component of a path.
#[derive(Debug)]
pub struct Place<'a> {
    /// The directory.
    pub dir: Node<'a>,
    /// The name in it; never empty, `.` or `..`.
    pub name: Vec<u8>,
    /// The path ended in a slash: an inode created there must be a directory.
    pub wants_dir: bool,
}

impl<'a> Walker<'a> {
    /// Makes a walker with all privileges (for the command on the user's own image): permissions
    /// are not checked, and new inodes belong to user 0.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Self { fs, caller: Caller::ROOT, checks: false }
    }

    /// Makes a walker whose new inodes belong to this caller; permissions are not checked.
    #[must_use]
    pub fn owned_by(fs: &'a dyn FileSystem, caller: Caller) -> Self {
        Self { fs, caller, checks: false }
    }

    /// Makes a walker for this caller, who needs search permission on each directory of a path.
    #[must_use]
    pub fn checked(fs: &'a dyn FileSystem, caller: Caller) -> Self {
        Self { fs, caller, checks: true }
    }

    /// Returns the file system.
    #[must_use]
    pub fn fs(&self) -> &'a dyn FileSystem {
        self.fs
    }

    /// Returns the root directory.
    ///
    /// # Errors
    /// Those of [`FileSystem::getattr`].
    pub fn root(&self) -> Result<Node<'a>> {
        Node::root(self.fs)
    }

    /// Resolves a path to its node; a symbolic link at its end is followed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::SymlinkLoop`],
    /// [`Error::NameTooLong`], [`Error::Access`].
    pub fn resolve(&self, path: &[u8]) -> Result<Node<'a>> {
        self.walk(path, true)
    }

    /// Resolves a path to its node; a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_link(&self, path: &[u8]) -> Result<Node<'a>> {
        self.walk(path, false)
    }

    /// Returns true if the path exists.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), except [`Error::NotFound`].
    pub fn exists(&self, path: &[u8]) -> Result<bool> {
        match self.resolve_link(path) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Resolves a path to the directory of its last name, and that name.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Error::Exists`] if the path ends in `/`, `.` or `..`
    /// alone, so that it cannot name anything new.
    pub fn place(&self, path: &[u8]) -> Result<Place<'a>> {
        let wants_dir = path.ends_with(b"/");
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let start = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let name = &path[start..end];
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Error::Exists);
        }
        crate::check_name(name)?;
        // A slash makes the path of the root itself valid, and demands a directory elsewhere.
        let dir = self.resolve(&[b"/", &path[..start], b"/"].concat())?;
        Ok(Place { dir, name: name.to_vec(), wants_dir })
    }

    /// Resolves as [`place`](Self::place); the name must exist (for removing and renaming).
    fn existing_place(&self, path: &[u8]) -> Result<Place<'a>> {
        let place = self.place(path).map_err(|e| match e {
            Error::Exists => Error::Busy,
            other => other,
        })?;
        if place.wants_dir && !place.dir.lookup(&place.name)?.is_dir() {
            return Err(Error::NotADirectory);
        }
        Ok(place)
    }

    fn walk(&self, path: &[u8], follow_last: bool) -> Result<Node<'a>> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        if path.len() > PATH_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let mut at = self.root()?;
        // The components still to walk, as a stack; a link's target is pushed on top.
        let mut todo: Vec<Vec<u8>> = Vec::new();
        push_components(&mut todo, path);
        let mut wants_dir = path.ends_with(b"/");
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if !at.is_dir() {
                return Err(Error::NotADirectory);
            }
            if self.checks {
                access::check(&at.stat()?, &self.caller, Access::EXECUTE)?;
            }
            if name == b"." || (name == b".." && at.ino() == self.fs.root()) {
                continue;
            }
            let next = at.lookup(&name)?;
            let last = todo.is_empty();
            if next.kind() != FileKind::Symlink || (last && !follow_last && !wants_dir) {
                at = next;
                continue;
            }
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Error::SymlinkLoop);
            }
            let target = next.readlink()?;
            if target.is_empty() {
                return Err(Error::NotFound);
            }
            if target.starts_with(b"/") {
                at = self.root()?;
            }
            wants_dir |= last && target.ends_with(b"/");
            push_components(&mut todo, &target);
        }
        if wants_dir && !at.is_dir() {
            return Err(Error::NotADirectory);
        }
        Ok(at)
    }

    /// Reads the whole content of a file.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve) and [`Node::read_all`].
    pub fn read_file(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.resolve(path)?.read_all()
    }

    /// Makes a file, or replaces the content of an existing one, and returns its node.
    ///
    /// # Errors
    /// Those of [`create_file`](Self::create_file) and of [`FileSystem::write`].
    pub fn write_file(&self, path: &[u8], content: &[u8], perm: u16) -> Result<Node<'a>> {
        let node = self.create_file(path, perm)?;
        node.write_at(&self.caller, 0, content)?;
        Ok(node)
    }

    /// Makes an empty file, or empties an existing one (a link to one is followed).
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve), [`FileSystem::mknod`] and [`FileSystem::setattr`].
    pub fn create_file(&self, path: &[u8], perm: u16) -> Result<Node<'a>> {
        match self.resolve(path) {
            Ok(node) if node.is_dir() => return Err(Error::IsADirectory),
            Ok(node) => {
                let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
                self.fs.setattr(&self.caller, node.ino(), &cut)?;
                return Ok(node);
            }
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
        let place = self.place(path)?;
        if place.wants_dir {
            return Err(Error::IsADirectory);
        }
        place.dir.create(&self.caller, &place.name, perm)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of [`place`](Self::place) and [`FileSystem::mkdir`].
    pub fn mkdir(&self, path: &[u8], perm: u16) -> Result<Node<'a>> {
        let place = self.place(path)?;
        place.dir.mkdir(&self.caller, &place.name, perm)
    }

    /// Makes a directory and its missing parents; an existing directory is no error.
    ///
    /// # Errors
    /// Those of [`FileSystem::mkdir`]; [`Error::NotADirectory`] if another kind is in the way.
    pub fn mkdir_all(&self, path: &[u8], perm: u16) -> Result<Node<'a>> {
        let mut at = self.root()?;
        let mut done = Vec::new();
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            done.push(b'/');
            done.extend_from_slice(name);
            at = match self.resolve(&done) {
                Ok(node) if node.is_dir() => node,
                Ok(_) => return Err(Error::NotADirectory),
                Err(Error::NotFound) => at.mkdir(&self.caller, name, perm)?,
                Err(e) => return Err(e),
            };
        }
        Ok(at)
    }

    /// Makes a symbolic link at `path`.
    ///
    /// # Errors
    /// Those of [`place`](Self::place) and [`FileSystem::symlink`].
    pub fn symlink(&self, path: &[u8], target: &[u8]) -> Result<Node<'a>> {
        let place = self.place(path)?;
        if place.wants_dir {
            return Err(Error::NotFound);
        }
        place.dir.symlink(&self.caller, &place.name, target)
    }

    /// Gives the inode at `path` (a symbolic link itself, too) a second name.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve), [`place`](Self::place) and [`FileSystem::link`].
    pub fn link(&self, path: &[u8], new_path: &[u8]) -> Result<()> {
        let node = self.resolve_link(path)?;
        let place = self.place(new_path)?;
        if place.wants_dir {
            return Err(Error::NotFound);
        }
        node.link_as(&self.caller, &place.dir, &place.name)
    }

    /// Renames.
    ///
    /// # Errors
    /// Those of [`place`](Self::place) and [`FileSystem::rename`]; [`Error::Busy`] for the root.
    pub fn rename(&self, path: &[u8], new_path: &[u8], flags: RenameFlags) -> Result<()> {
        let from = self.existing_place(path)?;
        let to = self.place(new_path).map_err(|e| match e {
            Error::Exists => Error::Busy,
            other => other,
        })?;
        if to.wants_dir && !from.dir.lookup(&from.name)?.is_dir() {
            return Err(Error::NotADirectory);
        }
        self.fs.rename(&self.caller, from.dir.ino(), &from.name, to.dir.ino(), &to.name, flags)
    }

    /// Removes a file, a symbolic link, or an empty directory.
    ///
    /// # Errors
    /// Those of [`FileSystem::unlink`] and [`FileSystem::rmdir`]; [`Error::Busy`] for the root.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let place = self.existing_place(path)?;
        place.dir.remove(&self.caller, &place.name)
    }

    /// Removes the inode at `path` and, if it is a directory, everything below. Calls `removed`
    /// with each removed path, relative to `path` (empty for `path` itself).
    ///
    /// # Errors The first error; paths removed before it stay removed.
    pub fn remove_tree(&self, path: &[u8], removed: &mut dyn FnMut(&[u8])) -> Result<()> {
        let place = self.existing_place(path)?;
        let node = place.dir.lookup(&place.name)?;
        if node.is_dir() {
            tree::remove_content(&self.caller, &node, removed)?;
        }
        place.dir.remove(&self.caller, &place.name)?;
        removed(b"");
        Ok(())
    }

    /// Walks the inode at `path` and everything below it.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve).
    pub fn tree(&self, path: &[u8]) -> Result<Tree<'a>> {
        Ok(Tree::new(self.resolve_link(path)?))
    }
}

fn push_components(todo: &mut Vec<Vec<u8>>, path: &[u8]) {
    let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
    todo.extend(names.rev().map(<[u8]>::to_vec));
}
