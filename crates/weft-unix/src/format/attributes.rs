//! Extended attributes of a format.

use super::Inodes;
use crate::{Attribute, Node, Result};
use weft_patch::{Op, PatchId};
use weft_vfs::Error as FsError;

/// Extended attributes. By default there are none, and setting one fails.
pub trait Attributes: Inodes {
    /// Returns all attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    fn attributes(&mut self, op: &mut Op<'_>, node: &Node<Self>) -> Result<Vec<Attribute>> {
        let _ = (op, node);
        Ok(Vec::new())
    }

    /// Refuses the name of an attribute that the format cannot hold.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if the format has no such names, [`FsError::Range`] if this one is
    /// too long.
    fn check_attribute_name(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(FsError::Unsupported("extended attributes").into())
    }

    /// Sets an attribute, or removes it if `value` is `None`, and writes the inode with it as one
    /// change. Returns the patch of the inode.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Unsupported`].
    fn set_attribute(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<PatchId> {
        let _ = (op, node, name, value);
        Err(FsError::Unsupported("extended attributes").into())
    }

    /// Places the attributes that a new inode begins with, which may be none. Adds the patches that
    /// the inode must follow to its [`born_after`](Node::born_after).
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Unsupported`].
    fn place_attributes(
        &mut self,
        op: &mut Op<'_>,
        node: &mut Node<Self>,
        attributes: &[Attribute],
    ) -> Result<()> {
        let _ = (op, node);
        if attributes.is_empty() {
            return Ok(());
        }
        Err(FsError::Unsupported("extended attributes").into())
    }
}
