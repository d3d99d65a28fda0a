//! fio on one large file through a mount, beside the kernel's ext2: in order and at random, through
//! the mount's page cache and past it.

use crate::comparison::{COLUMNS, Comparison, Cost, Work};
use crate::io_uring::Allowed;
use crate::peer::{Peer, Setting, Volume, installed};
use crate::report::Section;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::path::Path;
use std::process::Command;
use weft::Order;
use weft::patch::{JournalMode, Policy};

/// The size of a request at random, in bytes.
const RANDOM_BYTES: u64 = 4096;
/// The size of a request in order, in bytes.
const RUN_BYTES: u64 = 1 << 20;

/// The amounts, in bytes.
#[derive(Debug, Clone, Copy)]
struct Amount {
    file: u64,
    /// Read or written by one job at random.
    at_random: u64,
}

impl Amount {
    const fn of(bench: &Bench) -> Self {
        if bench.quick {
            Self { file: 128 << 20, at_random: 32 << 20 }
        } else {
            Self { file: 1 << 30, at_random: 256 << 20 }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Psync,
    /// 16 requests in flight.
    Libaio,
}

impl Engine {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Psync => &["--ioengine=psync"],
            Self::Libaio => &["--ioengine=libaio", "--iodepth=16"],
        }
    }
}

/// One run of fio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    write: bool,
    at_random: bool,
    engine: Engine,
    direct: bool,
    /// The mount's page cache has what is read.
    warm: bool,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.at_random { "at random" } else { "in order" };
        let what = if self.write { "written" } else { "read" };
        let engine = match self.engine {
            Engine::Psync => "psync",
            Engine::Libaio => "libaio, 16 in flight",
        };
        write!(f, "{what} {how}, {engine}, direct={}", u8::from(self.direct))?;
        match (self.write || self.direct, self.warm) {
            (true, _) => Ok(()),
            (false, true) => f.write_str(", from the mount's page cache"),
            (false, false) => f.write_str(", cold"),
        }
    }
}

/// All jobs, in groups that share a mount. The first makes the file. What a cold job reads, the warm
/// one behind it finds in the page cache: fio's random numbers are the same in each run.
fn groups() -> Vec<Vec<Job>> {
    let job =
        Job { write: false, at_random: false, engine: Engine::Psync, direct: false, warm: false };
    let random = Job { at_random: true, ..job };
    let mut groups = vec![vec![Job { write: true, ..job }], vec![job, Job { warm: true, ..job }]];
    for engine in [Engine::Psync, Engine::Libaio] {
        let random = Job { engine, ..random };
        groups.push(vec![random, Job { warm: true, ..random }]);
        groups.push(vec![Job { direct: true, ..random }]);
    }
    for engine in [Engine::Psync, Engine::Libaio] {
        for direct in [false, true] {
            groups.push(vec![Job { write: true, engine, direct, ..random }]);
        }
    }
    groups
}

impl Job {
    fn bytes(self, amount: Amount) -> u64 {
        if self.at_random { amount.at_random } else { amount.file }
    }

    fn work(self, amount: Amount) -> Work {
        let (request, unit) =
            if self.at_random { (RANDOM_BYTES, "4 KiB") } else { (RUN_BYTES, "MiB") };
        let bytes = self.bytes(amount);
        Work { title: format!("{} MiB {self}", bytes >> 20), units: bytes / request, unit }
    }

    /// Runs fio; the fsync at the end of a job that writes is in its time.
    fn run(self, dir: &Path, amount: Amount) -> Result<Took> {
        let mode = match (self.at_random, self.write) {
            (true, true) => "randwrite",
            (true, false) => "randread",
            (false, true) => "write",
            (false, false) => "read",
        };
        let request = if self.at_random { RANDOM_BYTES } else { RUN_BYTES };
        let mut command = Command::new("fio");
        command.args(["--name=job", "--output-format=json"]).args(self.engine.arguments());
        command.arg(format!("--filename={}", dir.join("large").display()));
        command.args([format!("--rw={mode}"), format!("--bs={request}")]);
        command
            .args([format!("--size={}", amount.file), format!("--io_size={}", self.bytes(amount))]);
        command.arg(format!("--direct={}", u8::from(self.direct)));
        // By default fio drops the file from the page cache first, and allocates its blocks before
        // the time begins.
        command.args(["--invalidate=0", "--fallocate=none"]);
        if self.write {
            command.arg("--end_fsync=1");
        }
        let out = command.output().context("run fio")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "fio ended with {}: {}", out.status, said.trim());
        Took::parse(&String::from_utf8_lossy(&out.stdout), self.bytes(amount))
    }
}

/// The time of a fio job, without the time that fio takes to start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Took {
    seconds: f64,
    cpu_seconds: f64,
}

