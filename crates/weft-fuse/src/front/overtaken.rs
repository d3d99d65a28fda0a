//! Replies with attributes that a change overtakes.
//!
//! When a request that changes an inode has succeeded, the kernel drops the attributes that it keeps
//! of the inode. A reply that carries attributes from before the change may arrive after that, and
//! the kernel would take them for new, for as long as attributes live: a mode that is set by way
//! of an ACL would seem unchanged if another process lists the directory meanwhile. For some
//! changes the kernel rejects such replies by itself (`attr_version` in fs/fuse/inode.c: a reply to a
//! request that began before the last change is ignored): writes, `setattr`, the inode of an unlinked
//! name. For the others it is told to drop the attributes once more, before the change is answered,
//! which has that effect: [`Front::announce_overtaken`].
//!
//! A notice costs a system call, so that none is sent while no reply with attributes is under way.

use crate::wire::{Body, Header, Malformed, Opcode};

use super::Front;

impl Front {
    /// After a request that has succeeded, and before it is answered: tells the kernel to drop the
    /// attributes of the inodes that it changed, if a reply of before the change may be under way.
    pub(super) fn announce_overtaken(&self, opcode: Opcode, head: &Header, body: Body<'_>) {
        if !self.attribute_replies.has_others(opcode) {
            return;
        }
        match opcode {
            // The inode itself, or the directory of the name.
            Opcode::SetXattr
            | Opcode::RemoveXattr
            | Opcode::FAllocate
            | Opcode::Ioctl
            | Opcode::Unlink
            | Opcode::RmDir
            | Opcode::MkNod
            | Opcode::MkDir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::Create => self.announce_attributes(head.node),
            Opcode::Rename | Opcode::Rename2 => {
                // It was parsed before.
                let _ = self.announce_renamed(opcode, head, body);
            }
            _ => {}
        }
    }

    /// Announces both directories, and what has a new name: its ctime has changed.
    fn announce_renamed(
        &self,
        opcode: Opcode,
        head: &Header,
        mut body: Body<'_>,
    ) -> Result<(), Malformed> {
        let new_parent = body.u64()?;
        if opcode == Opcode::Rename2 {
            body.skip(8)?;
        }
        let (name, new_name) = (body.name()?, body.name()?);
        for (parent, name) in [(head.node, name), (new_parent, new_name)] {
            self.announce_attributes(parent);
            // The old name exists if two names were exchanged.
            if let Ok(entry) = self.fs.lookup(self.ino(parent), name) {
                self.announce_attributes(self.node(entry.attr.ino));
                self.fs.forget(entry.attr.ino, 1);
            }
        }
        Ok(())
    }
}
