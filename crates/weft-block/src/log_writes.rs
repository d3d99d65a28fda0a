//! Block recordings in the format of Linux's dm-log-writes target, version 1, so that stock tools
//! (`replay-log` of xfstests) replay what weft recorded and weft explores what the kernel did.
//!
//! The format, from the kernel's `Documentation/admin-guide/device-mapper/log-writes.rst` and the
//! structures in `drivers/md/dm-log-writes.c`; all numbers little-endian, everything in units of
//! the log's sector:
//!
//! | where | bytes | what |
//! |---|---|---|
//! | sector 0 | 0..8 | magic `0x6a736677736872` |
//! | | 8..16 | version, 1 |
//! | | 16..24 | number of entries |
//! | | 24..28 | sector size in bytes |
//! | each entry | 0..8 | sector on the device |
//! | | 8..16 | number of sectors |
//! | | 16..24 | flags: 1 flush, 2 FUA, 4 discard, 8 mark, 16 metadata |
//! | | 24..32 | length of a mark's text, which follows in the same sector |
//! | behind it | | the sectors of data, if it is a write |
//!
//! An entry stands behind everything that was durable when it completed; an entry flagged "flush"
//! says that everything before it is durable.

use crate::{Error, Event, Result};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// The magic number of a log.
pub const LOG_MAGIC: u64 = 0x006a_7366_7773_6872;
/// The version of the format.
pub const LOG_VERSION: u64 = 1;

/// Flags of an entry.
mod flag {
    pub const FLUSH: u64 = 1;
    pub const FUA: u64 = 2;
    pub const DISCARD: u64 = 4;
    pub const MARK: u64 = 8;
}

const ENTRY_BYTES: usize = 32;
/// The sector of the logs we write.
const SECTOR: u64 = 512;
/// The longest text of a mark that fits our sector, a closing NUL included as the kernel has it.
const MARK_MAX_BYTES: usize = SECTOR as usize - ENTRY_BYTES;

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| b.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// Writes a log.
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    entries: u64,
}

impl<W: Write + Seek> LogWriter<W> {
    /// Begins a log at the start of `out`.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(out: W) -> Result<Self> {
        let mut log = Self { out, entries: 0 };
        log.finish()?;
        Ok(log)
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a write or discard that is not a multiple of 512 bytes, which the
    /// format cannot say, or a mark of over 479 bytes; those of writing.
    pub fn append(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Write { offset, data, fua } => {
                let flags = if *fua { flag::FUA } else { 0 };
                let (sector, sectors) = in_sectors("write", *offset, data.len() as u64)?;
                self.entry(sector, sectors, flags, b"")?;
                self.put(data)
            }
            Event::Flush { .. } => self.entry(0, 0, flag::FLUSH, b""),
            Event::Discard { offset, len_bytes } => {
                let (sector, sectors) = in_sectors("discard", *offset, *len_bytes)?;
                self.entry(sector, sectors, flag::DISCARD, b"")
            }
            Event::Mark(text) if text.len() < MARK_MAX_BYTES => {
                self.entry(0, 0, flag::MARK, text.as_bytes())
            }
            Event::Mark(text) => Err(Error::Invalid(format!(
                "a mark of {} bytes is too long for a dm-log-writes log",
                text.len()
            ))),
        }
    }

    /// Writes the super block with the number of entries so far. More may be added.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(&mut self) -> Result<()> {
        let mut sector = [0; SECTOR as usize];
        sector[0..8].copy_from_slice(&LOG_MAGIC.to_le_bytes());
        sector[8..16].copy_from_slice(&LOG_VERSION.to_le_bytes());
        sector[16..24].copy_from_slice(&self.entries.to_le_bytes());
        sector[24..28].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        let write = |out: &mut W| {
            out.seek(SeekFrom::Start(0))?;
            out.write_all(&sector)?;
            out.seek(SeekFrom::End(0))?;
            out.flush()
        };
        write(&mut self.out).map_err(|e| Error::io("write of a log", 0, SECTOR, e))
    }

    fn entry(&mut self, sector: u64, sectors: u64, flags: u64, text: &[u8]) -> Result<()> {
        let mut head = [0; SECTOR as usize];
        head[0..8].copy_from_slice(&sector.to_le_bytes());
        head[8..16].copy_from_slice(&sectors.to_le_bytes());
        head[16..24].copy_from_slice(&flags.to_le_bytes());
        // The length counts the text's closing NUL.
        let text_len = if flags & flag::MARK == 0 { 0 } else { text.len() as u64 + 1 };
        head[24..32].copy_from_slice(&text_len.to_le_bytes());
        head[ENTRY_BYTES..ENTRY_BYTES + text.len()].copy_from_slice(text);
        self.entries += 1;
        self.put(&head)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| Error::io("write of a log", 0, len, e))
    }
}

