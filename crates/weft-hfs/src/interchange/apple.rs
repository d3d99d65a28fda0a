//! AppleSingle and AppleDouble: a table of entries, each a part of the file.
//!
//! AppleSingle holds both forks; AppleDouble (`._name` beside `name`) all but the data fork.
//! Sources: "AppleSingle/AppleDouble Formats for Foreign Files", Apple 1990 (version 2), its
//! version 1 for A/UX, and RFC 1740.
//!
//! Tolerated, as they occur: entries in any order, unknown ones (ProDOS, MS-DOS, AFP), Finder
//! information that continues after its 32 bytes (macOS keeps extended attributes there, signature
//! `ATTR`), and the resource fork that macOS writes for a file without one, which counts as empty
//! here.

use super::error::{Error, Result, corrupt};
use super::meta::{Fork, Meta};
use super::stream::{be16, be32, copy_announced, len_of, read_range};
use std::io::{Read, Seek, Write};

const SINGLE: u32 = 0x0005_1600;
const DOUBLE: u32 = 0x0005_1607;
const STRUCTURE: &str = "AppleSingle header";
/// The most entries that are read; the specification defines 15.
const ENTRIES_MAX: u16 = 256;
/// The longest name and comment that are read, in bytes.
const TEXT_MAX_BYTES: u64 = 32 << 10;
/// 2000-01-01 00:00 in seconds since 1904-01-01 00:00, the zero of version 2's dates.
const YEAR_2000: i64 = 3_029_529_600;
/// "Not set", among version 2's dates.
const NO_DATE: u32 = 0x8000_0000;
/// The length of the resource fork that macOS writes for a file without one, and the text in it.
const BLANK_BYTES: u64 = 286;
const BLANK: &[u8] = b"This resource fork intentionally left blank   ";

/// The ids of entries.
mod id {
    pub const DATA: u32 = 1;
    pub const RESOURCE: u32 = 2;
    pub const NAME: u32 = 3;
    pub const COMMENT: u32 = 4;
    pub const FILE_INFO: u32 = 7;
    pub const DATES: u32 = 8;
    pub const FINDER_INFO: u32 = 9;
    pub const MAC_INFO: u32 = 10;
}

/// One of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// AppleSingle: all entries in one file.
    Single,
    /// AppleDouble: all entries except for the data fork.
    Double,
}

/// The version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Of A/UX: dates as on the Macintosh.
    V1,
    /// Of 1990: dates from 2000 on.
    V2,
}

/// The content of the table of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// AppleSingle or AppleDouble.
    pub kind: Kind,
    /// The version of the format.
    pub version: Version,
    /// The file. An AppleDouble's data fork is elsewhere: its length is 0 here.
    pub meta: Meta,
    /// The offset of the data fork, in bytes.
    pub data_at: u64,
    /// The offset of the resource fork, in bytes.
    pub resource_at: u64,
}

/// Returns the format that the first four bytes identify.
#[must_use]
pub fn kind_of(magic: &[u8]) -> Option<Kind> {
    match be32(magic, 0) {
        SINGLE => Some(Kind::Single),
        DOUBLE => Some(Kind::Double),
        _ => None,
    }
}

/// Reads the table of entries and the small entries.
///
/// # Errors
/// [`Error::Corrupt`] if the file is of neither format or an entry lies outside the file;
/// [`Error::Io`].
pub fn open<R: Read + Seek>(from: &mut R) -> Result<Header> {
    let file_bytes = len_of(from)?;
    let bad = |problem: String| corrupt(STRUCTURE, 0, problem);
    let head = read_range(from, STRUCTURE, 0, 26)?;
    let kind = kind_of(&head).ok_or_else(|| bad("no signature".into()))?;
    let version = match be32(&head, 4) {
        0x0001_0000 => Version::V1,
        0x0002_0000 => Version::V2,
        other => return Err(bad(format!("unknown version {other:#010x}"))),
    };
    let count = be16(&head, 24);
    if count > ENTRIES_MAX {
        return Err(bad(format!("{count} entries")));
    }
    let table = read_range(from, "AppleSingle entries", 26, usize::from(count) * 12)?;
    let mut header = Header { kind, version, meta: Meta::default(), data_at: 0, resource_at: 0 };
    for entry in table.chunks_exact(12) {
        let (id, at, len) = (be32(entry, 0), u64::from(be32(entry, 4)), u64::from(be32(entry, 8)));
        if at + len > file_bytes {
            let problem = format!("entry {id} of {len} bytes reaches past the end of the file");
            return Err(corrupt("AppleSingle entry", at, problem));
        }
        entry_of(from, &mut header, id, at, len)?;
    }
    Ok(header)
}

