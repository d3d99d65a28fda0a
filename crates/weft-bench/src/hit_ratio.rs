//! Hit ratios of the cache's policies, beside the simulators published by their authors:
//! libCacheSim (S3-FIFO) and Caffeine's (W-TinyLFU). Both read the same traces, written by weft.
//!
//! Public traces come from the simulators' own packages. scripts/hit-ratios.sh installs both
//! outside the tree; without them only weft's numbers are shown, for the synthetic traces.

use crate::report::Section;
use crate::{Bench, machine};
use anyhow::{Context, Result, bail};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft::cache::policy::{BlockKey, PolicyKind};
use weft::cache::simulate;
use weft::cache::trace::{self, Format, Request, csv, oracle, synthetic::Workload};

/// Sizes of the cache, in per cent of the blocks that occur in the trace.
const SIZES: [usize; 3] = [5, 10, 25];

/// Traces generated from a seed: name, number of uses.
const SYNTHETIC: [(&str, usize); 5] = [
    ("zipf:50000:0.8", 200_000),
    ("zipf:50000:1.1", 200_000),
    ("scan-mix:30000", 200_000),
    ("oltp:50000", 200_000),
    ("desk:20000", 200_000),
];

/// Traces in Caffeine's simulator: the LIRS authors' traces of buffer caches and one of a virtual
/// machine's disk (CloudPhysics).
const LIRS: [&str; 7] = ["2_pools", "cs", "gli", "loop", "multi2", "multi3", "sprite"];
const CLOUD_PHYSICS: &str = "w106";
/// The number of uses taken from that trace, to save time.
const CLOUD_PHYSICS_USES: usize = 500_000;
const SEED: u64 = 1;
/// The number of renamings of the blocks: W-TinyLFU's sketch hashes the numbers of blocks, so its
/// result in a small cache depends on them. Its ratios are means over the trace under this many.
const NAMINGS: u64 = 3;

const OURS: [PolicyKind; 5] = [
    PolicyKind::S3Fifo,
    PolicyKind::WTinyLfu,
    PolicyKind::Lru,
    PolicyKind::SEED,
    PolicyKind::SetAssociative { ways: 16 },
];

struct Trace {
    name: String,
    blocks: Vec<u64>,
}

impl Trace {
    /// The blocks renumbered; naming 0 keeps their own numbers.
    fn named(&self, naming: u64) -> impl Iterator<Item = u64> {
        let rename = move |block: u64| match naming {
            0 => block,
            _ => weft::block::mix(block ^ naming << 48) >> 20,
        };
        self.blocks.iter().map(move |&block| rename(block))
    }
}

/// Ratios by size of the cache and by policy, one for each naming.
type Ratios = HashMap<usize, HashMap<&'static str, Vec<f64>>>;

/// The locations of the peers.
struct Peers {
    python: Option<PathBuf>,
    /// Java's class path, with the simulator.
    caffeine: Option<String>,
    dir: PathBuf,
}

/// One row: the ratio of each policy of weft and of the peers.
struct Row {
    trace: usize,
    slots: usize,
    ours: Vec<f64>,
    theirs: HashMap<&'static str, f64>,
    /// The range of Caffeine's results over the namings.
    spread: f64,
}

