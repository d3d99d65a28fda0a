//! The undo log of an atomic group: what its changes replaced, kept in memory, so that they can be
//! taken back while all of it is mounted.
//!
//! Of each file the log keeps the state before the group's first change of it: attributes, and those
//! pieces of its content that were overwritten or cut off. Of names it keeps the changes in their
//! order. An inode that lost its last name lives on, as the log has a reference on it, until the
//! group ends.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::hash_map::Entry as Slot;
use hashbrown::{HashMap, HashSet};
use weft_vfs::{
    Attr, Caller, Error, FileFlags, FileKind, FileSystem, Handle, Ino, RenameFlags, Result,
    SetAttr, SetTime, Time, XattrSet,
};

/// The unit in which content is kept, in bytes.
const PIECE_BYTES: u64 = 4096;
/// The most content that one log keeps, in bytes.
const CONTENT_MAX_BYTES: u64 = 64 << 20;
/// The most changes of names, and files with changes, of one log.
const STEPS_MAX: usize = 1 << 18;
/// Number of blocks that a group does not change, so that any one change can be undone.
const RESERVE_BLOCKS: u64 = 128;
const EIO: i32 = 5;

/// A name in a directory.
pub(crate) type Name = (Ino, Vec<u8>);

/// The undoing of a change of a name.
#[derive(Debug)]
pub(crate) enum Step {
    /// Remove the name of what was made.
    Remove { name: Name, is_dir: bool },
    /// Give an inode a name back.
    Restore { name: Name, ino: Ino },
    /// Rename back.
    Rename { from: Name, to: Name },
    /// Swap two names again.
    Exchange { one: Name, other: Name },
}

/// A file or directory as it was before its first change.
#[derive(Debug)]
struct Old {
    attr: Attr,
    flags: Option<FileFlags>,
    xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// By offset.
    content: BTreeMap<u64, Vec<u8>>,
}

/// The times of a directory in which names were changed.
#[derive(Debug)]
struct OldTimes {
    before: Time,
    /// That of the group's last change.
    after: Time,
}

/// The inodes and names that were changed back, for the caches above.
#[derive(Debug, Default)]
pub(crate) struct Undone {
    pub inodes: BTreeSet<Ino>,
    pub names: Vec<Name>,
}

#[derive(Debug, Default)]
pub(crate) struct UndoLog {
    steps: Vec<Step>,
    files: HashMap<Ino, Old>,
    directories: HashMap<Ino, OldTimes>,
    /// Inodes that were made in the group: they go as a whole.
    made: HashSet<Ino>,
    /// Those of them whose flags may protect them.
    protected: HashSet<Ino>,
    /// References on inodes that have lost a name.
    kept: Vec<Ino>,
    content_bytes: u64,
    /// Bytes that need new blocks when they come back.
    cut_bytes: u64,
}

impl UndoLog {
    /// Returns the number of blocks that undoing could add to those that the group has changed.
    pub fn reserve_blocks(&self, block_bytes: u32) -> u64 {
        RESERVE_BLOCKS + self.cut_bytes / u64::from(block_bytes.max(512))
    }

    pub fn note_made(&mut self, ino: Ino) {
        self.made.insert(ino);
    }

    /// Adds the undoing of a change that was made.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Keeps a reference on an inode until the end of the group.
    pub fn keep(&mut self, ino: Ino) {
        self.kept.push(ino);
    }

