//! Sealing all of a file again, in place, with another key: the file keeps its names and its inode.
//!
//! The commit is by a log, as every commit that changes blocks in place
//! ([`sealed_format`](crate::store::sealed_format)), with all blocks in it. The end of the log has a
//! tag of the old key, and the header in it one of the new key. So the header is written to its
//! position when all blocks are durable at theirs: a file with the new header needs the log no longer.

use super::{
    HEADER_BYTES, Header, LOG_END_BYTES, LogEnd, RECORD_BYTES, RUN_BYTES, SealedFile, read_exact,
    seal_of,
};
use crate::store::Store;
use crate::{Error, Result};

impl SealedFile {
    /// Seals all blocks again, if the key of the file is not the newest one. After an error the file
    /// must be opened anew.
    ///
    /// # Errors
    /// Those of the file below, and damage.
    pub(in crate::store) fn seal_again(&mut self) -> Result<()> {
        self.commit()?;
        self.apply_pending()?;
        let stage = self.stage.clone();
        let seal = seal_of(&stage)?;
        let key_id = seal.key_id();
        if !self.begun || key_id == self.header.key_id {
            return Ok(());
        }
        let sealer = seal.sealer(self.header.file_id, key_id)?;
        let header = Header { key_id, sequence: self.header.sequence + 1, ..self.header.clone() };
        let start = self.layout.end(self.size).next_multiple_of(512);
        // The rest of a failed commit must not follow the end of the log.
        self.below.set_len(start)?;
        self.has_tail = true;
        let mut hasher = blake3::Hasher::new();
        let mut log = header.encode(&|bytes| sealer.tag(bytes)).to_vec();
        let (mut at, mut count) = (start, 0);
        for index in 0..self.layout.blocks(self.size) {
            if self.holes.contains(index) {
                continue;
            }
            count += 1;
            let plain = self.load(index)?;
            log.extend(index.to_le_bytes());
            log.extend((plain.len() as u64 + self.layout.overhead_bytes).to_le_bytes());
            sealer.seal(index, &plain, &mut log)?;
            if log.len() as u64 >= RUN_BYTES {
                hasher.update(&log);
                self.below.write_at(at, &log)?;
                at += log.len() as u64;
                log.clear();
            }
        }
        hasher.update(&log);
        let sequence = header.sequence;
        let end = LogEnd { start, count, sequence, hash: *hasher.finalize().as_bytes() };
        let end_at = at + log.len() as u64;
        log.extend(end.encode(&self.tag()));
        self.below.write_at(at, &log)?;
        self.below.commit()?;
        self.apply_from(start, end_at)?;
        (self.header, self.sealer) = (header, sealer);
        self.cached = None;
        self.cut_tail()
    }

    /// Returns true if the bytes of a log have this hash.
    pub(super) fn log_is_whole(&mut self, start: u64, end: u64, hash: [u8; 32]) -> Result<bool> {
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; RUN_BYTES as usize];
        let (stage, mut at) = (self.stage(), start);
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
            read_exact(&mut *self.below, stage, at, &mut piece[..len])?;
            hasher.update(&piece[..len]);
            at += len as u64;
        }
        Ok(*hasher.finalize().as_bytes() == hash)
    }

    /// Writes the blocks of a log that is in the file to their positions, and then its header.
    pub(super) fn apply_from(&mut self, start: u64, end: u64) -> Result<()> {
        let stage = self.stage();
        let mut header = [0; HEADER_BYTES];
        read_exact(&mut *self.below, stage, start, &mut header)?;
        let longest = self.layout.block_bytes + self.layout.overhead_bytes;
        let mut block = Vec::new();
        let mut at = start + HEADER_BYTES as u64;
        while at < end {
            let mut record = [0; RECORD_BYTES];
            read_exact(&mut *self.below, stage, at, &mut record)?;
            let (index, len) = record.split_at(8);
            let index = u64::from_le_bytes(index.try_into().unwrap_or_default());
            let len = u64::from_le_bytes(len.try_into().unwrap_or_default());
            if len > longest {
                let what = format!("a log with a block of {len} bytes");
                return Err(Error::Corrupt { stage, offset: 0, what });
            }
            block.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
            at += RECORD_BYTES as u64;
            read_exact(&mut *self.below, stage, at, &mut block)?;
            at += len;
            self.below.write_at(self.layout.start(index), &block)?;
        }
        self.below.commit()?;
        self.below.write_at(0, &header)?;
        self.below.commit()
    }

    /// Returns where a log in a file of `len` bytes begins and ends, if there is a complete one that
    /// may not have been applied.
    pub(super) fn find_log(&mut self, len: u64) -> Result<Option<(u64, u64)>> {
        let Some(end_at) = len.checked_sub(LOG_END_BYTES as u64) else { return Ok(None) };
        let stage = self.stage();
        let mut end = [0; LOG_END_BYTES];
        read_exact(&mut *self.below, stage, end_at, &mut end)?;
        let Some(end) = LogEnd::decode(&end, &self.tag()) else { return Ok(None) };
        let is_recent = [self.header.sequence, self.header.sequence + 1].contains(&end.sequence);
        let holds_header =
            end_at.checked_sub(end.start).is_some_and(|len| len >= HEADER_BYTES as u64);
        if !is_recent || !holds_header || !self.log_is_whole(end.start, end_at, end.hash)? {
            return Ok(None);
        }
        tracing::info!(stage, blocks = end.count, "finishes a commit that was cut short");
        Ok(Some((end.start, end_at)))
    }
}