/// Measures the hit ratios.
pub fn hit_ratio(bench: &Bench) -> Result<()> {
    let peers = Peers::find(&bench.cache);
    let mut section = Section::new("hit-ratio", "Hit ratios of the cache's policies");
    let traces = traces(bench, &peers)?;
    let mut rows = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let distinct = trace.blocks.iter().collect::<HashSet<_>>().len();
        let sizes = SIZES.map(|percent| (distinct * percent / 100).max(20));
        let ours = ours(trace, &sizes);
        let mut theirs = peers.run(bench, trace, &sizes).with_context(|| trace.name.clone())?;
        for (slots, ours) in sizes.into_iter().zip(ours) {
            let theirs = theirs.remove(&slots).unwrap_or_default();
            let mean = |ratios: &Vec<f64>| ratios.iter().sum::<f64>() / ratios.len() as f64;
            let caffeine = theirs.get("Caffeine").map_or(&[][..], |ratios| ratios);
            let most = caffeine.iter().copied().fold(0.0, f64::max);
            let least = caffeine.iter().copied().fold(1.0, f64::min);
            let theirs = theirs.iter().map(|(&name, ratios)| (name, mean(ratios))).collect();
            eprintln!("{}, {slots} slots: {ours:.4?} {theirs:.4?}", trace.name);
            rows.push(Row { trace: number, slots, ours, theirs, spread: (most - least).max(0.0) });
        }
    }
    report(&mut section, &peers, &traces, &rows);
    section.signed(&machine::describe(), "scripts/hit-ratios.sh").save(&bench.report)
}

/// The ratio of each of weft's policies at each size.
fn ours(trace: &Trace, sizes: &[usize]) -> Vec<Vec<f64>> {
    let each = |naming: u64, policies: &[PolicyKind]| {
        let keys: Vec<BlockKey> = trace.named(naming).map(BlockKey).collect();
        let runs: Vec<(PolicyKind, u32)> = sizes
            .iter()
            .flat_map(|&slots| policies.iter().map(move |&kind| (kind, slots as u32)))
            .collect();
        simulate::hits_of_each(&runs, &keys).into_iter().map(simulate::Hits::ratio).collect()
    };
    let all: Vec<f64> = each(0, &OURS);
    let mut ratios: Vec<Vec<f64>> = all.chunks(OURS.len()).map(<[f64]>::to_vec).collect();
    for naming in 1..NAMINGS {
        let more: Vec<f64> = each(naming, &[PolicyKind::WTinyLfu]);
        ratios.iter_mut().zip(more).for_each(|(ratios, more)| ratios[1] += more);
    }
    ratios.iter_mut().for_each(|ratios| ratios[1] /= NAMINGS as f64);
    ratios
}

