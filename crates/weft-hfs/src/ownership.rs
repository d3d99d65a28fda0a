//! Owners and permissions, of which Macintosh volumes know none: those that a mount gives them.

use weft_vfs::FileKind;

/// Who owns what the volume says nothing of, and what who else may do with it. As `uid=`, `gid=`,
/// `fmask=` and `dmask=` of the kernel's vfat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ownership {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permissions that files do not have, of 0o644 (0o444: locked by the Finder).
    pub fmask: u16,
    /// Permissions that folders do not have, of 0o755.
    pub dmask: u16,
}

impl Ownership {
    /// The permissions of a file, which the Finder may call locked, or of a folder.
    pub(crate) fn perm(&self, kind: FileKind, locked: bool) -> u16 {
        match kind {
            FileKind::Directory => 0o755 & !self.dmask,
            _ if locked => 0o444 & !self.fmask,
            _ => 0o644 & !self.fmask,
        }
    }

    /// Whether a change of a file's permissions locks or unlocks it. One that does not see write
    /// permissions says nothing of them.
    pub(crate) fn locks(&self, perm: u16) -> Option<bool> {
        (0o644 & !self.fmask & 0o222 != 0).then_some(perm & 0o222 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_masked_is_not_there_and_does_not_lock() {
        let plain = Ownership::default();
        assert_eq!(plain.perm(FileKind::Regular, false), 0o644);
        assert_eq!(plain.perm(FileKind::Regular, true), 0o444);
        assert_eq!(plain.perm(FileKind::Directory, false), 0o755);
        assert_eq!((plain.locks(0o444), plain.locks(0o600)), (Some(true), Some(false)));
        let closed = Ownership { fmask: 0o077, dmask: 0o027, ..plain };
        assert_eq!(closed.perm(FileKind::Regular, false), 0o600);
        assert_eq!(closed.perm(FileKind::Regular, true), 0o400);
        assert_eq!(closed.perm(FileKind::Directory, false), 0o750);
        let unwritable = Ownership { fmask: 0o222, ..plain };
        assert_eq!(unwritable.perm(FileKind::Regular, false), 0o444);
        assert_eq!(unwritable.locks(0o444), None);
    }
}
