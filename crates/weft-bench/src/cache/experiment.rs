//! The experiment of "A Persistent Block Cache" repeated: a volume behind a link of 0.35 ms, read
//! sequentially and at random through caches of three sizes, cold and warm, with and without
//! metadata that outlive the cache; beside nbdkit's cache filter and no cache at all.

use super::server::{Counts, Origin, Place, System};
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weft::block::Rng;

/// The delay that the network adds to a round trip.
const ROUND_TRIP: Duration = Duration::from_micros(350);

/// Sizes of the caches, in MiB; and those of `--quick`.
const SIZES_MIB: [u64; 3] = [512, 1024, 2048];
const QUICK_SIZES_MIB: [u64; 1] = [64];

/// An access pattern of reads.
#[derive(Debug, Clone, Copy)]
struct Reading {
    name: &'static str,
    rw: &'static str,
    request_bytes: u32,
    /// Requests in flight: those of the kernel's readahead, or of a program that waits for each.
    depth: u32,
    /// The share of the cache that is read: 1 / this.
    part: u64,
}

const READINGS: [Reading; 2] = [
    Reading { name: "sequential", rw: "read", request_bytes: 128 << 10, depth: 2, part: 2 },
    Reading { name: "random", rw: "randread", request_bytes: 4096, depth: 1, part: 2 },
];

/// The most random requests: they take a round trip each.
const RANDOM_REQUESTS: u64 = 3000;

/// The number of reads of a warm cache, as one is soon over; their mean counts.
const WARM_RUNS: u32 = 2;

const SYSTEMS: [System; 4] = [
    System::Weft { persistent: true },
    System::Weft { persistent: false },
    System::Nbdkit,
    System::Uncached,
];

/// One line of the table.
struct Row {
    size_mib: u64,
    system: System,
    cold: Times,
    /// CPU seconds of the cache's process in the cold run: depends less than the time on the
    /// machine's disk and scheduler.
    cold_cpu: Times,
    warm: Times,
    /// Times of a warm cache after its process was restarted.
    again: Times,
    counts: Counts,
}

/// Measures the tables.
pub fn experiment(bench: &Bench) -> Result<()> {
    let sizes: &[u64] = if bench.quick { &QUICK_SIZES_MIB } else { &SIZES_MIB };
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    ensure!(installed("fio"), "fio is not installed (Debian package fio)");
    let image = bench.work.join("origin.img");
    let largest = sizes.iter().copied().max().unwrap_or(0) << 20;
    make_origin(&image, largest / 2)?;
    let origin = Origin::serve(&image, ROUND_TRIP)?;

    let mut section = Section::new("cache-experiment", "A volume behind a slow link, cached");
    section.line(&format!(
        "An NBD export behind a proxy that adds {:.2} ms to a round trip (measured), read by fio \
         through a cache in a file {}: half the cache's size in order (128 KiB, 2 in flight), \
         and {RANDOM_REQUESTS} random pieces of 4 KiB one after the other. Seconds, {} runs of each \
         after a warm-up, in turns. Cold: the cache is new. Warm: the same again. Restarted: the \
         same again after the cache's process was ended and started anew. weft in blocks of 4 KiB, \
         write-through; nbdkit with `cache=unsafe cache-on-read=true`, blocks of 64 KiB for reading \
         in order and of 4 KiB for random reads. CPU: of the cache's process, in the cold run.",
        origin.added.as_secs_f64() * 1e3,
        if machine::in_memory(&bench.work) { "in memory (tmpfs)" } else { "on a local disk" },
        bench.pairs
    ));
    let mut systems = SYSTEMS.to_vec();
    if !installed("nbdkit") {
        section.line("Skipped: nbdkit is not installed (Debian package nbdkit).");
        systems.retain(|s| *s != System::Nbdkit);
    }
    for reading in READINGS {
        let mut rows: Vec<Row> = sizes
            .iter()
            .flat_map(|size| systems.iter().map(|system| Row::new(*size, *system)))
            .collect();
        for round in 0..=bench.pairs {
            for row in &mut rows {
                // The smallest size suffices for the warm-up.
                if round == 0 && row.size_mib != sizes[0] {
                    continue;
                }
                eprintln!(
                    "cache: {} reads, round {round} of {}, {} MiB, {}",
                    reading.name, bench.pairs, row.size_mib, row.system
                );
                row.measure(bench, &origin, reading, round > 0)
                    .with_context(|| format!("{}, {} MiB", row.system, row.size_mib))?;
            }
        }
        tabulate(&mut section, reading, &rows);
    }
    std::fs::remove_file(&image)?;
    section.signed(&machine::describe(), "weft-bench cache").save(&bench.report)
}

impl Row {
    fn new(size_mib: u64, system: System) -> Self {
        Self {
            size_mib,
            system,
            cold: Times::default(),
            cold_cpu: Times::default(),
            warm: Times::default(),
            again: Times::default(),
            counts: Counts::new(),
        }
    }

