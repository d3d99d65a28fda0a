//! The owner and the permissions that a mount gives to Macintosh volumes, which store none.

use weft_vfs::FileKind;

/// The owner and the permissions of files and folders for which the volume stores none, as `uid=`,
/// `gid=`, `fmask=` and `dmask=` give them on the kernel's vfat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions {
    /// The user id of the owner.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The bits taken from the permissions of files, which are 0o644 (0o444 for a locked file).
    pub fmask: u16,
    /// The bits taken from the permissions of folders, which are 0o755.
    pub dmask: u16,
}

impl Permissions {
    /// The permissions of a folder, or of a file that is or is not locked.
    pub(crate) fn perm(&self, kind: FileKind, locked: bool) -> u16 {
        match kind {
            FileKind::Directory => 0o755 & !self.dmask,
            _ if locked => 0o444 & !self.fmask,
            _ => 0o644 & !self.fmask,
        }
    }

    /// Returns `Some(true)` if a `chmod` to `perm` locks a file, `Some(false)` if it unlocks the
    /// file, and `None` if the mask hides all write permissions, so that the caller could not keep
    /// them.
    pub(crate) fn locks(&self, perm: u16) -> Option<bool> {
        (0o644 & !self.fmask & 0o222 != 0).then_some(perm & 0o222 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_permissions_are_not_shown_and_do_not_lock() {
        let plain = Permissions::default();
        assert_eq!(plain.perm(FileKind::Regular, false), 0o644);
        assert_eq!(plain.perm(FileKind::Regular, true), 0o444);
        assert_eq!(plain.perm(FileKind::Directory, false), 0o755);
        assert_eq!((plain.locks(0o444), plain.locks(0o600)), (Some(true), Some(false)));
        let closed = Permissions { fmask: 0o077, dmask: 0o027, ..plain };
        assert_eq!(closed.perm(FileKind::Regular, false), 0o600);
        assert_eq!(closed.perm(FileKind::Regular, true), 0o400);
        assert_eq!(closed.perm(FileKind::Directory, false), 0o750);
        let unwritable = Permissions { fmask: 0o222, ..plain };
        assert_eq!(unwritable.perm(FileKind::Regular, false), 0o444);
        assert_eq!(unwritable.locks(0o444), None);
    }
}
