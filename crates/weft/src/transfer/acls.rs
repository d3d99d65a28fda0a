//! The access control lists of items in transfer.
//!
//! A list travels as the attribute that holds it, with the permission bits that it gives: their
//! group bits are its mask. Without the list these bits would give the mask to the owning group, and
//! a user whom an entry refuses the rights of others. So wherever a list is left behind, by a source
//! or by a sink, the bits become those of [`without`].

use super::Item;
use weft_vfs::acl::{self, Acl};

/// Whether an attribute is an access control list.
pub(super) fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Returns the value of an attribute of an item.
fn value<'a>(item: &Item<'a>, name: &[u8]) -> Option<&'a [u8]> {
    item.xattrs.iter().find(|(own, _)| own == name).map(|(_, value)| &value[..])
}

/// Returns the access list of an item: not one that says no more than the mode.
pub(super) fn access<'a>(item: &Item<'a>) -> Option<&'a [u8]> {
    let value = value(item, acl::ACCESS)?;
    let is_mode = match Acl::parse(value) {
        Ok(list) => list.is_none_or(|list| list.is_mode()),
        Err(_) => false,
    };
    (!is_mode).then_some(value)
}

/// Returns the default list of a directory.
pub(super) fn default<'a>(item: &Item<'a>) -> Option<&'a [u8]> {
    value(item, acl::DEFAULT).filter(|value| !matches!(Acl::parse(value), Ok(None)))
}

/// Returns the mode of a file that loses its access list: `perm` with the most permission bits that
/// give no user more than the list did. Of a list that cannot be read nothing is known, and only the
/// owner keeps rights.
pub(super) fn without(perm: u16, list: &[u8]) -> u16 {
    let bits = match Acl::parse(list) {
        Ok(Some(list)) => list.perm_without_entries(),
        Ok(None) => perm & 0o777,
        Err(_) => perm & 0o700,
    };
    // Whatever the list says, no right that the mode does not show. The group bits of a list that
    // names nobody are not its mask.
    perm & 0o7000 | bits & perm
}

/// Removes the lists from the attributes of an item that leaves them behind, and returns its mode
/// without them.
pub(super) fn drop_lists(perm: u16, xattrs: &mut Vec<(Vec<u8>, Vec<u8>)>) -> u16 {
    let list = xattrs.iter().find(|(name, _)| name == acl::ACCESS);
    let perm = list.map_or(perm, |(_, list)| without(perm, list));
    xattrs.retain(|(name, _)| !is_list(name));
    perm
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_vfs::acl::Acl;

    #[test]
    fn a_mode_without_its_list_gives_the_group_its_own_rights() {
        let list = |text: &str| Acl::from_text(text, &|_, _| None).unwrap().to_xattr();
        let common = list("u::rw-,u:99:rwx,g::r--,m::rwx,o::---");
        assert_eq!(without(0o670, &common), 0o640);
        assert_eq!(without(0o6670, &common), 0o6640);
        // An entry that refuses: the user could be in the group, and would be one of the others.
        let refused = list("u::rwx,u:99:---,g::r-x,m::r-x,o::r-x");
        assert_eq!(without(0o755, &refused), 0o700);
        // A mode that shows less than the list, from a careless writer.
        assert_eq!(without(0o600, &common), 0o600);
        assert_eq!(without(0o777, b"\x02\0\0\0\x01"), 0o700);
        let mut xattrs = vec![
            (acl::ACCESS.to_vec(), common),
            (b"user.a".to_vec(), b"b".to_vec()),
            (acl::DEFAULT.to_vec(), list("u::rwx,g::rwx,o::rwx")),
        ];
        assert_eq!(drop_lists(0o670, &mut xattrs), 0o640);
        assert_eq!(xattrs, [(b"user.a".to_vec(), b"b".to_vec())]);
    }
}
