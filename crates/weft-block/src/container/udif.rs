//! UDIF, the disk images of Mac OS X: a trailer `koly`, and block tables `mish` in a property list
//! or a resource fork.
//!
//! Apple did not publish the format; its fields are those that Jonathan Levin ("Demystifying the
//! DMG File Format") and other readers have found out. Checksums are not looked at.

use super::chunks::{Chunk, ChunkedImage, Packing};
use super::{be32, be64, read_range, resource};
use crate::{BlockDevice, Error, Partition, Result};
use std::sync::Arc;

const TRAILER_BYTES: u64 = 512;
/// The longest property list read, in bytes: half a million chunks.
const LIST_MAX_BYTES: u64 = 32 << 20;
const TABLE_HEADER_BYTES: usize = 204;
const ENTRY_BYTES: usize = 40;

/// The image in a file, if it has the trailer.
pub(super) fn open(file: &Arc<dyn BlockDevice>) -> Result<Option<ChunkedImage>> {
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
    let mut end = be64(&trailer, 492).checked_mul(512);
    for table in &tables {
        let last = table_of(table, base, &mut chunks)?;
        end = end.map(|end| end.max(last));
    }
    let Some(len_bytes) = end else { return Err(corrupt(trailer_at, "more sectors than fit")) };
    Ok(Some(ChunkedImage::new(Arc::clone(file), "UDIF chunk", len_bytes, chunks)?))
}

fn corrupt(offset: u64, problem: impl Into<String>) -> Error {
    Error::Corrupt { structure: "UDIF block table", offset, problem: problem.into() }
}

/// Adds the chunks of one table. Returns where the last one ends in the image, in bytes.
fn table_of(table: &[u8], base: u64, chunks: &mut Vec<Chunk>) -> Result<u64> {
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
    for entry in entries.chunks_exact(ENTRY_BYTES).take(count) {
        let packing = match be32(entry, 0) {
            0xffff_ffff => break,
            // A comment.
            0x7fff_fffe => continue,
            0 | 2 => Packing::Zero,
            1 => Packing::Raw,
            0x8000_0004 => Packing::Adc,
            0x8000_0005 => Packing::Zlib,
            0x8000_0006 => Packing::Bzip2,
            0x8000_0007 => Packing::Lzfse,
            other => Packing::Unknown(other),
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
        let at = if packing == Packing::Zero { 0 } else { at };
        chunks.push(Chunk { start, len, packing, at, packed_len: be64(entry, 32) });
    }
    Ok(end)
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
