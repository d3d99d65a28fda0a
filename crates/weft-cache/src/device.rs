//! A cached origin, as a block device.

use crate::cache::Cache;
use crate::data::Data;
use crate::origin::{Link, Origin};
use crate::stats::{Count, Timed};
use crate::{Mode, Result};
use std::sync::Arc;
use weft_block::{BlockDevice, Extent, Geometry, check_range};

/// Maximum length of one discard or zeroing, in bytes. Smaller in unit tests, whose origins are in
/// memory: they cross it.
const RANGE_BYTES_MAX: u64 = if cfg!(test) { 3 << 19 } else { 1 << 30 };

/// Maximum length of a run of zeroes that is kept in the cache, in bytes.
const ZEROES_CACHED_MAX: u64 = 1 << 20;

/// An origin with a cache in front of it, returned by [`Cache::attach`].
pub struct CachedDevice {
    pub(crate) cache: Arc<Cache>,
    pub(crate) origin: Arc<Origin>,
    /// Dropped with this device, whereas threads of the cache may hold the origin for longer.
    pub(crate) held: Arc<()>,
}

impl std::fmt::Debug for CachedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedDevice").field("origin", &self.origin.id).finish_non_exhaustive()
    }
}

impl CachedDevice {
    pub(crate) fn new(cache: Arc<Cache>, origin: Arc<Origin>) -> Arc<Self> {
        Arc::new(Self { cache, origin, held: Arc::new(()) })
    }

    /// Returns the present mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.origin.mode()
    }

    /// Changes the mode, from the next request on. On a change from a mode that writes back to one
    /// that does not, dirty data is written back before this returns; meanwhile, and if that fails,
    /// dirty blocks are served from the cache, and writes to them stay in it.
    ///
    /// # Errors
    /// [`Error::StillDirty`](crate::Error::StillDirty): the mode is changed, but some data is not
    /// written back.
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        if mode.writes_back() && !self.cache.options.persistence {
            let what = format!("{mode} needs a cache with persistence");
            return Err(crate::Error::Invalid(what));
        }
        if self.origin.link() == Link::Gone {
            return Err(crate::Error::UnknownOrigin(self.origin.id.label.clone()));
        }
        {
            // Under the lock: a write is planned with one mode.
            let _st = self.cache.lock();
            self.origin.set_mode(mode);
        }
        if mode.writes_back() {
            return Ok(());
        }
        self.cache.write_back_origin(Some(self.origin.nr))
    }

    /// Writes back the dirty data of this origin, and flushes it: it is then complete without the
    /// cache, until the next write.
    ///
    /// # Errors
    /// [`Error::StillDirty`](crate::Error::StillDirty), and those of the devices.
    pub fn write_back_all(&self) -> Result<()> {
        if self.origin.link() == Link::Gone {
            return self.flush_without_cache();
        }
        let written = self.cache.write_back_origin(Some(self.origin.nr));
        written.inspect_err(|_| self.origin.is_told())?;
        self.origin.flush_for_user(&self.cache)
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    fn flush_without_cache(&self) -> Result<()> {
        self.origin.device.flush().map_err(|e| self.origin.failed(&self.cache.counters, e))
    }

    fn flush_all(&self) -> Result<()> {
        if self.origin.link() == Link::Gone {
            return self.flush_without_cache();
        }
        let cache = &*self.cache;
        let must = {
            let st = cache.lock();
            if st.health.closed {
                return Err(crate::Error::Closed);
            }
            st.log.flush_needs_commit()
        };
        if must || cache.lock().health.failed.is_some() {
            cache.commit().or_else(|error| self.pass_if_failed(error))?;
        }
        if self.origin.flush_needed_by_user() {
            self.origin.flush_for_user(cache)?;
        }
        Ok(())
    }

    /// Zeroes or discards a range of whole blocks of the origin, which may be long, and updates the
    /// cache.
    fn change_range(
        &self,
        offset: u64,
        len_bytes: u64,
        change: impl Fn(u64, u64) -> weft_block::Result<()>,
    ) -> Result<()> {
        let cache = &*self.cache;
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let to = (at + RANGE_BYTES_MAX).min(end);
            let block_bytes = u64::from(cache.lock().log.sb.block_bytes);
            let last = to.div_ceil(block_bytes);
            let blocks = at / block_bytes..last;
            let Some((mut st, id)) = cache.enter_writer(&self.origin, &blocks, |_| true)? else {
                return change(at, end - at).map_err(|e| self.origin.failed(&cache.counters, e));
            };
            // No write-back of these blocks begins from here on.
            let changing = st.requests.changing.enter(self.origin.nr, blocks);
            drop(st);
            let changed = self.enter_origin(at, to).and_then(|announced| {
                let changed =
                    change(at, to - at).map_err(|e| self.origin.failed(&cache.counters, e));
                let epoch = self.origin.count_write();
                if changed.is_ok() {
                    self.zero_cached(at, to);
                } else {
                    // Part of it may be done. Dirty data stays, and is written back again.
                    cache.lock().drop_clean_blocks(self.origin.nr, at / block_bytes..last);
                }
                self.leave_origin(&announced, epoch);
                changed
            });
            cache.lock().requests.changing.leave(changing);
            cache.leave_writer(id);
            changed?;
            at = to;
        }
        cache.commit_if_much()
    }
}

