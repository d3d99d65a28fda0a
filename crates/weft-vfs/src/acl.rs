//! POSIX access control lists: their encoding, and their relation to the mode of a file.
//!
//! The encoding is that of the attributes `system.posix_acl_access` and `system.posix_acl_default`
//! (`include/uapi/linux/posix_acl_xattr.h`): a version (4 bytes, 2), then an entry of 8 bytes each:
//! tag (2), permissions (2), id (4), all little-endian. The rules are those of acl(5), POSIX
//! 1003.1e draft 17: the owner's entry, the mask (or the owning group's entry where there is no
//! mask) and the entry for others *are* the nine permission bits of the mode, so that whatever
//! changes one changes the other.

use crate::{Error, Result};

pub use crate::acl_text::Named;

/// The attribute with the access ACL of a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the default ACL of a directory, which new files in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id field of entries without an id.
const NO_ID: u32 = u32::MAX;

pub(crate) const OWNER: u16 = 0x01;
pub(crate) const USER: u16 = 0x02;
pub(crate) const OWNING_GROUP: u16 = 0x04;
pub(crate) const GROUP: u16 = 0x08;
pub(crate) const MASK: u16 = 0x10;
pub(crate) const OTHERS: u16 = 0x20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AclEntry {
    pub(crate) tag: u16,
    pub(crate) perm: u16,
    pub(crate) id: u32,
}

/// A valid access control list: exactly one entry for each of owner, owning group and others, a
/// mask if a user or a group is named, all in canonical order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    pub(crate) entries: Vec<AclEntry>,
}

