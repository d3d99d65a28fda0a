//! What a client knows of its cell's past, to notice a cell that was rolled back: restored from a backup, or
//! started from an older copy of its file.
//!
//! Each life of a server has a number drawn at random, its *instance*, which is kept in the cell beside the
//! revision that the life began at ([`crate::Life`]). A client keeps the last life that it has spoken
//! with, and the highest revision of it that anything it was told is of. When it comes again, that life must
//! be among those of the cell, under the same instance, and must have come at least so far. Else what the
//! client knows never happened in this cell.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_ringer::Generation;

use crate::Life;
use crate::files::private;

/// The last life of a server, as far as it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Which life of a server it was.
    pub generation: Generation,
    /// The number that this life drew at random.
    pub instance: u128,
    /// The highest revision that was seen of it.
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

    /// Whether a cell that had these lives, and is at `revision` now, can be the one that was seen; why not
    /// if it cannot.
    pub fn check(&self, lives: &[Life], revision: u64) -> Result<(), String> {
        let older = |how: String| {
            Err(format!(
                "the cell is older than what this client has seen of it: {how}. It was restored from a \
                 backup, or an older copy of it is served. Serve the newer one again; or, if what was \
                 done since is given up, mount with --accept-older-cell: what this client has of it is \
                 set aside in its local store"
            ))
        };
        let Some(newest) = lives.last() else { return Ok(()) };
        let place = lives.iter().position(|life| life.generation == self.generation);
        let Some(at) = place else {
            // Of lives long ago nothing is kept.
            return if self.generation > newest.generation {
                older(format!(
                    "it is in its life {}, and was in life {}",
                    newest.generation.0, self.generation.0
                ))
            } else {
                Ok(())
            };
        };
        if lives[at].instance != self.instance {
            return older(format!("its life {} was another one", self.generation.0));
        }
        let end = lives.get(at + 1).map_or(revision, |next| next.began);
        if self.revision > end {
            return older(format!(
                "its life {} ended at revision {end}, and this client has seen revision {}",
                self.generation.0, self.revision
            ));
        }
        Ok(())
    }
}

/// What is known, and kept in a file.
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
    /// Reads the file at `path`. One that is not to be understood is as none: it serves to notice, and
    /// nothing depends on it.
    pub fn open(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let seen = Seen::parse(&text);
        if seen.is_none() && !text.is_empty() {
            tracing::warn!("{} is damaged, and made anew", path.display());
        }
        Self { path, state: Mutex::new(State { seen, is_unsaved: false }) }
    }

    /// One that is of this process alone.
    pub fn in_memory() -> Self {
        Self { path: PathBuf::new(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares what a server says of its cell with what is known, and takes it over if that is right.
    ///
    /// # Errors
    /// The cell was rolled back; in words for people.
    pub fn meet(&self, lives: &[Life], revision: u64) -> Result<(), String> {
        let mut state = self.lock();
        if let Some(seen) = &state.seen {
            seen.check(lives, revision)?;
        }
        if let Some(life) = lives.last() {
            let (generation, instance) = (life.generation, life.instance);
            state.seen = Some(Seen { generation, instance, revision });
            state.is_unsaved = true;
        }
        Ok(())
    }

    /// What comes is of this revision, or of earlier ones.
    pub fn reached(&self, revision: u64) {
        let mut state = self.lock();
        if let Some(seen) = state.seen.as_mut().filter(|seen| seen.revision < revision) {
            seen.revision = revision;
            state.is_unsaved = true;
        }
    }

    /// What is known, for the server to hear of.
    pub fn seen(&self) -> Option<Seen> {
        self.lock().seen
    }

    /// Writes it into its file, if it has changed. Not durably: what a power cut keeps is older and true.
    pub fn save(&self) {
        let seen = {
            let mut state = self.lock();
            let is_unsaved = std::mem::take(&mut state.is_unsaved);
            state.seen.filter(|_| is_unsaved)
        };
        let Some(Seen { generation, instance, revision }) = seen else { return };
        let text = format!("{} {instance:032x} {revision}\n", generation.0);
        let new = self.path.with_extension("new");
        let made = private().write(true).create(true).truncate(true).open(&new);
        let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
        let written = written.and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(e) = written {
            tracing::debug!("{}: {e}", self.path.display());
            self.lock().is_unsaved = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(generation: u32, instance: u128, began: u64) -> Life {
        Life { generation: Generation(generation), instance, began }
    }

    #[test]
    fn each_way_to_be_rolled_back_is_noticed() {
        let seen = |generation, instance, revision| Seen {
            generation: Generation(generation),
            instance,
            revision,
        };
        let lives = [life(3, 30, 100), life(4, 40, 200), life(5, 50, 300)];
        let check = |s: Seen| s.check(&lives, 350);
        // What is the cell's own past.
        for fine in [seen(5, 50, 350), seen(5, 50, 300), seen(4, 40, 300), seen(3, 30, 0)] {
            assert_eq!(check(fine), Ok(()), "{fine:?}");
        }
        // Nothing is known of so long ago.
        assert_eq!(check(seen(2, 7, 1)), Ok(()));
        for older in [
            seen(5, 50, 351), // the same life, which had come further
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
        known.meet(&[life(1, 9, 0)], 7).expect("nothing is known yet");
        known.reached(9);
        known.reached(8);
        known.save();
        let again = KnownCell::open(path.clone());
        assert_eq!(again.seen(), known.seen());
        again.meet(&[life(1, 9, 0)], 8).expect_err("it was at 9");
        std::fs::write(&path, "nonsense").expect("written");
        assert_eq!(KnownCell::open(path).seen(), None);
    }
}
