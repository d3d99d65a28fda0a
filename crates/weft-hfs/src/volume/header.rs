//! A volume whose MDB is lost or damaged, and whose copy of it is intact.

use super::state::Volume;
use crate::Result;
use crate::layout::{Attributes, MDB_BLOCK, Mdb};
use crate::store::Store;

/// The fields of an MDB that say where everything is.
fn places(mdb: &Mdb) -> (u16, u32, u16, u16) {
    (mdb.alloc_blocks, mdb.alloc_block_bytes, mdb.first_block, mdb.bitmap_block)
}

/// Returns the MDB to be used in place of the one on the volume, if that cannot be read or places
/// the volume's parts wrongly, and its copy does not. It is marked as not unmounted: its counts may
/// be out of date. `blocks` is the length of the device.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if the copy cannot be read.
pub(crate) fn mdb_by_copy<S: Store>(s: &mut S, blocks: u64) -> Result<Option<Mdb>>
where
    S::Patch: Copy + PartialEq + core::fmt::Debug,
{
    let Some(at) = blocks.checked_sub(2).filter(|at| *at > MDB_BLOCK) else { return Ok(None) };
    let own = match s.read(MDB_BLOCK) {
        Ok(raw) => Mdb::parse(raw),
        Err(e) => Err(e),
    };
    let Ok(copy) = Mdb::parse(s.read(at)?) else { return Ok(None) };
    if copy.check(blocks).is_err() || own.as_ref().is_ok_and(|own| places(own) == places(&copy)) {
        return Ok(None);
    }
    let mut opens = |mdb: &Mdb| {
        let is_apart =
            u64::from(mdb.first_block) >= u64::from(mdb.bitmap_block) + mdb.bitmap_blocks();
        is_apart && Volume::open_trees(s, mdb.clone(), blocks, false).is_ok()
    };
    if let Ok(own) = &own
        && opens(own)
    {
        // Less than an allocation block is left behind the last one, and the copy has its place.
        let left = |mdb: &Mdb| blocks.saturating_sub(mdb.least_blocks());
        let fits = own.least_blocks() <= blocks && left(own) < own.blocks_per_alloc();
        if fits || own.least_blocks() <= blocks && left(&copy) >= left(own) {
            return Ok(None);
        }
    }
    // The rest of the MDB is newer than its copy.
    let merged = own.ok().map(|own| Mdb {
        alloc_blocks: copy.alloc_blocks,
        alloc_block_bytes: copy.alloc_block_bytes,
        first_block: copy.first_block,
        bitmap_block: copy.bitmap_block,
        ..own
    });
    let found = merged.into_iter().chain([copy]).find(opens);
    Ok(found.map(|mut mdb| {
        mdb.attributes.remove(Attributes::UNMOUNTED);
        mdb
    }))
}
