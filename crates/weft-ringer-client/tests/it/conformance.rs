//! The suite that every file system goes through, on a client of a real server.

use std::sync::Arc;
use std::time::Duration;

use weft_ringer::CELL_MOUNT_XATTR;
use weft_ringer_client::CellTree;
use weft_vfs::conformance::{self, Limits};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, FallocateMode, FileKind, FileSystem, Handle, Ino,
    OpenFlags, Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, XattrSet,
};

use super::cells::cell_mount_to;
use super::{Cell, encrypt};

/// A client and the cell that it is of.
struct Alone {
    fs: Box<dyn FileSystem>,
    root: Ino,
    _cells: Vec<Cell>,
}

impl Alone {
    fn new(is_encrypted: bool) -> Self {
        let cell = Cell::new(Duration::from_secs(15));
        let fs = Box::new(cell.join("a"));
        if is_encrypted {
            encrypt(&fs, fs.root());
        }
        Self { root: fs.root(), fs, _cells: vec![cell] }
    }

    /// The inner cell as a client of the outer one sees it in a cell mount.
    fn in_a_cell_mount() -> Self {
        let (outer, inner) =
            (Cell::new(Duration::from_secs(15)), Cell::new(Duration::from_secs(15)));
        let fs = Box::new(CellTree::join(outer.options("a")).expect("it joins"));
        let dir = fs.mkdir(&Caller::ROOT, fs.root(), b"in", 0o755).expect("a directory");
        let cell_mount = cell_mount_to(&inner);
        fs.setxattr(
            &Caller::ROOT,
            dir.attr.ino,
            CELL_MOUNT_XATTR,
            cell_mount.as_bytes(),
            XattrSet::Any,
        )
        .expect("a cell mount");
        let root = fs.lookup(fs.root(), b"in").expect("the root inside").attr.ino;
        assert_ne!(root, dir.attr.ino);
        Self { fs, root, _cells: vec![outer, inner] }
    }
}

#[rustfmt::skip]
impl FileSystem for Alone {
    fn root(&self) -> Ino { self.root }
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        // The suite sees nothing above its root.
        self.fs.lookup(parent, if parent == self.root && name == b".." { b"." } else { name })
    }
    fn forget(&self, ino: Ino, count: u64) { self.fs.forget(ino, count) }
    fn getattr(&self, ino: Ino) -> Result<Attr> { self.fs.getattr(ino) }
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> { self.fs.setattr(caller, ino, set) }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> { self.fs.readlink(ino) }
    fn mknod(&self, c: &Caller, p: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32) -> Result<Entry> {
        self.fs.mknod(c, p, name, kind, perm, rdev)
    }
    fn mkdir(&self, c: &Caller, p: Ino, name: &[u8], perm: u16) -> Result<Entry> { self.fs.mkdir(c, p, name, perm) }
    fn symlink(&self, c: &Caller, p: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.fs.symlink(c, p, name, target)
    }
    fn link(&self, caller: &Caller, ino: Ino, p: Ino, name: &[u8]) -> Result<Entry> { self.fs.link(caller, ino, p, name) }
    fn unlink(&self, caller: &Caller, p: Ino, name: &[u8]) -> Result<()> { self.fs.unlink(caller, p, name) }
    fn rmdir(&self, caller: &Caller, p: Ino, name: &[u8]) -> Result<()> { self.fs.rmdir(caller, p, name) }
    fn rename(&self, caller: &Caller, p: Ino, name: &[u8], q: Ino, new: &[u8], flags: RenameFlags) -> Result<()> {
        self.fs.rename(caller, p, name, q, new, flags)
    }
    fn is_stateful(&self) -> bool { self.fs.is_stateful() }
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> { self.fs.open(caller, ino, flags) }
    fn create(&self, c: &Caller, p: Ino, name: &[u8], perm: u16, flags: OpenFlags) -> Result<(Entry, Opened)> {
        self.fs.create(c, p, name, perm, flags)
    }
    fn release(&self, ino: Ino, handle: Handle) -> Result<()> { self.fs.release(ino, handle) }
    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(ino, handle, offset, buf)
    }
    fn write(&self, caller: &Caller, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(caller, ino, handle, offset, data)
    }
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> { self.fs.fsync(caller, ino, data_only) }
    fn sync(&self) -> Result<()> { self.fs.sync() }
    fn readdir(&self, ino: Ino, at: DirCursor, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.fs.readdir(ino, at, each)
    }
    fn readdir_plus(&self, ino: Ino, at: DirCursor, each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool) -> Result<()> {
        self.fs.readdir_plus(ino, at, each)
    }
    fn statfs(&self) -> Result<StatFs> { self.fs.statfs() }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> { self.fs.getxattr(ino, name) }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> { self.fs.listxattr(ino) }
    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        self.fs.setxattr(caller, ino, name, value, how)
    }
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> { self.fs.removexattr(caller, ino, name) }
    fn fallocate(&self, caller: &Caller, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.fs.fallocate(caller, ino, mode, offset, len)
    }
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> { self.fs.seek(ino, from) }
    fn unmount(&self) -> Result<()> { self.fs.unmount() }
}

fn limits() -> Limits {
    Limits {
        // 65,536 blocks of 64 KiB.
        file_bytes: 1 << 32,
        // Free space is that of the disk below, which others use too, and what is of no more use is
        // removed later; numbers are used once.
        counts_space: false,
        reuses_inodes: false,
        names_give_back_space: false,
        // There are holes, of the size of blocks and not of 4 KiB.
        holes: false,
        // Room on this disk cannot be kept for what is not written.
        allocate: false,
        random_runs: 3,
        random_operations: 300,
        ..Limits::default()
    }
}

#[test]
fn a_client_is_a_file_system() {
    conformance::run(|| Arc::new(Alone::new(false)), &limits());
}

#[test]
fn so_is_an_encrypted_directory() {
    conformance::run(|| Arc::new(Alone::new(true)), &limits());
}

#[test]
fn so_is_a_cell_in_a_cell() {
    // Files of an attached cell have no privileges on the machines that mount it.
    let limits = Limits { privileges: false, ..limits() };
    conformance::run(|| Arc::new(Alone::in_a_cell_mount()), &limits);
}
