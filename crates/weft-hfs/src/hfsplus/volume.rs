//! Reading trees and forks.

use super::layout::{
    Extent, ForkData, Header, Item, Node, be16, be32, be64, corrupt, extents, name,
};
use std::cmp::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use weft_block::BlockDevice;
use weft_vfs::{Error, Result};

/// A deeper tree would have more leaves than there are node numbers.
const DEPTH_MAX: usize = 16;
const EXTENTS_ID: u32 = 3;
const CATALOG_ID: u32 = 4;
const ATTRIBUTES_ID: u32 = 8;
/// The longest attribute that is read, in bytes: the limit of Linux.
const ATTRIBUTE_MAX_BYTES: u64 = 64 << 10;

/// One of the two forks of a file, as keys of the extents tree name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fork {
    Data = 0,
    Resource = 0xff,
}

/// A fork with all its extents.
#[derive(Debug, Clone)]
pub(super) struct Mapped {
    pub len_bytes: u64,
    extents: Vec<Extent>,
}

/// A tree.
#[derive(Debug)]
struct Tree {
    label: &'static str,
    file: Mapped,
    node_bytes: usize,
    nodes: u32,
    root: u32,
}

/// Takes a record in two parts; returns true to continue.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

type Recent = Option<(u32, Fork, Arc<Mapped>)>;

pub(super) struct Volume {
    device: Arc<dyn BlockDevice>,
    pub header: Header,
    overflow: Option<Tree>,
    catalog: Tree,
    attributes: Option<Tree>,
    /// The fork that was read last.
    recent: Mutex<Recent>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Volume {
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let mut raw = [0; 512];
        device.read_at(&mut raw, 1024).map_err(|e| io(&e))?;
        let header = Header::parse(&raw, device.geometry().len_bytes)?;
        let at = Place { device: &*device, header: &header };
        // The extents tree has no overflow of its own.
        let whole =
            |fork: &ForkData| Mapped { len_bytes: fork.len_bytes, extents: fork.extents.clone() };
        let overflow = match header.extents.len_bytes {
            0 => None,
            _ => Some(at.tree("extents tree", whole(&header.extents))?),
        };
        let catalog_file = at.map(overflow.as_ref(), CATALOG_ID, Fork::Data, &header.catalog)?;
        let catalog = at.tree("catalog", catalog_file)?;
        let attributes = match header.attributes.len_bytes {
            0 => None,
            _ => {
                let file =
                    at.map(overflow.as_ref(), ATTRIBUTES_ID, Fork::Data, &header.attributes)?;
                Some(at.tree("attributes tree", file)?)
            }
        };
        Ok(Self { device, header, overflow, catalog, attributes, recent: Mutex::default() })
    }

    /// Returns true if the journal holds changes that are not in place, as after a crash, or if
    /// that is unknown. (TN1150, "Journal": the info block gives the journal's location; the
    /// journal's header has the start and end of its transactions.)
    pub fn has_pending_journal(&self) -> bool {
        const IN_FS: u32 = 1;
        let Some(block) = self.header.journal_info else { return false };
        let read = |at: u64| {
            let mut raw = [0; 512];
            self.device.read_at(&mut raw, at).ok().map(|()| raw)
        };
        let unit = u64::from(self.header.block_bytes);
        let Some(info) = read(u64::from(block) * unit) else { return true };
        if be32(&info, 0) & IN_FS == 0 {
            // The journal is on another device: its state is unknown.
            return true;
        }
        let Some(journal) = read(be64(&info, 36)) else { return true };
        // The journal has the byte order of the Mac that wrote it.
        let number = |at: usize, little: bool| {
            let raw = journal.get(at..at + 8).and_then(|b| b.first_chunk()).copied();
            raw.map_or(0, |b| if little { u64::from_le_bytes(b) } else { u64::from_be_bytes(b) })
        };
        match journal.first_chunk() {
            Some(b"JNLx") => number(8, false) != number(16, false),
            Some(b"xLNJ") => number(8, true) != number(16, true),
            // The flag is set if the journal was never used.
            _ => be32(&info, 0) & (1 << 2) == 0,
        }
    }

