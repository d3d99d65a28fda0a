//! Recovery: scans the log for complete transactions, collects the revoked blocks, and replays the
//! rest.
//!
//! The scan verifies everything that can be verified before anything is written: checksums as the
//! features require, target blocks inside the volume. Of several copies of a block only the last is
//! written. A transaction without a valid commit block ends the log: it was being written at the
//! crash. It is distinguished from *damage* in the middle by the blocks after it: a valid commit
//! block of that or a later transaction means that it had once been complete.

use super::descriptor::{self, ESCAPE};
use super::superblock::Features;
use super::{BlockType, Error, Header, Log, MAGIC, Result, checksum, commit, is_after, revoke};
use hashbrown::HashMap;
use std::fmt;
use weft_block::BlockDevice;

/// Distance past the end of the log within which a later commit block is searched for, in blocks.
const LOOK_AHEAD_BLOCKS: u32 = 4096;

/// Position and kind of damage to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The transaction it belongs to; those before it are complete.
    pub sequence: u32,
    /// The log block.
    pub log_block: u32,
    /// A description of the damage.
    pub problem: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, log_block, problem } = self;
        write!(f, "{problem} (transaction {sequence}, log block {log_block})")
    }
}

/// The result of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Number of complete transactions found.
    pub transactions: u32,
    /// Number of volume blocks written; each once.
    pub blocks_replayed: u64,
    /// Number of copies not replayed because they were revoked.
    pub copies_revoked: u64,
    /// Number for the next transaction, to be passed to [`Log::reset`].
    pub next_sequence: u32,
    /// The damage before which replay stopped, if damage was tolerated.
    pub damage: Option<Damage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Descriptor,
    Revoke,
}

/// A descriptor or revoke block of a complete transaction.
#[derive(Debug, Clone, Copy)]
struct Item {
    sequence: u32,
    log_block: u32,
    kind: Kind,
}

/// The copy of a block that is to be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LastCopy {
    block: u64,
    log_block: u32,
    escaped: bool,
}

struct Scan {
    items: Vec<Item>,
    transactions: u32,
    /// The first sequence number whose transaction is incomplete.
    end: u32,
    damage: Option<Damage>,
}

impl<D: BlockDevice> Log<D> {
    /// Replays the log to a volume of `volume_blocks` blocks through `write`, which gets block
    /// numbers and whole blocks. Does not change the log: flush the volume, then call
    /// [`reset`](Self::reset) with the next sequence number. If interrupted, it can be repeated.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the log is damaged before its end (nothing was written then);
    /// [`Error::Replay`] if `write` failed; device errors.
    pub fn recover<E>(
        &self,
        volume_blocks: u64,
        write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Recovery>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.run(volume_blocks, write, false)
    }

    /// Does as [`recover`](Self::recover), but replays the transactions before a damaged one and
    /// reports it in [`Recovery::damage`]. For repair: the volume needs a check afterwards.
    ///
    /// # Errors
    /// As [`recover`](Self::recover), without [`Error::Damaged`].
    pub fn recover_before_damage<E>(
        &self,
        volume_blocks: u64,
        write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Recovery>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.run(volume_blocks, write, true)
    }

