//! Answers for searches across cells: the cells attached to this one, and a summary of what can be
//! found.

use std::time::{Duration, Instant};

use weft_ringer::mds::Access;
use weft_ringer::store::{CellStore, Revision, StoreResult};
use weft_ringer::{Bytes, CELL_MOUNT_XATTR, Summary};
use weft_ringer_net::{Answer, fill_random};

/// The maximum number of mount points in an answer: they fit a frame.
const CELL_MOUNTS_MAX: usize = 1000;
/// The maximum number of terms of a summary; a cell with more has none.
const TERMS_MAX: usize = 200_000;
/// The minimum age of a summary before it is replaced, as a multiple of the time that it took to
/// make: making one takes the server's time. The old one is sent meanwhile.
const REST_FACTOR: u32 = 20;

#[derive(Debug)]
pub(super) struct Federation {
    /// A random number that distinguishes this run of the server from others, also of copies of its
    /// cell.
    instance: u64,
    made: Option<Made>,
}

#[derive(Debug)]
struct Made {
    at: Instant,
    took: Duration,
    revision: Revision,
    summary: Option<Summary>,
}

impl Federation {
    pub(super) fn new() -> std::io::Result<Self> {
        let mut instance = [0; 8];
        fill_random(&mut instance)?;
        Ok(Self { instance: u64::from_le_bytes(instance), made: None })
    }

    /// Lists the attached cells in the directories that the requester may read.
    pub(super) fn cell_mounts(
        &self,
        store: &dyn CellStore,
        cell: u64,
        access: &Access,
    ) -> StoreResult<Answer> {
        let name =
            String::from_utf8_lossy(CELL_MOUNT_XATTR.strip_prefix(b"user.").unwrap_or_default());
        let Some(mut having) = store.having(&name, CELL_MOUNTS_MAX + 1)? else {
            return Ok(Answer::refused(
                "the search index is being rebuilt after a failover: try again soon",
            ));
        };
        let complete = having.len() <= CELL_MOUNTS_MAX;
        having.truncate(CELL_MOUNTS_MAX);
        let mut cell_mounts = Vec::new();
        for (rnode, path, text) in having {
            if access.level(store, rnode)?.is_some() {
                cell_mounts.push((Bytes(path), Bytes(text.into_bytes())));
            }
        }
        let (instance, added) = (self.instance, store.added()?.0);
        Ok(Answer::CellMounts { cell, instance, added, cell_mounts, complete })
    }

    /// Returns a summary of the cell, for a requester that may read all of it.
    pub(super) fn summary(
        &mut self,
        store: &dyn CellStore,
        access: &Access,
    ) -> StoreResult<Answer> {
        let instance = self.instance;
        if access.everywhere().is_none() {
            return Ok(Answer::Summary { instance, revision: 0, summary: None });
        }
        let is_good = |made: &Made, added: Revision| {
            made.revision >= added || made.at.elapsed() < made.took * REST_FACTOR
        };
        let added = store.added()?;
        if !self.made.as_ref().is_some_and(|made| is_good(made, added)) {
            let (begun, revision) = (Instant::now(), store.revision()?);
            let summary = store.terms(TERMS_MAX)?.map(|terms| Summary::of(&terms));
            let (at, took) = (Instant::now(), begun.elapsed());
            self.made = Some(Made { at, took, revision, summary });
        }
        let made = self.made.as_ref();
        let revision = made.map_or(0, |made| made.revision.0);
        let summary = made.and_then(|made| made.summary.clone());
        Ok(Answer::Summary { instance, revision, summary })
    }
}
