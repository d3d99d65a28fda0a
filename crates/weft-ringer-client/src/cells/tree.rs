//! The tree of cells: which client has which inode, and its number for the front end.

use std::sync::Arc;

use weft_ringer::{CellMount, RnodeId};
use weft_vfs::{Attr, DirEntry, Entry, Error, FileKind, FileSystem, Ino, Result};

use super::inner::InnerCells;
use super::nodes::is_mapped;
use super::place::Place;
use super::search::{Searcher, Shared};
use super::upward::Upward;
use crate::fs::RingerFs;
use crate::mutex::locked;
use crate::options::RingerFsOptions;

/// A cell, with the cells attached in it, as this client has them: a file system that other clients
/// use at the same time. See [`RingerFs`] for the guarantees of each cell.
#[derive(Debug)]
pub struct CellTree {
    pub(super) root: Arc<Place>,
    pub(crate) outer: Arc<RingerFs>,
    pub(super) cells: Arc<InnerCells>,
    pub(super) upward: Arc<Upward>,
    /// Set if users other than root and the mount's own may attach cells.
    pub(super) allow_attach: bool,
}

/// An inode, and the location of its cell.
pub(super) struct At {
    pub(super) place: Arc<Place>,
    pub(super) ino: Ino,
}

impl At {
    pub(super) fn is_inner_root(&self) -> bool {
        self.place.is_inner_root(self.ino)
    }
}

impl CellTree {
    /// Joins the outermost cell, and waits until its server answers. Cells inside for which an
    /// earlier run may have left changes are opened in the background.
    ///
    /// # Errors
    /// [`Error`](weft_ringer_net::Error) says what is missing.
    pub fn join(options: RingerFsOptions) -> weft_ringer_net::Result<Self> {
        let upward = Arc::new(Upward::new());
        let cells = Arc::new(InnerCells::new(options.clone(), &upward));
        let (directory, allow_attach) = (options.directory.clone(), options.allow_attach);
        let outer = Arc::new(RingerFs::join(options)?);
        let failed = |e| weft_ringer_net::Error::io(format!("{}: cells", directory.display()), e);
        cells.reopen().map_err(failed)?;
        let searcher = Arc::new(Searcher::new(&cells, outer.cell()));
        outer.search_with(Box::new(Shared(searcher)));
        let root = Arc::new(Place::outermost(Arc::clone(&outer)));
        Ok(Self { root, outer, cells, upward, allow_attach })
    }

