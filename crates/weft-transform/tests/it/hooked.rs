//! A file system in memory that does something else first when it is asked: what others do at that
//! very moment.

use std::sync::{Arc, Mutex, PoisonError};

use weft_vfs::{Attr, FileSystem, Handle, Ino, Layer, MemFs, Result};

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

impl Layer for Hooked {
    fn below(&self) -> &dyn FileSystem {
        &self.fs
    }

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
}
