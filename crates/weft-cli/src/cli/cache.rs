//! The command line of `weft cache`, and the options of a volume behind a cache.

use super::known::known;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use weft::cache::{Mode, PolicyKind};

/// The names of modes, as [`Mode`] reads them.
pub const MODES: &[&str] = &[
    "write-through",
    "write-back",
    "write-around",
    "write-invalidate",
    "write-only",
    "pass-through",
];

/// A cache in front of the source, for the verbs that keep it open.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cache")]
pub struct Caching {
    /// Put this cache (made with weft cache create) in front of the source
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<String>,
    /// Cache mode: write-through, write-back, write-around,
    /// write-invalidate, write-only or pass-through [default: write-through]
    #[arg(long, value_name = "MODE", requires = "cache", value_parser = known::<Mode>(MODES))]
    pub cache_mode: Option<Mode>,
    /// Maximum space in the cache for this source
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_quota: Option<String>,
    /// Name of this source in the cache, wherever the source is found [default: the source]
    #[arg(long, value_name = "NAME", requires = "cache")]
    pub cache_name: Option<String>,
    /// Add this source to those of the cache
    #[arg(long, requires = "cache")]
    pub cache_add: bool,
    /// Accept a source that was changed without the cache; its clean blocks are dropped
    #[arg(long, requires = "cache")]
    pub cache_invalidate: bool,
    /// Accept a source that has grown: its dirty data is written back within its old length first
    #[arg(long, requires = "cache")]
    pub cache_resized: bool,
    /// Discard the cache's content at the end, and write no metadata
    #[arg(long, requires = "cache")]
    pub cache_volatile: bool,
    /// Further settings, comma-separated: commit-ms, dirty-limit, dirty-age-ms, writeback-rate,
    /// verify, ... (weft cache options lists them)
    #[arg(long, value_name = "NAME=VALUE", requires = "cache")]
    pub cache_options: Vec<String>,
    /// Serve the statistics of the cache, and of networks, to Prometheus on this address, such as
    /// 127.0.0.1:9105
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
}

impl Caching {
    /// Returns the same settings as arguments, for the background process.
    pub fn to_args(&self) -> Vec<String> {
        let valued = [
            ("--cache", self.cache.clone()),
            ("--cache-mode", self.cache_mode.map(|mode| mode.to_string())),
            ("--cache-quota", self.cache_quota.clone()),
            ("--cache-name", self.cache_name.clone()),
            ("--metrics", self.metrics.clone()),
        ];
        let flags = [
            ("--cache-add", self.cache_add),
            ("--cache-invalidate", self.cache_invalidate),
            ("--cache-resized", self.cache_resized),
            ("--cache-volatile", self.cache_volatile),
        ];
        let valued = valued.into_iter().filter_map(|(name, v)| Some(format!("{name}={}", v?)));
        let flags = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.to_owned());
        let options = self.cache_options.iter().map(|o| format!("--cache-options={o}"));
        valued.chain(flags).chain(options).collect()
    }
}

/// `weft cache`.
#[derive(Debug, Subcommand)]
pub enum Cache {
    /// Make an empty cache in a file or on a block device
    Create(Create),
    /// Show the properties and content of a cache, in use or not
    Info(Which),
    /// List the settings that --cache-options takes
    Options,
    /// Check a cache that is not in use
    Check(Check),
    /// List the content of a cache that is not in use, block by block
    Dump(Dump),
    /// Repair a damaged cache, keeping all content that is verified
    Repair(Repair),
    /// Make a cache larger or smaller, in use or not
    Resize(Resize),
    /// Write dirty data back to the source
    Flush(Flush),
    /// Switch the mode of a source of a cache in use
    Mode(SetMode),
    /// Switch the eviction policy of a cache, in use or not
    Policy(SetPolicy),
    /// Remove a source from a cache
    Detach(Detach),
    /// Record what is read and written through a cache in use
    Trace(Trace),
    /// Simulate the hit ratios of caches of several sizes and policies on a trace
    Advise(Advise),
}

