//! Advice from a trace: the hit ratio of each cache size and policy, and a recommendation.
//!
//! The curve is found by simulation, with the cache's own policies. A short trace is simulated as
//! it is, and the curve is exact. Of a longer one a sample of *blocks* is taken, by their hash,
//! with all their uses, and run through caches that are smaller by the same rate:
//! C. Waldspurger, N. Park, A. Garthwaite, I. Ahmad, "Efficient MRC Construction with SHARDS",
//! FAST 2015, and C. Waldspurger, T. Saemundsson, I. Ahmad, N. Park, "Cache Modeling and
//! Optimization using Miniature Simulations", USENIX ATC 2017. The rate falls as the trace is read,
//! so memory is bounded whatever its length. The set-associative policy cannot be sampled this way
//! (its sets need neighbours) and is left out of sampled curves.

use crate::policy::{BlockKey, PolicyKind};
use crate::simulate;
use crate::trace::{Request, TraceError};
use hashbrown::HashSet;

/// Options of [`advise`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviseOptions {
    /// Sizes of the cache, in slots. Empty: twelve, from 1 % of the blocks that occur to all of
    /// them.
    pub sizes: Vec<u64>,
    /// Policies to compare.
    pub policies: Vec<PolicyKind>,
    /// Maximum number of uses that are simulated; a longer trace is sampled. Each costs eight bytes
    /// of memory, and about as many nanoseconds per size and policy as a cache lookup.
    pub samples_max: usize,
    /// The block size of the cache in question, in bytes; only for the text of the reasons.
    pub block_bytes: u32,
    /// Minimum gain that justifies doubling the cache, in points of hit ratio.
    pub worth_points: u32,
}

impl Default for AdviseOptions {
    fn default() -> Self {
        Self {
            sizes: Vec::new(),
            policies: vec![PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Lru],
            samples_max: 4_000_000,
            block_bytes: 4096,
            worth_points: 2,
        }
    }
}

/// The result of [`advise`].
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Uses of blocks in the trace.
    pub requests: u64,
    /// Different blocks that occur; an estimate if a sample was taken.
    pub blocks: u64,
    /// Whether the whole trace was simulated.
    pub exact: bool,
    /// The fraction of the blocks that was simulated, 0 to 1.
    pub rate: f64,
    /// The hits at each size, for each policy.
    pub curves: Vec<Curve>,
    /// The recommendation; `None` if no block is used twice.
    pub recommended: Option<Recommendation>,
}

/// Hits of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The policy.
    pub policy: PolicyKind,
    /// By size, in growing order.
    pub points: Vec<Point>,
}

/// Hits at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the cache in slots.
    pub slots: u64,
    /// Hits as a fraction of the uses, 0 to 1. The misses are the rest.
    pub hit_ratio: f64,
}

/// A size and a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// Size in slots.
    pub slots: u64,
    /// The policy.
    pub policy: PolicyKind,
    /// The hit ratio to expect, 0 to 1.
    pub hit_ratio: f64,
    /// The reasons, in sentences for a person.
    pub reasons: Vec<String>,
}

/// Reads a trace, simulates it, and recommends a size and a policy.
///
/// # Errors
/// Those of the trace.
pub fn advise(
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    options: &AdviseOptions,
) -> Result<Advice, TraceError> {
    let sample = Sample::take(requests, options.samples_max.max(1))?;
    let seen: HashSet<BlockKey> = sample.keys.iter().copied().collect();
    let rate = sample.rate();
    let blocks = (seen.len() as f64 / rate).round() as u64;
    let sizes = match &options.sizes[..] {
        [] => sizes_for(blocks),
        sizes => {
            let mut sizes = sizes.to_vec();
            sizes.retain(|&size| size > 0);
            sizes.sort_unstable();
            sizes.dedup();
            sizes
        }
    };
    let sampled = |kind: &PolicyKind| !matches!(kind, PolicyKind::SetAssociative { .. });
    let policies: Vec<PolicyKind> =
        options.policies.iter().copied().filter(|kind| rate == 1.0 || sampled(kind)).collect();
    let runs: Vec<(PolicyKind, u32)> = policies
        .iter()
        .flat_map(|&kind| sizes.iter().map(move |&size| (kind, miniature(size, rate))))
        .collect();
    let hits = simulate::hits_of_each(&runs, &sample.keys);
    // SHARDS' adjustment: the few most popular blocks are in the sample or are not, and their uses
    // are hits in any cache. So the misses are compared with the uses to be expected.
    let expected = sample.requests as f64 * rate;
    let ratio = |hits: &simulate::Hits| {
        if hits.requests == 0 {
            return 0.0;
        }
        (1.0 - (hits.requests - hits.hits) as f64 / expected.max(1.0)).clamp(0.0, 1.0)
    };
    let points = |hits: &[simulate::Hits]| {
        let ratios = hits.iter().map(ratio);
        sizes.iter().zip(ratios).map(|(&slots, hit_ratio)| Point { slots, hit_ratio }).collect()
    };
    let curves: Vec<Curve> = policies
        .iter()
        .zip(hits.chunks(sizes.len().max(1)))
        .map(|(&policy, hits)| Curve { policy, points: points(hits) })
        .collect();
    let recommended = recommend(&curves, blocks, options);
    Ok(Advice { requests: sample.requests, blocks, exact: rate == 1.0, rate, curves, recommended })
}

