//! A directory of the host as a destination.
//!
//! The volume may be hostile: a name that is `..` or contains a slash is refused, no symbolic link
//! is followed on the way down (a directory is entered only if it is one), and a file is always
//! created anew. An existing file of the same name is replaced when the new one is complete, unless it
//! came from the same source; directories are kept.
//!
//! As in a volume (`volume_sink`), an item gets exactly the mode and the access control lists of its
//! source, whatever the directory passes on, and nobody has more rights meanwhile: it is made for its
//! owner alone, and the lists and modes of directories are set at the end.

use super::made::Made;
use super::{Content, Item, ItemKind, RUN_BYTES, Sink, acls};
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weft_vfs::{FileKind, Time, acl};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

/// What a directory gets when all its content has been written.
#[derive(Debug)]
struct Deferred {
    host: PathBuf,
    perm: u16,
    times: Timestamps,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

/// Writes items below a path of the host.
#[derive(Debug)]
pub struct HostSink {
    top: PathBuf,
    /// Whether owners are set: only root may change them.
    with_owners: bool,
    deferred: Vec<Deferred>,
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

    fn leave_out(&mut self, host: &Path, what: &str) {
        self.left_out.push(format!("{}: {what}", host.display()));
    }

    /// Makes an item by `make`, which is given its path: beside an item of its name, if there is
    /// one. `complete` gives it its content and attributes; then it gets its name. If it cannot be
    /// completed it is removed.
    fn make<T>(
        &mut self,
        host: &Path,
        make: impl Fn(&Path) -> rustix::io::Result<T>,
        complete: impl FnOnce(&mut Self, &Path, T) -> Result<()>,
    ) -> Result<()> {
        if self.made.has(host) {
            self.refused.push(format!(
                "cannot make {}: another item of the source has this name here",
                host.display()
            ));
            return Ok(());
        }
        let mut own = host.to_owned();
        let mut made = make(&own);
        let mut number = 0_u32;
        while made.as_ref().err() == Some(&Errno::EXIST) {
            let there = std::fs::symlink_metadata(host).is_ok_and(|there| there.is_dir());
            if there {
                return Err(Error::host("replace", host, Errno::ISDIR));
            }
            own = host.with_file_name(format!(".weft-incomplete-{number}"));
            number += 1;
            made = make(&own);
        }
        let made = made.map_err(|e| Error::host("make", host, e))?;
        let done = complete(self, &own, made).and_then(|()| {
            if own == host {
                return Ok(());
            }
            std::fs::rename(&own, host).map_err(|e| Error::host("replace", host, e))
        });
        if done.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&own);
        }
        done?;
        self.made.add(host)
    }

    fn put_file(
        &mut self,
        host: &Path,
        item: &Item<'_>,
        len_bytes: u64,
        content: &mut dyn Content,
    ) -> Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = |own: &Path| rustix::fs::open(own, flags, Mode::RUSR | Mode::WUSR);
        self.make(host, make, |sink, own, fd| {
            let file: File = fd.into();
            let failed = |e| Error::host("write", host, e);
            let mut end = 0;
            while let Some((at, len)) = content.next_run(&mut sink.buffer)? {
                let run = sink.buffer.get(..len).unwrap_or(&[]);
                file.write_all_at(run, at).map_err(failed)?;
                end = at + run.len() as u64;
            }
            if end < len_bytes {
                file.set_len(len_bytes).map_err(failed)?;
            }
            sink.set_attributes(host, own, item)
        })
    }

    /// Gives a new item that is not a directory its owner, attributes, lists, mode and times, in
    /// this order. It is at `own` until it is complete.
    fn set_attributes(&mut self, host: &Path, own: &Path, item: &Item<'_>) -> Result<()> {
        let is_link = matches!(item.kind, ItemKind::Symlink(_));
        if !is_link {
            remove_xattr(own, acl::ACCESS);
        }
        self.set_owner(host, own, item)?;
        self.set_xattrs(host, own, item);
        if !is_link {
            let mut perm = self.own_perm(host, own, item)?;
            if let Some(list) = acls::access(item) {
                perm = self.set_access(host, own, list, perm);
            }
            set_perm(host, own, perm)?;
        }
        rustix::fs::utimensat(CWD, own, &times(item), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| Error::host("set the times of", host, e))
    }

    fn set_owner(&self, host: &Path, own: &Path, item: &Item<'_>) -> Result<()> {
        if !self.with_owners {
            return Ok(());
        }
        let owner = (Some(Uid::from_raw(item.uid)), Some(Gid::from_raw(item.gid)));
        rustix::fs::chownat(CWD, own, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| Error::host("set the owner of", host, e))
    }

    /// Returns the mode of an item. As with cp, a program that runs as its owner or group does not
    /// run as the user who exports it instead.
    fn own_perm(&mut self, host: &Path, own: &Path, item: &Item<'_>) -> Result<u16> {
        let ids = item.perm & (SETUID | SETGID);
        if self.with_owners || ids == 0 {
            return Ok(item.perm);
        }
        let there = symlink_metadata(own)?;
        let mut drop = 0;
        if there.uid() != item.uid {
            drop |= ids & SETUID;
        }
        if there.gid() != item.gid {
            drop |= ids & SETGID;
        }
        if drop != 0 {
            self.leave_out(host, "setuid or setgid: only root gives files to their owners");
        }
        Ok(item.perm & !drop)
    }

    /// Sets the attributes of an item, without its lists.
    fn set_xattrs(&mut self, host: &Path, own: &Path, item: &Item<'_>) {
        for (name, value) in item.xattrs.iter().filter(|(name, _)| !acls::is_list(name)) {
            if let Err(e) = set_xattr(own, name, value) {
                let name = String::from_utf8_lossy(name);
                self.leave_out(host, &format!("attribute {name}: {e}"));
            }
        }
    }

    /// Sets an access list, and returns the mode to set with it: without a list that cannot be
    /// stored, the mode gives nobody more.
    fn set_access(&mut self, host: &Path, own: &Path, list: &[u8], perm: u16) -> u16 {
        match set_xattr(own, acl::ACCESS, list) {
            Ok(()) => perm,
            Err(e) => {
                self.leave_out(host, &format!("access control list: {e}"));
                acls::without(perm, list)
            }
        }
    }

    fn put_directory(&mut self, host: PathBuf, item: &Item<'_>) -> Result<()> {
        let access = acls::access(item);
        match rustix::fs::mkdir(&host, Mode::RWXU) {
            Ok(()) => {
                remove_xattr(&host, acl::ACCESS);
            }
            Err(Errno::EXIST) => {
                let there = symlink_metadata(&host)?;
                if !there.is_dir() {
                    return Err(Error::host("make", host, Errno::NOTDIR));
                }
                narrow(&host, &there, item.perm, access)?;
            }
            Err(e) => return Err(Error::host("make", host, e)),
        }
        // What is put into it is not to inherit a list; it gets its own at the end.
        remove_xattr(&host, acl::DEFAULT);
        self.set_owner(&host, &host, item)?;
        self.set_xattrs(&host, &host, item);
        self.deferred.push(Deferred {
            perm: item.perm,
            times: times(item),
            access: access.map(<[u8]>::to_vec),
            default: acls::default(item).map(<[u8]>::to_vec),
            host,
        });
        Ok(())
    }
}