#[derive(Debug, Args)]
pub struct Create {
    /// The file (made if it does not exist) or block device
    pub cache: String,
    /// Size, such as 10G [default: that of the file or device]
    #[arg(long, short)]
    pub size: Option<String>,
    /// The unit of caching, 4K to 64K: larger needs less memory, smaller wastes less
    #[arg(long, short, value_name = "SIZE", default_value = "4K")]
    pub block_size: String,
    /// Eviction policy: s3fifo, wtinylfu, lru or set-lru:WAYS
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: PolicyKind,
    /// Label
    #[arg(long, short = 'L', default_value = "")]
    pub label: String,
    /// Overwrite existing content, even if it is recognised
    #[arg(long, short = 'F')]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct Which {
    /// The cache
    pub cache: String,
}

#[derive(Debug, Args)]
pub struct Flush {
    /// The cache
    pub cache: String,
    /// The source, for a cache that is not in use
    pub source: Option<String>,
    /// Name of the source in the cache [default: the source]
    #[arg(long, value_name = "NAME", requires = "source")]
    pub cache_name: Option<String>,
    /// Accept a source that has grown: its dirty data is written back within its old length, and the
    /// cache takes the new one
    #[arg(long, requires = "source")]
    pub resized: bool,
}

#[derive(Debug, Args)]
pub struct SetMode {
    /// The cache
    pub cache: String,
    /// The new mode
    #[arg(value_parser = known::<Mode>(MODES))]
    pub mode: Mode,
    /// The source, if more than one is in use
    #[arg(long, value_name = "NAME")]
    pub origin: Option<String>,
}

#[derive(Debug, Args)]
pub struct SetPolicy {
    /// The cache
    pub cache: String,
    /// The new policy: s3fifo, wtinylfu or lru
    pub policy: PolicyKind,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// The cache
    pub cache: String,
    /// The source's name, as weft cache info shows it [default: the only one]
    pub origin: Option<String>,
    /// Discard dirty data that was never written to the source
    #[arg(long)]
    pub discard_dirty: bool,
}

#[derive(Debug, Args)]
pub struct Trace {
    /// The cache
    pub cache: String,
    /// The file to write, in libCacheSim's oracleGeneral format
    #[arg(long, short)]
    pub output: PathBuf,
    /// Duration of the recording, in seconds
    #[arg(long, short, default_value_t = 60)]
    pub seconds: u64,
}

#[derive(Debug, Args)]
pub struct Top {
    /// The cache, or the directory of a mount with networks or of a cell
    #[arg(value_name = "CACHE|DIR")]
    pub cache: String,
    /// Milliseconds between two updates
    #[arg(long, short, value_name = "MS", default_value_t = 1000)]
    pub interval_ms: u64,
    /// Number of updates; 0 goes on until q or Ctrl-C
    #[arg(long, short = 'n', default_value_t = 0)]
    pub count: u64,
}

#[derive(Debug, Args)]
pub struct Dump {
    /// The cache
    pub cache: String,
    /// Only dirty blocks
    #[arg(long)]
    pub dirty: bool,
}

#[derive(Debug, Args)]
pub struct Repair {
    /// The cache
    pub cache: String,
    /// Report what would be done, and change nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct Resize {
    /// The cache
    pub cache: String,
    /// The new size, such as 20G
    #[arg(long, short)]
    pub size: String,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The cache
    pub cache: String,
    /// Check the metadata only, not the checksums of data
    #[arg(long)]
    pub quick: bool,
}

#[derive(Debug, Args)]
pub struct Advise {
    /// The trace
    pub trace: PathBuf,
    /// Its format: oracleGeneral, csv, csv:COLUMNS or arc [default: by its name]
    #[arg(long)]
    pub format: Option<String>,
    /// The trace names addresses in units of this many bytes (512: sectors), and not blocks
    #[arg(long, value_name = "BYTES")]
    pub address_bytes: Option<u32>,
    /// The unit of caching
    #[arg(long, short, value_name = "SIZE", default_value = "4K")]
    pub block_size: String,
    /// Cache sizes to simulate, such as 1G [default: eight, up to all blocks of the trace]
    #[arg(long, short, value_name = "SIZE")]
    pub size: Vec<String>,
    /// Policies to compare [default: all]
    #[arg(long, value_name = "POLICY")]
    pub policy: Vec<PolicyKind>,
}