fn in_sectors(op: &str, offset: u64, len_bytes: u64) -> Result<(u64, u64)> {
    if offset.is_multiple_of(SECTOR) && len_bytes.is_multiple_of(SECTOR) {
        return Ok((offset / SECTOR, len_bytes / SECTOR));
    }
    Err(Error::Invalid(format!(
        "a {op} of {len_bytes} bytes at offset {offset} is not in whole sectors and cannot be \
         recorded in a dm-log-writes log"
    )))
}

/// Reads a log.
#[derive(Debug)]
pub struct LogReader<R> {
    input: R,
    sector_bytes: u64,
    entries: u64,
    read: u64,
    /// Byte offset of the next entry in the log.
    at: u64,
}

impl<R: Read + Seek> LogReader<R> {
    /// Begins at the start of `input`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is no log we know, [`Error::Io`].
    pub fn new(mut input: R) -> Result<Self> {
        let mut head = [0; 28];
        let read = |input: &mut R, head: &mut [u8]| {
            input.seek(SeekFrom::Start(0))?;
            input.read_exact(head)
        };
        read(&mut input, &mut head).map_err(|e| read_error(0, 28, e))?;
        let bad = |problem: String| Error::Corrupt {
            structure: "dm-log-writes super block",
            offset: 0,
            problem,
        };
        if le64(&head, 0) != LOG_MAGIC {
            return Err(bad(format!("the magic number is {:#x}", le64(&head, 0))));
        }
        if le64(&head, 8) != LOG_VERSION {
            return Err(bad(format!("version {} is not known", le64(&head, 8))));
        }
        let sector_bytes = le64(&head, 20) >> 32;
        if !sector_bytes.is_power_of_two() || !(512..=65536).contains(&sector_bytes) {
            return Err(bad(format!("a sector of {sector_bytes} bytes")));
        }
        let entries = le64(&head, 16);
        Ok(Self { input, sector_bytes, entries, read: 0, at: sector_bytes })
    }