/// Takes from a directory, until its content is there, the rights that its item does not give.
fn narrow(host: &Path, there: &Metadata, perm: u16, list: Option<&[u8]>) -> Result<()> {
    let mode = (there.mode() & 0o7777) as u16;
    let mut other = vec![0; 1 << 16];
    let other = match rustix::fs::lgetxattr(host, OsStr::from_bytes(acl::ACCESS), &mut other[..]) {
        Ok(len) => other.get(..len).filter(|other| Some(*other) != list),
        Err(_) => None,
    };
    let had = other.map_or(mode, |other| acls::without(mode, other));
    let keep = mode & 0o7000 | had & perm & 0o777;
    if keep != mode {
        set_perm(host, host, keep)?;
    }
    if other.is_some() {
        remove_xattr(host, acl::ACCESS);
    }
    Ok(())
}

fn symlink_metadata(host: &Path) -> Result<Metadata> {
    std::fs::symlink_metadata(host).map_err(|e| Error::host("stat", host, e))
}

fn set_perm(host: &Path, own: &Path, perm: u16) -> Result<()> {
    std::fs::set_permissions(own, Permissions::from_mode(u32::from(perm)))
        .map_err(|e| Error::host("set the mode of", host, e))
}

fn set_xattr(own: &Path, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(own, OsStr::from_bytes(name), value, XattrFlags::empty())
}

/// Removes a list that an item may have inherited; a file system without lists passes none on.
fn remove_xattr(own: &Path, name: &[u8]) {
    let _ = rustix::fs::lremovexattr(own, OsStr::from_bytes(name));
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
        match item.kind {
            ItemKind::Directory => self.put_directory(host, item),
            ItemKind::File { len_bytes } => self.put_file(&host, item, len_bytes, content),
            ItemKind::Symlink(target) => {
                let make = |own: &Path| rustix::fs::symlink(OsStr::from_bytes(target), own);
                self.make(&host, make, |sink, own, ()| sink.set_attributes(&host, own, item))
            }
            ItemKind::HardLink(first) => {
                let first = self.host(first)?;
                let id = |path: &Path| {
                    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
                };
                // Renaming one name of a file to another would change nothing.
                if id(&host).is_some_and(|there| Some(there) == id(&first)) {
                    return Ok(());
                }
                let make = |own: &Path| rustix::fs::link(&first, own);
                self.make(&host, make, |_, _, ()| Ok(()))
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
                let make =
                    |own: &Path| rustix::fs::mknodat(CWD, own, file_type, Mode::RUSR, device);
                let made =
                    self.make(&host, make, |sink, own, ()| sink.set_attributes(&host, own, item));
                match made {
                    Err(Error::Host { action: "make", source, .. })
                        if !self.with_owners
                            && source.kind() == std::io::ErrorKind::PermissionDenied =>
                    {
                        self.leave_out(&host, "only root makes device nodes");
                        Ok(())
                    }
                    other => other,
                }
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        let mut first = Ok(());
        for deferred in std::mem::take(&mut self.deferred).into_iter().rev() {
            let done = self.finish_directory(&deferred);
            first = first.and(done);
        }
        first
    }

    fn abandon(&mut self) {
        // The error that ended the transfer is the one to report.
        let _ = self.finish();
    }
}

impl HostSink {
    fn finish_directory(&mut self, deferred: &Deferred) -> Result<()> {
        let Deferred { host, perm, times, access, default } = deferred;
        let mut perm = *perm;
        if let Some(list) = access {
            perm = self.set_access(host, host, list, perm);
        }
        if let Some(list) = default
            && let Err(e) = set_xattr(host, acl::DEFAULT, list)
        {
            self.leave_out(host, &format!("default access control list: {e}"));
        }
        set_perm(host, host, perm)?;
        rustix::fs::utimensat(CWD, host, times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| Error::host("set the times of", host, e))
    }
}
