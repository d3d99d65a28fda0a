//! BinHex 4.0: a whole file as lines of printable characters.
//!
//! Three layers: a stream of header, data fork and resource fork, each with its CRC; runs of a
//! byte as the byte, 90 and a count; six bits a character between two colons. Sources: Peter
//! Lewis, "BinHex 4.0 Definition" (1991), and RFC 1741.

use super::error::{Error, Result, corrupt};
use super::meta::{Fork, Meta};
use super::stream::{Crc, be16, be32, copy_announced};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// The text with which every file begins. (macutils continues it in other words.)
pub const ANNOUNCEMENT: &[u8] = b"(This file must be converted";
const ALPHABET: &[u8; 64] = b"!\"#$%&'()*+,-012345689@ABCDEFGHIJKLMNPQRSTUVXYZ[`abcdefhijklmpqr";
const LINE_CHARS: usize = 64;
const RUN: u8 = 0x90;
const STRUCTURE: &str = "BinHex stream";

/// The value of each character; 64 for a character outside the alphabet.
const VALUES: [u8; 256] = {
    let mut values = [64; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values
};

// ---- packing ----

/// Packs a file.
///
/// # Errors
/// [`Error::CannotHold`] for a name that is not 1 to 63 bytes long or a fork of 4 GiB or more;
/// [`Error::Length`] if a fork is not as long as `meta` says.
pub fn write(
    meta: &Meta,
    data: &mut dyn Read,
    resource: &mut dyn Read,
    to: &mut dyn Write,
) -> Result<()> {
    let cannot = |what: String| Error::CannotHold { format: "BinHex", what };
    if !(1..=63).contains(&meta.name.len()) {
        return Err(cannot(format!("a name of {} bytes", meta.name.len())));
    }
    let mut header = vec![meta.name.len() as u8];
    header.extend(&meta.name);
    header.push(0);
    header.extend(&meta.finder_info[..10]);
    for fork in [Fork::Data, Fork::Resource] {
        let len = meta.fork_bytes(fork);
        let fits = u32::try_from(len);
        header.extend(
            fits.map_err(|_| cannot(format!("a {} fork of {len} bytes", fork.name())))?
                .to_be_bytes(),
        );
    }
    to.write_all(b"(This file must be converted with BinHex 4.0)\n\n:")?;
    let mut packer = Packer { to, column: 1, bits: 0, bits_len: 0, run: None, crc: Crc::default() };
    packer.write_all(&header)?;
    packer.end_part()?;
    for fork in [Fork::Data, Fork::Resource] {
        let from: &mut dyn Read = match fork {
            Fork::Data => &mut *data,
            Fork::Resource => &mut *resource,
        };
        copy_announced(fork, meta.fork_bytes(fork), from, &mut packer)?;
        packer.end_part()?;
    }
    packer.finish()
}

/// The three layers, for packing.
struct Packer<'a> {
    to: &'a mut dyn Write,
    column: usize,
    /// The last bits, which do not fill a character yet.
    bits: u32,
    bits_len: u32,
    /// A byte and its number of occurrences in a row.
    run: Option<(u8, u8)>,
    crc: Crc,
}

