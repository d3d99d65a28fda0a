//! Extended attributes, and the ACLs among them: setting an access ACL changes the mode of the
//! inode with it, and new inodes inherit the default ACL of their directory.

use crate::format::Format;
use crate::front::UnixFs;
use crate::needs::Need;
use crate::node::Attribute;
use crate::state::State;
use crate::{Error, Result};
use weft_patch::Op;
use weft_vfs::acl::{self, Acl};
use weft_vfs::{Error as FsError, FileKind, Ino, XattrSet};

/// Blocks that setting one attribute changes, at most.
pub(crate) const ATTRIBUTE_BLOCKS: u32 = 12;
/// The longest value Linux passes on.
const VALUE_MAX_BYTES: usize = 65_536;

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn read_acl(ino: Ino, found: &Attribute) -> Result<Option<Acl>> {
    Acl::parse(&found.value).map_err(|_| {
        let inode = format!("attributes of inode {}", ino.0);
        Error::corrupt(inode, 0, "an ACL makes no sense")
    })
}

impl<F: Format> State<F> {
    fn attributes(&mut self, op: &mut Op<'_>, ino: Ino) -> Result<Vec<Attribute>> {
        self.load(op, ino)?;
        let (format, node) = self.with_node(ino)?;
        format.attributes(op, node)
    }

    /// Sets an attribute, or removes it if there is no value; with it the mode, if one is given, in
    /// the same write of the inode.
    fn set_attribute(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrSet,
        mode: Option<u16>,
    ) -> Result<()> {
        let exists = self.attributes(op, ino)?.iter().any(|a| a.name == name);
        match how {
            XattrSet::Create if exists => return Err(FsError::Exists.into()),
            XattrSet::Replace if !exists => return Err(FsError::NoAttribute.into()),
            _ => {}
        }
        let (format, node) = self.with_node(ino)?;
        let (old_mode, old_ctime) = (node.inode.mode, node.inode.ctime);
        node.inode.mode = mode.unwrap_or(node.inode.mode);
        node.changed(format);
        match format.set_attribute(op, node, name, value) {
            Ok(patch) => node.patch = patch,
            Err(e) => {
                (node.inode.mode, node.inode.ctime) = (old_mode, old_ctime);
                return Err(e);
            }
        }
        node.lazy = false;
        self.lazy.remove(&ino);
        Ok(())
    }

    /// Returns the ACL of this name that an inode has.
    fn acl(&mut self, op: &mut Op<'_>, ino: Ino, name: &[u8]) -> Result<Option<Acl>> {
        let found = self.attributes(op, ino)?.into_iter().find(|a| a.name == name);
        found.map_or(Ok(None), |found| read_acl(ino, &found))
    }

    /// Sets or removes an ACL. An access ACL changes the mode of the inode too, and is not stored
    /// if the mode says the same.
    fn set_acl(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        name: &[u8],
        acl: Option<Acl>,
        how: XattrSet,
    ) -> Result<()> {
        let node = self.load(op, ino)?;
        let (kind, mode) = (node.kind, node.inode.mode);
        if kind == FileKind::Symlink {
            return Err(FsError::Unsupported("ACLs of symbolic links").into());
        }
        if !self.format.limits().has_attributes {
            return Err(FsError::Unsupported("attributes on this volume").into());
        }
        if name == acl::DEFAULT && kind != FileKind::Directory && acl.is_some() {
            return Err(FsError::Access.into());
        }
        let access = name == acl::ACCESS;
        let mode = acl.as_ref().filter(|_| access).map(|acl| mode & !0o777 | acl.perm());
        let kept = acl.filter(|acl| !access || !acl.is_mode());
        let value = kept.map(|acl| acl.to_xattr());
        self.set_attribute(op, ino, name, value.as_deref(), how, mode)
    }

    /// Sets the permission bits in the ACL of an inode that has one, and those of its mode with
    /// them.
    pub(crate) fn chmod_acl(&mut self, op: &mut Op<'_>, ino: Ino, perm: u16) -> Result<()> {
        let Some(acl) = self.acl(op, ino, acl::ACCESS)? else { return Ok(()) };
        let value = acl.with_perm(perm).to_xattr();
        let mode = self.node(ino)?.inode.mode & !0o7777 | (perm & 0o7777);
        self.set_attribute(op, ino, acl::ACCESS, Some(&value), XattrSet::Any, Some(mode))
    }

    /// Returns the permission bits of a new inode in directory `parent`, and the ACLs that it
    /// inherits.
    pub(crate) fn inherit(
        &mut self,
        op: &mut Op<'_>,
        parent: Ino,
        kind: FileKind,
        perm: u16,
        umask: u16,
    ) -> Result<(u16, Vec<Attribute>)> {
        if kind == FileKind::Symlink {
            return Ok((perm, Vec::new()));
        }
        let Some(default) = self.acl(op, parent, acl::DEFAULT)? else {
            return Ok((perm & !umask, Vec::new()));
        };
        let acl = |name: &[u8], acl: &Acl| Attribute { name: name.to_vec(), value: acl.to_xattr() };
        let (perm, own) = default.inherited(perm);
        let mut attributes: Vec<_> = own.iter().map(|own| acl(acl::ACCESS, own)).collect();
        if kind == FileKind::Directory {
            attributes.push(acl(acl::DEFAULT, &default));
        }
        Ok((perm, attributes))
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.lock().format.check_attribute_name(name)?;
        let attributes = self.look(|st, op| st.attributes(op, ino))?;
        let found = attributes.into_iter().find(|a| a.name == name).ok_or(FsError::NoAttribute)?;
        if is_acl(name) {
            read_acl(ino, &found)?;
        }
        Ok(found.value)
    }

    pub(crate) fn do_listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let attributes = self.look(|st, op| st.attributes(op, ino))?;
        Ok(attributes.into_iter().map(|a| a.name).collect())
    }

    pub(crate) fn do_setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrSet,
    ) -> Result<()> {
        self.lock().format.check_attribute_name(name)?;
        if value.is_some_and(|v| v.len() > VALUE_MAX_BYTES) {
            return Err(FsError::Range.into());
        }
        let acl = value.filter(|_| is_acl(name)).map(Acl::parse).transpose()?;
        self.change(ATTRIBUTE_BLOCKS, &[Need::Inode(ino)], |st, op| {
            st.load(op, ino)?;
            st.check_mutable(ino, false)?;
            match &acl {
                Some(acl) => st.set_acl(op, ino, name, acl.clone(), how),
                None => st.set_attribute(op, ino, name, value, how, None),
            }
        })
    }
}
