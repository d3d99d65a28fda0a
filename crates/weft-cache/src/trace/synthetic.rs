//! Traces generated from a seed: the same on every machine and in every later version.
//!
//! Each is a caricature of one kind of disk traffic, for tests and for trying a policy; none
//! replaces a recording of real traffic.

use super::TraceError;
use std::fmt;
use std::str::FromStr;
use weft_block::Rng;

/// A kind of traffic. Named as `KIND:BLOCKS` or `KIND:BLOCKS:EXPONENT`, see each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// Independent uses; the frequency of the n-th most popular block is proportional to
    /// n^-exponent. Popularity is independent of position. `zipf:BLOCKS:EXPONENT`.
    Zipf {
        /// Number of different blocks.
        blocks: u64,
        /// Skew, from 0 (uniform) to 3; 0.6 to 1.2 is usual.
        exponent: f64,
    },
    /// Each block once, in order, without end. `scan`.
    Scan,
    /// The same blocks in the same order over and over. `loop:BLOCKS`.
    Loop {
        /// The length of the loop.
        blocks: u64,
    },
    /// Nine uses of ten by Zipf (exponent 0.9), interrupted by scans of a fifth of as many blocks,
    /// like backups and table scans. `scan-mix:BLOCKS`.
    ScanMix {
        /// Number of different popular blocks.
        blocks: u64,
    },
    /// Like a database's disk under transactions: uses by Zipf, of blocks used a little while ago,
    /// and of a log that is appended to; what is popular drifts slowly. `oltp:BLOCKS`.
    Oltp {
        /// Number of blocks of the tables.
        blocks: u64,
    },
    /// Like the workstation trace P6 of ARC: loops of several lengths, each run a few times, over a
    /// popular set. It tests the balance of frequency against recency. `desk:BLOCKS`.
    Desk {
        /// Number of blocks of the disk in use.
        blocks: u64,
    },
}

impl Workload {
    /// Returns the infinite sequence of used blocks.
    pub fn blocks(self, seed: u64) -> Box<dyn Iterator<Item = u64> + Send> {
        let mut rng = Rng::new(seed);
        match self {
            Workload::Zipf { blocks, exponent } => {
                let zipf = Zipf::new(blocks, exponent);
                Box::new(std::iter::repeat_with(move || zipf.block(&mut rng)))
            }
            Workload::Scan => Box::new(0..),
            Workload::Loop { blocks } => Box::new((0..blocks.max(1)).cycle()),
            Workload::ScanMix { blocks } => Box::new(scan_mix(blocks, rng)),
            Workload::Oltp { blocks } => Box::new(oltp(blocks, rng)),
            Workload::Desk { blocks } => Box::new(desk(blocks, rng)),
        }
    }
}

fn scan_mix(blocks: u64, mut rng: Rng) -> impl Iterator<Item = u64> + Send {
    let zipf = Zipf::new(blocks, 0.9);
    let scan_len = (blocks / 5).max(1);
    let (mut left, mut at) = (0, blocks);
    std::iter::repeat_with(move || {
        // The chance of a scan gives scans a tenth of all uses.
        if left == 0 && rng.chance(1, scan_len * 9) {
            left = scan_len;
        }
        if left == 0 {
            return zipf.block(&mut rng);
        }
        left -= 1;
        at += 1;
        at
    })
}

fn oltp(blocks: u64, mut rng: Rng) -> impl Iterator<Item = u64> + Send {
    const RECENT: usize = 256;
    let zipf = Zipf::new(blocks, 1.0);
    let mut recent = [0; RECENT];
    let mut log = blocks;
    (0_u64..).map(move |use_| {
        let block = match rng.below(20) {
            // The log's last block is written several times before the next one.
            0 => {
                log += u64::from(rng.chance(1, 4));
                log
            }
            1..5 => recent[rng.index(RECENT)],
            // Popularity shifts by one block in every hundred uses.
            _ => (zipf.block(&mut rng) + use_ / 100) % blocks.max(1),
        };
        recent[rng.index(RECENT)] = block;
        block
    })
}

fn desk(blocks: u64, mut rng: Rng) -> impl Iterator<Item = u64> + Send {
    let zipf = Zipf::new(blocks, 0.8);
    let (mut start, mut len, mut at, mut turns) = (0, 1, 0, 0);
    std::iter::repeat_with(move || {
        if rng.chance(2, 5) {
            return zipf.block(&mut rng);
        }
        if at == len {
            at = 0;
            turns -= u64::from(turns > 0);
        }
        if turns == 0 {
            len = 1 + blocks / (1 << (1 + rng.below(5)));
            start = rng.below(blocks);
            turns = 2 + rng.below(8);
            at = 0;
        }
        at += 1;
        (start + at) % blocks.max(1)
    })
}

/// Draws from a Zipf distribution by rejection-inversion: W. Hörmann, G. Derflinger, "Rejection-
/// inversion to generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996.
#[derive(Clone, Copy, Debug)]
struct Zipf {
    blocks: u64,
    exponent: f64,
    low: f64,
    high: f64,
}

