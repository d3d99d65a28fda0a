//! Programs on a volume of weft: what is lost are blocks, and what is left is what weft's own recovery
//! makes of them.
//!
//! The calls of a recording have the writes and flushes of the volume among them ([`merge`]). Under
//! [`Model::Volume`](crate::Model::Volume) these are the units; the tree of a state is read from the
//! volume, which is mounted for that as after a power cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{getgid, getuid};
use serde::{Deserialize, Serialize};
use weft_block::{BlockDevice, Event, Image, MemoryDevice};
use weft_ext2::fsck;
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::memfs::Snapshot;
use weft_vfs::{FileSystem, Ino};

use crate::calls::{Action, Call, CallNr, Process};
use crate::effects::Change;
use crate::load::load_tree;
use crate::model::{UnitNr, Units};
use crate::states::{Epoch, State, Torn};
use crate::{Error, Result};

/// The format of a volume and the order in which weft writes to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeKind {
    /// The order of writes, as `weft mount --order` names it: soft, journal, journal=ordered,
    /// journal=full or async.
    pub order: String,
    /// The size of its blocks, in bytes.
    pub block_bytes: u32,
}

/// A volume before the program.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its kind.
    pub kind: VolumeKind,
    /// Its content.
    pub image: Image,
}

/// The volume on which a program is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOptions {
    /// The order of writes.
    pub order: String,
    /// The volume of which a copy is used; otherwise an empty one is made.
    pub image: Option<PathBuf>,
    /// The size of an empty one, in bytes.
    pub size_bytes: u64,
}

fn device_failed(what: &str) -> impl FnOnce(weft_block::Error) -> Error {
    let what = what.to_owned();
    move |e| Error::Volume(format!("{what}: {e}"))
}

impl VolumeKind {
    fn policy(&self) -> Result<Policy> {
        Ok(match self.order.as_str() {
            "soft" => Policy::Soft,
            "async" => Policy::Async,
            "journal" | "journal=metadata" => Policy::Journal(JournalMode::Metadata),
            "journal=ordered" => Policy::Journal(JournalMode::Ordered),
            "journal=full" => Policy::Journal(JournalMode::Full),
            other => return Err(Error::Volume(format!("{other:?} is no order of writes"))),
        })
    }

    /// Mounts a volume as weft does after a power cut. It has no thread of its own, so that a program
    /// writes the same blocks each time.
    pub(crate) fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<Ext2>> {
        let engine = Options { policy: self.policy()?, background: false, ..Options::default() };
        let options = OpenOptions { engine, no_healing: true, ..OpenOptions::default() };
        Ext2::open(device, options).map_err(|e| Error::Volume(format!("mounting the volume: {e}")))
    }

    /// The tree that is on a volume after a power cut.
    fn tree(&self, image: Image) -> Result<Snapshot> {
        let device = Arc::new(MemoryDevice::from_image(image));
        // What was written in any order is mounted after a repair, as its manual says.
        if self.policy()? == Policy::Async {
            fsck::check(&*device, &fsck::Options::repair())
                .map_err(|e| Error::Volume(format!("repairing the volume: {e}")))?;
        }
        read_tree(&*self.mount(device)?)
    }
}

/// The number of an inode in the tree of a volume, and in the recording.
pub(crate) fn number(root: Ino, ino: Ino) -> u64 {
    // No file of ext2 has the number of the root of a tree: there it is that of bad blocks.
    if ino == root { Snapshot::ROOT } else { ino.0 }
}

/// Reads the tree of a volume, with the numbers of its inodes.
pub(crate) fn read_tree(fs: &dyn FileSystem) -> Result<Snapshot> {
    let root = fs.root();
    let mut held = Vec::new();
    let tree = load_tree(fs, u64::MAX, &mut |ino, is_root| {
        if !is_root {
            held.push((ino, 1));
        }
        number(root, ino)
    });
    fs.forget_many(&held);
    tree.map_err(Error::fs("reading the volume"))
}

