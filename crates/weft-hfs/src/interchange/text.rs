//! Conversion of text: MacRoman with CR at the line ends to UTF-8 with LF, and back.
//!
//! From the Macintosh, CR and LF are swapped, so that nothing is lost: a byte LF, which no
//! Macintosh text has, comes out as CR. To the Macintosh, CR LF counts as one line end, and a byte
//! order mark at the beginning is skipped.

use super::error::{Error, Result};
use super::stream::read_up_to;
use crate::macroman;
use std::io::{Read, Write};

const CHUNK_BYTES: usize = 32 << 10;

/// Converts text of a Macintosh. Returns the number of bytes written.
///
/// # Errors
/// [`Error::Io`].
pub fn to_unix(from: &mut dyn Read, to: &mut dyn Write) -> Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut written = 0;
    loop {
        let got = read_up_to(from, &mut buffer)?;
        buffer[..got].iter_mut().for_each(|b| *b = swap_line_end(*b));
        let text = macroman::decode(&buffer[..got]);
        to.write_all(text.as_bytes())?;
        written += text.len() as u64;
        if got < buffer.len() {
            return Ok(written);
        }
    }
}

/// Converts UTF-8 text, composed or not. Returns the number of bytes written, at most the number
/// read.
///
/// # Errors
/// [`Error::Text`] with the offset of the invalid character; [`Error::Io`].
pub fn from_unix(from: &mut dyn Read, to: &mut dyn Write) -> Result<u64> {
    let mut buffer: Vec<u8> = Vec::new();
    let (mut passed, mut written) = (0, 0);
    loop {
        let kept = buffer.len();
        buffer.resize(kept + CHUNK_BYTES, 0);
        let got = read_up_to(from, &mut buffer[kept..])?;
        let end = got < CHUNK_BYTES;
        buffer.truncate(kept + got);
        if passed == 0 && buffer.starts_with(b"\xef\xbb\xbf") {
            buffer.drain(..3);
            passed = 3;
        }
        let text = match std::str::from_utf8(&buffer) {
            Ok(text) => text,
            Err(e) if !end && e.error_len().is_none() => {
                std::str::from_utf8(&buffer[..e.valid_up_to()]).unwrap_or_default()
            }
            Err(e) => {
                return Err(Error::Text(at(
                    passed,
                    macroman::Error::NotUtf8 { at: e.valid_up_to() },
                )));
            }
        };
        let text = &text[..if end { text.len() } else { last_break(text) }];
        let mut bytes = macroman::encode(text).map_err(|e| at(passed, e))?;
        one_line_end(&mut bytes);
        to.write_all(&bytes)?;
        written += bytes.len() as u64;
        passed += text.len();
        let used = text.len();
        buffer.drain(..used);
        if end {
            return Ok(written);
        }
    }
}

/// Returns the offset at which a text can be cut so that both parts convert independently: before
/// its last character that neither combines with the one before nor ends a CR LF.
fn last_break(text: &str) -> usize {
    let joins = |c: char| c == '\n' || ('\u{300}'..'\u{370}').contains(&c);
    // A longer row of marks or empty lines is cut anywhere.
    let found = text.char_indices().rev().take(CHUNK_BYTES / 2).find(|&(_, c)| !joins(c));
    found.map_or(text.len(), |(at, _)| at)
}

/// Replaces CR LF and LF by CR, and a single CR by LF.
fn one_line_end(bytes: &mut Vec<u8>) {
    let mut to = 0;
    let mut from = 0;
    while let Some(&byte) = bytes.get(from) {
        if byte == b'\r' && bytes.get(from + 1) == Some(&b'\n') {
            from += 1;
            bytes[to] = b'\r';
        } else {
            bytes[to] = swap_line_end(byte);
        }
        from += 1;
        to += 1;
    }
    bytes.truncate(to);
}

fn swap_line_end(byte: u8) -> u8 {
    match byte {
        b'\r' => b'\n',
        b'\n' => b'\r',
        _ => byte,
    }
}

fn at(passed: usize, error: macroman::Error) -> macroman::Error {
    match error {
        macroman::Error::NotUtf8 { at } => macroman::Error::NotUtf8 { at: passed + at },
        macroman::Error::NoSuchCharacter { character, at } => {
            macroman::Error::NoSuchCharacter { character, at: passed + at }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unix(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(to_unix(&mut &text[..], &mut out).unwrap(), out.len() as u64);
        out
    }

    fn mac(text: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        from_unix(&mut &text[..], &mut out)?;
        Ok(out)
    }

    #[test]
    fn line_ends_change_places() {
        assert_eq!(unix(b"a\rb\nc\r"), b"a\nb\rc\n");
        assert_eq!(mac(b"a\nb\rc\r\nd").unwrap(), b"a\rb\nc\rd");
        assert_eq!(mac("\u{feff}é".as_bytes()).unwrap(), b"\x8e");
    }

    #[test]
    fn a_byte_that_cannot_be_converted_is_named_with_its_place() {
        let long = [vec![b'x'; CHUNK_BYTES * 2 - 1], "日".into()].concat();
        let place = |text: &[u8]| match mac(text) {
            Err(Error::Text(macroman::Error::NoSuchCharacter { at, .. })) => at,
            Err(Error::Text(macroman::Error::NotUtf8 { at })) => at + 1000,
            other => panic!("{other:?}"),
        };
        assert_eq!(place(&long), CHUNK_BYTES * 2 - 1);
        assert_eq!(place(b"\xff"), 1000);
        assert_eq!(place(b"ab\xe6\x97"), 1002, "cut inside a character");
    }

    #[test]
    fn nothing_depends_on_where_a_chunk_ends() {
        for joined in ["e\u{301}", "\r\n", "\n\r\n", "€", "ax\u{308}"] {
            for before in CHUNK_BYTES - 5..CHUNK_BYTES + 2 {
                let text = ["x".repeat(before), joined.repeat(CHUNK_BYTES)].concat();
                let whole = macroman::encode(&text).map(|mut bytes| {
                    one_line_end(&mut bytes);
                    bytes
                });
                assert_eq!(mac(text.as_bytes()).ok(), whole.ok(), "{joined:?} at {before}");
            }
        }
        assert_eq!(mac(&[b'\n'; 3 * CHUNK_BYTES]).unwrap(), [b'\r'; 3 * CHUNK_BYTES]);
    }

    proptest! {
        #[test]
        fn macintosh_text_comes_back(text: Vec<u8>) {
            // LF CR would be converted back to one line end.
            let text: Vec<u8> = text.into_iter().filter(|&b| b != b'\n').collect();
            prop_assert_eq!(mac(&unix(&text)).unwrap(), text);
        }
    }
}
