//! A file system on top of another, which defines only the calls that it changes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::calls::with_calls;
use crate::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, FallocateMode, FileFlags, FileKind,
    FileLock, FileSystem, Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags, Opened,
    RenameFlags, Result, SeekFrom, SetAttr, StatFs, TrimRange, XattrSet,
};

/// What a layer does with a call that it does not define.
macro_rules! by_default {
    ($layer:ident, without_waiting, $call:ident) => {{
        let _ = $call;
        false
    }};
    ($layer:ident, $name:ident $(, $arg:ident)*) => {
        $layer.below().$name($($arg),*)
    };
}

macro_rules! define_layer {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        /// A file system on top of another: every call that it does not define goes to the file
        /// system below, unchanged. Every implementation of this trait is a [`FileSystem`].
        ///
        /// One call is not forwarded: [`without_waiting`](FileSystem::without_waiting) returns false.
        /// A layer whose own calls neither wait nor change anything before those below them defines
        /// it to forward it.
        ///
        /// The file system below keeps numbering inodes and handles. A file system that numbers
        /// them itself is no layer: the calls that it does not define would name other inodes
        /// below. It implements [`FileSystem`].
        ///
        /// Some calls are others in another form, and are forwarded by themselves. A layer that
        /// changes one of them changes those beside it:
        ///
        /// | call | its other forms |
        /// |---|---|
        /// | `lookup` | `readdir_plus`, and what returns an [`Entry`]: `mknod`, `create`, `link`, ... |
        /// | `getattr` | the same, and `setattr` |
        /// | `forget` | `forget_many` |
        /// | `readdir` | `readdir_plus` |
        /// | `mknod` | `create`, `create_unnamed` |
        /// | `open` | `create` |
        /// | `read` | `copy_range`, `backing` |
        /// | `write` | `write_cached`, `copy_range`, `fallocate`, `backing` |
        /// | `fsync` | `fsync_dir`, `sync` |
        /// | `sync` | `fsync`, `fsync_dir`, `unmount` |
        ///
        /// A module that imports this trait does without an import of [`FileSystem`]: the names of
        /// their methods are the same. (The methods of a `dyn FileSystem` need no import.)
        ///
        /// ```
        /// use weft_vfs::{Caller, Ino, Layer, MemFs, Result};
        ///
        /// /// Files that can be renamed and not removed.
        /// struct KeepAll(MemFs);
        ///
        /// impl Layer for KeepAll {
        ///     fn below(&self) -> &dyn weft_vfs::FileSystem {
        ///         &self.0
        ///     }
        ///
        ///     fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        ///         Err(weft_vfs::Error::NotPermitted)
        ///     }
        /// }
        ///
        /// let fs: &dyn weft_vfs::FileSystem = &KeepAll(MemFs::new());
        /// fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755)?;
        /// assert!(fs.unlink(&Caller::ROOT, fs.root(), b"dir").is_err());
        /// fs.rmdir(&Caller::ROOT, fs.root(), b"dir")?;
        /// # Ok::<(), weft_vfs::Error>(())
        /// ```
        pub trait Layer: Send + Sync {
            /// The file system that this one is on top of.
            fn below(&self) -> &dyn FileSystem;

            $(
                #[doc = concat!("[`FileSystem::", stringify!($name), "`]; see the trait for its default.")]
                fn $name(&self $(, $arg: $type)*) -> $out {
                    by_default!(self, $name $(, $arg)*)
                }
            )*
        }

        #[deny(clippy::missing_trait_methods, reason = "a default would not reach below")]
        impl<L: Layer> FileSystem for L {
            $(fn $name(&self $(, $arg: $type)*) -> $out {
                Layer::$name(self $(, $arg)*)
            })*
        }
    };
}

with_calls!(define_layer);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemFs;
    use crate::conformance::forwarding::{Recorder, not_forwarded};

    struct Unchanged(Arc<Recorder>);

    impl Layer for Unchanged {
        fn below(&self) -> &dyn FileSystem {
            &*self.0
        }
    }

    #[test]
    fn a_layer_forwards_every_call_but_one() {
        let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
        let own = not_forwarded(&Unchanged(Arc::clone(&below)), &below);
        assert_eq!(own, ["without_waiting"]);
    }

    /// Removes nothing.
    struct KeepAll(Arc<Recorder>);

    impl Layer for KeepAll {
        fn below(&self) -> &dyn FileSystem {
            &*self.0
        }

        fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
            Err(crate::Error::NotPermitted)
        }
    }

    #[test]
    fn a_call_that_a_layer_defines_is_its_own() {
        let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
        let own = not_forwarded(&KeepAll(Arc::clone(&below)), &below);
        assert_eq!(own, ["without_waiting", "unlink"]);
    }

    /// Removes names on its own account.
    struct Stranger(Arc<Recorder>);

    impl Layer for Stranger {
        fn below(&self) -> &dyn FileSystem {
            &*self.0
        }

        fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
            self.0.unlink(&Caller::ROOT, parent, name)
        }
    }

    #[test]
    fn a_call_for_another_caller_is_not_the_same() {
        let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
        let own = not_forwarded(&Stranger(Arc::clone(&below)), &below);
        assert_eq!(own, ["without_waiting", "unlink"]);
    }
}
