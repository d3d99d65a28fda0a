//! POSIX ACLs of the host: its kernel keeps them and those of a mount obeys them.

use std::os::fd::AsFd;

use rustix::fs::getxattr_query;
use rustix::io::Errno;

use super::attributes::extended;
use super::descriptors::magic;
use super::errno::os;
use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::{Caller, Error, Result, XattrSet};

/// Returns true for the name of an extended attribute that holds an ACL.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Returns the permission bits of a file created in a directory: the umask applies unless there is
/// a default ACL. The host has set the ACL of the file, and `chmod(2)` to these bits completes it.
pub(super) fn perm_of_new(directory: impl AsFd, caller: &Caller, perm: u16) -> Result<u16> {
    let default = match extended(&magic(directory.as_fd()), DEFAULT) {
        Ok(value) => Acl::parse(&value)?,
        Err(Error::NoAttribute | Error::Unsupported(_)) => None,
        Err(e) => return Err(e),
    };
    Ok(match default {
        Some(default) => default.inherited(perm).0,
        None => perm & !caller.umask,
    })
}

/// Checks the conditions that the host's kernel ignores when it sets an ACL (`Some`) or removes
/// one: `XATTR_CREATE` and `XATTR_REPLACE`, that an ACL to remove exists, and that the value is a
/// list.
pub(super) fn check(path: &str, name: &[u8], value: Option<(&[u8], XattrSet)>) -> Result<()> {
    if !is_acl(name) {
        return Ok(());
    }
    let is_there = match getxattr_query(path, name) {
        Ok(_) => true,
        Err(Errno::NODATA) => false,
        Err(e) => return Err(os(e)),
    };
    match value {
        Some((_, XattrSet::Create)) if is_there => Err(Error::Exists),
        Some((_, XattrSet::Replace)) | None if !is_there => Err(Error::NoAttribute),
        // The host treats an empty value as a list without entries.
        Some((value, _)) => Acl::parse(value).map(drop),
        None => Ok(()),
    }
}