/// The uses of a sample of the blocks.
struct Sample {
    keys: Vec<BlockKey>,
    requests: u64,
    /// A block is in the sample if the lower 32 bits of its hash are below this.
    threshold: u64,
}

/// Threshold at which all blocks are in the sample.
const ALL: u64 = 1 << 32;

impl Sample {
    fn take(
        requests: impl Iterator<Item = Result<Request, TraceError>>,
        samples_max: usize,
    ) -> Result<Sample, TraceError> {
        let mut sample = Sample { keys: Vec::new(), requests: 0, threshold: ALL };
        for request in requests {
            let key = request?.key();
            sample.requests += 1;
            if sample.takes(key) {
                sample.keys.push(key);
            }
            // If one block has all uses, halving does not shrink the sample until it drops that
            // block.
            while sample.keys.len() > samples_max {
                sample.threshold /= 2;
                let mut keys = std::mem::take(&mut sample.keys);
                keys.retain(|&key| sample.takes(key));
                sample.keys = keys;
            }
        }
        Ok(sample)
    }

    fn takes(&self, key: BlockKey) -> bool {
        // Not the hash by which the policies place keys: a sample must not favour some sets.
        weft_block::mix(key.hash()) % ALL < self.threshold
    }

    fn rate(&self) -> f64 {
        self.threshold.max(1) as f64 / ALL as f64
    }
}

/// Returns the size of the miniature cache that stands for one of `slots`.
fn miniature(slots: u64, rate: f64) -> u32 {
    let small = (slots as f64 * rate).round().max(1.0);
    small.min(f64::from(crate::policy::SLOTS_MAX)) as u32
}

/// Returns sizes from 1 % of the blocks to all of them.
fn sizes_for(blocks: u64) -> Vec<u64> {
    const PERCENT: [u64; 12] = [1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100];
    let mut sizes: Vec<u64> =
        PERCENT.iter().map(|percent| (blocks * percent / 100).max(1)).collect();
    sizes.dedup();
    sizes
}

