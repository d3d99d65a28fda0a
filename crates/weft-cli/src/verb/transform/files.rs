//! The files that networks are attached to, wherever they are: each is controlled by extended
//! attributes, those of a mount by system calls, the others in this process.

use super::networks;
use crate::cli::transform::Keys;
use crate::failure::Failure;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft::transform::{EXPLAIN_ATTRIBUTE, Explanation, TransformFs};
use weft::vfs::{Caller, Error as Fault, FileSystem, Walker, XattrSet};
use weft::{HOST_DIRECTORY, Options, Stack, Tree};

/// A file, and the way to access it.
pub struct Target {
    /// The name that the user gave.
    pub shown: String,
    place: Place,
}

enum Place {
    /// On a mount that serves networks.
    Mounted(PathBuf),
    /// In a tree opened for it.
    Opened { fs: Arc<TransformFs>, path: Vec<u8>, _open: Open },
}

/// The objects that must stay open while the tree is used.
enum Open {
    Volume(#[expect(dead_code, reason = "held")] Stack),
    Directory(#[expect(dead_code, reason = "held")] Tree),
}

/// An attribute's value, or the error of the system call.
type Answer<T> = Result<T, Fault>;

fn on_host(e: rustix::io::Errno) -> Fault {
    let errno = e.raw_os_error();
    Fault::Io { errno, message: std::io::Error::from_raw_os_error(errno).to_string() }
}

impl Target {
    /// Finds a file. `write`: the file is going to be changed.
    pub fn find(name: &OsStr, keys: &Keys, write: bool) -> Result<Self, Failure> {
        let shown = name.to_string_lossy().into_owned();
        let path = Path::new(name);
        if path.exists() || !weft::volume::looks_like_one(name) {
            if get(path, EXPLAIN_ATTRIBUTE).is_ok() {
                return Ok(Self { shown, place: Place::Mounted(path.into()) });
            }
            return Self::in_directory(shown, path, keys);
        }
        let volume = super::super::volume_path(name)?;
        let options = if write { Options::default() } else { Options::read_only() };
        let stack = Stack::open(&volume.image, &options)?;
        let fs = networks(keys).over(stack.share(), false)?;
        let place = Place::Opened { fs, path: volume.path, _open: Open::Volume(stack) };
        Ok(Self { shown, place })
    }

    fn in_directory(shown: String, path: &Path, keys: &Keys) -> Result<Self, Failure> {
        let no_name = || Failure::usage(format!("'{shown}' names no file"));
        let name = path.file_name().ok_or_else(no_name)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let source = format!("{HOST_DIRECTORY}{}", parent.display());
        let tree = Tree::host_directory(&source).ok_or_else(no_name)??;
        let fs = networks(keys).over(tree.share(), true)?;
        let path = name.as_bytes().to_vec();
        Ok(Self { shown, place: Place::Opened { fs, path, _open: Open::Directory(tree) } })
    }

    /// The value of an attribute.
    pub fn get(&self, name: &[u8]) -> Answer<Vec<u8>> {
        match &self.place {
            Place::Mounted(path) => get(path, name),
            Place::Opened { fs, path, .. } => {
                fs.getxattr(Walker::new(&**fs).resolve(path)?.ino(), name)
            }
        }
    }

    /// Sets an attribute; its effect is durable when this returns.
    pub fn set(&self, name: &[u8], value: &[u8]) -> Answer<()> {
        match &self.place {
            Place::Mounted(path) => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(path, name, value, flags).map_err(on_host)
            }
            Place::Opened { fs, path, .. } => {
                let node = Walker::new(&**fs).resolve(path)?;
                fs.setxattr(&Caller::ROOT, node.ino(), name, value, XattrSet::Any)?;
                fs.fsync(&Caller::ROOT, node.ino(), false)
            }
        }
    }

    /// Reads the explanation of the file.
    pub fn explain(&self) -> Result<Explanation, Failure> {
        let json = self.get(EXPLAIN_ATTRIBUTE).map_err(|e| self.failed(&e))?;
        serde_json::from_slice(&json)
            .map_err(|e| Failure::new(format!("{}: an unknown answer: {e}", self.shown)))
    }

    /// Makes the failure of a call on the file.
    pub fn failed(&self, e: &Fault) -> Failure {
        const EPERM: i32 = 1;
        const EBUSY: i32 = 16;
        let mut why = e.to_string();
        if e.errno() == EBUSY && matches!(self.place, Place::Mounted(_)) {
            // The mount returns only the number.
            why += "; a program has the file open with pushed stages, or with passthrough: wait until \
                    it is closed, or mount with -o nopassthrough";
        }
        if e.errno() == EPERM && matches!(self.place, Place::Mounted(_)) {
            why += "; if a rule of the mount matches the file (weft transform explain), that rule \
                    decides, unless the mount has --transform-trust tree";
        }
        Failure::new(format!("{}: {why}", self.shown))
    }

    /// Closes the file's tree, if one was opened for it.
    pub fn close(self) -> Result<(), Failure> {
        match self.place {
            Place::Mounted(_) => Ok(()),
            Place::Opened { fs, .. } => {
                fs.unmount().map_err(|e| Failure::new(format!("{}: {e}", self.shown)))
            }
        }
    }
}

fn get(path: &Path, name: &[u8]) -> Answer<Vec<u8>> {
    loop {
        let len = rustix::fs::getxattr_query(path, name).map_err(on_host)?;
        let mut value = vec![0; len];
        match rustix::fs::getxattr(path, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(rustix::io::Errno::RANGE) => {}
            Err(e) => return Err(on_host(e)),
        }
    }
}
