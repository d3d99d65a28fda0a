//! The measurements, with peers beside weft in the same run.
//!
//! `weft-bench NAME` runs one and writes its section of docs/benchmarks.md. A peer that is not
//! installed is skipped, and the section says so.

mod cache;
mod cold;
mod comparison;
mod engine;
mod fio;
mod fsync;
mod hfs;
mod hit_ratio;
mod io_uring;
mod limits;
mod machine;
mod memory;
mod metadata;
mod mounted;
mod nbd;
mod peer;
mod plot;
mod postmark;
mod proxy;
mod report;
mod ringer;
mod sequential;
mod stats;
mod transform;
mod tree;
mod volume;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measures weft beside its peers and writes the report.
#[derive(Debug, Parser)]
#[command(name = "weft-bench", version)]
struct Cli {
    /// A tenth of the work, for a quick try
    #[arg(long, global = true)]
    quick: bool,
    /// Pairs of runs after the warm-up
    #[arg(long, global = true, default_value_t = 5)]
    pairs: u32,
    /// Directory for images and mount points [default: a directory for temporary files]
    #[arg(long, global = true, value_name = "DIR")]
    work: Option<PathBuf>,
    /// The input as a tar file whose one top directory is called "tree" [default: made from
    /// Debian's linux-source-6.1]
    #[arg(long, global = true, value_name = "FILE")]
    tree: Option<PathBuf>,
    /// Directory where the input is kept [default: ~/.cache/weft-bench]
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// The weft command [default: beside this program]
    #[arg(long, global = true, value_name = "FILE")]
    weft: Option<PathBuf>,
    /// libfuse's example passthrough_hp or passthrough_ll [default: the one on PATH]
    #[arg(long, global = true, value_name = "FILE")]
    passthrough: Option<PathBuf>,
    /// The report
    #[arg(long, global = true, value_name = "FILE", default_value = "docs/benchmarks.md")]
    report: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Everything
    All,
    /// Patches, undo data and CPU with and without the engine's optimisations
    Optimisations,
    /// Blocks written by small changes, for each order of writes
    Blocks,
    /// Write requests and their sizes, with a plot
    Requests,
    /// Cost per file as their number grows
    Growth,
    /// untar, rm and small files through a mount, beside the kernel, fuse2fs and libfuse's
    /// pass-through
    Mount,
    /// Small requests through a mount (new files, git status, ls, find), beside the kernel
    Metadata,
    /// fio on one large file through a mount, beside the kernel
    Fio,
    /// Readers of files of which nothing is in memory, on a device that takes 5 ms for each read
    Cold {
        /// Print the figures to standard output, too
        #[arg(long)]
        json: bool,
    },
    /// Memory of a mount's process with many files
    Memory,
    /// weft import beside tar on the kernel's ext3
    Import,
    /// One large file, beside the kernel
    Sequential,
    /// Small synchronous writes: new files beside the kernel, and threads that share flushes
    Fsync,
    /// HFS volumes: files made, deleted, written and read, beside libhfs
    Hfs,
    /// Hit ratios of the cache's policies, beside their published simulators
    HitRatio,
    /// The limits of the machine
    Limits,
    /// A volume behind a slow link read through caches, beside nbdkit's
    Cache,
    /// Updates of the cache's metadata that share a write, with a plot
    CacheBatching,
    /// A cache of 64 GiB opened: time to the first read, memory
    CacheOpen,
    /// The cost of a hit in the cache beside a read of a file
    CacheHits,
    /// NBD servers beside each other: weft, nbdkit and qemu-nbd
    NbdServers,
    /// The kernel's dm-cache in a guest, counted, beside weft's cache
    DmCache,
    /// The shared file service: each operation by distance, beside SSHFS
    Ringer,
    /// The shared file service: reads and writes by size and distance, beside SSHFS
    RingerSizes,
    /// The shared file service: a large file by size of blocks, beside SSHFS
    RingerBulk,
    /// The shared file service: a large file in an encrypted directory, and beside it
    RingerEncrypted,
    /// The shared file service: a directory of 1,000 files seen for the first time, beside SSHFS
    RingerListing,
    /// The shared file service: searches by tag among 100 files and a million
    RingerSearch,
    /// The shared file service: the load of up to 1,000 clients on one server, simulated
    RingerScale,
    /// Stages of a network, in process and through a mount, beside a pipeline of processes
    Transform,
    /// Make the input, and describe it
    Tree,
    /// A network of a given latency between a client and a server on this machine
    Proxy {
        /// Address for clients: HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDRESS")]
        listen: proxy::Address,
        /// The server: HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDRESS")]
        to: proxy::Address,
        /// Time added to a round trip, in microseconds
        #[arg(long, default_value_t = 350, value_name = "US")]
        round_trip: u64,
    },
    /// The mix of small files, in a directory (used by mount)
    #[command(hide = true)]
    Postmark {
        dir: PathBuf,
        #[arg(long)]
        files: u64,
        #[arg(long)]
        transactions: u64,
        #[arg(long)]
        directories: u64,
        #[arg(long)]
        seed: u64,
    },
    /// New files that are renamed and removed, in a directory (used by metadata)
    #[command(hide = true)]
    ShortLived {
        dir: PathBuf,
        #[arg(long)]
        files: u32,
    },
    /// An increment from standard input to standard output (used by transform)
    #[command(hide = true)]
    PipeStage {
        #[arg(long)]
        block_bytes: usize,
    },
    /// An increment as a long-running program (used by transform)
    #[command(hide = true)]
    FilterStage,
    /// weft's cache behind an NBD server (used by cache)
    #[command(hide = true)]
    Cached(cache::Server),
    /// Opens a cache and measures it (used by cache-open)
    #[command(hide = true)]
    CacheOpening {
        cache: PathBuf,
        #[arg(long)]
        origin_bytes: u64,
    },
    /// Empty requests to a mount (used by limits)
    #[command(hide = true)]
    RoundTrips {
        dir: PathBuf,
        #[arg(long)]
        calls: u32,
    },
}

