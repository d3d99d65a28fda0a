//! The streams and metadata of classic volumes beside the file plug: resource fork, Finder
//! information, dates.
//!
//! [`MacVolume`] is the same for HFS, MFS and HFS Plus, so that its users (packing files for other
//! systems, showing forks as files, the command) need not distinguish the formats. Inode numbers
//! are those of the file plug, and need a reference as they do there.

use crate::interchange::Meta;
use weft_vfs::{Error, FileSystem, Ino, Result};

/// The metadata of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeMeta {
    /// The volume's name, in MacRoman.
    pub name: Vec<u8>,
    /// The date of creation: seconds since 1904, in local time; 0 if not known.
    pub created: u32,
    /// The date of the last change; 0 if the format does not store one.
    pub modified: u32,
    /// The date of the last backup; 0 for never.
    pub backed_up: u32,
    /// `drFndrInfo` of HFS: word 0 is the id of the blessed folder, 2 of the folder whose window is
    /// opened, 3 and 5 of the System Folders of Mac OS 9 and X. `None` if the format has none.
    pub finder_info: Option<[u32; 8]>,
}

/// A volume whose files have two forks.
pub trait MacVolume: FileSystem {
    /// Returns the metadata of a file or folder and the lengths of its forks. A folder's forks are
    /// empty.
    ///
    /// # Errors
    /// [`Error::Stale`] if the number names nothing; [`Error::Corrupt`], [`Error::Io`].
    fn meta(&self, ino: Ino) -> Result<Meta>;

    /// Sets Finder information, dates and lock of a file or folder. Name and lengths are left as
    /// they are; fields that the format does not store are ignored.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Stale`], [`Error::Io`].
    fn set_meta(&self, ino: Ino, meta: &Meta) -> Result<()>;

    /// Reads bytes of the resource fork; returns their number, smaller than `buf` only at the end.
    ///
    /// # Errors
    /// [`Error::IsADirectory`], [`Error::Corrupt`], [`Error::Io`].
    fn read_resource(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes bytes of the resource fork; returns their number, smaller than `data` only if the
    /// volume is full.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::ReadOnly`].
    fn write_resource(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize>;

    /// Cuts the resource fork, or makes it longer with zeroes.
    ///
    /// # Errors
    /// As [`write_resource`](Self::write_resource).
    fn set_resource_len(&self, ino: Ino, len_bytes: u64) -> Result<()>;

    /// Returns the damage that reads have passed over so far, in words, each item once.
    fn passed_over(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns warnings that a reader of the volume's data must know, in words.
    fn cautions(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the metadata of the volume.
    fn volume_meta(&self) -> VolumeMeta;

    /// Sets name, dates but the last change, and Finder information of the volume.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], [`Error::Invalid`], [`Error::ReadOnly`]; [`Error::Unsupported`] for
    /// a field that the format cannot change.
    fn set_volume_meta(&self, meta: &VolumeMeta) -> Result<()>;
}

/// Bytes of a fork that are moved at a time.
const STEP_BYTES: usize = 256 << 10;

/// The resource fork of a file as a stream of bytes, from its beginning.
pub struct ResourceReader<'a> {
    volume: &'a dyn MacVolume,
    ino: Ino,
    at: u64,
}

impl std::fmt::Debug for ResourceReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceReader").field("ino", &self.ino).field("at", &self.at).finish()
    }
}

impl<'a> ResourceReader<'a> {
    /// Reads the resource fork of `ino`.
    pub fn new(volume: &'a dyn MacVolume, ino: Ino) -> Self {
        Self { volume, ino, at: 0 }
    }
}

impl std::io::Read for ResourceReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let step = buf.len().min(STEP_BYTES);
        let got = self
            .volume
            .read_resource(self.ino, self.at, &mut buf[..step])
            .map_err(std::io::Error::other)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The resource fork of a file as a stream to write to, from its beginning. The old content is gone
/// with the first write or [`finish`](Self::finish).
pub struct ResourceWriter<'a> {
    volume: &'a dyn MacVolume,
    ino: Ino,
    at: u64,
    failed: Option<Error>,
}

impl std::fmt::Debug for ResourceWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceWriter").field("ino", &self.ino).field("at", &self.at).finish()
    }
}

impl<'a> ResourceWriter<'a> {
    /// Writes the resource fork of `ino`.
    pub fn new(volume: &'a dyn MacVolume, ino: Ino) -> Self {
        Self { volume, ino, at: 0, failed: None }
    }

    /// Ends the fork at the current position.
    ///
    /// # Errors
    /// Those of the volume, and the error of an earlier failed write.
    pub fn finish(mut self) -> Result<()> {
        match self.failed.take() {
            Some(e) => Err(e),
            None => self.volume.set_resource_len(self.ino, self.at),
        }
    }

    fn step(&mut self, data: &[u8]) -> Result<usize> {
        if self.at == 0 {
            self.volume.set_resource_len(self.ino, 0)?;
        }
        let data = &data[..data.len().min(STEP_BYTES)];
        let put = self.volume.write_resource(self.ino, self.at, data)?;
        self.at += put as u64;
        if put == 0 && !data.is_empty() { Err(Error::NoSpace) } else { Ok(put) }
    }
}

impl std::io::Write for ResourceWriter<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.step(data).map_err(|e| {
            let told = std::io::Error::from_raw_os_error(e.errno());
            self.failed = Some(e);
            told
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
