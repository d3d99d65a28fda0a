//! Extended attributes, and the effect of an ACL on setgid.

use weft_vfs::{Error, Ino, SetAttr, XattrSet};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Header, Reply, errno, xattr};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Front {
    /// Checks the caller for an attribute that only the user of the mount may use: the kernel has
    /// checked only the file's permissions, which may not matter for it.
    fn check_owner(&self, head: &Header, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Answered {
        if Self::is_privileged(head) || !self.fs.is_for_owner(head.uid, ino, name, value) {
            Ok(())
        } else {
            Err(Error::Access.into())
        }
    }

    /// Returns true for root and the user who runs the mount.
    fn is_privileged(head: &Header) -> bool {
        head.uid == 0 || head.uid == rustix::process::geteuid().as_raw()
    }

    /// Checks attributes that only the owner may change. The kernel lets every user with write
    /// permission set and remove `user.` attributes.
    fn check_owner_of_file(&self, head: &Header, ino: Ino, name: &[u8]) -> Answered {
        if Self::is_privileged(head) || !self.fs.is_owners_to_set(ino, name) {
            return Ok(());
        }
        if self.fs.getattr(ino)?.uid == head.uid { Ok(()) } else { Err(Error::NotPermitted.into()) }
    }

    pub(super) fn setxattr(&self, head: &Header, ino: Ino, mut body: Body<'_>) -> Answered {
        let (size, flags) = (body.u32()?, body.u32()?);
        let mut more = 0;
        if self.agreed.long_setxattr() {
            more = body.u32()?;
            body.skip(4)?;
        }
        let (name, value) = (body.name()?, body.bytes(size as usize)?);
        self.check_owner(head, ino, name, Some(value))?;
        self.check_owner_of_file(head, ino, name)?;
        let how = match flags {
            0 => XattrSet::Any,
            xattr::CREATE => XattrSet::Create,
            xattr::REPLACE => XattrSet::Replace,
            _ => return Err(Refusal::Protocol(errno::EINVAL)),
        };
        self.fs.setxattr(&Self::caller(head), ino, name, value, how)?;
        self.announce_mode(head, name);
        if more & xattr::ACL_KILL_SGID != 0 {
            let perm = self.fs.getattr(ino)?.perm;
            if perm & 0o2000 != 0 {
                let perm = Some(perm & !0o2000);
                self.fs.setattr(
                    &Self::caller(head),
                    ino,
                    &SetAttr { perm, ..SetAttr::default() },
                )?;
            }
        }
        Ok(())
    }

    /// Replies with a value; a size of 0 requests the length only.
    fn sized(value: &[u8], size: u32, reply: &mut Reply) -> Answered {
        if size == 0 {
            // A value has at most 64 KiB.
            reply.u32(value.len() as u32);
            reply.u32(0);
        } else if value.len() > size as usize {
            return Err(Refusal::Protocol(errno::ERANGE));
        } else {
            reply.put(value);
        }
        Ok(())
    }

    pub(super) fn getxattr(
        &self,
        head: &Header,
        ino: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let size = body.u32()?;
        body.skip(4)?;
        let name = body.name()?;
        self.check_owner(head, ino, name, None)?;
        Self::sized(&self.fs.getxattr(ino, name)?, size, reply)
    }

    pub(super) fn removexattr(&self, head: &Header, ino: Ino, mut body: Body<'_>) -> Answered {
        let name = body.name()?;
        self.check_owner(head, ino, name, None)?;
        self.check_owner_of_file(head, ino, name)?;
        self.fs.removexattr(&Self::caller(head), ino, name)?;
        self.announce_mode(head, name);
        Ok(())
    }

    /// A new ACL changes the mode. Unless the kernel keeps ACLs itself, it would go on to show the
    /// old one.
    fn announce_mode(&self, head: &Header, name: &[u8]) {
        if name == ACCESS_ACL && !self.agreed.acls() {
            self.announce_attributes(head.node);
        }
    }

    pub(super) fn listxattr(
        &self,
        head: &Header,
        ino: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let size = body.u32()?;
        let mut list = Vec::new();
        for name in self.fs.listxattr(ino)? {
            // `trusted.` attributes are for privileged callers only.
            if head.uid == 0 || !name.starts_with(b"trusted.") {
                list.extend(name);
                list.push(0);
            }
        }
        Self::sized(&list, size, reply)
    }
}
