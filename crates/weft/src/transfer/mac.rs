//! Packs files of a Macintosh volume with both their forks into files of other systems, and unpacks
//! them.
//!
//! The name of a packed file has the extension of its format (`Game.bin`, `Game.hqx`); an unpacked
//! file gets the name stored in the packed one. Directories are walked.

use super::host_sink::clear;
use super::{Tally, basilisk, join};
use crate::{Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weft_hfs::interchange::{self, Fork, Format, Meta, Reader};
use weft_hfs::macroman;
use weft_hfs::streams::{MacVolume, ResourceReader, ResourceWriter};
use weft_hfs::view::has_more;
use weft_vfs::path::Node;
use weft_vfs::{Caller, Error as FsError, FileKind, Handle, Ino, SetAttr, SetTime, Time};

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

/// The data fork of a new file as a writer.
struct DataWriter<'a> {
    volume: &'a dyn MacVolume,
    ino: Ino,
    at: u64,
    failed: Option<FsError>,
}

impl Write for DataWriter<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let put = self.volume.write(&Caller::ROOT, self.ino, Handle::NONE, self.at, data).and_then(
            |put| {
                if put == 0 && !data.is_empty() { Err(FsError::NoSpace) } else { Ok(put) }
            },
        );
        match put {
            Ok(put) => {
                self.at += put as u64;
                Ok(put)
            }
            Err(e) => {
                let told = std::io::Error::from_raw_os_error(e.errno());
                self.failed = Some(e);
                Err(told)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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

/// Packs a file or a tree of a volume into `to` on the host: a directory for the copy, or the name
/// of the copy.
pub struct PackOut<'a> {
    packing: Packing,
    shown: &'a [u8],
    tally: Tally,
    left_out: Vec<String>,
    /// Receives each error for an unreadable item; the walk continues if it returns `Ok`.
    damaged: Box<dyn FnMut(Error) -> Result<()> + 'a>,
}

impl std::fmt::Debug for PackOut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackOut").field("packing", &self.packing).finish_non_exhaustive()
    }
}

impl<'a> PackOut<'a> {
    /// Packs in the format `packing`; `shown` is the path in the volume, for messages.
    #[must_use]
    pub fn new(packing: Packing, shown: &'a [u8]) -> Self {
        Self {
            packing,
            shown,
            tally: Tally::default(),
            left_out: Vec::new(),
            damaged: Box::new(Err),
        }
    }

    /// Passes each error for an unreadable item to `damaged`, and continues the walk if that
    /// returns `Ok`. Without it the first error ends the walk.
    #[must_use]
    pub fn past_damage(mut self, damaged: impl FnMut(Error) -> Result<()> + 'a) -> Self {
        self.damaged = Box::new(damaged);
        self
    }

    /// The parts for which the format of their file has no place.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Packs `node`, which is called `name`: into the directory `to` under a name that fits the
    /// format, or, unless `into`, under exactly the name `to`.
    ///
    /// # Errors
    /// Those of the volume and the host, and parts that the format cannot hold.
    pub fn send(
        mut self,
        volume: &dyn MacVolume,
        node: &Node<'_>,
        name: &[u8],
        to: &Path,
        into: bool,
    ) -> Result<(Tally, Vec<String>)> {
        self.one(volume, node, name, (to, into), &[])?;
        Ok((self.tally, self.left_out))
    }

    fn one(
        &mut self,
        volume: &dyn MacVolume,
        node: &Node<'_>,
        name: &[u8],
        (to, into): (&Path, bool),
        below: &[u8],
    ) -> Result<()> {
        let failed = |e| Error::file("read", &super::below(self.shown, below), e);
        match node.kind() {
            FileKind::Directory => {
                let dir = if into { to.join(OsStr::from_bytes(name)) } else { to.to_owned() };
                match std::fs::create_dir(&dir) {
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                    other => other.map_err(|e| Error::host("make", &dir, e))?,
                }
                self.tally.directories += 1;
                if self.packing == Packing::Basilisk && !name.is_empty() {
                    let meta = volume.meta(node.ino()).map_err(failed)?;
                    basilisk::write(volume, node.ino(), &dir, &meta)?;
                }
                for found in node.list().map_err(failed)? {
                    if matches!(&found.name[..], b"." | b"..") {
                        continue;
                    }
                    let path = join(below, &found.name);
                    let packed = node
                        .lookup(&found.name)
                        .map_err(|e| Error::file("read", &super::below(self.shown, &path), e))
                        .and_then(|child| {
                            self.one(volume, &child, &found.name, (&dir, true), &path)
                        });
                    match packed {
                        Err(e @ Error::File { .. }) => (self.damaged)(e)?,
                        other => other?,
                    }
                }
                Ok(())
            }
            FileKind::Regular => self.file(volume, node, name, (to, into), below),
            _ => {
                let shown = String::from_utf8_lossy(name);
                self.left_out.push(format!("{shown} is no file of a Macintosh"));
                Ok(())
            }
        }
    }

