//! Origins: attaching one, verifying its identity and that it is unchanged since the cache was last
//! attached, and detaching it.
//!
//! Detects that another process has changed an origin without the cache:
//! - its length, its identity and its generation, always;
//! - after the cache was closed in good order: any change in its first or last 64 KiB, where file
//!   systems keep the times they were mounted and written, and partition tables lie; or in one of
//!   sixteen other places;
//! - always: a change of one of the cached clean blocks that are sampled when it is attached.
//!
//! A change of a few blocks in the middle that updates no such place is not detected. A program
//! that writes to an origin without the cache should raise its generation, or invalidate the cache.

use crate::cache::Cache;
use crate::device::CachedDevice;
use crate::format::record::ORIGIN_BLOCKS_MAX;
use crate::format::superblock::{ORIGIN_LABEL_MAX, OriginEntry, REGIONS_MAX};
use crate::origin::{Link, Origin};
use crate::origins::OriginState;
use crate::policy::BlockKey;
use crate::regions::Intent;
use crate::{AttachOptions, Error, Mode, ORIGINS_MAX, OriginId, Result, SUB_BLOCK_BYTES};
use crc32c::{crc32c, crc32c_append};
use std::sync::Arc;
use weft_block::BlockDevice;

/// The smallest region of an origin that has an intent of its own: 1 MiB.
const REGION_SHIFT_MIN: u32 = 20;

impl Cache {
    /// Puts the cache in front of `origin`. The origin must not be changed in any other way from
    /// now until it is detached; while the cache has dirty data, the origin is incomplete without
    /// it.
    ///
    /// # Errors
    /// [`Error::OtherOrigin`], [`Error::OriginChanged`], [`Error::OriginResized`],
    /// [`Error::OriginBusy`], [`Error::Invalid`], [`Error::ReadOnly`], [`Error::Origin`],
    /// [`Error::CacheDevice`]; with `resized` also [`Error::StillDirty`].
    pub fn attach(
        self: &Arc<Self>,
        origin: Arc<dyn BlockDevice>,
        id: &OriginId,
        options: &AttachOptions,
    ) -> Result<Arc<CachedDevice>> {
        self.check_attach(&*origin, id, options)?;
        let _one = self.attaching.lock();
        let mut known = self.find_origin(id, options)?;
        let busy = known.is_some_and(|nr| self.origin(nr as u16).is_some());
        if busy || self.lock().origins.is_used_without_cache(id) {
            return Err(Error::OriginBusy(id.label.clone()));
        }
        let resized = known.is_some_and(|nr| self.recorded_len(nr) != Some(id.len_bytes));
        if let Some(nr) = known.filter(|_| resized)
            && !self.adopt_resized(nr as u16, &origin, id, options)?
        {
            known = None;
        }
        let nr = match known {
            Some(nr) => nr,
            None => self.free_origin_nr()?,
        };
        let quota_slots = options.quota_bytes.map_or(0, |bytes| {
            let block = u64::from(self.lock().log.sb.block_bytes);
            (bytes / block).max(1)
        });
        let origin = Origin::new(self.order, nr as u16, id.clone(), origin, options.mode);
        let origin = Arc::new(origin);
        let mut region_shift = REGION_SHIFT_MIN;
        while id.len_bytes >> region_shift >= REGIONS_MAX {
            region_shift += 1;
        }
        if known.is_some() {
            region_shift = self.lock().origins.of(nr as u16).region_shift;
            if !resized {
                self.demand_unchanged(&origin, options)?;
            }
        }
        // Writes of an earlier life may still be in the origin's volatile cache.
        origin.flush(self)?;
        let entry = OriginEntry {
            id: id.clone(),
            region_shift,
            quota_slots,
            forgetting: false,
            fingerprint: None,
        };
        self.write_superblock(|sb| sb.origins[nr] = Some(entry))?;
        {
            let mut st = self.lock();
            let counts =
                if known.is_some() { *st.origins.of(nr as u16) } else { OriginState::default() };
            *st.origins.of_mut(nr as u16) =
                OriginState { region_shift, quota_slots, known: true, ..counts };
            debug_assert!(
                !st.requests.fills.staging.any_of(nr as u16),
                "nothing was left at its detach"
            );
            st.origins.attach(Arc::clone(&origin));
        }
        Ok(CachedDevice::new(Arc::clone(self), origin))
    }

