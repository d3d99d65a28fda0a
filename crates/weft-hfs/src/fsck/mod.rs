//! Checking a volume, and repairing it.
//!
//! A check reads and never writes. It walks both trees by their index, puts all items and extents
//! together, and says of everything that could be derived from something else whether it is what
//! it must be.

pub(crate) mod census;
mod problem;
mod repair;
pub(crate) mod walk;

pub use problem::Problem;
#[cfg(feature = "std")]
pub use repair::repair;
pub use repair::{Repaired, repair_on};

use crate::layout::{Attributes, BLOCK_BYTES, Header, MDB_BLOCK, Mdb};
use crate::store::{Bare, Device, Store};
use crate::volume::Volume;
use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;
use census::Census;
use walk::{Walk, shape};

/// What a check has found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// Files there are.
    pub files: u32,
    /// Folders there are, with the root.
    pub folders: u32,
    /// Allocation blocks in use.
    pub used_blocks: u32,
    /// Whether the volume was unmounted.
    pub unmounted: bool,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks the volume on a device.
///
/// # Errors
/// [`Error::NotHfs`]; [`Error::Corrupt`] if there is no tree to walk; [`Error::Device`].
pub fn check_on<D: Device>(device: D) -> Result<Report> {
    let blocks = device.len_blocks();
    check_store(&mut Bare::new(device), blocks)
}

/// Checks the volume on a device.
///
/// # Errors
/// As [`check_on`].
#[cfg(feature = "std")]
pub fn check(device: &dyn weft_block::BlockDevice) -> Result<Report> {
    check_on(crate::fs::Raw(device))
}

pub(crate) fn check_store<S: Store>(s: &mut S, blocks: u64) -> Result<Report> {
    let volume = Volume::open(s, blocks)?;
    let mut report = Report { unmounted: volume.is_clean(), ..Report::default() };
    let mdb = volume.mdb.clone();
    check_mdb(s, &mdb, blocks, &mut report.problems)?;
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
    census.check_items(&mdb);
    let used = census.check_extents(&mdb);
    // Where records are out of reach, nothing can be said of what follows from all of them.
    let whole = catalog.damage.is_empty() && extents.damage.is_empty();
    report.problems.append(&mut census.problems);
    if whole {
        check_bitmap(&volume, &used, &mut report.problems);
    }
    report.files = u32::try_from(census.files.len()).unwrap_or(u32::MAX);
    report.folders = u32::try_from(census.folders.len()).unwrap_or(u32::MAX);
    report.used_blocks = u32::try_from(used.iter().filter(|&&u| u).count()).unwrap_or(u32::MAX);
    Ok(report)
}

fn check_mdb<S: Store>(
    s: &mut S,
    mdb: &Mdb,
    blocks: u64,
    problems: &mut Vec<Problem>,
) -> Result<()> {
    let mut bad = |what| problems.push(Problem::Mdb { what });
    let whole = blocks / mdb.blocks_per_alloc().max(1);
    if whole > 65_535 {
        bad(format!("the volume would have {whole} allocation blocks of this size"));
    }
    if u64::from(mdb.first_block) < u64::from(mdb.bitmap_block) + mdb.bitmap_blocks() {
        bad("the allocation blocks begin within the bitmap".into());
    }
    for (what, bytes) in [
        ("clump size", mdb.clump_bytes),
        ("extents clump size", mdb.extents_clump_bytes),
        ("catalog clump size", mdb.catalog_clump_bytes),
    ] {
        if bytes == 0 || bytes % mdb.alloc_block_bytes != 0 {
            bad(format!("the {what} of {bytes} is no multiple of an allocation block"));
        }
    }
    if mdb.attributes.contains(Attributes::INCONSISTENT) {
        bad("it is marked as inconsistent, as by a repair that was cut short".into());
    }
    if mdb.name.is_empty() {
        bad("the volume has no name".into());
    }
    let copy = match Mdb::parse(s.read(blocks - 2)?) {
        Ok(copy) => copy,
        Err(Error::Device { errno, message }) => return Err(Error::Device { errno, message }),
        Err(_) => {
            problems.push(Problem::Copy { what: "it is none" });
            return Ok(());
        }
    };
    let geometry = |m: &Mdb| (m.alloc_blocks, m.alloc_block_bytes, m.first_block, m.bitmap_block);
    let trees =
        |m: &Mdb| (m.catalog_file, m.catalog_file_bytes, m.extents_file, m.extents_file_bytes);
    if geometry(&copy) != geometry(mdb) {
        problems.push(Problem::Copy { what: "it says otherwise where the volume's parts lie" });
    } else if trees(&copy) != trees(mdb) {
        problems.push(Problem::Copy { what: "it says otherwise where the trees lie" });
    }
    debug_assert!(MDB_BLOCK < blocks);
    Ok(())
}

fn check_bitmap<P: Copy + PartialEq + core::fmt::Debug>(
    volume: &Volume<P>,
    used: &[bool],
    problems: &mut Vec<Problem>,
) {
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
}
