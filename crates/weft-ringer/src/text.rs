//! The text of small files, as clients send it to the server for the index.
//!
//! A client that wrote a file sends the file's text once the server has the change. The server
//! never reads content itself.

use crate::types::Version;
use crate::wire::{Reader, Wire, WireError, put_bytes, wire_struct};

/// The longest file whose text is indexed, in bytes: the message fits a frame.
pub const TEXT_MAX_BYTES: u64 = 1 << 20;

/// The content of a text file: UTF-8 without NUL, at least one byte and at most [`TEXT_MAX_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Box<str>);

impl Text {
    /// Returns the bytes as a text; `None` if they are not one.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Option<Self> {
        let fits = !bytes.is_empty() && bytes.len() as u64 <= TEXT_MAX_BYTES;
        // Text contains no NUL; most binary formats do.
        if !fits || bytes.contains(&0) {
            return None;
        }
        String::from_utf8(bytes).ok().map(|text| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Wire for Text {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.0.as_bytes(), out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a text";
        // The constant fits the `usize` of any supported machine.
        let bytes = from.bytes(TEXT_MAX_BYTES as usize, WHAT)?;
        Self::of(bytes.to_vec()).ok_or(WireError::Invalid { what: WHAT })
    }
}

/// A text, with the version of the file's content that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldText {
    /// The version of the content, as in [`Body::File`](crate::Body).
    pub content: Version,
    /// The text.
    pub text: Text,
}
wire_struct!(ToldText { content, text });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn binary_content_is_no_text() {
        let most = usize::try_from(TEXT_MAX_BYTES).expect("it fits");
        let good: [&[u8]; 4] = [b"x", "über\n".as_bytes(), b"\t", &vec![b'a'; most]];
        for bytes in good {
            let text = Text::of(bytes.to_vec()).expect("a text");
            assert_eq!(text.as_str().as_bytes(), bytes);
            assert_eq!(decode::<Text>(&encode(&text)), Ok(text));
        }
        let bad: [&[u8]; 5] = [b"", b"a\0b", b"\xff", b"caf\xc3", &vec![b'a'; most + 1]];
        for bytes in bad {
            assert_eq!(Text::of(bytes.to_vec()), None);
            let mut sent = Vec::new();
            put_bytes(bytes, &mut sent);
            assert!(decode::<Text>(&sent).is_err());
        }
    }
}
