//! Permission checks in the classic Unix way, for fronts that have no kernel to do them.
//!
//! The first matching class decides: owner, then group (primary or supplementary), then others.
//! User 0 has every permission, except to execute a file without any execute bit. POSIX ACLs are
//! ignored.

use bitflags::bitflags;

use crate::{Attr, Caller, Error, FileKind, Result, SetAttr, SetTime};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

bitflags! {
    /// The permissions that a caller needs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Read a file, list a directory.
        const READ = 4;
        /// Write a file, change a directory's names.
        const WRITE = 2;
        /// Run a file, walk through a directory.
        const EXECUTE = 1;
    }
}

fn is_member(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// Checks whether `caller` has all permissions of `want` on the inode.
///
/// # Errors
/// [`Error::Access`].
pub fn check(attr: &Attr, caller: &Caller, want: Access) -> Result<()> {
    let granted = if caller.uid == 0 {
        let runs = attr.kind == FileKind::Directory || attr.perm & 0o111 != 0;
        if runs { Access::all() } else { Access::READ | Access::WRITE }
    } else {
        let class = if caller.uid == attr.uid {
            attr.perm >> 6
        } else if is_member(caller, attr.gid) {
            attr.perm >> 3
        } else {
            attr.perm
        };
        Access::from_bits_truncate((class & 7) as u8)
    };
    if granted.contains(want) { Ok(()) } else { Err(Error::Access) }
}

/// Checks whether `caller` may remove (or rename) `child` in the directory `parent`.
///
/// # Errors [`Error::Access`]; [`Error::NotPermitted`] by the sticky rule: in a sticky directory
/// only the owner of the file, the owner of the directory and user 0 may remove it.
pub fn check_remove(parent: &Attr, child: &Attr, caller: &Caller) -> Result<()> {
    check(parent, caller, Access::WRITE | Access::EXECUTE)?;
    let owner = caller.uid == 0 || caller.uid == child.uid || caller.uid == parent.uid;
    if parent.perm & STICKY != 0 && !owner {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Checks a change of attributes, and completes it with what the change implies: a change of owner
/// clears setuid and setgid; setgid is also cleared if the caller is not in the group.
///
/// # Errors [`Error::NotPermitted`] if the change is allowed only to the owner or user 0,
/// [`Error::Access`] if it is also allowed to users with write permission.
pub fn check_setattr(attr: &Attr, caller: &Caller, set: &SetAttr) -> Result<SetAttr> {
    let mut set = *set;
    let root = caller.uid == 0;
    let owner = root || caller.uid == attr.uid;
    if !root && set.uid.is_some_and(|uid| !owner || uid != attr.uid) {
        return Err(Error::NotPermitted);
    }
    let group_allowed = |gid| owner && (gid == attr.gid || is_member(caller, gid));
    if !root && set.gid.is_some_and(|gid| !group_allowed(gid)) {
        return Err(Error::NotPermitted);
    }
    if let Some(perm) = set.perm {
        if !owner {
            return Err(Error::NotPermitted);
        }
        if !root && !is_member(caller, set.gid.unwrap_or(attr.gid)) {
            set.perm = Some(perm & !SETGID);
        }
    }
    let explicit = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    if explicit(set.atime) || explicit(set.mtime) || set.ctime.is_some() {
        if !owner {
            return Err(Error::NotPermitted);
        }
    } else if (set.atime.is_some() || set.mtime.is_some()) && !owner {
        check(attr, caller, Access::WRITE)?;
    }
    if set.size_bytes.is_some() {
        check(attr, caller, Access::WRITE)?;
    }
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    if attr.kind != FileKind::Directory && (changes_owner || (set.size_bytes.is_some() && !root)) {
        set.kill_privileges = true;
    }
    Ok(set)
}

/// Returns the permission bits after a write or a change of owner, which clear setuid always, and
/// setgid if the group may execute (without that it means mandatory locking, not privilege).
#[must_use]
pub fn without_privileges(perm: u16) -> u16 {
    if perm & GROUP_EXECUTE != 0 { perm & !(SETUID | SETGID) } else { perm & !SETUID }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileSystem, MemFs, Time};

    fn attr(kind: FileKind, perm: u16, uid: u32, gid: u32) -> Attr {
        let fs = MemFs::new();
        Attr { kind, perm, uid, gid, ..fs.getattr(fs.root()).expect("root") }
    }

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec(), ..Caller::ROOT }
    }

    #[test]
    fn first_class_that_fits_decides() {
        let file = attr(FileKind::Regular, 0o047, 10, 20);
        // The owner has no permissions although others have all.
        assert!(check(&file, &user(10, 1, &[]), Access::READ).is_err());
        assert!(check(&file, &user(11, 20, &[]), Access::READ).is_ok());
        assert!(check(&file, &user(11, 1, &[5, 20]), Access::READ).is_ok());
        assert!(check(&file, &user(11, 1, &[5, 20]), Access::WRITE).is_err());
        assert!(check(&file, &user(11, 1, &[]), Access::all()).is_ok());
    }

    #[test]
    fn user_0_needs_an_execute_bit() {
        let root = user(0, 0, &[]);
        let plain = attr(FileKind::Regular, 0o600, 1, 1);
        assert!(check(&plain, &root, Access::READ | Access::WRITE).is_ok());
        assert!(matches!(check(&plain, &root, Access::EXECUTE), Err(Error::Access)));
        assert!(check(&attr(FileKind::Regular, 0o601, 1, 1), &root, Access::EXECUTE).is_ok());
        assert!(check(&attr(FileKind::Directory, 0, 1, 1), &root, Access::EXECUTE).is_ok());
    }

    #[test]
    fn sticky_directory_protects_the_files_of_others() {
        let tmp = attr(FileKind::Directory, 0o1777, 0, 0);
        let file = attr(FileKind::Regular, 0o666, 10, 10);
        assert!(check_remove(&tmp, &file, &user(10, 1, &[])).is_ok());
        assert!(check_remove(&tmp, &file, &user(0, 0, &[])).is_ok());
        assert!(matches!(check_remove(&tmp, &file, &user(11, 1, &[])), Err(Error::NotPermitted)));
        let open = attr(FileKind::Directory, 0o777, 0, 0);
        assert!(check_remove(&open, &file, &user(11, 1, &[])).is_ok());
        let closed = attr(FileKind::Directory, 0o755, 0, 0);
        assert!(matches!(check_remove(&closed, &file, &user(10, 1, &[])), Err(Error::Access)));
    }

    #[test]
    fn attributes_belong_to_the_owner() {
        let file = attr(FileKind::Regular, 0o6777, 10, 20);
        let (owner, member, other) = (user(10, 30, &[40]), user(11, 20, &[]), user(12, 1, &[]));
        let chmod = SetAttr { perm: Some(0o2755), ..SetAttr::default() };
        assert!(check_setattr(&file, &member, &chmod).is_err());
        // The owner is not in the file's group: setgid is cleared.
        assert_eq!(check_setattr(&file, &owner, &chmod).expect("owner").perm, Some(0o755));
        let chgrp = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
        assert!(check_setattr(&file, &owner, &chgrp(99)).is_err());
        assert!(check_setattr(&file, &owner, &chgrp(40)).expect("member").kill_privileges);
        let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert!(check_setattr(&file, &other, &touch).is_ok());
        let date = SetAttr { mtime: Some(SetTime::At(Time::default())), ..SetAttr::default() };
        assert!(check_setattr(&file, &other, &date).is_err());
        assert!(check_setattr(&file, &owner, &date).is_ok());
    }

    #[test]
    fn setgid_without_group_execute_is_no_privilege() {
        assert_eq!(without_privileges(0o6755), 0o755);
        assert_eq!(without_privileges(0o6745), 0o2745);
    }
}
