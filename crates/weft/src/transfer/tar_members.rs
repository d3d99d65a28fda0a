//! The members of a tar stream, one by one: each header with the data of its extension headers (pax
//! `x` and `g`, GNU `L` and `K`) and of maps of sparse files.
//!
//! The crate `tar` parses the layout of headers. Its reader of streams supports neither sparse
//! files of pax nor values with newlines in them, and takes any stream that begins with a block of
//! zeroes for an empty archive.

use super::pax::Records;
use super::sparse::{self, BLOCK_BYTES, MapPlace, SparseMap};
use std::io::{self, Read};
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

/// The most bytes that extension headers of one member may hold together: names, attributes and
/// maps.
const EXTENSION_MAX_BYTES: u64 = 64 << 20;

/// One member of a stream.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) header: Header,
    pub(super) name: Vec<u8>,
    /// The target of a link; empty if there is none.
    pub(super) link: Vec<u8>,
    pub(super) records: Records,
    /// The parts of the file that the stream holds.
    pub(super) map: SparseMap,
}

/// Reads members from a stream.
#[derive(Debug)]
pub(super) struct Members<R> {
    stream: R,
    global: Records,
    /// Bytes left of the current member's data, and of its padding up to a block.
    left_bytes: u64,
    fill_bytes: u64,
    any: bool,
}

/// The reason why a stream cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(String),
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::Damaged(what.into()))
}