impl Acl {
    /// Parses the value of one of the two attributes; returns `None` for a list without entries,
    /// which removes the ACL.
    ///
    /// # Errors [`Error::Invalid`] if the value is not a valid list.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        const NONE: Error = Error::Invalid("not an access control list");
        let (version, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or(NONE)?;
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return Err(NONE);
        }
        let entries: Vec<_> = entries
            .iter()
            .map(|&[t0, t1, p0, p1, id @ ..]| AclEntry {
                tag: u16::from_le_bytes([t0, t1]),
                perm: u16::from_le_bytes([p0, p1]),
                id: u32::from_le_bytes(id),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.makes_sense() { Ok(Some(acl)) } else { Err(NONE) }
    }

    pub(crate) fn makes_sense(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|e| e.tag == tag).count();
        let known = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS];
        let named = count(USER) + count(GROUP) > 0;
        let valid = |e: &AclEntry| {
            let takes_id = matches!(e.tag, USER | GROUP);
            known.contains(&e.tag) && e.perm <= 7 && (!takes_id || e.id != NO_ID)
        };
        self.entries.iter().all(valid)
            && self.entries.is_sorted_by_key(|e| e.tag)
            && [OWNER, OWNING_GROUP, OTHERS].iter().all(|tag| count(*tag) == 1)
            && (count(MASK) == 1 || (count(MASK) == 0 && !named))
    }

    /// Encodes the list as the value of the attribute.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let id = if matches!(entry.tag, USER | GROUP) { entry.id } else { NO_ID };
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Returns true if the list is equivalent to a mode: such a list is not stored.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    fn entry_mut(&mut self, tag: u16) -> Option<&mut AclEntry> {
        self.entries.iter_mut().find(|e| e.tag == tag)
    }

    /// Returns the tag of the entry that corresponds to the group bits of the mode.
    fn group_class(&self) -> u16 {
        if self.entries.iter().any(|e| e.tag == MASK) { MASK } else { OWNING_GROUP }
    }

    /// Returns the nine permission bits of a file with this list.
    #[must_use]
    pub fn perm(&self) -> u16 {
        let group = self.group_class();
        let bits = |tag| self.entries.iter().find(|e| e.tag == tag).map_or(0, |e| e.perm);
        bits(OWNER) << 6 | bits(group) << 3 | bits(OTHERS)
    }

    /// Returns the nine permission bits of a file that loses this list: the most that give no user
    /// more than the list gave. The group bits are the rights of the owning group, not the mask. A
    /// named user may be in the owning group, and a named user or group has the rights of others
    /// without an entry: so a named entry with fewer rights takes them from these.
    #[must_use]
    pub fn perm_without_entries(&self) -> u16 {
        let bits = |tag| self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm);
        let mask = bits(MASK).unwrap_or(7);
        let mut group = bits(OWNING_GROUP).unwrap_or(0) & mask;
        let mut others = bits(OTHERS).unwrap_or(0);
        for entry in self.entries.iter().filter(|e| matches!(e.tag, USER | GROUP)) {
            let rights = entry.perm & mask;
            if entry.tag == USER {
                group &= rights;
            }
            others &= rights;
        }
        bits(OWNER).unwrap_or(0) << 6 | group << 3 | others
    }

    /// Returns the list after `chmod(2)` to `perm`.
    #[must_use]
    pub fn with_perm(mut self, perm: u16) -> Self {
        let group = self.group_class();
        for (tag, bits) in [(OWNER, perm >> 6), (group, perm >> 3), (OTHERS, perm)] {
            if let Some(entry) = self.entry_mut(tag) {
                entry.perm = bits & 7;
            }
        }
        self
    }

    /// Returns the permission bits and the ACL, if it needs one, of a file created with `perm` in a
    /// directory with this default list. No umask applies.
    #[must_use]
    pub fn inherited(&self, perm: u16) -> (u16, Option<Self>) {
        let both = self.perm() & perm;
        let own = self.clone().with_perm(both);
        (perm & !0o777 | both, (!own.is_mode()).then_some(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect();
        Acl { entries }.to_xattr()
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let plain = [(OWNER, 7, 0), (OWNING_GROUP, 5, 0), (OTHERS, 4, 0)];
        assert_eq!(Acl::parse(&acl(&plain)).unwrap().unwrap().perm(), 0o754);
        assert_eq!(Acl::parse(&acl(&[])).unwrap(), None);
        let bad: [&[(u16, u16, u32)]; 8] = [
            &plain[..2],
            &[plain[1], plain[0], plain[2]],
            &[plain[0], plain[0], plain[1], plain[2]],
            // A named user without a mask, with no id, a second mask, unknown bits and tags.
            &[plain[0], (USER, 7, 1), plain[1], plain[2]],
            &[plain[0], (USER, 7, NO_ID), plain[1], (MASK, 7, 0), plain[2]],
            &[plain[0], plain[1], (MASK, 7, 0), (MASK, 7, 0), plain[2]],
            &[(OWNER, 8, 0), plain[1], plain[2]],
            &[plain[0], plain[1], plain[2], (0x40, 0, 0)],
        ];
        for entries in bad {
            assert!(Acl::parse(&acl(entries)).is_err(), "{entries:?}");
        }
        let whole = acl(&plain);
        for len in (0..whole.len()).filter(|len| *len != 4) {
            assert!(Acl::parse(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    /// Whether a user has a right (4, 2 or 1) on a file, as acl(5) decides.
    fn allows(entries: &[(u16, u16, u32)], user: u32, groups: &[u32], right: u16) -> bool {
        const FILE: (u32, u32) = (0, 10);
        let mask = entries.iter().find(|e| e.0 == MASK).map_or(7, |e| e.1);
        if user == FILE.0 {
            return entries.iter().any(|e| e.0 == OWNER && e.1 & right != 0);
        }
        if let Some(named) = entries.iter().find(|e| e.0 == USER && e.2 == user) {
            return named.1 & mask & right != 0;
        }
        let mine = |e: &&(u16, u16, u32)| {
            e.0 == OWNING_GROUP && groups.contains(&FILE.1) || e.0 == GROUP && groups.contains(&e.2)
        };
        let mut mine = entries.iter().filter(mine).peekable();
        if mine.peek().is_some() {
            return mine.any(|e| e.1 & mask & right != 0);
        }
        entries.iter().any(|e| e.0 == OTHERS && e.1 & right != 0)
    }

    #[test]
    fn nobody_gains_a_right_when_a_list_is_lost() {
        let mut seed = 1_u32;
        let mut below = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        for _ in 0..5000 {
            let mut entries = vec![(OWNER, below(8) as u16, 0)];
            entries.extend((0..below(3)).map(|i| (USER, below(8) as u16, 20 + i)));
            entries.push((OWNING_GROUP, below(8) as u16, 0));
            entries.extend((0..below(3)).map(|i| (GROUP, below(8) as u16, 30 + i)));
            if entries.len() > 2 || below(2) == 0 {
                entries.push((MASK, below(8) as u16, 0));
            }
            entries.push((OTHERS, below(8) as u16, 0));
            let list = Acl::parse(&acl(&entries)).unwrap().unwrap();
            let perm = list.perm_without_entries();
            let plain =
                [(OWNER, perm >> 6, 0), (OWNING_GROUP, perm >> 3 & 7, 0), (OTHERS, perm & 7, 0)];
            for user in [0, 20, 21, 40] {
                for groups in [&[][..], &[10], &[30], &[10, 30], &[30, 31], &[10, 30, 31], &[9]] {
                    for right in [4, 2, 1] {
                        // Owning-group and named-group rights add up only for members of both.
                        let (had, has) = (
                            allows(&entries, user, groups, right),
                            allows(&plain, user, groups, right),
                        );
                        assert!(had || !has, "{entries:?} as {perm:o}: {user} in {groups:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_mask_is_the_group_of_the_mode() {
        let entries =
            [(OWNER, 7, 0), (USER, 7, 9), (OWNING_GROUP, 6, 0), (MASK, 5, 0), (OTHERS, 0, 0)];
        let list = Acl::parse(&acl(&entries)).unwrap().unwrap();
        assert_eq!(list.perm(), 0o750);
        let changed = list.clone().with_perm(0o641);
        assert_eq!(changed.perm(), 0o641);
        // The entry of the owning group is unchanged; the mask limits it.
        assert_eq!(changed.entries[2].perm, 6);
        let (perm, own) = list.inherited(0o2666);
        assert_eq!(perm, 0o2640);
        assert_eq!(own.unwrap().perm(), 0o640);
        let plain = [(OWNER, 7, 0), (OWNING_GROUP, 5, 0), (OTHERS, 4, 0)];
        let plain = Acl::parse(&acl(&plain)).unwrap().unwrap();
        assert_eq!(plain.inherited(0o666), (0o644, None));
    }
}