    fn check_attach(
        &self,
        origin: &dyn BlockDevice,
        id: &OriginId,
        options: &AttachOptions,
    ) -> Result<()> {
        self.lock().check_usable()?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        if options.mode.writes_back() && !self.options.persistence {
            let mode = options.mode;
            return Err(Error::Invalid(format!("{mode} needs a cache with persistence")));
        }
        if id.label.len() > ORIGIN_LABEL_MAX || (id.label.is_empty() && id.uuid.is_none()) {
            let what = "an origin needs a UUID or a label, and the label has at most 96 bytes";
            return Err(Error::Invalid(what.to_owned()));
        }
        let len_bytes = origin.geometry().len_bytes;
        if len_bytes != id.len_bytes {
            let said = id.len_bytes;
            return Err(Error::Invalid(format!(
                "the origin has {len_bytes} bytes, and not {said}"
            )));
        }
        let blocks = id.len_bytes.div_ceil(u64::from(self.lock().log.sb.block_bytes));
        if blocks > ORIGIN_BLOCKS_MAX {
            return Err(Error::Invalid(format!("an origin of {blocks} blocks is too large")));
        }
        Ok(())
    }

    /// Returns the number of an origin that the cache has a record of.
    fn find_origin(&self, id: &OriginId, options: &AttachOptions) -> Result<Option<usize>> {
        let st = self.lock();
        let entries =
            st.log.sb.origins.iter().enumerate().filter_map(|(nr, e)| Some((nr, e.as_ref()?)));
        let mut others = Vec::new();
        for (nr, entry) in entries {
            if !entry.id.is_same_origin(id) {
                if !entry.forgetting {
                    let dirty = st.origins.of(nr as u16).dirty_subs * SUB_BLOCK_BYTES as u64;
                    let dirty = match dirty {
                        0 => String::new(),
                        dirty => format!(", {dirty} of them dirty in the cache"),
                    };
                    others.push(format!(
                        "{} ({} bytes{dirty})",
                        name(&entry.id),
                        entry.id.len_bytes
                    ));
                }
                continue;
            }
            if entry.forgetting {
                // It gets a new number: blocks left under the old one are not its own.
                continue;
            }
            return Ok(Some(nr));
        }
        if others.is_empty() || options.add {
            return Ok(None);
        }
        let given = format!("{} ({} bytes)", name(id), id.len_bytes);
        Err(Error::OtherOrigin { known: others.join(", "), given })
    }

    /// Returns a number for a new origin. The number of a forgotten origin is in use until no block
    /// refers to it; if there is no other, this function forgets those blocks first.
    fn free_origin_nr(&self) -> Result<usize> {
        loop {
            if let Some(nr) = self.lock().log.sb.origins.iter().position(Option::is_none) {
                return Ok(nr);
            }
            if !self.forget_some()? {
                break;
            }
        }
        let free = self.lock().log.sb.origins.iter().position(Option::is_none);
        free.ok_or_else(|| Error::Invalid(format!("a cache has at most {ORIGINS_MAX} origins")))
    }

    /// Compares an origin with its state when the cache left it; the inner error describes the
    /// difference.
    fn compare_origin(
        &self,
        origin: &Origin,
        options: &AttachOptions,
    ) -> Result<Result<(), String>> {
        let entry = self.lock().log.sb.origins[usize::from(origin.nr)].clone();
        let Some(entry) = entry else { return Ok(Ok(())) };
        if entry.id.generation != origin.id.generation {
            let (was, is) = (entry.id.generation, origin.id.generation);
            return Ok(Err(format!("its generation was {was} and is {is}")));
        }
        if let Some(was) = entry.fingerprint {
            let is = fingerprint(&*origin.device, origin.id.len_bytes)
                .map_err(|e| origin.failed(&self.counters, e))?;
            if is != was {
                return Ok(Err("it was written to since the cache was closed".to_owned()));
            }
        }
        let samples = self.samples(origin.nr, options.samples)?;
        let other = self.first_different(&*origin.device, origin.id.len_bytes, &samples);
        Ok(match other.map_err(|e| origin.failed(&self.counters, e))? {
            Some(at) => Err(format!("it differs from a cached block at byte {at}")),
            None => Ok(()),
        })
    }

