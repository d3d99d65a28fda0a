//! Checks of an MDB and of its copy.

use super::problem::Problem;
use crate::layout::{Attributes, Extent, Mdb};
use crate::store::Store;
use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;

/// Checks the MDB of a volume on a device of `blocks`, and its copy.
pub(super) fn check<S: Store>(
    s: &mut S,
    mdb: &Mdb,
    blocks: u64,
    problems: &mut Vec<Problem>,
) -> Result<()> {
    geometry(mdb, blocks, problems);
    fields(mdb, problems);
    copy(s, mdb, blocks, problems)
}

fn geometry(mdb: &Mdb, blocks: u64, problems: &mut Vec<Problem>) {
    let mut bad = |what| problems.push(Problem::Geometry { what });
    let per = mdb.blocks_per_alloc().max(1);
    let whole = blocks / per;
    if whole > 65_535 {
        bad(format!(
            "allocation blocks are too small: the device has {whole} of them, and at most 65535 \
             are allowed"
        ));
    }
    let bitmap = Mdb::bitmap_blocks_of(blocks, per).max(mdb.bitmap_blocks());
    if u64::from(mdb.first_block) < u64::from(mdb.bitmap_block) + bitmap {
        bad(format!(
            "the allocation blocks begin in block {}, within the {bitmap} blocks of the bitmap in \
             block {} as Apple's checker counts them",
            mdb.first_block, mdb.bitmap_block
        ));
    }
    let most = blocks.saturating_sub(3 + bitmap) / per;
    if u64::from(mdb.alloc_blocks) > most {
        let count = mdb.alloc_blocks;
        bad(format!(
            "it has {count} allocation blocks, and Apple's checker accepts at most {most}"
        ));
    }
}

fn fields(mdb: &Mdb, problems: &mut Vec<Problem>) {
    let mut bad = |what| problems.push(Problem::Mdb { what });
    let size = mdb.alloc_block_bytes;
    for (what, bytes, fits) in [
        ("clump size", mdb.clump_bytes, mdb.takes_file_clump(mdb.clump_bytes)),
        (
            "extents clump size",
            mdb.extents_clump_bytes,
            mdb.takes_tree_clump(mdb.extents_clump_bytes),
        ),
        (
            "catalog clump size",
            mdb.catalog_clump_bytes,
            mdb.takes_tree_clump(mdb.catalog_clump_bytes),
        ),
    ] {
        if !fits {
            bad(format!(
                "the {what} of {bytes} is one that Apple's checker rejects for allocation blocks \
                 of \
                 {size} bytes"
            ));
        }
    }
    if mdb.attributes.contains(Attributes::INCONSISTENT) {
        bad("the volume is marked as inconsistent: a repair was interrupted".into());
    }
    if mdb.attributes.intersects(Attributes::RESERVED) {
        bad(format!("reserved bits are set in its attributes {:#06x}", mdb.attributes.bits()));
    }
    let unused = (mdb.embed_signature, mdb.embed_extent) == (0, Extent::default());
    if !unused && !mdb.is_wrapper() {
        bad("drVCSize, drVBMCSize and drCtlCSize are not zero".into());
    }
    if mdb.name.is_empty() {
        bad("the volume has no name".into());
    }
}

fn copy<S: Store>(s: &mut S, mdb: &Mdb, blocks: u64, problems: &mut Vec<Problem>) -> Result<()> {
    let Some(at) = mdb.copy_block(blocks) else {
        // The device is too short for a copy: `Problem::Cut` reports that.
        return Ok(());
    };
    let copy = match Mdb::parse(s.read(at)?) {
        Ok(copy) => copy,
        Err(Error::Device { errno, message }) => return Err(Error::Device { errno, message }),
        Err(_) => {
            problems.push(Problem::Copy { what: "not a valid MDB" });
            return Ok(());
        }
    };
    let places = |m: &Mdb| (m.alloc_blocks, m.alloc_block_bytes, m.first_block, m.bitmap_block);
    let trees =
        |m: &Mdb| (m.catalog_file, m.catalog_file_bytes, m.extents_file, m.extents_file_bytes);
    if places(&copy) != places(mdb) {
        problems.push(Problem::Copy { what: "its layout of the volume differs from the MDB's" });
    } else if trees(&copy) != trees(mdb) {
        problems.push(Problem::Copy { what: "its extents of the trees differ from the MDB's" });
    } else if copy.created != mdb.created {
        problems.push(Problem::Copy { what: "its creation date differs from the MDB's" });
    }
    Ok(())
}
