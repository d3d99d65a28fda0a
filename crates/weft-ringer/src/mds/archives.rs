//! The cell's archives: object stores in which clients put blocks by their hashes.
//!
//! The server never talks to an archive. It records the archives, the content that each has of each
//! file, and the blocks being deleted by a [sweep](super::sweep).
//!
//! Invariant: an archive counts as having a content only after a client has reported that every block
//! of it was acknowledged, or found, after the *era* named in the report began. The era grows
//! whenever doomed blocks are cleared; so a block found before it was deleted does not count after
//! it. A client that finds a block missing reports that as well, and the archive no longer counts.

use std::collections::{BTreeMap, BTreeSet};

use super::Mds;
use super::records::{self, key};
use super::stop::Stop;
use super::sweep::{ARCHIVES_MAX, SILENCE_MICROS, Sweep, SweepError};
use crate::error::Refusal;
use crate::op::{Logged, Op};
use crate::rnode::{Body, Bytes};
use crate::store::{Store, StoreError, StoreResult, Transaction};
use crate::types::{ArchiveId, BlockHash, Generation, Moment, RnodeId, Version};
use crate::wire::{ArchiveInfo, Reply, encode, wire_struct};

const ARCHIVES: &[u8] = b"A";
/// The longest URL of an archive, in bytes.
const URL_MAX_BYTES: usize = 1024;
/// Records in one transaction when an archive is removed.
const REMOVE_AT_ONCE: usize = 50;

/// The stored record of the archives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ArchivesRecord {
    pub(super) urls: BTreeMap<ArchiveId, Bytes>,
    pub(super) era: u64,
    /// The archive of the doomed blocks.
    pub(super) doomed_in: ArchiveId,
    pub(super) doomed: Vec<BlockHash>,
}
wire_struct!(ArchivesRecord { urls, era, doomed_in, doomed });

/// The archives of a cell.
#[derive(Debug)]
pub(super) struct Archives {
    pub(super) record: ArchivesRecord,
    pub(super) sweep: Option<Sweep>,
    /// The end of the time in which a sweep unknown to this generation of the server may delete.
    pub(super) quiet_until: Moment,
    /// The number of the last sweep.
    pub(super) last_sweep: u64,
}

/// The key of the contents that archives have of an rnode.
pub(super) fn archived_key(id: RnodeId) -> Vec<u8> {
    key(b'a', id.0)
}

impl Archives {
    pub(super) fn load(
        store: &dyn Store,
        generation: Generation,
        now: Moment,
    ) -> StoreResult<Self> {
        let record: ArchivesRecord =
            records::load(store, ARCHIVES, "archives")?.unwrap_or_default();
        let quiet = if record.doomed.is_empty() { 0 } else { SILENCE_MICROS };
        // Sweep numbers differ between generations: a step of an earlier sweep is refused.
        let last_sweep = u64::from(generation.0) << 32;
        Ok(Self { record, sweep: None, quiet_until: now.after(quiet), last_sweep })
    }

    /// Returns the numbers of the archives of the cell in a store.
    pub(super) fn ids(store: &dyn Store) -> StoreResult<BTreeSet<ArchiveId>> {
        let record: Option<ArchivesRecord> = records::load(store, ARCHIVES, "archives")?;
        Ok(record.unwrap_or_default().urls.into_keys().collect())
    }

    pub(super) fn era(&self) -> u64 {
        self.record.era
    }

    /// Spares the blocks that changes use from deletion.
    pub(super) fn spare(&mut self, ops: &[Logged]) {
        let Some(sweep) = &mut self.sweep else { return };
        for logged in ops {
            if let Op::Write { blocks, .. } = &logged.op {
                for block in blocks.iter().filter_map(|(_, block)| block.as_ref()) {
                    sweep.spare(&block.hash);
                }
            }
        }
    }

    /// Returns true if a block in an archive may be deleted, so that no content may count on it.
    fn is_condemned(&self, archive: ArchiveId, hash: &BlockHash) -> bool {
        self.sweep.as_ref().is_some_and(|sweep| sweep.condemns(archive, hash))
            || (self.record.doomed_in == archive && self.record.doomed.contains(hash))
    }
}

impl Mds {
    /// Returns the cell's archives.
    #[must_use]
    pub fn archives(&self) -> Vec<ArchiveInfo> {
        let urls = self.archives.record.urls.iter();
        urls.map(|(archive, url)| ArchiveInfo { archive: *archive, url: url.clone() }).collect()
    }

    pub(super) fn put_archives(
        &mut self,
        store: &mut dyn Store,
        record: ArchivesRecord,
    ) -> StoreResult<()> {
        let mut transaction = Transaction::default();
        transaction.put(ARCHIVES.to_vec(), encode(&record));
        self.commit(store, transaction)?;
        self.archives.record = record;
        Ok(())
    }