    /// Returns the byte offset of the first sample that differs from a device.
    fn first_different(
        &self,
        device: &dyn BlockDevice,
        len_bytes: u64,
        samples: &[(BlockKey, u64, u32)],
    ) -> weft_block::Result<Option<u64>> {
        for (key, sub, crc) in samples {
            let at = (key.block() * self.subs() + sub) * SUB_BLOCK_BYTES as u64;
            let mut data = vec![0; SUB_BLOCK_BYTES];
            let len = (len_bytes.saturating_sub(at)).min(data.len() as u64) as usize;
            device.read_at(&mut data[..len], at)?;
            if crc32c(&data) != *crc {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Returns the origin that this device may be under another name: one that is not attached and
    /// has dirty data, of the same length and, as far as the cache can tell, content.
    ///
    /// # Errors
    /// [`Error::CacheDevice`], and [`Error::Origin`] if the device cannot be read.
    pub fn similar_origin(&self, device: &dyn BlockDevice) -> Result<Option<OriginInfo>> {
        let failed = |source| Error::Origin { label: "the origin given".to_owned(), source };
        let len_bytes = device.geometry().len_bytes;
        for nr in 0..ORIGINS_MAX {
            let entry = self.lock().log.sb.origins[nr].clone();
            let Some(entry) = entry.filter(|e| !e.forgetting && e.id.len_bytes == len_bytes) else {
                continue;
            };
            let info = self.origin_info(nr, &entry);
            if info.attached || info.dirty_bytes == 0 {
                continue;
            }
            let same = match entry.fingerprint {
                Some(was) => fingerprint(device, len_bytes).map_err(failed)? == was,
                None => {
                    let samples = self.samples(nr as u16, AttachOptions::default().samples)?;
                    let other = self.first_different(device, len_bytes, &samples);
                    !samples.is_empty() && other.map_err(failed)?.is_none()
                }
            };
            if same {
                return Ok(Some(info));
            }
        }
        Ok(None)
    }

    /// Demands that an origin is as the cache left it; with `invalidate`, drops its clean blocks if
    /// it is not.
    pub(crate) fn demand_unchanged(&self, origin: &Origin, options: &AttachOptions) -> Result<()> {
        let Err(why) = self.compare_origin(origin, options)? else { return Ok(()) };
        let dirty_bytes = self.lock().origins.of(origin.nr).dirty_subs * SUB_BLOCK_BYTES as u64;
        let changed = Error::OriginChanged { label: origin.id.label.clone(), why, dirty_bytes };
        if !options.invalidate {
            return Err(changed);
        }
        tracing::warn!(%changed, "its clean blocks are forgotten");
        self.drop_clean(origin.nr)
    }

    /// Returns up to `count` clean sub-blocks, spread over the cache, that should be equal in
    /// origin and cache.
    fn samples(&self, nr: u16, count: u32) -> Result<Vec<(BlockKey, u64, u32)>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        self.load_some()?;
        let st = self.lock();
        let step = (st.residency.len() / count.saturating_mul(4)).max(1);
        let mut found = Vec::new();
        for slot in (0..st.residency.len()).step_by(step as usize) {
            let Some(key) = st.residency.key(slot).filter(|key| key.origin() == nr) else {
                continue;
            };
            let masks = st.residency.masks(slot);
            let clean = masks.valid & !masks.dirty & !masks.held;
            if clean != 0 && st.intent(key) == Intent::None {
                let sub = clean.trailing_zeros();
                found.push((key, u64::from(sub), st.residency.crc(slot, sub as usize)));
            }
        }
        let keep = found.len().div_ceil(count as usize).max(1);
        Ok(found.into_iter().step_by(keep).collect())
    }

    /// Drops the clean blocks of an origin; dirty ones stay.
    fn drop_clean(&self, nr: u16) -> Result<()> {
        self.load_all()?;
        let slots = self.lock().residency.len();
        for slot in 0..slots {
            let mut st = self.lock();
            if st.residency.key(slot).is_some_and(|key| key.origin() == nr) {
                let masks = st.residency.masks(slot);
                st.invalidate(slot, masks.valid & !masks.dirty);
            }
            if slot % 64 == 0 {
                drop(st);
                self.commit_if_much()?;
            }
        }
        self.commit()
    }

    /// Writes an origin's dirty blocks back and forgets the origin, which is then complete without
    /// the cache. Its clean blocks are dropped in the background, so this takes no longer than the
    /// write-back.
    ///
    /// `device` can be used before, during and after this call; requests wait for the last of the
    /// write-back, and then go to the origin, as if there had never been a cache, even when the
    /// cache is closed. While a reference to `device` exists, the origin cannot be attached to this
    /// cache again.
    ///
    /// # Errors
    /// [`Error::UnknownOrigin`] if it was detached before, [`Error::StillDirty`], and those of the
    /// devices. The origin then stays attached, and requests go through the cache.
    pub fn detach(&self, device: &CachedDevice) -> Result<()> {
        let _one = self.attaching.lock();
        let origin = &device.origin;
        let nr = origin.nr;
        if origin.link() != Link::Attached {
            return Err(Error::UnknownOrigin(origin.id.label.clone()));
        }
        let mode = origin.mode();
        origin.set_mode(Mode::PassThrough);
        self.write_back_origin(Some(nr)).inspect_err(|_| {
            origin.is_told();
            origin.set_mode(mode);
        })?;
        {
            // From here on, no write begins; this waits for those in progress.
            let mut st = self.lock();
            st.origins.set_link(origin, Link::Leaving);
            while st.requests.writers.overlaps(nr, &(0..u64::MAX)) || st.requests.fills.any_of(nr) {
                st = self.wait(st);
            }
        }
        let left = self.write_back_origin(Some(nr)).and_then(|()| origin.flush_for_user(self));
        // Before requests go directly to the origin, the cache must have forgotten it durably.
        let left = left.and_then(|()| self.forget_origin(nr));
        let mut st = self.lock();
        if left.is_ok() {
            st.requests.fills.staging.forget(nr);
            st.origins.detach(origin, Arc::downgrade(&device.held));
        } else {
            origin.is_told();
            origin.set_mode(mode);
            st.origins.set_link(origin, Link::Attached);
        }
        drop(st);
        self.notify();
        left?;
        self.forget_in_the_foreground()
    }

    /// Returns the origins that the cache has records of, with their dirty bytes and whether they
    /// are attached.
    #[must_use]
    pub fn origins(&self) -> Vec<OriginInfo> {
        let entries = self.lock().log.sb.origins.clone();
        let entries = entries.iter().enumerate().filter_map(|(nr, e)| Some((nr, e.as_ref()?)));
        let entries = entries.filter(|(_, entry)| !entry.forgetting);
        entries.map(|(nr, entry)| self.origin_info(nr, entry)).collect()
    }

    fn origin_info(&self, nr: usize, entry: &OriginEntry) -> OriginInfo {
        let st = self.lock();
        OriginInfo {
            id: entry.id.clone(),
            used_slots: u64::from(st.origins.of(nr as u16).used_slots),
            dirty_bytes: st.origins.of(nr as u16).dirty_subs * SUB_BLOCK_BYTES as u64,
            quota_bytes: (entry.quota_slots != 0)
                .then(|| entry.quota_slots * u64::from(st.log.sb.block_bytes)),
            attached: st.origins.attached(nr as u16).is_some(),
        }
    }

    /// Returns the number of sub-blocks in a block.
    pub(crate) fn subs(&self) -> u64 {
        self.lock().log.sb.subs() as u64
    }
}

/// The cache's record of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginInfo {
    /// The origin's identity.
    pub id: OriginId,
    /// Number of slots that hold its blocks.
    pub used_slots: u64,
    /// Bytes of it that exist only in the cache.
    pub dirty_bytes: u64,
    /// Maximum share of the cache, in bytes.
    pub quota_bytes: Option<u64>,
    /// True while the origin is attached.
    pub attached: bool,
}

fn name(id: &OriginId) -> String {
    match id.uuid {
        Some(uuid) => {
            let uuid = uuid::Uuid::from_bytes(uuid);
            format!("{:?} ({uuid})", id.label)
        }
        None => format!("{:?}", id.label),
    }
}

/// Returns a hash of the areas of the first `len_bytes` of a device that nearly every use of its
/// content changes.
pub(crate) fn fingerprint(device: &dyn BlockDevice, len_bytes: u64) -> weft_block::Result<u64> {
    const END_BYTES: u64 = 64 << 10;
    const PLACES: u64 = 16;
    let mut places = vec![(0, END_BYTES.min(len_bytes))];
    if len_bytes > 2 * END_BYTES {
        places.push((len_bytes - END_BYTES, END_BYTES));
        let step = (len_bytes - 2 * END_BYTES) / (PLACES + 1) / 4096 * 4096;
        if step >= 4096 {
            places.extend((1..=PLACES).map(|n| (END_BYTES + n * step, 4096)));
        }
    }
    let mut buf = vec![0; END_BYTES as usize];
    let (mut low, mut high) = (0, 0);
    for (offset, len) in places {
        let buf = &mut buf[..len as usize];
        device.read_at(buf, offset)?;
        low = crc32c_append(low, buf);
        high = crc32c_append(high, &crc32c(buf).wrapping_mul(0x9e37_79b9).to_le_bytes());
    }
    Ok(u64::from(high) << 32 | u64::from(low))
}
