//! Macintosh files on other systems: both forks and the Finder's information packed in one file, or
//! beside it.
//!
//! | format | file | holds |
//! |---|---|---|
//! | [`macbinary`] | `name.bin` | both forks, Finder information, dates, comment |
//! | [`apple`]: AppleSingle | `name.as` | all there is |
//! | [`apple`]: AppleDouble | `._name` beside `name` | all but the data fork, which is `name` |
//! | [`binhex`] | `name.hqx` | both forks, type, creator and flags, as text |
//! | data | `name` | the data fork |
//! | [`text`] | `name` | the data fork, as UTF-8 with LF |
//!
//! [`write()`] packs, [`Reader`] unpacks, [`detect`] recognises the format of a file by its
//! content. All work with bounded memory. A plain file gets its type from its [`extension`].
//!
//! ```
//! use std::io::Cursor;
//! use weft_hfs::interchange::{Fork, Format, Meta, Reader, detect, write};
//!
//! let meta = Meta { name: b"Note".into(), data_bytes: 2, resource_bytes: 3, ..Meta::default() };
//! let mut packed = Cursor::new(Vec::new());
//! write(Format::MacBinary, &meta, &mut &b"hi"[..], &mut &b"res"[..], &mut packed)?;
//!
//! assert_eq!(detect(&mut packed)?, Format::MacBinary);
//! let mut reader = Reader::open(Format::MacBinary, packed)?;
//! assert_eq!(reader.meta(), &meta);
//! let mut resources = Vec::new();
//! reader.copy_fork(Fork::Resource, &mut resources)?;
//! assert_eq!(resources, b"res");
//! # Ok::<(), weft_hfs::interchange::Error>(())
//! ```

pub mod apple;
pub mod binhex;
mod error;
pub mod extension;
pub mod macbinary;
mod meta;
mod stream;
pub mod text;

pub use error::{Error, Result};
pub use meta::{Fork, Meta};

use std::io::{Read, Seek, SeekFrom, Write};
use stream::{copy_announced, copy_range, len_of, read_up_to};

/// The format of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// MacBinary of any version; III is written.
    MacBinary,
    /// AppleSingle; version 2 is written.
    AppleSingle,
    /// AppleDouble: the half without the data fork; version 2 is written.
    AppleDouble,
    /// BinHex 4.0.
    BinHex,
    /// The data fork alone, unchanged.
    Data,
    /// The data fork alone, converted as text.
    Text,
}

impl Format {
    /// All formats, in the order of the list in a help text.
    pub const ALL: [Self; 6] = [
        Self::MacBinary,
        Self::AppleDouble,
        Self::AppleSingle,
        Self::BinHex,
        Self::Data,
        Self::Text,
    ];

