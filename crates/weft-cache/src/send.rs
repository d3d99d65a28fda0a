//! Sends a batch of write-back to the origin: neighbours in one request, many requests at a time.
//!
//! A failed request does not affect the others: data that they have written is not written again.

use crate::cache::Cache;
use crate::data::Data;
use crate::origin::Origin;
use crate::policy::BlockKey;
use crate::stats::Count;
use crate::{Error, Result, SUB_BLOCK_BYTES};
use crc32c::crc32c;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// Maximum length of a request to an origin, in bytes.
const REQUEST_BYTES: u64 = 1 << 20;

/// Number of failed requests of a batch after which, if they are more than a quarter, the rest is
/// not tried: each may take as long as the origin's timeout.
const FAILURES_MAX: usize = 4;

/// A dirty block: its slot, and the sub-blocks to be written with their checksums.
pub(crate) struct Dirty {
    pub(crate) key: BlockKey,
    pub(crate) slot: u32,
    pub(crate) mask: u16,
    /// Those sub-blocks that are zeroes, whatever the slot contains.
    pub(crate) zero: u16,
    pub(crate) crcs: Vec<u32>,
}

/// A sub-block of a request: its block in the batch, and its number in the block.
#[derive(Debug, Clone, Copy)]
struct Piece {
    block: usize,
    sub: u32,
    crc: u32,
}

/// The result of a batch.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Number of bytes that the origin has accepted.
    pub(crate) bytes: u64,
    /// The sub-blocks that the origin has, by block of the batch.
    pub(crate) taken: Vec<u16>,
    /// The first failure.
    pub(crate) error: Option<Error>,
    failures: usize,
    requests: usize,
}

impl Cache {
    /// Writes blocks, sorted by key, to their origin. `place`: the offset of slot 0, and the size
    /// of a block, in bytes.
    pub(crate) fn send(&self, origin: &Origin, found: &[Dirty], place: (u64, u64)) -> Sent {
        let requests = requests(found, place.1);
        let sent = Mutex::new(Sent { taken: vec![0; found.len()], ..Sent::default() });
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = self.send_request(origin, found, request, place);
                let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
                sent.requests += 1;
                match done {
                    Ok(taken) => {
                        for piece in &taken {
                            sent.taken[piece.block] |= 1 << piece.sub;
                        }
                        sent.bytes += taken.len() as u64 * SUB;
                    }
                    Err(error) => {
                        sent.failures += 1;
                        sent.error.get_or_insert(error);
                    }
                }
                if sent.failures >= FAILURES_MAX && sent.failures * 4 > sent.requests {
                    return;
                }
            }
        };
        // Without background threads, everything happens in the calling thread, in the same order.
        let most = if self.options.background { self.options.writeback_requests.max(1) } else { 1 };
        let threads = requests.len().min(most as usize);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If a thread does not start, the others do its work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        sent.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one request. Sub-blocks that do not match their checksum stay in the cache, and split
    /// it. A run of zeroes alone is zeroed, so that the origin may keep a hole there.
    fn send_request(
        &self,
        origin: &Origin,
        found: &[Dirty],
        request: &[Piece],
        (data_offset, block_bytes): (u64, u64),
    ) -> Result<Vec<Piece>> {
        let mut data = vec![0; request.len() * SUB_BLOCK_BYTES];
        let mut good: Vec<bool> = Vec::with_capacity(request.len());
        for (piece, out) in request.iter().zip(data.chunks_exact_mut(SUB_BLOCK_BYTES)) {
            let block = &found[piece.block];
            if block.zero >> piece.sub & 1 != 0 {
                good.push(true);
                continue;
            }
            let at = data_offset + u64::from(block.slot) * block_bytes;
            self.read_cache(out, at + u64::from(piece.sub) * SUB)?;
            good.push(crc32c(out) == piece.crc);
        }
        let mut taken = Vec::with_capacity(request.len());
        let (mut pieces, mut rest) = (request, &data[..]);
        for same in good.chunk_by(|a, b| a == b) {
            let (run, pieces_left) = pieces.split_at(same.len());
            let (bytes, rest_left) = rest.split_at(same.len() * SUB_BLOCK_BYTES);
            (pieces, rest) = (pieces_left, rest_left);
            let start = place_of(found, run[0], block_bytes);
            if same[0] {
                let zero = |piece: &Piece| found[piece.block].zero >> piece.sub & 1 != 0;
                let data = match bytes {
                    _ if run.iter().all(zero) => Data::Zeroes(bytes.len() as u64),
                    bytes => Data::Bytes(bytes),
                };
                self.write_run(origin, data, start)?;
                taken.extend_from_slice(run);
            } else {
                for (n, piece) in (0..).zip(run) {
                    self.stays_behind(origin, found[piece.block].slot, start + n * SUB);
                }
            }
        }
        Ok(taken)
    }

    fn write_run(&self, origin: &Origin, data: Data<'_>, start: u64) -> Result<()> {
        // The origin's last sub-block may be incomplete.
        let len = (origin.id.len_bytes - start).min(data.len());
        let written = match data.part(0, len) {
            Data::Bytes(bytes) => origin.device.write_at(bytes, start),
            Data::Zeroes(len) => origin.device.write_zeroes(start, len),
        };
        origin.count_write();
        self.counters.writeback_requests.add(1);
        self.counters.writeback_bytes.add(len);
        written.map_err(|e| origin.failed(&self.counters, e))
    }

    fn stays_behind(&self, origin: &Origin, slot: u32, at: u64) {
        self.counters.dirty_damaged.add(1);
        let origin = &origin.id.label;
        tracing::error!(origin, at, slot, "a dirty block is damaged, and stays in the cache");
        self.lock().dirty.mark_damaged(slot);
    }
}

/// Returns the byte offset of a piece in the origin.
fn place_of(found: &[Dirty], piece: Piece, block_bytes: u64) -> u64 {
    found[piece.block].key.block() * block_bytes + u64::from(piece.sub) * SUB
}

/// Returns the sub-blocks of a batch as requests, with those that are adjacent in the origin in
/// one.
fn requests(found: &[Dirty], block_bytes: u64) -> Vec<Vec<Piece>> {
    let mut requests: Vec<Vec<Piece>> = Vec::new();
    let mut end = None;
    for (block, dirty) in found.iter().enumerate() {
        let subs = (0..16_u32).filter(|sub| dirty.mask >> sub & 1 != 0);
        for (sub, crc) in subs.zip(&dirty.crcs) {
            let piece = Piece { block, sub, crc: *crc };
            let at = place_of(found, piece, block_bytes);
            match requests.last_mut() {
                Some(request)
                    if end == Some(at) && (request.len() as u64) < REQUEST_BYTES / SUB =>
                {
                    request.push(piece);
                }
                _ => requests.push(vec![piece]),
            }
            end = Some(at + SUB);
        }
    }
    requests
}
