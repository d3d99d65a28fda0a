//! What a server tells of its cell to who searches across cells: what is attached, and what may be
//! found.

use std::time::{Duration, Instant};

use weft_ringer::mds::Access;
use weft_ringer::store::{CellStore, Revision, StoreResult};
use weft_ringer::{Bytes, JUNCTION_XATTR, Summary};
use weft_ringer_net::{Answer, fill_random};

use super::dispatch::refused;

/// The most junctions that are told of: they fit a frame.
const JUNCTIONS_MAX: usize = 1000;
/// A cell in which more can be searched for has no summary.
const TERMS_MAX: usize = 200_000;
/// To make a summary takes the server's time: a new one is not made before so many times as long has
/// passed, and the old one is told meanwhile.
const REST_FACTOR: u32 = 20;

#[derive(Debug)]
pub(super) struct Federation {
    /// Tells this life of the server from others, of copies of its cell too.
    life: u64,
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
        let mut life = [0; 8];
        fill_random(&mut life)?;
        Ok(Self { life: u64::from_le_bytes(life), made: None })
    }

    /// Which cells are attached where who asks may look.
    pub(super) fn junctions(
        &self,
        store: &dyn CellStore,
        cell: u64,
        access: &Access,
    ) -> StoreResult<Answer> {
        let name =
            String::from_utf8_lossy(JUNCTION_XATTR.strip_prefix(b"user.").unwrap_or_default());
        let Some(mut having) = store.having(&name, JUNCTIONS_MAX + 1)? else {
            return Ok(refused(
                "the index is being made, after a change of servers: ask again soon",
            ));
        };
        let complete = having.len() <= JUNCTIONS_MAX;
        having.truncate(JUNCTIONS_MAX);
        let mut junctions = Vec::new();
        for (rnode, path, text) in having {
            if access.level(store, rnode)?.is_some() {
                junctions.push((Bytes(path), Bytes(text.into_bytes())));
            }
        }
        let (life, added) = (self.life, store.added()?.0);
        Ok(Answer::Junctions { cell, life, added, junctions, complete })
    }

    /// A summary of the cell, for who may read all of it.
    pub(super) fn summary(
        &mut self,
        store: &dyn CellStore,
        access: &Access,
    ) -> StoreResult<Answer> {
        let life = self.life;
        if access.everywhere().is_none() {
            return Ok(Answer::Summary { life, revision: 0, summary: None });
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
        Ok(Answer::Summary { life, revision, summary })
    }
}