impl Took {
    /// Reads fio's report of one job, which must have moved `bytes`.
    fn parse(report: &str, bytes: u64) -> Result<Self> {
        // Warnings may stand before the report.
        let from = report.find('{').context("fio reports nothing")?;
        let report: serde_json::Value =
            serde_json::from_str(&report[from..]).context("understand fio's report")?;
        let job = &report["jobs"][0];
        let moved = |way: &str| job[way]["io_bytes"].as_u64().unwrap_or(0);
        let moved = moved("read") + moved("write");
        ensure!(moved == bytes, "fio moved {moved} bytes of {bytes}");
        let number =
            |key: &str| job[key].as_f64().with_context(|| format!("fio's report has no {key}"));
        let seconds = number("job_runtime")? / 1e3;
        let percent = number("usr_cpu")? + number("sys_cpu")?;
        Ok(Self { seconds, cpu_seconds: seconds * percent / 100.0 })
    }
}

/// Measures all systems.
pub fn fio(bench: &Bench) -> Result<()> {
    let amount = Amount::of(bench);
    let setting = Setting::new(bench, None);
    let mut section = Section::new("fio", "fio on one large file through a mount");
    if installed("fio").is_none() {
        section.line("Skipped: fio is not installed (Debian package fio).");
        return section.signed(&machine::describe(), &bench.command("fio")).save(&bench.report);
    }
    let _io_uring = Allowed::set(&mut section);
    section.line(&format!(
        "A file of {} MiB in a new volume. Requests of 1 MiB in order and of 4 KiB at random; writes \
         end with an fsync, which is in the time. Seconds, as fio measures them, {} pairs after a \
         warm-up. Cold: after a mount; the image is in the host's page cache. The client is fio's \
         job alone.",
        amount.file >> 20,
        bench.pairs
    ));
    section.line(COLUMNS);
    let mut peers = setting.weft_over_each_transport(
        &mut section,
        &[Order(Policy::Soft), Order(Policy::Journal(JournalMode::Ordered))],
    );
    peers.push(Peer::KernelExt2);
    let works = groups().concat().into_iter().map(|job| job.work(amount)).collect();
    let mut comparison = Comparison::new(&mut section, &setting, &peers, works);
    let mut impossible = Vec::new();
    comparison.run(&mut section, bench, "fio", |peer, warm_up| {
        one_round(peer, &peer.make(&setting)?, amount, warm_up, &mut impossible)
    });
    for Impossible { peer, job, why } in &impossible {
        section.line(&format!("Left out: {job}, on {peer}: {why}."));
    }
    comparison.tables(&mut section);
    section.signed(&machine::describe(), &bench.command("fio")).save(&bench.report)
}

/// A job that a system cannot do: access past the page cache and asynchronous requests are not for
/// every file system.
struct Impossible {
    peer: Peer,
    job: Job,
    why: String,
}

/// Returns the costs in the order of the jobs. What cannot be done shows in the warm-up.
fn one_round(
    peer: Peer,
    volume: &Volume,
    amount: Amount,
    warm_up: bool,
    impossible: &mut Vec<Impossible>,
) -> Result<Vec<Option<Cost>>> {
    let mut costs = Vec::new();
    for group in groups() {
        let mounted = if warm_up { volume.mount_counting()? } else { volume.mount()? };
        let first = costs.len();
        for job in group {
            if impossible.iter().any(|i| (i.peer, i.job) == (peer, job)) {
                costs.push(None);
                continue;
            }
            let mut took = Took::default();
            let cost = Cost::timed_by(&mounted, |dir| {
                took = job.run(dir, amount)?;
                Ok(took.seconds)
            });
            match cost {
                Ok(cost) => costs.push(Some(Cost { client_cpu: took.cpu_seconds, ..cost })),
                Err(e) if warm_up && (job.direct || job.engine == Engine::Libaio) => {
                    impossible.push(Impossible { peer, job, why: format!("{e:#}") });
                    costs.push(None);
                }
                Err(e) => return Err(e.context(job.to_string())),
            }
        }
        let requests = mounted.finish()?.requests;
        // The requests of several jobs cannot be told apart.
        if let [Some(alone)] = &mut costs[first..] {
            alone.requests = requests;
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_fio_is_understood() {
        let report = r#"fio: a warning
            {"jobs": [{"job_runtime": 250, "usr_cpu": 10.0, "sys_cpu": 30.0, "read": {"io_bytes": 0}, "write": {"io_bytes": 8192}}]}"#;
        let took = Took::parse(report, 8192).unwrap();
        assert!((took.seconds - 0.25).abs() < 1e-9, "{took:?}");
        assert!((took.cpu_seconds - 0.1).abs() < 1e-9, "{took:?}");
        let e = Took::parse(report, 4096).unwrap_err().to_string();
        assert_eq!(e, "fio moved 8192 bytes of 4096");
        assert!(Took::parse("fio: an error", 1).is_err());
    }

    #[test]
    fn the_first_job_makes_the_file_and_warm_ones_follow_cold_ones() {
        let groups = groups();
        assert!(groups[0][0].write && !groups[0][0].at_random);
        for group in groups {
            for (i, job) in group.iter().enumerate() {
                assert_eq!(job.warm, i > 0, "{job}");
                assert!(!job.warm || group[i - 1] == Job { warm: false, ..*job }, "{job}");
            }
        }
    }
}
