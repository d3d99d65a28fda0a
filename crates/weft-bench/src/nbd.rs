//! NBD servers beside each other: weft, nbdkit and qemu-nbd export one file to fio and to nbdcopy.
//!
//! The file is in the page cache, so that the servers are measured and not a disk.

use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft::block::Rng;

const FILE_BYTES: u64 = 512 << 20;
const QUICK_FILE_BYTES: u64 = 64 << 20;

/// Duration of each run of fio, in seconds.
const SECONDS: u32 = 3;

/// Longest wait for a server to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server of one file on a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Weft,
    Nbdkit,
    QemuNbd,
}

const PEERS: [Peer; 3] = [Peer::Weft, Peer::Nbdkit, Peer::QemuNbd];

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Weft => "weft",
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
        }
    }

    fn serve(self, weft: &Path, file: &Path, dir: &Path) -> Result<Served> {
        let socket = dir.join(format!("{}.sock", self.name()));
        let mut command = match self {
            Self::Weft => {
                let mut command = Command::new(weft);
                command.args(["serve", "nbd"]).arg(file);
                command.arg("--listen").arg(format!("unix:{}", socket.display()));
                command
            }
            Self::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command.arg("--foreground").arg("--unix").arg(&socket).arg("file").arg(file);
                command
            }
            Self::QemuNbd => {
                let mut command = Command::new("qemu-nbd");
                command.args(["--format=raw", "--persistent", "--shared=16"]);
                command.args(["--cache=writeback", "--aio=threads", "--discard=unmap"]);
                command.arg("--socket").arg(&socket).arg(file);
                command
            }
        };
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.with_context(|| format!("start {}", self.name()))?;
        let served = Served { child, socket };
        let until = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&served.socket).is_err() {
            ensure!(Instant::now() < until, "{} does not listen", self.name());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(served)
    }
}

/// A running server. Dropping it ends it.
struct Served {
    child: Child,
    socket: PathBuf,
}

impl Served {
    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The parameters of a run of fio.
struct Load {
    rw: &'static str,
    block: &'static str,
    depth: u32,
    connections: u32,
}

const LOADS: [Load; 10] = [
    Load { rw: "randread", block: "4k", depth: 1, connections: 1 },
    Load { rw: "randread", block: "4k", depth: 16, connections: 1 },
    Load { rw: "randread", block: "4k", depth: 32, connections: 1 },
    Load { rw: "randread", block: "4k", depth: 8, connections: 4 },
    Load { rw: "randwrite", block: "4k", depth: 1, connections: 1 },
    Load { rw: "randwrite", block: "4k", depth: 16, connections: 1 },
    Load { rw: "randread", block: "64k", depth: 16, connections: 1 },
    Load { rw: "randwrite", block: "64k", depth: 16, connections: 1 },
    Load { rw: "read", block: "1m", depth: 4, connections: 1 },
    Load { rw: "write", block: "1m", depth: 4, connections: 1 },
];

impl Load {
    fn name(&self) -> String {
        let Self { rw, block, depth, connections } = self;
        let many =
            if *connections > 1 { format!(" on {connections} connections") } else { String::new() };
        format!("fio {rw} {block}, {depth} in flight{many}")
    }

