//! Extended attributes and access control lists in the records of tar streams.
//!
//! | record | writer | content |
//! |---|---|---|
//! | `SCHILY.xattr.NAME` | star, GNU tar, bsdtar, weft | the value as it is |
//! | `LIBARCHIVE.xattr.NAME` | bsdtar | the name as in a URL, the value in base64 |
//! | `SCHILY.acl.access`, `.default` | star, `tar --acls`, bsdtar, weft | the list as text |
//! | `RHT.security.selinux` | `tar --selinux`, weft | the label, without the NUL that ends it on disk |
//!
//! Where one attribute comes in several records the first of the table counts. A record of another
//! kind that would change a file is counted, so that its loss is said.
//!
//! Sources: POSIX.1-2017, utility pax; star(5); the manuals of GNU tar and of bsdtar (tar(5)).

use super::pax::Records;
use super::{Item, acls};
use std::collections::BTreeMap;
use weft_vfs::acl::{self, Acl, Named};

const XATTR: &[u8] = b"SCHILY.xattr.";
const XATTR_BASE64: &[u8] = b"LIBARCHIVE.xattr.";
const ACCESS_TEXT: &[u8] = b"SCHILY.acl.access";
const DEFAULT_TEXT: &[u8] = b"SCHILY.acl.default";
const SELINUX_TEXT: &[u8] = b"RHT.security.selinux";
const SELINUX: &[u8] = b"security.selinux";

/// Records that are read elsewhere, or say nothing that a file keeps.
const KNOWN: [&[u8]; 25] = [
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"uname",
    b"gname",
    b"mtime",
    b"atime",
    b"ctime",
    b"charset",
    b"hdrcharset",
    b"comment",
    b"SCHILY.dev",
    b"SCHILY.ino",
    b"SCHILY.nlink",
    b"SCHILY.devmajor",
    b"SCHILY.devminor",
    b"SCHILY.filetype",
    b"SCHILY.realsize",
    b"SCHILY.acltype",
    b"SCHILY.archtype",
    b"SCHILY.release",
    b"SCHILY.volhdr",
    b"LIBARCHIVE.symlinktype",
];

/// A list that cannot be stored.
const BAD_LIST: &str =
    "access control list, which is damaged or names a user or group unknown here,";

/// Reads the attributes of members.
pub(super) struct Attributes {
    with_xattrs: bool,
    names: HostNames,
    /// What could not be carried over, and of how many members.
    left_out: BTreeMap<String, u64>,
}

impl Attributes {
    pub(super) fn new(with_xattrs: bool) -> Self {
        Self { with_xattrs, names: HostNames::default(), left_out: BTreeMap::new() }
    }

    /// Returns a line for each kind of attribute that had no place.
    pub(super) fn left_out(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|(what, members)| {
            let members =
                if *members == 1 { "1 member".to_owned() } else { format!("{members} members") };
            format!("{what} of {members} of the stream: left out")
        })
    }

    fn leave_out(&mut self, what: &str) {
        *self.left_out.entry(what.to_owned()).or_default() += 1;
    }

    /// Returns the mode and the attributes of a member, whose header has the mode `perm`.
    pub(super) fn of(
        &mut self,
        records: &Records,
        perm: u16,
        is_directory: bool,
    ) -> (u16, super::Xattrs) {
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut other = BTreeMap::new();
        let (mut access, mut default) = (None, None);
        for (key, value) in records.iter() {
            if let Some(name) = key.strip_prefix(XATTR) {
                found.insert(name.to_vec(), value.to_vec());
            } else if let Some(name) = key.strip_prefix(XATTR_BASE64) {
                match base64(value) {
                    Some(value) => drop(other.insert(from_url(name), value)),
                    None => self.leave_out("damaged attribute LIBARCHIVE.xattr"),
                }
            } else if key == ACCESS_TEXT {
                access = Some(value);
            } else if key == DEFAULT_TEXT {
                default = Some(value).filter(|_| is_directory);
            } else if key == SELINUX_TEXT {
                other.entry(SELINUX.to_vec()).or_insert_with(|| [value, b"\0"].concat());
            } else if !value.is_empty() && !KNOWN.contains(&key) && !key.starts_with(b"GNU.") {
                let key = String::from_utf8_lossy(key).into_owned();
                self.leave_out(&format!("attribute {}", crate::shown(key.as_bytes())));
            }
        }
        for (name, value) in other {
            found.entry(name).or_insert(value);
        }
        let mut perm = perm;
        for name in [acl::ACCESS, acl::DEFAULT] {
            if found.get(name).is_some_and(|list| Acl::parse(list).is_err()) {
                found.remove(name);
                self.leave_out(BAD_LIST);
                perm &= if name == acl::ACCESS { 0o7700 } else { 0o7777 };
            }
        }
        for (name, text) in [(acl::ACCESS, access), (acl::DEFAULT, default)] {
            let Some(text) = text.filter(|text| !text.is_empty() && !found.contains_key(name))
            else {
                continue;
            };
            let text = String::from_utf8_lossy(text);
            let names = &self.names;
            if let Ok(list) = Acl::from_text(&text, &|kind, name| names.id(kind, name)) {
                found.insert(name.to_vec(), list.to_xattr());
                continue;
            }
            self.leave_out(BAD_LIST);
            if name == acl::ACCESS {
                // The mode may be the mask of a list that is not there then. Names that are not
                // known still limit it.
                let bits = Acl::from_text(&text, &|_, _| Some(u32::MAX - 1))
                    .map_or(perm & 0o700, |list| list.perm_without_entries());
                perm = perm & 0o7000 | bits & perm;
            }
        }
        // As with tar, the list says what the mode is; bsdtar's headers have the owning group's
        // rights, GNU tar's the mask.
        if let Some(Ok(Some(list))) = found.get(acl::ACCESS).map(|list| Acl::parse(list)) {
            perm = perm & 0o7000 | list.perm();
        }
        let mut xattrs: Vec<_> = found.into_iter().collect();
        if !self.with_xattrs {
            perm = acls::drop_lists(perm, &mut xattrs);
            xattrs.clear();
        }
        (perm, xattrs)
    }
}

