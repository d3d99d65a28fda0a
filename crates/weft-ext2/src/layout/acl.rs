//! POSIX ACLs: programs hand them over in one form (version 2, 8 bytes an entry), the disk keeps
//! them in another (version 1, ids only where an entry has one).

use super::bytes::{get16, get32};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// Tags with an id: a named user, a named group.
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;
/// Tags without: owner, owning group, mask, others.
const TAGS_PLAIN: [u16; 4] = [0x01, 0x04, 0x10, 0x20];

/// The disk's form of an ACL as `setxattr` got it; `None` if it is none.
#[must_use]
pub fn acl_to_disk(xattr: &[u8]) -> Option<Vec<u8>> {
    let entries = xattr.get(4..)?;
    if get32(xattr, 0) != XATTR_VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(8) {
        let tag = get16(entry, 0);
        disk.extend_from_slice(entry.get(..4)?);
        if tag == TAG_USER || tag == TAG_GROUP {
            disk.extend_from_slice(entry.get(4..)?);
        } else if !TAGS_PLAIN.contains(&tag) {
            return None;
        }
    }
    Some(disk)
}

/// The form for `getxattr` of an ACL on disk; `None` if it is damaged.
#[must_use]
pub fn acl_from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    let mut rest = disk.get(4..)?;
    if get32(disk, 0) != DISK_VERSION {
        return None;
    }
    let mut xattr = XATTR_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let tag = get16(rest, 0);
        let long = tag == TAG_USER || tag == TAG_GROUP;
        if !long && !TAGS_PLAIN.contains(&tag) {
            return None;
        }
        let (entry, tail) = rest.split_at_checked(if long { 8 } else { 4 })?;
        xattr.extend_from_slice(entry);
        if !long {
            xattr.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        rest = tail;
    }
    Some(xattr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut acl = XATTR_VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in [(1_u16, 6_u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX)] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&perm.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        let disk = acl_to_disk(&acl).unwrap();
        assert_eq!(disk.len(), 4 + 4 + 8 + 4);
        assert_eq!(acl_from_disk(&disk).unwrap(), acl);
        assert!(acl_to_disk(&acl[..9]).is_none());
        assert!(acl_from_disk(&disk[..15]).is_none());
    }
}
