//! Directory entries: a chain of records that fills each block of a directory exactly.
//!
//! A record is inode number (4 bytes, 0 when free), record length (2), name length (1), kind (1;
//! the upper half of the name length without the `filetype` feature), the name. Records start at
//! multiples of 4 and do not cross blocks.

use super::bytes::{get8, get16, get32, put, put8, put16, put32};
use weft_vfs::FileKind;

/// Bytes of a record in front of the name.
pub const DIRENT_HEADER_BYTES: usize = 8;
/// The longest name.
pub const DIRENT_NAME_MAX_BYTES: usize = 255;

/// The bytes a record needs for a name of `name_bytes` bytes.
#[must_use]
pub const fn dirent_len(name_bytes: usize) -> usize {
    (DIRENT_HEADER_BYTES + name_bytes + 3) & !3
}

/// One record as it lies in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDirent<'a> {
    /// Byte offset in the block.
    pub offset: usize,
    /// Inode number, 0 when free.
    pub ino: u32,
    /// Length of the record in bytes.
    pub rec_len: usize,
    /// The kind's code; 0 unknown (and always 0 without the `filetype` feature).
    pub file_type: u8,
    /// The name (of a free record, whatever was left there).
    pub name: &'a [u8],
}

impl RawDirent<'_> {
    /// The bytes this record needs: 0 if it is free.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        if self.ino == 0 { 0 } else { dirent_len(self.name.len()) }
    }
}

/// Walks the records of one block. After an error it ends.
#[derive(Debug, Clone)]
pub struct Dirents<'a> {
    block: &'a [u8],
    at: usize,
    filetype: bool,
}

impl<'a> Dirents<'a> {
    /// The records of `block`, from its start.
    #[must_use]
    pub fn new(block: &'a [u8], filetype: bool) -> Self {
        Self { block, at: 0, filetype }
    }
}

impl<'a> Iterator for Dirents<'a> {
    /// A record, or the offset and the fault there.
    type Item = Result<RawDirent<'a>, (usize, &'static str)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let rest = self.block.get(offset..)?;
        if rest.is_empty() {
            return None;
        }
        self.at = self.block.len();
        let rec_len = usize::from(get16(rest, 4));
        let name_len = usize::from(get8(rest, 6));
        let ino = get32(rest, 0);
        if rec_len < DIRENT_HEADER_BYTES + 4 && rest.len() >= DIRENT_HEADER_BYTES + 4 {
            return Some(Err((offset, "record length too small")));
        }
        if rec_len < DIRENT_HEADER_BYTES {
            return Some(Err((offset, "record length too small")));
        }
        if !rec_len.is_multiple_of(4) {
            return Some(Err((offset, "record length not a multiple of 4")));
        }
        if rec_len > rest.len() {
            return Some(Err((offset, "record reaches past its block")));
        }
        let mut name: &[u8] = &[];
        if ino != 0 {
            if name_len == 0 {
                return Some(Err((offset, "empty name")));
            }
            if dirent_len(name_len) > rec_len {
                return Some(Err((offset, "name longer than its record")));
            }
            name = rest.get(DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + name_len)?;
            if name.iter().any(|&b| b == 0 || b == b'/') {
                return Some(Err((offset, "name holds a slash or NUL")));
            }
        }
        self.at = offset + rec_len;
        let file_type = if self.filetype { get8(rest, 7) } else { 0 };
        Some(Ok(RawDirent { offset, ino, rec_len, file_type, name }))
    }
}

/// Puts a record at `offset`. The name must fit: at most 255 bytes, `dirent_len` at most
/// `rec_len`.
pub fn put_dirent(
    block: &mut [u8],
    offset: usize,
    rec_len: usize,
    ino: u32,
    file_type: u8,
    name: &[u8],
) {
    debug_assert!(name.len() <= DIRENT_NAME_MAX_BYTES);
    debug_assert!(name.is_empty() || dirent_len(name.len()) <= rec_len);
    put32(block, offset, ino);
    put16(block, offset + 4, u16::try_from(rec_len).unwrap_or(0));
    put8(block, offset + 6, u8::try_from(name.len()).unwrap_or(0));
    put8(block, offset + 7, file_type);
    put(block, offset + DIRENT_HEADER_BYTES, name);
}

/// The code of a kind in a record with the `filetype` feature.
#[must_use]
pub fn file_type_code(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

/// The kind that a code stands for; `None` if unknown.
#[must_use]
pub fn file_type_kind(code: u8) -> Option<FileKind> {
    Some(match code {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_walks_to_its_end() {
        let mut block = vec![0; 1024];
        put_dirent(&mut block, 0, 12, 2, 2, b".");
        put_dirent(&mut block, 12, 500, 2, 2, b"..");
        put_dirent(&mut block, 512, 512, 0, 0, b"");
        let all: Vec<_> = Dirents::new(&block, true).map(Result::unwrap).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].name, b"..");
        assert_eq!((all[2].offset, all[2].used_bytes()), (512, 0));
    }

    #[test]
    fn lies_are_found() {
        for (rec_len, name_len) in [(0, 1), (6, 1), (13, 1), (1028, 1), (12, 9), (12, 0)] {
            let mut block = vec![0; 1024];
            put_dirent(&mut block, 0, rec_len, 5, 1, b"");
            put8(&mut block, 6, name_len);
            let mut walk = Dirents::new(&block, true);
            assert!(matches!(walk.next(), Some(Err((0, _)))), "{rec_len} {name_len}");
            assert!(walk.next().is_none());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(block in prop::collection::vec(any::<u8>(), 0..2048)) {
            let n = Dirents::new(&block, true).count();
            prop_assert!(n <= block.len() / 8 + 1);
        }
    }
}
