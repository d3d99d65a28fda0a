//! The bench of a case: a fresh file system, the caller of all operations, and the check of a refusal.

use std::sync::Arc;

use super::limits::Limits;
use crate::{Caller, FileSystem, Ino, Node};

/// The context of a case: a fresh file system.
pub(super) struct Bench<'a> {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) limits: &'a Limits,
    pub(super) make: &'a dyn Fn() -> Arc<dyn FileSystem>,
}

impl Bench<'_> {
    pub(super) fn root(&self) -> Node<'_> {
        Node::root(&*self.fs).expect("root attributes")
    }

    /// Returns the current link count of an inode.
    pub(super) fn nlink(&self, ino: Ino) -> u32 {
        self.fs.getattr(ino).expect("attributes").nlink
    }

    /// Asserts the link count of a directory, where the format maintains it.
    #[track_caller]
    pub(super) fn assert_directory_links(&self, dir: &Node<'_>, want: u32) {
        if self.limits.counts_subdirectories {
            assert_eq!(self.nlink(dir.ino()), want, "links of a directory");
        }
    }
}

/// Asserts that a call was refused with this error.
macro_rules! refused {
    ($call:expr, $($error:ident $(($any:tt))?)|+) => {
        match $call {
            Err($(crate::Error::$error $(($any))?)|+) => {}
            Err(other) => panic!(
                "{}:{}: {} failed with \"{other}\" in place of {}",
                file!(), line!(), stringify!($call), stringify!($($error)|+),
            ),
            Ok(_) => panic!(
                "{}:{}: {} succeeded, expected {}",
                file!(), line!(), stringify!($call), stringify!($($error)|+),
            ),
        }
    };
}
pub(super) use refused;

/// The caller of all operations.
pub(super) fn caller() -> Caller {
    Caller { uid: 1000, gid: 1000, ..Caller::ROOT }
}
