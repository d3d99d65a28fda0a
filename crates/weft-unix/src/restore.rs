//! Names that come back: the removal of an inode's last name is undone while the inode is still used.
//!
//! With a journal only: there the removal and its undoing are of one transaction, or of two in their
//! order. Soft updates would have to order the new name after all that the removal has begun.

use crate::Result;
use crate::format::Format;
use crate::front::UnixFs;
use crate::name_changes::Position;
use crate::names::{NAME_BLOCKS, check_new_name};
use crate::needs::Need;
use crate::state::State;
use weft_patch::{Op, PatchId, Policy};
use weft_vfs::{Error as FsError, FileKind, Ino};

impl<F: Format> State<F> {
    fn restore_name(&mut self, op: &mut Op<'_>, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        let kind = self.load(op, ino)?.kind;
        let is_dir = kind == FileKind::Directory;
        self.load_dir(op, parent)?;
        check_new_name(name)?;
        let (format, dir) = self.with_node(parent)?;
        if format.find(op, dir, name)?.is_some() || self.node(ino)?.links() > 0 {
            return Err(FsError::Exists.into());
        }
        self.check_gains_name(parent)?;
        if is_dir && self.node(parent)?.links() >= self.format.limits().links_max {
            return Err(FsError::TooManyLinks.into());
        }
        let generation = self.next_generation();
        let (format, dir) = self.with_node(parent)?;
        let reserved = format.reserve(op, dir, name, kind)?;
        let position = Position::new(parent, format.position(format.place(&reserved)));
        dir.modified(format);
        dir.epoch += 1;
        dir.inode.links += u32::from(is_dir);
        let (format, node) = self.with_node(ino)?;
        node.inode.links = if is_dir { 2 } else { 1 };
        node.unlinked = PatchId::DURABLE;
        node.unnamed = false;
        node.parent = parent;
        node.changed(format);
        if is_dir {
            node.inode.generation = generation;
        }
        self.mark_named(op, ino)?;
        let counted = self.write_node(op, ino, &[])?;
        self.write_node(op, parent, &[])?;
        let (format, dir) = self.with_node(parent)?;
        let named = format.fill(op, dir, reserved, ino, &[counted])?;
        self.gave_name(op, ino, position, named)
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_restore_name(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        if !matches!(self.policy(), Policy::Journal(_)) {
            return Err(FsError::Unsupported("names that come back, without a journal").into());
        }
        let needs = [Need::Inode(ino), Need::Name(parent, name)];
        self.change(NAME_BLOCKS, &needs, |st, op| st.restore_name(op, ino, parent, name))?;
        self.sync_names_if_flagged(&[parent], Some(ino))
    }
}
