//! Admission: decides which blocks enter the cache.
//!
//! A policy decides which block leaves; admission, before it, whether one enters. A refused block
//! saves the flash a write and the cache a slot. Each of the three rules is an option:
//!
//! | rule | default | why |
//! |---|---|---|
//! | sequential bypass | streams longer than 4 MiB, once the cache is full | A long stream is read ahead well by the origin, and is seldom read again before it is evicted. The length is bcache's; waiting until the cache is full is Open CAS's default: a block in a free slot costs no hit. |
//! | by reuse | off | S3-FIFO evicts blocks used once quickly as it is; the rule spares the flash their write, and costs the first hit of every block. For disks that wear. |
//! | flash budget | none | Only the administrator knows the required lifetime of the disk. |
//!
//! Data that exists nowhere else, that of write-back, is always admitted, as are updates of cached
//! blocks; both are charged to the budget. Write-through data is judged like read data.

use crate::policy::{BlockKey, Policy};
use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The admission rules. See the [module](self) for the reasons of the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Condition on which streams bypass the cache.
    pub sequential: SequentialBypass,
    /// Minimum length of a sequential run that counts as a stream, in bytes.
    pub sequential_bytes: u64,
    /// Whether a block is admitted only at its second miss within the memory of the policy's
    /// ghosts (about as many blocks as the cache has).
    pub by_reuse: bool,
    /// Maximum data written to the cache by fills, in bytes a day; `None`: no limit. An hour's
    /// share can be used at once.
    pub flash_bytes_per_day: Option<u64>,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self {
            sequential: SequentialBypass::WhenFull,
            sequential_bytes: 4 << 20,
            by_reuse: false,
            flash_bytes_per_day: None,
        }
    }
}

/// Conditions on which streams bypass the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequentialBypass {
    /// Never: streams are cached like anything else.
    Never,
    /// While the cache has no free slot.
    #[default]
    WhenFull,
    /// Always.
    Always,
}

impl SequentialBypass {
    /// All conditions.
    pub const ALL: [Self; 3] = [Self::Never, Self::WhenFull, Self::Always];

    /// Returns the name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::WhenFull => "when-full",
            Self::Always => "always",
        }
    }
}

impl fmt::Display for SequentialBypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SequentialBypass {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|bypass| bypass.name() == s).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|bypass| bypass.name()).collect();
            Error::Invalid(format!("{s:?}: streams bypass the cache {}", names.join(", ")))
        })
    }
}

/// The slot that a missed block would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The block's own slot: other parts of it are in the cache.
    Own,
    /// A free slot.
    Free,
    /// Another block's slot.
    Taken,
}

/// The decision on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The block enters the cache.
    Admit,
    /// Refused: it is part of a stream.
    Sequential,
    /// Refused: it was not used lately.
    FirstUse,
    /// Refused: the budget of flash writes is used up.
    OverBudget,
}

/// Applies the rules. Tracks the streams of all origins, and the charges to the flash budget.
///
/// It has no clock: the caller passes times, in milliseconds from any start.
#[derive(Debug)]
pub struct Admission {
    options: AdmissionOptions,
    streams: Streams,
    budget: Option<Budget>,
}

impl Admission {
    /// Creates an admission with the rules `options`, at the time `now_ms`.
    pub fn new(options: AdmissionOptions, now_ms: u64) -> Admission {
        let budget = options.flash_bytes_per_day.map(|bytes| Budget::new(bytes, now_ms));
        Admission { options, streams: Streams::default(), budget }
    }

    /// Returns the rules.
    pub fn options(&self) -> &AdmissionOptions {
        &self.options
    }

    /// Notes a request to an origin, hit or miss; to be called once for each. Returns true if it
    /// continues a stream of at least [`AdmissionOptions::sequential_bytes`].
    pub fn observe(&mut self, origin: u16, offset: u64, len_bytes: u64) -> bool {
        if self.options.sequential == SequentialBypass::Never {
            return false;
        }
        self.streams.observe(origin, offset, len_bytes) >= self.options.sequential_bytes
    }

    /// Decides whether a missed block enters the cache. `stream` is the result of
    /// [`observe`](Self::observe) for the request, and `fill_bytes` the length of the write to the
    /// flash.
    pub fn judge(
        &mut self,
        policy: &mut dyn Policy,
        key: BlockKey,
        fill_bytes: u64,
        stream: bool,
        place: Place,
        now_ms: u64,
    ) -> Verdict {
        let bypass = match self.options.sequential {
            SequentialBypass::Never => false,
            SequentialBypass::WhenFull => stream && place == Place::Taken,
            SequentialBypass::Always => stream && place != Place::Own,
        };
        if bypass {
            return Verdict::Sequential;
        }
        if self.options.by_reuse && place != Place::Own && !policy.seen_before(key) {
            policy.missed(key);
            return Verdict::FirstUse;
        }
        let paid = self.budget.as_mut().is_none_or(|budget| budget.spend(fill_bytes, now_ms));
        if paid { Verdict::Admit } else { Verdict::OverBudget }
    }