fn entry_of<R: Read + Seek>(
    from: &mut R,
    header: &mut Header,
    id: u32,
    at: u64,
    len: u64,
) -> Result<()> {
    let mut small = |most: u64| {
        read_range(from, "AppleSingle entry", at, usize::try_from(len.min(most)).unwrap_or(0))
    };
    let meta = &mut header.meta;
    match id {
        id::DATA if header.kind == Kind::Single => {
            (header.data_at, meta.data_bytes) = (at, len);
        }
        id::DATA => {
            return Err(corrupt("AppleSingle entry", at, "an AppleDouble with a data fork"));
        }
        id::RESOURCE => {
            let blank = len == BLANK_BYTES
                && small(BLANK_BYTES)?.windows(BLANK.len()).any(|piece| piece == BLANK);
            (header.resource_at, meta.resource_bytes) = (at, if blank { 0 } else { len });
        }
        id::NAME | id::COMMENT => {
            if len > TEXT_MAX_BYTES {
                let problem = format!("a name or comment of {len} bytes");
                return Err(corrupt("AppleSingle entry", at, problem));
            }
            *if id == id::NAME { &mut meta.name } else { &mut meta.comment } = small(len)?;
        }
        // Dates of creation, change and backup, as on the Macintosh, then flags.
        id::FILE_INFO if header.version == Version::V1 && len >= 16 => {
            let info = small(16)?;
            meta.created = be32(&info, 0);
            meta.modified = be32(&info, 4);
            meta.backed_up = be32(&info, 8);
            meta.locked = info[15] & 1 != 0;
        }
        // Dates of creation, change, backup and access.
        id::DATES if len >= 12 => {
            let dates = small(12)?;
            meta.created = from_year_2000(be32(&dates, 0));
            meta.modified = from_year_2000(be32(&dates, 4));
            meta.backed_up = from_year_2000(be32(&dates, 8));
        }
        id::FINDER_INFO => {
            let info = small(32)?;
            // Some writers leave out the extended half.
            meta.finder_info = [0; 32];
            meta.finder_info[..info.len()].copy_from_slice(&info);
        }
        id::MAC_INFO if len >= 4 => meta.locked = small(4)?[3] & 1 != 0,
        _ => {}
    }
    Ok(())
}

fn from_year_2000(seconds: u32) -> u32 {
    if seconds == NO_DATE {
        return 0;
    }
    u32::try_from(i64::from(seconds.cast_signed()) + YEAR_2000).unwrap_or(0)
}

fn to_year_2000(date: u32) -> u32 {
    // A date before 1932 counts as not set: 0 is the only such date that occurs.
    i32::try_from(i64::from(date) - YEAR_2000).map_or(NO_DATE, i32::cast_unsigned)
}

/// Packs a file; an AppleDouble without its data fork, so that `data` is not read.
///
/// # Errors
/// [`Error::CannotHold`] if it does not fit 4 GiB; [`Error::Length`] if a fork is not as long as
/// `meta` says.
pub fn write(
    meta: &Meta,
    kind: Kind,
    version: Version,
    data: &mut dyn Read,
    resource: &mut dyn Read,
    to: &mut dyn Write,
) -> Result<()> {
    to.write_all(&header(meta, kind, version)?)?;
    copy_announced(Fork::Resource, meta.resource_bytes, resource, to)?;
    if kind == Kind::Single {
        copy_announced(Fork::Data, meta.data_bytes, data, to)?;
    }
    Ok(())
}

/// Returns all bytes before the forks, which follow each other: first the resource fork, then an
/// AppleSingle's data fork.
///
/// # Errors
/// [`Error::CannotHold`] if the file does not fit 4 GiB.
pub fn header(meta: &Meta, kind: Kind, version: Version) -> Result<Vec<u8>> {
    let mut small: Vec<(u32, Vec<u8>)> = Vec::new();
    if !meta.name.is_empty() {
        small.push((id::NAME, meta.name.clone()));
    }
    if !meta.comment.is_empty() {
        small.push((id::COMMENT, meta.comment.clone()));
    }
    let locked = u32::from(meta.locked);
    let dates = [meta.created, meta.modified, meta.backed_up];
    let fields = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
    match version {
        Version::V1 => {
            small.push((id::FILE_INFO, fields(&[dates[0], dates[1], dates[2], locked])));
        }
        Version::V2 => {
            // The fourth, the date of access, is not kept on a Macintosh.
            let dates = [dates[0], dates[1], dates[2], 0].map(to_year_2000);
            small.push((id::DATES, fields(&dates)));
            small.push((id::MAC_INFO, fields(&[locked])));
        }
    }
    small.push((id::FINDER_INFO, meta.finder_info.to_vec()));
    table(meta, (kind, version), &small)
}

