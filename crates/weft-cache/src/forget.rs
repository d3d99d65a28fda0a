//! Forgetting an origin: marks its entry durably, then drops its blocks in the background.

use crate::cache::Cache;
use crate::{Error, Result, SUB_BLOCK_BYTES};

impl Cache {
    /// Forgets an origin that is not attached, by its label. Its dirty data is lost with
    /// `discard_dirty`; without, it must have none.
    ///
    /// # Errors
    /// [`Error::UnknownOrigin`], [`Error::OriginBusy`] if it is attached, [`Error::StillDirty`].
    pub fn forget(&self, label: &str, discard_dirty: bool) -> Result<()> {
        let _one = self.attaching.lock();
        let nr = {
            let st = self.lock();
            st.log.sb.origins.iter().position(|e| e.as_ref().is_some_and(|e| e.id.label == label))
        };
        let nr = nr.ok_or_else(|| Error::UnknownOrigin(label.to_owned()))?;
        if self.origin(nr as u16).is_some() {
            return Err(Error::OriginBusy(label.to_owned()));
        }
        let dirty_bytes = self.lock().origins.of(nr as u16).dirty_subs * SUB_BLOCK_BYTES as u64;
        if dirty_bytes > 0 && !discard_dirty {
            let why = "it is not attached; attach it and write its dirty data back".to_owned();
            return Err(Error::StillDirty { dirty_bytes, why });
        }
        self.forget_origin(nr as u16)?;
        self.forget_in_the_foreground()
    }

    /// Without background threads, drops the blocks of all forgotten origins at once.
    pub(crate) fn forget_in_the_foreground(&self) -> Result<()> {
        if !self.options.background {
            while self.forget_some()? {}
        }
        Ok(())
    }

    /// Marks an origin durably as forgotten; its blocks are dropped in the background.
    pub(crate) fn forget_origin(&self, nr: u16) -> Result<()> {
        self.write_superblock(|sb| {
            if let Some(entry) = &mut sb.origins[usize::from(nr)] {
                entry.forgetting = true;
            }
        })?;
        let mut st = self.lock();
        st.origins.begin_forgetting(nr);
        st.dirty.regions.forget(nr);
        Ok(())
    }

    /// Drops some more blocks of forgotten origins. Returns `Ok(false)` once none are left.
    pub(crate) fn forget_some(&self) -> Result<bool> {
        // Few enough for a batch of the shortest log.
        const SLOTS_AT_ONCE: u32 = 512;
        let _one = self.forgetting.lock();
        let mut st = self.lock();
        let Some((nr, from)) = st.origins.forgetting() else { return Ok(false) };
        if st.residency.loading.is_some() {
            drop(st);
            self.load_all()?;
            return Ok(true);
        }
        let end = from.saturating_add(SLOTS_AT_ONCE).min(st.residency.len());
        for slot in from..end {
            let key = st.residency.key(slot).filter(|key| key.origin() == nr);
            debug_assert!(
                key.is_none_or(|key| !st.requests.writers.contains(key)),
                "nobody writes to it"
            );
            if key.is_some() {
                st.unmap(slot);
            }
        }
        if end < st.residency.len() {
            st.origins.go_on_forgetting(Some(end));
            drop(st);
            self.commit_if_much()?;
            return Ok(true);
        }
        st.origins.go_on_forgetting(None);
        let more = st.origins.forgetting().is_some();
        drop(st);
        // Its number may be given to another origin only when no durable record refers to it.
        self.commit()?;
        if self.lock().log.unlogged_drops() > 0 {
            self.checkpoint_always()?;
        }
        self.write_superblock(|sb| sb.origins[usize::from(nr)] = None)?;
        Ok(more)
    }
}
