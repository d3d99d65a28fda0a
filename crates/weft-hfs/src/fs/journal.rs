//! The journal beside a volume: the HFS format has no space for an internal one.

use super::store::engine_error;
use crate::layout::{MDB_BLOCK, Mdb, put, put16, put32};
use crate::store::{Device, Raw};
use crate::{Error, Result};
use std::sync::Arc;
use weft_block::BlockDevice;
use weft_patch::jbd2::{
    Features, FormatOptions, Log, LogMap, Superblock, format_journal_superblock,
    superblock::SUPERBLOCK_BYTES,
};
use weft_patch::{Engine, Options};

/// JBD2's smallest block size. On a volume with an odd number of 512-byte blocks nothing is lost:
/// its last block is not used.
const BLOCK_BYTES: u32 = 1024;

fn log_error(e: &weft_patch::jbd2::Error) -> Error {
    Error::corrupt("journal", 0, e.to_string())
}

/// Returns an identifier of the volume on a device, made of constant fields of its MDB, as HFS has
/// no UUID.
fn identity(device: &dyn BlockDevice) -> Result<[u8; 16]> {
    let mut raw = [0; 512];
    Raw(device).read_at(&mut raw, MDB_BLOCK * 512)?;
    let mdb = Mdb::parse(&raw)?;
    let mut id = *b"weft\0\0\0\0\0\0\0\0\0\0\0\0";
    put32(&mut id, 4, mdb.created);
    put32(&mut id, 8, mdb.alloc_block_bytes);
    put16(&mut id, 12, mdb.alloc_blocks);
    put(&mut id, 14, &mdb.first_block.to_be_bytes());
    Ok(id)
}

/// Makes an empty journal on the whole of `journal`, for the volume on `device`. The old content of
/// `journal` is lost.
///
/// # Errors
/// [`Error::Invalid`] if it is too small; device errors.
pub fn format_journal(device: &dyn BlockDevice, journal: &dyn BlockDevice) -> Result<()> {
    let fail = |e: weft_block::Error| Error::Device { errno: e.errno(), message: e.to_string() };
    let len_bytes = journal.geometry().len_bytes;
    let len_blocks = u32::try_from(len_bytes / u64::from(BLOCK_BYTES)).unwrap_or(u32::MAX);
    let block = format_journal_superblock(&FormatOptions {
        block_bytes: BLOCK_BYTES,
        len_blocks,
        superblock_at: 0,
        uuid: identity(device)?,
        features: Features::revoke_and_checksums(),
        users: Vec::new(),
    })
    .map_err(|e| Error::Invalid(e.to_string()))?;
    // The log must not hold blocks of an older log, whose sequence numbers might fit.
    journal.write_zeroes(0, u64::from(len_blocks) * u64::from(BLOCK_BYTES)).map_err(fail)?;
    journal.flush().map_err(fail)?;
    journal.write_at(&block, 0).map_err(fail)?;
    journal.flush().map_err(fail)
}

/// Returns true if a journal exists; returns an error if it belongs to another volume.
fn is_there(device: &dyn BlockDevice, journal: &dyn BlockDevice) -> Result<bool> {
    let mut raw = [0; SUPERBLOCK_BYTES];
    Raw(journal).read_at(&mut raw, 0)?;
    if raw == [0; SUPERBLOCK_BYTES] {
        return Ok(false);
    }
    let superblock = Superblock::parse(&raw).map_err(|e| log_error(&e))?;
    if superblock.uuid != identity(device)? {
        return Err(Error::Invalid("the journal given is another volume's".into()));
    }
    Ok(true)
}

/// Replays the changes that a crash has left in the journal. Returns true if there were any: then
/// the volume needs no other recovery.
pub(super) fn replay(
    device: &Arc<dyn BlockDevice>,
    journal: &Arc<dyn BlockDevice>,
) -> Result<bool> {
    if !is_there(&**device, &**journal)? {
        return Ok(false);
    }
    let map = LogMap::sidecar(Arc::clone(journal)).map_err(|e| log_error(&e))?;
    if !Log::open(map.clone()).map_err(|e| log_error(&e))?.needs_recovery() {
        return Ok(false);
    }
    let done = weft_patch::recover(&**device, BLOCK_BYTES, map).map_err(|e| engine_error(&e))?;
    tracing::info!("replayed {} transactions of the journal", done.transactions);
    Ok(done.transactions > 0)
}

/// Replays the changes that a crash has left in the journal beside a volume, for tools that read
/// the volume without [`Hfs::open`](super::Hfs::open), such as a check. Returns true if there were
/// any.
///
/// # Errors
/// [`Error::Invalid`] for another volume's journal, [`Error::Corrupt`] for a damaged one;
/// device errors.
pub fn replay_journal(
    device: &Arc<dyn BlockDevice>,
    journal: &Arc<dyn BlockDevice>,
) -> Result<bool> {
    replay(device, journal)
}

/// Makes an engine that commits through the journal, which is created if it does not exist.
pub(super) fn engine(
    device: &Arc<dyn BlockDevice>,
    journal: &Arc<dyn BlockDevice>,
    options: Options,
) -> Result<Arc<Engine>> {
    if !is_there(&**device, &**journal)? {
        format_journal(&**device, &**journal)?;
    }
    let map = LogMap::sidecar(Arc::clone(journal)).map_err(|e| log_error(&e))?;
    Engine::with_journal(Arc::clone(device), BLOCK_BYTES, options, map)
        .map_err(|e| engine_error(&e))
}