    fn place(&self) -> Place<'_> {
        Place { device: &*self.device, header: &self.header }
    }

    /// Calls `each` with name (in UTF-16) and record of each item of a folder, the folder's own
    /// thread first, until it returns `false`.
    pub fn each_in(&self, folder: u32, each: Each<'_>) -> Result<()> {
        let order = |key: &[u8]| be32(key, 0).cmp(&folder).then(be16(key, 4).cmp(&0));
        self.place().scan(&self.catalog, &order, &mut |key, record| {
            if be32(key, 0) != folder {
                return Ok(false);
            }
            each(name(key.get(4..).unwrap_or_default()), record)
        })
    }

    /// Returns the item with an id, by its thread, which has its folder and name.
    pub fn item(&self, id: u32) -> Result<Item> {
        let mut thread = None;
        self.each_in(id, &mut |own, record| {
            if own.is_empty() && matches!(be16(record, 0), 3 | 4) {
                thread =
                    Some((be32(record, 4), name(record.get(8..).unwrap_or_default()).to_vec()));
            }
            Ok(false)
        })?;
        let (parent, wanted) = thread.ok_or(Error::Stale(id.into()))?;
        let mut found = None;
        self.each_in(parent, &mut |name, record| {
            if name == wanted && !name.is_empty() {
                found = Item::parse(record)?.filter(|item| item.id == id);
            }
            Ok(found.is_none())
        })?;
        found.ok_or_else(|| corrupt(format!("catalog: the thread of item {id} leads to nothing")))
    }

    /// Returns the name (in UTF-16) of an item, by its thread.
    pub fn name_of(&self, id: u32) -> Result<Vec<u8>> {
        let mut found = None;
        self.each_in(id, &mut |own, record| {
            if own.is_empty() && matches!(be16(record, 0), 3 | 4) {
                found = Some(name(record.get(8..).unwrap_or_default()).to_vec());
            }
            Ok(false)
        })?;
        found.ok_or(Error::Stale(id.into()))
    }

    /// Reads a fork into `buf`; returns the number of bytes read.
    pub fn read(&self, item: &Item, fork: Fork, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mapped = self.mapped(item, fork)?;
        let left = mapped.len_bytes.saturating_sub(offset);
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.place().read(&mapped, "fork", offset, &mut buf[..n])?;
        Ok(n)
    }

    fn mapped(&self, item: &Item, fork: Fork) -> Result<Arc<Mapped>> {
        let lock = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, which, mapped)) = &*lock()
            && (*id, *which) == (item.id, fork)
        {
            return Ok(Arc::clone(mapped));
        }
        let data = if fork == Fork::Data { &item.data } else { &item.resource };
        let mapped = Arc::new(self.place().map(self.overflow.as_ref(), item.id, fork, data)?);
        *lock() = Some((item.id, fork, Arc::clone(&mapped)));
        Ok(mapped)
    }

    /// Calls `each` with name (in UTF-16) and value of every extended attribute of an item, except
    /// for those longer than Linux accepts.
    pub fn each_attribute(&self, id: u32, each: &mut dyn FnMut(&[u8], Vec<u8>)) -> Result<()> {
        let Some(tree) = &self.attributes else { return Ok(()) };
        let order = |key: &[u8]| be32(key, 2).cmp(&id).then(be16(key, 10).cmp(&0));
        self.place().scan(tree, &order, &mut |key, record| {
            if be32(key, 2) != id {
                return Ok(false);
            }
            let name = name(key.get(10..).unwrap_or_default());
            match be32(record, 0) {
                0x10 => {
                    let len = be32(record, 12) as usize;
                    let value = len.checked_add(16).and_then(|end| record.get(16..end));
                    let value = value.ok_or_else(|| {
                        corrupt(format!("attributes tree: a value of {len} bytes of item {id}"))
                    })?;
                    each(name, value.to_vec());
                }
                0x20 => {
                    let fork = ForkData::parse(record.get(8..).unwrap_or_default());
                    let enough: u64 = fork.extents.iter().map(|e| u64::from(e.count)).sum();
                    let held = enough * u64::from(self.header.block_bytes);
                    if fork.len_bytes <= ATTRIBUTE_MAX_BYTES.min(held) {
                        let mut value = vec![0; fork.len_bytes as usize];
                        let mapped = Mapped { len_bytes: fork.len_bytes, extents: fork.extents };
                        self.place().read(&mapped, "attribute", 0, &mut value)?;
                        each(name, value);
                    }
                }
                _ => {}
            }
            Ok(true)
        })
    }
}

/// The context for reading, which is needed before there is a [`Volume`], too.
#[derive(Clone, Copy)]
struct Place<'a> {
    device: &'a dyn BlockDevice,
    header: &'a Header,
}