    /// Charges the budget for writes to the flash that need no admission: data of write-back. Fills
    /// are refused until the debt is paid.
    pub fn charge(&mut self, bytes: u64, now_ms: u64) {
        if let Some(budget) = &mut self.budget {
            budget.charge(bytes, now_ms);
        }
    }
}

/// Number of streams that are tracked at a time.
const STREAMS: usize = 64;
/// Maximum distance of a request from the end of the stream that it continues, in bytes: requests
/// of several queues overtake each other.
const SLACK_BYTES: u64 = 256 << 10;

/// The most recent streams. So few are searched faster than a table of them is maintained; every
/// read does it, so the searched positions lie side by side.
#[derive(Debug, Default)]
struct Streams {
    /// End of each stream: the offset, and the origin above it.
    ends: Vec<u64>,
    streams: Vec<Stream>,
    clock: u64,
}

#[derive(Debug)]
struct Stream {
    /// Progress of its end, in bytes.
    len_bytes: u64,
    used: u64,
}

/// Returns an origin and an offset as one number. Origins are below 16. Beyond offsets of 2^60,
/// streams of different origins may be confused: only hints depend on it.
fn address(origin: u16, offset: u64) -> u64 {
    u64::from(origin) << 60 | offset
}

impl Streams {
    /// Notes a request and returns the length of its stream, the request included, in bytes.
    fn observe(&mut self, origin: u16, offset: u64, len_bytes: u64) -> u64 {
        self.clock += 1;
        let (start, end) = (address(origin, offset), address(origin, offset + len_bytes));
        let distances = self.ends.iter().map(|at| start.abs_diff(*at)).enumerate();
        if let Some((at, 0..=SLACK_BYTES)) = distances.min_by_key(|(_, distance)| *distance) {
            let stream = &mut self.streams[at];
            // Only progress counts: requests up and down in one area are no stream.
            stream.len_bytes += end.saturating_sub(self.ends[at]);
            stream.used = self.clock;
            self.ends[at] = self.ends[at].max(end);
            return stream.len_bytes;
        }
        let stream = Stream { len_bytes, used: self.clock };
        if self.streams.len() < STREAMS {
            self.ends.push(end);
            self.streams.push(stream);
        } else {
            let oldest = (0..STREAMS).min_by_key(|at| self.streams[*at].used).unwrap_or(0);
            self.ends[oldest] = end;
            self.streams[oldest] = stream;
        }
        len_bytes
    }
}

const DAY_MS: u128 = 24 * 60 * 60 * 1000;

/// A token bucket that holds an hour's share.
#[derive(Debug)]
struct Budget {
    bytes_per_day: u64,
    /// In bytes times [`DAY_MS`], so that nothing is lost by rounding. Negative: in debt.
    tokens: i128,
    updated_ms: u64,
}

impl Budget {
    fn new(bytes_per_day: u64, now_ms: u64) -> Budget {
        let mut budget = Budget { bytes_per_day, tokens: 0, updated_ms: now_ms };
        budget.tokens = budget.most();
        budget
    }

    /// Returns the capacity: an hour's share, and no less than a few large blocks.
    fn most(&self) -> i128 {
        let share = u128::from((self.bytes_per_day / 24).max(1 << 20)) * DAY_MS;
        // At most 2^64 bytes times 2^27 milliseconds.
        share as i128
    }