impl BlockDevice for CachedDevice {
    fn geometry(&self) -> Geometry {
        self.origin.device.geometry()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        check_range("read", offset, buf.len() as u64, self.origin.id.len_bytes)?;
        let counters = &self.cache.counters;
        let _timed = Timed::new(&counters.reads, &counters.read_nanoseconds);
        Ok(self.read(buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> weft_block::Result<()> {
        check_range("write", offset, buf.len() as u64, self.origin.id.len_bytes)?;
        if self.geometry().read_only {
            return Err(weft_block::Error::ReadOnly);
        }
        let counters = &self.cache.counters;
        counters.user_bytes_written.add(buf.len() as u64);
        let _timed = Timed::new(&counters.writes, &counters.write_nanoseconds);
        Ok(self.write(Data::Bytes(buf), offset)?)
    }

    fn write_vectored_at(
        &self,
        bufs: &[std::io::IoSlice<'_>],
        offset: u64,
    ) -> weft_block::Result<()> {
        if let [one] = bufs {
            return self.write_at(one, offset);
        }
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.write_at(&bytes, offset)
    }

    fn flush(&self) -> weft_block::Result<()> {
        let counters = &self.cache.counters;
        let _timed = Timed::new(&counters.flushes, &counters.flush_nanoseconds);
        Ok(self.flush_all()?)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        check_range("discard", offset, len_bytes, self.origin.id.len_bytes)?;
        if self.geometry().read_only {
            return Err(weft_block::Error::ReadOnly);
        }
        // Whole blocks only: a discard may leave its ends alone, and their blocks are shared with
        // other data.
        let block = u64::from(self.cache.lock().log.sb.block_bytes);
        let start = offset.next_multiple_of(block);
        let end = offset + len_bytes;
        let end = if end == self.origin.id.len_bytes { end } else { end / block * block };
        if start >= end {
            return Ok(());
        }
        let origin = &self.origin.device;
        Ok(self.change_range(start, end - start, |at, len| origin.discard(at, len))?)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> weft_block::Result<()> {
        check_range("write zeroes", offset, len_bytes, self.origin.id.len_bytes)?;
        if self.geometry().read_only {
            return Err(weft_block::Error::ReadOnly);
        }
        let counters = &self.cache.counters;
        let _timed = Timed::new(&counters.writes, &counters.write_nanoseconds);
        if len_bytes <= ZEROES_CACHED_MAX {
            return Ok(self.write(Data::Zeroes(len_bytes), offset)?);
        }
        // The blocks at the ends also hold data that is not zeroed.
        let block = u64::from(self.cache.lock().log.sb.block_bytes);
        let (start, end) = (offset.next_multiple_of(block), (offset + len_bytes) / block * block);
        self.write(Data::Zeroes(start - offset), offset)?;
        let origin = &self.origin.device;
        self.change_range(start, end - start, |at, len| origin.write_zeroes(at, len))?;
        Ok(self.write(Data::Zeroes(offset + len_bytes - end), end)?)
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> weft_block::Result<Extent> {
        check_range("look", offset, len_bytes, self.origin.id.len_bytes)?;
        // Dirty data may reach the origin before it is asked, so this comes first.
        let dirty = match self.origin.link() {
            Link::Gone => None,
            _ => self.cache.lock().first_dirty(self.origin.nr, offset, len_bytes),
        };
        let extent = self.origin.device.extent_at(offset, len_bytes)?;
        Ok(extent.under(offset, dirty))
    }

    fn zeroes_are_fast(&self) -> bool {
        self.origin.mode().writes_back() || self.origin.device.zeroes_are_fast()
    }

    fn check_whole(&self) -> weft_block::Result<()> {
        self.cache.device.check_whole()?;
        self.origin.device.check_whole()
    }
}

#[cfg(test)]
mod tests {
    use crate::{AttachOptions, Cache, CreateOptions, OpenOptions, OriginId};
    use std::sync::Arc;
    use weft_block::{BlockDevice, MemoryDevice};

    const ORIGIN_BYTES: u64 = 1 << 20;

    /// A thread of the cache can hold a reference to an origin for a moment longer than its user.
    #[test]
    fn only_a_device_that_is_held_keeps_its_origin_from_being_attached() {
        let disk = Arc::new(MemoryDevice::new(1 << 20));
        Cache::create(&*disk, &CreateOptions::default()).unwrap();
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(disk, options).unwrap();
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = || {
            let origin: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(ORIGIN_BYTES));
            cache.attach(origin, &id, &AttachOptions::default())
        };
        let device = attach().unwrap();
        let in_a_thread = Arc::clone(&device.origin);
        cache.detach(&device).unwrap();
        drop(device);
        attach().unwrap();
        drop(in_a_thread);
    }
}