    /// Fails if the log takes no more.
    pub fn check_room(&self) -> Result<()> {
        let full = self.steps.len() + self.files.len() >= STEPS_MAX;
        if full { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// Keeps the attributes of an inode. Returns what is kept of it, or `None` if it was made in the
    /// group.
    fn old(&mut self, below: &dyn FileSystem, ino: Ino) -> Result<Option<&mut Old>> {
        if self.made.contains(&ino) {
            return Ok(None);
        }
        match self.files.entry(ino) {
            Slot::Occupied(found) => Ok(Some(found.into_mut())),
            Slot::Vacant(free) => {
                let attr = below.getattr(ino)?;
                let (xattrs, content) = Default::default();
                Ok(Some(free.insert(Old { attr, flags: None, xattrs, content })))
            }
        }
    }

    /// Keeps the attributes of an inode.
    pub fn keep_attributes(&mut self, below: &dyn FileSystem, ino: Ino) -> Result<()> {
        self.old(below, ino).map(drop)
    }

    /// Keeps the time of a directory in which a name was changed, and which had this one before.
    pub fn keep_time(&mut self, below: &dyn FileSystem, dir: Ino, before: Time) {
        // A time that is not known does not come back.
        if let Ok(attr) = below.getattr(dir) {
            let after = attr.mtime;
            self.directories.entry(dir).or_insert(OldTimes { before, after }).after = after;
        }
    }

    /// Keeps an extended attribute of an inode.
    pub fn keep_xattr(&mut self, below: &dyn FileSystem, ino: Ino, name: &[u8]) -> Result<()> {
        let Some(old) = self.old(below, ino)? else { return Ok(()) };
        if old.xattrs.contains_key(name) {
            return Ok(());
        }
        let value = xattr(below, ino, name)?;
        let len_bytes = value.as_ref().map_or(0, Vec::len) as u64;
        old.xattrs.insert(name.to_vec(), value);
        self.count_content(len_bytes)
    }

    /// Keeps the flags of an inode.
    pub fn keep_flags(&mut self, below: &dyn FileSystem, ino: Ino) -> Result<()> {
        if self.made.contains(&ino) {
            self.protected.insert(ino);
        }
        if let Some(old) = self.old(below, ino)?
            && old.flags.is_none()
        {
            old.flags = Some(below.file_flags(ino)?);
        }
        Ok(())
    }

    fn count_content(&mut self, len_bytes: u64) -> Result<()> {
        self.content_bytes += len_bytes;
        if self.content_bytes > CONTENT_MAX_BYTES { Err(Error::TooLarge) } else { Ok(()) }
    }

    /// Keeps the content of a range that is about to be overwritten, or `cut` off.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the log cannot keep so much; those of reading.
    pub fn keep_content(
        &mut self,
        below: &dyn FileSystem,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        cut: bool,
    ) -> Result<()> {
        let Some(old) = self.old(below, ino)? else { return Ok(()) };
        let old_len_bytes = old.attr.size_bytes;
        let end = offset.saturating_add(len_bytes).min(old_len_bytes);
        let mut at = offset / PIECE_BYTES * PIECE_BYTES;
        if end.saturating_sub(at) > CONTENT_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        if cut {
            self.cut_bytes += end.saturating_sub(at);
        }
        while at < end {
            let len = PIECE_BYTES.min(old_len_bytes - at);
            let Some(old) = self.old(below, ino)? else { break };
            if let Place::Vacant(free) = old.content.entry(at) {
                free.insert(read_piece(below, ino, at, len)?);
                self.count_content(len)?;
            }
            at += PIECE_BYTES;
        }
        Ok(())
    }

    /// Takes all changes back, in the reverse of their order. Forgets them if that succeeds.
    ///
    /// # Errors
    /// Those of the calls; [`Error::NoSpace`] before anything is taken back if what was cut off has no
    /// room.
    pub fn undo(&mut self, below: &dyn FileSystem) -> Result<Undone> {
        if self.cut_bytes > 0 {
            let space = below.statfs()?;
            if space.blocks_free.saturating_mul(u64::from(space.block_bytes)) < self.cut_bytes {
                return Err(Error::NoSpace);
            }
        }
        let root = Caller::ROOT;
        // A directory that others have changed since keeps their time.
        let unchanged = |dir: Ino, times: &OldTimes| {
            below.getattr(dir).is_ok_and(|attr| attr.mtime == times.after)
        };
        let directories = self.directories.iter().map(|(&dir, times)| (dir, times));
        let times: Vec<(Ino, Time)> = directories
            .filter(|(dir, times)| unchanged(*dir, times))
            .map(|(dir, times)| (dir, times.before))
            .collect();
        for (&ino, old) in &self.files {
            // Flags that protect a file from changes come back last.
            if let Some(flags) = old.flags {
                let open = flags - (FileFlags::IMMUTABLE | FileFlags::APPEND);
                unless_gone(below.set_file_flags(&root, ino, open))?;
            }
        }
        for &ino in &self.protected {
            unless_gone(below.set_file_flags(&root, ino, FileFlags::empty()))?;
        }
        let mut undone = Undone::default();
        while let Some(step) = self.steps.pop() {
            step.undo(below, &mut undone)?;
        }
        for (&ino, old) in &self.files {
            unless_gone(old.restore(below, ino))?;
            undone.inodes.insert(ino);
        }
        for (dir, mtime) in times {
            // Not one whose flags have forbidden all changes.
            if below.getattr(dir).is_ok_and(|attr| attr.mtime != mtime) {
                let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
                unless_gone(below.setattr(&root, dir, &set).map(drop))?;
                undone.inodes.insert(dir);
            }
        }
        self.end(below);
        Ok(undone)
    }

    /// Forgets all, and the references with it.
    pub fn end(&mut self, below: &dyn FileSystem) {
        let kept = std::mem::take(&mut self.kept);
        *self = Self::default();
        for ino in kept {
            below.forget(ino, 1);
        }
    }
}

/// Allows an inode to be gone: it had lost its name before the group, and its last user since.
fn unless_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Stale(_)) => Ok(()),
        result => result,
    }
}

