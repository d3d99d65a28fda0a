//! Items in memory.

use crate::layout::{CatalogRecord, DirectoryRecord, FileRecord, Fork, Name, ROOT_ID};
use crate::store::Store;
use crate::volume::{File, Volume};
use crate::{Error, Result};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use weft_patch::{PatchId, Pending};
use weft_vfs::{Error as FsError, HandleTable, Ino, OpenFlags, Result as FsResult};

/// The volume of a mount.
pub(super) type HfsVolume = Volume<PatchId>;

/// Returns the id of an item by its inode number.
pub(super) fn plain(ino: Ino) -> FsResult<u32> {
    u32::try_from(ino.0).map_err(|_| FsError::Stale(ino.0))
}

/// A file or folder in memory.
#[derive(Debug)]
pub(super) struct Node {
    /// The record and forks of a file; `None` for a folder.
    pub file: Option<File>,
    /// References that the front end has.
    pub refs: u64,
    /// Open handles.
    pub opens: u32,
    /// The change that removed the item's name, if it is removed.
    pub gone: Option<PatchId>,
    /// The serial number of the node since the volume was opened: a node that is dropped and made
    /// again for the same id has another.
    serial: u64,
}

impl Node {
    fn new(file: Option<File>, serial: u64) -> Self {
        Self { file, refs: 0, opens: 0, gone: None, serial }
    }

    /// Returns a value that differs after each change of the content of a file, and if the file was
    /// removed. While it stays the same, the file's blocks are its own.
    pub fn content_version(&self) -> (u64, u64) {
        (self.serial, self.file.as_ref().map_or(0, |file| file.changes))
    }
}

/// Changes of names and records that may not be durable, by item: a sync of the item waits for
/// them. They are kept whether or not the item is in use.
#[derive(Debug, Default)]
pub(super) struct Changes {
    of: HashMap<u32, SmallVec<[PatchId; 2]>>,
    /// The number of items at which durable changes are dropped.
    many: usize,
}

impl Changes {
    /// The most changes of one item; more are joined.
    const MOST: usize = 8;
    const FEW_ITEMS: usize = 1024;

    /// Records a change of an item.
    pub fn note<S: Store<Patch = PatchId>>(
        &mut self,
        s: &mut S,
        id: u32,
        patch: PatchId,
    ) -> Result<()> {
        if s.is_durable(patch) {
            return Ok(());
        }
        if self.of.len() >= self.many.max(Self::FEW_ITEMS) {
            self.settle(s);
            self.many = 2 * self.of.len();
        }
        let changes = self.of.entry(id).or_default();
        if changes.last() == Some(&patch) {
            return Ok(());
        }
        if changes.len() == Self::MOST {
            changes.retain(|p| !s.is_durable(*p));
            if changes.len() > Self::MOST / 2 {
                let all = s.join(changes)?;
                changes.clear();
                changes.push(all);
            }
        }
        changes.push(patch);
        Ok(())
    }

    /// Returns the changes of an item that are not durable.
    pub fn of<S: Store<Patch = PatchId>>(&self, s: &S, id: u32) -> Vec<PatchId> {
        let all = self.of.get(&id).map_or(&[][..], SmallVec::as_slice);
        all.iter().copied().filter(|&p| !s.is_durable(p)).collect()
    }

