//! The location of a cell in the tree: at the top of a mount, or at a mount point.
//!
//! A cell with two mount points is seen in two locations, by one client. Its inodes have other
//! numbers in each: a directory that the kernel knows has one location.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use weft_ringer::{CellId, CellMount, CellMountError};
use weft_vfs::{Attr, Error, FileKind, FileSystem, Ino, Result};

use super::nodes::hash;
use crate::fs::RingerFs;
use crate::mutex::locked;

/// The setuid and setgid bits.
const SET_ID: u16 = 0o6000;

/// A location.
#[derive(Debug)]
pub(super) struct Place {
    /// Distinguishes its inodes from those of other locations: 0 is the outermost.
    pub(super) key: u64,
    /// `None` for the outermost.
    pub(super) above: Option<Above>,
    /// The client of the cell, once a process has entered.
    pub(super) fs: OnceLock<Arc<RingerFs>>,
    /// The attributes of its root that were last returned to the front end.
    shown: Mutex<Option<Attr>>,
    /// Whether an entry was checked with the attributes of the cell itself.
    is_entered: AtomicBool,
}

/// The mount point of a location.
#[derive(Debug)]
pub(super) struct Above {
    /// The location of the directory; referred to for as long as this exists.
    pub(super) place: Arc<Place>,
    fs: Arc<RingerFs>,
    pub(super) dir: Ino,
    /// Its content at the last lookup.
    pub(super) cell_mount: Mutex<Result<CellMount, CellMountError>>,
    /// The number, for the front end, of the directory that it was found in.
    pub(super) holder: AtomicU64,
}

impl Drop for Above {
    fn drop(&mut self) {
        self.fs.forget(self.dir, 1);
    }
}

/// The cell number, which distinguishes cells that one mount point leads to at different times.
fn cell_of(cell_mount: &Result<CellMount, CellMountError>) -> CellId {
    cell_mount.as_ref().map_or(CellId(0), |cell_mount| cell_mount.cell)
}

impl Place {
    pub(super) fn outermost(fs: Arc<RingerFs>) -> Self {
        let place = Self {
            key: 0,
            above: None,
            fs: OnceLock::new(),
            shown: Mutex::default(),
            is_entered: AtomicBool::new(true),
        };
        let _ = place.fs.set(fs);
        place
    }

    /// The key of the location at a mount point in this one.
    pub(super) fn key_within(
        &self,
        dir: Ino,
        cell_mount: &Result<CellMount, CellMountError>,
    ) -> u64 {
        hash(&[self.key, dir.0, cell_of(cell_mount).0])
    }

    /// The location at the mount point `dir` of `above`, found in the directory that has the number
    /// `holder`. Takes a reference of its own on `dir`.
    pub(super) fn within(
        above: &Arc<Self>,
        fs: &Arc<RingerFs>,
        dir: Ino,
        cell_mount: Result<CellMount, CellMountError>,
        holder: u64,
    ) -> Self {
        fs.refer(dir);
        let key = above.key_within(dir, &cell_mount);
        let above = Above {
            place: Arc::clone(above),
            fs: Arc::clone(fs),
            dir,
            cell_mount: Mutex::new(cell_mount),
            holder: AtomicU64::new(holder),
        };
        Self {
            key,
            above: Some(above),
            fs: OnceLock::new(),
            shown: Mutex::default(),
            is_entered: AtomicBool::new(false),
        }
    }

    /// Updates the mount point after another lookup.
    pub(super) fn found_again(&self, cell_mount: Result<CellMount, CellMountError>, holder: u64) {
        let Some(above) = &self.above else { return };
        *locked(&above.cell_mount) = cell_mount;
        above.holder.store(holder, Ordering::Relaxed);
    }

    /// Returns true if this is the root of a cell inside.
    pub(super) fn is_inner_root(&self, ino: Ino) -> bool {
        // All clients use the same inode number for their root.
        self.above.as_ref().is_some_and(|above| above.fs.is_root(ino))
    }

    /// The client of the cell, if a process has entered.
    pub(super) fn fs(&self) -> Option<&Arc<RingerFs>> {
        self.fs.get()
    }

    /// Restricts the attributes of an inode of the cell to those that this mount may see. The owner
    /// of an attached cell controls all of them, so files have neither setuid nor setgid bits and
    /// device nodes no device, which would give access to programs and devices of this machine. On
    /// a directory neither bit gives privileges, and setgid passes on its group.
    pub(super) fn without_power(&self, attr: Attr) -> Attr {
        match attr.kind {
            _ if self.above.is_none() => attr,
            FileKind::Directory => attr,
            _ => Attr { perm: attr.perm & !SET_ID, rdev: 0, ..attr },
        }
    }

    /// Returns true if this mount sees an extended attribute of the cell. Those of the kernel's
    /// security modules (file capabilities, labels) give programs privileges, and are hidden.
    pub(super) fn is_seen(&self, attribute: &[u8]) -> bool {
        self.above.is_none() || !attribute.starts_with(b"security.")
    }

    /// Returns true if `cell` is this location's, or one that contains it.
    pub(super) fn is_within(&self, cell: CellId) -> bool {
        let mut at = Some(self);
        while let Some(place) = at {
            if place.fs.get().is_some_and(|fs| fs.cell() == cell) {
                return true;
            }
            at = place.above.as_ref().map(|above| &*above.place);
        }
        false
    }

    /// The attributes of the root of a cell inside, except its inode number: the cell's own if they
    /// can be had soon, or else those last shown, or else those of the directory at whose location
    /// it is. So looking at a directory with mount points in it waits for no cell.
    ///
    /// # Errors
    /// Those of the cell above.
    pub(super) fn root_attr(&self) -> Result<Attr> {
        let own = self.fs.get().and_then(|fs| fs.glance());
        let mut shown = locked(&self.shown);
        let attr = match (own.or(*shown), &self.above) {
            (Some(attr), _) => self.without_power(attr),
            (None, Some(above)) => {
                drop(shown);
                let attr = above.fs.getattr(above.dir)?;
                shown = locked(&self.shown);
                attr
            }
            (None, None) => return Err(Error::Stale(0)),
        };
        *shown = Some(attr);
        Ok(attr)
    }

    /// Checks, on the first entry, whether the kernel may have permitted it by the attributes of
    /// the directory at the mount point, and not by the cell's own: `needs` are bits of a class of
    /// permissions.
    ///
    /// # Errors
    /// [`Error::Stale`] if so: the kernel walks again, and checks the attributes shown from now on.
    pub(super) fn check_entry(&self, fs: &RingerFs, needs: u16) -> Result<()> {
        if self.is_entered.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let attr = fs.getattr(fs.root())?;
        let shown = locked(&self.shown).replace(attr);
        let of = |attr: &Attr| (attr.perm, attr.uid, attr.gid);
        let is_for_all = [6, 3, 0].iter().all(|class| (attr.perm >> class) & needs == needs);
        if is_for_all || shown.is_none_or(|shown| of(&shown) == of(&attr)) {
            Ok(())
        } else {
            Err(Error::Stale(attr.ino.0))
        }
    }
}