    /// Returns the name for users: `macbinary`, `appledouble`, `applesingle`, `binhex`, `data`,
    /// `text`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MacBinary => "macbinary",
            Self::AppleSingle => "applesingle",
            Self::AppleDouble => "appledouble",
            Self::BinHex => "binhex",
            Self::Data => "data",
            Self::Text => "text",
        }
    }

    /// Returns the name of a packed file: `name.bin`, `._name`, and so on.
    ///
    /// ```
    /// use weft_hfs::interchange::Format;
    /// assert_eq!(Format::BinHex.file_name("Game"), "Game.hqx");
    /// assert_eq!(Format::AppleDouble.file_name("Game"), "._Game");
    /// ```
    #[must_use]
    pub fn file_name(self, name: &str) -> String {
        match self {
            Self::MacBinary => format!("{name}.bin"),
            Self::AppleSingle => format!("{name}.as"),
            Self::AppleDouble => format!("._{name}"),
            Self::BinHex => format!("{name}.hqx"),
            Self::Data | Self::Text => name.into(),
        }
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("{text:?} is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Recognises the format of a file by its content alone. A file of no other format is
/// [`Format::Data`].
///
/// # Errors
/// [`Error::Io`].
pub fn detect<R: Read + Seek>(from: &mut R) -> Result<Format> {
    let file_bytes = len_of(from)?;
    from.seek(SeekFrom::Start(0))?;
    let mut head = vec![0; 8 << 10];
    let got = read_up_to(from, &mut head)?;
    head.truncate(got);
    match apple::kind_of(&head) {
        Some(apple::Kind::Single) => return Ok(Format::AppleSingle),
        Some(apple::Kind::Double) => return Ok(Format::AppleDouble),
        None => {}
    }
    if let Some(header) = head.first_chunk()
        && macbinary::Header::parse(header, file_bytes).is_ok()
    {
        return Ok(Format::MacBinary);
    }
    let hexed = head.windows(binhex::ANNOUNCEMENT.len()).any(|w| w == binhex::ANNOUNCEMENT);
    Ok(if hexed { Format::BinHex } else { Format::Data })
}

/// Packs a file. An AppleDouble is written without its data fork; [`Format::Data`] and
/// [`Format::Text`] write the data fork only.
///
/// # Errors
/// [`Error::CannotHold`] before anything is written; [`Error::Length`] if a fork is not as long
/// as `meta` says; [`Error::Io`].
pub fn write(
    format: Format,
    meta: &Meta,
    data: &mut dyn Read,
    resource: &mut dyn Read,
    to: &mut dyn Write,
) -> Result<()> {
    use apple::{Kind, Version::V2};
    match format {
        Format::MacBinary => macbinary::write(meta, macbinary::Version::III, data, resource, to),
        Format::AppleSingle => apple::write(meta, Kind::Single, V2, data, resource, to),
        Format::AppleDouble => apple::write(meta, Kind::Double, V2, data, resource, to),
        Format::BinHex => binhex::write(meta, data, resource, to),
        Format::Data => copy_announced(Fork::Data, meta.data_bytes, data, to),
        Format::Text => text::to_unix(data, to).map(|_| ()),
    }
}

/// An open packed file.
#[derive(Debug)]
pub struct Reader<R> {
    content: Content<R>,
    meta: Meta,
}

#[derive(Debug)]
enum Content<R> {
    /// Forks as ranges of a file, by their offsets.
    Ranges {
        from: R,
        data_at: u64,
        resource_at: u64,
    },
    BinHex(Box<binhex::Unpacker<R>>),
    Text(R),
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the part before the forks. The plain formats have no name and no type: see
    /// [`extension`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Checksum`] if the file is not of that format; [`Error::Io`].
    pub fn open(format: Format, mut from: R) -> Result<Self> {
        let plain = |from: &mut R| -> Result<Meta> {
            Ok(Meta { data_bytes: len_of(from)?, ..Meta::default() })
        };
        let (content, meta) = match format {
            Format::MacBinary => {
                let header = macbinary::open(&mut from)?;
                let (data_at, resource_at) = (header.data_at(), header.resource_at());
                (Content::Ranges { from, data_at, resource_at }, header.meta)
            }
            Format::AppleSingle | Format::AppleDouble => {
                let apple::Header { meta, data_at, resource_at, .. } = apple::open(&mut from)?;
                (Content::Ranges { from, data_at, resource_at }, meta)
            }
            Format::BinHex => {
                let unpacker = Box::new(binhex::Unpacker::open(from)?);
                let meta = unpacker.meta().clone();
                (Content::BinHex(unpacker), meta)
            }
            Format::Data => {
                let meta = plain(&mut from)?;
                (Content::Ranges { from, data_at: 0, resource_at: 0 }, meta)
            }
            Format::Text => {
                let meta = plain(&mut from)?;
                (Content::Text(from), meta)
            }
        };
        Ok(Self { content, meta })
    }

    /// Returns the metadata of the file, with the lengths of its forks.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Copies a fork, in any order and any number of times. Returns its length in bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Checksum`] if the fork is damaged, [`Error::Text`] if it
    /// cannot be converted, [`Error::Io`]. A part of it may have been written by then.
    pub fn copy_fork(&mut self, fork: Fork, to: &mut dyn Write) -> Result<u64> {
        let len_bytes = self.meta.fork_bytes(fork);
        match &mut self.content {
            Content::Ranges { from, data_at, resource_at } => {
                let at = if fork == Fork::Data { *data_at } else { *resource_at };
                copy_range(from, "fork", (at, len_bytes), to)?;
            }
            Content::BinHex(unpacker) => unpacker.copy_fork(fork, to)?,
            Content::Text(from) if fork == Fork::Data => {
                from.seek(SeekFrom::Start(0))?;
                return text::from_unix(from, to);
            }
            Content::Text(_) => {}
        }
        Ok(len_bytes)
    }
}
