//! The meaning of the blocks of a finding: which file, which bytes of it, or which structure of the
//! volume, and the call of the program that the write came from.
//!
//! A block is told by the volume itself. It is read as weft recovers it at several moments: right
//! after the block was written, after each of the next flushes, at the end, and before. The first in
//! which the block belongs to something tells what it is: data are often on the disk before the
//! inode that refers to them. Directories, inodes and bitmaps are compared with what they held before.

mod causes;
mod ext;
mod hfs;
mod journal;
mod pending;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::Serialize;
use weft_block::{BlockDevice, Image, MemoryDevice};
use weft_vfs::memfs::Snapshot;

use self::causes::Touched;
pub use self::pending::WatchedVolume;
use super::images::write;
use super::{Volume, VolumeFormat, VolumeKind, device_failed, read_tree};
use crate::Result;
use crate::calls::{Action, CallNr, NodeNr, ROOT};
use crate::effects::Change;
use crate::model::UnitNr;
use crate::subject::Subject;
use crate::words::{CallText, Paths, describe};

/// A block of a volume, and its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockText {
    /// Its first byte on the volume.
    pub offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Its content in words, such as `bytes 0 to 1024 of "f.tmp"`.
    pub text: String,
    /// The structure: `file`, `directory`, `inodes`, `pointers`, `attributes`, `block_bitmap`,
    /// `inode_bitmap`, `descriptors`, `superblock`, `catalog`, `extents`, or `journal` for a block of
    /// the log that is no copy of another.
    pub structure: &'static str,
    /// The file or directory that it belongs to, by its path when the block was written.
    pub path: Option<String>,
    /// The bytes of the file that it holds: the first, and the one behind the last.
    pub bytes: Option<(u64, u64)>,
    /// Set if it was written to the journal, as a copy of the block.
    pub in_journal: bool,
    /// The call of the program that it comes from, as far as it is known.
    pub cause: Option<CallText>,
}

/// The content of a block, without its place on the volume.
struct Meaning {
    structure: &'static str,
    text: String,
    path: Option<String>,
    bytes: Option<(u64, u64)>,
    /// The parts of files that it changes, by which the call is found that it comes from.
    touched: Vec<Touched>,
}

impl Meaning {
    fn new(structure: &'static str, text: impl Into<String>) -> Self {
        Self { structure, text: text.into(), path: None, bytes: None, touched: Vec::new() }
    }
}

/// A block of a finding: its place, the call that wrote it, and its content.
struct Written<'b> {
    offset: u64,
    bytes: &'b [u8],
    call: CallNr,
}

/// The volume at a moment, as weft recovers it.
struct Moment {
    /// Before its recovery.
    raw: Image,
    device: Arc<MemoryDevice>,
    owners: Option<Owners>,
    tree: Snapshot,
    paths: Paths,
}

enum Owners {
    Ext(Box<weft_ext2::owners::Owners>),
    Hfs(weft_hfs::owners::Owners),
}

/// Explains blocks of one recording.
pub(crate) struct Explainer<'a> {
    subject: &'a Subject,
    volume: &'a Volume,
    moments: BTreeMap<CallNr, Rc<Moment>>,
    /// The volume before some calls, without any recovery.
    images: BTreeMap<CallNr, Image>,
    /// Set if the recording has calls of a program, and not only writes to the volume.
    has_calls: bool,
    log: Option<journal::LogPlaces>,
}

/// The blocks of a finding that are explained.
const BLOCKS_MAX: usize = 12;
/// The flushes after a write behind which its block is looked up.
const FLUSHES: usize = 4;

impl<'a> Explainer<'a> {
    /// `None` if the states of a subject are not made of the blocks of a volume.
    pub(crate) fn new(subject: &'a Subject) -> Option<Self> {
        let volume = subject.volume.as_ref()?;
        let images = BTreeMap::from([(CallNr(0), volume.image.clone())]);
        let has_calls = subject.calls.iter().any(|call| is_of_program(&call.action));
        Some(Self { subject, volume, moments: BTreeMap::new(), images, has_calls, log: None })
    }

    /// Explains the blocks of some units; consecutive parts of one file are told as one. What cannot
    /// be explained is left out.
    pub(crate) fn explain(&mut self, units: impl IntoIterator<Item = UnitNr>) -> Vec<BlockText> {
        let mut told: Vec<BlockText> = Vec::new();
        let subject = self.subject;
        let blocks = units.into_iter().flat_map(|unit| {
            let call = subject.units.units[unit.index()].call;
            subject.units.changes(unit).map(move |change| (call, change))
        });
        for (call, change) in blocks.take(BLOCKS_MAX) {
            let Change::Block { offset, len_bytes, source: Some((data, start)) } = change else {
                continue;
            };
            let bytes = &data[*start..*start + *len_bytes as usize];
            let written = Written { offset: *offset, bytes, call };
            // A damaged volume may have nothing to say of its blocks.
            for text in self.block(&written).unwrap_or_default() {
                match told.last_mut() {
                    Some(last) if last.continues(&text) => last.extend(&text),
                    _ => told.push(text),
                }
            }
        }
        told
    }

