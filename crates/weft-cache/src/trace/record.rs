//! Recording: what a device is asked for, as a trace.

use super::Request;
use super::oracle::{self, RECORD_BYTES};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use weft_block::{BlockDevice, Change, ChangeKind, Filter};

/// Writes an oracleGeneral trace of the blocks that are used: one record a block, so what a cache
/// of that block size is asked.
///
/// A use costs a short lock and 24 bytes; the file is written 256 KiB at a time. A failure to write
/// ends the recording, and never fails a request: [`TraceRecorder::finish`] tells of it.
#[derive(Debug)]
pub struct TraceRecorder {
    block_bytes: u32,
    began: Instant,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: BufWriter<File>,
    records: u64,
    records_max: u64,
    failed: Option<io::Error>,
}

impl TraceRecorder {
    /// Records uses of blocks of `block_bytes` into a new file, at most `bytes_max` of it: what
    /// comes later is left out.
    ///
    /// # Errors
    /// If the file cannot be made, or exists.
    pub fn create(path: &Path, block_bytes: u32, bytes_max: u64) -> io::Result<TraceRecorder> {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        let output = Output {
            file: BufWriter::with_capacity(RECORD_BYTES * 10_922, file),
            records: 0,
            records_max: bytes_max / RECORD_BYTES as u64,
            failed: None,
        };
        Ok(TraceRecorder {
            block_bytes: block_bytes.max(1),
            began: Instant::now(),
            output: Mutex::new(output),
        })
    }

    /// A range of bytes of the origin is used, now.
    pub fn note(&self, offset: u64, len_bytes: u64) {
        let time_s = u32::try_from(self.began.elapsed().as_secs()).unwrap_or(u32::MAX);
        self.note_at(time_s, offset, len_bytes);
    }

    /// A range of the origin is changed, now. To discard it is not to use it.
    pub fn note_change(&self, change: &Change<'_>) {
        if !matches!(change.kind, ChangeKind::Discard) {
            self.note(change.offset, change.len_bytes);
        }
    }

    /// A range of bytes of the origin is used, `time_s` seconds from the start.
    pub fn note_at(&self, time_s: u32, offset: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let block_bytes = u64::from(self.block_bytes);
        let first = offset / block_bytes;
        let last = offset.saturating_add(len_bytes - 1) / block_bytes;
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        for block in first..=last {
            if output.failed.is_some() || output.records == output.records_max {
                return;
            }
            let request = Request { time_s, block, len_bytes: self.block_bytes, next: None };
            match output.file.write_all(&oracle::encode(&request)) {
                Ok(()) => output.records += 1,
                Err(e) => output.failed = Some(e),
            }
        }
    }

    /// How many uses have been recorded.
    pub fn records(&self) -> u64 {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).records
    }

    /// Writes the rest, fills in when each block is next used, and returns how many uses were
    /// recorded.
    ///
    /// # Errors
    /// Those of the file, also earlier ones. What was written before remains a valid trace.
    pub fn finish(self) -> io::Result<u64> {
        let output = self.output.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = output.failed {
            return Err(e);
        }
        let file = output.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        oracle::fill_in_next(&file)?;
        Ok(output.records)
    }
}

/// Another device; its reads and writes are recorded before they are passed on.
#[derive(Debug)]
pub struct TraceDevice<D> {
    inner: D,
    recorder: TraceRecorder,
}

impl<D: BlockDevice> TraceDevice<D> {
    /// Records what `inner` is asked for.
    pub fn new(inner: D, recorder: TraceRecorder) -> TraceDevice<D> {
        TraceDevice { inner, recorder }
    }

    /// Returns the recording so far.
    pub fn recorder(&self) -> &TraceRecorder {
        &self.recorder
    }

    /// Ends the recording and gives the device back.
    pub fn into_parts(self) -> (D, TraceRecorder) {
        (self.inner, self.recorder)
    }
}

impl<D: BlockDevice> Filter for TraceDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        self.recorder.note(offset, buf.len() as u64);
        self.inner.read_at(buf, offset)
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        self.recorder.note_change(&change);
        change.apply(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, open};
    use super::*;
    use std::io::IoSlice;
    use weft_block::MemoryDevice;

    #[test]
    fn a_device_is_recorded_block_by_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.oracleGeneral");
        let recorder = TraceRecorder::create(&path, 4096, u64::MAX).unwrap();
        let device = TraceDevice::new(MemoryDevice::new(1 << 20), recorder);
        device.read_at(&mut [0; 8192], 4000).unwrap();
        device.write_at(&[1; 4096], 8192).unwrap();
        device.write_vectored_at(&[IoSlice::new(&[1; 512]), IoSlice::new(&[2; 512])], 0).unwrap();
        device.read_at(&mut [], 0).unwrap();
        device.write_zeroes(4096, 4096).unwrap();
        device.discard(0, 4096).unwrap();
        let (_, recorder) = device.into_parts();
        assert_eq!(recorder.finish().unwrap(), 6);
        let requests: Vec<Request> =
            open(&path, &Format::OracleGeneral).unwrap().map(Result::unwrap).collect();
        let blocks: Vec<u64> = requests.iter().map(|request| request.block).collect();
        assert_eq!(blocks, [0, 1, 2, 2, 0, 1]);
        let next: Vec<Option<u64>> = requests.iter().map(|request| request.next).collect();
        assert_eq!(next, [Some(5), Some(6), Some(4), None, None, None]);
    }

    #[test]
    fn a_recording_stays_within_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let recorder = TraceRecorder::create(&path, 4096, 100).unwrap();
        recorder.note(0, u64::MAX);
        assert_eq!(recorder.finish().unwrap(), 4);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 96);
        assert!(TraceRecorder::create(&path, 4096, 100).is_err());
    }
}
