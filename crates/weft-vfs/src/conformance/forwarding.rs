//! A test of stacked file systems: it finds the calls that do not reach the file system below, or
//! reach it on behalf of another caller.
//!
//! ```
//! use std::sync::Arc;
//! use weft_vfs::conformance::forwarding::{Recorder, not_forwarded};
//! use weft_vfs::{FileSystem, Layer, MemFs};
//!
//! struct Unchanged(Arc<Recorder>);
//! impl Layer for Unchanged {
//!     fn below(&self) -> &dyn FileSystem {
//!         &*self.0
//!     }
//! }
//!
//! let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
//! assert_eq!(not_forwarded(&Unchanged(Arc::clone(&below)), &below), ["without_waiting"]);
//! ```

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::calls::with_calls;
use crate::mutex::locked;
use crate::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, FallocateMode, FileFlags, FileKind,
    FileLock, FileSystem, Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags, Opened,
    RenameFlags, Result, SeekFrom, SetAttr, StatFs, TrimRange, XattrSet,
};

/// A call: the name of the method, and the caller, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The name of the method.
    pub name: &'static str,
    /// The caller.
    pub caller: Option<Caller>,
}

/// A file system that records every call and passes it to another.
pub struct Recorder {
    below: Arc<dyn FileSystem>,
    calls: Mutex<Vec<Call>>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Records the calls to `below`.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>) -> Self {
        Self { below, calls: Mutex::default() }
    }

    /// Returns the calls since the last call of this method.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut locked(&self.calls))
    }

    fn record(&self, name: &'static str, caller: Option<Caller>) {
        let call = Call { name, caller };
        locked(&self.calls).push(call);
    }
}

/// An argument of a call. For a `&Caller`, `caller` is the method below, as a method of the type
/// itself goes before one of a trait; for any other argument it is that of [`NoCaller`].
struct Argument<T>(T);

impl Argument<&&Caller> {
    fn caller(&self) -> Option<Caller> {
        Some((**self.0).clone())
    }
}

trait NoCaller {
    fn caller(&self) -> Option<Caller> {
        None
    }
}

impl<T> NoCaller for Argument<T> {}

