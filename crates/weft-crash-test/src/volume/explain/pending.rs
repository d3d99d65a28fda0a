//! The blocks that wait to be written on a volume, in words: for those who look at what the engine holds,
//! without a crash test.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_block::Image;
use weft_vfs::FileSystem;
use weft_vfs::memfs::Snapshot;

use super::{BlockText, Explainer, Moment};
use crate::calls::{Action, Call, CallNr, Process};
use crate::model::UnitNr;
use crate::subject::Subject;
use crate::volume::{Volume, VolumeFormat, VolumeKind, number, read_tree};
use crate::{Header, Model, Recorder, Recording, Result};

/// A mounted volume whose calls are recorded, so that they can be named as the reason why a block is to
/// be written.
pub struct WatchedVolume {
    recorder: Recorder,
    volume: Volume,
    base: Snapshot,
}

impl std::fmt::Debug for WatchedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedVolume").field("kind", &self.volume.kind).finish_non_exhaustive()
    }
}

impl WatchedVolume {
    /// Begins to record the calls on the file system of a volume, whose content is `image`, and which is written
    /// in this order.
    ///
    /// # Errors
    /// [`Error::Volume`](crate::Error::Volume), [`Error::Fs`](crate::Error::Fs) if it cannot be read.
    pub fn new(fs: Arc<dyn FileSystem>, image: Image, order: &str) -> Result<Self> {
        let mut kind = VolumeKind::of(&image, order)?;
        if kind.format == VolumeFormat::Hfs {
            // Its journal is not on the volume, and holds nothing that is looked at.
            kind.order = "soft".into();
        }
        let base = read_tree(&*fs, &Snapshot::new())?;
        let root = fs.root();
        let recorder = Recorder::new(fs, u64::MAX).numbered(move |ino| Some(number(root, ino)));
        recorder.start(None, None);
        Ok(Self { recorder, volume: Volume { kind, image }, base })
    }

    /// The file system, whose calls are recorded.
    #[must_use]
    pub fn fs(&self) -> &dyn FileSystem {
        &self.recorder
    }

    /// Explains blocks by what they hold in `after`, the volume when all of them had been written, and by
    /// what they held before. The blocks are their first bytes on the volume and their lengths; those that
    /// nothing is known of are left out.
    #[must_use]
    pub fn explain(self, after: &Image, blocks: &[(u64, u32)]) -> BTreeMap<u64, BlockText> {
        let Self { recorder, volume, base } = self;
        let mut calls = recorder.stop().unwrap_or_default();
        calls.retain(|call| !matches!(call.action, Action::End | Action::Close { .. }));
        let call = |action, data| Call { action, process: Process::default(), at_nanos: 0, data };
        let mut writes = Vec::new();
        for &(offset, block_bytes) in blocks {
            let mut bytes = vec![0; block_bytes as usize];
            if after.read(&mut bytes, offset).is_err() {
                continue;
            }
            writes.push((offset, CallNr(calls.len() as u32)));
            let action = Action::BlockWrite { offset, block_bytes, durable: false };
            calls.push(call(action, Bytes::from(bytes)));
            // Between two writes is a moment of each: before the one, and after the other.
            calls.push(call(Action::BlockFlush { covers: CallNr(0) }, Bytes::new()));
        }
        let kind = volume.kind.clone();
        let before = Rc::new(Moment::new(&kind, volume.image.clone()));
        let now = Rc::new(Moment::new(&kind, after.clone()));
        let recording = Recording::new(Header::default(), base, calls);
        let recording = Recording { volume: Some(volume), ..recording };
        let subject = Subject::new(&recording, Model::Volume, &[]);
        let Some(mut explainer) = Explainer::new(&subject) else { return BTreeMap::new() };
        let end = CallNr(subject.calls.len() as u32);
        explainer.moments.insert(end, Rc::clone(&now));
        for (_, write) in &writes {
            explainer.moments.insert(*write, Rc::clone(&before));
            for later in 1..=2 {
                explainer.moments.entry(CallNr(write.0 + later)).or_insert_with(|| Rc::clone(&now));
            }
        }
        let units = (0..subject.units.units.len() as u32).map(UnitNr);
        let mut found = BTreeMap::new();
        for unit in units {
            let written = subject.units.units[unit.index()].call;
            let Some((offset, _)) = writes.iter().find(|(_, call)| *call == written) else {
                continue;
            };
            if let Some(text) = explainer.explain([unit]).into_iter().next() {
                found.insert(*offset, text);
            }
        }
        found
    }
}
