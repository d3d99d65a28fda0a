//! Pages of a cell's records, for a backup that is made while the cell is served.

use std::collections::BTreeMap;

use weft_ringer::Bytes;
use weft_ringer::store::{Revision, Store, StoreError, StoreResult};
use weft_ringer_net::Answer;

/// The maximum number of records in one answer, and of their bytes.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 1 << 20;
/// The maximum size of one answer, in bytes: a frame holds more.
const ANSWER_MAX_BYTES: usize = 6 << 20;

/// Returns records of the store after a key, for a copy of it.
pub(super) fn page(store: &dyn Store, after: &[u8]) -> StoreResult<Answer> {
    let revision = store.revision()?.0;
    let from = if after.is_empty() { Vec::new() } else { [after, &[0]].concat() };
    let page = store.range(&from, &[0xff], PAGE)?;
    let is_last = page.len() < PAGE;
    let (mut records, mut bytes, count) = (Vec::new(), 0, page.len());
    for (key, record) in page {
        bytes += key.len() + record.value.len();
        records.push((Bytes(key), Bytes(record.value)));
        if bytes > PAGE_BYTES {
            break;
        }
    }
    let complete = is_last && records.len() == count;
    Ok(Answer::Copied { records, complete, revision })
}

/// Returns the present value for each key that was changed after a revision.
pub(super) fn changed(store: &dyn Store, after: Revision) -> StoreResult<Answer> {
    let current = store.revision()?.0;
    let changes = match store.changes(after, PAGE) {
        Ok(changes) => changes,
        Err(StoreError::Forgotten { .. }) => {
            return Ok(Answer::refused(
                "backup aborted: too many changes since it began; start it again",
            ));
        }
        Err(e) => return Err(e),
    };
    let last = changes.last().map(|change| change.revision.0);
    let mut records = BTreeMap::new();
    for change in changes {
        let value = store.get(&change.key)?.map(|record| Bytes(record.value));
        records.insert(Bytes(change.key), value);
    }
    let bytes = records.iter().map(|(k, v)| k.0.len() + v.as_ref().map_or(0, |v| v.0.len()));
    if bytes.sum::<usize>() > ANSWER_MAX_BYTES {
        return Ok(Answer::refused(
            "backup aborted: too many changes in one transaction; start it again",
        ));
    }
    // Revisions without a listed change have changed nothing.
    let upto = last.unwrap_or(current);
    let records = records.into_iter().collect();
    Ok(Answer::Changed { records, upto, complete: upto >= current })
}
