//! Names and other bytes in JSON: text where they are UTF-8, else an array of numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes<'a> {
    Text(std::borrow::Cow<'a, str>),
    Numbers(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Bytes::Text(text.into()),
        Err(_) => Bytes::Numbers(bytes.to_vec()),
    }
    .serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Ok(match Bytes::deserialize(from)? {
        Bytes::Text(text) => text.into_owned().into_bytes(),
        Bytes::Numbers(numbers) => numbers,
    })
}

/// The types of files, by the letters of `ls -l`.
pub(crate) mod kind {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use weft_vfs::FileKind;

    const LETTERS: [(FileKind, char); 7] = [
        (FileKind::Regular, '-'),
        (FileKind::Directory, 'd'),
        (FileKind::Symlink, 'l'),
        (FileKind::BlockDevice, 'b'),
        (FileKind::CharDevice, 'c'),
        (FileKind::Fifo, 'p'),
        (FileKind::Socket, 's'),
    ];

    pub(crate) fn serialize<S: Serializer>(kind: &FileKind, to: S) -> Result<S::Ok, S::Error> {
        let letter = LETTERS.iter().find(|(k, _)| k == kind).map_or('-', |(_, letter)| *letter);
        letter.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FileKind, D::Error> {
        let letter = char::deserialize(from)?;
        let found = LETTERS.iter().find(|(_, l)| *l == letter).map(|(kind, _)| *kind);
        found.ok_or_else(|| D::Error::custom(format!("{letter:?} is no type of file")))
    }
}