    /// Drops durable changes.
    pub fn settle<S: Store<Patch = PatchId>>(&mut self, s: &S) {
        self.of.retain(|_, changes| changes.iter().any(|&p| !s.is_durable(p)));
    }
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFile {
    pub id: u32,
    pub flags: OpenFlags,
    pub fork: Fork,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub vol: HfsVolume,
    /// Freed allocation blocks whose freeing may not be durable.
    pub pending: Pending,
    /// The number of changes made: from it a thread that finds no space learns that others took
    /// some.
    pub change_count: u64,
    pub nodes: HashMap<u32, Node>,
    /// The serial number of the newest node.
    last_serial: u64,
    pub changes: Changes,
    pub handles: HandleTable<OpenFile>,
    /// The names that the cursors of listings stand for.
    pub cursors: BTreeMap<u32, HashMap<u32, Name>>,
    /// The damage that was found.
    pub damage: Option<String>,
    /// Damage that was passed over when the volume was opened read-only.
    pub at_opening: Vec<String>,
}

/// The record of an id.
#[derive(Debug)]
pub(super) enum Known {
    Folder(DirectoryRecord),
    File(FileRecord),
}

impl State {
    pub fn new(vol: HfsVolume) -> Self {
        Self {
            vol,
            pending: Pending::default(),
            change_count: 0,
            nodes: HashMap::new(),
            last_serial: 0,
            changes: Changes::default(),
            handles: HandleTable::default(),
            cursors: BTreeMap::new(),
            damage: None,
            at_opening: Vec::new(),
        }
    }

    pub fn found_damage(&mut self, error: &Error) {
        self.damage.get_or_insert_with(|| error.to_string());
    }

    /// Returns the node of an item that was found, and makes it if it is new.
    pub fn node_of(
        &mut self,
        parent: u32,
        name: Name,
        record: &CatalogRecord,
    ) -> Result<&mut Node> {
        let Some(id) = record.id() else { return Err(Error::NotFound) };
        let node = self.nodes.entry(id).or_insert_with(|| {
            self.last_serial += 1;
            let file = match record {
                CatalogRecord::File(record) => Some(File::new(parent, name, *record)),
                _ => None,
            };
            Node::new(file, self.last_serial)
        });
        Ok(node)
    }

    /// Returns the node of the file or folder with an id. Folders are found by their threads.
    pub fn node<S: Store<Patch = PatchId>>(&mut self, s: &mut S, id: u32) -> Result<&mut Node> {
        if !self.nodes.contains_key(&id) {
            let (key, record) = match self.vol.folder(s, id) {
                Ok((key, dir)) => (key, CatalogRecord::Directory(dir)),
                Err(Error::NotADirectory) => {
                    let thread = self.vol.thread(s, id)?;
                    match self.vol.lookup(s, thread.parent, &thread.name) {
                        Ok(found) if found.1.id() == Some(id) => found,
                        Ok(_) | Err(Error::NotFound) => return Err(Error::Stale(id)),
                        Err(e) => return Err(e),
                    }
                }
                Err(Error::NotFound) => return Err(Error::Stale(id)),
                Err(e) => return Err(e),
            };
            self.node_of(key.parent, key.name, &record)?;
        }
        self.nodes.get_mut(&id).ok_or(Error::Stale(id))
    }

    /// Returns the newest record of an item, of which the catalog's record was just read.
    pub fn known_of<S: Store<Patch = PatchId>>(
        &mut self,
        s: &mut S,
        record: &CatalogRecord,
    ) -> Result<Known> {
        match record {
            CatalogRecord::Directory(dir) => Ok(Known::Folder(*dir)),
            // The record of an open file may be newer in memory.
            record => self.known(s, record.id().unwrap_or(0)),
        }
    }

    /// Returns the newest record of an item.
    pub fn known<S: Store<Patch = PatchId>>(&mut self, s: &mut S, id: u32) -> Result<Known> {
        let node = self.node(s, id)?;
        if let Some(file) = &node.file {
            return Ok(Known::File(file.record));
        }
        if node.gone.is_some() {
            return Ok(Known::Folder(DirectoryRecord { id, ..DirectoryRecord::default() }));
        }
        Ok(Known::Folder(self.vol.folder(s, id)?.1))
    }

