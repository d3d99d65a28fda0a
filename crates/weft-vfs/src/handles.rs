//! The table of open handles that a file system gives out.

use crate::{Error, Handle};
use std::collections::HashMap;

/// The error for a handle that is not open: it was never given out, or is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such handle")]
pub struct StaleHandle;

impl From<StaleHandle> for Error {
    fn from(_: StaleHandle) -> Self {
        Self::Invalid("no such handle")
    }
}

/// Open handles, each with a `T` that the file system keeps for it.
///
/// A number is given out once, beginning with 1: a handle that is used after it was closed is stale,
/// and is never another file's. [`Handle::NONE`] is never open.
#[derive(Debug)]
pub struct HandleTable<T> {
    open: HashMap<u64, T>,
    /// The number that was given out last.
    last: u64,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { open: HashMap::new(), last: Handle::NONE.0 }
    }
}

impl<T> HandleTable<T> {
    /// Opens a handle, and keeps `of` until it is closed.
    pub fn open(&mut self, of: T) -> Handle {
        self.last += 1;
        self.open.insert(self.last, of);
        Handle(self.last)
    }

    /// Returns what is kept for an open handle.
    #[must_use]
    pub fn get(&self, handle: Handle) -> Option<&T> {
        // I/O by inode number is frequent.
        if handle == Handle::NONE { None } else { self.open.get(&handle.0) }
    }

    /// Returns what is kept for an open handle, to change it.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.open.get_mut(&handle.0)
    }

    /// Closes a handle, and returns what was kept for it.
    ///
    /// # Errors
    /// [`StaleHandle`].
    pub fn close(&mut self, handle: Handle) -> Result<T, StaleHandle> {
        self.open.remove(&handle.0).ok_or(StaleHandle)
    }

    /// Closes a handle as [`close`](Self::close) does, if `is_its` holds for what is kept for it: that
    /// it belongs to the inode with which it was passed, for example.
    ///
    /// # Errors
    /// [`StaleHandle`], also if `is_its` does not hold; the handle stays open then.
    pub fn close_if(
        &mut self,
        handle: Handle,
        is_its: impl FnOnce(&T) -> bool,
    ) -> Result<T, StaleHandle> {
        match self.get(handle) {
            Some(of) if is_its(of) => self.close(handle),
            _ => Err(StaleHandle),
        }
    }

    /// Returns what is kept for all open handles, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.open.values()
    }

    /// Closes all handles. Their numbers are not given out again.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Random;
    use std::collections::BTreeMap;

    #[test]
    fn a_closed_handle_is_stale_and_its_number_is_not_used_again() {
        let mut table = HandleTable::default();
        let first = table.open("first");
        assert_eq!(table.close(first), Ok("first"));
        assert_eq!(table.close(first), Err(StaleHandle));
        let second = table.open("second");
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        table.clear();
        assert_eq!(table.close(second), Err(StaleHandle));
        assert!(![first, second].contains(&table.open("third")));
    }

    #[test]
    fn no_handle_is_never_open() {
        let mut table = HandleTable::default();
        assert_eq!(table.get(Handle::NONE), None);
        assert_ne!(table.open(()), Handle::NONE);
        assert_eq!(table.get(Handle::NONE), None);
        assert_eq!(table.close(Handle::NONE), Err(StaleHandle));
    }

    #[test]
    fn a_handle_of_another_file_stays_open() {
        let mut table = HandleTable::default();
        let handle = table.open(7);
        assert_eq!(table.close_if(handle, |&of| of == 8), Err(StaleHandle));
        assert_eq!(table.get(handle), Some(&7));
        assert_eq!(table.close_if(handle, |&of| of == 7), Ok(7));
        assert_eq!(table.close_if(handle, |_| true), Err(StaleHandle));
    }

    #[test]
    fn a_stale_handle_is_an_invalid_argument() {
        assert_eq!(Error::from(StaleHandle).errno(), 22);
        assert_eq!(
            Error::from(StaleHandle).to_string(),
            Error::Invalid("no such handle").to_string()
        );
    }

    /// The model is an ordered map of every handle that was ever given out.
    #[test]
    fn the_table_agrees_with_a_model() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut table = HandleTable::default();
            let mut model: BTreeMap<u64, Option<usize>> = BTreeMap::new();
            for step in 0..400 {
                // Also numbers that were not given out yet, and none.
                let handle = Handle(random.below(model.len() + 3) as u64);
                let kept = model.get(&handle.0).copied().flatten();
                match random.below(8) {
                    0..=2 => {
                        let handle = table.open(step);
                        assert_eq!(model.insert(handle.0, Some(step)), None, "seed {seed}");
                    }
                    3 | 4 => {
                        assert_eq!(table.close(handle).ok(), kept, "seed {seed}");
                        model.entry(handle.0).and_modify(|kept| *kept = None);
                    }
                    5 => {
                        let closes = kept.filter(|kept| kept % 2 == 0);
                        assert_eq!(table.close_if(handle, |of| of % 2 == 0).ok(), closes);
                        if closes.is_some() {
                            model.insert(handle.0, None);
                        }
                    }
                    6 => {
                        if let Some(of) = table.get_mut(handle) {
                            *of += 1;
                        }
                        model.entry(handle.0).and_modify(|kept| *kept = kept.map(|of| of + 1));
                    }
                    _ if random.below(20) == 0 => {
                        table.clear();
                        model.values_mut().for_each(|kept| *kept = None);
                    }
                    _ => assert_eq!(table.get(handle).copied(), kept, "seed {seed}"),
                }
                let mut open: Vec<usize> = table.values().copied().collect();
                let mut expected: Vec<usize> = model.values().copied().flatten().collect();
                open.sort_unstable();
                expected.sort_unstable();
                assert_eq!(open, expected, "seed {seed}, step {step}");
            }
        }
    }
}
