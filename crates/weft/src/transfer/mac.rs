//! Packs files of a Macintosh volume with both their forks into files of other systems, and unpacks
//! them.
//!
//! The name of a packed file has the extension of its format (`Game.bin`, `Game.hqx`); an unpacked
//! file gets the name stored in the packed one. Directories are walked. No item of a transfer
//! replaces another one of the same transfer: it gets another name, which is said.

mod beside;
mod pack_out;
mod unpack_in;

pub use pack_out::{PackOut, Packed};
pub use unpack_in::{Saying, UnpackIn};

use crate::Error;
use std::io::{Read, Write};
use weft_hfs::interchange::{self, Format};
use weft_hfs::macroman;
use weft_hfs::streams::{MacVolume, ResourceReader};
use weft_vfs::{Error as FsError, Handle, Ino};

/// The format of packed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Out: `MacBinary` for files with more than a data fork, the plain data fork for the rest. In:
    /// the format is detected from the content.
    Auto,
    /// One format for all files.
    As(Format),
    /// The data fork, and the other parts in directories beside it, in the layout of Basilisk II.
    Basilisk,
}

/// The data fork of a file as a stream of bytes.
struct DataReader<'a> {
    volume: &'a dyn MacVolume,
    ino: Ino,
    at: u64,
}

impl Read for DataReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = self
            .volume
            .read(self.ino, Handle::NONE, self.at, buf)
            .map_err(|e| std::io::Error::other(e.to_string()))?;
        self.at += got as u64;
        Ok(got)
    }
}

/// Packs one file. An AppleDouble gets no data fork.
///
/// # Errors
/// [`interchange::Error`] for parts that the format cannot hold, a damaged volume, a failed write.
pub fn pack(
    volume: &dyn MacVolume,
    ino: Ino,
    name: &[u8],
    format: Format,
    to: &mut dyn Write,
) -> interchange::Result<()> {
    let mut meta = volume.meta(ino).map_err(|e| std::io::Error::other(e.to_string()))?;
    if meta.name.is_empty() {
        meta.name = macroman::name_from_unix(name).unwrap_or_else(|_| b"Untitled".to_vec());
    }
    let mut data = DataReader { volume, ino, at: 0 };
    let mut resource = ResourceReader::new(volume, ino);
    interchange::write(format, &meta, &mut data, &mut resource, to)
}

fn packing_failed(action: &'static str, path: &[u8], e: &interchange::Error) -> Error {
    let source = match e {
        interchange::Error::Io(e) => {
            FsError::Io { errno: e.raw_os_error().unwrap_or(5), message: e.to_string() }
        }
        e => FsError::Io { errno: 22, message: e.to_string() },
    };
    Error::file(action, path, source)
}
