//! The explorer from outside: on a toy file system that can be made wrong on purpose.

mod ages;
mod churn;
mod cuts;
mod durable;
mod explorer;
mod ext2;
mod faults;
mod foreign;
mod healed;
mod hfs;
mod moves;
mod plain;
mod toy;
mod transform;

use std::sync::Arc;
use std::time::Duration;
use weft_crash::{Bounds, Campaign, Config, Target};

/// Every pair of operations, then with every placement of fsync, fdatasync and sync, then random
/// workloads, for `WEFT_LONG_SECONDS` divided by `share`.
fn long_campaign(target: Arc<dyn Target>, share: u32) -> Config {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    Config {
        campaign: Campaign::Long,
        // A new part of the space in each run; a failure prints its seed.
        seed: std::process::id().into(),
        bounds: Bounds { all_subsets_of: 8, samples: 48, tears: 4, states: 1000 },
        states_per_workload: 40,
        images: u64::MAX,
        time: Some(Duration::from_secs(seconds.unwrap_or(600)) / share),
        repair_every: 8,
        ..Config::new(target)
    }
}