    fn run<E>(
        &self,
        volume_blocks: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
        tolerate_damage: bool,
    ) -> Result<Recovery>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let sequence = self.superblock().sequence;
        if !self.needs_recovery() {
            return Ok(Recovery { next_sequence: sequence.wrapping_add(1), ..Recovery::default() });
        }
        let mut scan = Scanner::new(self, volume_blocks).run()?;
        let mut next_sequence = scan.end.wrapping_add(1);
        if let Some(damage) = scan.damage {
            if !tolerate_damage {
                return Err(Error::Damaged(damage));
            }
            // Never reuse the number of a transaction after the damage.
            next_sequence = next_sequence.wrapping_add(self.superblock().ring_blocks());
        }
        scan.items.retain(|item| is_after(scan.end, item.sequence));
        let revoked = self.collect_revoked(&scan)?;
        let (copies, copies_revoked) = self.collect_copies(&scan, &revoked)?;
        let blocks_replayed = copies.len() as u64;
        let mut buf = vec![0; self.map().block_bytes() as usize];
        for LastCopy { block, log_block, escaped } in copies {
            self.map().read(log_block, &mut buf)?;
            if escaped && let Some(start) = buf.get_mut(..4) {
                start.copy_from_slice(&MAGIC.to_be_bytes());
            }
            write(block, &buf).map_err(|source| Error::Replay { block, source: source.into() })?;
        }
        Ok(Recovery {
            transactions: scan.transactions,
            blocks_replayed,
            copies_revoked,
            next_sequence,
            damage: scan.damage,
        })
    }

    /// Returns each revoked block with the last transaction that revoked it.
    fn collect_revoked(&self, scan: &Scan) -> Result<HashMap<u64, u32>> {
        let mut revoked = HashMap::new();
        let mut buf = vec![0; self.map().block_bytes() as usize];
        for item in scan.items.iter().filter(|item| item.kind == Kind::Revoke) {
            self.map().read(item.log_block, &mut buf)?;
            for block in revoke::records(&buf, self.superblock().features).into_iter().flatten() {
                // Items are in the order of their sequence numbers.
                revoked.insert(block, item.sequence);
            }
        }
        Ok(revoked)
    }

    /// Returns the last copy of each block that is to be replayed, by block, and the number of
    /// revoked copies.
    fn collect_copies(
        &self,
        scan: &Scan,
        revoked: &HashMap<u64, u32>,
    ) -> Result<(Vec<LastCopy>, u64)> {
        let mut last: HashMap<u64, LastCopy> = HashMap::new();
        let mut skipped = 0;
        let mut buf = vec![0; self.map().block_bytes() as usize];
        for item in scan.items.iter().filter(|item| item.kind == Kind::Descriptor) {
            self.map().read(item.log_block, &mut buf)?;
            let mut at = item.log_block;
            for tag in descriptor::tags(&buf, self.superblock().features) {
                at = self.superblock().advance(at, 1);
                if revoked.get(&tag.block).is_some_and(|&by| !is_after(item.sequence, by)) {
                    skipped += 1;
                } else {
                    let escaped = tag.flags & ESCAPE != 0;
                    last.insert(tag.block, LastCopy { block: tag.block, log_block: at, escaped });
                }
            }
        }
        let mut copies: Vec<LastCopy> = last.into_values().collect();
        copies.sort_unstable();
        Ok((copies, skipped))
    }
}

/// The first pass.
struct Scanner<'a, D> {
    log: &'a Log<D>,
    volume_blocks: u64,
    seed: u32,
    at: u32,
    /// Number of blocks passed so far; no more than the ring holds can be live.
    passed: u32,
    sequence: u32,
    /// Damage inside the transaction being scanned, in case its commit block turns out valid.
    suspect: Option<Damage>,
    /// CRC32 of the transaction so far.
    crc: u32,
    scan: Scan,
}

impl<'a, D: BlockDevice> Scanner<'a, D> {
    fn new(log: &'a Log<D>, volume_blocks: u64) -> Self {
        let superblock = log.superblock();
        Self {
            log,
            volume_blocks,
            seed: checksum::seed(&superblock.uuid),
            at: superblock.start,
            passed: 0,
            sequence: superblock.sequence,
            suspect: None,
            crc: !0,
            scan: Scan {
                items: Vec::new(),
                transactions: 0,
                end: superblock.sequence,
                damage: None,
            },
        }
    }

    fn features(&self) -> Features {
        self.log.superblock().features
    }

    fn step(&mut self, blocks: u32) {
        self.at = self.log.superblock().advance(self.at, blocks);
        self.passed = self.passed.saturating_add(blocks);
    }

    fn suspect(&mut self, log_block: u32, problem: &'static str) {
        if self.suspect.is_none() {
            self.suspect = Some(Damage { sequence: self.sequence, log_block, problem });
        }
    }

