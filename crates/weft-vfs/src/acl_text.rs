//! Access control lists as text, as tar streams carry them (`SCHILY.acl.access` of star, GNU tar and
//! bsdtar): `user::rw-,user:99:rwx,group::r--,mask::rwx,other::r--`.
//!
//! Entries are separated by commas or newlines and may come in any order; a fourth field, which star
//! and libarchive add, is the numeric id. `#` begins a comment. The forms are those of acl(5).

use crate::acl::{Acl, AclEntry, GROUP, MASK, OTHERS, OWNER, OWNING_GROUP, USER};
use crate::{Error, Result};
use std::fmt::Write;

/// The id field of entries without an id.
const NO_ID: u32 = u32::MAX;

/// The kind of a name in a list, for the function that finds its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// The name of a user.
    User,
    /// The name of a group.
    Group,
}

impl Acl {
    /// Parses the text form. `id_of` returns the id of a named user or group; a name of digits is an
    /// id already, and a numeric fourth field wins over the name.
    ///
    /// # Errors [`Error::Invalid`] if the text is no valid list, or names a user or group that is not
    /// known.
    pub fn from_text(text: &str, id_of: &dyn Fn(Named, &str) -> Option<u32>) -> Result<Self> {
        let mut entries = Vec::new();
        for line in text.split('\n') {
            let line = line.split('#').next().unwrap_or("");
            for entry in line.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                entries.push(parse_entry(entry, id_of)?);
            }
        }
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        let list = Self { entries };
        if list.makes_sense() {
            Ok(list)
        } else {
            Err(Error::Invalid("not an access control list"))
        }
    }

    /// Formats the list as text in one line, with numbers for users and groups.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            if !text.is_empty() {
                text.push(',');
            }
            let tag = match entry.tag {
                OWNER | USER => "user",
                OWNING_GROUP | GROUP => "group",
                MASK => "mask",
                _ => "other",
            };
            text.push_str(tag);
            text.push(':');
            if matches!(entry.tag, USER | GROUP) {
                // Writing to a string cannot fail.
                let _ = write!(text, "{}", entry.id);
            }
            text.push(':');
            for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
                text.push(if entry.perm & bit != 0 { letter } else { '-' });
            }
        }
        text
    }
}

fn parse_entry(entry: &str, id_of: &dyn Fn(Named, &str) -> Option<u32>) -> Result<AclEntry> {
    const BAD: Error = Error::Invalid("not an access control list");
    let mut fields: Vec<&str> = entry.split(':').map(str::trim).collect();
    // `other:r--` and `mask:r--` are valid short forms.
    if fields.len() == 2 {
        fields.insert(1, "");
    }
    let (&[tag, name, perm], more) = fields.split_first_chunk::<3>().ok_or(BAD)?;
    let (tag, named) = match (tag, name.is_empty()) {
        ("user" | "u", true) => (OWNER, None),
        ("user" | "u", false) => (USER, Some(Named::User)),
        ("group" | "g", true) => (OWNING_GROUP, None),
        ("group" | "g", false) => (GROUP, Some(Named::Group)),
        ("mask" | "m", true) => (MASK, None),
        ("other" | "o", true) => (OTHERS, None),
        _ => return Err(BAD),
    };
    let id = match named {
        None => NO_ID,
        Some(kind) => more
            .first()
            .and_then(|id| id.parse().ok())
            .or_else(|| name.parse().ok())
            .or_else(|| id_of(kind, name))
            .ok_or(Error::Invalid("it names a user or group that is not known here"))?,
    };
    let perm = match perm.parse::<u16>() {
        Ok(bits) if bits <= 7 => bits,
        _ => perm.chars().try_fold(0, |bits, letter| match letter {
            'r' => Ok(bits | 4),
            'w' => Ok(bits | 2),
            'x' => Ok(bits | 1),
            '-' => Ok(bits),
            _ => Err(BAD),
        })?,
    };
    Ok(AclEntry { tag, perm, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(kind: Named, name: &str) -> Option<u32> {
        match (kind, name) {
            (Named::User, "nobody") => Some(65534),
            (Named::Group, "games") => Some(60),
            _ => None,
        }
    }

    #[test]
    fn every_writers_text_is_read() {
        let want =
            "user::rw-,user:99:rwx,user:65534:r--,group::r--,group:60:--x,mask::rwx,other::---";
        for text in [
            want,
            // GNU tar, from libacl.
            "user::rw-\nuser:99:rwx\nuser:nobody:r--\ngroup::r--\ngroup:games:--x\nmask::rwx\n\
             other::---\n",
            // libarchive: another order, numbers behind.
            "user::rw-,group::r--,other::---,user:99:rwx,user:nobody:r--:65534,group:games:--x:60,\
             mask::rwx",
            // A number behind wins over a name that is another user here.
            "u::6,u:99:7,u:somebody:4:65534,g::4,g:games:1,m::7,o::0",
            "user::rw-  \n# comment\nuser:99:rwx #effective:rwx\nuser:nobody:r--\ngroup::r--,\
             group:games:--x\nmask:rwx\nother:---",
        ] {
            assert_eq!(Acl::from_text(text, &ids).unwrap().to_text(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            "user::rw-",
            "user::rw-,group::r--,other::---,user:stranger:rwx,mask::rwx",
            "user::rw-,group::r--,other::---,user:99:rwx",
            "user::rwz,group::r--,other::---",
            "owner::rwx,group::r--,other::---",
            "user::rw-,group::r--,other:7:---",
            "user,group::r--,other::---",
        ] {
            assert!(Acl::from_text(text, &ids).is_err(), "{text}");
        }
    }
}