    /// Adds an archive.
    ///
    /// # Errors
    /// [`SweepError`].
    pub fn add_archive(
        &mut self,
        store: &mut dyn Store,
        info: &ArchiveInfo,
    ) -> Result<(), SweepError> {
        let mut record = self.archives.record.clone();
        let is_new = info.archive != ArchiveId(0)
            && !record.urls.iter().any(|(a, url)| *a == info.archive || *url == info.url);
        if !is_new || record.urls.len() >= ARCHIVES_MAX || info.url.0.len() > URL_MAX_BYTES {
            return Err(SweepError::NotAdded);
        }
        record.urls.insert(info.archive, info.url.clone());
        Ok(self.put_archives(store, record)?)
    }

    /// Removes an archive from the cell; the blocks in it stay there.
    ///
    /// # Errors
    /// [`SweepError`].
    pub fn remove_archive(
        &mut self,
        store: &mut dyn Store,
        archive: ArchiveId,
    ) -> Result<(), SweepError> {
        let mut record = self.archives.record.clone();
        if record.urls.remove(&archive).is_none() {
            return Err(SweepError::NoArchive);
        }
        if record.doomed_in == archive {
            record.doomed.clear();
        }
        // From here on no content counts as archived there.
        self.put_archives(store, record)?;
        let mut from = b"a".to_vec();
        loop {
            let page = store.range(&from, b"b", REMOVE_AT_ONCE)?;
            let mut transaction = Transaction::default();
            for (key, record) in &page {
                let mut copies: BTreeMap<ArchiveId, Version> =
                    crate::wire::decode(&record.value)
                        .map_err(|_| records::damaged("archived file", key))?;
                if copies.remove(&archive).is_some() {
                    transaction.put(key.clone(), encode(&copies));
                }
            }
            if !transaction.changes.is_empty() {
                self.commit(store, transaction)?;
            }
            match page.last() {
                Some((last, _)) => from = [&last[..], &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Returns the content that each archive has of an rnode.
    pub(super) fn archived_of(
        &self,
        store: &dyn Store,
        id: RnodeId,
    ) -> StoreResult<BTreeMap<ArchiveId, Version>> {
        let urls = &self.archives.record.urls;
        if urls.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut copies: BTreeMap<ArchiveId, Version> =
            records::load(store, &archived_key(id), "archived file")?.unwrap_or_default();
        copies.retain(|archive, _| urls.contains_key(archive));
        Ok(copies)
    }

    /// Records that an archive has all blocks of a file's content.
    pub(super) fn archived(
        &self,
        store: &mut dyn Store,
        id: RnodeId,
        of: Version,
        archive: ArchiveId,
        era: u64,
    ) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        let Body::File { blocks, .. } = &rnode.body else { return Err(Refusal::Invalid.into()) };
        let archives = &self.archives;
        if !archives.record.urls.contains_key(&archive) {
            return Err(Refusal::NotFound.into());
        }
        let is_doubtful = era != archives.era()
            || blocks.values().any(|block| archives.is_condemned(archive, &block.hash));
        if rnode.content() != Some(of) {
            return Err(Refusal::Changed.into());
        }
        if is_doubtful {
            return Err(Refusal::SweepRunning.into());
        }
        let mut copies = self.archived_of(store, id)?;
        if copies.insert(archive, of) != Some(of) {
            let mut transaction = Transaction::default();
            transaction.put(archived_key(id), encode(&copies));
            match self.commit(store, transaction) {
                Ok(_) => {}
                Err(StoreError::Full) => return Err(Refusal::NoSpace.into()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Reply::Held {})
    }

    /// Records that an archive does not have a block. If the file has it, its content no longer
    /// counts as archived there; a client that has it all puts it there again.
    pub(super) fn archive_lacks(
        &self,
        store: &mut dyn Store,
        id: RnodeId,
        archive: ArchiveId,
        hash: &BlockHash,
    ) -> Result<Reply, Stop> {
        let rnode = records::load_rnode(store, id)?.ok_or(Refusal::Stale)?;
        let Body::File { blocks, .. } = &rnode.body else { return Err(Refusal::Invalid.into()) };
        let mut copies = self.archived_of(store, id)?;
        // A block of an earlier content says nothing about the present one.
        if blocks.values().any(|block| block.hash == *hash) && copies.remove(&archive).is_some() {
            let mut transaction = Transaction::default();
            transaction.put(archived_key(id), encode(&copies));
            match self.commit(store, transaction) {
                Ok(_) => {}
                Err(StoreError::Full) => return Err(Refusal::NoSpace.into()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Reply::Held {})
    }
}
