//! Packing files of a volume for the host.

use super::{Packing, pack, packing_failed};
use crate::transfer::mac_names::{another_name, without_dot};
use crate::transfer::made::Made;
use crate::transfer::{Tally, basilisk, join};
use crate::{Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weft_hfs::interchange::Format;
use weft_hfs::streams::MacVolume;
use weft_hfs::view::has_more;
use weft_vfs::FileKind;
use weft_vfs::path::Node;

/// What a transfer packed.
#[derive(Debug)]
pub struct Packed {
    /// The counts.
    pub tally: Tally,
    /// The parts for which the format of their file has no place.
    pub left_out: Vec<String>,
    /// The items that got another name, as theirs was taken.
    pub renamed: Vec<String>,
    made: Made,
}

/// Packs a file or a tree of a volume into `to` on the host: a directory for the copy, or the name
/// of the copy.
pub struct PackOut<'a> {
    packing: Packing,
    shown: &'a [u8],
    tally: Tally,
    left_out: Vec<String>,
    renamed: Vec<String>,
    made: Made,
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
            renamed: Vec::new(),
            made: Made::default(),
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
    ) -> Result<Packed> {
        self.one(volume, node, name, (to, into), &[])?;
        let Self { tally, left_out, renamed, made, .. } = self;
        Ok(Packed { tally, left_out, renamed, made })
    }

    /// Takes over the record of the files that an earlier transfer has made: none of them is
    /// replaced.
    #[must_use]
    pub fn go_on_from(self, earlier: Option<Packed>) -> Self {
        Self { made: earlier.map(|packed| packed.made).unwrap_or_default(), ..self }
    }

    /// Returns a name in `dir` for a file called `name` that no file of this transfer has, as
    /// `packed` makes it, and removes an older file of that name.
    fn free_name(
        &mut self,
        dir: &Path,
        name: &[u8],
        packed: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        for turn in 0..u32::MAX {
            let own = if turn == 0 { name.to_vec() } else { another_name(name, turn - 1) };
            if self.made.clear(&dir.join(OsStr::from_bytes(&packed(&own))))? {
                if turn > 0 {
                    let (old, new) = (packed(name), packed(&own));
                    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
                    self.renamed.push(format!(
                        "{}: {} was made of another item; this one is {}",
                        text(name),
                        text(&old),
                        text(&new)
                    ));
                }
                return Ok(own);
            }
        }
        Ok(name.to_vec())
    }

    /// Returns the path of a directory in `dir`: another one if a file of this transfer has that.
    fn free_directory(&mut self, dir: &Path, name: &[u8]) -> Result<PathBuf> {
        let path = dir.join(OsStr::from_bytes(name));
        if !self.made.has(&path) || path.is_dir() {
            return Ok(path);
        }
        let own = self.free_name(dir, name, <[u8]>::to_vec)?;
        Ok(dir.join(OsStr::from_bytes(&own)))
    }

    fn one(
        &mut self,
        volume: &dyn MacVolume,
        node: &Node<'_>,
        name: &[u8],
        (to, into): (&Path, bool),
        below: &[u8],
    ) -> Result<()> {
        let failed = |e| Error::file("read", &crate::transfer::below(self.shown, below), e);
        match node.kind() {
            FileKind::Directory => {
                let dir = if into { self.free_directory(to, name)? } else { to.to_owned() };
                match std::fs::create_dir(&dir) {
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                    other => other.map_err(|e| Error::host("make", &dir, e))?,
                }
                self.made.add(&dir)?;
                self.tally.directories += 1;
                if self.packing == Packing::Basilisk && !name.is_empty() {
                    let meta = volume.meta(node.ino()).map_err(failed)?;
                    basilisk::write(volume, node.ino(), &dir, &meta, &mut self.made)?;
                }
                for found in node.list().map_err(failed)? {
                    if matches!(&found.name[..], b"." | b"..") {
                        continue;
                    }
                    let path = join(below, &found.name);
                    let packed = node
                        .lookup(&found.name)
                        .map_err(|e| {
                            Error::file("read", &crate::transfer::below(self.shown, &path), e)
                        })
                        .and_then(|child| {
                            let shown = self.shown_name(node, &found.name);
                            self.one(volume, &child, &shown, (&dir, true), &path)
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

    /// Returns the name of an item of `dir` on the host. One that would be taken for a companion
    /// when it is put back, or for the directory of companions, is spelled without its dot.
    fn shown_name(&mut self, dir: &Node<'_>, name: &[u8]) -> Vec<u8> {
        let joins = matches!(
            self.packing,
            Packing::As(Format::AppleDouble | Format::Data) | Packing::Auto | Packing::Basilisk
        );
        let is_companion = || name.strip_prefix(b"._").is_some_and(|base| dir.lookup(base).is_ok());
        let is_directory = |own: &&[u8]| name.eq_ignore_ascii_case(own);
        let is_taken = joins && is_companion()
            || self.packing == Packing::Basilisk && basilisk::DIRS.iter().any(is_directory);
        if !is_taken {
            return name.to_vec();
        }
        let shown = without_dot(name);
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        self.renamed.push(format!(
            "{} is copied as {} (with U+2024 for the dot): companions have such names",
            text(name),
            text(&shown)
        ));
        shown
    }

    fn file(
        &mut self,
        volume: &dyn MacVolume,
        node: &Node<'_>,
        name: &[u8],
        (to, into): (&Path, bool),
        below: &[u8],
    ) -> Result<()> {
        let shown = crate::transfer::below(self.shown, below);
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
        let packed = |format: Format, name: &[u8]| match std::str::from_utf8(name) {
            Ok(name) => format.file_name(name).into_bytes(),
            Err(_) => name.to_vec(),
        };
        let exact = !into;
        let (dir, name) = if into {
            (to.to_owned(), name)
        } else {
            let dir = to.parent().map(Path::to_owned).unwrap_or_default();
            (dir, to.file_name().map_or(name, OsStrExt::as_bytes))
        };
        let first = if format == Format::AppleDouble { Format::Data } else { format };
        let named = |name: &[u8]| if exact { name.to_vec() } else { packed(first, name) };
        let own = self.free_name(&dir, name, named)?;
        let host = dir.join(OsStr::from_bytes(&named(&own)));
        self.write(volume, (node, name, &shown), first, &host)?;
        if format == Format::AppleDouble && has_more(&meta, name) {
            let double = dir.join(OsStr::from_bytes(&packed(Format::AppleDouble, &own)));
            if !self.made.clear(&double)? {
                let e = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
                return Err(Error::host("make", double, e));
            }
            self.write(volume, (node, name, &shown), Format::AppleDouble, &double)?;
        }
        if self.packing == Packing::Basilisk {
            basilisk::write(volume, node.ino(), &host, &meta, &mut self.made)?;
        }
        self.tally.files += 1;
        self.tally.bytes += meta.data_bytes + meta.resource_bytes;
        Ok(())
    }
}

impl PackOut<'_> {
    /// Writes one file, which does not exist.
    fn write(
        &mut self,
        volume: &dyn MacVolume,
        (node, name, shown): (&Node<'_>, &[u8], &[u8]),
        format: Format,
        host: &Path,
    ) -> Result<()> {
        let file = File::create_new(host).map_err(|e| Error::host("make", host, e))?;
        let mut to = BufWriter::with_capacity(256 << 10, file);
        let packed = pack(volume, node.ino(), name, format, &mut to);
        packed.and_then(|()| Ok(to.flush()?)).map_err(|e| {
            // Removes the incomplete file.
            let _ = std::fs::remove_file(host);
            packing_failed("pack", shown, &e)
        })?;
        let file = to.into_inner().map_err(|e| Error::host("write", host, e.into_error()))?;
        let time = node.attr().mtime;
        let since = Duration::new(time.secs.max(0).cast_unsigned(), time.nanos);
        file.set_modified(SystemTime::UNIX_EPOCH + since)
            .map_err(|e| Error::host("set the times of", host, e))?;
        self.made.add(host)
    }
}
