//! Origins whose length is not the recorded one.
//!
//! An origin that has grown is adopted on request: its dirty data is written back within the old
//! length, and then the new length is recorded. *The write of the superblock makes the new length
//! count*; a crash before it leaves an origin that has grown and is clean. An origin that has shrunk
//! is refused: dirty data behind its new end could never be written back.

use crate::cache::Cache;
use crate::format::superblock::REGIONS_MAX;
use crate::origin::Origin;
use crate::policy::BlockKey;
use crate::{AttachOptions, Error, Mode, OriginId, Result, SUB_BLOCK_BYTES};
use std::sync::Arc;
use weft_block::BlockDevice;

const SUB: u64 = SUB_BLOCK_BYTES as u64;

impl Cache {
    /// Returns the recorded length of an origin.
    pub(crate) fn recorded_len(&self, nr: usize) -> Option<u64> {
        self.lock().log.sb.origins[nr].as_ref().map(|entry| entry.id.len_bytes)
    }

    /// Makes an origin clean whose length has changed, and keeps its blocks for the new length.
    /// Returns `Ok(false)` if its blocks were forgotten: it is then attached as a new one.
    ///
    /// # Errors
    /// [`Error::OriginResized`] if it has shrunk, or if this was not requested;
    /// [`Error::OriginChanged`], [`Error::StillDirty`], and those of the devices.
    pub(crate) fn adopt_resized(
        &self,
        nr: u16,
        device: &Arc<dyn BlockDevice>,
        id: &OriginId,
        options: &AttachOptions,
    ) -> Result<bool> {
        let was = self.recorded_len(usize::from(nr)).unwrap_or(id.len_bytes);
        if !options.resized || id.len_bytes < was {
            let (label, is_bytes) = (id.label.clone(), id.len_bytes);
            let dirty_bytes = self.lock().origins.of(nr).dirty_subs * SUB;
            let lost_bytes = self.dirty_behind(nr, is_bytes);
            let was_bytes = was;
            return Err(Error::OriginResized {
                label,
                was_bytes,
                is_bytes,
                dirty_bytes,
                lost_bytes,
            });
        }
        // As long as it was: nothing behind that end is written.
        let old = OriginId { len_bytes: was, ..id.clone() };
        let mode = Mode::PassThrough;
        let origin = Arc::new(Origin::new(self.order, nr, old, Arc::clone(device), mode));
        self.demand_unchanged(&origin, options)?;
        // From here on it is changed.
        self.write_superblock(|sb| {
            if let Some(entry) = &mut sb.origins[usize::from(nr)] {
                entry.fingerprint = None;
            }
        })?;
        self.lock().origins.attach(Arc::clone(&origin));
        let written = self.write_back_origin(Some(nr));
        self.lock().origins.withdraw(nr);
        written?;
        let shift = self.lock().origins.of(nr).region_shift;
        if id.len_bytes >> shift >= REGIONS_MAX {
            // Its regions become larger, and have other numbers.
            self.forget_origin(nr)?;
            self.forget_in_the_foreground()?;
            return Ok(false);
        }
        if !was.is_multiple_of(SUB) {
            self.load_all()?;
            self.drop_padded(nr, was / SUB);
            self.commit()?;
        }
        Ok(true)
    }

    /// Drops a clean sub-block, of which a part behind the origin's old end was padded with zeroes.
    fn drop_padded(&self, nr: u16, sub: u64) {
        let mut st = self.lock();
        let per_block = st.log.sb.subs() as u64;
        let Some(slot) = st.residency.lookup(BlockKey::new(nr, sub / per_block)) else { return };
        let mask = 1 << (sub % per_block);
        assert_eq!(st.residency.masks(slot).dirty & mask, 0, "all of it was written back");
        st.invalidate(slot, mask);
    }

    /// Returns the bytes of dirty data of an origin that lie behind `len_bytes`, in part or whole.
    fn dirty_behind(&self, nr: u16, len_bytes: u64) -> u64 {
        let st = self.lock();
        let per_block = st.log.sb.subs() as u64;
        let behind = |slot| {
            let Some(key) = st.residency.key(slot).filter(|key| key.origin() == nr) else {
                return 0;
            };
            let dirty = st.residency.masks(slot).dirty;
            let ends = (0..per_block).filter(|bit| dirty >> bit & 1 != 0);
            let ends = ends.map(|bit| (key.block() * per_block + bit + 1) * SUB);
            ends.filter(|end| *end > len_bytes).count() as u64
        };
        (0..st.residency.len()).map(behind).sum::<u64>() * SUB
    }
}