    fn file(
        &mut self,
        volume: &dyn MacVolume,
        node: &Node<'_>,
        name: &[u8],
        (to, into): (&Path, bool),
        below: &[u8],
    ) -> Result<()> {
        let shown = super::below(self.shown, below);
        let failed = |e| Error::file("read", &shown, e);
        let meta = volume.meta(node.ino()).map_err(failed)?;
        let format = match self.packing {
            Packing::As(format) => format,
            Packing::Auto if has_more(&meta, name) => Format::MacBinary,
            Packing::Auto | Packing::Basilisk => Format::Data,
        };
        let loses = matches!(format, Format::Data | Format::Text);
        if loses && self.packing != Packing::Basilisk && meta.resource_bytes > 0 {
            self.left_out.push(format!(
                "{}: {} bytes of resource fork, which --as {} has no place for",
                String::from_utf8_lossy(name),
                meta.resource_bytes,
                format.name()
            ));
        }
        // Names on the host are bytes; the formats add to them in ASCII.
        let packed = |format: Format| -> PathBuf {
            if !into && format != Format::AppleDouble {
                return to.to_owned();
            }
            let (dir, name) = if into {
                (to.to_owned(), name)
            } else {
                let dir = to.parent().map(Path::to_owned).unwrap_or_default();
                (dir, to.file_name().map_or(name, OsStrExt::as_bytes))
            };
            let whole = match std::str::from_utf8(name) {
                Ok(name) => format.file_name(name).into_bytes(),
                Err(_) => name.to_vec(),
            };
            dir.join(OsStr::from_bytes(&whole))
        };
        let write = |format: Format, host: &Path| -> Result<()> {
            clear(host)?;
            let file = File::create_new(host).map_err(|e| Error::host("make", host, e))?;
            let mut to = BufWriter::with_capacity(256 << 10, file);
            let packed = pack(volume, node.ino(), name, format, &mut to);
            packed.and_then(|()| Ok(to.flush()?)).map_err(|e| {
                // Removes the incomplete file.
                let _ = std::fs::remove_file(host);
                packing_failed("pack", &shown, &e)
            })?;
            let file = to.into_inner().map_err(|e| Error::host("write", host, e.into_error()))?;
            let time = node.attr().mtime;
            let since = Duration::new(time.secs.max(0).cast_unsigned(), time.nanos);
            file.set_modified(SystemTime::UNIX_EPOCH + since)
                .map_err(|e| Error::host("set the times of", host, e))
        };
        if format == Format::AppleDouble {
            let plain = packed(Format::Data);
            let plain = if into { plain } else { to.to_owned() };
            write(Format::Data, &plain)?;
            if has_more(&meta, name) {
                write(Format::AppleDouble, &packed(Format::AppleDouble))?;
            }
        } else {
            let host = packed(format);
            write(format, &host)?;
            if self.packing == Packing::Basilisk {
                basilisk::write(volume, node.ino(), &host, &meta)?;
            }
        }
        self.tally.files += 1;
        self.tally.bytes += meta.data_bytes + meta.resource_bytes;
        Ok(())
    }
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

/// Type and creator for files that are put into a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Saying {
    /// Their type, in place of the packed one.
    pub file_type: Option<[u8; 4]>,
    /// Their creator.
    pub creator: Option<[u8; 4]>,
}

/// Unpacks files of the host into a volume.
pub struct UnpackIn<'a> {
    volume: &'a dyn MacVolume,
    packing: Option<Packing>,
    saying: Saying,
    tally: Tally,
}

impl std::fmt::Debug for UnpackIn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnpackIn").field("packing", &self.packing).finish_non_exhaustive()
    }
}

impl<'a> UnpackIn<'a> {
    /// Unpacks files in the format `packing`. Without one, files are copied as they are, with the
    /// AppleDouble beside them.
    #[must_use]
    pub fn new(volume: &'a dyn MacVolume, packing: Option<Packing>, saying: Saying) -> Self {
        Self { volume, packing, saying, tally: Tally::default() }
    }

