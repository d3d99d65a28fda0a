//! Permissions of files that are shown in place of others: access lists, and the directories on the
//! path to a base.

use weft_vfs::Attr;

/// The extended attribute with the access list of an inode, in Linux's format.
pub(super) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

const READ: u16 = 4;
const EXECUTE: u16 = 1;
/// Bytes before the entries of a list: its version.
const LIST_HEAD: usize = 4;
/// Bytes of an entry: tag, permissions and id.
const LIST_ENTRY: usize = 8;
/// The tag of the owner's entry (`ACL_USER_OBJ`).
const TAG_OWNER: u16 = 1;

fn u16_at(entry: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([entry[at], entry[at + 1]])
}

/// Returns the mode bits of a directory that shows a file's content: the readers of the file may
/// search and list it.
pub(super) fn as_directory(perm: u16) -> u16 {
    let read = perm & 0o444;
    read | read >> 2
}

/// As [`as_directory`], for an access list.
pub(super) fn list_as_directory(mut list: Vec<u8>) -> Vec<u8> {
    let entries = list.get_mut(LIST_HEAD..).unwrap_or_default();
    for entry in entries.chunks_exact_mut(LIST_ENTRY) {
        let read = u16_at(entry, 2) & READ;
        entry[2..4].copy_from_slice(&(read | read >> 2).to_le_bytes());
    }
    list
}

/// Returns true if an access list denies any user but the owner to search a directory.
fn list_denies(list: &[u8]) -> bool {
    let entries = list.get(LIST_HEAD..).unwrap_or_default();
    let denies = |entry: &[u8]| u16_at(entry, 0) != TAG_OWNER && u16_at(entry, 2) & EXECUTE == 0;
    entries.chunks_exact(LIST_ENTRY).any(denies)
}

/// A directory on the path to a base, and its access list.
pub(super) type Passed = (Attr, Option<Vec<u8>>);

/// Returns true if a user may search a directory, whatever groups the user is in.
pub(super) fn may_search((directory, list): &Passed, user: u32) -> bool {
    const ALL_BUT_OWNER: u16 = 0o011;
    if directory.uid == user {
        return directory.perm >> 6 & EXECUTE != 0;
    }
    let denied = list.as_ref().is_some_and(|list| list_denies(list));
    directory.perm & ALL_BUT_OWNER == ALL_BUT_OWNER && !denied
}

/// The part of a base's mode that the directories on the path to it leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    /// The classes that keep their permissions: owner, group and others, as in a mode.
    classes: [bool; 3],
}

impl Reach {
    /// The full mode of the base.
    pub(super) const ALL: Self = Self { classes: [true; 3] };

    /// Returns the reach through `directories`, which are on the path to `base` and not on the path
    /// to the link.
    ///
    /// A class of the base's users may include users of any class of a directory: they keep the
    /// permissions that all of those have. (An owner who has closed a directory for themselves may
    /// open it again.)
    pub(super) fn through(directories: &[Passed], base: &Attr) -> Self {
        let mut reach = Self::ALL;
        for (directory, list) in directories {
            let may = |shift: u32| directory.perm >> shift & EXECUTE != 0;
            let (owner, group, others) = (may(6), may(3), may(0));
            let listed = list.as_ref().is_none_or(|list| !list_denies(list));
            let anybody = group && others && listed;
            let same_group = directory.gid == base.gid;
            let now = [
                if directory.uid == base.uid { owner } else { anybody },
                if same_group { group && listed } else { anybody },
                if same_group { others && listed } else { anybody },
            ];
            for (class, now) in reach.classes.iter_mut().zip(now) {
                *class &= now;
            }
        }
        reach
    }

    /// Removes the permissions that are out of reach. Entries of an access list cannot be
    /// distinguished: if the base has one, and any class is out of reach, only its owner is left.
    pub(super) fn restrict(&self, attr: &mut Attr, has_list: impl FnOnce() -> bool) {
        if *self == Self::ALL {
            return;
        }
        let [owner, group, others] = self.classes;
        let only_owner = has_list();
        for (class, shift) in [(owner, 6), (group && !only_owner, 3), (others && !only_owner, 0)] {
            if !class {
                attr.perm &= !(7 << shift);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_vfs::{FileSystem, MemFs};

    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, perm) in entries {
            list.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
            list.extend(7_u32.to_le_bytes());
        }
        list
    }

    #[test]
    fn directories_on_the_way_count() {
        let fs = MemFs::new();
        let root = fs.getattr(fs.root()).expect("root");
        let directory = |perm, uid, gid| (Attr { perm, uid, gid, ..root }, None);
        let base = directory(0o644, 10, 20).0;
        let left = |directories: &[Passed]| {
            let mut attr = base;
            Reach::through(directories, &base).restrict(&mut attr, || false);
            attr.perm
        };
        assert_eq!(left(&[]), 0o644);
        assert_eq!(left(&[directory(0o711, 0, 0)]), 0o644);
        assert_eq!(left(&[directory(0o700, 10, 20)]), 0o600);
        assert_eq!(left(&[directory(0o700, 0, 0)]), 0);
        assert_eq!(left(&[directory(0o750, 10, 20)]), 0o640);
        assert_eq!(left(&[directory(0o750, 10, 21)]), 0o600, "members of 21 alone");
        assert_eq!(left(&[directory(0o705, 10, 20)]), 0o604);
        assert_eq!(left(&[directory(0o705, 10, 21)]), 0o600);
        assert_eq!(left(&[directory(0o755, 10, 20), directory(0o710, 10, 20)]), 0o640);
        let mut attr = base;
        let denying = Some(list(&[(1, 7), (2, 6), (32, 7)]));
        assert_eq!(left(&[(directory(0o777, 0, 0).0, denying)]), 0);
        let reach = Reach::through(&[directory(0o750, 10, 20)], &base);
        reach.restrict(&mut attr, || true);
        assert_eq!(attr.perm, 0o600, "its list cannot be told apart");
    }

    #[test]
    fn access_lists_of_a_tree_are_those_of_its_base() {
        assert_eq!([0o640, 0o604, 0o044, 0o311].map(as_directory), [0o550, 0o505, 0o055, 0]);
        let from = list(&[(1, 6), (2, 0), (4, 4), (16, 7), (32, 1)]);
        let to = list(&[(1, 5), (2, 0), (4, 5), (16, 5), (32, 0)]);
        assert_eq!(list_as_directory(from), to);
        assert!(list_denies(&list(&[(1, 7), (2, 6), (32, 7)])));
        assert!(!list_denies(&list(&[(1, 0), (2, 1), (32, 7)])));
        assert!(list_as_directory(vec![1]) == [1] && !list_denies(&[]));
    }
}