    fn measure(
        &mut self,
        bench: &Bench,
        origin: &Origin,
        reading: Reading,
        keep: bool,
    ) -> Result<()> {
        let place = Place {
            origin: &origin.address,
            work: &bench.work,
            len_bytes: self.size_mib << 20,
            nbdkit_block_bytes: if reading.depth > 1 { 64 << 10 } else { 4096 },
        };
        place.clear()?;
        let area = (self.size_mib << 20) / reading.part;
        machine::warm_memory((area as usize).saturating_add(256 << 20));
        let running = place.start(self.system)?;
        let cold = fio(&running.uri, reading, area)?;
        let cold_cpu = running.cpu_seconds();
        let mut warm = 0.0;
        for _ in 0..WARM_RUNS {
            warm += fio(&running.uri, reading, area)? / f64::from(WARM_RUNS);
        }
        let counts = running.finish()?;
        let again = if self.system == (System::Weft { persistent: true }) {
            let running = place.start(self.system)?;
            let mut again = 0.0;
            for _ in 0..WARM_RUNS {
                again += fio(&running.uri, reading, area)? / f64::from(WARM_RUNS);
            }
            let counts = running.finish()?;
            let misses = counts.get("misses").copied().unwrap_or(0);
            ensure!(misses == 0, "{misses} misses after a restart");
            Some(again)
        } else {
            None
        };
        place.clear()?;
        if keep {
            self.cold.push(cold);
            if let Some(cpu) = cold_cpu {
                self.cold_cpu.push(cpu);
            }
            self.warm.push(warm);
            if let Some(again) = again {
                self.again.push(again);
            }
            self.counts = counts;
        }
        Ok(())
    }
}

fn tabulate(section: &mut Section, reading: Reading, rows: &[Row]) {
    section.line(&format!("### {} reads", capitalised(reading.name)));
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            // The other rows are compared with "off" of the same size.
            let off = rows.iter().find(|r| {
                r.size_mib == row.size_mib && r.system == System::Weft { persistent: false }
            });
            let ratio = |mine: &Times, theirs: Option<&Times>| {
                theirs.and_then(|t| mine.ratio_to(t)).map_or("-".into(), |r| format!("{r:.2}"))
            };
            let count = |name: &str| row.counts.get(name).copied();
            let per_fill = match (count("log_writes"), count("fills")) {
                (Some(writes), Some(fills @ 1..)) => format!("{:.4}", writes as f64 / fills as f64),
                _ => "-".into(),
            };
            vec![
                format!("{} MiB, {}", row.size_mib, row.system),
                row.cold.show(),
                ratio(&row.cold, off.map(|o| &o.cold)),
                row.cold_cpu.show(),
                ratio(&row.cold_cpu, off.map(|o| &o.cold_cpu)),
                row.warm.show(),
                ratio(&row.warm, off.map(|o| &o.warm)),
                row.again.show(),
                ratio(&row.again, off.map(|o| &o.warm)),
                per_fill,
            ]
        })
        .collect();
    section.table(
        &[
            "",
            "cold",
            "to weft without",
            "its CPU",
            "to weft without",
            "warm",
            "to weft without",
            "restarted",
            "to weft without",
            "metadata writes a fill",
        ],
        &table,
    );
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |c| c.to_uppercase().chain(letters).collect())
}

/// Reads with fio, and returns the seconds.
fn fio(uri: &str, reading: Reading, area_bytes: u64) -> Result<f64> {
    let mut command = Command::new("fio");
    command
        .args(["--name=cache", "--ioengine=nbd", "--output-format=json", "--randseed=7"])
        .arg(format!("--uri={uri}"))
        .arg(format!("--rw={}", reading.rw))
        .arg(format!("--bs={}", reading.request_bytes))
        .arg(format!("--iodepth={}", reading.depth))
        .arg(format!("--size={area_bytes}"));
    if reading.rw == "randread" {
        let bytes = (RANDOM_REQUESTS * u64::from(reading.request_bytes)).min(area_bytes);
        command.arg(format!("--io_size={bytes}"));
    }
    let out = command.output().context("run fio")?;
    let said = String::from_utf8_lossy(&out.stdout);
    ensure!(out.status.success(), "fio: {said}{}", String::from_utf8_lossy(&out.stderr));
    // The I/O engine may print other lines before the report.
    let report = said.find('{').map_or("", |at| &said[at..]);
    let report: serde_json::Value = serde_json::from_str(report).context("fio's report")?;
    let read = &report["jobs"][0]["read"];
    let (bytes, rate) = (read["io_bytes"].as_f64(), read["bw_bytes"].as_f64());
    match (bytes, rate) {
        (Some(bytes), Some(rate)) if rate > 0.0 => Ok(bytes / rate),
        _ => anyhow::bail!("fio read nothing"),
    }
}

/// Makes a file that does not compress and has no holes: holes would not be sent over the network.
fn make_origin(path: &Path, len_bytes: u64) -> Result<()> {
    use std::io::Write;
    let mut rng = Rng::new(0x0dd);
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..len_bytes >> 20 {
        rng.fill(&mut piece);
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}
