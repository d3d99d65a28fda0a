//! Blocks on their way to the device.

use crate::{BlockNr, Error, Result};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::sync::Arc;
use weft_block::BlockDevice;

/// The system's limit on the parts of one vectored write.
const MAX_PARTS: usize = 1024;

/// One block on its way to the device.
#[derive(Debug)]
pub(crate) struct Write {
    pub buffer: u32,
    pub nr: BlockNr,
    pub content: Arc<[u8]>,
    pub patches: SmallVec<[u32; 2]>,
    /// Its run, or `NONE`.
    pub run: u32,
    /// Set if a patch was rolled back.
    pub partial: bool,
    /// The journal's next transaction when the copy was made.
    pub sequence: u32,
    /// Time at which the copy was made, on the engine's clock.
    pub taken_ms: u64,
    pub error: Option<Error>,
}

/// Writes a batch sorted by block, adjacent blocks in one request. Returns the requests' sizes in
/// blocks.
pub(crate) fn write_batch(
    device: &dyn BlockDevice,
    batch: &mut [Write],
    block_bytes: usize,
    max_request_bytes: usize,
) -> Vec<usize> {
    let max_blocks = (max_request_bytes / block_bytes).clamp(1, MAX_PARTS);
    let mut requests = Vec::new();
    let mut at = 0;
    while at < batch.len() {
        let first = batch[at].nr;
        let mut n = 1;
        while n < max_blocks && at + n < batch.len() && batch[at + n].nr.0 == first.0 + n as u64 {
            n += 1;
        }
        let run = &mut batch[at..at + n];
        let result = {
            let parts: SmallVec<[IoSlice<'_>; 64]> =
                run.iter().map(|w| IoSlice::new(&w.content)).collect();
            device.write_vectored_at(&parts, first.0 * block_bytes as u64)
        };
        let error = result.err().map(|e| Error::device(first, &e));
        for write in run {
            write.error.clone_from(&error);
        }
        requests.push(n);
        at += n;
    }
    requests
}

/// Marks a whole batch as not durable, after a failed flush.
pub(crate) fn fail_all(batch: &mut [Write], error: &Error) {
    for write in batch {
        write.error.get_or_insert_with(|| error.clone());
    }
}

/// Returns the first error of a batch, if any.
pub(crate) fn first_error(batch: &[Write]) -> Result<()> {
    batch.iter().find_map(|w| w.error.clone()).map_or(Ok(()), Err)
}