/// A measurement that writes its section of the report.
type Measurement = fn(&Bench) -> Result<()>;

/// The settings of every measurement.
#[derive(Debug)]
pub struct Bench {
    quick: bool,
    pairs: u32,
    work: PathBuf,
    /// Removes the working directory at the end, if it is temporary.
    _temporary: Option<tempfile::TempDir>,
    tree: Option<PathBuf>,
    cache: PathBuf,
    weft: PathBuf,
    passthrough: Option<PathBuf>,
    report: PathBuf,
}

impl Bench {
    fn new(cli: &Cli) -> Result<Self> {
        let mut temporary = None;
        let work = match &cli.work {
            Some(dir) => {
                std::fs::create_dir_all(dir)?;
                std::fs::canonicalize(dir)?
            }
            None => {
                let dir = tempfile::tempdir()?;
                let path = dir.path().to_owned();
                temporary = Some(dir);
                path
            }
        };
        let cache = match &cli.cache {
            Some(dir) => dir.clone(),
            None => default_cache()?,
        };
        let weft = match &cli.weft {
            Some(weft) => std::fs::canonicalize(weft)?,
            None => std::env::current_exe()?.with_file_name("weft"),
        };
        Ok(Self {
            quick: cli.quick,
            pairs: cli.pairs.max(1),
            work,
            _temporary: temporary,
            tree: cli.tree.clone(),
            cache,
            weft,
            passthrough: cli.passthrough.as_deref().map(std::fs::canonicalize).transpose()?,
            report: cli.report.clone(),
        })
    }

    /// The input, or its first tenth for a quick try.
    fn tree(&self) -> Result<tree::Tree> {
        let tree = self.whole_tree()?;
        if self.quick { tree.tenth(&self.work.join("tenth.tar")) } else { Ok(tree) }
    }

    fn whole_tree(&self) -> Result<tree::Tree> {
        tree::Tree::find(self.tree.as_deref(), &self.cache)
    }

    /// The command that repeats a measurement.
    fn command(&self, name: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("weft-bench {name} --pairs {}{quick}", self.pairs)
    }

    /// Writes a plot beside the report.
    fn plot(&self, name: &str, svg: &str) -> Result<()> {
        let dir = self.report.parent().unwrap_or(Path::new(".")).join("plots");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(name), svg).with_context(|| format!("write {name}"))
    }
}

