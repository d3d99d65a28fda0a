//! The flags of inodes that users set: the changes that they forbid, and the syncs that they
//! demand.

use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::state::State;
use crate::{Error, Result};
use weft_patch::Op;
use weft_vfs::{Error as FsError, FileFlags, FileKind, Ino, SetAttr, SetTime};

/// `FS_DIRSYNC_FL`: changes of a directory's names are durable when they return.
const DIRSYNC: FileFlags = FileFlags::from_bits_retain(0x1_0000);

impl<F: Format> State<F> {
    /// Refuses to change an inode that its flags protect, unless the change is an `append` (or is
    /// allowed for a file that may only be appended to).
    pub(crate) fn check_mutable(&mut self, ino: Ino, append: bool) -> Result<()> {
        let flags = self.node(ino)?.inode.flags;
        if flags.contains(FileFlags::IMMUTABLE) || (flags.contains(FileFlags::APPEND) && !append) {
            return Err(FsError::NotPermitted.into());
        }
        Ok(())
    }

    /// Refuses to give a directory another name where its flags protect it.
    pub(crate) fn check_gains_name(&mut self, dir: Ino) -> Result<()> {
        self.check_mutable(dir, true)
    }

    /// Refuses to remove the name of `ino` from a directory where the flags of either protect it.
    pub(crate) fn check_loses_name(&mut self, dir: Ino, ino: Ino) -> Result<()> {
        self.check_mutable(dir, false)?;
        self.check_mutable(ino, false)
    }

    /// Refuses to change attributes that the inode's flags protect. Truncation checks the length
    /// itself. Both times of a file that may only be appended to may still be set to now, as utimensat(2)
    /// has it.
    pub(crate) fn check_settable(&mut self, ino: Ino, set: &SetAttr) -> Result<()> {
        if set.ctime.is_some() {
            // A front that keeps the times says what earlier writes made of them.
            return Ok(());
        }
        let times = [set.atime, set.mtime];
        let touched = times.contains(&Some(SetTime::Now));
        let both = times.iter().all(|time| *time == Some(SetTime::Now));
        let given = if set.size_bytes.is_some() {
            times.iter().any(|time| matches!(time, Some(SetTime::At(_))))
        } else {
            times != [None; 2] && !both
        };
        let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        if owned || given {
            self.check_mutable(ino, false)
        } else if touched && set.size_bytes.is_none() {
            self.check_mutable(ino, true)
        } else {
            Ok(())
        }
    }

    fn flagged(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<(FileKind, FileFlags)> {
        let node = self.load(op, ino)?;
        match node.kind {
            FileKind::Regular | FileKind::Directory => Ok((node.kind, node.inode.flags)),
            _ => Err(FsError::UnknownCommand.into()),
        }
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_file_flags(&self, ino: Ino) -> Result<FileFlags> {
        self.look(|st, op| {
            let (kind, flags) = st.flagged(op, ino)?;
            let support = st.format.flags(kind).ok_or(FsError::UnknownCommand)?;
            Ok(flags & support.visible)
        })
    }

    pub(crate) fn do_set_file_flags(&self, ino: Ino, asked: FileFlags) -> Result<()> {
        self.change(1, &[Need::Inode(ino)], |st, op| {
            let (kind, old) = st.flagged(op, ino)?;
            let support = st.format.flags(kind).ok_or(FsError::UnknownCommand)?;
            // Flags that can be seen and not changed come back from whoever read them before.
            let new = asked & support.ever_modifiable;
            if !support.visible.contains(asked) || !support.modifiable.contains(new) {
                return Err(FsError::Unsupported("these flags").into());
            }
            let (format, node) = st.with_node(ino)?;
            node.inode.flags = (old - support.ever_modifiable) | new;
            node.changed(format);
            st.write_node(op, ino, &[])?;
            Ok(())
        })
    }

    /// Reports whether an inode that was changed just now has one of these flags. It may have been
    /// dropped from memory since, or be gone.
    fn has_flag(&self, ino: Ino, flags: FileFlags) -> Result<bool> {
        if let Some(node) = self.lock().nodes.get(ino) {
            return Ok(node.inode.flags.intersects(flags));
        }
        match self.look(|st, op| Ok(st.load(op, ino)?.inode.flags)) {
            Ok(set) => Ok(set.intersects(flags)),
            Err(Error::Vfs(FsError::Stale(_))) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes a file durable whose flags ask for that at each change.
    pub(crate) fn sync_if_flagged(&self, ino: Ino) -> Result<()> {
        if self.has_flag(ino, FileFlags::SYNC)? { self.do_fsync(ino, false) } else { Ok(()) }
    }

    /// Makes directories durable whose flags ask for that at each change of their names, and with
    /// them the inode that got a name there.
    pub(crate) fn sync_names_if_flagged(&self, dirs: &[Ino], named: Option<Ino>) -> Result<()> {
        for &dir in dirs {
            if !self.has_flag(dir, FileFlags::SYNC | DIRSYNC)? {
                continue;
            }
            self.do_fsync(dir, false)?;
            if let Some(ino) = named {
                self.do_fsync(ino, false)?;
            }
        }
        Ok(())
    }
}
