//! Copying with bounded memory, big-endian fields, and the CRC that MacBinary and BinHex share.

use super::error::{Error, Result, corrupt};
use super::meta::Fork;
use std::io::{self, Read, Seek, SeekFrom, Write};

const BUFFER_BYTES: usize = 64 << 10;

/// Copies a fork that was announced with `announced` bytes, and checks that it has them.
pub(super) fn copy_announced(
    fork: Fork,
    announced: u64,
    from: &mut dyn Read,
    to: &mut dyn Write,
) -> Result<()> {
    let found = copy(from, to, announced)?;
    let length = |found| Error::Length { fork: fork.name(), announced, found };
    if found < announced {
        return Err(length(found));
    }
    let mut more = [0];
    loop {
        return match from.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(length(announced.saturating_add(1))),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => Err(e.into()),
        };
    }
}

/// Copies up to `len_bytes` bytes; returns the number of copied bytes.
pub(super) fn copy(from: &mut dyn Read, to: &mut dyn Write, len_bytes: u64) -> Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(len_bytes).unwrap_or(BUFFER_BYTES))];
    let mut done = 0;
    while done < len_bytes {
        let want = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(buffer.len());
        let got = read_up_to(from, &mut buffer[..want])?;
        to.write_all(&buffer[..got])?;
        done += got as u64;
        if got < want {
            break;
        }
    }
    Ok(done)
}

/// Fills `buf` as far as the input lasts; returns the number of bytes read.
pub(super) fn read_up_to(from: &mut dyn Read, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match from.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// Writes zeroes up to the next multiple of `unit` after `len_bytes`.
pub(super) fn pad(to: &mut dyn Write, len_bytes: u64, unit: u64) -> Result<()> {
    let zeroes = len_bytes.next_multiple_of(unit) - len_bytes;
    Ok(to.write_all(&vec![0; usize::try_from(zeroes).unwrap_or_default()])?)
}

/// Reads a range of a file into memory. The caller bounds `len_bytes`.
pub(super) fn read_range<R: Read + Seek>(
    from: &mut R,
    structure: &'static str,
    at: u64,
    len_bytes: usize,
) -> Result<Vec<u8>> {
    from.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; len_bytes];
    let got = read_up_to(from, &mut bytes)?;
    if got < len_bytes {
        let problem = format!("it ends after {got} of {len_bytes} bytes");
        return Err(corrupt(structure, at, problem));
    }
    Ok(bytes)
}

/// Copies a range of a file; all of the range must exist.
pub(super) fn copy_range<R: Read + Seek>(
    from: &mut R,
    structure: &'static str,
    range: (u64, u64),
    to: &mut dyn Write,
) -> Result<()> {
    let (at, len_bytes) = range;
    from.seek(SeekFrom::Start(at))?;
    let found = copy(from, to, len_bytes)?;
    if found < len_bytes {
        return Err(corrupt(structure, at, format!("it ends after {found} of {len_bytes} bytes")));
    }
    Ok(())
}

/// Returns the length of a file in bytes.
pub(super) fn len_of<R: Seek>(from: &mut R) -> Result<u64> {
    Ok(from.seek(SeekFrom::End(0))?)
}

/// Returns the big-endian number in the two bytes at `at`; 0 past the end.
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// Returns the big-endian number in the four bytes at `at`; 0 past the end.
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// CRC-16 of the CCITT polynomial 1021, most significant bit first, from 0: "CRC-16/XMODEM".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Crc(pub u16);

impl Crc {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = (i as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };

    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let at = usize::from((self.0 >> 8) as u8 ^ byte);
            self.0 = (self.0 << 8) ^ Self::TABLE[at];
        }
    }

    pub fn of(bytes: &[u8]) -> u16 {
        let mut crc = Self::default();
        crc.add(bytes);
        crc.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_has_its_check_value() {
        assert_eq!(Crc::of(b"123456789"), 0x31c3);
        assert_eq!(Crc::of(b""), 0);
    }

    #[test]
    fn a_fork_of_another_length_is_told() {
        let length = |announced, bytes: &[u8]| {
            copy_announced(Fork::Data, announced, &mut &bytes[..], &mut Vec::new()).err().map(|e| {
                match e {
                    Error::Length { found, .. } => found,
                    other => panic!("{other}"),
                }
            })
        };
        assert_eq!(length(3, b"abc"), None);
        assert_eq!(length(3, b"ab"), Some(2));
        assert_eq!(length(3, b"abcde"), Some(4));
        assert_eq!(length(0, b"a"), Some(1));
    }
}