impl Volume {
    /// Copies a volume, or makes an empty one.
    pub(crate) fn new(options: &VolumeOptions) -> Result<Self> {
        let image = match &options.image {
            Some(path) => copy(path)?,
            None => make(options)?,
        };
        // The block size in the superblock: 1 KiB, shifted.
        let mut shift = [0; 4];
        image.read(&mut shift, 1024 + 24).map_err(device_failed("reading the superblock"))?;
        let shift = u32::from_le_bytes(shift).min(6);
        let kind = VolumeKind { order: options.order.clone(), block_bytes: 1024 << shift };
        kind.policy()?;
        Ok(Self { kind, image })
    }
}

fn copy(path: &Path) -> Result<Image> {
    let what = format!("reading {}", path.display());
    let device = weft_block::FileDevice::open(path, weft_block::OpenMode::READ_ONLY)
        .map_err(device_failed(&what))?;
    Image::copy_of(&device).map_err(device_failed(&what))
}

fn make(options: &VolumeOptions) -> Result<Image> {
    let device = MemoryDevice::new(options.size_bytes);
    let has_journal = options.order.starts_with("journal");
    let base = if has_journal { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
    let mkfs_options = MkfsOptions {
        root_uid: getuid().as_raw(),
        root_gid: getgid().as_raw(),
        uuid: Some(*b"weft crash proof"),
        ..base
    };
    mkfs(&device, &mkfs_options).map_err(|e| Error::Volume(format!("making a volume: {e}")))?;
    Ok(device.snapshot())
}

/// Puts the events of a volume among the calls. `positions` has for each call the number of events
/// before it.
pub(crate) fn merge(
    calls: Vec<Call>,
    positions: &[usize],
    events: &[Event],
    block_bytes: u32,
) -> Vec<Call> {
    let mut merged = Vec::with_capacity(calls.len() + events.len());
    // The place of each event among the calls.
    let mut places = Vec::with_capacity(events.len() + 1);
    let mut next = 0;
    let mut put = |merged: &mut Vec<Call>, upto: usize, at_nanos: u64| {
        while next < upto.min(events.len()) {
            places.push(CallNr(merged.len() as u32));
            let (action, data): (_, Arc<[u8]>) = match &events[next] {
                Event::Write { offset, data, fua } => {
                    let (offset, durable) = (*offset, *fua);
                    (Action::BlockWrite { offset, block_bytes, durable }, Arc::clone(data))
                }
                Event::Discard { offset, len_bytes } => {
                    let (offset, len_bytes) = (*offset, *len_bytes);
                    (Action::BlockDiscard { offset, len_bytes }, Arc::default())
                }
                Event::Flush { covers } => {
                    let here = CallNr(merged.len() as u32);
                    let covers = places.get(*covers).copied().unwrap_or(here);
                    (Action::BlockFlush { covers }, Arc::default())
                }
                Event::Mark(line) => (Action::Promise { line: line.clone() }, Arc::default()),
            };
            merged.push(Call { action, process: Process::default(), at_nanos, data });
            next += 1;
        }
    };
    let mut last = 0;
    for (call, position) in calls.into_iter().zip(positions) {
        last = call.at_nanos;
        // The end of the program comes after all that its volume still wrote.
        let upto = if call.action == Action::End { usize::MAX } else { *position };
        put(&mut merged, upto, last);
        merged.push(call);
    }
    put(&mut merged, usize::MAX, last);
    merged
}

/// Builds the trees of states of a volume.
pub(crate) struct VolumeImages<'a> {
    units: &'a Units,
    kind: &'a VolumeKind,
    /// The volume with the blocks of the units before `upto`.
    durable: Image,
    upto: usize,
}

/// The trees of an epoch's states.
pub(crate) struct VolumeEpoch<'a> {
    units: &'a Units,
    kind: &'a VolumeKind,
    durable: Image,
    /// The blocks from the first pending one on, with its place if it is one.
    rest: Vec<(Option<usize>, UnitNr)>,
}

impl<'a> VolumeImages<'a> {
    pub(crate) fn new(volume: &'a Volume, units: &'a Units) -> Self {
        Self { units, kind: &volume.kind, durable: volume.image.clone(), upto: 0 }
    }

