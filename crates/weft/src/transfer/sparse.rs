//! Maps of sparse files in tar streams: the extents of a file that the stream holds; the rest is
//! holes. Four forms are read, and the last is written:
//!
//! | form | the map is in | written by |
//! |---|---|---|
//! | old GNU | the header (type `S`) and blocks behind it | `tar -S --format=gnu` |
//! | 0.0 | records `GNU.sparse.offset` and `.numbytes`, repeated | `--sparse-version=0.0` |
//! | 0.1 | the record `GNU.sparse.map` | `--sparse-version=0.1` |
//! | 1.0 | decimal lines before the data, filled up to a block | `tar -S --format=posix` |
//!
//! Source: the manual of GNU tar, appendix "Storing Sparse Files".

use super::pax::Records;
use std::ops::Range;

/// The size of a block of a tar stream in bytes.
pub(super) const BLOCK_BYTES: usize = 512;

/// The extents of a file that a stream holds: ascending, disjoint, none of them empty, all within
/// the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SparseMap {
    pub(super) extents: Vec<Range<u64>>,
    /// Length of the file, holes included.
    pub(super) len_bytes: u64,
}

/// The location of the map of a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MapPlace {
    /// There is no map: the stream holds the whole file.
    Nowhere,
    /// In the records: as offsets and lengths.
    Here(Vec<(u64, u64)>),
    /// Before the data.
    Ahead,
}

impl SparseMap {
    /// A file without holes.
    pub(super) fn dense(len_bytes: u64) -> Self {
        let all = 0..len_bytes;
        let extents = if len_bytes == 0 { Vec::new() } else { vec![all] };
        Self { extents, len_bytes }
    }

    /// Checks the map of a stream: offsets and lengths, of a file of `len_bytes` of which the
    /// stream holds `stored_bytes`.
    pub(super) fn new(
        pieces: &[(u64, u64)],
        len_bytes: u64,
        stored_bytes: u64,
    ) -> Result<Self, String> {
        let mut extents: Vec<Range<u64>> = Vec::with_capacity(pieces.len());
        let mut end = 0;
        let mut held = 0_u64;
        for &(offset, len) in pieces {
            if len == 0 {
                continue;
            }
            // Readers differ in whether such a piece is filled up to a block.
            if !held.is_multiple_of(BLOCK_BYTES as u64) {
                return Err("the piece of a sparse file is no multiple of 512 bytes".into());
            }
            let past = offset.checked_add(len).filter(|past| *past <= len_bytes);
            let (Some(past), true) = (past, offset >= end) else {
                return Err("the map of a sparse file is out of order or leaves the file".into());
            };
            held += len;
            end = past;
            match extents.last_mut() {
                Some(last) if last.end == offset => last.end = past,
                _ => extents.push(offset..past),
            }
        }
        if held != stored_bytes {
            return Err(format!(
                "the map of a sparse file has {held} bytes of data, the stream {stored_bytes}"
            ));
        }
        Ok(Self { extents, len_bytes })
    }

    /// The number of bytes that the stream holds.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.extents.iter().map(|e| e.end - e.start).sum()
    }

    /// The map in form 1.0, filled up to a block. As GNU tar does, this ends the map of a file that
    /// ends in a hole with an empty piece.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut pieces: Vec<(u64, u64)> =
            self.extents.iter().map(|e| (e.start, e.end - e.start)).collect();
        if self.extents.last().is_none_or(|last| last.end < self.len_bytes) {
            pieces.push((self.len_bytes, 0));
        }
        let mut text = format!("{}\n", pieces.len());
        for (offset, len) in pieces {
            text.push_str(&format!("{offset}\n{len}\n"));
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }
}

/// Returns the location of the map of a member with `records`.
pub(super) fn place(records: &Records) -> Result<MapPlace, String> {
    let version = (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor"));
    match version {
        (Some(b"1"), Some(b"0")) => return Ok(MapPlace::Ahead),
        (None, None) | (Some(b"0"), Some(b"0" | b"1")) => {}
        (major, minor) => {
            let text = |n: Option<&[u8]>| String::from_utf8_lossy(n.unwrap_or(b"?")).into_owned();
            return Err(format!(
                "sparse format {}.{} is not known; known are 0.0, 0.1 and 1.0",
                text(major),
                text(minor)
            ));
        }
    }
    let bad = || "the map of a sparse file is damaged".to_owned();
    let number = |text: &[u8]| -> Result<u64, String> {
        std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or_else(bad)
    };
    if let Some(map) = records.get(b"GNU.sparse.map") {
        let numbers: Vec<u64> = map.split(|b| *b == b',').map(number).collect::<Result<_, _>>()?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad());
        }
        return Ok(MapPlace::Here(pairs.iter().map(|[offset, len]| (*offset, *len)).collect()));
    }
    let mut pieces = Vec::new();
    let mut offset = None;
    for (key, value) in records.iter() {
        match key {
            b"GNU.sparse.offset" => offset = Some(number(value)?),
            b"GNU.sparse.numbytes" => {
                pieces.push((offset.take().ok_or_else(bad)?, number(value)?));
            }
            _ => {}
        }
    }
    let count: Option<usize> = records.number(b"GNU.sparse.numblocks");
    match (count, pieces.is_empty()) {
        (None, true) => Ok(MapPlace::Nowhere),
        (Some(count), _) if count == pieces.len() => Ok(MapPlace::Here(pieces)),
        _ => Err(bad()),
    }
}

