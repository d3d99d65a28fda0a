//! Opening, writing and resizing forks.

use super::hfs::{Hfs, STEP_ALLOC_BLOCKS};
use super::node::{OpenFile, plain};
use super::store::engine_error;
use crate::layout::{BLOCK_BYTES, FORK_MAX_BYTES, Fork};
use crate::store::device_error;
use crate::{Error, Result};
use weft_patch::{Owner, Policy, in_patchgroup};
use weft_vfs::{Handle, Ino, OpenFlags, Opened, Result as FsResult};

impl Hfs {
    pub(super) fn do_open(&self, id: u32, fork: Fork, flags: OpenFlags) -> Result<Opened> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if writes && self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let handle = self.look(|st, s| {
            let node = st.node(s, id)?;
            if node.file.is_none() && writes {
                return Err(Error::IsADirectory);
            }
            node.opens += 1;
            Ok(st.handles.open(OpenFile { id, flags, fork }))
        })?;
        if flags.contains(OpenFlags::TRUNCATE)
            && let Err(e) = self.do_set_len(id, fork, 0)
        {
            self.do_release(handle)?;
            return Err(e);
        }
        Ok(Opened { handle, keep_cache: true, direct_io: false })
    }

    pub(super) fn do_release(&self, handle: Handle) -> Result<()> {
        let id = {
            let mut st = self.lock();
            let open = st.handles.close(handle).map_err(|_| Error::Refused("no such handle"))?;
            if let Some(node) = st.nodes.get_mut(&open.id) {
                node.opens = node.opens.saturating_sub(1);
                if node.opens == 0 && node.gone.is_none() {
                    st.vol.close_file(open.id);
                }
            }
            open.id
        };
        self.end_life(id);
        Ok(())
    }

    /// Writes, or appends at the end. On a volume too full for all of `data`, writes as much as
    /// fits.
    pub(super) fn do_write(
        &self,
        id: u32,
        fork: Fork,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<usize> {
        let long = |step: &usize| data.len() > *step || offset.is_some_and(|offset| offset > 0);
        let Some(step) = self.journal_step().filter(long).filter(|_| !data.is_empty()) else {
            return self.write_step(id, fork, offset, data);
        };
        if let Some(offset) = offset
            && offset > self.fork_len(id, fork)?
        {
            // The gap is filled with zeroes, and may be long. Another writer may have made the fork
            // longer meanwhile.
            self.resize(id, fork, offset, false)?;
        }
        let mut done = 0;
        for part in data.chunks(step) {
            let at = offset.map(|offset| offset.saturating_add(done as u64));
            match self.write_step(id, fork, at, part) {
                Ok(n) => {
                    done += n;
                    if n < part.len() {
                        break;
                    }
                }
                Err(Error::NoSpace) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Returns the bytes of a fork that one operation writes, if a journal limits them.
    fn journal_step(&self) -> Option<usize> {
        let (_, per_alloc) = self.geometry;
        let bytes = usize::try_from(per_alloc).unwrap_or(1).saturating_mul(BLOCK_BYTES);
        let journal = matches!(self.engine.policy(), Policy::Journal(_));
        if journal && in_patchgroup() {
            // All data may be journaled, whatever the mode.
            return Some(self.engine.block_bytes() as usize * STEP_ALLOC_BLOCKS);
        }
        (self.engine.block_bytes() as usize > BLOCK_BYTES)
            .then(|| bytes.saturating_mul(STEP_ALLOC_BLOCKS - 2))
    }

    /// Writes in one operation, as much of `data` as fits.
    fn write_step(&self, id: u32, fork: Fork, offset: Option<u64>, data: &[u8]) -> Result<usize> {
        match self.write_all(id, fork, offset, data) {
            Err(Error::NoSpace) if data.len() > 1 => {}
            Err(e) => return Err(e),
            Ok(()) => return Ok(data.len()),
        }
        // Finds the part that still fits by halving, so that a full volume ends the search soon.
        let (mut done, mut step) = (0, data.len() / 2);
        while step > 0 {
            let Some(part) = data.get(done..done + step) else { break };
            let at = offset.map(|offset| offset.saturating_add(done as u64));
            match self.write_all(id, fork, at, part) {
                Ok(()) => done += step,
                Err(Error::NoSpace) => step /= 2,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            step = step.min(data.len() - done);
        }
        if done == 0 { Err(Error::NoSpace) } else { Ok(done) }
    }

    fn write_all(&self, id: u32, fork: Fork, offset: Option<u64>, data: &[u8]) -> Result<()> {
        self.change(|st, s| {
            let patch = st.with_file(s, id, |vol, s, file| {
                let offset = offset.unwrap_or(u64::from(file.len_bytes(fork)));
                vol.write(s, file, fork, offset, data)
            })?;
            st.changes.note(s, id, patch)
        })
    }

    pub(super) fn do_set_len(&self, id: u32, fork: Fork, len_bytes: u64) -> Result<()> {
        self.resize(id, fork, len_bytes, true)
    }

    /// Makes a fork exactly or at least this long, in steps that a journal can hold. Other writers
    /// may write between the steps: no step takes back their data.
    fn resize(&self, id: u32, fork: Fork, len_bytes: u64, exact: bool) -> Result<()> {
        if len_bytes > u64::from(FORK_MAX_BYTES) {
            return Err(Error::TooLarge);
        }
        let step = self.journal_step().map_or(u64::MAX, |step| step as u64);
        // Sets the length to the one that `next` returns for the current length, if any.
        let set = |next: &dyn Fn(u64) -> Option<u64>| {
            self.change(|st, s| {
                let now = st.with_file(s, id, |_, _, file| Ok(u64::from(file.len_bytes(fork))))?;
                let Some(next) = next(now) else { return Ok(None) };
                let patch = st.with_file(s, id, |vol, s, file| vol.set_len(s, file, fork, next))?;
                st.changes.note(s, id, patch)?;
                Ok(Some((now, next)))
            })
        };
        let towards = |now: u64| match now < len_bytes {
            true => Some(len_bytes.min(now.saturating_add(step))),
            false => exact.then_some(len_bytes),
        };
        let mut grown: Option<(u64, u64)> = None;
        loop {
            match set(&towards) {
                Ok(None) => return Ok(()),
                Ok(Some((_, now))) if now == len_bytes => return Ok(()),
                Ok(Some((before, now))) => grown = Some((grown.map_or(before, |g| g.0), now)),
                Err(e) => {
                    // All or nothing, as without a journal.
                    if let Some((first, last)) = grown {
                        set(&|now| (now == last).then_some(first))?;
                    }
                    return Err(e);
                }
            }
        }
    }

    pub(super) fn do_allocate(&self, id: u32, offset: u64, len: u64, keep: bool) -> Result<()> {
        if len == 0 {
            return Err(Error::Refused("a range of no bytes"));
        }
        let Some(end) = offset.checked_add(len) else { return Err(Error::TooLarge) };
        if !keep && end > self.fork_len(id, Fork::Data)? {
            return self.resize(id, Fork::Data, end, false);
        }
        self.change(|st, s| {
            let patch = st.with_file(s, id, |vol, s, file| vol.grow(s, file, Fork::Data, end))?;
            st.changes.note(s, id, patch)
        })
    }

    pub(super) fn do_fsync(&self, ino: Ino) -> FsResult<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let id = plain(ino)?;
        let also = self.look(|st, s| Self::sync_set(st, s, id))?;
        self.engine.sync_owner(Owner(u64::from(id)), &also).map_err(|e| engine_error(&e))?;
        // If nothing was dirty, the sync above does not notice an image that was cut meanwhile.
        Ok(self.device.check_whole().map_err(|e| device_error(&e))?)
    }
}