/// Returns the header of an AppleDouble with Finder information and resource fork only, as unar and
/// macOS write it.
///
/// # Errors
/// As [`header`].
pub fn short_header(meta: &Meta) -> Result<Vec<u8>> {
    let small = [(id::FINDER_INFO, meta.finder_info.to_vec())];
    table(meta, (Kind::Double, Version::V2), &small)
}

/// Returns the table of entries, and the small ones.
fn table(
    meta: &Meta,
    (kind, version): (Kind, Version),
    small: &[(u32, Vec<u8>)],
) -> Result<Vec<u8>> {
    // The forks come last, where they could grow.
    let mut forks = vec![(id::RESOURCE, Fork::Resource)];
    if kind == Kind::Single {
        forks.push((id::DATA, Fork::Data));
    }
    let count = small.len() + forks.len();
    let mut head = Vec::new();
    head.extend(if kind == Kind::Single { SINGLE } else { DOUBLE }.to_be_bytes());
    let (number, filler) = match version {
        Version::V1 => (0x0001_0000_u32, *b"Macintosh       "),
        Version::V2 => (0x0002_0000, [0; 16]),
    };
    head.extend(number.to_be_bytes());
    head.extend(filler);
    head.extend((count as u16).to_be_bytes());
    let mut at = 26 + 12 * count as u64;
    let mut place = |id: u32, len: u64| {
        let end = at.checked_add(len).filter(|&end| u32::try_from(end).is_ok());
        let Some(end) = end else {
            let what = format!("an entry of {len} bytes that ends behind 4 GiB");
            return Err(Error::CannotHold { format: "AppleSingle", what });
        };
        for field in [u64::from(id), at, len] {
            head.extend((field as u32).to_be_bytes());
        }
        at = end;
        Ok(())
    };
    for (id, bytes) in small {
        place(*id, bytes.len() as u64)?;
    }
    for &(id, fork) in &forks {
        place(id, meta.fork_bytes(fork))?;
    }
    for (_, bytes) in small {
        head.extend_from_slice(bytes);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// Makes a file of these entries, in the given order.
    fn file(magic: u32, version: u32, entries: &[(u32, &[u8])]) -> Cursor<Vec<u8>> {
        let mut bytes = [magic.to_be_bytes(), version.to_be_bytes()].concat();
        bytes.extend(b"Mac OS X        ");
        bytes.extend((entries.len() as u16).to_be_bytes());
        let mut at = 26 + 12 * entries.len();
        for (id, content) in entries {
            for n in [*id, at as u32, content.len() as u32] {
                bytes.extend(n.to_be_bytes());
            }
            at += content.len();
        }
        entries.iter().for_each(|(_, content)| bytes.extend(*content));
        Cursor::new(bytes)
    }

    #[test]
    fn files_of_macos_are_understood() {
        // Finder information with extended attributes after it, and no resource fork.
        let mut info = b"TEXTttxt".to_vec();
        info.resize(34, 0);
        info.extend(b"ATTR and what it holds");
        let mut blank = vec![0; 16];
        blank[..16].copy_from_slice(&[0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x1e]);
        blank.extend(BLANK);
        blank.resize(286, 0);
        let mut double = file(DOUBLE, 0x0002_0000, &[(9, &info), (2, &blank)]);
        let header = open(&mut double).unwrap();
        assert_eq!(header.kind, Kind::Double);
        assert_eq!(header.meta.file_type(), *b"TEXT");
        assert_eq!(header.meta.resource_bytes, 0);
    }

    #[test]
    fn dates_count_from_2000() {
        assert_eq!(from_year_2000(0), YEAR_2000 as u32);
        assert_eq!(to_year_2000(YEAR_2000 as u32 - 1), u32::MAX);
        assert_eq!((from_year_2000(NO_DATE), to_year_2000(0)), (0, NO_DATE));
        for date in [0, 882_045_953, 0x8000_0000, u32::MAX] {
            assert_eq!(from_year_2000(to_year_2000(date)), date);
        }
        assert_eq!(from_year_2000(i32::MAX.cast_unsigned()), 0, "after 2040");
    }

    #[test]
    fn entries_that_lie_are_refused() {
        let mut outside = file(SINGLE, 0x0002_0000, &[(1, b"content")]);
        let end = outside.get_ref().len() - 1;
        outside.get_mut().truncate(end);
        let many =
            Cursor::new([&file(SINGLE, 0x0002_0000, &[]).into_inner()[..24], &[9; 9]].concat());
        for mut bad in [outside, many, file(SINGLE, 7, &[]), file(7, 0x0002_0000, &[])] {
            assert!(matches!(open(&mut bad), Err(Error::Corrupt { .. })));
        }
    }
}
