//! Items in memory.

use super::HfsVolume;
use crate::layout::{CatalogRecord, DirectoryRecord, FileRecord, Fork, Name, ROOT_ID};
use crate::store::Store;
use crate::volume::File;
use crate::{Error, Result};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use weft_patch::PatchId;
use weft_vfs::OpenFlags;

/// A file or folder that is known.
#[derive(Debug)]
pub(super) struct Node {
    /// Of a file, its record and forks.
    pub file: Option<File>,
    /// References of the front.
    pub refs: u64,
    /// Open handles.
    pub opens: u32,
    /// What removed its name, once that is gone.
    pub gone: Option<PatchId>,
}

impl Node {
    fn new(file: Option<File>) -> Self {
        Self { file, refs: 0, opens: 0, gone: None }
    }
}

/// Changes of names and records by item, those that may not be durable: what a sync of the item
/// waits for. Whether anybody uses the item does not matter.
#[derive(Debug, Default)]
pub(super) struct Changes {
    of: HashMap<u32, SmallVec<[PatchId; 2]>>,
    /// So many items are a reason to look for what has become durable.
    many: usize,
}

impl Changes {
    /// Of one item; more are joined.
    const MOST: usize = 8;
    const FEW_ITEMS: usize = 1024;

    /// Notes a change of an item.
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

    /// Those of an item that are not durable.
    pub fn of<S: Store<Patch = PatchId>>(&self, s: &S, id: u32) -> Vec<PatchId> {
        let all = self.of.get(&id).map_or(&[][..], SmallVec::as_slice);
        all.iter().copied().filter(|&p| !s.is_durable(p)).collect()
    }

    /// Forgets what has become durable.
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

/// Everything the lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub vol: HfsVolume,
    pub nodes: HashMap<u32, Node>,
    pub changes: Changes,
    pub handles: HashMap<u64, OpenFile>,
    pub next_handle: u64,
    /// Where listings have been: the names behind their cursors.
    pub cursors: BTreeMap<u32, HashMap<u32, Name>>,
    /// What was found to be damaged.
    pub damage: Option<String>,
}

/// What an id leads to.
#[derive(Debug)]
pub(super) enum Known {
    Folder(DirectoryRecord),
    File(FileRecord),
}

impl State {
    pub fn new(vol: HfsVolume) -> Self {
        Self {
            vol,
            nodes: HashMap::new(),
            changes: Changes::default(),
            handles: HashMap::new(),
            next_handle: 1,
            cursors: BTreeMap::new(),
            damage: None,
        }
    }

    pub fn found_damage(&mut self, error: &Error) {
        self.damage.get_or_insert_with(|| error.to_string());
    }

    /// A node for an item that was found, made if it is new.
    pub fn node_of(
        &mut self,
        parent: u32,
        name: Name,
        record: &CatalogRecord,
    ) -> Result<&mut Node> {
        let Some(id) = record.id() else { return Err(Error::NotFound) };
        let node = self.nodes.entry(id).or_insert_with(|| {
            Node::new(match record {
                CatalogRecord::File(record) => Some(File::new(parent, name, *record)),
                _ => None,
            })
        });
        Ok(node)
    }

    /// The node with an id, of a file or folder. Folders are found by their threads.
    pub fn node<S: Store<Patch = PatchId>>(&mut self, s: &mut S, id: u32) -> Result<&mut Node> {
        if !self.nodes.contains_key(&id) {
            let thread = match self.vol.thread(s, id) {
                Err(Error::NotFound) => return Err(Error::Stale(id)),
                other => other?,
            };
            let (key, record) = match self.vol.lookup(s, thread.parent, &thread.name) {
                Err(Error::NotFound) => return Err(Error::Stale(id)),
                other => other?,
            };
            if record.id() != Some(id) {
                return Err(Error::Stale(id));
            }
            self.node_of(key.parent, key.name, &record)?;
        }
        self.nodes.get_mut(&id).ok_or(Error::Stale(id))
    }

    /// What is known of an item.
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

    /// A folder that items can be in.
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

    /// Runs `f` with a file and the volume beside it.
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

    /// Forgets a node nobody uses, and frees what it held.
    pub fn release<S: Store<Patch = PatchId>>(&mut self, s: &mut S, id: u32) {
        if self.nodes.get(&id).is_none_or(|node| node.refs > 0 || node.opens > 0) {
            return;
        }
        let Some(node) = self.nodes.remove(&id) else { return };
        self.cursors.remove(&id);
        match (&node.file, node.gone) {
            (Some(file), Some(gone)) => self.vol.drop_file(s, file, gone),
            (Some(_), None) => self.vol.close_file(id),
            (None, _) => {}
        }
    }
}
