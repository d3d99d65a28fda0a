//! UDIF, the disk images of Mac OS X: a trailer `koly`, and block tables `mish` in a property list
//! or a resource fork.
//!
//! Apple did not publish the format; its fields are those that Jonathan Levin ("Demystifying the
//! DMG File Format") and other readers have found out; what the checksums cover, and that "LZMA" is
//! an xz stream, is how 7-Zip and libdmg-hfsplus read them.
//!
//! There are CRC-32 at three places: of the data fork as it is stored, of what each table's chunks
//! hold unpacked (but not of those that are free), and of all tables' checksums together. The last
//! is looked at when an image is opened, the others by [`Sums::verify`].

use super::chunks::{Chunk, ChunkedImage, Packing};
use super::{be32, be64, read_range, resource};
use crate::{BlockDevice, Error, Partition, Result};
use crc32fast::Hasher;
use std::sync::Arc;

const TRAILER_BYTES: u64 = 512;
/// The longest property list read, in bytes: half a million chunks.
const LIST_MAX_BYTES: u64 = 32 << 20;
const TABLE_HEADER_BYTES: usize = 204;
const ENTRY_BYTES: usize = 40;
/// Chunks that are not stored: zeroes, and space that was free, which no checksum is of.
const ZERO: u32 = 0;
const FREE: u32 = 2;

/// The bytes summed at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// The type of checksum that is looked at; there are others, which no image is known to have.
const CRC32: u32 = 2;

/// The image in a file, if it has the trailer, and its checksums.
pub(super) fn open(file: &Arc<dyn BlockDevice>) -> Result<Option<(Arc<ChunkedImage>, Sums)>> {
    let Some(trailer_at) = file.geometry().len_bytes.checked_sub(TRAILER_BYTES) else {
        return Ok(None);
    };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_at(&mut trailer, trailer_at)?;
    if trailer[..4] != *b"koly" || be32(&trailer, 8) != TRAILER_BYTES as u32 {
        return Ok(None);
    }
    if be32(&trailer, 60) > 1 {
        return Err(Error::Unsupported {
            structure: "UDIF trailer",
            offset: trailer_at,
            what: "an image in several files".into(),
        });
    }
    let base = be64(&trailer, 24);
    let [resource, list] = [40, 216].map(|at| (be64(&trailer, at), be64(&trailer, at + 8)));
    let tables = if list.1 > 0 {
        let text = read_range(&**file, "UDIF property list", list, LIST_MAX_BYTES)?;
        tables_in_list(&text).map_err(|problem| Error::Corrupt {
            structure: "UDIF property list",
            offset: list.0,
            problem: problem.into(),
        })?
    } else {
        let window_ok = resource.0.checked_add(resource.1).is_some_and(|end| end <= trailer_at);
        if !window_ok {
            return Err(corrupt(resource.0, "it is not in the file"));
        }
        let fork = Partition::window(Arc::clone(file), resource.0, resource.1);
        resource::of_type(&fork, *b"blkx")?.into_iter().map(|(_, table)| table).collect()
    };
    let mut chunks = Vec::new();
    let mut sums = Vec::new();
    let mut end = be64(&trailer, 492).checked_mul(512);
    for table in &tables {
        let (last, sum) = table_of(table, base, &mut chunks)?;
        sums.push(sum);
        end = end.map(|end| end.max(last));
    }
    let Some(len_bytes) = end else { return Err(corrupt(trailer_at, "more sectors than fit")) };
    let image = Arc::new(ChunkedImage::new(Arc::clone(file), "UDIF chunk", len_bytes, chunks)?);
    let sums = Sums {
        file: Arc::clone(file),
        image: Arc::clone(&image),
        fork: (base, be64(&trailer, 32)),
        fork_sum: checksum(&trailer, 80),
        tables_sum: checksum(&trailer, 352),
        tables: sums,
    };
    Ok(Some((image, sums)))
}

