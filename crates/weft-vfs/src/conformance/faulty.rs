//! The suite's test of itself: file systems with one fault each, which it must find and name.

use std::sync::Arc;

use super::{Limits, run};
use crate::{
    Caller, DirCursor, DirEntry, Entry, FileSystem, Handle, Ino, Layer, MemFs, RenameFlags, Result,
    SetAttr, SetTime,
};

/// The faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A cursor is a position: it moves when names before it go.
    CursorsAreIndices,
    /// `readdir_plus` takes two references in place of one.
    ListingTakesTwo,
    /// Append handles write at the given offset.
    NoAppend,
    /// Renaming one name of an inode over another removes the first.
    SameInodeRenameUnlinks,
    /// Exchange succeeds without effect.
    ExchangeDoesNothing,
    /// Writing does not change mtime.
    WriteKeepsMtime,
    /// References are never released.
    ForgetsNothing,
    /// Every 16th write loses its last byte (found by the random comparison).
    LosesBytes,
}

struct Faulty {
    fs: MemFs,
    fault: Fault,
    writes: std::sync::atomic::AtomicU32,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Layer for Faulty {
    fn below(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn forget(&self, ino: Ino, count: u64) {
        if !self.has(Fault::ForgetsNothing) {
            self.fs.forget(ino, count);
        }
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        if !self.has(Fault::ForgetsNothing) {
            self.fs.forget_many(references);
        }
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let handle = if self.has(Fault::NoAppend) { Handle::NONE } else { handle };
        let before = self.fs.getattr(ino)?;
        let nth = self.writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let loses = self.has(Fault::LosesBytes) && nth % 16 == 15 && data.len() > 1;
        let kept = if loses { &data[..data.len() - 1] } else { data };
        let written = self.fs.write(caller, ino, handle, offset, kept)?;
        if self.has(Fault::WriteKeepsMtime) {
            let set = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
            self.fs.setattr(caller, ino, &set)?;
        }
        Ok(if loses { written + 1 } else { written })
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if self.has(Fault::ExchangeDoesNothing) && flags.contains(RenameFlags::EXCHANGE) {
            return Ok(());
        }
        if self.has(Fault::SameInodeRenameUnlinks) && (parent, name) != (new_parent, new_name) {
            let find = |parent, name| -> Result<Ino> {
                let entry = self.fs.lookup(parent, name)?;
                self.fs.forget(entry.attr.ino, 1);
                Ok(entry.attr.ino)
            };
            let (from, to) = (find(parent, name), find(new_parent, new_name));
            if from.is_ok_and(|from| to.is_ok_and(|to| from == to)) {
                return self.fs.unlink(caller, parent, name);
            }
        }
        self.fs.rename(caller, parent, name, new_parent, new_name, flags)
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if !self.has(Fault::CursorsAreIndices) {
            return self.fs.readdir(ino, cursor, each);
        }
        let mut index = 0;
        self.fs.readdir(ino, DirCursor::START, &mut |dirent| {
            index += 1;
            index <= cursor.0 || each(DirEntry { next: DirCursor(index), ..dirent })
        })
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut taken = Vec::new();
        self.fs.readdir_plus(ino, cursor, &mut |dirent, entry| {
            let more = each(dirent, entry);
            if more {
                taken.push(dirent.name.to_vec());
            }
            more
        })?;
        if self.has(Fault::ListingTakesTwo) {
            for name in taken {
                self.fs.lookup(ino, &name)?;
            }
        }
        Ok(())
    }
}

/// Returns the message of the suite for a file system with this fault; `None` if it passes.
fn verdict(fault: Fault, only: &str) -> Option<String> {
    let limits = Limits {
        only: Some(only.into()),
        names: 200,
        random_runs: 2,
        random_operations: 600,
        ..Limits::default()
    };
    let make = || -> Arc<dyn FileSystem> {
        Arc::new(Faulty { fs: MemFs::new(), fault, writes: 0.into() })
    };
    let result = std::panic::catch_unwind(|| run(make, &limits));
    result.err().map(|panic| super::panic_message(&*panic))
}

#[test]
fn faults_are_found_and_named() {
    for (fault, case) in [
        (Fault::CursorsAreIndices, "listing::removing_everything_in_batches"),
        (Fault::ListingTakesTwo, "listing::plus_takes_references"),
        (Fault::NoAppend, "content::append_handles"),
        (Fault::SameInodeRenameUnlinks, "renaming::two_names_of_one_inode"),
        (Fault::ExchangeDoesNothing, "renaming::exchange_files"),
        (Fault::WriteKeepsMtime, "times::of_content"),
        (Fault::ForgetsNothing, "unlinked::file_lives_while_referenced"),
        (Fault::LosesBytes, "random::agrees_with_the_model"),
    ] {
        assert_eq!(verdict(Fault::None, case), None, "{case} without a fault");
        let message = verdict(fault, case).unwrap_or_else(|| panic!("{fault:?} was not found"));
        assert!(message.contains(case), "{fault:?}: {message}");
    }
}
