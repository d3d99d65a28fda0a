//! Reading and writing the forks of files.

use super::fs::{DATA, Mfs, RESOURCE};
use super::state::engine_error;
use super::volume::fork_mut;
use weft_patch::BlockNr;
use weft_vfs::{Error, Result};

/// The most bytes of a fork: the Macintosh uses signed numbers.
const FORK_MAX_BYTES: u64 = 0x7fff_ffff;
/// The most bytes that one operation writes.
const STEP_BYTES: usize = 64 << 10;

impl Mfs {
    /// Reads a fork into `buf`; returns the number of bytes read.
    pub(super) fn read_fork(
        &self,
        ino: u64,
        which: usize,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let state = self.lock();
        let file = state.file(ino)?;
        let fork = if which == DATA { file.entry.data } else { file.entry.resource };
        let left = u64::from(fork.len_bytes).saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let op = self.engine.begin(0).map_err(engine_error)?;
        let unit = u64::from(state.mdb.alloc_block_bytes);
        let mut block = [0; 512];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % 512) as usize;
            let n = (len - done).min(512 - within);
            let alloc = file.chains[which].get((at / unit) as usize).ok_or(Error::Range)?;
            let nr = BlockNr(state.mdb.block_of(*alloc) + at % unit / 512);
            let piece = &mut buf[done..done + n];
            if let Some(cached) = op.cached(nr) {
                piece.copy_from_slice(&cached[within..within + n]);
            } else {
                self.engine.read_device(nr, &mut block).map_err(engine_error)?;
                piece.copy_from_slice(&block[within..within + n]);
            }
            done += n;
        }
        Ok(len)
    }

    /// Writes into a fork; returns the number of bytes, smaller than `data` only if the volume is
    /// full.
    pub(super) fn write_fork(
        &self,
        ino: u64,
        which: usize,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<usize> {
        let mut done = 0;
        for step in data.chunks(STEP_BYTES) {
            let at = offset.map(|o| o.saturating_add(done as u64));
            match self.write_step(ino, which, at, step) {
                Ok(n) => {
                    done += n;
                    if n < step.len() {
                        break;
                    }
                }
                Err(Error::NoSpace) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_step(&self, ino: u64, which: usize, at: Option<u64>, data: &[u8]) -> Result<usize> {
        let now = self.now();
        let once = || {
            self.change(|state, op| {
                let unit = u64::from(state.mdb.alloc_block_bytes);
                let file = state.file(ino)?;
                let len = u64::from(
                    if which == DATA { file.entry.data } else { file.entry.resource }.len_bytes,
                );
                let at = at.unwrap_or(len);
                let end = at.checked_add(data.len() as u64).filter(|&end| end <= FORK_MAX_BYTES);
                let end = end.ok_or(Error::TooLarge)?;
                let have = file.chains[which].len();
                let (free, later) = state.available();
                let need = |end: u64| (end.div_ceil(unit) as usize).saturating_sub(have);
                if need(end) > free && later > 0 {
                    return Ok(None);
                }
                // Writes only as much as fits.
                let end = if need(end) > free { (have + free) as u64 * unit } else { end };
                if end <= at {
                    return Err(Error::NoSpace);
                }
                let data = &data[..(end - at) as usize];
                let mut befores = state.extend(op, ino, which, need(end))?;
                // The gap between the end and the written range becomes zero.
                let mut gap = len;
                while gap < at {
                    let n = (at - gap).min(STEP_BYTES as u64);
                    befores.extend(state.write_data(op, ino, which, gap, &vec![0; n as usize])?);
                    gap += n;
                }
                befores.extend(state.write_data(op, ino, which, at, data)?);
                let file = state.file_mut(ino)?;
                let fork = fork_mut(&mut file.entry, which);
                fork.len_bytes = fork.len_bytes.max(end as u32);
                file.entry.modified = now;
                state.write_entry(op, ino, &befores)?;
                Ok(Some(data.len()))
            })
        };
        self.with_space(once)
    }

    /// Runs `once`, which returns `None` if it needs blocks whose freeing is not durable; runs it
    /// again after a sync.
    fn with_space<R>(&self, once: impl Fn() -> Result<Option<R>>) -> Result<R> {
        for _ in 0..2 {
            if let Some(done) = once()? {
                return Ok(done);
            }
            self.engine.sync().map_err(engine_error)?;
        }
        Err(Error::NoSpace)
    }

    /// Cuts a fork, or extends it with zeroes. Either all of it is done or nothing.
    pub(super) fn set_len(&self, ino: u64, which: usize, len_bytes: u64) -> Result<()> {
        if len_bytes > FORK_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let now = self.now();
        let once = || {
            self.change(|state, op| {
                let unit = u64::from(state.mdb.alloc_block_bytes);
                let file = state.file_mut(ino)?;
                let len = u64::from(
                    if which == DATA { file.entry.data } else { file.entry.resource }.len_bytes,
                );
                file.entry.modified = now;
                if len_bytes <= len {
                    state.cut(op, ino, which, len_bytes as u32)?;
                    return Ok(Some(()));
                }
                let need =
                    (len_bytes.div_ceil(unit) as usize).saturating_sub(file.chains[which].len());
                let (free, later) = state.available();
                if need > free {
                    return if need <= free + later { Ok(None) } else { Err(Error::NoSpace) };
                }
                let mut befores = state.extend(op, ino, which, need)?;
                let mut at = len;
                while at < len_bytes {
                    let n = (len_bytes - at).min(STEP_BYTES as u64);
                    befores.extend(state.write_data(op, ino, which, at, &vec![0; n as usize])?);
                    at += n;
                }
                fork_mut(&mut state.file_mut(ino)?.entry, which).len_bytes = len_bytes as u32;
                state.write_entry(op, ino, &befores)?;
                Ok(Some(()))
            })
        };
        self.with_space(once)
    }

    /// Replaces the resource fork of a file. Either all of it is done or nothing.
    pub(super) fn replace_resource(&self, ino: u64, content: &[u8]) -> Result<()> {
        let once = || {
            self.change(|state, op| {
                let unit = state.mdb.alloc_block_bytes as usize;
                let need = content.len().div_ceil(unit);
                let (free, later) = state.available();
                if need > free {
                    return if need <= free + later { Ok(None) } else { Err(Error::NoSpace) };
                }
                let file = state.file_mut(ino)?;
                let (old, chain) =
                    (file.entry.resource, std::mem::take(&mut file.chains[RESOURCE]));
                file.entry.resource = Default::default();
                let written = state.extend(op, ino, RESOURCE, need).and_then(|mut befores| {
                    befores.extend(state.write_data(op, ino, RESOURCE, 0, content)?);
                    state.file_mut(ino)?.entry.resource.len_bytes = content.len() as u32;
                    state.write_entry(op, ino, &befores)
                });
                match written {
                    Ok(cleared) => state.give_back(op, &chain, cleared).map(Some),
                    Err(e) => {
                        let file = state.file_mut(ino)?;
                        file.entry.resource = old;
                        file.chains[RESOURCE] = chain;
                        Err(e)
                    }
                }
            })
        };
        self.with_space(once)
    }
}