    /// The counts of what was unpacked so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Puts a file or a tree of the host into the directory `parent`, which is called `shown` in
    /// messages: under `name`, or the name stored in the packed file, or the host's name.
    ///
    /// # Errors
    /// Those of the host and the volume, and of files that are not in that format.
    pub fn put(
        &mut self,
        host: &Path,
        parent: Ino,
        name: Option<&[u8]>,
        shown: &[u8],
    ) -> Result<()> {
        let meta = std::fs::metadata(host).map_err(|e| Error::host("read", host, e))?;
        if !meta.is_dir() {
            return self.file(host, parent, name, shown);
        }
        let own = host.file_name().map(|name| name.as_bytes().to_vec());
        let name = name.map(<[u8]>::to_vec).or(own);
        let (dir, shown) = match name {
            // `dir/.`: only the content of the directory.
            None => (None, shown.to_vec()),
            Some(name) => {
                let shown = super::below(shown, &name);
                let made = self.volume.mkdir(&Caller::ROOT, parent, &name, 0o755);
                let entry = match made {
                    Err(FsError::Exists) => self.volume.lookup(parent, &name),
                    other => other,
                };
                let entry = entry.map_err(|e| Error::file("make directory", &shown, e))?;
                self.tally.directories += 1;
                if self.packing == Some(Packing::Basilisk) {
                    let failed = |e| Error::file("write", &shown, e);
                    let mut meta = self.volume.meta(entry.attr.ino).map_err(failed)?;
                    basilisk::read(self.volume, entry.attr.ino, host, true, &mut meta)?;
                    self.volume.set_meta(entry.attr.ino, &meta).map_err(failed)?;
                }
                (Some(Node::from_entry(self.volume, entry)), shown)
            }
        };
        let into = dir.as_ref().map_or(parent, Node::ino);
        self.put_all(host, into, &shown)
    }

    /// Puts the content of a directory of the host into the directory `parent`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_all(&mut self, host: &Path, parent: Ino, shown: &[u8]) -> Result<()> {
        let failed = |e| Error::host("list", host, e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(host).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort_unstable();
        for name in &names {
            // A companion is copied with its file.
            let base = name.as_bytes().strip_prefix(b"._");
            if base.is_some_and(|base| names.iter().any(|n| n.as_bytes() == base)) {
                continue;
            }
            if self.packing == Some(Packing::Basilisk) && basilisk::DIRS.contains(&name.as_bytes())
            {
                continue;
            }
            self.put(&host.join(name), parent, None, shown)?;
        }
        Ok(())
    }

    fn file(&mut self, host: &Path, parent: Ino, name: Option<&[u8]>, shown: &[u8]) -> Result<()> {
        let failed = |e| Error::host("read", host, e);
        let mut from = BufReader::with_capacity(256 << 10, File::open(host).map_err(failed)?);
        let format = match self.packing {
            None | Some(Packing::Basilisk) => Format::Data,
            Some(Packing::As(format)) => format,
            Some(Packing::Auto) => {
                interchange::detect(&mut from).map_err(|e| packing_failed("look at", shown, &e))?
            }
        };
        let unpack = |e: interchange::Error| {
            Error::host("unpack", host, std::io::Error::other(e.to_string()))
        };
        let own = host.file_name().map_or(&b"Untitled"[..], OsStrExt::as_bytes);
        // An AppleDouble beside a plain file, or the plain file beside an AppleDouble.
        let beside = match (format, own.strip_prefix(b"._")) {
            (Format::AppleDouble, Some(base)) => Some(host.with_file_name(OsStr::from_bytes(base))),
            (Format::Data | Format::AppleDouble, _) => {
                let double = [b"._", own].concat();
                Some(host.with_file_name(OsStr::from_bytes(&double)))
            }
            _ => None,
        }
        .filter(|path| path.is_file());
        let (plain, double) = match (format, own.starts_with(b"._")) {
            (Format::AppleDouble, true) => (beside, Some(host.to_owned())),
            (Format::AppleDouble | Format::Data, _) => (Some(host.to_owned()), beside),
            _ => (None, None),
        };
        if let Format::AppleDouble | Format::Data = format {
            let double = match double {
                Some(path) => self.open_double(&path, format == Format::AppleDouble)?,
                None => None,
            };
            let own = plain
                .as_deref()
                .and_then(Path::file_name)
                .map_or(own.strip_prefix(b"._").unwrap_or(own), OsStrExt::as_bytes);
            let name = name.map_or_else(|| own.to_vec(), <[u8]>::to_vec);
            let data = match &plain {
                Some(path) => Some(
                    Reader::open(
                        Format::Data,
                        BufReader::new(File::open(path).map_err(|e| Error::host("read", path, e))?),
                    )
                    .map_err(unpack)?,
                ),
                None => None,
            };
            return self.make(host, parent, &name, shown, (data, double), Format::AppleDouble);
        }
        let reader = Reader::open(format, from).map_err(unpack)?;
        let packed_as = match reader.meta().name.as_slice() {
            [] => own.to_vec(),
            name => macroman::name_to_unix(name).into_bytes(),
        };
        let name = name.map_or(packed_as, <[u8]>::to_vec);
        self.make(host, parent, &name, shown, (Some(reader), None), format)
    }

