//! In-memory files, for tests, fuzzing, and networks run on samples.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Base, FreshId, Store};
use crate::Result;

/// A file in memory; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    content: Arc<Mutex<Vec<u8>>>,
    dirty: bool,
}

impl MemoryStore {
    /// Creates a file with this content.
    #[must_use]
    pub fn new(content: Vec<u8>) -> Self {
        Self { content: Arc::new(Mutex::new(content)), dirty: false }
    }

    /// Returns a copy of the current content.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error for a size that memory cannot hold.
fn too_large() -> crate::Error {
    weft_vfs::Error::TooLarge.into()
}

impl Store for MemoryStore {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.lock().len() as u64))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let content = self.lock();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let len = buf.len().min(content.len() - from);
        buf[..len].copy_from_slice(&content[from..from + len]);
        Ok(len)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let from = usize::try_from(offset).map_err(|_| too_large())?;
        let end = from.checked_add(data.len()).ok_or_else(too_large)?;
        let mut content = self.lock();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[from..end].copy_from_slice(data);
        drop(content);
        self.dirty = true;
        Ok(())
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        let len = usize::try_from(len_bytes).map_err(|_| too_large())?;
        self.lock().resize(len, 0);
        self.dirty = true;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.dirty = false;
        Ok(())
    }

    fn is_dirty(&self) -> bool {
        self.dirty
    }
}

/// A file in memory that can be replaced; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryBase {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    current: MemoryStore,
    fresh: BTreeMap<u64, MemoryStore>,
    next: u64,
}

impl MemoryBase {
    /// Creates a file with this content.
    #[must_use]
    pub fn new(content: Vec<u8>) -> Self {
        let state = State { current: MemoryStore::new(content), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a copy of the current stored content.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.lock().current.content()
    }

    /// Returns the number of temporary files beside the current one.
    #[must_use]
    pub fn fresh_files(&self) -> usize {
        self.lock().fresh.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Base for MemoryBase {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.lock().current.clone()))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let mut state = self.lock();
        state.next += 1;
        let (id, store) = (state.next, MemoryStore::default());
        state.fresh.insert(id, store.clone());
        Ok((FreshId(id), Box::new(store)))
    }

    fn adopt(&mut self, fresh: FreshId) -> Result<()> {
        let mut state = self.lock();
        if let Some(store) = state.fresh.remove(&fresh.0) {
            state.current = store;
        }
        Ok(())
    }

    fn discard(&mut self, fresh: FreshId) {
        self.lock().fresh.remove(&fresh.0);
    }
}