fn default_cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    Ok(base.context("neither HOME nor XDG_CACHE_HOME is set; give --cache")?.join("weft-bench"))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    machine::allow_many_files();
    match &cli.what {
        What::Postmark { dir, files, transactions, directories, seed } => {
            let mix = postmark::Mix {
                files: *files,
                transactions: *transactions,
                directories: *directories,
                seed: *seed,
                quick: false,
            };
            return mix.run(dir);
        }
        What::ShortLived { dir, files } => return metadata::short_lived(dir, *files),
        What::RoundTrips { dir, calls } => return limits::round_trips(dir, *calls),
        What::PipeStage { block_bytes } => return transform::stage(*block_bytes),
        What::FilterStage => return transform::filter(),
        What::Cached(server) => return server.run(),
        What::CacheOpening { cache, origin_bytes } => {
            println!("{}", cache::Opening::measure(cache, *origin_bytes)?.show());
            return Ok(());
        }
        What::Proxy { listen, to, round_trip } => {
            let proxy = proxy::Proxy::start(listen, to, Duration::from_micros(*round_trip))?;
            println!("{}: a round trip takes {} us longer", proxy.address, proxy.added.as_micros());
            loop {
                std::thread::park();
            }
        }
        _ => {}
    }
    let bench = Bench::new(&cli)?;
    let all: [(&str, Measurement); 29] = [
        ("limits", limits::limits),
        ("optimisations", engine::optimisations),
        ("blocks", engine::blocks),
        ("requests", engine::requests),
        ("growth", engine::growth),
        ("import", mounted::import),
        ("hfs", hfs::hfs),
        ("hit-ratio", hit_ratio::hit_ratio),
        ("sequential", sequential::sequential),
        ("fsync", fsync::fsync),
        ("mount", mounted::mounted),
        ("metadata", metadata::metadata),
        ("fio", fio::fio),
        ("cold", |bench| cold::cold(bench, false)),
        ("memory", memory::memory),
        ("transform", transform::transform),
        ("cache-batching", cache::batching),
        ("cache-open", cache::opening),
        ("cache-hits", cache::hits),
        ("cache", cache::experiment),
        ("nbd-servers", nbd::servers),
        ("dm-cache", cache::dm_cache),
        ("ringer", ringer::operations),
        ("ringer-sizes", ringer::sizes),
        ("ringer-bulk", ringer::bulk),
        ("ringer-encrypted", ringer::encrypted),
        ("ringer-listing", ringer::listing),
        ("ringer-search", ringer::search),
        ("ringer-scale", ringer::scale),
    ];
    match cli.what {
        What::All => {
            for (name, measure) in all {
                // One measurement that cannot run here does not stop the others.
                if let Err(e) = measure(&bench) {
                    eprintln!("weft-bench: {name} is left out: {e:#}");
                }
            }
            Ok(())
        }
        What::Optimisations => engine::optimisations(&bench),
        What::Blocks => engine::blocks(&bench),
        What::Requests => engine::requests(&bench),
        What::Growth => engine::growth(&bench),
        What::Mount => mounted::mounted(&bench),
        What::Metadata => metadata::metadata(&bench),
        What::Fio => fio::fio(&bench),
        What::Cold { json } => cold::cold(&bench, json),
        What::Memory => memory::memory(&bench),
        What::Import => mounted::import(&bench),
        What::Sequential => sequential::sequential(&bench),
        What::Fsync => fsync::fsync(&bench),
        What::Hfs => hfs::hfs(&bench),
        What::HitRatio => hit_ratio::hit_ratio(&bench),
        What::Limits => limits::limits(&bench),
        What::Cache => cache::experiment(&bench),
        What::CacheBatching => cache::batching(&bench),
        What::CacheOpen => cache::opening(&bench),
        What::CacheHits => cache::hits(&bench),
        What::NbdServers => nbd::servers(&bench),
        What::DmCache => cache::dm_cache(&bench),
        What::Ringer => ringer::operations(&bench),
        What::RingerSizes => ringer::sizes(&bench),
        What::RingerBulk => ringer::bulk(&bench),
        What::RingerEncrypted => ringer::encrypted(&bench),
        What::RingerListing => ringer::listing(&bench),
        What::RingerSearch => ringer::search(&bench),
        What::RingerScale => ringer::scale(&bench),
        What::Transform => transform::transform(&bench),
        What::Tree => {
            let tree = bench.whole_tree()?;
            println!("{}: {}", tree.tar.display(), tree.describe());
            Ok(())
        }
        What::Postmark { .. }
        | What::RoundTrips { .. }
        | What::ShortLived { .. }
        | What::PipeStage { .. }
        | What::FilterStage
        | What::Proxy { .. }
        | What::Cached(_)
        | What::CacheOpening { .. } => Ok(()),
    }
}