    /// What the user should hear when the mount begins: damage that was found in the local store,
    /// and changes that were given up.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.outer.notes()
    }

    /// Ends without notice, as if the machine had lost its power: for tests.
    pub fn vanish(&self) {
        self.cells.vanish();
        self.outer.vanish();
    }

    /// Returns the location that an inode belongs to.
    pub(super) fn at(&self, ino: Ino) -> Result<At> {
        if !is_mapped(ino.0) {
            return Ok(At { place: Arc::clone(&self.root), ino });
        }
        let nodes = locked(&self.upward.nodes);
        let (place, own) = nodes.find(ino.0).ok_or(Error::Stale(ino.0))?;
        Ok(At { place: Arc::clone(place), ino: Ino(own) })
    }

    /// Returns the location of an inode and its cell's client, for an operation on it.
    pub(super) fn walk(&self, ino: Ino) -> Result<(At, Arc<RingerFs>)> {
        let at = self.at(ino)?;
        let fs = self.cells.enter(&at.place)?;
        Ok((at, fs))
    }

    /// The same, for lookup or listing: `needs` are the permission bits (of three) that it
    /// requires.
    pub(super) fn walk_in(&self, ino: Ino, needs: u16) -> Result<(At, Arc<RingerFs>)> {
        let (at, fs) = self.walk(ino)?;
        if at.is_inner_root() {
            at.place.check_entry(&fs, needs)?;
        }
        Ok((at, fs))
    }

    /// Returns two inodes of one location.
    pub(super) fn both(&self, one: Ino, other: Ino) -> Result<(At, Ino, Arc<RingerFs>)> {
        let (one, other) = (self.at(one)?, self.at(other)?);
        if one.place.key != other.place.key {
            return Err(Error::CrossDevice);
        }
        let fs = self.cells.enter(&one.place)?;
        Ok((one, other.ino, fs))
    }

    /// Returns the number of a location's inode for the front end.
    pub(super) fn number(&self, place: &Place, ino: Ino) -> Ino {
        if place.key == 0 { ino } else { Ino(locked(&self.upward.nodes).number(place.key, ino.0)) }
    }

    /// Makes the entry that the front end sees, with a reference of the front end's, of an inode
    /// `found` by the client of a location in the directory with the number `holder`. If `keeps`,
    /// the client's reference that came with it stays as it is; else it becomes the front end's, or
    /// is given back.
    pub(super) fn show(
        &self,
        place: &Arc<Place>,
        fs: &Arc<RingerFs>,
        holder: Ino,
        found: Entry,
        keeps: bool,
    ) -> Result<Entry> {
        let ino = found.attr.ino;
        let cell_mount = match found.attr.kind {
            FileKind::Directory => fs.cell_mount_at(ino),
            _ => Ok(None),
        };
        let shown = match cell_mount {
            Ok(Some(text)) => self.show_cell_mount(place, fs, holder, ino, &text),
            Ok(None) if place.key == 0 => return Ok(found),
            Ok(None) => {
                let enter = || Arc::clone(place);
                let number = locked(&self.upward.nodes).enter(place.key, ino.0, enter);
                let mut shown = found;
                shown.attr = Attr { ino: Ino(number), ..place.without_power(found.attr) };
                if !fs.is_root(ino) {
                    return Ok(shown);
                }
                // The front end's release of a root is not passed on to the cell's client.
                Ok(shown)
            }
            Err(e) => Err(e),
        };
        if !keeps {
            fs.forget(ino, 1);
        }
        shown
    }

    /// Returns the root of the cell that the mount point `dir` of a location leads to, with a
    /// reference.
    pub(super) fn show_cell_mount(
        &self,
        above: &Arc<Place>,
        fs: &Arc<RingerFs>,
        holder: Ino,
        dir: Ino,
        text: &[u8],
    ) -> Result<Entry> {
        let cell_mount = CellMount::parse(text);
        let key = above.key_within(dir, &cell_mount);
        let root = RnodeId::ROOT.0;
        let (number, place) = {
            let mut nodes = locked(&self.upward.nodes);
            let new = || {
                let place = Place::within(above, fs, dir, cell_mount.clone(), holder.0);
                let place = Arc::new(place);
                self.upward.add(&place);
                place
            };
            let number = nodes.enter(key, root, new);
            let found = nodes.find(number).map(|(place, _)| Arc::clone(place));
            (Ino(number), found.ok_or(Error::Stale(number))?)
        };
        place.found_again(cell_mount, holder.0);
        match place.root_attr() {
            Ok(mut attr) => {
                attr.ino = number;
                Ok(Entry { attr, generation: 0 })
            }
            Err(e) => {
                drop(place);
                self.forget(number, 1);
                Err(e)
            }
        }
    }

    /// Keeps the number of an opened inode valid until it is closed.
    pub(super) fn hold(&self, at: &At) {
        if at.place.key != 0 {
            let place = || Arc::clone(&at.place);
            locked(&self.upward.nodes).enter(at.place.key, at.ino.0, place);
        }
    }

    /// Gives back a reference of the front end alone, and not that of the cell's client.
    pub(super) fn unshow(&self, number: Ino) {
        let gone = locked(&self.upward.nodes).forget(number.0, 1);
        // Dropped without the lock: it may have held the last reference.
        drop(gone);
    }

    /// Returns a directory entry of a location as the front end sees it.
    pub(super) fn show_name<'a>(&self, at: &At, dirent: DirEntry<'a>) -> DirEntry<'a> {
        let ino = match (&at.place.above, dirent.name) {
            (Some(above), b"..") if at.is_inner_root() => {
                Ino(above.holder.load(std::sync::atomic::Ordering::Relaxed))
            }
            _ => self.number(&at.place, dirent.ino),
        };
        DirEntry { ino, ..dirent }
    }
}
