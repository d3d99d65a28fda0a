//! The location of a file that is rewritten on commit.

use super::in_place::open_in_place;
use super::{Limits, Store};
use crate::{Layer, Result};

/// The id of a temporary file created beside another, to replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FreshId(pub u64);

/// A stored file below all stages, which can be replaced atomically.
pub trait Base: Send {
    /// Opens the current file.
    ///
    /// # Errors
    /// Those of the file system.
    fn current(&mut self) -> Result<Box<dyn Store>>;

    /// Creates an empty file beside the current one.
    ///
    /// # Errors
    /// No space for it.
    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)>;

    /// Replaces the current file atomically by one created by [`fresh`](Self::fresh), whose content
    /// must be durable.
    ///
    /// # Errors
    /// Those of the file system; the current file and the fresh one then stay.
    fn adopt(&mut self, fresh: FreshId) -> Result<()>;

    /// Returns true if the current file may be new, with nothing written to it yet. If it is not,
    /// an empty file where a sealed one is expected was truncated, which is damage.
    fn may_be_new(&self) -> bool {
        true
    }

    /// Removes a file created by [`fresh`](Self::fresh).
    fn discard(&mut self, fresh: FreshId);
}

/// A file that is written once, before it has an owner; or one that is read.
pub(crate) struct Single {
    raw: Option<Box<dyn Store>>,
    /// The network rewrites its file: it reads an empty file in memory first, and writes `raw` on
    /// commit.
    rewrites: bool,
    is_new: bool,
}

impl Single {
    /// Wraps an empty file to be written.
    pub(crate) fn new(raw: Box<dyn Store>, rewrites: bool) -> Self {
        Self { raw: Some(raw), rewrites, is_new: true }
    }

    /// Wraps an existing file to be read.
    pub(crate) fn to_read(raw: Box<dyn Store>) -> Self {
        Self { raw: Some(raw), rewrites: false, is_new: false }
    }

    fn take(&mut self) -> Result<Box<dyn Store>> {
        self.raw.take().ok_or_else(|| weft_vfs::Error::Busy.into())
    }
}

impl Base for Single {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        if self.rewrites { Ok(Box::new(super::MemoryStore::default())) } else { self.take() }
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        Ok((FreshId(0), self.take()?))
    }

    fn adopt(&mut self, _: FreshId) -> Result<()> {
        Ok(())
    }

    fn may_be_new(&self) -> bool {
        self.is_new
    }

    fn discard(&mut self, _: FreshId) {}
}

/// A base accessed through stages that work in place.
pub struct Home {
    /// `None` if the file cannot be replaced, and so not written.
    base: Option<Box<dyn Base>>,
    below: Vec<Layer>,
    limits: Limits,
    current: Box<dyn Store>,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").field("below", &self.below).finish_non_exhaustive()
    }
}

/// A replacement file, accessed through the same stages.
pub(super) struct Fresh {
    id: FreshId,
    pub(super) store: Box<dyn Store>,
}

impl Home {
    /// Opens the current file of `base` through `below`, which must be stages that work in place.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn new(mut base: Box<dyn Base>, below: Vec<Layer>, limits: Limits) -> Result<Self> {
        let is_new = base.may_be_new();
        let current = open_in_place(base.current()?, &below, &limits, is_new)?;
        Ok(Self { base: Some(base), below, limits, current })
    }

    /// Wraps a file that is only read.
    #[must_use]
    pub fn read_only(current: Box<dyn Store>, limits: Limits) -> Self {
        Self { base: None, below: Vec::new(), limits, current }
    }

    /// Returns the current file alone, for reading.
    pub(super) fn into_current(self) -> Box<dyn Store> {
        self.current
    }

    pub(super) fn current(&mut self) -> &mut dyn Store {
        &mut *self.current
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn fresh(&mut self) -> Result<Fresh> {
        let Some(base) = &mut self.base else {
            return Err(weft_vfs::Error::ReadOnly.into());
        };
        let (id, raw) = base.fresh()?;
        match open_in_place(raw, &self.below, &self.limits, true) {
            Ok(store) => Ok(Fresh { id, store }),
            Err(e) => {
                base.discard(id);
                Err(e)
            }
        }
    }

    /// Makes `fresh` durable and current.
    pub(super) fn replace(&mut self, mut fresh: Fresh) -> Result<(), (Fresh, crate::Error)> {
        let Some(base) = &mut self.base else {
            return Err((fresh, weft_vfs::Error::ReadOnly.into()));
        };
        let done = fresh.store.begin().and_then(|()| fresh.store.commit());
        match done.and_then(|()| base.adopt(fresh.id)) {
            Ok(()) => {
                self.current = fresh.store;
                Ok(())
            }
            Err(e) => Err((fresh, e)),
        }
    }

    pub(super) fn discard(&mut self, fresh: Fresh) {
        let id = fresh.id;
        drop(fresh);
        if let Some(base) = &mut self.base {
            base.discard(id);
        }
    }
}