fn report(section: &mut Section, peers: &Peers, traces: &[Trace], rows: &[Row]) {
    let sizes = SIZES.map(|percent| percent.to_string()).join(", ");
    section.line(&format!(
        "Hits in per cent of the uses, for caches of {sizes} % of the blocks that occur. Public \
         traces: those published with LIRS (buffer caches) and the first {CLOUD_PHYSICS_USES} \
         uses of {CLOUD_PHYSICS} (a virtual machine's disk, CloudPhysics), both as Caffeine's \
         simulator ships them. Those with a colon are synthetic, 200,000 uses, seed {SEED}. \
         *weft* is the code that the cache runs. *libCacheSim* and *Caffeine* are the simulators of \
         the algorithms' authors: `libcachesim` 0.3.5 of PyPI, and `simulator` 3.1.8 of Maven \
         Central with the policy `HillClimberWindowTinyLfu`, strategy `simple`, the one of the \
         Caffeine library; weft chooses the window by small models instead. The seed's policy is \
         set-associative LRU, 1024 ways in its code and 16 in its setup script."
    ));
    if peers.python.is_none() {
        section.line("Skipped: libCacheSim is not installed (scripts/hit-ratios.sh does it).");
    }
    if peers.caffeine.is_none() {
        section.line(
            "Skipped: Caffeine's simulator is not installed (scripts/hit-ratios.sh does it).",
        );
    }
    let percent = |ratio: f64| format!("{:.2}", ratio * 100.0);
    let difference = |ours: f64, theirs: Option<&f64>| {
        theirs.map_or("-".to_owned(), |theirs| format!("{:+.2}", (ours - theirs) * 100.0))
    };
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let theirs = |name| row.theirs.get(name);
            let shown = |name| theirs(name).map_or("-".to_owned(), |&ratio| percent(ratio));
            vec![
                traces[row.trace].name.clone(),
                row.slots.to_string(),
                percent(row.ours[0]),
                shown("S3FIFO"),
                difference(row.ours[0], theirs("S3FIFO")),
                percent(row.ours[1]),
                shown("Caffeine"),
                difference(row.ours[1], theirs("Caffeine")),
                shown("WTinyLFU"),
                percent(row.ours[2]),
                percent(row.ours[3]),
                percent(row.ours[4]),
            ]
        })
        .collect();
    section.table(
        &[
            "trace",
            "slots",
            "S3-FIFO, weft",
            "libCacheSim",
            "difference",
            "W-TinyLFU, weft",
            "Caffeine",
            "difference",
            "libCacheSim (fixed window)",
            "LRU, weft",
            "seed, 1024 ways",
            "seed, 16 ways",
        ],
        &lines,
    );
    let mut text = String::new();
    for (name, column, peer) in
        [("S3-FIFO", 0, "S3FIFO"), ("W-TinyLFU", 1, "Caffeine"), ("LRU", 2, "LRU")]
    {
        let differences: Vec<f64> = rows
            .iter()
            .filter_map(|row| Some((row.ours[column] - row.theirs.get(peer)?) * 100.0))
            .collect();
        if differences.is_empty() {
            continue;
        }
        let within = differences.iter().filter(|difference| difference.abs() <= 0.5).count();
        let worst = differences.iter().copied().fold(0.0, |worst: f64, difference| {
            if difference.abs() > worst.abs() { difference } else { worst }
        });
        let _ = write!(
            text,
            "{name}: within 0.5 points of its published simulator in {within} of {}; the largest \
             difference is {worst:+.2}. ",
            differences.len()
        );
    }
    if !text.is_empty() {
        let spread = rows.iter().map(|row| row.spread).fold(0.0, f64::max) * 100.0;
        let _ = write!(
            text,
            "The figures of W-TinyLFU are means over {NAMINGS} namings of the blocks, weft's and \
             Caffeine's alike: as its sketch hashes their numbers, Caffeine's own results for one \
             trace and size lie up to {spread:.2} points apart under them."
        );
        section.line(&text);
    }
}

/// The traces that are available on this machine.
fn traces(bench: &Bench, peers: &Peers) -> Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for name in LIRS {
        if let Some(text) = peers.resource(&format!("lirs/{name}.trace.gz"), "gzip")? {
            let columns = csv::Columns::default();
            let requests = trace::read(std::io::Cursor::new(text), &Format::Csv(columns))?;
            let mut blocks = Vec::new();
            for request in requests {
                blocks.push(request.with_context(|| name)?.block);
            }
            traces.push(Trace { name: name.to_owned(), blocks });
        }
    }
    if !bench.quick
        && let Some(bytes) =
            peers.resource(&format!("cloud_physics/{CLOUD_PHYSICS}.trace.xz"), "xz")?
    {
        let numbers = bytes.as_chunks::<4>().0.iter();
        let blocks = numbers.map(|&number| u64::from(u32::from_le_bytes(number)));
        let blocks = blocks.take(CLOUD_PHYSICS_USES).collect();
        traces.push(Trace { name: CLOUD_PHYSICS.to_owned(), blocks });
    }
    for (name, uses) in SYNTHETIC {
        let uses = if bench.quick { uses / 10 } else { uses };
        let workload: Workload = name.parse()?;
        traces.push(Trace {
            name: name.to_owned(),
            blocks: workload.blocks(SEED).take(uses).collect(),
        });
    }
    Ok(traces)
}

impl Peers {
    fn find(cache: &Path) -> Peers {
        let dir = cache.join("peers");
        let python = Some(dir.join("venv/bin/python")).filter(|python| python.exists());
        let caffeine = std::fs::read_to_string(dir.join("caffeine.classpath")).ok();
        Peers { python, caffeine, dir }
    }

