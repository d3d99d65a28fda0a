//! A check of a volume: its MDB, trees, items and bitmap.

use super::census::Census;
use super::mdb;
use super::problem::Problem;
use super::report::Report;
use super::walk::{Walk, shape};
use crate::layout::{self, BLOCK_BYTES, Header, MDB_BLOCK, Mdb};
use crate::store::{Bare, Device, Store};
use crate::volume::{Volume, mdb_by_copy};
use crate::{Error, Result};
use alloc::vec::Vec;

/// Checks the volume on a device.
///
/// # Errors
/// [`Error::NotHfs`]; [`Error::Corrupt`] if no tree can be opened; [`Error::Device`].
pub fn check_on<D: Device>(device: D) -> Result<Report> {
    let blocks = device.len_blocks();
    check_store(&mut Bare::new(ZeroBeyond(device)), blocks)
}

/// A device that reads as zero beyond its end: an image may be truncated.
pub(super) struct ZeroBeyond<D>(pub D);

impl<D: Device> Device for ZeroBeyond<D> {
    fn len_blocks(&self) -> u64 {
        self.0.len_blocks()
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = self.0.len_blocks().saturating_mul(BLOCK_BYTES as u64);
        let there = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (inside, beyond) = buf.split_at_mut(there.min(buf.len()));
        beyond.fill(0);
        if inside.is_empty() { Ok(()) } else { self.0.read_at(inside, offset) }
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

/// Checks the volume on a device.
///
/// # Errors
/// As [`check_on`].
#[cfg(feature = "std")]
pub fn check(device: &dyn weft_block::BlockDevice) -> Result<Report> {
    check_on(crate::store::Raw(device))
}

/// Checks the volume in a store whose device has `blocks`.
pub(super) fn check_store<S: Store>(s: &mut S, blocks: u64) -> Result<Report> {
    if blocks <= MDB_BLOCK {
        return Err(Error::NotHfs { found: 0 });
    }
    if mdb_by_copy(s, blocks)?.is_some() {
        return Err(Error::corrupt("MDB", MDB_BLOCK, super::BY_COPY));
    }
    let mdb = Mdb::parse(s.read(MDB_BLOCK)?)?;
    check_volume(s, mdb, blocks)
}

/// Checks a volume that may be longer than the `blocks` of its device; the store reads as zero
/// beyond them.
fn check_volume<S: Store>(s: &mut S, mdb: Mdb, blocks: u64) -> Result<Report> {
    let least = mdb.least_blocks();
    let cut = (least > blocks).then_some(Problem::Cut { blocks, least });
    let volume = Volume::open_trees(s, mdb, blocks.max(least), true)?;
    let mut report = Report { unmounted: volume.is_clean(), ..Report::default() };
    let mdb = volume.mdb.clone();
    if let Some(cut) = cut {
        report.problems.push(cut);
    } else {
        mdb::check(s, &mdb, blocks, &mut report.problems)?;
    }
    let mut walks = Vec::new();
    for tree in [&volume.catalog, &volume.extents] {
        let walk = Walk::new(s, tree);
        let stored = Header::parse(s.read(tree.block_of(0)?)?);
        report.problems.extend(walk.damage.iter().cloned());
        if walk.damage.is_empty() {
            report.problems.extend(shape(s, tree, &walk, &stored)?);
        }
        let nodes = volume.mdb_file_bytes(tree.kind) / BLOCK_BYTES as u32;
        if tree.header.nodes != nodes {
            report.problems.push(Problem::Header {
                tree: tree.kind,
                field: "the number of nodes",
                found: tree.header.nodes,
                right: nodes,
            });
        }
        walks.push(walk);
    }
    let [catalog, extents] = walks.as_slice() else { return Ok(report) };
    let mut census = Census::new(&catalog.records, &extents.records);
    // A tree without a header was not walked.
    let headless = [&volume.catalog, &volume.extents].map(|tree| tree.headless.is_some());
    if !headless[0] {
        census.check_items(&mdb);
    }
    let used = if headless == [false; 2] { census.check_extents(&mdb) } else { Vec::new() };
    // If records are unreachable, structures that follow from all records cannot be checked.
    let whole = catalog.damage.is_empty() && extents.damage.is_empty();
    report.problems.append(&mut census.problems);
    report.notes.append(&mut census.notes);
    if whole {
        check_bitmap(s, &volume, &used, &mut report.problems)?;
    }
    report.files = u32::try_from(census.files.len()).unwrap_or(u32::MAX);
    report.folders = u32::try_from(census.folders.len()).unwrap_or(u32::MAX);
    report.used_blocks = u32::try_from(used.iter().filter(|&&u| u).count()).unwrap_or(u32::MAX);
    Ok(report)
}

fn check_bitmap<S: Store>(
    s: &mut S,
    volume: &Volume<S::Patch>,
    used: &[bool],
    problems: &mut Vec<Problem>,
) -> Result<()> {
    let mut run: Option<(u32, u32, bool)> = None;
    for nr in 0..u32::from(volume.mdb.alloc_blocks) {
        let is_used = used.get(nr as usize).copied().unwrap_or(false);
        run = match run.take() {
            Some((first, count, same))
                if volume.space.on_disk(nr) != is_used
                    && same == is_used
                    && first + count == nr =>
            {
                Some((first, count + 1, same))
            }
            old => {
                if let Some((first, count, used)) = old {
                    problems.push(Problem::Bitmap { first, count, used });
                }
                (volume.space.on_disk(nr) != is_used).then_some((nr, 1, is_used))
            }
        };
    }
    if let Some((first, count, used)) = run {
        problems.push(Problem::Bitmap { first, count, used });
    }
    let free = volume.space.free_on_disk();
    if u32::from(volume.mdb.free_blocks) != free {
        problems.push(Problem::Count {
            what: "the number of free blocks",
            found: u32::from(volume.mdb.free_blocks),
            right: free,
        });
    }
    // Apple's checker compares 1024 bits at a time: bits without a block must be clear.
    let first = u32::from(volume.mdb.alloc_blocks);
    let last_block = u64::from(volume.mdb.bitmap_block) + volume.mdb.bitmap_blocks() - 1;
    let raw = s.read(last_block)?;
    let is_set = |nr: u32| {
        let bit = nr % (8 * BLOCK_BYTES as u32);
        layout::get8(raw, bit as usize / 8) & (0x80 >> (bit % 8)) != 0
    };
    let count = first.next_multiple_of(1024) - first;
    if (first..first + count).any(is_set) {
        problems.push(Problem::Bitmap { first, count, used: false });
    }
    Ok(())
}