    /// Opens an AppleDouble. A file in another format is an error only if `wanted`.
    fn open_double(&self, path: &Path, wanted: bool) -> Result<Option<Reader<BufReader<File>>>> {
        let file = File::open(path).map_err(|e| Error::host("read", path, e))?;
        match Reader::open(Format::AppleDouble, BufReader::new(file)) {
            Ok(reader) => Ok(Some(reader)),
            Err(e) if wanted => {
                Err(Error::host("unpack", path, std::io::Error::other(e.to_string())))
            }
            Err(_) => Ok(None),
        }
    }

    /// Makes the file, replacing an existing one of its name. An incomplete file is removed again.
    fn make<R: Read + Seek>(
        &mut self,
        host: &Path,
        parent: Ino,
        name: &[u8],
        shown: &[u8],
        content: (Option<Reader<R>>, Option<Reader<R>>),
        format: Format,
    ) -> Result<()> {
        let volume = self.volume;
        let full = super::below(shown, name);
        let make = || volume.mknod(&Caller::ROOT, parent, name, FileKind::Regular, 0o644, 0);
        let entry = match make() {
            Err(FsError::Exists) => {
                volume
                    .unlink(&Caller::ROOT, parent, name)
                    .map_err(|e| Error::file("replace", &full, e))?;
                make()
            }
            other => other,
        };
        let entry = entry.map_err(|e| Error::file("make", &full, e))?;
        let node = Node::from_entry(volume, entry);
        let filled = self.fill(host, node.ino(), &full, content, format);
        if filled.is_err() {
            // Report the first error, not one from the removal.
            let _ = volume.unlink(&Caller::ROOT, parent, name);
        }
        let bytes = filled?;
        self.tally.files += 1;
        self.tally.bytes += bytes;
        Ok(())
    }

    fn fill<R: Read + Seek>(
        &self,
        host: &Path,
        ino: Ino,
        full: &[u8],
        (mut first, mut double): (Option<Reader<R>>, Option<Reader<R>>),
        format: Format,
    ) -> Result<u64> {
        let volume = self.volume;
        let failed = |e| Error::file("write", full, e);
        let unpack = |e: &interchange::Error| {
            Error::host("unpack", host, std::io::Error::other(e.to_string()))
        };
        let mut bytes = 0;
        if let Some(reader) = &mut first {
            let mut to = DataWriter { volume, ino, at: 0, failed: None };
            let mut buffered = BufWriter::with_capacity(256 << 10, &mut to);
            let copied = reader.copy_fork(Fork::Data, &mut buffered);
            let flushed = buffered.flush();
            drop(buffered);
            bytes += to.at;
            if let Some(e) = to.failed {
                return Err(failed(e));
            }
            copied.map_err(|e| unpack(&e))?;
            flushed.map_err(|e| unpack(&e.into()))?;
        }
        let whole = if double.is_some() || format == Format::AppleDouble {
            &mut double
        } else {
            &mut first
        };
        let mut meta = volume.meta(ino).map_err(failed)?;
        let mut dated = false;
        if let Some(reader) = whole
            && !matches!(format, Format::Data | Format::Text)
        {
            let mut to = ResourceWriter::new(volume, ino);
            let copied = reader.copy_fork(Fork::Resource, &mut to);
            to.finish().map_err(failed)?;
            copied.map_err(|e| unpack(&e))?;
            let said: &Meta = reader.meta();
            bytes += said.resource_bytes;
            meta.finder_info = said.finder_info;
            meta.locked = said.locked;
            for (date, said) in [
                (&mut meta.created, said.created),
                (&mut meta.modified, said.modified),
                (&mut meta.backed_up, said.backed_up),
            ] {
                if said != 0 {
                    *date = said;
                }
            }
            dated = said.modified != 0;
        }
        if self.packing == Some(Packing::Basilisk) {
            bytes += basilisk::read(volume, ino, host, false, &mut meta)?;
        }
        if format == Format::Text && meta.finder_info[..4] == [0; 4] {
            meta.set_type(*b"TEXT", *b"ttxt");
        }
        let file_type = self.saying.file_type.unwrap_or_else(|| meta.file_type());
        let creator = self.saying.creator.unwrap_or_else(|| meta.creator());
        meta.set_type(file_type, creator);
        if !dated {
            let time = std::fs::metadata(host).and_then(|m| m.modified()).map(Time::from);
            if let Ok(time) = time {
                let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
                volume.setattr(&Caller::ROOT, ino, &set).map_err(failed)?;
                meta.modified = volume.meta(ino).map_err(failed)?.modified;
            }
        }
        volume.set_meta(ino, &meta).map_err(failed)?;
        Ok(bytes)
    }
}