    fn run(mut self) -> Result<Scan> {
        let ring = self.log.superblock().ring_blocks();
        let uuid = self.log.superblock().uuid;
        let mut buf = vec![0; self.log.map().block_bytes() as usize];
        while self.passed < ring {
            let here = self.at;
            self.log.map().read(here, &mut buf)?;
            let Some(header) = Header::parse(&buf).filter(|h| h.sequence == self.sequence) else {
                break;
            };
            match header.block_type {
                BlockType::Descriptor | BlockType::Revoke
                    if !descriptor::tail_fits(&buf, self.features(), &uuid) =>
                {
                    self.suspect(here, "a descriptor or revoke block has a wrong checksum");
                    break;
                }
                BlockType::Descriptor => {
                    self.push(here, Kind::Descriptor);
                    self.step(1);
                    self.descriptor(&buf)?;
                }
                BlockType::Revoke => {
                    if revoke::records(&buf, self.features()).is_none() {
                        self.suspect(here, "a revoke block has an impossible length");
                    }
                    self.push(here, Kind::Revoke);
                    self.step(1);
                }
                BlockType::Commit => {
                    if !commit::fits(&buf, self.features(), &uuid, self.crc) {
                        self.suspect(here, "a commit block's checksum does not fit");
                        break;
                    }
                    if self.suspect.is_some() {
                        break;
                    }
                    self.step(1);
                    self.commit();
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => break,
            }
        }
        self.scan.end = self.sequence;
        self.scan.damage = self.judge()?;
        Ok(self.scan)
    }

    fn push(&mut self, log_block: u32, kind: Kind) {
        self.scan.items.push(Item { sequence: self.sequence, log_block, kind });
    }

    fn commit(&mut self) {
        self.scan.transactions += 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.crc = !0;
    }

    /// Checks the copies that follow a descriptor block.
    fn descriptor(&mut self, block: &[u8]) -> Result<()> {
        let features = self.features();
        let ring = self.log.superblock().ring_blocks();
        let mut copy = vec![0; block.len()];
        if features.transaction_crc() {
            self.crc = checksum::crc32_be(self.crc, block);
        }
        let mut tags = 0;
        for tag in descriptor::tags(block, features) {
            tags += 1;
            if self.passed >= ring {
                self.suspect(self.at, "a transaction is longer than the log");
                return Ok(());
            }
            if tag.block >= self.volume_blocks {
                self.suspect(self.at, "a block to replay lies outside the volume");
            }
            if features.csum() || features.transaction_crc() {
                self.log.map().read(self.at, &mut copy)?;
                if features.transaction_crc() {
                    self.crc = checksum::crc32_be(self.crc, &copy);
                } else if !tag
                    .checksum_fits(features, checksum::data_csum(self.seed, self.sequence, &copy))
                {
                    self.suspect(self.at, "a block to replay has a wrong checksum");
                }
            }
            self.step(1);
        }
        if tags == 0 {
            self.suspect(self.at, "a descriptor block without tags");
        }
        Ok(())
    }

    /// Distinguishes damage from the transaction that was being written at the crash.
    fn judge(&self) -> Result<Option<Damage>> {
        // With asynchronous commits a commit block proves only that the transactions before it are
        // complete.
        let ahead = u32::from(self.features().has(Features::ASYNC_COMMIT));
        let proof = self.sequence.wrapping_add(ahead);
        if self.commit_follows(proof)? {
            return Ok(Some(self.suspect.unwrap_or(Damage {
                sequence: self.sequence,
                log_block: self.at,
                problem: "a block in the middle of the log is not the one expected",
            })));
        }
        Ok(None)
    }

    /// Returns true if a valid commit block of transaction `sequence` or a later one lies ahead.
    fn commit_follows(&self, sequence: u32) -> Result<bool> {
        let ring = self.log.superblock().ring_blocks();
        let ahead = ring.saturating_sub(self.passed).min(LOOK_AHEAD_BLOCKS);
        let uuid = self.log.superblock().uuid;
        let mut buf = vec![0; self.log.map().block_bytes() as usize];
        for step in 0..ahead {
            self.log.map().read(self.log.superblock().advance(self.at, step), &mut buf)?;
            let Some(header) = Header::parse(&buf) else { continue };
            let newer = header.sequence.wrapping_sub(sequence) < ring;
            if header.block_type != BlockType::Commit || !newer {
                continue;
            }
            // Without checksums the header must suffice: it is in the block's first sector, and a
            // copy that looked like it would have been escaped.
            if !self.features().csum() || commit::fits(&buf, self.features(), &uuid, 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
