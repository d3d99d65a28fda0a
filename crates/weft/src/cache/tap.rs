//! The device above a cache, where a recording of what is asked for can be switched on and off.

use crate::{Error, Result};
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use weft_block::{BlockDevice, Extent, Geometry};
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

    fn note(&self, offset: u64, len_bytes: u64) {
        if let Some(recorder) = &*self.recorder.read().unwrap_or_else(PoisonError::into_inner) {
            recorder.note(offset, len_bytes);
        }
    }
}

impl BlockDevice for Tap {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        self.note(offset, buf.len() as u64);
        self.device.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> weft_block::Result<()> {
        self.note(offset, buf.len() as u64);
        self.device.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> weft_block::Result<()> {
        self.note(offset, bufs.iter().map(|b| b.len() as u64).sum());
        self.device.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> weft_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        self.device.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        self.note(offset, len_bytes);
        self.device.write_zeroes(offset, len_bytes)
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> weft_block::Result<Extent> {
        self.device.extent_at(offset, len_bytes)
    }

    fn zeroes_are_fast(&self) -> bool {
        self.device.zeroes_are_fast()
    }

    fn check_whole(&self) -> weft_block::Result<()> {
        self.device.check_whole()
    }
}
