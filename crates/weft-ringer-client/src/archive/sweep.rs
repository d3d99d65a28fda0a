//! Deletes from an archive what no file is made of. Why that is safe while files are archived is said
//! in `mds::archives`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_ringer::mds::{ADD_AT_ONCE, DELETE_LIMIT};
use weft_ringer::wire::{SweepStep, Swept};
use weft_ringer::{ArchiveId, BlockHash};
use weft_ringer_net::{Answer, Ask, Error, Observer};

use super::{Archive, ArchiveError};

/// How long the archive may take to say whose it is.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
/// How long the listing of an archive may take: S3 lists a million objects in some minutes.
const LIST_LIMIT: Duration = Duration::from_secs(3600);
/// Blocks that the server looks for at once.
const LOOK_AT_ONCE: usize = 1 << 20;
/// Blocks that are deleted at once.
const DELETE_AT_ONCE: usize = 8;

/// Why a sweep was not finished. Another goes on where it ended, after a while.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepFailure {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The metadata server.
    #[error(transparent)]
    Server(#[from] Error),
}

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Blocks that were in the archive.
    pub blocks: u64,
    /// Those that nobody used at the first look.
    pub unused: u64,
    /// Those that were deleted.
    pub deleted: u64,
}

/// Deletes what is of no use to the cell's files, their versions, or removed files that are kept; with
/// `is_dry` it only counts. The server must let the observer run the cell.
///
/// # Errors
/// [`SweepFailure`]; what was deleted until then is.
pub fn sweep(
    observer: &mut Observer,
    id: ArchiveId,
    archive: &Archive,
    is_dry: bool,
) -> Result<SweepReport, SweepFailure> {
    // Another cell's blocks would be of no use to this one.
    let Answer::Status { status } = observer.ask(&Ask::Status {})? else {
        return Err(Error::Refused("the server says something else".into()).into());
    };
    archive.check(id, status.cell, CHECK_LIMIT)?;
    let mut report = SweepReport::default();
    let begun = step(observer, 0, SweepStep::Begin { archive: id })?;
    if !is_dry && !begun.doomed.is_empty() {
        // Another sweep has not said that they are gone.
        report.deleted += delete(archive, &begun.doomed)?;
        step(observer, begun.number, SweepStep::Doom {})?;
    }
    step(observer, begun.number, SweepStep::End {})?;
    let hashes = archive.blocks(LIST_LIMIT)?;
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
        _ => Err(Error::Refused("the server says something else".into())),
    }
}

/// Has the server look through all of the cell; returns how many blocks it did not see used.
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