    fn block(&mut self, written: &Written<'_>) -> Result<Vec<BlockText>> {
        if let Some(meaning) = self.in_journal(written)? {
            return Ok(vec![self.told(written, written.offset, written.bytes, meaning, true)]);
        }
        let mut texts = Vec::new();
        for (offset, bytes, meaning) in self.at_home(written)? {
            texts.push(self.told(written, offset, bytes, meaning, false));
        }
        Ok(texts)
    }

    fn told(
        &self,
        written: &Written<'_>,
        offset: u64,
        bytes: &[u8],
        meaning: Meaning,
        in_journal: bool,
    ) -> BlockText {
        let cause = causes::latest(&self.subject.calls, written.call, &meaning.touched);
        let Meaning { structure, text, path, bytes: range, .. } = meaning;
        BlockText {
            offset,
            len_bytes: bytes.len() as u64,
            text,
            structure,
            path,
            bytes: range,
            in_journal,
            cause: cause.map(|call| describe(&self.subject.base, &self.subject.calls, call)),
        }
    }

    /// Returns the blocks of the format that a write in place changes: offset, bytes and content of each.
    fn at_home<'b>(&mut self, written: &Written<'b>) -> Result<Vec<(u64, &'b [u8], Meaning)>> {
        let block_bytes = match self.volume.kind.format {
            VolumeFormat::Ext => self.volume.kind.block_bytes as usize,
            VolumeFormat::Hfs => weft_hfs::layout::BLOCK_BYTES,
        };
        let mut before = vec![0; written.bytes.len()];
        let moment = self.moment(written.call)?;
        moment.device.read_at(&mut before, written.offset).map_err(device_failed("reading"))?;
        if before == written.bytes {
            // It was in the journal before: what it changes is told by what is at its place.
            moment.raw.read(&mut before, written.offset).map_err(device_failed("reading"))?;
        }
        let all_same = before == written.bytes;
        let mut found = Vec::new();
        let parts = written.bytes.chunks(block_bytes).zip(before.chunks(block_bytes));
        for (nr, (bytes, before)) in (0..).zip(parts) {
            let offset = written.offset + nr * block_bytes as u64;
            if bytes == before && !all_same {
                continue;
            }
            if let Some(meaning) = self.meaning(offset, bytes, before, written.call)? {
                found.push((offset, bytes, meaning));
            }
        }
        Ok(found)
    }

    /// Returns the content of a block of the format, at the first moment at which it is known.
    fn meaning(
        &mut self,
        offset: u64,
        bytes: &[u8],
        before: &[u8],
        call: CallNr,
    ) -> Result<Option<Meaning>> {
        let changed = Changed { before, bytes };
        for at in self.moments_of(call) {
            let moment = self.moment(at)?;
            if !self.has_calls {
                // A file may get its name later.
                self.moment(CallNr(self.subject.calls.len() as u32))?;
            }
            let paths = self.paths_at(call);
            let names = Names { explainer: self, moment: &moment, at, paths };
            let block = offset / bytes.len() as u64;
            let meaning = match &moment.owners {
                Some(Owners::Ext(owners)) => ext::meaning(owners, block, &changed, &names),
                Some(Owners::Hfs(owners)) => hfs::meaning(owners, block, &changed, &names),
                None => None,
            };
            if meaning.is_some() {
                return Ok(meaning);
            }
        }
        Ok(None)
    }

    /// The moments at which a block is looked up that a call has written.
    fn moments_of(&self, call: CallNr) -> Vec<CallNr> {
        let calls = &self.subject.calls;
        let end = CallNr(calls.len() as u32);
        let is_flush = |nr: &u32| matches!(calls[*nr as usize].action, Action::BlockFlush { .. });
        let flushes = (call.0 + 1..end.0).filter(is_flush).take(FLUSHES).map(|nr| CallNr(nr + 1));
        let mut moments = vec![CallNr(call.0 + 1)];
        moments.extend(flushes);
        moments.extend([end, call]);
        moments
    }

    /// The paths at a call, if calls are known: up to the one during which the block was written,
    /// which stands behind it.
    fn paths_at(&self, call: CallNr) -> Option<Paths> {
        let calls = &self.subject.calls;
        let next = calls[call.index()..].iter().position(|call| !call.action.is_block());
        let end = next.map_or(calls.len(), |next| call.index() + next + 1);
        self.has_calls.then(|| Paths::at(&self.subject.base, calls, CallNr(end as u32)))
    }

    /// The volume when the calls before one had been made.
    fn moment(&mut self, end: CallNr) -> Result<Rc<Moment>> {
        if let Some(known) = self.moments.get(&end) {
            return Ok(Rc::clone(known));
        }
        let moment = Rc::new(Moment::new(&self.volume.kind, self.image(end)?));
        self.moments.insert(end, Rc::clone(&moment));
        Ok(moment)
    }

    fn image(&mut self, end: CallNr) -> Result<Image> {
        let units = &self.subject.units;
        let Some((from, image)) = self.images.range(..=end).next_back() else {
            return Ok(self.volume.image.clone());
        };
        let (from, mut image) = (*from, image.clone());
        let first = units.units.partition_point(|unit| unit.call < from);
        let last = units.units.partition_point(|unit| unit.call < end);
        for unit in first..last {
            write(&mut image, units, UnitNr(unit as u32), None)?;
        }
        self.images.insert(end, image.clone());
        Ok(image)
    }
}

