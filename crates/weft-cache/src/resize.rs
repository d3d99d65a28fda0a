//! Making a cache larger or smaller while it is used.
//!
//! Slot 0 does not move. The checkpoints stay in front of it as long as they are large enough for
//! an entry for each slot; otherwise they lie after the last slot. The new layout becomes valid
//! with the write of the superblock that contains it: until then the old one is intact, as no part
//! of the new one overlaps a used part of the old one.
//!
//! Slots that are removed are emptied first, while requests go on: none of them is given to a block
//! any more, so an empty one stays empty. Only the checkpoint and the change of the tables exclude
//! other checkpoints.

use crate::cache::Cache;
use crate::checkpoint::{NewLayout, SLOTS_AT_ONCE};
use crate::format::UNIT;
use crate::format::checkpoint::AreaLayout;
use crate::format::superblock::Superblock;
use crate::state::CacheState;
use crate::{Error, Result};

impl Cache {
    /// Resizes the cache to `len_bytes` of its device, which is that long already. To grow, make
    /// the device longer first; to shrink, make it shorter afterwards. Dirty blocks in removed
    /// slots are written back.
    ///
    /// The cache serves requests meanwhile, except for a moment at the end, when the tables of
    /// slots and the policy's queues are resized: some hundredths of a microsecond a slot to grow,
    /// and up to 0.2 microseconds to shrink.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the length is impossible, or differs too little from the present one;
    /// [`Error::StillDirty`] if dirty blocks cannot be written back; [`Error::CacheDevice`]. The
    /// cache is unchanged then.
    pub fn resize(&self, len_bytes: u64) -> Result<()> {
        self.lock().check_usable()?;
        if self.options.read_only || !self.options.persistence {
            return Err(Error::ReadOnly);
        }
        let device_bytes = self.device.geometry().len_bytes;
        if len_bytes > device_bytes {
            let what = format!("{len_bytes} bytes do not fit the device of {device_bytes}");
            return Err(Error::Invalid(what));
        }
        self.load_all()?;
        let _one = self.resizing.lock();
        let layout = new_layout(&self.lock().log.sb, len_bytes)?;
        self.lock().residency.set_slot_limit(layout.slots);
        let resized = self.empty_slots_from(layout.slots).and_then(|()| self.lay_out_anew(&layout));
        if resized.is_err() {
            self.lock().residency.set_slot_limit(u32::MAX);
        }
        self.notify();
        resized
    }

    /// Makes a new layout valid. The removed slots are empty.
    fn lay_out_anew(&self, layout: &NewLayout) -> Result<()> {
        let checkpointing = self.checkpointing.lock();
        self.checkpoint_locked(&checkpointing, Some(layout))?;
        while self.lock().residency.fill_next_index(layout.slots, SLOTS_AT_ONCE) {
            self.give_way();
        }
        self.lock().resize(layout.slots);
        Ok(())
    }

    /// Empties the slots from `limit` on.
    fn empty_slots_from(&self, limit: u32) -> Result<()> {
        // Slots that a writer or a fill has reserved before may still be filled, so this is
        // repeated.
        for _ in 0..1000 {
            let mut left = Left::default();
            let slots = self.lock().residency.len();
            for first in (limit..slots).step_by(SLOTS_AT_ONCE as usize) {
                let mut st = self.lock();
                st.residency.sweep_limbo();
                for slot in first..first.saturating_add(SLOTS_AT_ONCE).min(slots) {
                    left.count(&mut st, slot);
                }
                let much = st.log.pending().len() as u64 >= u64::from(self.options.commit_records);
                drop(st);
                if much {
                    self.commit()?;
                } else if slots - first > SLOTS_AT_ONCE {
                    self.give_way();
                }
            }
            if left == Left::default() {
                return Ok(());
            }
            if left.dirty {
                self.write_back_all()?;
            }
            self.commit()?;
            if !left.used {
                std::thread::yield_now();
            }
        }
        Err(Error::StillDirty {
            dirty_bytes: self.lock().dirty.bytes(),
            why: "the last slots of the cache are in use".to_owned(),
        })
    }
}

/// The content of slots that are to be emptied.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    used: bool,
    dirty: bool,
    held: bool,
    reserved: bool,
}

impl Left {
    /// Drops a clean block from its slot, and notes the reason if the slot is not free.
    fn count(&mut self, st: &mut CacheState, slot: u32) {
        let masks = st.residency.masks(slot);
        self.held |= masks.held != 0;
        let Some(key) = st.residency.key(slot) else {
            self.reserved |= !st.residency.is_free(slot);
            return;
        };
        self.used = true;
        if masks.dirty != 0 {
            self.dirty = true;
        } else if !st.requests.writers.contains(key) {
            st.unmap(slot);
        }
    }
}