impl<R: Read> Members<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, global: Records::default(), left_bytes: 0, fill_bytes: 0, any: false }
    }

    /// Reads data of the current member into `buf`; returns the number of bytes.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> Result<usize, Broken> {
        let room = usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(buf.len());
        self.read_exact(&mut buf[..room])?;
        self.left_bytes -= room as u64;
        Ok(room)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), Broken> {
        match self.stream.read_exact(buf) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                damaged("the stream ends in the middle of a member; is it complete?")
            }
            other => Ok(other?),
        }
    }

    fn read_block(&mut self) -> Result<[u8; BLOCK_BYTES], Broken> {
        let mut block = [0; BLOCK_BYTES];
        self.read_exact(&mut block)?;
        Ok(block)
    }

    /// Returns the next header, or `None` at the end of the stream.
    fn next_header(&mut self) -> Result<Option<Header>, Broken> {
        let rest = self.left_bytes + self.fill_bytes;
        (self.left_bytes, self.fill_bytes) = (0, 0);
        let skipped = io::copy(&mut (&mut self.stream).take(rest), &mut io::sink())?;
        if skipped < rest {
            return damaged("the stream ends in the middle of a member; is it complete?");
        }
        let mut header = Header::new_old();
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.stream.read(&mut header.as_mut_bytes()[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        match (filled, self.any) {
            (0, true) => return Ok(None),
            (0, false) => return damaged("not a tar archive: the stream is empty"),
            (BLOCK_BYTES, _) => {}
            (_, true) => return damaged("the stream ends in the middle of a header"),
            (n, false) => return damaged(format!("not a tar archive: only {n} bytes long")),
        }
        if header.as_bytes().iter().all(|b| *b == 0) {
            self.check_end()?;
            return Ok(None);
        }
        let bytes = header.as_bytes();
        let spaces = u32::from(b' ') * 8;
        let sum =
            bytes[..148].iter().chain(&bytes[156..]).fold(spaces, |sum, b| sum + u32::from(*b));
        if number(&header.as_old().cksum) != Some(i64::from(sum)) {
            return damaged(if self.any {
                "damaged: the checksum of a header does not fit"
            } else {
                "not a tar archive: it does not begin with a tar header"
            });
        }
        self.any = true;
        Ok(Some(header))
    }

    /// Checks the end of an archive, which is a block of zeroes. If no member came before it, the
    /// archive is empty only if there are zeroes to its end; a disk image begins with zeroes too.
    fn check_end(&mut self) -> Result<(), Broken> {
        if self.any {
            return Ok(());
        }
        let mut buf = [0; 1 << 14];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => return Ok(()),
                Ok(n) if buf[..n].iter().all(|b| *b == 0) => {}
                Ok(_) => {
                    return damaged(
                        "not a tar archive: it begins with zeroes, then has other data",
                    );
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn set_data(&mut self, len_bytes: u64) -> Result<(), Broken> {
        let Some(filled) = len_bytes.checked_next_multiple_of(BLOCK_BYTES as u64) else {
            return damaged("a size that no member can have");
        };
        (self.left_bytes, self.fill_bytes) = (len_bytes, filled - len_bytes);
        Ok(())
    }

    /// Returns the next member, or `None` at the end of the stream.
    pub(super) fn next(&mut self) -> Result<Option<Member>, Broken> {
        let (mut long_name, mut long_link) = (None, None);
        let mut own = Records::default();
        let mut pending = false;
        let mut room = EXTENSION_MAX_BYTES;
        loop {
            let Some(header) = self.next_header()? else {
                if pending {
                    return damaged("the stream ends before the member that a header announces");
                }
                return Ok(None);
            };
            let kind = header.entry_type();
            let is_extension = matches!(
                kind,
                EntryType::GNULongName
                    | EntryType::GNULongLink
                    | EntryType::XHeader
                    | EntryType::XGlobalHeader
            );
            if is_extension {
                let content = self.read_extension(&header, &mut room)?;
                let Some(content) = content else {
                    return damaged("an extension header is too long");
                };
                pending |= kind != EntryType::XGlobalHeader;
                let parse = |content: &[u8]| {
                    Records::parse(content).ok_or_else(|| {
                        Broken::Damaged("an extended (pax) header is damaged".into())
                    })
                };
                match kind {
                    EntryType::GNULongName => long_name = Some(until_nul(&content)),
                    EntryType::GNULongLink => long_link = Some(until_nul(&content)),
                    EntryType::XHeader => own = parse(&content)?,
                    _ => self.global = parse(&content)?.over(&self.global),
                }
                continue;
            }
            return self.member(header, own, (long_name, long_link)).map(Some);
        }
    }

    /// Reads the content of an extension header; `None` if it takes more than is left of `room`.
    fn read_extension(
        &mut self,
        header: &Header,
        room: &mut u64,
    ) -> Result<Option<Vec<u8>>, Broken> {
        let len = size(header)?;
        if len > *room {
            return Ok(None);
        }
        *room -= len;
        self.set_data(len)?;
        let mut content = Vec::new();
        (&mut self.stream).take(len).read_to_end(&mut content)?;
        self.left_bytes = len - content.len() as u64;
        Ok(Some(content))
    }

    fn member(
        &mut self,
        header: Header,
        own: Records,
        (long_name, long_link): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> Result<Member, Broken> {
        let records = own.over(&self.global);
        let text = |key: &[u8]| records.get(key).map(<[u8]>::to_vec);
        let name = text(b"GNU.sparse.name")
            .or_else(|| text(b"path"))
            .or(long_name)
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let link =
            text(b"linkpath").or(long_link).unwrap_or_else(|| until_nul(&header.as_old().linkname));
        let stored = match (has_data(header.entry_type()), records.get(b"size")) {
            (false, _) => 0,
            (true, None) => size(&header)?,
            (true, Some(_)) => match records.number(b"size") {
                Some(size) => size,
                None => return damaged("a size that is no number"),
            },
        };
        self.set_data(stored)?;
        let map = if header.entry_type() == EntryType::GNUSparse {
            self.old_map(&header, stored)?
        } else {
            self.pax_map(&records, stored)?
        };
        Ok(Member { header, name, link, records, map })
    }

    /// Reads the map from a header of the old GNU form, and from the blocks that follow it.
    fn old_map(&mut self, header: &Header, stored: u64) -> Result<SparseMap, Broken> {
        let Some(gnu) = header.as_gnu() else {
            return damaged("a sparse file whose header is not GNU tar's");
        };
        let mut pieces = Vec::new();
        let mut add = |list: &[GnuSparseHeader]| {
            for piece in list.iter().filter(|piece| !piece.is_empty()) {
                match (unsigned(&piece.offset), unsigned(&piece.numbytes)) {
                    (Some(offset), Some(len)) => pieces.push((offset, len)),
                    _ => return damaged("the map of a sparse file is damaged"),
                }
            }
            Ok(())
        };
        add(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        let mut room = EXTENSION_MAX_BYTES;
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.read_exact(block.as_mut_bytes())?;
            add(block.sparse())?;
            more = block.is_extended();
            match room.checked_sub(BLOCK_BYTES as u64) {
                Some(left) => room = left,
                None => return damaged("the map of a sparse file is too long"),
            }
        }
        let Some(len_bytes) = unsigned(&gnu.realsize) else {
            return damaged("a sparse file whose size is no number");
        };
        SparseMap::new(&pieces, len_bytes, stored).map_err(Broken::Damaged)
    }

    /// Reads the map that records hold or announce.
    fn pax_map(&mut self, records: &Records, stored: u64) -> Result<SparseMap, Broken> {
        let pieces = match sparse::place(records).map_err(Broken::Damaged)? {
            MapPlace::Nowhere => return Ok(SparseMap::dense(stored)),
            MapPlace::Here(pieces) => pieces,
            MapPlace::Ahead => {
                let room = self.left_bytes.min(EXTENSION_MAX_BYTES);
                let mut taken = 0;
                let pieces = sparse::read_lines(|| {
                    taken += BLOCK_BYTES as u64;
                    if taken > room {
                        return Err("the map of a sparse file does not end".into());
                    }
                    self.read_block().map_err(|e| e.to_string())
                });
                self.left_bytes = self.left_bytes.saturating_sub(taken);
                pieces.map_err(Broken::Damaged)?
            }
        };
        let len: Option<u64> =
            records.number(b"GNU.sparse.realsize").or_else(|| records.number(b"GNU.sparse.size"));
        let Some(len_bytes) = len else {
            return damaged("a sparse file whose size is not told");
        };
        SparseMap::new(&pieces, len_bytes, self.left_bytes).map_err(Broken::Damaged)
    }
}

/// Returns true if the size in a header of this kind counts data that follows: some writers set it
/// for directories, links and nodes and send no data.
fn has_data(kind: EntryType) -> bool {
    !matches!(
        kind,
        EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
    )
}

fn size(header: &Header) -> Result<u64, Broken> {
    match unsigned(&header.as_old().size) {
        Some(size) => Ok(size),
        None => damaged("a size that is no number"),
    }
}

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|b| *b != 0).collect()
}

fn unsigned(field: &[u8]) -> Option<u64> {
    number(field).and_then(|n| u64::try_from(n).ok())
}

/// Parses a number of a header: octal digits between spaces and NULs (blank is 0), or, if the
/// highest bit is set, a signed binary number, as GNU tar writes numbers too large for octal
/// digits.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // Bit 6 is the sign bit, extended to the left.
        let negative = first & 0x40 != 0;
        let high = i128::from(first & 0x3f) - if negative { 0x40 } else { 0 };
        let value = rest
            .iter()
            .try_fold(high, |value, byte| value.checked_mul(256)?.checked_add(i128::from(*byte)))?;
        return i64::try_from(value).ok();
    }
    let text = field.trim_ascii_start();
    let end = text.iter().position(|b| matches!(b, 0 | b' ')).unwrap_or(text.len());
    text[..end].iter().try_fold(0_i64, |value, byte| match byte {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777"), Some(0o7777_7777));
        assert_eq!(number(b"9"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        let mut minus = [0xff; 12];
        minus[11] = 0xfe;
        assert_eq!(number(&minus), Some(-2));
        assert_eq!(number(&[0xbf; 12]), None);
    }
}
