//! A tar stream as a destination: GNU headers, with pax records for extended attributes.

use super::{Content, Item, ItemKind, RUN_BYTES, Sink};
use crate::{Error, Result};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{EntryType, Header};
use weft_vfs::FileKind;

/// Writes a tar stream.
pub struct TarSink<W: Write> {
    builder: tar::Builder<W>,
    name: Vec<u8>,
}

impl<W: Write> std::fmt::Debug for TarSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TarSink").finish_non_exhaustive()
    }
}

impl<W: Write> TarSink<W> {
    /// Writes to `stream`, which should be buffered.
    pub fn new(stream: W) -> Self {
        Self { builder: tar::Builder::new(stream), name: b".".to_vec() }
    }

    /// What the top item is called in the stream, instead of `.`; what is in it keeps its relative
    /// path.
    #[must_use]
    pub fn named(mut self, name: &[u8]) -> Self {
        if !name.is_empty() {
            self.name = name.to_vec();
        }
        self
    }
}

impl<W: Write> Sink for TarSink<W> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let shown = String::from_utf8_lossy(item.path);
        let failed = |e: io::Error| Error::Tar(format!("{shown}: {e}"));
        let mut header = Header::new_gnu();
        header.set_mode(u32::from(item.perm));
        header.set_uid(u64::from(item.uid));
        header.set_gid(u64::from(item.gid));
        // A GNU header has no time before 1970.
        header.set_mtime(u64::try_from(item.mtime.secs).unwrap_or(0));
        header.set_size(0);

        if !item.xattrs.is_empty() {
            let mut records = Vec::new();
            for (name, value) in item.xattrs {
                // A name that is not UTF-8 has no pax record; none such is made on Linux.
                if let Ok(name) = std::str::from_utf8(name) {
                    records.push((format!("SCHILY.xattr.{name}"), value.as_slice()));
                }
            }
            let records = records.iter().map(|(name, value)| (name.as_str(), *value));
            self.builder.append_pax_extensions(records).map_err(failed)?;
        }
        let mut name = if item.path.is_empty() { self.name.clone() } else { item.path.to_vec() };
        if item.kind == ItemKind::Directory {
            name.push(b'/');
        }
        let name = Path::new(OsStr::from_bytes(&name));
        match item.kind {
            ItemKind::File { len_bytes } => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(len_bytes);
                let mut stream = Filled::new(content, len_bytes);
                let written = self.builder.append_data(&mut header, name, &mut stream);
                if let Some(e) = stream.error {
                    return Err(e);
                }
                written.map_err(failed)
            }
            ItemKind::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.builder.append_data(&mut header, name, io::empty()).map_err(failed)
            }
            ItemKind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                let target = Path::new(OsStr::from_bytes(target));
                self.builder.append_link(&mut header, name, target).map_err(failed)
            }
            ItemKind::HardLink(first) => {
                header.set_entry_type(EntryType::Link);
                let first = Path::new(OsStr::from_bytes(first));
                self.builder.append_link(&mut header, name, first).map_err(failed)
            }
            ItemKind::Special { kind, rdev } => {
                header.set_entry_type(match kind {
                    FileKind::BlockDevice => EntryType::Block,
                    FileKind::CharDevice => EntryType::Char,
                    FileKind::Fifo => EntryType::Fifo,
                    // tar has no sockets; they mean nothing without the process that listens.
                    _ => return Ok(()),
                });
                let major = (rdev >> 8) & 0xfff;
                let minor = (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00);
                header.set_device_major(major).map_err(failed)?;
                header.set_device_minor(minor).map_err(failed)?;
                self.builder.append_data(&mut header, name, io::empty()).map_err(failed)
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        let result = self.builder.finish().and_then(|()| self.builder.get_mut().flush());
        result.map_err(|e| Error::Tar(e.to_string()))
    }
}

/// A content with its holes filled: exactly as many bytes as the header promises.
struct Filled<'a> {
    content: &'a mut dyn Content,
    buffer: Vec<u8>,
    /// What of `buffer` is still to be given, and where in the file it belongs.
    pending: std::ops::Range<usize>,
    pending_at: u64,
    at: u64,
    len_bytes: u64,
    ended: bool,
    error: Option<Error>,
}

impl<'a> Filled<'a> {
    fn new(content: &'a mut dyn Content, len_bytes: u64) -> Self {
        let room = usize::try_from(len_bytes).unwrap_or(RUN_BYTES).clamp(1, RUN_BYTES);
        let buffer = vec![0; room];
        Self {
            content,
            buffer,
            pending: 0..0,
            pending_at: 0,
            at: 0,
            len_bytes,
            ended: false,
            error: None,
        }
    }
}

impl Read for Filled<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.pending.is_empty() && !self.ended {
            match self.content.next_run(&mut self.buffer) {
                Ok(Some((at, len))) if at >= self.at => {
                    self.pending = 0..len;
                    self.pending_at = at;
                }
                Ok(_) => self.ended = true,
                Err(e) => {
                    let told = io::Error::other(e.to_string());
                    self.error = Some(e);
                    return Err(told);
                }
            }
        }
        let left = self.len_bytes - self.at;
        let until = if self.pending.is_empty() { left } else { self.pending_at - self.at };
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let n = if until > 0 {
            let n = usize::try_from(until).unwrap_or(usize::MAX).min(room);
            buf[..n].fill(0);
            n
        } else {
            let n = self.pending.len().min(room);
            buf[..n].copy_from_slice(&self.buffer[self.pending.start..self.pending.start + n]);
            self.pending.start += n;
            self.pending_at += n as u64;
            n
        };
        self.at += n as u64;
        Ok(n)
    }
}
