//! The calls of the file plug as a list, for code that treats all of them alike: [`Layer`], which
//! forwards them, and the test that they are forwarded.
//!
//! The list repeats the signatures of [`FileSystem`], whose documentation stays where a reader
//! looks for it. A test compares the two.
//!
//! [`FileSystem`]: crate::FileSystem
//! [`Layer`]: crate::Layer

/// Expands to `$make! { ... }` with the signature of every method of
/// [`FileSystem`](crate::FileSystem), in its order.
macro_rules! with_calls {
    ($make:ident) => {
        $make! {
            fn root(&self) -> Ino;
            fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry>;
            fn getattr(&self, ino: Ino) -> Result<Attr>;
            fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;
            fn readdir(
                &self, ino: Ino, cursor: DirCursor, each: &mut dyn FnMut(DirEntry<'_>) -> bool
            ) -> Result<()>;
            fn sync(&self) -> Result<()>;
            fn without_waiting(&self, call: &mut dyn FnMut()) -> bool;
            fn forget(&self, ino: Ino, count: u64) -> ();
            fn forget_many(&self, references: &[(Ino, u64)]) -> ();
            fn readdir_plus(
                &self, ino: Ino, cursor: DirCursor,
                each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool
            ) -> Result<()>;
            fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
            fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64>;
            fn statfs(&self) -> Result<StatFs>;
            fn time_unit_nanos(&self) -> u32;
            fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;
            fn mknod(
                &self, caller: &Caller, parent: Ino, name: &[u8], kind: FileKind, perm: u16,
                rdev: u32
            ) -> Result<Entry>;
            fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
            fn symlink(
                &self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]
            ) -> Result<Entry>;
            fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry>;
            fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
            fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
            fn rename(
                &self, caller: &Caller, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8],
                flags: RenameFlags
            ) -> Result<()>;
            fn has_whiteouts(&self) -> bool;
            fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry>;
            fn restore_name(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<()>;
            fn is_stateful(&self) -> bool;
            fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened>;
            fn create(
                &self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, flags: OpenFlags
            ) -> Result<(Entry, Opened)>;
            fn flush(&self, ino: Ino, handle: Handle) -> Result<()>;
            fn release(&self, ino: Ino, handle: Handle) -> Result<()>;
            fn backing(&self, ino: Ino, handle: Handle) -> Option<Arc<OwnedFd>>;
            fn attr_lifetime(&self, ino: Ino) -> Option<Duration>;
            fn name_lifetime(&self, ino: Ino) -> Option<Duration>;
            fn write(&self, caller: &Caller, ino: Ino, handle: Handle, offset: u64, data: &[u8]) -> Result<usize>;
            fn write_cached(
                &self, caller: &Caller, ino: Ino, handle: Handle, offset: u64, data: &[u8]
            ) -> Result<usize>;
            fn fallocate(
                &self, caller: &Caller, ino: Ino, mode: FallocateMode, offset: u64, len_bytes: u64
            ) -> Result<()>;
            fn copy_range(
                &self, caller: &Caller, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len_bytes: u64
            ) -> Result<u64>;
            fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
            fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
            fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrSet) -> Result<()>;
            fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;
            fn has_acls(&self) -> bool;
            fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool;
            fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool;
            fn file_flags(&self, ino: Ino) -> Result<FileFlags>;
            fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()>;
            fn command(
                &self, caller: &Caller, ino: Ino, handle: Handle, request: u32, data: &[u8]
            ) -> Result<CommandAnswer>;
            fn has_locks(&self) -> bool;
            fn lock(
                &self, ino: Ino, handle: Handle, lock: &FileLock, wait: Option<&Interrupt>
            ) -> Result<()>;
            fn unlock(
                &self, ino: Ino, handle: Handle, style: LockStyle, owner: u64, first: u64, last: u64
            ) -> ();
            fn find_lock(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>>;
            fn set_invalidate(&self, sink: Arc<dyn Invalidate>) -> ();
            fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()>;
            fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()>;
            fn trim(&self, range: &TrimRange) -> Result<u64>;
            fn unmount(&self) -> Result<()>;
        }
    };
}

pub(crate) use with_calls;
