//! Changes to the records of one directory block, as a repair makes them.

use crate::layout::bytes::{get16, put16, put32};
use crate::layout::{DIRENT_HEADER_BYTES, Dirents, dirent_len, put_dirent};

/// Frees the record at `offset`. Its space stays where it is: no other record moves.
pub(super) fn clear(block: &mut [u8], offset: usize) {
    put32(block, offset, 0);
}

/// Frees the record at `offset`, which cannot be read: alone, if its length leads to another record that
/// can be; else everything from there on becomes one free record. The records before it stay.
pub(super) fn truncate(block: &mut [u8], offset: usize, filetype: bool) {
    let rest = block.len().saturating_sub(offset);
    let rec_len = usize::from(get16(block, offset + 4));
    let fits = rec_len >= DIRENT_HEADER_BYTES + 4 && rec_len.is_multiple_of(4) && rec_len < rest;
    let behind = block.get(offset + rec_len..).unwrap_or_default();
    if fits && offset > 0 && matches!(Dirents::new(behind, filetype).next(), Some(Ok(_))) {
        put_dirent(block, offset, rec_len, 0, 0, b"");
        return;
    }
    if offset == 0 || rest >= DIRENT_HEADER_BYTES + 4 {
        put_dirent(block, offset, rest, 0, 0, b"");
        return;
    }
    // Too little for a record: the one before takes it in.
    let mut last = 0;
    let mut at = 0;
    while at < offset {
        last = at;
        let len = usize::from(get16(block, at + 4));
        if len == 0 {
            break;
        }
        at += len;
    }
    put16(block, last + 4, u16::try_from(block.len() - last).unwrap_or(0));
}

/// Writes the first block of directory `ino` anew: `.`, `..` as `parent`, then every other record
/// that can be read. Those that no longer fit are left out (their inodes are found without a name
/// then).
pub(super) fn rebuild_first(block: &mut [u8], ino: u32, parent: u32, filetype: bool) {
    let mut kept: Vec<(u32, u8, Vec<u8>)> = Vec::new();
    for record in Dirents::new(block, filetype).map_while(Result::ok) {
        if record.ino != 0 && record.name != b"." && record.name != b".." {
            kept.push((record.ino, record.file_type, record.name.to_vec()));
        }
    }
    let len = block.len();
    block.fill(0);
    let kind = if filetype { 2 } else { 0 };
    put_dirent(block, 0, 12, ino, kind, b".");
    let mut last = 12;
    put_dirent(block, last, len - last, parent, kind, b"..");
    let mut end = 24;
    for (ino, kind, name) in kept {
        let need = dirent_len(name.len());
        if end + need > len {
            break;
        }
        put16(block, last + 4, u16::try_from(end - last).unwrap_or(0));
        put_dirent(block, end, len - end, ino, kind, &name);
        last = end;
        end += need;
    }
}

/// Puts a record into free space of the block; `false` if there is none.
pub(super) fn insert(block: &mut [u8], ino: u32, kind: u8, name: &[u8], filetype: bool) -> bool {
    let need = dirent_len(name.len());
    let room = Dirents::new(block, filetype)
        .map_while(Result::ok)
        .find(|record| record.rec_len - record.used_bytes() >= need)
        .map(|record| (record.offset, record.rec_len, record.used_bytes()));
    let Some((offset, rec_len, used)) = room else { return false };
    let kind = if filetype { kind } else { 0 };
    if used > 0 {
        put16(block, offset + 4, u16::try_from(used).unwrap_or(0));
    }
    put_dirent(block, offset + used, rec_len - used, ino, kind, name);
    true
}

/// A block of a directory with nothing in it.
pub(super) fn empty(len: usize) -> Vec<u8> {
    let mut block = vec![0; len];
    put_dirent(&mut block, 0, len, 0, 0, b"");
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(block: &[u8]) -> Vec<(u32, Vec<u8>)> {
        Dirents::new(block, true)
            .map(Result::unwrap)
            .filter(|r| r.ino != 0)
            .map(|r| (r.ino, r.name.to_vec()))
            .collect()
    }

    #[test]
    fn insert_until_full_and_rebuild() {
        let mut block = empty(1024);
        let mut n = 0;
        while insert(&mut block, 100 + n, 1, format!("file{n:04}").as_bytes(), true) {
            n += 1;
        }
        assert_eq!(n, 1024 / 16);
        rebuild_first(&mut block, 50, 2, true);
        let all = names(&block);
        assert_eq!(all[0], (50, b".".to_vec()));
        assert_eq!(all[1], (2, b"..".to_vec()));
        assert_eq!(all.len(), 2 + (1024 - 24) / 16);
    }

    #[test]
    fn truncate_keeps_the_records_behind_one_with_a_bad_name() {
        let mut block = empty(1024);
        while insert(&mut block, 7, 1, b"12345678", true) {}
        let all = names(&block).len();
        block[512 + 8] = b'/';
        truncate(&mut block, 512, true);
        assert_eq!(names(&block).len(), all - 1);
    }

    #[test]
    fn truncate_keeps_the_records_before() {
        for bad in [16, 512, 1008, 1016] {
            let mut block = empty(1024);
            while insert(&mut block, 7, 1, b"12345678", true) {}
            let bad = if bad == 1016 {
                // Leaves 8 bytes, which are no record.
                put16(&mut block, 1000 - 8 + 4, 24);
                bad
            } else {
                bad
            };
            if bad != 1016 {
                put16(&mut block, bad + 4, 6);
            }
            truncate(&mut block, bad, true);
            let end: usize = Dirents::new(&block, true).map(|r| r.unwrap().rec_len).sum();
            assert_eq!(end, 1024, "{bad}");
            assert!(names(&block).len() >= (bad - 16) / 16);
        }
    }
}
