//! A test of calls that must not wait: each call is tried with
//! [`FileSystem::without_waiting`] first, and made again if it would wait, as a mount does that serves
//! many callers by one thread. A file system that keeps its promise behaves as without that: it goes
//! through the whole suite like that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::calls::with_calls;
use crate::{
    Attr, Caller, CommandAnswer, DirCursor, DirEntry, Entry, Error, FallocateMode, FileFlags,
    FileKind, FileLock, FileSystem, Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags,
    Opened, RenameFlags, Result, SeekFrom, SetAttr, StatFs, TrimRange, XattrSet,
};

/// A file system each of whose calls is tried without waiting.
pub struct Tried {
    below: Arc<dyn FileSystem>,
    again: Arc<AtomicU64>,
}

impl std::fmt::Debug for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tried").field("again", &self.again).finish_non_exhaustive()
    }
}

/// What a call returns.
trait Outcome {
    fn would_wait(&self) -> bool {
        false
    }
}

impl<T> Outcome for Result<T> {
    fn would_wait(&self) -> bool {
        matches!(self, Err(Error::WouldBlock))
    }
}

impl<T> Outcome for Option<T> {}
impl Outcome for () {}
impl Outcome for bool {}
impl Outcome for u32 {}
impl Outcome for Ino {}

impl Tried {
    /// Tries each call of `below`, and counts in `again` those that would have waited.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>, again: Arc<AtomicU64>) -> Self {
        Self { below, again }
    }

    fn call<R: Outcome>(&self, mut call: impl FnMut() -> R) -> R {
        let mut tried = None;
        self.below.without_waiting(&mut || tried = Some(call()));
        match tried {
            Some(outcome) if !outcome.would_wait() => outcome,
            _ => {
                self.again.fetch_add(1, Ordering::Relaxed);
                call()
            }
        }
    }

    /// Lists by `list` from `cursor` on. What was listed before the rest would have waited stays.
    fn list<L>(
        &self,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, L) -> bool,
        list: impl Fn(DirCursor, &mut dyn FnMut(DirEntry<'_>, L) -> bool) -> Result<()>,
    ) -> Result<()> {
        let mut from = cursor;
        self.call(|| {
            list(from, &mut |entry, more| {
                let next = entry.next;
                let is_taken = each(entry, more);
                if is_taken {
                    from = next;
                }
                is_taken
            })
        })
    }
}

macro_rules! tried {
    ($fs:ident, without_waiting, $call:ident) => {
        $fs.below.without_waiting($call)
    };
    ($fs:ident, set_invalidate, $sink:ident) => {
        $fs.below.set_invalidate($sink)
    };
    // What ends something is not tried.
    ($fs:ident, forget, $ino:ident, $count:ident) => {
        $fs.below.forget($ino, $count)
    };
    ($fs:ident, forget_many, $references:ident) => {
        $fs.below.forget_many($references)
    };
    ($fs:ident, release, $ino:ident, $handle:ident) => {
        $fs.below.release($ino, $handle)
    };
    ($fs:ident, unmount) => {
        $fs.below.unmount()
    };
    ($fs:ident, readdir, $ino:ident, $cursor:ident, $each:ident) => {
        $fs.list($cursor, &mut |entry, ()| $each(entry), |from, each| {
            $fs.below.readdir($ino, from, &mut |entry| each(entry, ()))
        })
    };
    ($fs:ident, readdir_plus, $ino:ident, $cursor:ident, $each:ident) => {
        $fs.list($cursor, $each, |from, each| $fs.below.readdir_plus($ino, from, each))
    };
    ($fs:ident, $name:ident $(, $arg:ident)*) => {
        $fs.call(|| $fs.below.$name($($arg),*))
    };
}

macro_rules! try_calls {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        #[deny(clippy::missing_trait_methods, reason = "a default would not be tried")]
        impl FileSystem for Tried {
            $(fn $name(&self $(, $arg: $type)*) -> $out {
                tried!(self, $name $(, $arg)*)
            })*
        }
    };
}

with_calls!(try_calls);