    /// Prepares the trees of an epoch; epochs must be given in order.
    pub(crate) fn epoch(&mut self, epoch: &Epoch) -> Result<VolumeEpoch<'a>> {
        let units = self.units;
        let done = units.units.partition_point(|unit| unit.call < epoch.end);
        let first = epoch.pending.first().map_or(done, |unit| unit.index());
        while self.upto < first.min(done) {
            write(&mut self.durable, units, UnitNr(self.upto as u32), None)?;
            self.upto += 1;
        }
        let place = |unit: &UnitNr| epoch.pending.binary_search(unit).ok();
        let rest = (first..done).map(|unit| UnitNr(unit as u32));
        let rest = rest.map(|unit| (place(&unit), unit)).collect();
        Ok(VolumeEpoch { units, kind: self.kind, durable: self.durable.clone(), rest })
    }
}

impl VolumeEpoch<'_> {
    /// The tree of a state.
    pub(crate) fn tree(&self, state: &State) -> Result<Snapshot> {
        let mut image = self.durable.clone();
        for (place, unit) in &self.rest {
            let torn = match place {
                Some(place) if !state.kept.contains(*place) => continue,
                Some(place) => state.torn.filter(|torn| torn.place as usize == *place),
                None => None,
            };
            write(&mut image, self.units, *unit, torn)?;
        }
        self.kind.tree(image)
    }
}

/// Writes the blocks of a unit, or the sectors that are left of a torn one.
fn write(image: &mut Image, units: &Units, unit: UnitNr, torn: Option<Torn>) -> Result<()> {
    const SECTOR: u64 = weft_block::SECTOR_BYTES as u64;
    for change in units.changes(unit) {
        let Change::Block { offset, len_bytes, source } = change else { continue };
        let Some((data, start)) = source else {
            image.zero(*offset, *len_bytes).map_err(device_failed("building a state"))?;
            continue;
        };
        let bytes = &data[*start..*start + *len_bytes as usize];
        for (nr, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            if torn.is_none_or(|torn| torn.sectors >> (nr % 8) & 1 == 1) {
                let at = offset + nr as u64 * SECTOR;
                image.write(sector, at).map_err(device_failed("building a state"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn write(offset: u64) -> Event {
        Event::Write { offset, data: Arc::from([1; 1024].as_slice()), fua: false }
    }

    fn call(action: Action) -> Call {
        Call { action, process: Process::default(), at_nanos: 0, data: Arc::default() }
    }

    #[test]
    fn events_stand_before_the_call_that_came_after_them() {
        let calls = vec![call(Action::Sync), call(Action::End)];
        let events = [write(0), Event::Flush { covers: 1 }, write(2048), write(4096)];
        let merged = merge(calls, &[2, 2], &events, 1024);
        let names: Vec<_> = merged.iter().map(|call| call.action.name()).collect();
        let write = "block write";
        assert_eq!(names, [write, "block flush", "sync", write, write, "exit"]);
        assert_eq!(merged[1].action, Action::BlockFlush { covers: CallNr(1) });
    }

    #[test]
    fn a_block_is_pending_until_the_flush_that_covers_it() {
        // The second write completed after the flush had begun.
        let events = [write(0), write(2048), Event::Flush { covers: 1 }, write(4096)];
        let calls = merge(vec![call(Action::End)], &[4], &events, 1024);
        let units = Units::new(Model::Volume, &calls, &|_| None);
        let pending: Vec<usize> =
            crate::states::epochs(&units, &calls).map(|epoch| epoch.pending.len()).collect();
        assert_eq!(pending, [2, 2]);
        assert_eq!(units.units[0].durable_after, Some(CallNr(2)));
        assert_eq!(units.units[1].durable_after, None);
    }

    #[test]
    fn a_write_of_two_blocks_is_torn_between_them() {
        let data: Arc<[u8]> = Arc::from([1; 2048].as_slice());
        let events = [Event::Write { offset: 1024, data, fua: false }];
        let calls = merge(vec![call(Action::End)], &[1], &events, 1024);
        let units = Units::new(Model::Volume, &calls, &|_| None);
        assert_eq!(units.units.len(), 2);
    }
}
