//! The list of a cell's archives, and the steps of a sweep, for administrators. A server connects
//! to no archive.

use weft_ringer::mds::SweepError;
use weft_ringer_net::{Answer, Ask, Result, now};

use super::dispatch::Dispatcher;

impl Dispatcher {
    /// Handles a request about archives; `None` for any other.
    pub(super) fn about_archives(&mut self, ask: &Ask) -> Result<Option<Answer>> {
        let store = &mut *self.store;
        let done = match ask {
            Ask::Archives {} => Ok(()),
            Ask::AddArchive { info } => self.mds.add_archive(store, info),
            Ask::RemoveArchive { archive } => self.mds.remove_archive(store, *archive),
            Ask::Sweep { number, step } => {
                return match self.mds.sweep(store, now(), *number, step) {
                    Ok(swept) => Ok(Some(Answer::Swept { swept })),
                    Err(SweepError::Store(e)) => Err(e.into()),
                    Err(e) => Ok(Some(Answer::refused(&e.to_string()))),
                };
            }
            _ => return Ok(None),
        };
        match done {
            Ok(()) => Ok(Some(Answer::Archives { archives: self.mds.archives() })),
            Err(SweepError::Store(e)) => Err(e.into()),
            Err(e) => Ok(Some(Answer::refused(&e.to_string()))),
        }
    }
}
