//! The extents of a fork in memory.

use crate::btree::Tree;
use crate::layout::{CATALOG_ID, EXTENTS_ID, Extent, ExtentKey, ExtentRecord, Fork, Mdb};
use crate::store::Store;
use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;

/// A run of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The fork's allocation block at which the run begins.
    pub at: u32,
    /// The run's allocation blocks on the volume.
    pub extent: Extent,
}

/// The extents of a fork.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForkMap {
    pub runs: Vec<Run>,
    /// The number of runs in each record: the first record is the file's own, the others are in the
    /// extents file.
    pub records: Vec<u8>,
}

impl ForkMap {
    /// Returns the number of allocation blocks of the fork.
    pub fn blocks(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.at + u32::from(run.extent.count))
    }

    /// Returns the run that contains a block of the fork.
    pub fn find(&self, block: u32) -> Option<Run> {
        let i = self.runs.partition_point(|run| run.at <= block);
        let run = *self.runs.get(i.checked_sub(1)?)?;
        (block - run.at < u32::from(run.extent.count)).then_some(run)
    }

    /// Appends the extents of one record; returns false if it has none.
    pub fn push_record(&mut self, extents: &ExtentRecord) -> bool {
        let mut count = 0;
        for &extent in extents.iter().take_while(|e| e.count > 0) {
            self.runs.push(Run { at: self.blocks(), extent });
            count += 1;
        }
        self.records.push(count);
        count > 0
    }

    /// Returns record `i`: the first block of the fork in it and its extents. For every record but
    /// the first these are key and value of a record of the extents file.
    pub fn record(&self, i: usize) -> (u32, ExtentRecord) {
        let from: usize = self.records.iter().take(i).map(|&n| usize::from(n)).sum();
        let count = self.records.get(i).map_or(0, |&n| usize::from(n));
        let mut extents = ExtentRecord::default();
        let runs = self.runs.iter().skip(from).take(count);
        let at = runs.clone().next().map_or(self.blocks(), |run| run.at);
        for (to, run) in extents.iter_mut().zip(runs) {
            *to = run.extent;
        }
        (at, extents)
    }

    /// All extents.
    pub fn extents(&self) -> Vec<Extent> {
        self.runs.iter().map(|run| run.extent).collect()
    }
}

/// Reads the extents of a fork that has `space_bytes`, beginning with those of the file's record.
pub(crate) fn load_map<S: Store>(
    s: &mut S,
    overflow: &Tree<S::Patch>,
    mdb: &Mdb,
    of: (u32, Fork),
    first: &ExtentRecord,
    space_bytes: u32,
) -> Result<ForkMap> {
    let (id, fork) = of;
    let want = space_bytes / mdb.alloc_block_bytes;
    let mut map = ForkMap::default();
    map.push_record(first);
    if map.blocks() < want && id != EXTENTS_ID {
        let key = |block: u32| -> Result<[u8; ExtentKey::BYTES]> {
            let block = u16::try_from(block).map_err(|_| bad_map(id, "too long"))?;
            Ok(ExtentKey { file_id: id, fork, block }.encode())
        };
        let mut due = key(map.blocks())?;
        let mut problem = None;
        overflow.scan(s, &due.clone(), |found, value| {
            if found != due {
                problem = Some("an extents record is missing");
            } else if !ExtentKey::parse_record(value).is_some_and(|r| map.push_record(&r)) {
                problem = Some("an extents record is empty");
            } else if map.blocks() < want {
                due = key(map.blocks())?;
                return Ok(true);
            }
            Ok(false)
        })?;
        if let Some(problem) = problem {
            return Err(bad_map(id, problem));
        }
    }
    if map.blocks() < want {
        return Err(bad_map(id, "extents cover less than the physical length"));
    }
    if map.runs.iter().any(|run| run.extent.end() > u32::from(mdb.alloc_blocks)) {
        return Err(bad_map(id, "an extent reaches past the end of the volume"));
    }
    Ok(map)
}

fn bad_map(id: u32, problem: &str) -> Error {
    let what = match id {
        EXTENTS_ID => "extents file".into(),
        CATALOG_ID => "catalog".into(),
        id => format!("file {id}"),
    };
    Error::corrupt(what, 0, problem)
}