impl Write for Packer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.crc.add(buf);
        let mut out = Vec::with_capacity(buf.len() + buf.len() / 2);
        for &byte in buf {
            match &mut self.run {
                Some((last, count)) if *last == byte && *count < 255 => *count += 1,
                _ => self.end_run(&mut out, Some((byte, 1))),
            }
        }
        self.to.write_all(&out)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Packer<'_> {
    fn end_run(&mut self, out: &mut Vec<u8>, next: Option<(u8, u8)>) {
        let Some((byte, count)) = std::mem::replace(&mut self.run, next) else { return };
        // A literal 90 is followed by 0.
        let literal: &[u8] = if byte == RUN { &[RUN, 0] } else { &[byte] };
        // Any run takes three characters; a shorter run is written literally.
        if count > 3 {
            literal.iter().for_each(|&b| self.six(out, b));
            self.six(out, RUN);
            self.six(out, count);
        } else {
            for _ in 0..count {
                literal.iter().for_each(|&b| self.six(out, b));
            }
        }
    }

    fn six(&mut self, out: &mut Vec<u8>, byte: u8) {
        self.bits = self.bits << 8 | u32::from(byte);
        self.bits_len += 8;
        while self.bits_len >= 6 {
            self.bits_len -= 6;
            let value = self.bits >> self.bits_len & 63;
            self.character(out, ALPHABET[value as usize]);
        }
    }

    fn character(&mut self, out: &mut Vec<u8>, character: u8) {
        if self.column == LINE_CHARS {
            out.push(b'\n');
            self.column = 0;
        }
        out.push(character);
        self.column += 1;
    }

    fn end_part(&mut self) -> Result<()> {
        let crc = self.crc.0;
        self.write_all(&crc.to_be_bytes())?;
        self.crc = Crc::default();
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let mut out = Vec::new();
        self.end_run(&mut out, None);
        if self.bits_len > 0 {
            let value = self.bits << (6 - self.bits_len) & 63;
            self.character(&mut out, ALPHABET[value as usize]);
        }
        self.character(&mut out, b':');
        out.push(b'\n');
        Ok(self.to.write_all(&out)?)
    }
}

// ---- unpacking ----

/// An open packed file.
#[derive(Debug)]
pub struct Unpacker<R> {
    chars: Chars<R>,
    meta: Meta,
    /// The next fork in the stream.
    next: Option<Fork>,
}

impl<R: Read + Seek> Unpacker<R> {
    /// Finds the announcement (which may follow the lines of a mail) and reads the header.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none; [`Error::Checksum`]; [`Error::Io`].
    pub fn open(mut from: R) -> Result<Self> {
        from.seek(SeekFrom::Start(0))?;
        let mut chars = Chars::new(from);
        chars.find_start()?;
        let mut head = vec![0; 1];
        chars.fill(&mut head)?;
        let name_bytes = usize::from(head[0]);
        if !(1..=63).contains(&name_bytes) {
            let problem = format!("a name of {name_bytes} bytes");
            return Err(corrupt("BinHex header", chars.read_bytes, problem));
        }
        head.resize(1 + name_bytes + 19, 0);
        chars.fill(&mut head[1..])?;
        chars.check_crc("BinHex header", Crc::of(&head))?;
        let fields = &head[1 + name_bytes + 1..];
        let mut meta = Meta {
            name: head[1..=name_bytes].to_vec(),
            data_bytes: u64::from(be32(fields, 10)),
            resource_bytes: u64::from(be32(fields, 14)),
            ..Meta::default()
        };
        meta.finder_info[..10].copy_from_slice(&fields[..10]);
        Ok(Self { chars, meta, next: Some(Fork::Data) })
    }

    /// Returns the metadata of the header.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Copies a fork, in any order and any number of times, and checks its CRC.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file is cut short or has invalid characters; [`Error::Checksum`];
    /// [`Error::Io`].
    pub fn copy_fork(&mut self, fork: Fork, to: &mut dyn Write) -> Result<()> {
        if self.next.is_none_or(|next| next > fork) {
            self.chars.rewind()?;
            self.chars.find_start()?;
            let header_bytes = 1 + self.meta.name.len() + 19 + 2;
            self.chars.fill(&mut vec![0; header_bytes])?;
            self.next = Some(Fork::Data);
        }
        if self.next == Some(Fork::Data) && fork == Fork::Resource {
            self.part(Fork::Data, &mut io::sink())?;
        }
        self.part(fork, to)
    }

    fn part(&mut self, fork: Fork, to: &mut dyn Write) -> Result<()> {
        // If this fails, the position in the stream is unknown.
        self.next = None;
        let mut crc = Crc::default();
        let mut left = self.meta.fork_bytes(fork);
        let mut buffer = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(32 << 10)];
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            self.chars.fill(&mut buffer[..n])?;
            crc.add(&buffer[..n]);
            to.write_all(&buffer[..n])?;
            left -= n as u64;
        }
        match fork {
            Fork::Data => {
                self.chars.check_crc("BinHex data fork", crc.0)?;
                self.next = Some(Fork::Resource);
            }
            Fork::Resource => self.chars.check_crc("BinHex resource fork", crc.0)?,
        }
        Ok(())
    }
}

