//! The model of the torture: the versions of every sector, and what a read may return.

use super::{Case, SECTOR};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use weft_block::{BlockDevice, mix};

/// In a case with zeroes and discards, a version is a multiple of this if and only if it is one of them.
const ZEROES_EVERY: u64 = 4;
/// The multiples of this are discards; the other multiples of [`ZEROES_EVERY`] are zeroes.
const DISCARD_EVERY: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Write,
    Zero,
    Discard,
}

pub(super) enum Trouble {
    /// A request failed.
    Failed(String),
    /// It did not, and the answer is wrong.
    Wrong(String),
}

impl Case {
    /// Whether there are zeroes and discards.
    pub(super) fn has_zeroes(&self) -> bool {
        self.ahead || self.long
    }

    /// The version of a sector's content, which is to be from `floor` to `ceiling`: what it is not, if it
    /// is none of them. Zeroes count as the oldest version from `floor` on that they can be. What was
    /// discarded and not written since may be anything that it ever was.
    pub(super) fn version(
        &self,
        s: u64,
        bytes: &[u8],
        floor: u64,
        ceiling: u64,
    ) -> Result<u64, String> {
        let version = version_of(s, bytes)?;
        let other = Err(format!("sector {s} is of version {version}"));
        if !self.has_zeroes() {
            return if (floor..=ceiling).contains(&version) { Ok(version) } else { other };
        }
        let discarded = floor > 0 && floor.next_multiple_of(DISCARD_EVERY) <= ceiling;
        let version = if version == 0 { floor.next_multiple_of(ZEROES_EVERY) } else { version };
        match version {
            _ if (floor..=ceiling).contains(&version) => Ok(version),
            _ if discarded && version < floor => Ok(version),
            _ if discarded && version == floor.next_multiple_of(ZEROES_EVERY) => Ok(floor),
            _ => other,
        }
    }

    /// The version after `last`.
    pub(super) fn next_version(&self, last: u64, how: How) -> u64 {
        let next = last + 1;
        match how {
            How::Discard => next.next_multiple_of(DISCARD_EVERY),
            How::Zero => {
                let zeroes = next.next_multiple_of(ZEROES_EVERY);
                zeroes + if zeroes.is_multiple_of(DISCARD_EVERY) { ZEROES_EVERY } else { 0 }
            }
            How::Write if self.has_zeroes() && next.is_multiple_of(ZEROES_EVERY) => next + 1,
            How::Write => next,
        }
    }
}

pub(super) fn stamp(sector: u64, version: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    if version > 0 {
        for (i, word) in (0_u64..).zip(bytes.chunks_exact_mut(8)) {
            let value = if i == 0 { version } else { mix(version << 40 ^ sector << 8 ^ i) };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

pub(super) fn version_of(sector: u64, bytes: &[u8]) -> Result<u64, String> {
    let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    if version < 1 << 24 && bytes == stamp(sector, version) {
        return Ok(version);
    }
    Err(format!("sector {sector} is of no version: {:02x?}...", &bytes[..16]))
}

/// The latest version of each sector that was started, that was acknowledged, and that a reader saw.
pub(super) struct Known {
    pub(super) started: Vec<AtomicU64>,
    pub(super) acked: Vec<AtomicU64>,
    pub(super) seen: Vec<AtomicU64>,
}

impl Known {
    pub(super) fn new(sectors: u64) -> Self {
        let zeroes = || (0..sectors).map(|_| AtomicU64::new(0)).collect();
        Self { started: zeroes(), acked: zeroes(), seen: zeroes() }
    }

    pub(super) fn read(
        &self,
        case: &Case,
        device: &dyn BlockDevice,
        first: u64,
        count: u64,
    ) -> Result<(), Trouble> {
        let floor =
            |s: u64| self.seen[s as usize].load(SeqCst).max(self.acked[s as usize].load(SeqCst));
        let floors: Vec<u64> = (first..first + count).map(floor).collect();
        let mut got = vec![0; (count * SECTOR) as usize];
        device.read_at(&mut got, first * SECTOR).map_err(|e| Trouble::Failed(e.to_string()))?;
        for ((s, floor), bytes) in (first..).zip(floors).zip(got.chunks(SECTOR as usize)) {
            let ceiling = self.started[s as usize].load(SeqCst);
            let version = case.version(s, bytes, floor, ceiling).map_err(|e| {
                Trouble::Wrong(format!(
                    "{e}; it had version {floor} before the read \
                     began, and at its end version {ceiling} had begun"
                ))
            })?;
            self.seen[s as usize].fetch_max(version, SeqCst);
        }
        Ok(())
    }
}
