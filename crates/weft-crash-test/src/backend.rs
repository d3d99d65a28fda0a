//! The file system below the recorded folder: one in memory, or a volume of weft.

use std::sync::Arc;

use rustix::process::{getgid, getuid};
use weft_block::{BlockDevice, Event, Image, MemoryDevice};
use weft_order::OrderedFs;
use weft_vfs::memfs::{MemFs, MemLimits, Snapshot};
use weft_vfs::{Caller, FileSystem, SetAttr};

use crate::recorder::VolumeHook;
use crate::volume::{self, Mounted, Volume, VolumeKind, VolumeOptions, read_tree};
use crate::{Error, Recorder, Result};

/// The file system below the recorded folder.
pub(crate) enum Backend {
    Memory(Arc<MemFs>),
    Volume {
        kind: VolumeKind,
        mounted: Mounted,
        recorder: Arc<weft_block::Recorder<SharedDevice>>,
        device: SharedDevice,
    },
}

/// The device of a volume, which the recorder writes and whose content is copied.
type SharedDevice = Arc<MemoryDevice>;

/// After so many calls a volume writes back some of what it has in memory.
const WRITE_BACK_EVERY: usize = 5;

/// The state before the program runs.
pub(crate) struct Base {
    pub(crate) tree: Snapshot,
    /// The volume.
    pub(crate) image: Option<Image>,
    /// The number of events on the volume until then.
    pub(crate) events: usize,
}

/// The events after the first ones.
pub(crate) fn later(events: &[Event], skipped: usize) -> Vec<Event> {
    let later = |event: &Event| match event {
        Event::Flush { covers } => Event::Flush { covers: covers.saturating_sub(skipped) },
        other => other.clone(),
    };
    events.iter().skip(skipped).map(later).collect()
}

/// An empty file system in memory, whose root belongs to the user of this process.
pub(crate) fn memory(size_bytes: u64) -> MemFs {
    let limits = MemLimits { capacity_bytes: size_bytes, ..MemLimits::default() };
    let fs = MemFs::with_limits(limits);
    // As on a local disk: in a directory of somebody else an ordinary user could make nothing.
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    if let Err(e) = fs.setattr(&Caller::ROOT, fs.root(), &owner) {
        unreachable!("every tree has a root: {e}");
    }
    fs
}

impl Backend {
    pub(crate) fn on_volume(options: &VolumeOptions) -> Result<Self> {
        let Volume { kind, image } = Volume::new(options)?;
        let device = Arc::new(MemoryDevice::from_image(image));
        let recorder = Arc::new(weft_block::Recorder::new(Arc::clone(&device)));
        let mounted = kind.mount(Arc::clone(&recorder) as Arc<dyn BlockDevice>)?;
        Ok(Self::Volume { kind, mounted, recorder, device })
    }

    pub(crate) fn recorder(&self, write_limit_bytes: u64) -> Recorder {
        match self {
            Self::Memory(fs) => {
                Recorder::new(Arc::clone(fs) as Arc<dyn FileSystem>, write_limit_bytes)
            }
            Self::Volume { mounted: Mounted { fs, engine }, .. } => {
                let root = fs.root();
                let number = move |ino| Some(volume::number(root, ino));
                // As on a mount of the volume, programs may order what they change.
                let ordered = OrderedFs::new(Arc::clone(fs), engine.patchgroups());
                let ordered = Arc::new(ordered.with_open_files());
                Recorder::new(ordered, write_limit_bytes).numbered(number)
            }
        }
    }

    /// The tree before the program, and the volume that it is on. From here on calls stand among the
    /// events of the volume.
    pub(crate) fn base(&self, calls: &Recorder) -> Result<Base> {
        match self {
            Self::Memory(fs) => Ok(Base { tree: fs.snapshot(), image: None, events: 0 }),
            Self::Volume { mounted: Mounted { fs, engine }, recorder, device, .. } => {
                fs.sync().map_err(Error::fs("making the setup durable"))?;
                let tree = read_tree(&**fs, &Snapshot::new())?;
                let image = Some(device.snapshot());
                let before = recorder.event_count();
                let (events, engine) = (Arc::clone(recorder), Arc::clone(engine));
                calls.watch_volume(VolumeHook {
                    events: Box::new(move || events.event_count() - before),
                    // What cannot be written is told by the next fsync.
                    write_back: Box::new(move || drop(engine.write_back())),
                    every: WRITE_BACK_EVERY,
                });
                Ok(Base { tree, image, events: before })
            }
        }
    }

    /// Writes what the program has not made durable, as time would.
    pub(crate) fn settle(&self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Volume { mounted, .. } => {
                mounted.fs.sync().map_err(Error::fs("writing the volume back"))
            }
        }
    }
}