    /// Unpacks a compressed trace from the simulator's jar; `None` if it is not there.
    fn resource(&self, name: &str, unpack: &str) -> Result<Option<Vec<u8>>> {
        let path =
            self.dir.join("traces/com/github/benmanes/caffeine/cache/simulator/parser").join(name);
        if !path.exists() {
            return Ok(None);
        }
        let output = Command::new(unpack).arg("-dc").arg(&path).output();
        let output = output.with_context(|| format!("run {unpack}"))?;
        if !output.status.success() {
            bail!("{unpack} -dc {}: {}", path.display(), output.status);
        }
        Ok(Some(output.stdout))
    }

    /// Runs the peers on a trace; returns ratios by size of the cache and by policy.
    fn run(&self, bench: &Bench, trace: &Trace, sizes: &[usize]) -> Result<Ratios> {
        let mut ratios = Ratios::new();
        if let Some(python) = &self.python {
            let path = bench.work.join("trace.oracleGeneral");
            let mut file = BufWriter::new(File::create(&path)?);
            let requests = trace.blocks.iter().map(|&block| Request {
                time_s: 0,
                block,
                len_bytes: 4096,
                next: None,
            });
            oracle::write(&mut file, requests)?;
            file.flush()?;
            let mut command = Command::new(python);
            command.args(["-c", include_str!("hit_ratio.py")]).arg(&path);
            command.args(sizes.iter().map(ToString::to_string));
            for line in lines_of(&mut command)? {
                let mut words = line.split_whitespace();
                let (Some(name), Some(size), Some(ratio)) =
                    (words.next(), words.next(), words.next())
                else {
                    bail!("libCacheSim says {line:?}");
                };
                let known = ["LRU", "S3FIFO", "WTinyLFU"].into_iter().find(|&known| known == name);
                if let Some(name) = known {
                    ratios.entry(size.parse()?).or_default().insert(name, vec![ratio.parse()?]);
                }
            }
        }
        if let Some(class_path) = &self.caffeine {
            let path = bench.work.join("trace.lirs");
            for naming in 0..NAMINGS {
                let mut file = BufWriter::new(File::create(&path)?);
                trace.named(naming).try_for_each(|block| writeln!(file, "{block}"))?;
                file.flush()?;
                for &size in sizes {
                    let ratio = caffeine(class_path.trim(), &path, size)?;
                    ratios.entry(size).or_default().entry("Caffeine").or_default().push(ratio);
                }
            }
        }
        Ok(ratios)
    }
}

fn caffeine(class_path: &str, trace: &Path, size: usize) -> Result<f64> {
    let set = |name: &str, value: &str| format!("-Dcaffeine.simulator.{name}={value}");
    let mut command = Command::new("java");
    command
        .args(["-XX:TieredStopAtLevel=1", "-cp", class_path])
        .arg(set("files.format", "lirs"))
        .arg(set("files.paths.0", &trace.display().to_string()))
        .arg(set("maximum-size", &size.to_string()))
        .arg(set("policies.0", "sketch.HillClimberWindowTinyLfu"))
        .arg(set("hill-climber-window-tiny-lfu.strategy.0", "simple"))
        .arg(set("admission.0", "Always"))
        .arg(set("report.format", "csv"))
        .arg("com.github.benmanes.caffeine.cache.simulator.Simulator");
    let lines = lines_of(&mut command)?;
    let hits = lines.iter().find(|line| line.starts_with("sketch.HillClimber")).and_then(|line| {
        // Columns: policy, rate, hits, misses, requests.
        let columns: Vec<&str> = line.split(',').collect();
        let hits: f64 = columns.get(2)?.parse().ok()?;
        let requests: f64 = columns.get(4)?.parse().ok()?;
        Some(hits / requests)
    });
    hits.with_context(|| format!("Caffeine's simulator says {lines:?}"))
}

fn lines_of(command: &mut Command) -> Result<Vec<String>> {
    let output =
        command.stderr(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{:?}: {}", command.get_program(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