fn new_layout(sb: &Superblock, len_bytes: u64) -> Result<NewLayout> {
    let unit = UNIT as u64;
    let block = u64::from(sb.block_bytes);
    let len_bytes = len_bytes / unit * unit;
    let room = len_bytes.saturating_sub(sb.data_offset);
    let area = |slots: u64| AreaLayout::new(slots as u32, sb.subs()).blocks();
    let slots = (room / block).min(u64::from(crate::policy::SLOTS_MAX));
    if slots == 0 {
        return Err(Error::Invalid(format!("{len_bytes} bytes are too few for this cache")));
    }
    let front = sb.log_offset + sb.log_blocks * unit;
    let front_blocks = (sb.data_offset - front) / unit / 2;
    if area(slots) <= front_blocks {
        let checkpoints = [front, front + front_blocks * unit];
        let slots = slots as u32;
        return Ok(NewLayout { slots, len_bytes, checkpoints, checkpoint_blocks: front_blocks });
    }
    let mut slots = slots;
    while slots > 0 && slots * block + 2 * area(slots) * unit > room {
        let excess = (slots * block + 2 * area(slots) * unit - room).div_ceil(block);
        slots = slots.saturating_sub(excess.div_ceil(2).max(1));
    }
    let blocks = area(slots.max(1));
    let first = len_bytes.saturating_sub(2 * blocks * unit);
    // No part of the old layout may overlap it: neither data (of slots that stay) nor checkpoints.
    let old_data_end = sb.data_offset + u64::from(sb.slots).min(slots) * block;
    let old_behind = sb.checkpoints.iter().filter(|at| **at >= sb.data_offset);
    let free =
        old_behind.clone().all(|at| at + sb.checkpoint_blocks * unit <= first || *at >= len_bytes);
    if slots == 0 || first < old_data_end || !free {
        let what = "the new length is too near to the old one: the checkpoints would overlap";
        return Err(Error::Invalid(what.to_owned()));
    }
    let checkpoints = [first, first + blocks * unit];
    Ok(NewLayout { slots: slots as u32, len_bytes, checkpoints, checkpoint_blocks: blocks })
}

#[cfg(test)]
mod tests {
    use crate::policy::PolicyKind;
    use crate::{AttachOptions, Cache, CreateOptions, Mode, OpenOptions, OriginId};
    use std::sync::Arc;
    use weft_block::{BlockDevice, MemoryDevice};

    /// Grown twice (the checkpoints move after the slots), and shrunk below the initial size: in
    /// each step dirty and clean blocks stay correct, also when the cache is opened again.
    #[test]
    fn a_cache_grows_and_shrinks_while_it_is_used() {
        grow_and_shrink(PolicyKind::default());
    }

    /// A block that is not moved is outside its set afterwards.
    #[test]
    fn a_set_associative_cache_grows_and_shrinks_while_it_is_used() {
        grow_and_shrink(PolicyKind::SetAssociative { ways: 16 });
    }

    fn grow_and_shrink(policy: PolicyKind) {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
        let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(32 << 20));
        // A short cache on a long device.
        let short = MemoryDevice::new(2 << 20);
        Cache::create(&short, &CreateOptions { policy, ..CreateOptions::default() }).unwrap();
        let mut bytes = vec![0; 2 << 20];
        short.read_at(&mut bytes, 0).unwrap();
        disk.write_at(&bytes, 0).unwrap();

        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let id = OriginId { len_bytes: 32 << 20, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions { mode: Mode::WriteBack, ..AttachOptions::default() };
        let mut slots = Vec::new();
        for (version, mib) in (1_u8..).zip([2_u64, 12, 48, 50, 20, 1]) {
            let cache = Cache::open(Arc::clone(&disk), options.clone()).unwrap();
            let cached = cache.attach(Arc::clone(&origin), &id, &attach).unwrap();
            cache.resize(mib << 20).unwrap_or_else(|e| panic!("to {mib} MiB: {e}"));
            slots.push(cache.stats().slots);
            for at in (0..32 << 20).step_by(1 << 20) {
                let mut seen = [0; 4096];
                cached.read_at(&mut seen, at).unwrap();
                assert!(seen.iter().all(|b| *b == version - 1), "at {at} with {mib} MiB");
                cached.write_at(&[version; 4096], at).unwrap();
            }
            cached.flush().unwrap();
            cache.check_invariants();
            if mib % 8 == 0 {
                cache.close().unwrap();
            }
        }
        assert!(slots[1] > slots[0] && slots[2] > slots[1], "{slots:?}");
        assert!(slots[4] < slots[3] && slots[5] < slots[0], "{slots:?}");
    }
}