    fn refill(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.updated_ms);
        self.updated_ms = self.updated_ms.max(now_ms);
        let earned = (u128::from(passed) * u128::from(self.bytes_per_day)) as i128;
        self.tokens = self.tokens.saturating_add(earned).min(self.most());
    }

    fn spend(&mut self, bytes: u64, now_ms: u64) -> bool {
        self.refill(now_ms);
        let cost = (u128::from(bytes) * DAY_MS) as i128;
        // A zero budget admits nothing.
        let can = self.bytes_per_day > 0 && self.tokens >= cost;
        if can {
            self.tokens -= cost;
        }
        can
    }

    /// Charges unconditionally. The debt is at most a day's budget, so that an old burst of writes
    /// does not keep fills out for ever.
    fn charge(&mut self, bytes: u64, now_ms: u64) {
        self.refill(now_ms);
        let cost = (u128::from(bytes) * DAY_MS) as i128;
        let debt_max = (u128::from(self.bytes_per_day) * DAY_MS) as i128;
        self.tokens = self.tokens.saturating_sub(cost).max(-debt_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicyKind, SlotNr};

    fn judge(admission: &mut Admission, block: u64, stream: bool, now_ms: u64) -> Verdict {
        let mut policy = PolicyKind::Lru.build(16);
        let key = BlockKey::new(0, block);
        admission.judge(&mut *policy, key, 4096, stream, Place::Taken, now_ms)
    }

    #[test]
    fn a_stream_is_recognised_between_others() {
        let mut admission = Admission::new(AdmissionOptions::default(), 0);
        let mut rng = weft_block::Rng::new(1);
        for at in 0..100_u64 {
            // Two streams of 128 KiB requests, the second with neighbours swapped, and noise.
            let swapped = at ^ 1;
            assert_eq!(admission.observe(0, at << 17, 1 << 17), at >= 31, "request {at}");
            let stream = admission.observe(1, (1 << 40) + (swapped << 17), 1 << 17);
            // Its first block came late, and is not counted.
            assert_eq!(stream, at >= 32, "request {at} of the second");
            for _ in 0..8 {
                assert!(!admission.observe(0, (1 << 41) + (rng.below(1 << 20) << 20), 4096));
            }
        }
    }

    #[test]
    fn uses_in_one_place_are_no_stream() {
        let mut admission = Admission::new(AdmissionOptions::default(), 0);
        let mut rng = weft_block::Rng::new(2);
        assert!((0..100_000).all(|_| !admission.observe(0, rng.below(48) << 12, 4096)));
    }

    #[test]
    fn streams_bypass_a_full_cache() {
        let key = BlockKey::new(0, 1);
        let mut policy = PolicyKind::S3Fifo.build(16);
        for (sequential, free, taken) in [
            (SequentialBypass::Never, Verdict::Admit, Verdict::Admit),
            (SequentialBypass::WhenFull, Verdict::Admit, Verdict::Sequential),
            (SequentialBypass::Always, Verdict::Sequential, Verdict::Sequential),
        ] {
            let options = AdmissionOptions { sequential, ..AdmissionOptions::default() };
            let mut admission = Admission::new(options, 0);
            let mut judge =
                |stream, place| admission.judge(&mut *policy, key, 4096, stream, place, 0);
            assert_eq!(judge(true, Place::Free), free);
            assert_eq!(judge(true, Place::Taken), taken);
            assert_eq!(judge(true, Place::Own), Verdict::Admit);
            assert_eq!(judge(false, Place::Taken), Verdict::Admit);
        }
    }

    #[test]
    fn a_block_enters_at_its_second_use_and_at_once_after_its_eviction() {
        let options = AdmissionOptions { by_reuse: true, ..AdmissionOptions::default() };
        for kind in [PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Lru, PolicyKind::SEED] {
            let mut admission = Admission::new(options.clone(), 0);
            let mut policy = kind.build(16);
            let key = BlockKey::new(0, 1);
            let mut judge = |policy: &mut dyn Policy| {
                admission.judge(policy, key, 4096, false, Place::Taken, 0)
            };
            assert_eq!(judge(&mut *policy), Verdict::FirstUse, "{kind}");
            assert_eq!(judge(&mut *policy), Verdict::Admit, "{kind}");
            policy.insert(SlotNr(0), key);
            assert_eq!(policy.evict(key, &mut |_| true, &|_| key), Some(SlotNr(0)));
            if kind != PolicyKind::S3Fifo {
                // A block that leaves S3-FIFO's main queue was there long enough to be forgotten.
                assert_eq!(judge(&mut *policy), Verdict::Admit, "{kind}");
            }
        }
    }

    #[test]
    fn the_budget_is_kept_over_a_day() {
        let budget = 24 << 20;
        let options =
            AdmissionOptions { flash_bytes_per_day: Some(budget), ..AdmissionOptions::default() };
        let start = 1_000_000;
        let mut admission = Admission::new(options, start);
        let mut admitted = 0;
        for at in 0..86_400_u64 {
            let now_ms = start + at * 1000;
            admitted +=
                u64::from(judge(&mut admission, at, false, now_ms) == Verdict::Admit) * 4096;
        }
        // A day's budget and the hour's share that was there at first.
        let hour = budget / 24;
        assert!(admitted <= budget + hour && admitted > budget + hour - 8192, "{admitted}");
    }

    #[test]
    fn write_back_is_charged_and_fills_pay_for_it() {
        let options = AdmissionOptions {
            flash_bytes_per_day: Some(86_400 << 12),
            ..AdmissionOptions::default()
        };
        let mut admission = Admission::new(options, 0);
        admission.charge(1 << 40, 0);
        assert_eq!(judge(&mut admission, 1, false, 0), Verdict::OverBudget);
        assert_eq!(judge(&mut admission, 1, false, 3_600_000), Verdict::OverBudget);
        // Never more than a day in debt, and a clock that goes back changes nothing.
        assert_eq!(judge(&mut admission, 1, false, 0), Verdict::OverBudget);
        assert_eq!(judge(&mut admission, 1, false, 86_402_000), Verdict::Admit);
    }

    #[test]
    fn a_budget_of_nothing_admits_nothing() {
        let options =
            AdmissionOptions { flash_bytes_per_day: Some(0), ..AdmissionOptions::default() };
        let mut admission = Admission::new(options, 0);
        assert_eq!(judge(&mut admission, 1, false, u64::MAX), Verdict::OverBudget);
    }
}
