//! The suite's test of itself: filters with one fault each, which it must find and name.

use super::{Limits, Probe, forwarding, run_filter};
use crate::{BlockDevice, Change, ChangeKind, Extent, ExtentKind, Filter, Geometry, Result};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Bytes are turned over on the way, and zeroes are not.
    ForgetsZeroes,
    /// The same, and extents are those of the device below.
    ForgetsExtents,
    /// Says that it is read-only, and writes.
    WritesReadOnly,
    /// Hides that the device below is read-only.
    HidesReadOnly,
    /// A flush stays here.
    KeepsFlushes,
    /// A flush that fails is well.
    HidesErrors,
    /// A discard takes the sector before with it.
    DiscardsMore,
    /// Says that nothing follows the first 4 KiB.
    EmptyExtents,
    /// Loses the last byte of every 16th write (found by the random comparison).
    LosesBytes,
    /// Sizes of blocks of its own.
    OtherBlocks,
}

struct Faulty {
    below: Arc<Probe>,
    fault: Fault,
    writes: AtomicU64,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn turns_bytes(&self) -> bool {
        self.has(Fault::ForgetsZeroes) || self.has(Fault::ForgetsExtents)
    }
}

impl Filter for Faulty {
    type Below = Probe;

    fn below(&self) -> &Probe {
        &self.below
    }

    fn filter_geometry(&self) -> Geometry {
        let geometry = self.below.geometry();
        match self.fault {
            Fault::WritesReadOnly => Geometry { read_only: true, ..geometry },
            Fault::HidesReadOnly => Geometry { read_only: false, ..geometry },
            Fault::OtherBlocks => Geometry { logical_block_bytes: 512, ..geometry },
            _ => geometry,
        }
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(buf, offset)?;
        if self.turns_bytes() {
            buf.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        let nth = self.writes.fetch_add(1, Ordering::Relaxed);
        match change.kind {
            ChangeKind::Write([one]) if self.has(Fault::LosesBytes) && nth % 16 == 15 => {
                self.below.write_at(&one[..one.len().saturating_sub(1)], change.offset)
            }
            ChangeKind::Discard if self.has(Fault::DiscardsMore) && change.offset >= 512 => {
                self.below.write_zeroes(change.offset - 512, change.len_bytes)
            }
            ChangeKind::Zero if self.has(Fault::ForgetsExtents) => {
                change.apply_by_writes(|buf, at| self.write_at(buf, at))
            }
            ChangeKind::Write(bufs) if self.turns_bytes() => {
                let turned = |buf: &IoSlice<'_>| buf.iter().map(|byte| !byte).collect();
                let bufs: Vec<Vec<u8>> = bufs.iter().map(turned).collect();
                self.below.write_at(&bufs.concat(), change.offset)
            }
            _ => change.apply(&self.below),
        }
    }

    fn filter_flush(&self) -> Result<()> {
        match self.fault {
            Fault::KeepsFlushes => Ok(()),
            Fault::HidesErrors => {
                let _ = self.below.flush();
                Ok(())
            }
            _ => self.below.flush(),
        }
    }

    fn filter_extent(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        let extent = self.below.extent_at(offset, len_bytes)?;
        match self.fault {
            Fault::ForgetsZeroes => Ok(Extent { kind: ExtentKind::Data, ..extent }),
            Fault::EmptyExtents if offset >= 4096 => Ok(Extent { len_bytes: 0, ..extent }),
            _ => Ok(extent),
        }
    }
}

/// Returns the message of the suite about a filter.
fn said_of(fault: Fault) -> String {
    let limits = Limits { random_runs: 4, ..Limits::default() };
    let make = |below| Faulty { below, fault, writes: AtomicU64::new(0) };
    match std::panic::catch_unwind(|| run_filter(make, &limits)) {
        Ok(()) => String::new(),
        Err(panic) => *panic.downcast::<String>().expect("a message"),
    }
}

#[test]
fn each_fault_is_found_and_named() {
    assert_eq!(said_of(Fault::None), "");
    for (fault, case) in [
        (Fault::ForgetsZeroes, "changes::zeroes_stay_in_their_range"),
        (Fault::ForgetsExtents, "ranges::extents_tile_the_device"),
        (Fault::WritesReadOnly, "filters::changes_stay_above"),
        (Fault::HidesReadOnly, "ranges::past_the_end_is_refused"),
        (Fault::KeepsFlushes, "filters::flush_covers_every_change"),
        (Fault::HidesErrors, "filters::errors_come_through"),
        (Fault::DiscardsMore, "changes::discards_stay_in_their_range"),
        (Fault::EmptyExtents, "ranges::extents_tile_the_device"),
        (Fault::LosesBytes, "random::agrees_with_the_model"),
        (Fault::OtherBlocks, "filters::block_sizes_come_through"),
    ] {
        let said = said_of(fault);
        assert!(said.contains(case), "{fault:?} is not found by {case}: {said:?}");
    }
}

/// A counter that is no [`Filter`], and forgets that there are other writes.
struct Bypassed(Arc<Probe>, AtomicU64);

impl BlockDevice for Bypassed {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.0.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
}

#[test]
fn what_is_forgotten_is_listed() {
    let below = Arc::new(Probe::new());
    let device = Bypassed(Arc::clone(&below), AtomicU64::new(0));
    let missing = [
        "read_at_nowait",
        "discard",
        "write_zeroes",
        "extent_at",
        "zeroes_are_fast",
        "check_whole",
    ];
    assert_eq!(forwarding::not_forwarded(&device, &below), missing);
    let count = || device.1.load(Ordering::Relaxed);
    assert_eq!(forwarding::bypasses(&device, count), ["write_vectored_at", "discard"]);
}