/// Returns true for what a program does, and a log of a device does not have.
fn is_of_program(action: &Action) -> bool {
    let none = matches!(action, Action::Mark { .. } | Action::Nothing | Action::End);
    !none && !action.is_block()
}

impl Moment {
    fn new(kind: &VolumeKind, raw: Image) -> Self {
        let device = Arc::new(MemoryDevice::from_image(raw.clone()));
        let mounted = kind.mount(Arc::clone(&device) as Arc<dyn BlockDevice>);
        // A volume that cannot be mounted is explained without names.
        let tree = mounted.and_then(|mounted| read_tree(&*mounted.fs, &Snapshot::new()));
        let tree = tree.unwrap_or_default();
        let (volume, _) = kind.parts(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let owners = match kind.format {
            VolumeFormat::Ext => {
                weft_ext2::owners::Owners::read(&*volume).ok().map(Box::new).map(Owners::Ext)
            }
            VolumeFormat::Hfs => weft_hfs::owners::Owners::read(&*volume).ok().map(Owners::Hfs),
        };
        let paths = Paths::at(&tree, &[], CallNr(0));
        Self { raw, device, owners, tree, paths }
    }
}

/// The bytes of a block before a write and after it.
struct Changed<'b> {
    before: &'b [u8],
    bytes: &'b [u8],
}

/// The paths of inodes at one moment.
struct Names<'n, 'a> {
    explainer: &'n Explainer<'a>,
    moment: &'n Moment,
    at: CallNr,
    /// By the calls, if there are some.
    paths: Option<Paths>,
}

impl Names<'_, '_> {
    /// The path of an inode.
    fn path(&self, node: NodeNr) -> String {
        if let Some(paths) = &self.paths {
            return paths.of(node);
        }
        // At the nearest moment at which it has a name.
        let moments = &self.explainer.moments;
        let mut all = moments.range(self.at..).chain(moments.range(..self.at).rev());
        let has = |(_, moment): &(&CallNr, &Rc<Moment>)| node == ROOT || moment.paths.knows(node);
        all.find(has).map_or(self.moment, |(_, moment)| moment).paths.of(node)
    }

    /// Returns the content of a block that holds `len` bytes of a file from byte `from` on.
    fn content(&self, node: NodeNr, from: u64, len: u64) -> Meaning {
        let size = self.moment.tree.node(node.0).map_or(0, |node| node.size_bytes());
        // Behind the end of the file is nothing; at an early moment it may not be as long yet.
        let end = if size > from { size.min(from + len) } else { from + len };
        let path = self.path(node);
        Meaning {
            bytes: Some((from, end)),
            touched: vec![Touched::Bytes(node, from, end)],
            path: Some(path.clone()),
            ..Meaning::new("file", format!("bytes {from} to {end} of {path:?}"))
        }
    }
}

/// Names for a message: a few of them.
fn some(mut words: Vec<String>) -> String {
    const SHOWN: usize = 6;
    if words.len() > SHOWN + 1 {
        let more = words.len() - SHOWN;
        words.truncate(SHOWN);
        words.push(format!("{more} more"));
    }
    words.join(", ")
}

impl BlockText {
    /// Returns true if a block has the bytes of the same file that follow.
    fn continues(&self, next: &Self) -> bool {
        let cause = |text: &Self| text.cause.as_ref().map(|call| call.nr);
        self.structure == "file"
            && self.structure == next.structure
            && self.path == next.path
            && self.in_journal == next.in_journal
            && cause(self) == cause(next)
            && self.offset + self.len_bytes == next.offset
            && matches!((self.bytes, next.bytes), (Some((_, end)), Some((from, _))) if end == from)
    }

    fn extend(&mut self, next: &Self) {
        self.len_bytes += next.len_bytes;
        if let (Some((from, _)), Some((_, end)), Some(path)) = (self.bytes, next.bytes, &self.path)
        {
            let journal = if self.in_journal { "journal: " } else { "" };
            self.bytes = Some((from, end));
            self.text = format!("{journal}bytes {from} to {end} of {path:?}");
        }
    }
}