macro_rules! record_calls {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        #[deny(clippy::missing_trait_methods, reason = "a default would record another call")]
        impl FileSystem for Recorder {
            $(fn $name(&self $(, $arg: $type)*) -> $out {
                let callers: &[Option<Caller>] = &[$(Argument(&$arg).caller()),*];
                self.record(stringify!($name), callers.iter().flatten().next().cloned());
                self.below.$name($($arg),*)
            })*
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

with_calls!(record_calls);

/// Makes every call of the plug to `above` and returns the names of those that did not reach
/// `below` under their own name and on behalf of their caller, in the order of [`FileSystem`].
/// Ignores the results of the calls.
/// The file system must not be used afterwards: the last call is [`unmount`](FileSystem::unmount).
///
/// The calls name a regular file, an open handle of it, a directory and a symbolic link, all made
/// by calls to `above` in its root.
///
/// # Panics
/// If `above` cannot make these.
#[must_use]
pub fn not_forwarded(above: &dyn FileSystem, below: &Recorder) -> Vec<&'static str> {
    let inodes = Inodes::make(above).unwrap_or_else(|e| panic!("making a file to call: {e}"));
    let mut missing = Vec::new();
    for (name, call) in CALLS {
        drop(below.take_calls());
        call(above, &inodes);
        let is_it = |below: &Call| {
            below.name == *name && below.caller.as_ref().is_none_or(|caller| *caller == CALLER)
        };
        if !below.take_calls().iter().any(is_it) {
            missing.push(*name);
        }
    }
    missing
}

/// The inodes and the handle that the calls name.
struct Inodes {
    root: Ino,
    file: Ino,
    handle: Handle,
    dir: Ino,
    symlink: Ino,
}

impl Inodes {
    fn make(fs: &dyn FileSystem) -> Result<Self> {
        let (root, caller) = (fs.root(), Caller::ROOT);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (file, opened) = fs.create(&caller, root, b"file", 0o644, flags)?;
        fs.write(&Caller::ROOT, file.attr.ino, opened.handle, 0, b"some content")?;
        fs.mknod(&caller, root, b"to remove", FileKind::Regular, 0o644, 0)?;
        fs.mkdir(&caller, root, b"dir to remove", 0o755)?;
        Ok(Self {
            root,
            file: file.attr.ino,
            handle: opened.handle,
            dir: fs.mkdir(&caller, root, b"dir", 0o755)?.attr.ino,
            symlink: fs.symlink(&caller, root, b"symlink", b"file")?.attr.ino,
        })
    }
}

struct NoSink;

impl Invalidate for NoSink {
    fn inode(&self, _: Ino, _: bool) {}
    fn entry(&self, _: Ino, _: &[u8]) {}
}

const LOCK: FileLock =
    FileLock { style: LockStyle::Posix, owner: 1, exclusive: true, first: 0, last: 9, pid: 1 };
/// Whom the calls are for. Without a process, which would be asked for its groups.
const CALLER: Caller =
    Caller { uid: 1000, gid: 1001, groups: Vec::new(), pid: 0, umask: 0o022, handle: Handle::NONE };
const XATTR: &[u8] = b"user.weft";
const TRIM: TrimRange = TrimRange { start: 0, len_bytes: u64::MAX, min_len_bytes: 0 };
const SETATTR: SetAttr = SetAttr {
    perm: Some(0o600),
    uid: None,
    gid: None,
    size_bytes: None,
    atime: None,
    mtime: None,
    ctime: None,
    kill_privileges: false,
};

macro_rules! calls {
    ($($name:ident($fs:ident, $on:ident) $call:block)*) => {
        /// Each call of the plug once, the last one `unmount`.
        const CALLS: &[(&str, fn(&dyn FileSystem, &Inodes))] = &[$(
            (stringify!($name), |$fs, $on| {
                let _ = $on;
                let _ = $call;
            })
        ),*];
    };
}

calls! {
    root(fs, on) { fs.root() }
    lookup(fs, on) { fs.lookup(on.root, b"file") }
    getattr(fs, on) { fs.getattr(on.file) }
    read(fs, on) { fs.read(on.file, on.handle, 0, &mut [0; 4]) }
    readdir(fs, on) { fs.readdir(on.dir, DirCursor::START, &mut |_| false) }
    sync(fs, on) { fs.sync() }
    without_waiting(fs, on) { fs.without_waiting(&mut || {}) }
    forget(fs, on) { fs.lookup(on.root, b"file").map(|e| fs.forget(e.attr.ino, 1)) }
    forget_many(fs, on) { fs.lookup(on.root, b"file").map(|e| fs.forget_many(&[(e.attr.ino, 1)])) }
    readdir_plus(fs, on) { fs.readdir_plus(on.dir, DirCursor::START, &mut |_, _| false) }
    readlink(fs, on) { fs.readlink(on.symlink) }
    seek(fs, on) { fs.seek(on.file, SeekFrom::Data(0)) }
    statfs(fs, on) { fs.statfs() }
    time_unit_nanos(fs, on) { fs.time_unit_nanos() }
    setattr(fs, on) { fs.setattr(&CALLER, on.file, &SETATTR) }
    mknod(fs, on) { fs.mknod(&CALLER, on.root, b"node", FileKind::Regular, 0o644, 0) }
    mkdir(fs, on) { fs.mkdir(&CALLER, on.root, b"made", 0o755) }
    symlink(fs, on) { fs.symlink(&CALLER, on.root, b"to file", b"file") }
    link(fs, on) { fs.link(&CALLER, on.file, on.root, b"other name") }
    unlink(fs, on) { fs.unlink(&CALLER, on.root, b"to remove") }
    rmdir(fs, on) { fs.rmdir(&CALLER, on.root, b"dir to remove") }
    rename(fs, on) { fs.rename(&CALLER, on.root, b"node", on.root, b"renamed", RenameFlags::empty()) }
    has_whiteouts(fs, on) { fs.has_whiteouts() }
    create_unnamed(fs, on) { fs.create_unnamed(&CALLER, on.root, 0o644) }
    restore_name(fs, on) { fs.restore_name(&CALLER, on.file, on.root, b"restored") }
    is_stateful(fs, on) { fs.is_stateful() }
    open(fs, on) { fs.open(&CALLER, on.file, OpenFlags::READ) }
    create(fs, on) {
        fs.create(&CALLER, on.root, b"created", 0o644, OpenFlags::WRITE)
    }
    flush(fs, on) { fs.flush(on.file, on.handle) }
    release(fs, on) { fs.open(&CALLER, on.file, OpenFlags::READ).map(|o| fs.release(on.file, o.handle)) }
    backing(fs, on) { fs.backing(on.file, on.handle) }
    attr_lifetime(fs, on) { fs.attr_lifetime(on.file) }
    name_lifetime(fs, on) { fs.name_lifetime(on.file) }
    write(fs, on) { fs.write(&CALLER, on.file, on.handle, 0, b"data") }
    write_cached(fs, on) { fs.write_cached(&CALLER, on.file, on.handle, 0, b"data") }
    fallocate(fs, on) {
        fs.fallocate(&CALLER, on.file, FallocateMode::Allocate { keep_size: false }, 0, 8)
    }
    copy_range(fs, on) { fs.copy_range(&CALLER, on.file, 0, on.file, 4, 4) }
    getxattr(fs, on) { fs.getxattr(on.file, XATTR) }
    listxattr(fs, on) { fs.listxattr(on.file) }
    setxattr(fs, on) { fs.setxattr(&CALLER, on.file, XATTR, b"value", XattrSet::Any) }
    removexattr(fs, on) { fs.removexattr(&CALLER, on.file, XATTR) }
    has_acls(fs, on) { fs.has_acls() }
    is_for_owner(fs, on) { fs.is_for_owner(0, on.file, XATTR, None) }
    is_owners_to_set(fs, on) { fs.is_owners_to_set(on.file, XATTR) }
    file_flags(fs, on) { fs.file_flags(on.file) }
    set_file_flags(fs, on) { fs.set_file_flags(&CALLER, on.file, FileFlags::NODUMP) }
    command(fs, on) { fs.command(&CALLER, on.file, on.handle, 0, b"") }
    has_locks(fs, on) { fs.has_locks() }
    lock(fs, on) { fs.lock(on.file, on.handle, &LOCK, None) }
    unlock(fs, on) { fs.unlock(on.file, on.handle, LockStyle::Posix, 1, 0, 9) }
    find_lock(fs, on) { fs.find_lock(on.file, &LOCK) }
    set_invalidate(fs, on) { fs.set_invalidate(Arc::new(NoSink)) }
    fsync(fs, on) { fs.fsync(&CALLER, on.file, false) }
    fsync_dir(fs, on) { fs.fsync_dir(&CALLER, on.dir) }
    trim(fs, on) { fs.trim(&TRIM) }
    unmount(fs, on) { fs.unmount() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods of the trait, from its source.
    fn methods() -> Vec<&'static str> {
        let source = include_str!("../fs.rs");
        let (_, body) = source.split_once("pub trait FileSystem").expect("the trait");
        let (body, _) = body.split_once("\n}").expect("its end");
        let name = |line: &'static str| line.strip_prefix("    fn ")?.split('(').next();
        body.lines().filter_map(name).collect()
    }

    #[test]
    fn the_lists_of_calls_are_those_of_the_trait() {
        let methods = methods();
        assert!(methods.len() > 40, "the trait is where this test looks: {methods:?}");
        assert_eq!(NAMES, methods, "src/calls.rs");
        let called: Vec<&str> = CALLS.iter().map(|(name, _)| *name).collect();
        assert_eq!(called, methods, "the calls of not_forwarded");
    }
}