    /// Returns the number of entries that the log's header states.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// All events of the log.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn read_all(mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while self.next_entry(&mut events)? {}
        Ok(events)
    }

    /// Appends the events of the next entry, of which a write that flushes first has two.
    /// `Ok(false)` at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn next_entry(&mut self, events: &mut Vec<Event>) -> Result<bool> {
        if self.read == self.entries {
            return Ok(false);
        }
        let start = self.at;
        let bad = |problem: String| Error::Corrupt {
            structure: "dm-log-writes entry",
            offset: start,
            problem,
        };
        let head = self.take(self.sector_bytes)?;
        let (sector, sectors) = (le64(&head, 0), le64(&head, 8));
        let (flags, text_len) = (le64(&head, 16), le64(&head, 24));
        let bytes = |n: u64| {
            n.checked_mul(self.sector_bytes).ok_or_else(|| bad(format!("sector {n} is absurd")))
        };
        let (offset, len_bytes) = (bytes(sector)?, bytes(sectors)?);
        if offset.checked_add(len_bytes).is_none() {
            return Err(bad(format!("{sectors} sectors from {sector} on")));
        }
        self.read += 1;
        if flags & flag::MARK != 0 {
            let text = usize::try_from(text_len)
                .ok()
                .and_then(|n| head.get(ENTRY_BYTES..ENTRY_BYTES.checked_add(n)?))
                .ok_or_else(|| bad(format!("a mark of {text_len} bytes")))?;
            let text = text.split(|&b| b == 0).next().unwrap_or_default();
            events.push(Event::Mark(String::from_utf8_lossy(text).into_owned()));
            return Ok(true);
        }
        if flags & flag::FLUSH != 0 {
            events.push(Event::Flush { covers: events.len() });
        }
        if flags & flag::DISCARD != 0 {
            events.push(Event::Discard { offset, len_bytes });
        } else if sectors > 0 {
            let data = self.take(len_bytes)?;
            events.push(Event::Write { offset, data: data.into(), fua: flags & flag::FUA != 0 });
        }
        Ok(true)
    }

    fn take(&mut self, len_bytes: u64) -> Result<Vec<u8>> {
        let at = self.at;
        let mut bytes = Vec::new();
        // Takes memory only as the log delivers: an absurd length meets the end of the file.
        let read = |input: &mut R, bytes: &mut Vec<u8>| {
            input.seek(SeekFrom::Start(at))?;
            input.take(len_bytes).read_to_end(bytes)
        };
        let n = read(&mut self.input, &mut bytes).map_err(|e| read_error(at, len_bytes, e))?;
        if (n as u64) < len_bytes {
            let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(read_error(at, len_bytes, eof));
        }
        self.at += len_bytes;
        Ok(bytes)
    }
}

fn read_error(at: u64, len_bytes: u64, e: io::Error) -> Error {
    if e.kind() == io::ErrorKind::UnexpectedEof {
        let problem = format!("the log ends within {len_bytes} bytes that should be there");
        return Error::Corrupt { structure: "dm-log-writes log", offset: at, problem };
    }
    Error::io("read of a log", at, len_bytes, e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn sample() -> Vec<Event> {
        let write = |offset, byte: u8, n: usize, fua| Event::Write {
            offset,
            data: vec![byte; n].into(),
            fua,
        };
        vec![
            write(4096, 1, 1024, false),
            Event::Mark("begin: öh".into()),
            write(512, 2, 512, true),
            Event::Flush { covers: 3 },
            Event::Discard { offset: 1 << 20, len_bytes: 1 << 30 },
            Event::Mark(String::new()),
        ]
    }

    fn bytes(events: &[Event]) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        let mut log = LogWriter::new(&mut out).unwrap();
        events.iter().for_each(|e| log.append(e).unwrap());
        log.finish().unwrap();
        out.into_inner()
    }

    #[test]
    fn a_log_reads_back_as_it_was_written() {
        let log = bytes(&sample());
        assert_eq!(LogReader::new(Cursor::new(&log)).unwrap().read_all().unwrap(), sample());
        assert_eq!(log.len(), 512 * (1 + 6) + 1024 + 512);
        // The layout of the kernel's structures, byte by byte.
        assert_eq!(log[..8], *b"rhswfsj\0");
        assert_eq!(log[16..28], [6, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
        assert_eq!(log[512..520], [8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(log[520], 2);
    }

    #[test]
    fn odd_sizes_cannot_be_said() {
        let mut log = LogWriter::new(Cursor::new(Vec::new())).unwrap();
        let odd = Event::Write { offset: 100, data: vec![0; 512].into(), fua: false };
        assert!(matches!(log.append(&odd), Err(Error::Invalid(_))));
        assert!(log.append(&Event::Mark("x".repeat(480))).is_err());
    }

    #[test]
    fn a_damaged_log_is_an_error_and_no_panic() {
        let log = bytes(&sample());
        for cut in 0..log.len() {
            let short = LogReader::new(Cursor::new(&log[..cut])).and_then(LogReader::read_all);
            assert!(matches!(short, Err(Error::Corrupt { .. })), "cut at {cut}: {short:?}");
        }
        for at in (0..32).chain(512..544) {
            let mut hurt = log.clone();
            hurt[at] ^= 0xff;
            let _ = LogReader::new(Cursor::new(&hurt)).and_then(LogReader::read_all);
        }
    }
}