impl Place<'_> {
    /// Returns a fork with its further extents from the extents tree.
    fn map(&self, overflow: Option<&Tree>, id: u32, fork: Fork, data: &ForkData) -> Result<Mapped> {
        let mut all = data.extents.clone();
        let unit = u64::from(self.header.block_bytes);
        let need = data.len_bytes.div_ceil(unit);
        let sum = |all: &[Extent]| all.iter().map(|e| u64::from(e.count)).sum::<u64>();
        let mut have = sum(&all);
        let bad = |what: String| corrupt(format!("file {id}, {fork:?} fork: {what}"));
        if need > u64::from(self.header.blocks) {
            return Err(bad(format!("{} bytes, more than the volume", data.len_bytes)));
        }
        while have < need && id != EXTENTS_ID {
            let Some(tree) = overflow else { break };
            let target = (id, fork as u8, have as u32);
            let key_of =
                |key: &[u8]| (be32(key, 2), key.first().copied().unwrap_or(0), be32(key, 6));
            let mut more = Vec::new();
            self.scan(tree, &|key| key_of(key).cmp(&target), &mut |key, record| {
                if key_of(key) == target {
                    more.extend(extents(record));
                }
                Ok(false)
            })?;
            if more.is_empty() {
                break;
            }
            have += sum(&more);
            all.extend(more);
        }
        if have < need {
            return Err(bad(format!("extents for {have} of {need} blocks")));
        }
        Ok(Mapped { len_bytes: data.len_bytes, extents: all })
    }

    /// Fills `buf`; all of its bytes must exist.
    fn read(&self, fork: &Mapped, label: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let unit = u64::from(self.header.block_bytes);
        let (mut first, mut at, mut rest) = (0_u64, offset, buf);
        for extent in &fork.extents {
            if rest.is_empty() {
                return Ok(());
            }
            let len = u64::from(extent.count) * unit;
            if at < first + len {
                let within = at - first;
                let n = usize::try_from(len - within).unwrap_or(usize::MAX).min(rest.len());
                let (piece, tail) = rest.split_at_mut(n);
                let place = u64::from(extent.start) * unit + within;
                self.device.read_at(piece, place).map_err(|e| match e {
                    weft_block::Error::OutOfRange { .. } => corrupt(format!(
                        "{label}: block {} is behind the end of the volume",
                        extent.start
                    )),
                    other => io(&other),
                })?;
                at += n as u64;
                rest = tail;
            }
            first += len;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(corrupt(format!("{label}: byte {at} is in no extent")))
        }
    }

    fn tree(&self, label: &'static str, file: Mapped) -> Result<Tree> {
        let mut head = [0; 64];
        self.read(&file, label, 0, &mut head)?;
        let node_bytes = usize::from(be16(&head, 32));
        if !node_bytes.is_power_of_two() || !(512..=32_768).contains(&node_bytes) {
            return Err(corrupt(format!("{label}: nodes of {node_bytes} bytes")));
        }
        let fit = file.len_bytes / node_bytes as u64;
        let nodes = be32(&head, 36).min(u32::try_from(fit).unwrap_or(u32::MAX));
        Ok(Tree { label, node_bytes, nodes, root: be32(&head, 16), file })
    }

    fn node(&self, tree: &Tree, number: u32) -> Result<Node> {
        if number >= tree.nodes {
            return Err(corrupt(format!("{}: node {number} of {}", tree.label, tree.nodes)));
        }
        let mut bytes = vec![0; tree.node_bytes];
        let at = u64::from(number) * tree.node_bytes as u64;
        self.read(&tree.file, tree.label, at, &mut bytes)?;
        Ok(Node::new(number, bytes))
    }

    /// Calls `each` with key and data of the records from the first one that `order` does not find
    /// less than the searched key, until it returns `false`.
    fn scan(&self, tree: &Tree, order: &dyn Fn(&[u8]) -> Ordering, each: Each<'_>) -> Result<()> {
        if tree.root == 0 {
            return Ok(());
        }
        let mut node = self.node(tree, tree.root)?;
        let mut depth = 0;
        while node.kind() == 0 {
            depth += 1;
            if depth > DEPTH_MAX {
                return Err(corrupt(format!("{}: it is deeper than {DEPTH_MAX}", tree.label)));
            }
            // The last child that does not begin after the searched key.
            let mut child = None;
            for index in 0..node.count() {
                let (key, data) = node.record(index)?;
                if child.is_some() && order(key).is_gt() {
                    break;
                }
                child = Some(be32(data, 0));
            }
            let Some(child) = child else { return Ok(()) };
            node = self.node(tree, child)?;
        }
        for _ in 0..tree.nodes {
            if node.kind() != -1 {
                return Err(corrupt(format!("{}: node {} is no leaf", tree.label, node.number)));
            }
            for index in 0..node.count() {
                let (key, data) = node.record(index)?;
                if order(key).is_lt() {
                    continue;
                }
                if !each(key, data)? {
                    return Ok(());
                }
            }
            match node.next() {
                0 => return Ok(()),
                next => node = self.node(tree, next)?,
            }
        }
        Err(corrupt(format!("{}: its leaves run in a circle", tree.label)))
    }
}

pub(super) fn io(error: &weft_block::Error) -> Error {
    Error::Io { errno: error.errno(), message: error.to_string() }
}
