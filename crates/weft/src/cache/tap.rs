//! The device above a cache, where a recording of what is asked for can be switched on and off.

use crate::{Error, Result};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use weft_block::{BlockDevice, Change, Filter};
use weft_cache::CachedDevice;
use weft_cache::trace::TraceRecorder;

/// The largest trace, in bytes: 44 million accesses.
const TRACE_MAX_BYTES: u64 = 1 << 30;

/// A cached device, and perhaps a recorder.
#[derive(Debug)]
pub(super) struct Tap {
    device: Arc<CachedDevice>,
    recorder: RwLock<Option<TraceRecorder>>,
}

impl Tap {
    pub fn new(device: Arc<CachedDevice>) -> Self {
        Self { device, recorder: RwLock::new(None) }
    }

    pub fn device(&self) -> &CachedDevice {
        &self.device
    }

    /// Begins to record into a new file.
    pub fn start_trace(&self, path: &Path) -> Result<()> {
        let mut recorder = self.recorder.write().unwrap_or_else(PoisonError::into_inner);
        if recorder.is_some() {
            return Err(Error::Invalid("a recording is under way already".to_owned()));
        }
        let block_bytes = self.device.cache().block_bytes();
        *recorder = Some(
            TraceRecorder::create(path, block_bytes, TRACE_MAX_BYTES)
                .map_err(|e| Error::host("record into", path, e))?,
        );
        Ok(())
    }

    /// Ends the recording, if one is under way. Says how many accesses it has.
    pub fn finish_trace(&self) -> Result<Option<u64>> {
        let recorder = self.recorder.write().unwrap_or_else(PoisonError::into_inner).take();
        recorder
            .map(TraceRecorder::finish)
            .transpose()
            .map_err(|e| Error::Invalid(format!("the recording failed: {e}")))
    }

    fn note(&self, note: impl FnOnce(&TraceRecorder)) {
        if let Some(recorder) = &*self.recorder.read().unwrap_or_else(PoisonError::into_inner) {
            note(recorder);
        }
    }
}

impl Filter for Tap {
    type Below = CachedDevice;

    fn below(&self) -> &CachedDevice {
        &self.device
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        self.note(|recorder| recorder.note(offset, buf.len() as u64));
        self.device.read_at(buf, offset)
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        self.note(|recorder| recorder.note_change(&change));
        change.apply(&*self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_block::MemoryDevice;
    use weft_block::conformance::{Limits, forwarding, run};
    use weft_cache::{AttachOptions, Cache, CreateOptions, OpenOptions, OriginId};

    fn tap() -> Tap {
        let disk = Arc::new(MemoryDevice::new(1 << 20));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(disk, options).unwrap();
        let id = OriginId { len_bytes: 1 << 20, label: "o".to_owned(), ..OriginId::default() };
        let origin = Arc::new(MemoryDevice::new(1 << 20));
        Tap::new(cache.attach(origin, &id, &AttachOptions::default()).unwrap())
    }

    #[test]
    fn a_tap_conforms_and_all_but_discards_are_recorded() {
        run(tap, &Limits { random_runs: 2, ..Limits::default() });
        let dir = tempfile::tempdir().unwrap();
        let tap = tap();
        tap.start_trace(&dir.path().join("trace")).unwrap();
        let records = || tap.recorder.read().unwrap().as_ref().map_or(0, TraceRecorder::records);
        assert_eq!(forwarding::bypasses(&tap, records), ["discard"]);
    }
}