    /// Checks that an id is a folder that can hold items.
    pub fn folder<S: Store<Patch = PatchId>>(&mut self, s: &mut S, id: u32) -> Result<()> {
        if id == ROOT_ID {
            return Ok(());
        }
        let node = self.node(s, id)?;
        if node.file.is_some() {
            return Err(Error::NotADirectory);
        }
        if node.gone.is_some() { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Runs `f` with a file and its volume.
    pub fn with_file<S: Store<Patch = PatchId>, R>(
        &mut self,
        s: &mut S,
        id: u32,
        f: impl FnOnce(&mut HfsVolume, &mut S, &mut File) -> Result<R>,
    ) -> Result<R> {
        self.node(s, id)?;
        let file = self.nodes.get_mut(&id).and_then(|node| node.file.as_mut());
        f(&mut self.vol, s, file.ok_or(Error::IsADirectory)?)
    }

    /// Returns the removed files without a user whose blocks another thread is about to free.
    pub fn ending(&self) -> Vec<u32> {
        let unused = |node: &Node| node.refs == 0 && node.opens == 0;
        let ends = |node: &Node| node.file.is_some() && node.gone.is_some() && unused(node);
        self.nodes.iter().filter(|(_, node)| ends(node)).map(|(id, _)| *id).collect()
    }

    /// Drops the node of an unused item, and frees its blocks. Returns false if blocks must be
    /// freed and `may_free` is not set: the node is kept then.
    pub fn release<S: Store<Patch = PatchId>>(
        &mut self,
        s: &mut S,
        id: u32,
        may_free: bool,
    ) -> bool {
        let Some(node) = self.nodes.get(&id) else { return true };
        if node.refs > 0 || node.opens > 0 {
            return true;
        }
        if node.file.is_some() && node.gone.is_some() && !may_free {
            return false;
        }
        let Some(node) = self.nodes.remove(&id) else { return true };
        self.cursors.remove(&id);
        match (&node.file, node.gone) {
            (Some(file), Some(gone)) => {
                self.vol.drop_file(s, file, gone);
                self.change_count += 1;
            }
            (Some(_), None) => self.vol.close_file(id),
            (None, _) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Hfs, OpenOptions};
    use crate::layout::Fork;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::volume::New;
    use std::sync::Arc;
    use weft_block::{BlockDevice, MemoryDevice};
    use weft_patch::{JournalMode, Options, Policy};
    use weft_vfs::FileSystem;

    /// Between the check whether a file is removed and the operation that drops its node, another
    /// thread may remove it, and a third end its last use. Then its blocks are not freed by an
    /// operation that has announced no blocks.
    #[test]
    fn a_file_removed_meanwhile_is_freed_by_an_operation_that_may() {
        let device = Arc::new(MemoryDevice::new(800 << 10));
        let name = Name::new(b"file").unwrap();
        mkfs(&*device, &MkfsOptions::new(name, 3_000_000_000)).unwrap();
        let policy = Policy::Journal(JournalMode::Ordered);
        let fs = Hfs::open(
            device as Arc<dyn BlockDevice>,
            OpenOptions {
                engine: Options { policy, background: false, ..Options::default() },
                journal: Some(Arc::new(MemoryDevice::new(2 << 20))),
                ..OpenOptions::default()
            },
        )
        .unwrap();
        let free = || fs.lock().vol.free_now();
        let empty = free();
        let id = fs.create_item(ROOT_ID, &name, &New::FILE).unwrap();
        // Blocks of 512 bytes share those of the log, and are journaled: freeing revokes them.
        fs.write_fork(ROOT_ID, &name, Fork::Data, 0, &[7; 20_000]).unwrap();
        fs.sync().unwrap();
        let open = fs.open_fork(ROOT_ID, &name, Fork::Data, OpenFlags::READ).unwrap();
        fs.delete_item(ROOT_ID, &name).unwrap();
        // Closes the handle, the last use of the file.
        let mut st = fs.lock();
        st.handles.close(open).unwrap();
        st.nodes.get_mut(&id).unwrap().opens = 0;
        drop(st);
        let released = fs.operate(0, |st, s| Ok(st.release(s, id, false))).unwrap();
        assert!(!released && fs.lock().nodes.contains_key(&id));
        assert!(free() < empty);
        fs.end_life(id);
        assert!(!fs.lock().nodes.contains_key(&id));
        fs.sync().unwrap();
        assert_eq!(free(), empty);
        fs.unmount().unwrap();
    }
}
