//! The names of users and groups beside the numbers in a cell.
//!
//! Owners are numbers, and a person may have another number on each machine. The names are an
//! attribute ([`OWNERS_XATTR`]) of the cell's root, which clients read and add to, so that each shows
//! a number as the number that the same name has on its machine.

use std::fmt;

use crate::rnode::{Bytes, Rnode};

/// The attribute of a cell's root that has the names: lines `user NUMBER NAME` and `group NUMBER
/// NAME`. Lines that begin with another word are of a later version.
pub const OWNERS_XATTR: &[u8] = b"user.weft.owners";
/// The first number for names whose own number is another name's in the cell.
const ASSIGNED_FROM: u32 = 2_000_000_000;
/// The number that kernels show for users without a number, which is no user's.
pub const NOBODY: u32 = 65_534;

/// What a number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
}

impl OwnerKind {
    fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }
}

/// The names beside the numbers of a cell. None is ever changed or removed, and each stands for one
/// number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerNames {
    lines: Vec<String>,
}

impl OwnerNames {
    /// Reads the attribute's value.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self { lines: String::from_utf8_lossy(text).lines().map(str::to_owned).collect() }
    }

    /// Returns the names in the root of a cell.
    #[must_use]
    pub fn of_root(root: &Rnode) -> Self {
        let text = root.xattrs.get(&Bytes(OWNERS_XATTR.to_vec()));
        text.map_or_else(Self::default, |text| Self::parse(&text.0))
    }

    /// Returns true if there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn pairs(&self, kind: OwnerKind) -> impl Iterator<Item = (u32, &str)> {
        self.lines.iter().filter_map(move |line| {
            let (number, name) =
                line.strip_prefix(kind.word())?.strip_prefix(' ')?.split_once(' ')?;
            Some((number.parse().ok()?, name))
        })
    }

    /// Returns the name of a number.
    #[must_use]
    pub fn name(&self, kind: OwnerKind, number: u32) -> Option<&str> {
        self.pairs(kind).find(|(n, _)| *n == number).map(|(_, name)| name)
    }

    /// Returns the number of a name.
    #[must_use]
    pub fn number(&self, kind: OwnerKind, name: &str) -> Option<u32> {
        self.pairs(kind).find(|(_, n)| *n == name).map(|(number, _)| number)
    }

    /// Adds a name, and returns its number: `wish` if that has no name yet, else a free one from
    /// 2,000,000,000 on. A name that is there keeps its number. `None` for a name that no line can
    /// hold.
    pub fn add(&mut self, kind: OwnerKind, name: &str, wish: u32) -> Option<u32> {
        if name.is_empty() || name.contains(['\n', '\r']) {
            return None;
        }
        if let Some(number) = self.number(kind, name) {
            return Some(number);
        }
        let is_free = |number: u32| self.name(kind, number).is_none();
        let wished = Some(wish).filter(|n| !matches!(*n, 0 | NOBODY | u32::MAX) && is_free(*n));
        let number = wished.or_else(|| (ASSIGNED_FROM..u32::MAX).find(|n| is_free(*n)))?;
        self.lines.push(format!("{} {number} {name}", kind.word()));
        Some(number)
    }
}

impl fmt::Display for OwnerNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{ASSIGNED_FROM, NOBODY, OwnerKind, OwnerNames};

    #[test]
    fn a_name_has_one_number_and_a_number_one_name() {
        use OwnerKind::{Group, User};
        let mut names = OwnerNames::parse(b"user 501 ada\nlater line\nuser x y\nuser 502\n");
        assert_eq!(names.name(User, 501), Some("ada"));
        assert_eq!(names.name(User, 502), None);
        assert_eq!(names.name(Group, 501), None);
        assert_eq!(names.add(User, "ada", 1000), Some(501), "it has a number");
        assert_eq!(names.add(User, "ben", 501), Some(ASSIGNED_FROM), "ada's number");
        assert_eq!(names.add(User, "eve", 501), Some(ASSIGNED_FROM + 1));
        assert_eq!(names.add(User, "root", 0), Some(ASSIGNED_FROM + 2), "0 is root's everywhere");
        assert_eq!(names.add(User, "x", NOBODY), Some(ASSIGNED_FROM + 3));
        assert_eq!(names.add(Group, "domain users", 501), Some(501), "groups are apart");
        for bad in ["", "a\nuser 0 b", "a\r"] {
            assert_eq!(names.add(User, bad, 7), None, "{bad:?}");
        }
        let again = OwnerNames::parse(names.to_string().as_bytes());
        assert_eq!(again, names, "later lines stay");
        assert_eq!(again.number(Group, "domain users"), Some(501));
        assert_eq!(again.number(User, "ben"), Some(ASSIGNED_FROM));
    }
}