/// Reads the lines of form 1.0 block by block; `next_block` returns one more block.
pub(super) fn read_lines(
    mut next_block: impl FnMut() -> Result<[u8; BLOCK_BYTES], String>,
) -> Result<Vec<(u64, u64)>, String> {
    let bad = || "the map of a sparse file is damaged".to_owned();
    let mut block = next_block()?;
    let mut at = 0;
    let mut number = || -> Result<u64, String> {
        let mut value: Option<u64> = None;
        loop {
            if at == BLOCK_BYTES {
                block = next_block()?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            match byte {
                b'0'..=b'9' => {
                    let tens = value.unwrap_or(0).checked_mul(10);
                    let next = tens.and_then(|tens| tens.checked_add(u64::from(byte - b'0')));
                    value = Some(next.ok_or_else(bad)?);
                }
                b'\n' => return value.ok_or_else(bad),
                _ => return Err(bad()),
            }
        }
    };
    // The count is not trusted: it reserves no memory before its lines are read.
    let count = number()?;
    let mut pieces = Vec::new();
    for _ in 0..count {
        pieces.push((number()?, number()?));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let ok = SparseMap::new(&[(0, 512), (4096, 512), (4608, 3), (9000, 0)], 9000, 1027);
        assert_eq!(ok.unwrap().extents, [0..512, 4096..4611]);
        for (pieces, len, stored) in [
            (&[(4096, 512), (0, 512)][..], 9000, 1024),
            (&[(0, 512), (511, 512)], 9000, 1024),
            (&[(8999, 2)], 9000, 2),
            (&[(u64::MAX, 2)], 9000, 2),
            (&[(0, 512)], 9000, 511),
            (&[(0, 100), (1024, 512)], 9000, 612),
        ] {
            assert!(SparseMap::new(pieces, len, stored).is_err(), "{pieces:?}");
        }
    }

    #[test]
    fn form_1_0_goes_both_ways() {
        let extents: Vec<Range<u64>> = (0..200).map(|i| i * 8192..i * 8192 + 4096).collect();
        let map = SparseMap { extents, len_bytes: 200 * 8192 };
        let bytes = map.to_bytes();
        assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
        let mut blocks = blocks.iter();
        let pieces = read_lines(|| blocks.next().copied().ok_or_else(|| "ended".into())).unwrap();
        let read = SparseMap::new(&pieces, map.len_bytes, map.stored_bytes()).unwrap();
        assert_eq!(read, map);
        let lines = |text: &[u8]| {
            let mut block = [0; BLOCK_BYTES];
            block[..text.len()].copy_from_slice(text);
            let mut blocks = std::iter::once(block);
            read_lines(move || blocks.next().ok_or_else(|| "ended".into()))
        };
        assert!(lines(b"1\n2\n3\n").is_ok());
        for bad in [&b"\n"[..], b"1\n2\n", b"1\n-2\n3\n", b"99999999999999999999\n", b"1\n2 3\n"] {
            assert!(lines(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn records_say_where_the_map_is() {
        let of = |pairs: &[(&str, &str)]| {
            let mut records = Records::default();
            pairs.iter().for_each(|(k, v)| records.push(*k, *v));
            place(&records)
        };
        assert_eq!(of(&[("mtime", "1")]), Ok(MapPlace::Nowhere));
        let one = MapPlace::Here(vec![(5, 6)]);
        assert_eq!(of(&[("GNU.sparse.map", "5,6")]), Ok(one));
        assert!(of(&[("GNU.sparse.map", "5")]).is_err());
        let ahead = of(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]);
        assert_eq!(ahead, Ok(MapPlace::Ahead));
        assert!(of(&[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0")]).is_err());
        assert!(of(&[("GNU.sparse.numblocks", "1")]).is_err());
    }
}
