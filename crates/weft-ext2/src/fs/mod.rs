//! The file system: an [`Ext2`] is a [`FileSystem`] over a [`weft_patch::Engine`].
//!
//! # Where the line runs
//!
//! Here is what any format of the Unix shape needs: names and link counts, renames, open files
//! and inodes without names, reading and writing, attributes, and for each change the patches it
//! must follow. Where things lie on the disk is the other module's, `volume`: each of its
//! micro-operations makes one change, takes the patches the change must follow and returns the
//! patch it made. Another format of this shape writes those and takes this module as it is.
//!
//! # Locks
//!
//! A change takes an engine operation first and the state's lock second, and gives both back when
//! it is done; syncs and device reads of file data happen with neither. The counts of references
//! need only the state's lock.

mod attr;
mod data;
mod flags;
mod heal;
mod journal;
mod life;
mod names;
mod node;
mod open;
mod plug;
mod readdir;
mod rename;
mod space;
mod sync;
mod trim;
mod unnamed;
mod xattr;

pub(crate) use node::{Node, State};
pub use open::{Atime, OpenOptions};

use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weft_block::BlockDevice;
use weft_patch::{Engine, Op, Policy};
use weft_vfs::{Error as FsError, Ino};

#[cfg(doc)]
use weft_vfs::FileSystem;

/// Below this many blocks or inodes that can be taken at once, freed ones are waited for.
const TIGHT_BLOCKS: u64 = 64;
const TIGHT_INODES: u64 = 4;

/// A mounted ext2 or ext3 volume.
pub struct Ext2 {
    engine: Arc<Engine>,
    device: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    block_bytes: u32,
    max_file_bytes: u64,
    read_only: AtomicBool,
    /// Space is short and some was freed or is about to be: [`make_room`](Self::make_room) would help.
    tight: AtomicBool,
    /// Held for reading by every thread that deletes inodes without names.
    deletions: RwLock<()>,
    /// Many access times wait to be written.
    lazy_crowded: AtomicBool,
    atime: Atime,
    healing: heal::Healing,
    /// Held while free space is out of use to be discarded.
    trimming: Mutex<()>,
}

impl fmt::Debug for Ext2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ext2")
            .field("engine", &self.engine)
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

/// An inode number of this format.
fn plain(ino: Ino) -> Result<u32> {
    u32::try_from(ino.0).map_err(|_| FsError::Stale(ino.0).into())
}

impl Ext2 {
    /// The engine under the volume: counters, policy.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether changes are refused: asked for, forced by features, or since damage was found.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// What was found to be damaged since the volume was opened, if anything was.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.lock().vol.damage.clone()
    }

    fn policy(&self) -> Policy {
        self.engine.policy()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the state as it was between two micro-operations, each of
        // which is a whole change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` with an operation that changes nothing.
    fn look<R>(&self, f: impl FnOnce(&mut State, &mut Op<'_>) -> Result<R>) -> Result<R> {
        let mut op = self.engine.begin(0)?;
        let mut st = self.lock();
        f(&mut st, &mut op)
    }

    /// Runs `f` as one operation of at most `max_blocks` changed blocks, then ends the lives it
    /// has ended.
    fn change<R>(
        &self,
        max_blocks: u32,
        f: impl FnOnce(&mut State, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        let result = self.change_inner(max_blocks, f);
        self.reap();
        result
    }

    fn change_inner<R>(
        &self,
        max_blocks: u32,
        f: impl FnOnce(&mut State, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        if self.tight.load(Ordering::Relaxed) {
            self.make_room()?;
        }
        self.change_without_room(max_blocks, f)
    }

    /// [`change_inner`](Self::change_inner) for changes that allocate nothing: does not wait for freed
    /// space.
    fn change_without_room<R>(
        &self,
        max_blocks: u32,
        f: impl FnOnce(&mut State, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        let (mut op, mut st) = loop {
            let op = self.engine.begin(max_blocks)?;
            let st = self.lock();
            if !st.vol.is_held_up() {
                break (op, st);
            }
            drop(st);
            drop(op);
            self.wait_for_trim();
        };
        let result = f(&mut st, &mut op);
        let finished = st.vol.finish(&mut op);
        let tight = (st.vol.has_pending() || !st.nameless.is_empty())
            && (st.vol.blocks_at_once() < TIGHT_BLOCKS || st.vol.inodes_at_once() < TIGHT_INODES);
        self.tight.store(tight, Ordering::Relaxed);
        if let Err(e @ Error::Corrupt { .. }) = &result {
            self.found_damage(&mut st, e);
        }
        finished?;
        result
    }

    /// A change ran into damage: no further ones, lest it spreads.
    fn found_damage(&self, st: &mut State, error: &Error) {
        st.vol.note_damage(error.to_string());
        if !self.read_only.swap(true, Ordering::Relaxed) {
            tracing::error!("the volume is damaged and now read-only: {error}");
        }
    }

    /// Makes the space of removed files, and freed space, available. Returns whether there was any.
    fn make_room(&self) -> Result<bool> {
        let deleted = self.finish_deletions();
        Ok(self.settle_pending()? || deleted)
    }

    /// Makes freed space available: what freed it becomes durable. Says whether there was any.
    fn settle_pending(&self) -> Result<bool> {
        if !self.lock().vol.has_pending() {
            return Ok(false);
        }
        self.engine.sync()?;
        self.look(|st, op| {
            st.vol.drain_all(op);
            Ok(())
        })?;
        Ok(true)
    }
}
