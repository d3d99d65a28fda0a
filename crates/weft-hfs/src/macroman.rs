//! MacRoman and Unicode, and Macintosh names as Unix names.
//!
//! Source of the table: Apple's `ROMAN.TXT` at the Unicode Consortium (the version since Mac OS
//! 8.5, with the euro sign at DB). Decoded text is composed (NFC); input may be composed or
//! decomposed (NFD, as macOS stores it). A character that MacRoman does not have is an error, never
//! a `?`.
//!
//! # Names
//!
//! A Unix name cannot hold `/` or NUL, a Macintosh name cannot hold `:`. [`name_to_unix`] maps all
//! byte strings to distinct Unix names, and [`name_from_unix`] is its inverse:
//!
//! | byte | in a Unix name |
//! |---|---|
//! | `/` | `:` |
//! | 00-1F, 7F | the control pictures U+2400-U+241F, U+2421; taken plain too (`Icon\r` from macOS) |
//! | `:` (in no sound name) | U+A789, a letter that looks like a colon |
//! | `.` or `..` as the whole name | U+2024, U+2025, leaders of one and two dots |
//!
//! U+2024 is taken for a dot in every name: [`view`](crate::view) spells a name so that would
//! otherwise be that of a companion (`․_Game` for a file called `._Game`).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The upper half of MacRoman.
#[rustfmt::skip]
const HIGH: [char; 128] = [
    'Ä', 'Å', 'Ç', 'É', 'Ñ', 'Ö', 'Ü', 'á', 'à', 'â', 'ä', 'ã', 'å', 'ç', 'é', 'è',
    'ê', 'ë', 'í', 'ì', 'î', 'ï', 'ñ', 'ó', 'ò', 'ô', 'ö', 'õ', 'ú', 'ù', 'û', 'ü',
    '†', '°', '¢', '£', '§', '•', '¶', 'ß', '®', '©', '™', '´', '¨', '≠', 'Æ', 'Ø',
    '∞', '±', '≤', '≥', '¥', 'µ', '∂', '∑', '∏', 'π', '∫', 'ª', 'º', 'Ω', 'æ', 'ø',
    '¿', '¡', '¬', '√', 'ƒ', '≈', '∆', '«', '»', '…', '\u{a0}', 'À', 'Ã', 'Õ', 'Œ', 'œ',
    '–', '—', '“', '”', '‘', '’', '÷', '◊', 'ÿ', 'Ÿ', '⁄', '€', '‹', '›', 'ﬁ', 'ﬂ',
    '‡', '·', '‚', '„', '‰', 'Â', 'Ê', 'Á', 'Ë', 'È', 'Í', 'Î', 'Ï', 'Ì', 'Ó', 'Ô',
    '\u{f8ff}', 'Ò', 'Ú', 'Û', 'Ù', 'ı', 'ˆ', '˜', '¯', '˘', '˙', '˚', '¸', '˝', '˛', 'ˇ',
];

/// [`HIGH`], sorted by character.
const BY_CHAR: [(char, u8); 128] = {
    let mut table = [('\0', 0); 128];
    let mut n = 0;
    while n < 128 {
        let mut at = n;
        while at > 0 && table[at - 1].0 > HIGH[n] {
            table[at] = table[at - 1];
            at -= 1;
        }
        table[at] = (HIGH[n], 0x80 + n as u8);
        n += 1;
    }
    table
};

/// The canonical decompositions of MacRoman's characters: a mark, the letters it follows, and the
/// composed characters, in the same order.
const MARKS: [(char, &str, &str); 8] = [
    ('\u{300}', "AEIOUaeiou", "ÀÈÌÒÙàèìòù"),
    ('\u{301}', "AEIOUaeiou", "ÁÉÍÓÚáéíóú"),
    ('\u{302}', "AEIOUaeiou", "ÂÊÎÔÛâêîôû"),
    ('\u{303}', "ANOano", "ÃÑÕãñõ"),
    ('\u{308}', "AEIOUYaeiouy", "ÄËÏÖÜŸäëïöüÿ"),
    ('\u{30a}', "Aa", "Åå"),
    ('\u{327}', "Cc", "Çç"),
    ('\u{338}', "=", "≠"),
];

