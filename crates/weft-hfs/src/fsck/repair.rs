//! Repair: rebuilds all structures that follow from the leaves.
//!
//! The records of both trees are taken from the leaves, also from unreferenced leaves if an index
//! is damaged. Contradictions among them are resolved (see [`Problem::fix`]), and from the
//! remaining records the trees, the bitmap, and the counts are written.
//!
//! # What a power cut leaves
//!
//! An interrupted repair is run again, and has the same result. A sound tree stays. Any other is
//! written anew, into blocks that are not in use:
//!
//! 1. The MDB is marked inconsistent, so that no system changes the volume before the repair ends.
//! 2. The bitmap is written, with the blocks of the old trees and of the new.
//! 3. The new trees are written, and flushed. The data that the repair has read is still unchanged.
//! 4. One write of the MDB makes them the volume's trees. From here on the volume is repaired.
//! 5. The bitmap without the old trees and the copy of the MDB are written.
//!
//! On a volume without enough free space for that, the trees are written in place, and a power cut
//! may cost records: [`Repaired::in_place`] is set then.

mod rebuild;
mod write;

use super::check::{ZeroBeyond, check_store};
use super::problem::Problem;
use super::report::Report;
use crate::layout::{Attributes, MDB_BLOCK, Mdb};
use crate::store::{Bare, Device, Store};
use crate::volume::{Volume, mdb_by_copy};
use crate::{Error, Result};
use alloc::format;
use alloc::vec;
use rebuild::Rebuild;

/// The result of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The check before the repair.
    pub before: Report,
    /// The check after the repair.
    pub after: Report,
    /// There was no space for new trees: a power cut during the repair might have cost records.
    pub in_place: bool,
}

/// Checks the volume on a device and repairs its problems.
///
/// # Errors
/// [`Error::NotHfs`] if not even the copy of the MDB can be read; [`Error::Corrupt`] if the MDB
/// leads to no trees; [`Error::NoSpace`]; [`Error::Device`]. A truncated image is left as it is.
pub fn repair_on<D: Device>(device: D) -> Result<Repaired> {
    let blocks = device.len_blocks();
    let mut s = Bare::new(ZeroBeyond(device));
    let before = match check_store(&mut s, blocks) {
        Ok(report)
            if !report.problems.iter().any(Problem::is_repairable) || report.cut().is_some() =>
        {
            return Ok(Repaired { after: report.clone(), before: report, in_place: false });
        }
        Ok(report) => report,
        Err(Error::Device { errno, message }) => return Err(Error::Device { errno, message }),
        Err(e) => {
            let problem = Problem::Unreadable { what: format!("{e}") };
            Report { problems: vec![problem], ..Report::default() }
        }
    };
    let volume = open_any(&mut s, blocks)?;
    let in_place = Rebuild::new(&mut s, &volume)?.write(&mut s, &volume, blocks)?;
    let after = check_store(&mut s, blocks)?;
    Ok(Repaired { before, after, in_place })
}

/// Checks the volume on a device and repairs its problems.
///
/// # Errors
/// As [`repair_on`].
#[cfg(feature = "std")]
pub fn repair(device: &dyn weft_block::BlockDevice) -> Result<Repaired> {
    let repaired = repair_on(crate::store::Raw(device))?;
    device.flush().map_err(|e| Error::Device { errno: e.errno(), message: format!("{e}") })?;
    Ok(repaired)
}

/// Opens a volume by its MDB, or by the MDB's copy.
fn open_any<S: Store>(s: &mut S, blocks: u64) -> Result<Volume<S::Patch>> {
    let sane = |volume: Volume<S::Patch>| {
        let mdb = &volume.mdb;
        if u64::from(mdb.first_block) < u64::from(mdb.bitmap_block) + mdb.bitmap_blocks() {
            let what = "the allocation blocks begin within the bitmap";
            return Err(Error::corrupt("MDB", MDB_BLOCK, what));
        }
        Ok(volume)
    };
    if let Some(mdb) = mdb_by_copy(s, blocks)? {
        return Volume::open_trees(s, mdb, blocks, true);
    }
    let open = |s: &mut S| {
        let mdb = Mdb::parse(s.read(MDB_BLOCK)?)?;
        Volume::open_trees(s, mdb, blocks, true)
    };
    open(s).and_then(sane).or_else(|first| {
        let copy = blocks.checked_sub(2).ok_or(Error::NotHfs { found: 0 })?;
        let raw = s.read(copy)?;
        let Ok(mut mdb) = Mdb::parse(raw) else { return Err(first) };
        // The copy may be out of date: the counts are made anew.
        mdb.attributes.remove(Attributes::UNMOUNTED);
        Volume::open_trees(s, mdb, blocks, true).and_then(sane).map_err(|_| first)
    })
}
