//! The flags of inodes that users set, and what they forbid and demand.

use super::{Ext2, State};
use crate::Result;
use crate::layout::InodeFlags;
use weft_patch::Op;
use weft_vfs::{Error as FsError, FileFlags, FileKind, SetAttr, SetTime};

impl State {
    /// Refuses to change an inode that its flags protect, unless the change is an `append` (or may
    /// be made to what can only be appended to).
    pub(super) fn check_mutable(&mut self, ino: u32, append: bool) -> Result<()> {
        let flags = self.node(ino)?.inode.flags;
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !append)
        {
            return Err(FsError::NotPermitted.into());
        }
        Ok(())
    }

    /// Refuses to give a directory another name where its flags protect it.
    pub(super) fn check_gains_name(&mut self, dir: u32) -> Result<()> {
        self.check_mutable(dir, true)
    }

    /// Refuses to take the name of `ino` from a directory where the flags of either protect it.
    pub(super) fn check_loses_name(&mut self, dir: u32, ino: u32) -> Result<()> {
        self.check_mutable(dir, false)?;
        self.check_mutable(ino, false)
    }

    /// Refuses to change attributes that the inode's flags protect. The length is the truncation's
    /// affair. What can only be appended to may still be touched.
    pub(super) fn check_settable(&mut self, ino: u32, set: &SetAttr) -> Result<()> {
        if set.ctime.is_some() {
            // A front that keeps the times says what earlier writes made of them.
            return Ok(());
        }
        let times = [set.atime, set.mtime];
        let given = times.iter().any(|time| matches!(time, Some(SetTime::At(_))));
        let touched = times.contains(&Some(SetTime::Now));
        let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        if owned || given {
            self.check_mutable(ino, false)
        } else if touched && set.size_bytes.is_none() {
            self.check_mutable(ino, true)
        } else {
            Ok(())
        }
    }

    fn flagged(&mut self, op: &mut Op<'_>, ino: u32) -> Result<(FileKind, InodeFlags)> {
        let node = self.load(op, ino)?;
        match node.kind {
            FileKind::Regular | FileKind::Directory => Ok((node.kind, node.inode.flags)),
            _ => Err(FsError::UnknownCommand.into()),
        }
    }

    fn has_flag(&self, ino: u32, flags: InodeFlags) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.inode.flags.intersects(flags))
    }
}

impl Ext2 {
    pub(super) fn do_file_flags(&self, ino: u32) -> Result<FileFlags> {
        let (_, flags) = self.look(|st, op| st.flagged(op, ino))?;
        Ok(FileFlags::from_bits_retain((flags & InodeFlags::USER_VISIBLE).bits()))
    }

    pub(super) fn do_set_file_flags(&self, ino: u32, flags: FileFlags) -> Result<()> {
        let asked = InodeFlags::from_bits_retain(flags.bits());
        self.change(1, |st, op| {
            let (kind, old) = st.flagged(op, ino)?;
            // Flags that can be seen and not changed come back from whoever read them before.
            let new = asked & InodeFlags::USER_MODIFIABLE;
            if !InodeFlags::USER_VISIBLE.contains(asked) || new.of_kind(kind) != new {
                return Err(FsError::Unsupported("these flags").into());
            }
            let node = st.node(ino)?;
            node.inode.flags = (old - InodeFlags::USER_MODIFIABLE) | new;
            node.changed();
            st.write_node(op, ino, &[])?;
            Ok(())
        })
    }

    /// Makes a file durable that asks for it at each change.
    pub(super) fn sync_if_flagged(&self, ino: u32) -> Result<()> {
        if self.lock().has_flag(ino, InodeFlags::SYNC) { self.do_fsync(ino, false) } else { Ok(()) }
    }

    /// Makes directories durable that ask for it at each change of their names, and with them the
    /// inode that has got a name there.
    pub(super) fn sync_names_if_flagged(&self, dirs: &[u32], named: Option<u32>) -> Result<()> {
        let asks = |dir: &&u32| self.lock().has_flag(**dir, InodeFlags::SYNC | InodeFlags::DIRSYNC);
        for &dir in dirs.iter().filter(asks) {
            self.do_fsync(dir, false)?;
            if let Some(ino) = named {
                self.do_fsync(ino, false)?;
            }
        }
        Ok(())
    }
}
