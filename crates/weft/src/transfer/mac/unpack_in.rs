//! Unpacking files of the host into a volume.

use super::beside::Beside;
use super::{Packing, packing_failed};
use crate::transfer::mac_names::{another_name, double_elsewhere, is_double, is_elsewhere};
use crate::transfer::past_names::is_about_one_item;
use crate::transfer::{Tally, basilisk};
use crate::{Error, Result};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_hfs::interchange::{self, Fork, Format, Meta, Reader};
use weft_hfs::macroman;
use weft_hfs::streams::{MacVolume, ResourceWriter};
use weft_vfs::path::Node;
use weft_vfs::{Caller, Entry, Error as FsError, FileKind, Handle, Ino, SetAttr, SetTime, Time};

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
    /// The files and the directories that were made.
    made: HashSet<Ino>,
    directories: HashSet<Ino>,
    /// The host's files that went into another file, by device and inode number.
    joined: HashSet<(u64, u64)>,
    remarks: Vec<String>,
    refused: Vec<String>,
    top: PathBuf,
    /// Whether a directory of the host has companions in directories.
    layouts: RefCell<HashMap<PathBuf, bool>>,
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
        Self {
            volume,
            packing,
            saying,
            tally: Tally::default(),
            made: HashSet::new(),
            directories: HashSet::new(),
            joined: HashSet::new(),
            remarks: Vec::new(),
            refused: Vec::new(),
            top: PathBuf::new(),
            layouts: RefCell::default(),
        }
    }

    /// What became of items whose name was taken: by an earlier one of the source, so that they got
    /// another name, or by a file that had to be removed first.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The files that were left out, with the reasons.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns true if files get the AppleDoubles beside them.
    fn joins_doubles(&self) -> bool {
        !matches!(
            self.packing,
            Some(Packing::As(
                Format::MacBinary | Format::AppleSingle | Format::BinHex | Format::Text
            ))
        )
    }

    /// Returns true if the files of `dir` have their companions in directories beside them.
    fn is_basilisk(&self, dir: &Path) -> bool {
        match self.packing {
            Some(Packing::Basilisk) => true,
            None | Some(Packing::Auto) => {
                let mut layouts = self.layouts.borrow_mut();
                match layouts.get(dir) {
                    Some(is_one) => *is_one,
                    None => *layouts.entry(dir.to_owned()).or_insert(basilisk::is_layout(dir)),
                }
            }
            Some(Packing::As(_)) => false,
        }
    }

    /// Notes that an item of the source got another name.
    fn note_renamed(&mut self, host: &Path, name: &[u8], another: &[u8]) {
        self.remarks.push(format!(
            "{}: {} was made of another item; this one is {}",
            host.display(),
            String::from_utf8_lossy(name),
            String::from_utf8_lossy(another)
        ));
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
            if self.joined.contains(&(meta.dev(), meta.ino())) {
                return Ok(());
            }
            return self.file(host, parent, name, shown);
        }
        let own = host.file_name().map(|name| name.as_bytes().to_vec());
        let name = name.map(<[u8]>::to_vec).or(own);
        let (dir, shown) = match name {
            // `dir/.`: only the content of the directory.
            None => (None, shown.to_vec()),
            Some(name) => {
                let (entry, name) = self.directory(host, parent, &name, shown)?;
                let shown = crate::transfer::below(shown, &name);
                self.tally.directories += 1;
                let failed = |e| Error::file("write", &shown, e);
                let ino = entry.attr.ino;
                if host.parent().is_some_and(|dir| self.is_basilisk(dir)) {
                    let mut meta = self.volume.meta(ino).map_err(failed)?;
                    basilisk::read(self.volume, ino, host, true, &mut meta)?;
                    self.volume.set_meta(ino, &meta).map_err(failed)?;
                }
                if let Some(double) = self.double_of(host) {
                    self.folder_double(&double, ino, &shown)?;
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
        let is_basilisk = self.is_basilisk(host);
        let is_top = self.top.as_os_str().is_empty();
        if is_top {
            host.clone_into(&mut self.top);
        }
        for name in &names {
            let path = host.join(name);
            // A companion is copied with its file. What only has the name of one is a file.
            let base = name.as_bytes().strip_prefix(b"._");
            let has_base = base.is_some_and(|base| names.iter().any(|n| n.as_bytes() == base));
            if self.joins_doubles()
                && (has_base && is_double(&path) || is_elsewhere(&path, &self.top))
            {
                continue;
            }
            if is_basilisk && basilisk::DIRS.contains(&name.as_bytes()) && path.is_dir() {
                self.refused.extend(basilisk::without_files(&path, &names)?);
                continue;
            }
            match self.put(&path, parent, None, shown) {
                // The rest of the directory is not to suffer from it.
                Err(e) if matches!(e, Error::Host { .. }) || is_about_one_item(&e, true) => {
                    self.refused.push(e.to_string());
                }
                other => other?,
            }
        }
        if is_top {
            self.top = PathBuf::new();
        }
        Ok(())
    }

    /// The AppleDouble of a file or directory of the host, if it is a whole one.
    fn double_of(&self, host: &Path) -> Option<PathBuf> {
        if !self.joins_doubles() {
            return None;
        }
        let own = host.file_name()?.as_bytes();
        let beside = host.with_file_name(OsStr::from_bytes(&[b"._", own].concat()));
        let top = if self.top.as_os_str().is_empty() { host.parent()? } else { &self.top };
        if is_double(&beside) { Some(beside) } else { double_elsewhere(host, top) }
    }

    /// Makes a directory, or finds the one of its name. Returns its name, too.
    fn directory(
        &mut self,
        host: &Path,
        parent: Ino,
        name: &[u8],
        shown: &[u8],
    ) -> Result<(Entry, Vec<u8>)> {
        for turn in 0..u32::MAX {
            let own = if turn == 0 { name.to_vec() } else { another_name(name, turn - 1) };
            let made = self.volume.mkdir(&Caller::ROOT, parent, &own, 0o755);
            let entry = match made {
                Err(FsError::Exists) => self.volume.lookup(parent, &own),
                other => other,
            };
            let full = crate::transfer::below(shown, &own);
            let failed = |e| Error::file("make directory", &full, e);
            let entry = entry.map_err(failed)?;
            let ino = entry.attr.ino;
            let is_dir = entry.attr.kind == FileKind::Directory;
            if self.made.contains(&ino) {
                self.volume.forget(ino, 1);
                continue;
            }
            if !is_dir {
                self.volume.forget(ino, 1);
                return Err(failed(FsError::NotADirectory));
            }
            if turn > 0 {
                self.note_renamed(host, name, &own);
            }
            self.directories.insert(ino);
            return Ok((entry, own));
        }
        Err(Error::file("make directory", &crate::transfer::below(shown, name), FsError::Exists))
    }

    /// Sets what the AppleDouble of a folder says.
    fn folder_double(&mut self, double: &Path, ino: Ino, shown: &[u8]) -> Result<()> {
        let failed = |e| Error::file("write", shown, e);
        let Some(reader) = self.open_double(double, false)? else { return Ok(()) };
        let said = reader.meta();
        let mut meta = self.volume.meta(ino).map_err(failed)?;
        take_meta(&mut meta, said);
        self.volume.set_meta(ino, &meta).map_err(failed)?;
        if said.resource_bytes > 0 {
            self.refused.push(format!(
                "{}: a folder has no resource fork: {} bytes are left out",
                double.display(),
                said.resource_bytes
            ));
        }
        self.join(double);
        Ok(())
    }

    fn join(&mut self, host: &Path) {
        if let Ok(meta) = std::fs::metadata(host) {
            self.joined.insert((meta.dev(), meta.ino()));
        }
    }

    fn file(&mut self, host: &Path, parent: Ino, name: Option<&[u8]>, shown: &[u8]) -> Result<()> {
        let failed = |e| Error::host("read", host, e);
        let mut from = BufReader::with_capacity(256 << 10, File::open(host).map_err(failed)?);
        let is_basilisk = host.parent().is_some_and(|dir| self.is_basilisk(dir));
        let format = match self.packing {
            None | Some(Packing::Basilisk) => Format::Data,
            Some(Packing::As(format)) => format,
            Some(Packing::Auto) if is_basilisk => Format::Data,
            Some(Packing::Auto) => {
                match interchange::detect(&mut from)
                    .map_err(|e| packing_failed("look at", shown, &e))?
                {
                    // One that was cut, or is no more than its first bytes, is a file.
                    Format::AppleDouble if !is_double(host) => Format::Data,
                    format => format,
                }
            }
        };
        let unpack = |e: interchange::Error| {
            Error::host("unpack", host, std::io::Error::other(e.to_string()))
        };
        let own = host.file_name().map_or(&b"Untitled"[..], OsStrExt::as_bytes);
        if let Format::AppleDouble | Format::Data = format {
            // An AppleDouble beside a plain file, or the plain file beside an AppleDouble.
            let base = own.strip_prefix(b"._").filter(|_| format == Format::AppleDouble);
            let (plain, double) = match base {
                Some(base) => {
                    let plain = host.with_file_name(OsStr::from_bytes(base));
                    (Some(plain).filter(|path| path.is_file()), Some(host.to_owned()))
                }
                None if self.packing == Some(Packing::As(Format::AppleDouble)) => {
                    let double = [b"._", own].concat();
                    let double = host.with_file_name(OsStr::from_bytes(&double));
                    let double = Some(double).filter(|path| path.is_file());
                    (Some(host.to_owned()), double.or_else(|| self.double_of(host)))
                }
                None if format == Format::AppleDouble => (None, Some(host.to_owned())),
                None => (Some(host.to_owned()), self.double_of(host)),
            };
            let halves = [plain.clone(), double.clone()];
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
            let is_joined = data.is_some() && double.is_some();
            self.make(host, parent, &name, shown, (data, double), Format::AppleDouble)?;
            // Either half may have been named as well.
            if is_joined {
                halves.iter().flatten().for_each(|half| self.join(half));
            }
            return Ok(());
        }
        let reader = Reader::open(format, from).map_err(unpack)?;
        if let Some(path) = self.double_of(host)
            && let Some(double) = self.open_double(&path, false)?
            && double.meta().resource_bytes > 0
        {
            self.refused.push(format!(
                "{} is left out: its file is packed, and has forks of its own",
                path.display()
            ));
        }
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

    /// Makes the file, replacing an existing one of its name that is not from the same source once it is
    /// complete. An incomplete file is removed again.
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
        let wanted = name;
        let mut name = name.to_vec();
        for turn in 0..u32::MAX {
            let there = match volume.lookup(parent, &name) {
                Ok(entry) => Node::from_entry(volume, entry),
                Err(_) => break,
            };
            let ino = there.ino();
            if !self.made.contains(&ino) && !self.directories.contains(&ino) {
                break;
            }
            name = another_name(wanted, turn);
        }
        let name = &name[..];
        if name != wanted {
            self.note_renamed(host, wanted, name);
        }
        let full = crate::transfer::below(shown, name);
        let failed = |e| Error::file("make", &full, e);
        let metas = [&content.0, &content.1].map(|reader| reader.as_ref().map(Reader::meta));
        let need_bytes =
            metas.iter().flatten().map(|meta| meta.data_bytes.saturating_add(meta.resource_bytes));
        let need_bytes = need_bytes.fold(0, u64::saturating_add);
        let file = Beside::make(volume, parent, name, need_bytes).map_err(failed)?;
        if file.removed_first {
            let shown = full.strip_prefix(b"/").unwrap_or(&full);
            let shown = String::from_utf8_lossy(shown);
            self.remarks.push(format!("/{shown}: {}", crate::transfer::volume_make::REMOVED_FIRST));
        }
        let ino = file.node.ino();
        let filled = self.fill(host, ino, &full, content, format).and_then(|bytes| {
            file.settle(name).map_err(|e| Error::file("replace", &full, e)).map(|()| bytes)
        });
        let bytes = match filled {
            Ok(bytes) => bytes,
            Err(e) => {
                file.discard();
                return Err(e);
            }
        };
        self.made.insert(ino);
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
            take_meta(&mut meta, said);
            dated = said.modified != 0;
        }
        if host.parent().is_some_and(|dir| self.is_basilisk(dir)) {
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

/// Sets what a packed file says; dates that it does not say stay.
fn take_meta(meta: &mut Meta, said: &Meta) {
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
}
