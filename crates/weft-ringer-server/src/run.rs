//! Answers of a server that change nothing of who is connected: the number of its cell, its leases, its
//! archives, and what a check has found.

use weft_ringer::Bytes;
use weft_ringer::mds::{Checked, SweepError, path_of};
use weft_ringer::store::{CellStore, StoreResult, Transaction};
use weft_ringer_net::{Answer, Ask, Error, LeaseStatus, Result, fill_random, now};

use super::dispatch::{Core, HITS_MAX_BYTES, LEASES_MAX, refused, store_error};

/// The number of the cell, 8 bytes.
const CELL_KEY: &[u8] = b"x";

/// The number of the cell, drawn when it was made.
pub(super) fn cell_number(store: &mut dyn CellStore) -> Result<u64> {
    if let Some(record) = store.get(CELL_KEY).map_err(|e| store_error(&e))? {
        let number = record.value.try_into().map(u64::from_be_bytes);
        return number.map_err(|_| Error::Store("the cell's number is damaged".into()));
    }
    let mut number = [0; 8];
    fill_random(&mut number).map_err(|e| Error::io("random numbers", e))?;
    // 0 stands for none.
    number[0] |= 1;
    let mut transaction = Transaction::default();
    transaction.put(CELL_KEY.to_vec(), number.to_vec());
    store.commit(&transaction).map_err(|e| store_error(&e))?;
    Ok(u64::from_be_bytes(number))
}

impl Core {
    /// The first of all leases that are held.
    pub(super) fn list_leases(&self, limit: u32) -> StoreResult<Answer> {
        let limit = usize::try_from(limit).unwrap_or(LEASES_MAX).min(LEASES_MAX);
        let mut leases = Vec::new();
        let (mut total, mut bytes) = (0, 0);
        for (rnode, client, mode) in self.mds.leases() {
            total += 1;
            if leases.len() >= limit || bytes > HITS_MAX_BYTES {
                continue;
            }
            let path = path_of(&*self.store, rnode)?.map(Bytes);
            bytes += path.as_ref().map_or(0, |path| path.0.len());
            leases.push(LeaseStatus { client, rnode, path, mode });
        }
        Ok(Answer::Leases { leases, total })
    }

    /// Answers what has to do with archives; `None` for anything else.
    pub(super) fn about_archives(&mut self, ask: &Ask) -> Result<Option<Answer>> {
        let store = &mut *self.store;
        let done = match ask {
            Ask::Archives {} => Ok(()),
            Ask::AddArchive { info } => self.mds.add_archive(store, info),
            Ask::RemoveArchive { archive } => self.mds.remove_archive(store, *archive),
            Ask::Sweep { number, step } => {
                return match self.mds.sweep(store, now(), *number, step) {
                    Ok(swept) => Ok(Some(Answer::Swept { swept })),
                    Err(SweepError::Store(e)) => Err(store_error(&e)),
                    Err(e) => Ok(Some(refused(&e.to_string()))),
                };
            }
            _ => return Ok(None),
        };
        match done {
            Ok(()) => Ok(Some(Answer::Archives { archives: self.mds.archives() })),
            Err(SweepError::Store(e)) => Err(store_error(&e)),
            Err(e) => Ok(Some(refused(&e.to_string()))),
        }
    }
}

pub(super) fn answer_of(checked: Checked) -> Answer {
    let Checked { rnodes, names, problem_count, problems, .. } = checked;
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    let problems = problems.iter().map(|p| (bytes(p.code), bytes(&p.text))).collect();
    Answer::Checked { rnodes, names, problem_count, problems }
}
