//! A directory of the host as a destination.
//!
//! The volume may be hostile: a name that is `..` or contains a slash is refused, no symbolic link
//! is followed on the way down (a directory is entered only if it is one), and a file is always
//! created anew. An existing file of the same name is replaced, unless it came from the same source;
//! directories are kept.

use super::made::Made;
use super::{Content, Item, ItemKind, RUN_BYTES, Sink};
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weft_vfs::{FileKind, Time};

/// Writes items below a path of the host.
#[derive(Debug)]
pub struct HostSink {
    top: PathBuf,
    /// Whether owners are set: only root may change them.
    with_owners: bool,
    /// Permissions and times of directories, set when all their content has been written.
    deferred: Vec<(PathBuf, u16, Timestamps)>,
    buffer: Vec<u8>,
    left_out: Vec<String>,
    made: Made,
    refused: Vec<String>,
}

impl HostSink {
    /// Writes the top item to `top`, and the rest below it.
    #[must_use]
    pub fn new(top: impl Into<PathBuf>) -> Self {
        Self {
            top: top.into(),
            with_owners: rustix::process::geteuid().is_root(),
            deferred: Vec::new(),
            buffer: vec![0; RUN_BYTES],
            left_out: Vec::new(),
            made: Made::default(),
            refused: Vec::new(),
        }
    }

    /// Takes over the record of the files that another sink has made: none of them is replaced.
    pub fn go_on_from(&mut self, other: &mut Self) {
        self.made = std::mem::take(&mut other.made);
    }

    /// The items whose names are those of earlier items here, with the reason: they were left out.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Makes way for an item. Returns whether its name is free.
    fn clear(&mut self, host: &Path) -> Result<bool> {
        let free = self.made.clear(host)?;
        if !free {
            self.refused.push(format!(
                "cannot make {}: another item of the source has this name here",
                host.display()
            ));
        }
        Ok(free)
    }

    /// Items and attributes that could not be created here, with the reason: device nodes without
    /// root, attributes that the host's file system refuses.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn host(&self, path: &[u8]) -> Result<PathBuf> {
        if path.is_empty() {
            return Ok(self.top.clone());
        }
        for name in path.split(|b| *b == b'/') {
            if name.is_empty() || name == b"." || name == b".." || name.contains(&0) {
                let bad = weft_vfs::Error::Corrupt("a name that no file may have".into());
                return Err(Error::file("export", path, bad));
            }
        }
        Ok(self.top.join(OsStr::from_bytes(path)))
    }

    fn write(&mut self, host: &Path, len_bytes: u64, content: &mut dyn Content) -> Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: File = rustix::fs::open(host, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::host("make", host, e))?
            .into();
        let mut end = 0;
        while let Some((at, len)) = content.next_run(&mut self.buffer)? {
            let run = self.buffer.get(..len).unwrap_or(&[]);
            file.write_all_at(run, at).map_err(|e| Error::host("write", host, e))?;
            end = at + run.len() as u64;
        }
        if end < len_bytes {
            file.set_len(len_bytes).map_err(|e| Error::host("write", host, e))?;
        }
        Ok(())
    }
}

fn times(item: &Item<'_>) -> Timestamps {
    let spec = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: i64::from(t.nanos) };
    Timestamps {
        last_access: spec(item.atime.unwrap_or(item.mtime)),
        last_modification: spec(item.mtime),
    }
}

impl Sink for HostSink {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let host = self.host(item.path)?;
        let failed = |e: Errno| Error::host("make", &host, e);
        if item.kind != ItemKind::Directory && !self.clear(&host)? {
            return Ok(());
        }
        match item.kind {
            ItemKind::Directory => match rustix::fs::mkdir(&host, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => {
                    let there = std::fs::symlink_metadata(&host)
                        .map_err(|e| Error::host("stat", &host, e))?;
                    if !there.is_dir() {
                        return Err(failed(Errno::NOTDIR));
                    }
                }
                Err(e) => return Err(failed(e)),
            },
            ItemKind::File { len_bytes } => self.write(&host, len_bytes, content)?,
            ItemKind::Symlink(target) => {
                rustix::fs::symlink(OsStr::from_bytes(target), &host).map_err(failed)?;
            }
            ItemKind::HardLink(first) => {
                let first = self.host(first)?;
                std::fs::hard_link(&first, &host).map_err(|e| Error::host("link", &host, e))?;
                return self.made.add(&host);
            }
            ItemKind::Special { kind, rdev } => {
                let file_type = match kind {
                    FileKind::BlockDevice => rustix::fs::FileType::BlockDevice,
                    FileKind::CharDevice => rustix::fs::FileType::CharacterDevice,
                    FileKind::Socket => rustix::fs::FileType::Socket,
                    _ => rustix::fs::FileType::Fifo,
                };
                let device = rustix::fs::makedev(
                    (rdev >> 8) & 0xfff,
                    (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00),
                );
                match rustix::fs::mknodat(CWD, &host, file_type, Mode::RUSR, device) {
                    Ok(()) => {}
                    Err(Errno::PERM | Errno::ACCESS) if !self.with_owners => {
                        self.left_out
                            .push(format!("{}: only root makes device nodes", host.display()));
                        return Ok(());
                    }
                    Err(e) => return Err(failed(e)),
                }
            }
        }

        if item.kind != ItemKind::Directory {
            self.made.add(&host)?;
        }
        if self.with_owners {
            let owner = (Some(Uid::from_raw(item.uid)), Some(Gid::from_raw(item.gid)));
            rustix::fs::chownat(CWD, &host, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| Error::host("set the owner of", &host, e))?;
        }
        for (name, value) in item.xattrs {
            let flags = rustix::fs::XattrFlags::empty();
            if let Err(e) = rustix::fs::lsetxattr(&host, OsStr::from_bytes(name), value, flags) {
                let name = String::from_utf8_lossy(name);
                self.left_out.push(format!("{}: attribute {name}: {e}", host.display()));
            }
        }
        if item.kind == ItemKind::Directory {
            self.deferred.push((host, item.perm, times(item)));
            return Ok(());
        }
        if !matches!(item.kind, ItemKind::Symlink(_)) {
            std::fs::set_permissions(&host, Permissions::from_mode(u32::from(item.perm)))
                .map_err(|e| Error::host("set the mode of", &host, e))?;
        }
        rustix::fs::utimensat(CWD, &host, &times(item), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| Error::host("set the times of", &host, e))
    }

    fn finish(&mut self) -> Result<()> {
        for (host, perm, times) in std::mem::take(&mut self.deferred).into_iter().rev() {
            std::fs::set_permissions(&host, Permissions::from_mode(u32::from(perm)))
                .map_err(|e| Error::host("set the mode of", &host, e))?;
            rustix::fs::utimensat(CWD, &host, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| Error::host("set the times of", &host, e))?;
        }
        Ok(())
    }
}
