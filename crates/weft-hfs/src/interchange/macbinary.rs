//! MacBinary: a header of 128 bytes, then both forks and the comment, each padded to 128 bytes.
//!
//! Sources: the MacBinary standards of 1985 (I), 1987 (II) and 1996 (III). II adds the low half of
//! the Finder's flags, the comment and a CRC of the header; III adds the signature `mBIN`, the
//! script of the name and the extended Finder flags. I has no signature at all: it is recognised by
//! the bytes that must be zero and by its lengths.

use super::error::{Error, Result, corrupt};
use super::meta::{Fork, Meta};
use super::stream::{Crc, be16, be32, copy_announced, len_of, pad, read_range};
use std::io::{Read, Seek, Write};

/// Length of the header, and the unit of padding, in bytes.
const UNIT: u64 = 128;
const STRUCTURE: &str = "MacBinary header";
/// The longest plausible fork of version I: a header with a longer one is no MacBinary.
const OLD_FORK_MAX_BYTES: u64 = 0x7f_ffff;

/// The version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Of 1985: without CRC, comment, and half of the Finder's flags.
    I,
    /// Of 1987.
    II,
    /// Of 1996: with signature and script.
    III,
}

/// The content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The version of the format.
    pub version: Version,
    /// The file; its comment is not in the header.
    pub meta: Meta,
    /// Length of the comment in bytes.
    pub comment_bytes: u16,
    /// Length of the secondary header between this one and the data fork, in bytes.
    pub secondary_bytes: u16,
}

impl Header {
    /// Reads a header. `file_bytes` is the length of the whole file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is no header, or the forks do not fit in the file.
    pub fn parse(bytes: &[u8; 128], file_bytes: u64) -> Result<Self> {
        let bad = |problem: &str| Err(corrupt(STRUCTURE, 0, problem));
        if bytes[0] != 0 || bytes[74] != 0 {
            return bad("bytes 0 and 74 are not zero");
        }
        let name_bytes = usize::from(bytes[1]);
        if !(1..=63).contains(&name_bytes) {
            return bad("the name is not 1 to 63 bytes long");
        }
        let signed = bytes[102..106] == *b"mBIN";
        let summed = Crc::of(&bytes[..124]) == be16(bytes, 124);
        let version = match (signed, summed) {
            (true, true) => Version::III,
            (false, true) => Version::II,
            // The signature counts only with the checksum; without both, the fields of II are zero.
            _ if bytes[82] == 0 && bytes[99..126].iter().all(|&b| b == 0) => Version::I,
            _ => return bad("neither its checksum is right nor is it of version I"),
        };
        let has = |v| version >= v;
        let mut finder_info = [0; 32];
        finder_info[..9].copy_from_slice(&bytes[65..74]);
        finder_info[10..16].copy_from_slice(&bytes[75..81]);
        if has(Version::II) {
            finder_info[9] = bytes[101];
        }
        if has(Version::III) {
            finder_info[24] = bytes[106];
            finder_info[25] = bytes[107];
        }
        let header = Self {
            version,
            meta: Meta {
                name: bytes[2..2 + name_bytes].to_vec(),
                finder_info,
                created: be32(bytes, 91),
                modified: be32(bytes, 95),
                backed_up: 0,
                locked: bytes[81] & 1 != 0,
                comment: Vec::new(),
                data_bytes: u64::from(be32(bytes, 83)),
                resource_bytes: u64::from(be32(bytes, 87)),
            },
            comment_bytes: if has(Version::II) { be16(bytes, 99) } else { 0 },
            secondary_bytes: if has(Version::II) { be16(bytes, 120) } else { 0 },
        };
        let (data, resource) = (header.meta.data_bytes, header.meta.resource_bytes);
        if version == Version::I {
            let some = data + resource > 0 || file_bytes == UNIT;
            let plausible = data.max(resource) <= OLD_FORK_MAX_BYTES && some;
            if !plausible || header.meta.name.contains(&0) {
                return bad("its lengths are not those of version I");
            }
        }
        // The last fork need not be padded.
        let inside = |at: u64, len: u64| len == 0 || at + len <= file_bytes;
        if !inside(header.data_at(), data) || !inside(header.resource_at(), resource) {
            return bad("the forks reach past the end of the file");
        }
        Ok(header)
    }

    /// Returns the offset of the data fork, in bytes.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        UNIT + u64::from(self.secondary_bytes).next_multiple_of(UNIT)
    }

    /// Returns the offset of the resource fork, in bytes.
    #[must_use]
    pub fn resource_at(&self) -> u64 {
        self.data_at() + self.meta.data_bytes.next_multiple_of(UNIT)
    }

    fn comment_at(&self) -> u64 {
        self.resource_at() + self.meta.resource_bytes.next_multiple_of(UNIT)
    }
}

/// Reads the header of a file, and the comment.
///
/// # Errors
/// [`Error::Corrupt`] if the file is no MacBinary; [`Error::Io`].
pub fn open<R: Read + Seek>(from: &mut R) -> Result<Header> {
    let file_bytes = len_of(from)?;
    let bytes = read_range(from, STRUCTURE, 0, 128)?;
    let bytes = <&[u8; 128]>::try_from(&bytes[..]).map_err(|_| corrupt(STRUCTURE, 0, "short"))?;
    let mut header = Header::parse(bytes, file_bytes)?;
    let comment_at = header.comment_at();
    let comment_bytes = usize::from(header.comment_bytes);
    if comment_bytes > 0 && comment_at + comment_bytes as u64 <= file_bytes {
        header.meta.comment = read_range(from, "MacBinary comment", comment_at, comment_bytes)?;
    }
    Ok(header)
}