/// Recommends the smallest size that a doubling would not improve enough, with the policy that is
/// best there, or the default policy if it is within half a point of the best.
fn recommend(curves: &[Curve], blocks: u64, options: &AdviseOptions) -> Option<Recommendation> {
    let points = curves.first()?.points.len();
    let best_at = |at: usize| {
        let ratios = curves.iter().map(|curve| curve.points[at].hit_ratio);
        ratios.fold(0.0, f64::max)
    };
    let most = (0..points).map(best_at).fold(0.0, f64::max);
    if most == 0.0 {
        return None;
    }
    let worth = f64::from(options.worth_points) / 100.0;
    let slots_at = |at: usize| curves[0].points[at].slots;
    // Gain in hit ratio of the largest size up to twice this one.
    let gain = |at: usize| {
        let up_to = slots_at(at).saturating_mul(2);
        let doubled = (at..points).take_while(|&other| slots_at(other) <= up_to).last();
        best_at(doubled.unwrap_or(at)) - best_at(at)
    };
    // From the large end, so that a plateau before a step (a loop that does not fit yet) is not
    // taken for the end of the curve.
    let at =
        (0..points).rev().take_while(|&at| gain(at) < worth && best_at(at) > most - worth).last();
    let at = at.unwrap_or(points - 1);
    let best = best_at(at);
    let near = |curve: &&Curve| best - curve.points[at].hit_ratio < 0.005;
    let preferred = curves.iter().find(|curve| curve.policy == PolicyKind::default()).filter(near);
    let chosen =
        preferred.or_else(|| curves.iter().find(|curve| curve.points[at].hit_ratio == best))?;
    let slots = slots_at(at);
    let hit_ratio = chosen.points[at].hit_ratio;
    let mut reasons = vec![format!(
        "{slots} blocks of {} bytes ({:.0} % of the {blocks} that are used) hit {:.1} % of the uses; \
         the largest cache that was tried hits {:.1} %, less than {} points more.",
        options.block_bytes,
        slots as f64 * 100.0 / blocks.max(1) as f64,
        hit_ratio * 100.0,
        most * 100.0,
        options.worth_points.max(1),
    )];
    if at > 0 {
        reasons.push(format!(
            "The next smaller one that was tried, {} blocks, hits {:.1} %.",
            slots_at(at - 1),
            best_at(at - 1) * 100.0
        ));
    }
    let others: Vec<String> = curves
        .iter()
        .filter(|curve| curve.policy != chosen.policy)
        .map(|curve| format!("{} {:.1} %", curve.policy, curve.points[at].hit_ratio * 100.0))
        .collect();
    if !others.is_empty() {
        let why = if chosen.points[at].hit_ratio < best {
            "is within half a point of the best, and the default as it resists scans"
        } else {
            "hits most"
        };
        reasons.push(format!("At that size {} {why} ({}).", chosen.policy, others.join(", ")));
    }
    Some(Recommendation { slots, policy: chosen.policy, hit_ratio, reasons })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::synthetic::Workload;

    fn trace(workload: &str, uses: usize) -> impl Iterator<Item = Result<Request, TraceError>> {
        let workload: Workload = workload.parse().unwrap();
        let request = |block| Ok(Request { time_s: 0, block, len_bytes: 4096, next: None });
        workload.blocks(3).take(uses).map(request)
    }

    #[test]
    fn a_short_trace_is_simulated_exactly() {
        let advice = advise(trace("loop:100", 10_000), &AdviseOptions::default()).unwrap();
        assert!(advice.exact && advice.rate == 1.0);
        assert_eq!((advice.requests, advice.blocks), (10_000, 100));
        let lru = advice.curves.iter().find(|curve| curve.policy == PolicyKind::Lru).unwrap();
        // A loop is all or nothing for LRU.
        for point in &lru.points {
            let expected = if point.slots >= 100 { 0.99 } else { 0.0 };
            assert_eq!(point.hit_ratio, expected, "{} slots", point.slots);
        }
        let recommended = advice.recommended.unwrap();
        assert_eq!(recommended.slots, 100);
        assert!(!recommended.reasons.is_empty());
    }

    #[test]
    fn a_sampled_curve_is_near_the_exact_one() {
        let uses = 300_000;
        for workload in ["zipf:40000:0.8", "scan-mix:20000", "oltp:30000"] {
            let sizes = vec![500, 2_000, 5_000, 10_000];
            let options = AdviseOptions { sizes: sizes.clone(), ..AdviseOptions::default() };
            let exact = advise(trace(workload, uses), &options).unwrap();
            let options = AdviseOptions { samples_max: 30_000, sizes, ..AdviseOptions::default() };
            let sampled = advise(trace(workload, uses), &options).unwrap();
            assert!(!sampled.exact && sampled.rate <= 0.125, "{workload}");
            let off = (sampled.blocks as f64 / exact.blocks as f64 - 1.0).abs();
            assert!(off < 0.1, "{workload}: {} blocks, not {}", sampled.blocks, exact.blocks);
            for (a, b) in exact.curves.iter().zip(&sampled.curves) {
                let errors =
                    a.points.iter().zip(&b.points).map(|(a, b)| (a.hit_ratio - b.hit_ratio).abs());
                let mean = errors.sum::<f64>() / a.points.len() as f64;
                assert!(mean < 0.03, "{workload}, {}: off by {mean:.3} on average", a.policy);
            }
        }
    }

    #[test]
    fn the_recommended_size_is_where_the_curve_flattens() {
        let advice = advise(trace("zipf:20000:1.1", 150_000), &AdviseOptions::default()).unwrap();
        let recommended = advice.recommended.unwrap();
        assert!(recommended.slots < advice.blocks && recommended.slots > advice.blocks / 50);
        let best = advice.curves[0].points.last().unwrap().hit_ratio;
        assert!(recommended.hit_ratio > best - 0.03);
    }

    #[test]
    fn a_trace_without_reuse_recommends_nothing() {
        let advice = advise(trace("scan", 10_000), &AdviseOptions::default()).unwrap();
        assert_eq!(advice.recommended, None);
        let advice = advise(std::iter::empty(), &AdviseOptions::default()).unwrap();
        assert_eq!((advice.requests, advice.blocks, advice.recommended), (0, 0, None));
    }

    #[test]
    fn one_block_used_for_ever_needs_no_memory() {
        let options = AdviseOptions { samples_max: 100, ..AdviseOptions::default() };
        let advice = advise(trace("loop:1", 100_000), &options).unwrap();
        assert_eq!(advice.requests, 100_000);
        assert!(!advice.exact);
    }

    #[test]
    fn an_error_of_the_trace_is_passed_on() {
        let broken = std::iter::once(Err(TraceError::UnknownFormat(String::new())));
        assert!(advise(broken, &AdviseOptions::default()).is_err());
    }
}
