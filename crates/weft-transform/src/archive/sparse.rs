//! Sparse members of a tar archive: GNU's own form, and the three that PAX headers describe.
//!
//! The map of the pieces is read together with the member, because it may precede the member's
//! data.
//! The forms: <https://www.gnu.org/software/tar/manual/html_node/Sparse-Formats.html>.

use super::corrupt;
use crate::Result;
use crate::store::{Store, read_exact};

const BLOCK: u64 = 512;
/// Maximum number of pieces of a member.
const PIECES_MAX: usize = 1 << 20;
/// Bytes of an entry of GNU's map, and the number of entries in each continuation block.
const GNU_ENTRY: usize = 24;
const GNU_MORE: usize = 21;

/// The offset of a piece in the file, and its length, in bytes.
type Piece = (u64, u64);

/// The location of the map of the pieces.
#[derive(Debug, Clone)]
pub(super) enum Map {
    /// In headers, complete.
    Known(Vec<Piece>),
    /// In GNU's header, and continued in the blocks that follow it.
    Continued(Vec<Piece>),
    /// In front of the data, as decimal numbers on lines (PAX, version 1.0).
    Lines,
}

/// A sparse member, whose data (or the map in front of it) begins at byte `start` of the archive.
#[derive(Debug)]
pub(super) struct Sparse {
    pub(super) start: u64,
    pub(super) len_bytes: u64,
    pub(super) map: Map,
    /// Once the map was read: the offset of each piece in the file, its length, and its offset in
    /// the archive.
    pieces: Option<Vec<(u64, u64, u64)>>,
}

/// Parses a number of a GNU header: octal, or binary if the first bit is set.
fn gnu_number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        return Some(u64::from_be_bytes(field.get(field.len() - 8..)?.try_into().ok()?));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

/// Parses the map entries of a GNU header, up to the first empty one.
pub(super) fn gnu_pieces(entries: &[u8]) -> Option<Vec<Piece>> {
    let used = entries.chunks_exact(GNU_ENTRY).take_while(|entry| entry[0] != 0);
    used.map(|entry| Some((gnu_number(&entry[..12])?, gnu_number(&entry[12..])?))).collect()
}

impl Sparse {
    pub(super) fn new(start: u64, len_bytes: u64, map: Map) -> Self {
        Self { start, len_bytes, map, pieces: None }
    }

    fn load(&self, store: &mut dyn Store) -> Result<Vec<(u64, u64, u64)>> {
        let wrong = || corrupt(self.start, "a sparse file whose map makes no sense");
        let (pieces, data) = match &self.map {
            Map::Known(pieces) => (pieces.clone(), self.start),
            Map::Continued(first) => {
                let (mut pieces, mut at, mut more) = (first.clone(), self.start, true);
                while more {
                    let mut block = [0; BLOCK as usize];
                    read_exact(store, "tree", at, &mut block)?;
                    let entries = &block[..GNU_ENTRY * GNU_MORE];
                    pieces.extend(gnu_pieces(entries).ok_or_else(wrong)?);
                    more = block[GNU_ENTRY * GNU_MORE] != 0;
                    at += BLOCK;
                    if pieces.len() > PIECES_MAX {
                        return Err(wrong());
                    }
                }
                (pieces, at)
            }
            Map::Lines => self.load_lines(store)?.ok_or_else(wrong)?,
        };
        let (mut stored, mut end) = (data, 0);
        let mut all = Vec::with_capacity(pieces.len());
        for (offset, len) in pieces {
            let upto = offset.checked_add(len).filter(|upto| *upto <= self.len_bytes);
            let upto = upto.filter(|_| offset >= end).ok_or_else(wrong)?;
            all.push((offset, len, stored));
            stored = stored.checked_add(len).ok_or_else(wrong)?;
            end = upto;
        }
        Ok(all)
    }

    /// Returns the pieces, and the offset of the data behind the lines.
    fn load_lines(&self, store: &mut dyn Store) -> Result<Option<(Vec<Piece>, u64)>> {
        let (mut numbers, mut number, mut at) = (Vec::new(), None::<u64>, self.start);
        loop {
            let mut block = [0; BLOCK as usize];
            read_exact(store, "tree", at, &mut block)?;
            at += BLOCK;
            for byte in block {
                match byte {
                    b'0'..=b'9' => {
                        let digit = u64::from(byte - b'0');
                        let next = number.unwrap_or(0).checked_mul(10);
                        let Some(next) = next.and_then(|n| n.checked_add(digit)) else {
                            return Ok(None);
                        };
                        number = Some(next);
                    }
                    b'\n' => numbers.extend(number.take()),
                    _ => return Ok(None),
                }
                let Some(count) = numbers.first().map(|count| *count as usize) else { continue };
                if count > PIECES_MAX {
                    return Ok(None);
                }
                if numbers.len() > 2 * count {
                    let pieces = numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1]));
                    return Ok(Some((pieces.collect(), at)));
                }
            }
        }
    }

    /// Reads from the member; the range must lie within it.
    pub(super) fn read(
        &mut self,
        store: &mut dyn Store,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if self.pieces.is_none() {
            self.pieces = Some(self.load(store)?);
        }
        buf.fill(0);
        let end = offset + buf.len() as u64;
        let pieces = self.pieces.as_deref().unwrap_or_default();
        let first = pieces.partition_point(|(at, len, _)| at + len <= offset);
        for (at, len, stored) in pieces[first..].iter().take_while(|(at, ..)| *at < end) {
            let (from, upto) = ((*at).max(offset), (at + len).min(end));
            if from < upto {
                // The range lies within the buffer.
                let part = &mut buf[(from - offset) as usize..(upto - offset) as usize];
                read_exact(store, "tree", stored + (from - at), part)?;
            }
        }
        Ok(())
    }
}
