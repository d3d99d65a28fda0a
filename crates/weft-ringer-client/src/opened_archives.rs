//! The archives of a cell that this client has opened, with the speed and the failures of each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_ringer::wire::ArchiveInfo;
use weft_ringer::{ArchiveId, BlockHash};

use super::mutex::locked;
use crate::archive::{Archive, ArchiveError, Opener};

/// The time for which a failed archive is asked last.
const BENCH: Duration = Duration::from_secs(20);

/// An archive that is in use.
#[derive(Debug)]
pub(super) struct Used {
    archive: Arc<Archive>,
    benched: Option<Instant>,
    /// The recent time to read a block, in microseconds.
    read_micros: u64,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) asked: Option<Instant>,
    pub(super) list: Vec<ArchiveInfo>,
    pub(super) used: BTreeMap<ArchiveId, Used>,
}

/// The archives of the cell.
#[derive(Debug)]
pub(super) struct Archives {
    opener: Opener,
    pub(super) known: Mutex<Known>,
    blocks_put: AtomicU64,
    blocks_read: AtomicU64,
    bytes_put: AtomicU64,
    bytes_read: AtomicU64,
    wrong_blocks: AtomicU64,
    failures: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

impl Archives {
    /// Counts a block that was put.
    pub(super) fn count_put(&self, len_bytes: u64) {
        add(&self.blocks_put, 1);
        add(&self.bytes_put, len_bytes);
    }

    pub(super) fn new(opener: Opener) -> Self {
        Self {
            opener,
            known: Mutex::default(),
            blocks_put: AtomicU64::new(0),
            blocks_read: AtomicU64::new(0),
            bytes_put: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            wrong_blocks: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// The counters, by name.
    pub(super) fn figures(&self) -> [(&'static str, u64); 7] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("archives", locked(&self.known).list.len() as u64),
            ("archive_blocks_put", of(&self.blocks_put)),
            ("archive_bytes_put", of(&self.bytes_put)),
            ("archive_blocks_read", of(&self.blocks_read)),
            ("archive_bytes_read", of(&self.bytes_read)),
            ("archive_wrong_blocks", of(&self.wrong_blocks)),
            ("archive_failures", of(&self.failures)),
        ]
    }

    /// Opens an archive, and checks that it belongs to the cell.
    pub(super) fn open(
        &self,
        info: &ArchiveInfo,
        cell: u64,
        limit: Duration,
    ) -> Result<Arc<Archive>, ArchiveError> {
        let url = String::from_utf8_lossy(&info.url.0);
        if let Some(used) =
            locked(&self.known).used.get(&info.archive).filter(|u| u.archive.url() == url)
        {
            return Ok(Arc::clone(&used.archive));
        }
        let archive = Arc::new(Archive::new(&url, &self.opener)?);
        archive.check(info.archive, cell, limit)?;
        let used = Used { archive: Arc::clone(&archive), benched: None, read_micros: 0 };
        locked(&self.known).used.insert(info.archive, used);
        Ok(archive)
    }

    /// Returns archives in the order to ask them: those that failed lately last, else the nearest
    /// first.
    pub(super) fn in_order(&self, mut list: Vec<ArchiveInfo>) -> Vec<ArchiveInfo> {
        let (now, known) = (Instant::now(), locked(&self.known));
        list.sort_by_key(|info| {
            let used = known.used.get(&info.archive);
            let benched = used.and_then(|u| u.benched).is_some_and(|until| now < until);
            (benched, used.map_or(0, |u| u.read_micros))
        });
        list
    }

    pub(super) fn went_wrong(&self, id: ArchiveId, error: &ArchiveError) {
        match error {
            ArchiveError::Wrong { .. } => {
                add(&self.wrong_blocks, 1);
                tracing::error!("{error}");
            }
            _ => {
                add(&self.failures, 1);
                tracing::warn!("{error}");
            }
        }
        // The loss of one object says nothing about the others.
        let is_of_object =
            matches!(error, ArchiveError::Absent { .. } | ArchiveError::Wrong { .. });
        if let Some(used) = locked(&self.known).used.get_mut(&id).filter(|_| !is_of_object) {
            used.benched = Some(Instant::now() + BENCH);
        }
    }

    pub(super) fn read(
        &self,
        info: &ArchiveInfo,
        cell: u64,
        hash: &BlockHash,
        limit: Duration,
    ) -> Result<Vec<u8>, ArchiveError> {
        let begun = Instant::now();
        let bytes = self.open(info, cell, limit)?.get(hash, limit)?;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Some(used) = locked(&self.known).used.get_mut(&info.archive) {
            used.benched = None;
            used.read_micros = (used.read_micros.saturating_mul(7) / 8).saturating_add(micros / 8);
        }
        add(&self.blocks_read, 1);
        add(&self.bytes_read, bytes.len() as u64);
        Ok(bytes)
    }
}