/// The CRC-32 of a structure, if it has one at `at`: its type, its length in bits, and itself.
fn checksum(raw: &[u8], at: usize) -> Option<u32> {
    (be32(raw, at) == CRC32 && be32(raw, at + 4) == 32).then(|| be32(raw, at + 8))
}

/// The checksums that an image states, and the ranges that they cover.
pub(super) struct Sums {
    file: Arc<dyn BlockDevice>,
    image: Arc<ChunkedImage>,
    /// The data fork as it lies in the file: where it begins and how long it is, in bytes.
    fork: (u64, u64),
    fork_sum: Option<u32>,
    /// Of all tables' checksums, one behind the other.
    tables_sum: Option<u32>,
    tables: Vec<TableSum>,
}

/// The checksum of one table.
struct TableSum {
    expected: Option<u32>,
    /// The ranges that it covers, in the order of the chunks.
    ranges: Vec<Range>,
}

/// A range of a device that is summed.
struct Range {
    /// Offset and length, in bytes.
    start: u64,
    len: u64,
    /// Whether the range is known to be zeroes, and a multiple of 512 bytes.
    zero: bool,
}

impl Sums {
    /// Returns true if the tables still have the checksum that the image states. Unpacks nothing.
    pub fn tables_intact(&self) -> bool {
        self.verify_tables_sum().is_ok()
    }

    fn verify_tables_sum(&self) -> Result<()> {
        let Some(expected) = self.tables_sum else { return Ok(()) };
        let mut crc = Hasher::new();
        for table in &self.tables {
            // Of a table without a checksum nothing is known: then nothing is of all of them.
            let Some(sum) = table.expected else { return Ok(()) };
            crc.update(&sum.to_be_bytes());
        }
        compare("UDIF trailer", 0, "the block tables' checksums", expected, crc.finalize())
    }

    /// Looks at all checksums there are, and says what is wrong. All of the image is read and
    /// unpacked for it.
    pub fn verify(&self) -> Vec<Error> {
        let fork = self.fork_sum.map_or(Ok(()), |expected| {
            let (start, len) = self.fork;
            let found = crc_of(&*self.file, &[Range { start, len, zero: false }])?;
            compare("UDIF data fork", self.fork.0, "the data fork", expected, found)
        });
        let tables = self.tables.iter().enumerate().map(|(number, table)| {
            let Some(expected) = table.expected else { return Ok(()) };
            let found = crc_of(&*self.image, &table.ranges)?;
            let start = table.ranges.first().map_or(0, |range| range.start);
            let what = format!("what block table {number} describes");
            compare("UDIF block table", start, &what, expected, found)
        });
        [fork, self.verify_tables_sum()].into_iter().chain(tables).filter_map(Result::err).collect()
    }
}

/// The CRC-32 of ranges of a device, one behind the other.
fn crc_of(device: &dyn BlockDevice, ranges: &[Range]) -> Result<u32> {
    let mut crc = Hasher::new();
    let mut piece = Vec::new();
    for range in ranges {
        let (mut at, mut left) = (range.start, range.len);
        if range.zero {
            add_zero_sectors(&mut crc, left / 512);
            continue;
        }
        while left > 0 {
            let n = left.min(PIECE_BYTES);
            piece.resize(n as usize, 0);
            device.read_at(&mut piece, at)?;
            crc.update(&piece);
            (at, left) = (at + n, left - n);
        }
    }
    Ok(crc.finalize())
}

/// Adds sectors of zeroes, in as many steps as their number has bits: a table may say that there are
/// exabytes of them.
fn add_zero_sectors(crc: &mut Hasher, mut sectors: u64) {
    let mut run = Hasher::new();
    run.update(&[0; 512]);
    while sectors > 0 {
        if sectors & 1 == 1 {
            crc.combine(&run);
        }
        let same = run.clone();
        run.combine(&same);
        sectors >>= 1;
    }
}

