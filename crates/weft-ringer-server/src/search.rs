//! Search for files of the cell, as far as the requester may see them.

use weft_ringer::Bytes;
use weft_ringer::query::Query;
use weft_ringer_net::{Answer, Hit, Result};

use super::dispatch::{ANSWER_PATHS_MAX_BYTES, Dispatcher};

/// The most hits of one search.
const HITS_MAX: usize = 10_000;

impl Dispatcher {
    /// Answers a search.
    pub(super) fn search(&self, number: u64, query: &Bytes, limit: u32) -> Result<Answer> {
        let parsed = String::from_utf8_lossy(&query.0).parse::<Query>();
        let query = match parsed {
            Ok(query) => query,
            Err(e) => return Ok(Answer::refused(&e.to_string())),
        };
        let limit = usize::try_from(limit).unwrap_or(HITS_MAX).min(HITS_MAX);
        let found = self.store.search(&query, limit + 1)?;
        let Some(mut found) = found else {
            return Ok(Answer::refused(
                "the search index is being rebuilt after a failover: try again soon",
            ));
        };
        let is_cut = found.len() > limit;
        let access = self.sessions.access_of(number);
        let mut hidden = None;
        found.retain(|(rnode, _)| match access.level(&*self.store, *rnode) {
            Ok(level) => level.is_some(),
            Err(e) => {
                hidden = Some(e);
                false
            }
        });
        if let Some(e) = hidden {
            return Err(e.into());
        }
        let mut bytes = 0;
        let fits = found.iter().take(limit).take_while(|(_, path)| {
            bytes += path.len();
            bytes <= ANSWER_PATHS_MAX_BYTES
        });
        let fits = fits.count();
        let complete = fits == found.len() && !is_cut;
        found.truncate(fits);
        let hits = found.into_iter().map(|(rnode, path)| Hit { rnode, path: Bytes(path) });
        Ok(Answer::Found { hits: hits.collect(), complete })
    }
}