fn xattr(below: &dyn FileSystem, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match below.getxattr(ino, name) {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoAttribute) => Ok(None),
        Err(e) => Err(e),
    }
}

fn read_piece(below: &dyn FileSystem, ino: Ino, at: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let mut piece = vec![0; usize::try_from(len_bytes).unwrap_or(0)];
    let mut read = 0;
    while read < piece.len() {
        match below.read(ino, Handle::NONE, at + read as u64, &mut piece[read..])? {
            0 => break,
            n => read += n,
        }
    }
    Ok(piece)
}

fn write_piece(below: &dyn FileSystem, ino: Ino, at: u64, piece: &[u8]) -> Result<()> {
    let mut written = 0;
    while written < piece.len() {
        let to = at + written as u64;
        match below.write(&Caller::ROOT, ino, Handle::NONE, to, &piece[written..])? {
            0 => return Err(Error::Io { errno: EIO, message: "a write of nothing".into() }),
            n => written += n,
        }
    }
    Ok(())
}

impl Old {
    /// Brings the file back to this state.
    fn restore(&self, below: &dyn FileSystem, ino: Ino) -> Result<()> {
        let root = Caller::ROOT;
        // Only what differs: a change that failed may be one that the file's flags forbid.
        for (&at, piece) in &self.content {
            if read_piece(below, ino, at, piece.len() as u64)? != *piece {
                write_piece(below, ino, at, piece)?;
            }
        }
        for (name, old) in &self.xattrs {
            match (old, xattr(below, ino, name)?) {
                (Some(old), now) if now.as_ref() != Some(old) => {
                    below.setxattr(&root, ino, name, old, XattrSet::Any)?;
                }
                (None, Some(_)) => below.removexattr(&root, ino, name)?,
                _ => {}
            }
        }
        let (old, now) = (&self.attr, below.getattr(ino)?);
        // Setting the length frees what was allocated behind it, too.
        let grown = now.blocks_512 > old.blocks_512;
        let resized = old.kind == FileKind::Regular && (grown || old.size_bytes != now.size_bytes);
        let set = SetAttr {
            perm: (old.perm != now.perm).then_some(old.perm),
            uid: (old.uid != now.uid).then_some(old.uid),
            gid: (old.gid != now.gid).then_some(old.gid),
            size_bytes: resized.then_some(old.size_bytes),
            mtime: (old.mtime != now.mtime || resized).then_some(SetTime::At(old.mtime)),
            ..SetAttr::default()
        };
        if set != SetAttr::default() {
            below.setattr(&root, ino, &set)?;
        }
        if let Some(flags) = self.flags {
            below.set_file_flags(&root, ino, flags)?;
        }
        Ok(())
    }
}

impl Step {
    fn undo(self, below: &dyn FileSystem, undone: &mut Undone) -> Result<()> {
        let root = &Caller::ROOT;
        match self {
            Self::Remove { name: (dir, name), is_dir: false } => {
                below.unlink(root, dir, &name)?;
                undone.names.push((dir, name));
            }
            Self::Remove { name: (dir, name), is_dir: true } => {
                below.rmdir(root, dir, &name)?;
                undone.names.push((dir, name));
            }
            Self::Restore { name: (dir, name), ino } => {
                if below.getattr(ino)?.nlink == 0 {
                    below.restore_name(root, ino, dir, &name)?;
                } else {
                    below.link(root, ino, dir, &name)?;
                    below.forget(ino, 1);
                }
                undone.inodes.insert(ino);
                undone.names.push((dir, name));
            }
            Self::Rename { from, to } => {
                below.rename(root, from.0, &from.1, to.0, &to.1, RenameFlags::NO_REPLACE)?;
                undone.names.extend([from, to]);
            }
            Self::Exchange { one, other } => {
                below.rename(root, one.0, &one.1, other.0, &other.1, RenameFlags::EXCHANGE)?;
                undone.names.extend([one, other]);
            }
        }
        Ok(())
    }
}
