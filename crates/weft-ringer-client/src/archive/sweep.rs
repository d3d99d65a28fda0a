//! Deletes blocks from an archive that no file consists of. `mds::archives` says why that is safe
//! while files are archived.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_ringer::mds::{ADD_AT_ONCE, DELETE_LIMIT};
use weft_ringer::wire::{SweepStep, Swept};
use weft_ringer::{ArchiveId, BlockHash};
use weft_ringer_net::{Answer, Ask, Error, Observer};

use super::error::ArchiveError;
use super::store::Archive;

/// The time limit for reading the archive's marker.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for listing an archive: S3 lists a million objects in some minutes.
const LIST_LIMIT: Duration = Duration::from_secs(3600);
/// The number of blocks that the server checks in one scan.
const LOOK_AT_ONCE: usize = 1 << 20;
/// The number of blocks deleted in parallel.
const DELETE_AT_ONCE: usize = 8;

/// Why a sweep was not finished. Another sweep, after a while, continues where it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepFailure {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The metadata server failed.
    #[error(transparent)]
    Server(#[from] Error),
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// The number of blocks in the archive.
    pub blocks: u64,
    /// The number of blocks unused at the first scan.
    pub unused: u64,
    /// The number of blocks deleted.
    pub deleted: u64,
}

/// Deletes blocks that the cell's files, their versions, and kept removed files do not need; with
/// `is_dry` only counts them. The observer must be an administrator of the cell.
///
/// # Errors
/// [`SweepFailure`]; blocks deleted until then stay deleted.
pub fn sweep(
    observer: &mut Observer,
    id: ArchiveId,
    archive: &Archive,
    is_dry: bool,
) -> Result<SweepReport, SweepFailure> {
    // Another cell's blocks would all look unused.
    let Answer::Status { status } = observer.ask(&Ask::Status {})? else {
        return Err(
            Error::Refused("protocol error: unexpected reply from the server".into()).into()
        );
    };
    archive.check(id, status.cell, CHECK_LIMIT)?;
    let mut report = SweepReport::default();
    let begun = step(observer, 0, SweepStep::Begin { archive: id })?;
    if !is_dry && !begun.doomed.is_empty() {
        // An earlier sweep has not confirmed that they are gone.
        report.deleted += delete(archive, &begun.doomed)?;
        step(observer, begun.number, SweepStep::Doom {})?;
    }
    step(observer, begun.number, SweepStep::End {})?;
    let hashes = archive.blocks(LIST_LIMIT)?;
    // The list is the archive's, and not what an unmounted disk left.
    archive.check(id, status.cell, CHECK_LIMIT)?;
    report.blocks = hashes.len() as u64;
    for part in hashes.chunks(LOOK_AT_ONCE) {
        let number = step(observer, 0, SweepStep::Begin { archive: id })?.number;
        for hashes in part.chunks(ADD_AT_ONCE) {
            step(observer, number, SweepStep::Add { hashes: hashes.to_vec() })?;
        }
        let left = look(observer, number)?;
        report.unused += left;
        if !is_dry && left > 0 {
            step(observer, number, SweepStep::Condemn {})?;
            look(observer, number)?;
            loop {
                let doomed = step(observer, number, SweepStep::Doom {})?.doomed;
                if doomed.is_empty() {
                    break;
                }
                report.deleted += delete(archive, &doomed)?;
            }
        }
        step(observer, number, SweepStep::End {})?;
    }
    Ok(report)
}

fn step(observer: &mut Observer, number: u64, step: SweepStep) -> Result<Swept, Error> {
    match observer.ask(&Ask::Sweep { number, step })? {
        Answer::Swept { swept } => Ok(swept),
        _ => Err(Error::Refused("protocol error: unexpected reply from the server".into())),
    }
}

/// Makes the server scan all of the cell; returns the number of blocks not seen in use.
fn look(observer: &mut Observer, number: u64) -> Result<u64, Error> {
    loop {
        let swept = step(observer, number, SweepStep::Scan {})?;
        if swept.scanned {
            return Ok(swept.left);
        }
    }
}

/// Deletes blocks, all of them within the time that the server grants, or fails.
fn delete(archive: &Archive, doomed: &[BlockHash]) -> Result<u64, ArchiveError> {
    let end = Instant::now() + DELETE_LIMIT;
    let next = AtomicU64::new(0);
    let work = || {
        let at = || usize::try_from(next.fetch_add(1, Ordering::Relaxed)).ok();
        while let Some(hash) = at().and_then(|at| doomed.get(at)) {
            // No time is left when it is up: the deletion fails before it begins.
            archive.delete(hash, end.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..DELETE_AT_ONCE).map(|_| scope.spawn(work)).collect();
        let panicked = |_| {
            Err(ArchiveError::Failed {
                archive: archive.url().to_owned(),
                object: "a block".into(),
                why: "a thread panicked".into(),
            })
        };
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    Ok(doomed.len() as u64)
}