/// Writes the attributes of an item.
pub(super) fn write(item: &Item<'_>, records: &mut Records) {
    for (key, list) in [(ACCESS_TEXT, acls::access(item)), (DEFAULT_TEXT, acls::default(item))] {
        if let Some(Ok(Some(list))) = list.map(Acl::parse) {
            records.push(key, list.to_text());
        }
    }
    for (name, value) in item.xattrs {
        if name == SELINUX {
            records.push(SELINUX_TEXT, value.strip_suffix(b"\0").unwrap_or(value));
        }
        records.push([XATTR, &name[..]].concat(), &value[..]);
    }
}

/// The users and groups of this machine, read when a list names one.
#[derive(Debug, Default)]
struct HostNames {
    users: std::cell::OnceCell<BTreeMap<String, u32>>,
    groups: std::cell::OnceCell<BTreeMap<String, u32>>,
}

impl HostNames {
    fn id(&self, kind: Named, name: &str) -> Option<u32> {
        let (cell, file) = match kind {
            Named::User => (&self.users, "/etc/passwd"),
            Named::Group => (&self.groups, "/etc/group"),
        };
        let all = cell.get_or_init(|| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let entry = |line: &str| {
                let mut fields = line.split(':');
                let name = fields.next()?.to_owned();
                Some((name, fields.nth(1)?.parse().ok()?))
            };
            text.lines().filter_map(entry).collect()
        });
        all.get(name).copied()
    }
}

/// Decodes a name in which bytes are written as `%41`.
fn from_url(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| byte == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(code) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            decoded.push(code);
            rest = tail.get(2..).unwrap_or(&[]);
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    decoded
}

/// Decodes base64, with or without the padding at its end.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii_end();
    let end = text.iter().rposition(|b| *b != b'=').map_or(0, |at| at + 1);
    let mut decoded = Vec::with_capacity(end / 4 * 3 + 2);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for byte in text.get(..end)? {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            decoded.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Xattrs;

    fn read(records: &[(&str, &[u8])], perm: u16) -> (u16, Xattrs, Vec<String>) {
        let mut all = Records::default();
        records.iter().for_each(|(key, value)| all.push(*key, *value));
        let mut attributes = Attributes::new(true);
        let (perm, xattrs) = attributes.of(&all, perm, true);
        (perm, xattrs, attributes.left_out().collect())
    }

    #[test]
    fn values_come_in_every_form() {
        for (text, want) in
            [("", &b""[..]), ("Ymx1ZQ", b"blue"), ("Ymx1ZQ==", b"blue"), ("AP8=", b"\0\xff")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(want), "{text}");
        }
        assert_eq!(base64(b"a*b"), None);
        assert_eq!(from_url(b"user.a%20b%zz%4"), b"user.a b%zz%4");
        let (_, xattrs, left_out) = read(
            &[
                ("LIBARCHIVE.xattr.user.a%20b", b"Ymx1ZQ"),
                ("LIBARCHIVE.xattr.user.c", b"Ymx1ZQ"),
                ("SCHILY.xattr.user.c", b"red"),
                ("RHT.security.selinux", b"system_u:object_r:etc_t:s0"),
                ("LIBARCHIVE.creationtime", b"12"),
                ("SCHILY.fflags", b"nodump"),
                ("mtime", b"1"),
            ],
            0o644,
        );
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let label = pair(b"security.selinux", b"system_u:object_r:etc_t:s0\0");
        assert_eq!(xattrs, [label, pair(b"user.a b", b"blue"), pair(b"user.c", b"red")]);
        assert_eq!(
            left_out,
            [
                "attribute LIBARCHIVE.creationtime of 1 member of the stream: left out",
                "attribute SCHILY.fflags of 1 member of the stream: left out",
            ]
        );
    }

    #[test]
    fn the_mode_is_the_lists_or_what_is_safe_without_it() {
        let text = |users: &str| format!("user::rw-,{users},group::r--,mask::rwx,other::---");
        let acl = |perm, text: String| read(&[("SCHILY.acl.access", text.as_bytes())], perm);
        // GNU tar's header has the mask, bsdtar's the rights of the group.
        for header in [0o670, 0o640] {
            let (perm, xattrs, left_out) = acl(header, text("user:99:rwx"));
            assert_eq!((perm, xattrs.len(), left_out.len()), (0o670, 1, 0));
        }
        let (perm, xattrs, left_out) = acl(0o670, text("user:no such user:rwx"));
        assert_eq!((perm, xattrs.len(), left_out.len()), (0o640, 0, 1), "{left_out:?}");
        let (perm, xattrs, _) = acl(0o674, "rubbish".into());
        assert_eq!((perm, xattrs.len()), (0o600, 0));
    }
}