/// The reason why a text or a name has no MacRoman form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not UTF-8.
    NotUtf8 {
        /// The offset of the first invalid byte.
        at: usize,
    },
    /// A character that MacRoman does not have.
    NoSuchCharacter {
        /// The character.
        character: char,
        /// The byte offset of the character.
        at: usize,
    },
    /// A slash, which separates names and is not allowed in one.
    Slash {
        /// The byte offset of the slash.
        at: usize,
    },
    /// `.` or `..`, which name directories.
    Dots,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 { at } => write!(f, "not UTF-8 at byte {at}"),
            Self::NoSuchCharacter { character, at } => {
                let code = u32::from(*character);
                write!(f, "MacRoman has no {character:?} (U+{code:04X}), at byte {at}")
            }
            Self::Slash { at } => write!(f, "a name has no slash, at byte {at}"),
            Self::Dots => f.write_str("`.` and `..` are no names of files"),
        }
    }
}

impl core::error::Error for Error {}

/// Returns the character of a byte.
#[must_use]
pub fn char_of(byte: u8) -> char {
    if byte < 0x80 { char::from(byte) } else { HIGH[usize::from(byte - 0x80)] }
}

/// Returns the byte of a (composed) character, `None` if MacRoman does not have it.
#[must_use]
pub fn byte_of(character: char) -> Option<u8> {
    if character.is_ascii() {
        return u8::try_from(character).ok();
    }
    let at = BY_CHAR.binary_search_by_key(&character, |entry| entry.0).ok()?;
    Some(BY_CHAR[at].1)
}

/// Decodes MacRoman to UTF-8, composed.
///
/// ```
/// assert_eq!(weft_hfs::macroman::decode(b"caf\x8e"), "café");
/// ```
#[must_use]
pub fn decode(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| char_of(b)).collect()
}

/// Encodes text in MacRoman.
///
/// # Errors
/// [`Error::NoSuchCharacter`].
///
/// ```
/// use weft_hfs::macroman::encode;
/// assert_eq!(encode("café")?, b"caf\x8e");
/// assert_eq!(encode("cafe\u{301}")?, b"caf\x8e");
/// assert!(encode("日本").is_err());
/// # Ok::<(), weft_hfs::macroman::Error>(())
/// ```
pub fn encode(text: &str) -> Result<Vec<u8>, Error> {
    encode_with(text, |_, character| Ok(byte_of(character)))
}

/// Converts a Macintosh name to a Unix name, see the [module](self)'s page. The result has at most
/// three times as many bytes.
///
/// ```
/// assert_eq!(weft_hfs::macroman::name_to_unix(b"24/7\x0d"), "24:7␍");
/// ```
#[must_use]
pub fn name_to_unix(name: &[u8]) -> String {
    match name {
        b"." => "\u{2024}".into(),
        b".." => "\u{2025}".into(),
        _ => name.iter().map(|&b| name_char(b)).collect(),
    }
}

/// Converts a Unix name to a Macintosh name, see the [module](self)'s page. The length is not
/// checked: the limit depends on the volume.
///
/// # Errors
/// The problem with the name, and its offset.
pub fn name_from_unix(name: &[u8]) -> Result<Vec<u8>, Error> {
    let name = core::str::from_utf8(name).map_err(|e| Error::NotUtf8 { at: e.valid_up_to() })?;
    match name {
        "." | ".." => Err(Error::Dots),
        "\u{2024}" => Ok(b".".into()),
        "\u{2025}" => Ok(b"..".into()),
        _ => encode_with(name, |at, character| match character {
            '/' => Err(Error::Slash { at }),
            ':' => Ok(Some(b'/')),
            '\u{2024}' => Ok(Some(b'.')),
            '\u{a789}' => Ok(Some(b':')),
            '\u{2421}' => Ok(Some(0x7f)),
            '\u{2400}'..='\u{241f}' => Ok(Some((u32::from(character) & 0x1f) as u8)),
            _ => Ok(byte_of(character)),
        }),
    }
}

fn name_char(byte: u8) -> char {
    match byte {
        b'/' => ':',
        b':' => '\u{a789}',
        0x7f => '\u{2421}',
        0..=0x1f => char::from_u32(0x2400 + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER),
        _ => char_of(byte),
    }
}

/// Composes, and maps each character to its byte.
fn encode_with(
    text: &str,
    map: impl Fn(usize, char) -> Result<Option<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let composed = characters.peek().and_then(|&(_, mark)| compose(character, mark));
        if composed.is_some() {
            characters.next();
        }
        let character = composed.unwrap_or(character);
        bytes.push(map(at, character)?.ok_or(Error::NoSuchCharacter { character, at })?);
    }
    Ok(bytes)
}