fn compare(
    structure: &'static str,
    offset: u64,
    what: &str,
    expected: u32,
    found: u32,
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let problem = format!("the CRC-32 of {what} is {found:08x}, and should be {expected:08x}");
    Err(Error::Corrupt { structure, offset, problem })
}

fn corrupt(offset: u64, problem: impl Into<String>) -> Error {
    Error::Corrupt { structure: "UDIF block table", offset, problem: problem.into() }
}

/// Adds the chunks of one table. Returns where the last one ends in the image, in bytes, and the
/// table's checksum.
fn table_of(table: &[u8], base: u64, chunks: &mut Vec<Chunk>) -> Result<(u64, TableSum)> {
    let bad = |problem: &str| Err(corrupt(0, problem));
    let Some((header, entries)) = table.split_at_checked(TABLE_HEADER_BYTES) else {
        return bad("it is shorter than its header");
    };
    if header[..4] != *b"mish" {
        return bad("its signature is missing");
    }
    let first = be64(header, 8);
    let count = usize::try_from(be32(header, 200)).unwrap_or(usize::MAX);
    if entries.len() / ENTRY_BYTES < count {
        return bad("it ends before its last chunk");
    }
    let base = base.checked_add(be64(header, 24));
    let mut end = 0;
    let mut ranges: Vec<Range> = Vec::new();
    for entry in entries.chunks_exact(ENTRY_BYTES).take(count) {
        let kind = be32(entry, 0);
        let packing = match kind {
            0xffff_ffff => break,
            // A comment.
            0x7fff_fffe => continue,
            ZERO | FREE => Packing::Zero,
            1 => Packing::Raw,
            0x8000_0004 => Packing::Adc,
            0x8000_0005 => Packing::Zlib,
            0x8000_0006 => Packing::Bzip2,
            0x8000_0007 => Packing::Lzfse,
            0x8000_0008 => Packing::Xz,
            0x8000_0001 => Packing::Unknown(kind, "(KenCode)"),
            0x8000_0002 => Packing::Unknown(kind, "(RLE)"),
            0x8000_0003 => Packing::Unknown(kind, "(LZH)"),
            _ => Packing::Unknown(kind, ""),
        };
        let place = || {
            let start = first.checked_add(be64(entry, 8))?.checked_mul(512)?;
            let len = be64(entry, 16).checked_mul(512)?;
            let at = base?.checked_add(be64(entry, 24))?;
            Some((start, len, at, start.checked_add(len)?))
        };
        let Some((start, len, at, chunk_end)) = place() else {
            return bad("a chunk lies where no file reaches");
        };
        end = end.max(chunk_end);
        match ranges.last_mut() {
            _ if kind == FREE => {}
            Some(last) if last.start + last.len == start && last.zero == (kind == ZERO) => {
                last.len += len;
            }
            _ => ranges.push(Range { start, len, zero: kind == ZERO }),
        }
        let at = if packing == Packing::Zero { 0 } else { at };
        chunks.push(Chunk { start, len, packing, at, packed_len: be64(entry, 32) });
    }
    Ok((end, TableSum { expected: checksum(header, 64), ranges }))
}

/// The block tables of a property list: each `data` in the array that is the value of `blkx`. The
/// list is Apple's own XML; no more of it is understood than this takes.
fn tables_in_list(list: &[u8]) -> std::result::Result<Vec<Vec<u8>>, &'static str> {
    let list = std::str::from_utf8(list).map_err(|_| "it is not UTF-8")?;
    let (_, value) = list.split_once("<key>blkx</key>").ok_or("it has no key blkx")?;
    let (array, _) = value.split_once("</array>").ok_or("its array blkx has no end")?;
    let mut tables = Vec::new();
    for piece in array.split("<data>").skip(1) {
        let (data, _) = piece.split_once("</data>").ok_or("its data has no end")?;
        tables.push(base64(data).ok_or("its data is not base64")?);
    }
    Ok(tables)
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut have) = (0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => break,
            _ if byte.is_ascii_whitespace() => continue,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
        }
    }
    Some(out)
}
