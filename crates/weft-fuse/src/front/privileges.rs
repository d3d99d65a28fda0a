//! Removal of capabilities, setuid and setgid from a file whose content or owner changes.

use weft_vfs::access::without_privileges;
use weft_vfs::{Error, Ino, SetAttr};

use super::{Answered, Front};
use crate::wire::Header;

impl Front {
    /// The kernel leaves it to this process to remove file capabilities from a file that changes.
    /// Few files have any: a check is cheaper than a change without effect.
    pub(super) fn drop_capabilities(&self, head: &Header, ino: Ino) -> Answered {
        const CAPABILITIES: &[u8] = b"security.capability";
        match self.fs.getxattr(ino, CAPABILITIES) {
            Ok(_) => Ok(self.fs.removexattr(&Self::caller(head), ino, CAPABILITIES)?),
            Err(Error::NoAttribute | Error::Unsupported(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes setuid and setgid from a file whose content an unprivileged caller changes; setgid
    /// without group execution only if the caller is not in the group, as far as the request tells.
    /// The kernel leaves this to the file system and continues to show its cached mode, so it is
    /// notified at once: attributes alone can be announced while it waits for the reply.
    pub(super) fn drop_privileges(&self, head: &Header, ino: Ino) -> Answered {
        const SETUID_SETGID: u16 = 0o6000;
        const SETGID: u16 = 0o2000;
        let attr = self.fs.getattr(ino)?;
        if attr.perm & SETUID_SETGID == 0 {
            return Ok(());
        }
        let mut perm = without_privileges(attr.perm);
        if head.gid != attr.gid {
            perm &= !SETGID;
        }
        if perm != attr.perm {
            self.fs.setattr(
                &Self::caller(head),
                ino,
                &SetAttr { perm: Some(perm), ..SetAttr::default() },
            )?;
            self.announce_attributes(head.node);
        }
        Ok(())
    }
}
