//! The configuration of an exploration.

use crate::judge::Depth;
use crate::states::Bounds;
use crate::target::Target;
use crate::workload::Workload;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use weft_block::mix;

/// The workloads to explore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Campaign {
    /// The given ones.
    Given(Vec<Workload>),
    /// Every single operation, the usual sequences, and pairs and random ones by seed.
    Short,
    /// The same, then every pair, then each with every placement of the operations that make it
    /// durable, then random ones, until the time is up.
    Long,
    /// Random churns of one directory, of the given number of operations each (see
    /// [`generate::churn`](crate::generate::churn)), until the time is up.
    Churn(usize),
}

/// Configuration of an exploration.
#[derive(Clone)]
pub struct Config {
    /// The file system.
    pub target: Arc<dyn Target>,
    /// The workloads.
    pub campaign: Campaign,
    /// The seed of every random choice.
    pub seed: u64,
    /// Bounds on the states of each epoch.
    pub bounds: Bounds,
    /// Maximum number of states of one workload, chosen by the seed if there are more: a short
    /// campaign finds more in many workloads than in all states of a few.
    pub states_per_workload: usize,
    /// Number of distinct images after which no new workload is begun.
    pub images: u64,
    /// Time after which no new workload is begun.
    pub time: Option<Duration>,
    /// e2fsck judges one image in this number; the volume's own checker judges all.
    pub e2fsck_every: u64,
    /// One image in this number is repaired, and one in this number used without a repair.
    pub repair_every: u64,
    /// Number of threads; 0 for one for each processor.
    pub threads: usize,
    /// Number of violations after which the exploration stops.
    pub violations: usize,
    /// Shrink the workload of each violation to the fewest operations that still show it.
    pub shrink: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("target", &self.target.options())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// A short campaign of some thousands of images.
    #[must_use]
    pub fn new(target: Arc<dyn Target>) -> Self {
        Self {
            target,
            campaign: Campaign::Short,
            seed: 1,
            bounds: Bounds::default(),
            states_per_workload: 60,
            images: 5000,
            time: None,
            e2fsck_every: 4,
            repair_every: 16,
            threads: 0,
            violations: 10,
            shrink: true,
        }
    }

    pub(crate) fn depth(&self, hash: u64) -> Depth {
        // By hash, so that the same image is judged in the same way wherever it occurs.
        let pick =
            |every: u64, salt| every > 0 && mix(hash ^ salt ^ self.seed).is_multiple_of(every);
        Depth {
            e2fsck: pick(self.e2fsck_every, 1),
            repair: pick(self.repair_every, 2),
            aftermath: pick(self.repair_every, 3),
        }
    }
}