    /// Runs fio; returns the seconds for a thousand requests.
    fn run(&self, served: &Served, seconds: u32, len_bytes: u64) -> Result<f64> {
        let out = Command::new("fio")
            .args(["--name=nbd", "--ioengine=nbd", "--time_based", "--group_reporting"])
            .arg(format!("--uri={}", served.uri()))
            .arg(format!("--rw={}", self.rw))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--numjobs={}", self.connections))
            .arg(format!("--runtime={seconds}"))
            .arg(format!("--size={len_bytes}"))
            .arg("--output-format=json")
            .output()
            .context("run fio")?;
        let text = String::from_utf8_lossy(&out.stdout);
        // fio may print other lines first.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let report: serde_json::Value =
            serde_json::from_str(json).with_context(|| format!("fio says: {text}"))?;
        let kind = if self.rw.contains("read") { "read" } else { "write" };
        let iops = report["jobs"][0][kind]["iops"].as_f64().unwrap_or(0.0);
        ensure!(out.status.success() && iops > 0.0, "fio failed: {text}");
        Ok(1000.0 / iops)
    }
}

/// Copies the whole export with nbdcopy, or overwrites it. Returns the seconds.
fn copy(from: &str, to: &str) -> Result<f64> {
    let began = Instant::now();
    let status = Command::new("nbdcopy").arg(from).arg(to).status().context("run nbdcopy")?;
    ensure!(status.success(), "nbdcopy failed");
    Ok(began.elapsed().as_secs_f64())
}

/// Measures the tables of NBD servers.
pub fn servers(bench: &Bench) -> Result<()> {
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    ensure!(installed("fio"), "fio is not installed (Debian package fio)");
    let len_bytes = if bench.quick { QUICK_FILE_BYTES } else { FILE_BYTES };
    let seconds = if bench.quick { 1 } else { SECONDS };
    let file = bench.work.join("export.img");
    let mut data = vec![0; len_bytes as usize];
    Rng::new(1).fill(&mut data);
    std::fs::write(&file, &data)?;
    let source = bench.work.join("source.img");
    std::fs::write(&source, &data)?;
    drop(data);

    let mut section = Section::new("nbd-servers", "NBD servers");
    section.line(&format!(
        "One file of {} MiB of noise in the page cache, exported on a Unix socket by weft, nbdkit (its \
         file plugin) and qemu-nbd, read and written by fio's nbd engine ({seconds} s a run) and by \
         nbdcopy. {} runs of each after a warm-up, in turns.",
        len_bytes >> 20,
        bench.pairs
    ));
    let mut served = Vec::new();
    for peer in PEERS {
        let there = match peer {
            Peer::Weft => bench.weft.exists(),
            Peer::Nbdkit | Peer::QemuNbd => installed(peer.name()),
        };
        if there {
            served.push((peer, peer.serve(&bench.weft, &file, &bench.work)?));
        } else {
            section.line(&format!("Skipped: {}, which is not installed.", peer.name()));
        }
    }
    ensure!(served.first().is_some_and(|(peer, _)| *peer == Peer::Weft), "weft is not built");
    let mut rows = Vec::new();
    for load in &LOADS {
        let times = in_turns(bench.pairs, &served, |s| load.run(s, seconds, len_bytes))?;
        rows.push(row(load.name(), &times, |thousand| format!("{:.0}/s", 1000.0 / thousand)));
    }
    if installed("nbdcopy") {
        let rate = |seconds: f64| format!("{:.0} MiB/s", (len_bytes >> 20) as f64 / seconds);
        let times = in_turns(bench.pairs, &served, |s| copy(&s.uri(), "null:"))?;
        rows.push(row("nbdcopy from it".to_owned(), &times, rate));
        let from = source.display().to_string();
        let times = in_turns(bench.pairs, &served, |s| copy(&from, &s.uri()))?;
        rows.push(row("nbdcopy to it".to_owned(), &times, rate));
    }
    let mut head = vec![""];
    head.extend(served.iter().map(|(peer, _)| peer.name()));
    section.line("Medians; in brackets, how many times as long as weft the peer takes (the median of the ratios within each round; above 1, weft is faster):");
    section.table(&head, &rows);
    section.signed(&machine::describe(), "weft-bench nbd-servers").save(&bench.report)
}

/// Returns times of each server, without a warm-up, with the order reversed from round to round.
fn in_turns(
    pairs: u32,
    served: &[(Peer, Served)],
    run: impl Fn(&Served) -> Result<f64>,
) -> Result<Vec<Times>> {
    let mut times = vec![Times::default(); served.len()];
    for round in 0..=pairs {
        let mut order: Vec<usize> = (0..served.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for nr in order {
            let seconds = run(&served[nr].1)?;
            if round > 0 {
                times[nr].push(seconds);
            }
        }
    }
    Ok(times)
}

fn row(name: String, times: &[Times], show: impl Fn(f64) -> String) -> Vec<String> {
    let mut row = vec![name];
    for (nr, peer) in times.iter().enumerate() {
        let shown = show(peer.median());
        let ratio = times.first().filter(|_| nr > 0).and_then(|weft| peer.ratio_to(weft));
        row.push(ratio.map_or(shown.clone(), |ratio| format!("{shown} ({ratio:.2})")));
    }
    row
}