impl Zipf {
    fn new(blocks: u64, exponent: f64) -> Zipf {
        let blocks = blocks.clamp(1, 1 << 48);
        let exponent = if exponent.is_finite() { exponent.clamp(0.0, 3.0) } else { 1.0 };
        let integral = |x| integral(x, exponent);
        let low = integral(1.5) - 1.0;
        Zipf { blocks, exponent, low, high: integral(blocks as f64 + 0.5) }
    }

    /// Draws a rank; 1 is the most popular.
    fn rank(&self, rng: &mut Rng) -> u64 {
        loop {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let u = self.high + unit * (self.low - self.high);
            let x = inverse(u, self.exponent);
            let rank = (x + 0.5).floor().clamp(1.0, self.blocks as f64);
            if u >= integral(rank + 0.5, self.exponent) - rank.powf(-self.exponent) {
                return rank as u64;
            }
        }
    }

    /// Draws a block: the ranks are scattered over the disk.
    fn block(&self, rng: &mut Rng) -> u64 {
        let rank = self.rank(rng);
        // A multiplication by an odd number is a permutation only modulo a power of two; for other
        // moduli some ranks share a block, which does not matter here.
        (rank - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks
    }
}

/// Returns the integral of x^-e: ln x for e = 1.
fn integral(x: f64, e: f64) -> f64 {
    if (e - 1.0).abs() < 1e-9 { x.ln() } else { (x.powf(1.0 - e) - 1.0) / (1.0 - e) }
}

/// Returns the inverse of [`integral`] at `u`.
fn inverse(u: f64, e: f64) -> f64 {
    if (e - 1.0).abs() < 1e-9 { u.exp() } else { (1.0 + u * (1.0 - e)).powf(1.0 / (1.0 - e)) }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Zipf { blocks, exponent } => write!(f, "zipf:{blocks}:{exponent}"),
            Workload::Scan => write!(f, "scan"),
            Workload::Loop { blocks } => write!(f, "loop:{blocks}"),
            Workload::ScanMix { blocks } => write!(f, "scan-mix:{blocks}"),
            Workload::Oltp { blocks } => write!(f, "oltp:{blocks}"),
            Workload::Desk { blocks } => write!(f, "desk:{blocks}"),
        }
    }
}

impl FromStr for Workload {
    type Err = TraceError;

    fn from_str(s: &str) -> Result<Workload, TraceError> {
        let unknown = || TraceError::UnknownFormat(s.to_owned());
        let mut parts = s.split(':');
        let kind = parts.next().unwrap_or_default();
        let blocks = parts.next().map(|n| n.parse().ok().filter(|&n| n > 0).ok_or_else(unknown));
        let exponent = parts.next().map(|e| e.parse::<f64>().map_err(|_| unknown()));
        let workload = match (kind, blocks.transpose()?, exponent.transpose()?) {
            ("zipf", Some(blocks), exponent) => {
                let exponent = exponent.unwrap_or(1.0);
                if !(0.0..=3.0).contains(&exponent) {
                    return Err(unknown());
                }
                Workload::Zipf { blocks, exponent }
            }
            ("scan", None, None) => Workload::Scan,
            ("loop", Some(blocks), None) => Workload::Loop { blocks },
            ("scan-mix", Some(blocks), None) => Workload::ScanMix { blocks },
            ("oltp", Some(blocks), None) => Workload::Oltp { blocks },
            ("desk", Some(blocks), None) => Workload::Desk { blocks },
            _ => return Err(unknown()),
        };
        if parts.next().is_some() { Err(unknown()) } else { Ok(workload) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn ranks_follow_zipfs_law() {
        for exponent in [0.0, 0.7, 1.0, 1.3] {
            let zipf = Zipf::new(1_000, exponent);
            let mut rng = Rng::new(1);
            let draws = 200_000;
            let mut counts = HashMap::new();
            for _ in 0..draws {
                *counts.entry(zipf.rank(&mut rng)).or_insert(0_u32) += 1;
            }
            let weight = |rank: u64| (rank as f64).powf(-exponent);
            let all: f64 = (1..=1_000).map(weight).sum();
            for rank in [1, 2, 10, 100] {
                let expected = weight(rank) / all * f64::from(draws);
                let got = f64::from(counts[&rank]);
                let sigmas = (got - expected).abs() / expected.sqrt();
                assert!(sigmas < 5.0, "rank {rank}, exponent {exponent}: {got}, not {expected}");
            }
            assert!(counts.keys().all(|rank| (1..=1_000).contains(rank)));
        }
    }

    #[test]
    fn a_seed_gives_one_trace_and_another_seed_another() {
        for name in ["zipf:1000:0.9", "scan-mix:1000", "oltp:1000", "desk:1000"] {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.to_string(), name);
            let take = |seed| workload.blocks(seed).take(10_000).collect::<Vec<u64>>();
            assert_eq!(take(7), take(7), "{name}");
            assert_ne!(take(7), take(8), "{name}");
            assert!(take(7).into_iter().collect::<HashSet<_>>().len() > 300, "{name}");
        }
        let looped: Vec<u64> = Workload::Loop { blocks: 3 }.blocks(0).take(7).collect();
        assert_eq!(looped, [0, 1, 2, 0, 1, 2, 0]);
        for name in ["zipf", "zipf:0:1", "zipf:9:-1", "zipf:9:nan", "scan:3", "loop", "oltp:1:2"] {
            assert!(name.parse::<Workload>().is_err(), "{name}");
        }
    }
}