/// The three layers, for unpacking.
#[derive(Debug)]
struct Chars<R> {
    from: R,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes taken from the file so far.
    read_bytes: u64,
    bits: u32,
    bits_len: u32,
    /// The previous byte, and its number of repetitions still to come.
    run: (Option<u8>, u8),
    ended: bool,
}

impl<R: Read + Seek> Chars<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
            at: 0,
            read_bytes: 0,
            bits: 0,
            bits_len: 0,
            run: (None, 0),
            ended: false,
        }
    }

    fn rewind(&mut self) -> Result<()> {
        self.from.seek(SeekFrom::Start(0))?;
        self.buffer.clear();
        (self.at, self.read_bytes, self.bits, self.bits_len) = (0, 0, 0, 0);
        (self.run, self.ended) = ((None, 0), false);
        Ok(())
    }

    fn byte(&mut self) -> Result<Option<u8>> {
        if self.at == self.buffer.len() {
            self.buffer.resize(32 << 10, 0);
            let got = super::stream::read_up_to(&mut self.from, &mut self.buffer)?;
            self.buffer.truncate(got);
            self.at = 0;
        }
        let Some(&byte) = self.buffer.get(self.at) else { return Ok(None) };
        self.at += 1;
        self.read_bytes += 1;
        Ok(Some(byte))
    }

    /// Skips to after the first colon at the start of a line after the announcement's.
    fn find_start(&mut self) -> Result<()> {
        let mut seen = 0;
        let mut line_begins = false;
        while let Some(byte) = self.byte()? {
            let line_end = matches!(byte, b'\r' | b'\n');
            if seen < ANNOUNCEMENT.len() {
                // No part of the announcement but its first character is also a beginning of it.
                seen = if byte == ANNOUNCEMENT[seen] {
                    seen + 1
                } else {
                    usize::from(byte == ANNOUNCEMENT[0])
                };
            } else if line_begins && byte == b':' {
                return Ok(());
            } else {
                line_begins = line_end || (line_begins && matches!(byte, b' ' | b'\t'));
            }
        }
        Err(corrupt(STRUCTURE, self.read_bytes, "nothing between colons behind an announcement"))
    }

    /// Returns one byte of the second layer.
    fn packed(&mut self) -> Result<u8> {
        while self.bits_len < 8 {
            let bad = |at, problem: String| Err(corrupt(STRUCTURE, at, problem));
            if self.ended {
                return bad(self.read_bytes, "it ends before the resource fork does".into());
            }
            match self.byte()? {
                None => return bad(self.read_bytes, "the file is cut short".into()),
                Some(b':') => self.ended = true,
                Some(b'\r' | b'\n' | b' ' | b'\t') => {}
                Some(byte) => {
                    let value = VALUES[usize::from(byte)];
                    if value == 64 {
                        let at = self.read_bytes - 1;
                        return bad(at, format!("{:?} is no character of it", char::from(byte)));
                    }
                    self.bits = self.bits << 6 | u32::from(value);
                    self.bits_len += 6;
                }
            }
        }
        self.bits_len -= 8;
        Ok((self.bits >> self.bits_len) as u8)
    }

    /// Returns one byte of the first layer.
    fn unpacked(&mut self) -> Result<u8> {
        loop {
            if let (Some(byte), left @ 1..) = self.run {
                self.run.1 = left - 1;
                return Ok(byte);
            }
            let mut byte = self.packed()?;
            if byte == RUN {
                let count = self.packed()?;
                if count > 0 {
                    if self.run.0.is_none() {
                        return Err(corrupt(STRUCTURE, self.read_bytes, "a run of nothing"));
                    }
                    // The byte itself has been returned already.
                    self.run.1 = count - 1;
                    continue;
                }
                byte = RUN;
            }
            self.run = (Some(byte), 0);
            return Ok(byte);
        }
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        for slot in buf {
            *slot = self.unpacked()?;
        }
        Ok(())
    }

    fn check_crc(&mut self, structure: &'static str, found: u16) -> Result<()> {
        let mut crc = [0; 2];
        self.fill(&mut crc)?;
        let expected = be16(&crc, 0);
        if expected == found { Ok(()) } else { Err(Error::Checksum { structure, expected, found }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn pack(meta: &Meta, data: &[u8], resource: &[u8]) -> Vec<u8> {
        let (data_bytes, resource_bytes) = (data.len() as u64, resource.len() as u64);
        let meta = Meta { data_bytes, resource_bytes, ..meta.clone() };
        let mut packed = Vec::new();
        write(&meta, &mut &data[..], &mut &resource[..], &mut packed).unwrap();
        packed
    }

    fn fork(packed: &[u8], fork: Fork) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        Unpacker::open(Cursor::new(packed))?.copy_fork(fork, &mut out)?;
        Ok(out)
    }

    fn named(name: &str) -> Meta {
        Meta { name: name.into(), ..Meta::default() }
    }

    #[test]
    fn runs_of_all_lengths_come_back() {
        for byte in [0, RUN, b'x'] {
            for len in [0, 1, 2, 3, 4, 5, 254, 255, 256, 257, 1000] {
                let run = vec![byte; len];
                let packed = pack(&named("run"), &run, b"end");
                assert_eq!(fork(&packed, Fork::Data).unwrap(), run);
                assert_eq!(fork(&packed, Fork::Resource).unwrap(), b"end");
            }
        }
    }

    #[test]
    fn lines_are_64_characters_and_end_in_a_colon() {
        for len in 40..50 {
            let packed = pack(&named("lines"), &vec![0xa5; len * 7], &[]);
            let text = String::from_utf8(packed).unwrap();
            let body: Vec<&str> = text.lines().skip(2).collect();
            let (last, full) = body.split_last().unwrap();
            assert!(full.iter().all(|line| line.len() == 64) && (1..=64).contains(&last.len()));
            assert!(last.ends_with(':'));
        }
    }

    #[test]
    fn mail_around_it_and_other_line_ends_do_no_harm() {
        let packed = pack(&named("mail"), b"some data", b"and resources");
        let text = String::from_utf8(packed).unwrap();
        for line_end in ["\r", "\r\n"] {
            let mail = format!("From: (This somebody):\n\n{text}\n-- \n:)\n");
            let mail = mail.replace('\n', line_end).into_bytes();
            assert_eq!(fork(&mail, Fork::Resource).unwrap(), b"and resources");
        }
    }

    #[test]
    fn forks_are_read_in_any_order() {
        let packed = pack(&named("order"), b"first", b"second");
        let mut unpacker = Unpacker::open(Cursor::new(packed)).unwrap();
        for which in [Fork::Resource, Fork::Data, Fork::Data, Fork::Resource, Fork::Resource] {
            let mut out = Vec::new();
            unpacker.copy_fork(which, &mut out).unwrap();
            let content: &[u8] = if which == Fork::Data { b"first" } else { b"second" };
            assert_eq!(out, content);
        }
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let packed = pack(&named("crc"), b"some data", b"resources");
        let start = packed.iter().position(|&b| b == b':').unwrap();
        for at in start + 1..packed.len() - 2 {
            let mut bad = packed.clone();
            bad[at] = if bad[at] == b'!' { b'"' } else { b'!' };
            if packed[at] == b'\n' {
                continue;
            }
            let failed = fork(&bad, Fork::Data).and_then(|_| fork(&bad, Fork::Resource)).is_err();
            // The last character may carry unused bits.
            assert!(failed || at == packed.len() - 3, "byte {at}");
            assert!(fork(&packed[..at], Fork::Resource).is_err(), "cut at {at}");
        }
    }
}