/// Returns the composed character of a letter and the mark after it, if MacRoman has it.
fn compose(letter: char, mark: char) -> Option<char> {
    let (_, letters, composed) = MARKS.iter().find(|entry| entry.0 == mark)?;
    let at = letters.chars().position(|c| c == letter)?;
    composed.chars().nth(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The full NFD of MacRoman's characters.
    fn decompose(text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            let found = MARKS.iter().find_map(|(mark, letters, composed)| {
                let at = composed.chars().position(|x| x == c)?;
                Some((letters.chars().nth(at)?, *mark))
            });
            match found {
                Some((letter, mark)) => out.extend([letter, mark]),
                None => out.push(c),
            }
        }
        out
    }

    #[test]
    fn every_byte_has_its_own_character() {
        let all: BTreeSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(all.len(), 256);
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(byte_of('¤'), None);
    }

    #[test]
    fn every_accented_letter_decomposes() {
        let marked: usize = MARKS.iter().map(|m| m.2.chars().count()).sum();
        assert_eq!(marked, 53);
        for (mark, letters, composed) in MARKS {
            assert_eq!(letters.chars().count(), composed.chars().count());
            for (letter, c) in letters.chars().zip(composed.chars()) {
                assert!(byte_of(c).is_some(), "{c} is in MacRoman");
                assert_eq!(encode(&String::from_iter([letter, mark])), encode(&String::from(c)));
            }
        }
    }

    #[test]
    fn characters_outside_mac_roman_are_refused_with_their_place() {
        let error = |character, at| Err(Error::NoSuchCharacter { character, at });
        assert_eq!(encode("ab日"), error('日', 2));
        // A mark that fits no letter, and a second mark.
        assert_eq!(encode("x\u{301}"), error('\u{301}', 1));
        assert_eq!(encode("\u{301}"), error('\u{301}', 0));
        assert_eq!(encode("e\u{301}\u{301}"), error('\u{301}', 3));
        assert_eq!(name_from_unix(b"a\xff"), Err(Error::NotUtf8 { at: 1 }));
        assert_eq!(name_from_unix(b"a/b"), Err(Error::Slash { at: 1 }));
        assert_eq!(name_from_unix(b".."), Err(Error::Dots));
        assert_eq!(name_from_unix("x\u{2025}".as_bytes()), error('\u{2025}', 1));
    }

    #[test]
    fn names_change_where_unix_cannot_hold_them() {
        let cases: [(&[u8], &str); 6] = [
            (b"a/b", "a:b"),
            (b"Icon\r", "Icon␍"),
            (b"\0\x7f", "␀␡"),
            (b"..", "\u{2025}"),
            (b"...", "..."),
            (b"a:b", "a\u{a789}b"),
        ];
        for (mac, unix) in cases {
            assert_eq!(name_to_unix(mac), unix);
            assert_eq!(name_from_unix(unix.as_bytes()).as_deref(), Ok(mac));
        }
        assert_eq!(name_from_unix(b"Icon\r").as_deref(), Ok(&b"Icon\r"[..]));
        // A leader of one dot is a dot, so that each name has a spelling that no companion has.
        for (unix, mac) in [("\u{2024}_a", &b"._a"[..]), ("a\u{2024}\u{2024}rsrc", b"a..rsrc")] {
            assert_eq!(name_from_unix(unix.as_bytes()).as_deref(), Ok(mac));
        }
    }

    #[test]
    fn all_names_of_two_bytes_differ() {
        let all = (0..=u16::MAX).map(|n| name_to_unix(&n.to_be_bytes()));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), 1 << 16);
    }

    proptest! {
        #[test]
        fn names_come_back(name: Vec<u8>) {
            let unix = name_to_unix(&name);
            prop_assert!(!unix.contains(['/', '\0']) && unix != "." && unix != "..");
            prop_assert!(unix.len() <= 3 * name.len());
            let back = name_from_unix(unix.as_bytes());
            prop_assert_eq!(back.as_ref(), Ok(&name));
            prop_assert_eq!(name_from_unix(decompose(&unix).as_bytes()), back);
        }

        #[test]
        fn text_comes_back(text: Vec<u8>) {
            let unicode = decode(&text);
            let back = encode(&unicode);
            prop_assert_eq!(back.as_ref(), Ok(&text));
            prop_assert_eq!(encode(&decompose(&unicode)), back);
        }

        #[test]
        fn an_accepted_name_comes_back_composed(name in "[a-zé:.\u{301}\u{308}\u{2400}-\u{2426}\r]*") {
            if let Ok(mac) = name_from_unix(name.as_bytes()) {
                let unix = name_to_unix(&mac);
                prop_assert_eq!(name_from_unix(unix.as_bytes()), Ok(mac));
            }
        }
    }
}
