//! The last state of a cell that a client has seen, to notice a cell that was rolled back: restored
//! from a backup, or started from an older copy of its file.
//!
//! Each generation of a server has a random number, its *instance*, which is kept in the cell
//! beside the revision at which the generation began ([`crate::ServerGeneration`]). A client keeps
//! the last generation that it has spoken with, and the highest revision of it that any message
//! named. When it connects again, that generation must be among those of the cell, with the same
//! instance, and must have reached at least that revision. Otherwise what the client has seen never
//! happened in this cell.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_ringer::Generation;

use crate::ServerGeneration;
use crate::files::replace;

/// The last server generation seen, and how far it had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The number of the generation.
    pub generation: Generation,
    /// The random number of this generation.
    pub instance: u128,
    /// The highest revision seen of it.
    pub revision: u64,
}

impl Seen {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let generation = Generation(words.next()?.parse().ok()?);
        let instance = u128::from_str_radix(words.next()?, 16).ok()?;
        let revision = words.next()?.parse().ok()?;
        Some(Self { generation, instance, revision })
    }

    /// Checks that a cell with these generations, now at `revision`, can be the one that was seen.
    /// Otherwise returns the reason, for people.
    pub fn check(&self, generations: &[ServerGeneration], revision: u64) -> Result<(), String> {
        let older = |how: String| {
            Err(format!(
                "the cell is older than the state this client last saw: {how}. It was restored \
                 from a backup, or an older copy of it is served. Serve the newer one again; or, \
                 to give up the later changes, mount with --accept-older-cell: this client's data \
                 are then set aside in its local store"
            ))
        };
        let Some(newest) = generations.last() else { return Ok(()) };
        let place = generations.iter().position(|one| one.generation == self.generation);
        let Some(at) = place else {
            // Generations long ago are not kept.
            return if self.generation > newest.generation {
                older(format!(
                    "it is in generation {}, and was in generation {}",
                    newest.generation.0, self.generation.0
                ))
            } else {
                Ok(())
            };
        };
        if generations[at].instance != self.instance {
            return older(format!(
                "its generation {} is not the one that this client saw",
                self.generation.0
            ));
        }
        let end = generations.get(at + 1).map_or(revision, |next| next.began);
        if self.revision > end {
            return older(format!(
                "its generation {} ended at revision {end}, and this client has seen revision {}",
                self.generation.0, self.revision
            ));
        }
        Ok(())
    }
}

/// The last state seen of the cell, kept in a file.
#[derive(Debug)]
pub struct KnownCell {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Option<Seen>,
    is_unsaved: bool,
}

impl KnownCell {
    /// Reads the file at `path`. A damaged file counts as none: it serves only to notice a
    /// rollback.
    pub fn open(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let seen = Seen::parse(&text);
        if seen.is_none() && !text.is_empty() {
            tracing::warn!("{} is damaged; recreated it", path.display());
        }
        Self { path, state: Mutex::new(State { seen, is_unsaved: false }) }
    }

    /// A state that is kept in memory alone.
    pub fn in_memory() -> Self {
        Self { path: PathBuf::new(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the history that a server reports of its cell with the last state seen, and adopts
    /// it if they agree.
    ///
    /// # Errors
    /// The cell was rolled back; the reason, for people.
    pub fn meet(&self, generations: &[ServerGeneration], revision: u64) -> Result<(), String> {
        let mut state = self.lock();
        if let Some(seen) = &state.seen {
            seen.check(generations, revision)?;
        }
        if let Some(newest) = generations.last() {
            let (generation, instance) = (newest.generation, newest.instance);
            state.seen = Some(Seen { generation, instance, revision });
            state.is_unsaved = true;
        }
        Ok(())
    }

    /// Records that the messages that follow are of this revision, or of earlier ones.
    pub fn reached(&self, revision: u64) {
        let mut state = self.lock();
        if let Some(seen) = state.seen.as_mut().filter(|seen| seen.revision < revision) {
            seen.revision = revision;
            state.is_unsaved = true;
        }
    }

    /// The last state seen, which the client reports to the server.
    pub fn seen(&self) -> Option<Seen> {
        self.lock().seen
    }

    /// Writes the state to its file if it has changed, durably: this may take the time of a flush of
    /// the disk.
    pub fn save(&self) {
        let seen = {
            let mut state = self.lock();
            let is_unsaved = std::mem::take(&mut state.is_unsaved);
            state.seen.filter(|_| is_unsaved)
        };
        let Some(Seen { generation, instance, revision }) = seen else { return };
        let text = format!("{} {instance:032x} {revision}\n", generation.0);
        if let Err(e) = replace(&self.path, text.as_bytes()) {
            tracing::debug!("{}: {e}", self.path.display());
            self.lock().is_unsaved = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn began_at(generation: u32, instance: u128, began: u64) -> ServerGeneration {
        ServerGeneration { generation: Generation(generation), instance, began }
    }

    #[test]
    fn each_way_to_be_rolled_back_is_noticed() {
        let seen = |generation, instance, revision| Seen {
            generation: Generation(generation),
            instance,
            revision,
        };
        let generations = [began_at(3, 30, 100), began_at(4, 40, 200), began_at(5, 50, 300)];
        let check = |s: Seen| s.check(&generations, 350);
        // These are in the cell's own history.
        for fine in [seen(5, 50, 350), seen(5, 50, 300), seen(4, 40, 300), seen(3, 30, 0)] {
            assert_eq!(check(fine), Ok(()), "{fine:?}");
        }
        // The generation is too old to be known.
        assert_eq!(check(seen(2, 7, 1)), Ok(()));
        for older in [
            seen(5, 50, 351), // the same generation, which had come further
            seen(4, 40, 301), // an earlier one, that ended later
            seen(4, 41, 250), // another one in its place
            seen(6, 60, 400), // one that never was
        ] {
            let why = check(older).expect_err("it was rolled back");
            assert!(why.contains("older"), "{why}");
        }
    }

    #[test]
    fn it_is_kept_and_what_is_damaged_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("known");
        let known = KnownCell::open(path.clone());
        known.meet(&[began_at(1, 9, 0)], 7).expect("nothing is known yet");
        known.reached(9);
        known.reached(8);
        known.save();
        let again = KnownCell::open(path.clone());
        assert_eq!(again.seen(), known.seen());
        again.meet(&[began_at(1, 9, 0)], 8).expect_err("it was at 9");
        std::fs::write(&path, "nonsense").expect("written");
        assert_eq!(KnownCell::open(path).seen(), None);
    }
}
