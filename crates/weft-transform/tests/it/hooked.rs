//! A file system in memory that does something else first when it is asked: what others do at that
//! very moment.

use std::sync::{Arc, Mutex, PoisonError};

use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, FileKind, FileSystem, Handle, Ino, MemFs, OpenFlags,
    Opened, RenameFlags, Result, SetAttr, StatFs, XattrSet,
};

/// What is done before each call of the kind, with the inode that it is about.
type Hook = Arc<dyn Fn(&MemFs, Ino) + Send + Sync>;

#[derive(Default)]
pub struct Hooked {
    pub fs: MemFs,
    getattr: Mutex<Option<Hook>>,
    read: Mutex<Option<Hook>>,
}

impl Hooked {
    /// From now on `hook` runs before each call of `getattr`.
    pub fn before_getattr(&self, hook: impl Fn(&MemFs, Ino) + Send + Sync + 'static) {
        let mut there = self.getattr.lock().unwrap_or_else(PoisonError::into_inner);
        *there = Some(Arc::new(hook));
    }

    /// From now on `hook` runs before each call of `read`.
    pub fn before_read(&self, hook: impl Fn(&MemFs, Ino) + Send + Sync + 'static) {
        let mut there = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        *there = Some(Arc::new(hook));
    }
}

/// Passes calls on unchanged.
macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
            self.fs.$name($($argument),*)
        })*
    };
}

impl FileSystem for Hooked {
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let hook = self.getattr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hook.inspect(|hook| hook(&self.fs, ino));
        self.fs.getattr(ino)
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let hook = self.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hook.inspect(|hook| hook(&self.fs, ino));
        self.fs.read(ino, handle, offset, buf)
    }

    pass_on! {
        fn root(&self) -> Ino;
        fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn forget(&self, ino: Ino, count: u64);
        fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;
        fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
        fn mknod(
            &self, caller: &Caller, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32
        ) -> Result<Entry>;
        fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
        fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], to: &[u8]) -> Result<Entry>;
        fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry>;
        fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;
        fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;
        fn rename(
            &self, parent: Ino, name: &[u8], to: Ino, new_name: &[u8], flags: RenameFlags
        ) -> Result<()>;
        fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened>;
        fn create(
            &self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, flags: OpenFlags
        ) -> Result<(Entry, Opened)>;
        fn release(&self, ino: Ino, handle: Handle) -> Result<()>;
        fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize>;
        fn fsync(&self, ino: Ino, data_only: bool) -> Result<()>;
        fn fsync_dir(&self, ino: Ino) -> Result<()>;
        fn sync(&self) -> Result<()>;
        fn readdir(
            &self, ino: Ino, cursor: DirCursor, each: &mut dyn FnMut(DirEntry<'_>) -> bool
        ) -> Result<()>;
        fn readdir_plus(
            &self, ino: Ino, cursor: DirCursor, each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool
        ) -> Result<()>;
        fn statfs(&self) -> Result<StatFs>;
        fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
        fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()>;
        fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;
    }
}