/// Makes a header.
///
/// # Errors
/// [`Error::CannotHold`] for a name that is not 1 to 63 bytes long, a fork of 4 GiB or more
/// (8 MiB in version I), and a comment longer than 65,535 bytes.
pub fn header(meta: &Meta, version: Version) -> Result<[u8; 128]> {
    let cannot = |what: String| Error::CannotHold { format: "MacBinary", what };
    let mut bytes = [0; 128];
    let name = &meta.name;
    if !(1..=63).contains(&name.len()) {
        return Err(cannot(format!("a name of {} bytes", name.len())));
    }
    bytes[1] = name.len() as u8;
    bytes[2..2 + name.len()].copy_from_slice(name);
    bytes[65..74].copy_from_slice(&meta.finder_info[..9]);
    bytes[75..81].copy_from_slice(&meta.finder_info[10..16]);
    bytes[81] = u8::from(meta.locked);
    for (at, fork) in [(83, Fork::Data), (87, Fork::Resource)] {
        let len = meta.fork_bytes(fork);
        let fits = u32::try_from(len)
            .ok()
            .filter(|&n| version > Version::I || u64::from(n) <= OLD_FORK_MAX_BYTES);
        let Some(len) = fits else {
            return Err(cannot(format!("a {} fork of {len} bytes", fork.name())));
        };
        bytes[at..at + 4].copy_from_slice(&len.to_be_bytes());
    }
    bytes[91..95].copy_from_slice(&meta.created.to_be_bytes());
    bytes[95..99].copy_from_slice(&meta.modified.to_be_bytes());
    if version >= Version::II {
        let Ok(comment_bytes) = u16::try_from(meta.comment.len()) else {
            return Err(cannot(format!("a comment of {} bytes", meta.comment.len())));
        };
        bytes[99..101].copy_from_slice(&comment_bytes.to_be_bytes());
        bytes[101] = meta.finder_info[9];
        bytes[122] = if version == Version::III { 130 } else { 129 };
        bytes[123] = 129;
        if version == Version::III {
            bytes[102..106].copy_from_slice(b"mBIN");
            bytes[106] = meta.finder_info[24];
            bytes[107] = meta.finder_info[25];
        }
        let crc = Crc::of(&bytes[..124]);
        bytes[124..126].copy_from_slice(&crc.to_be_bytes());
    }
    Ok(bytes)
}

/// Packs a file.
///
/// # Errors
/// Those of [`header`]; [`Error::Length`] if a fork is not as long as `meta` says.
pub fn write(
    meta: &Meta,
    version: Version,
    data: &mut dyn Read,
    resource: &mut dyn Read,
    to: &mut dyn Write,
) -> Result<()> {
    to.write_all(&header(meta, version)?)?;
    for fork in [Fork::Data, Fork::Resource] {
        let from: &mut dyn Read = match fork {
            Fork::Data => &mut *data,
            Fork::Resource => &mut *resource,
        };
        let len_bytes = meta.fork_bytes(fork);
        copy_announced(fork, len_bytes, from, to)?;
        pad(to, len_bytes, UNIT)?;
    }
    if version >= Version::II {
        to.write_all(&meta.comment)?;
        pad(to, meta.comment.len() as u64, UNIT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        let mut meta = Meta { name: b"name".into(), data_bytes: 5, ..Meta::default() };
        meta.finder_info[9] = 0x42;
        meta
    }

    #[test]
    fn each_version_is_told_from_its_header() {
        for version in [Version::I, Version::II, Version::III] {
            let bytes = header(&meta(), version).unwrap();
            let parsed = Header::parse(&bytes, 1000).unwrap();
            assert_eq!(parsed.version, version);
            let low = if version == Version::I { 0 } else { 0x42 };
            assert_eq!(parsed.meta.finder_info[9], low);
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let good = header(&meta(), Version::II).unwrap();
        assert!(Header::parse(&good, 132).is_err(), "the file ends in the data fork");
        assert!(Header::parse(&good, 133).is_ok(), "no need to fill up the last one");
        for at in [0, 1, 60, 74, 101, 124] {
            let mut bytes = good;
            bytes[at] ^= 0x80;
            assert!(Header::parse(&bytes, 1000).is_err(), "byte {at}");
        }
        assert!(Header::parse(&[0; 128], 1000).is_err());
    }

    #[test]
    fn content_that_does_not_fit_is_an_error() {
        let long = Meta { name: vec![b'x'; 64], ..Meta::default() };
        let nameless = Meta::default();
        let large = Meta { resource_bytes: 1 << 32, ..meta() };
        for meta in [long, nameless, large] {
            assert!(matches!(header(&meta, Version::III), Err(Error::CannotHold { .. })));
        }
        let mib9 = Meta { data_bytes: 9 << 20, ..meta() };
        assert!(header(&mib9, Version::I).is_err() && header(&mib9, Version::II).is_ok());
    }
}
