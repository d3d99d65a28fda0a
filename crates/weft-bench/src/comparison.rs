//! Systems that do the same pieces of work in turns, and a table for each piece: time, ratio to the
//! kernel's ext2, CPU, requests.

use crate::Bench;
use crate::machine::family_cpu_seconds;
use crate::peer::{Mounted, Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use anyhow::Result;
use std::path::Path;
use std::time::Instant;

/// The remark that explains the tables.
pub const COLUMNS: &str = "\
    The ratio is the median of those within each round (above 1: slower than the kernel's ext2). CPU \
    seconds (median): the client's are those of its programs, of mounting, unmounting and syncing, \
    in user and kernel mode, and so nearly all of a file system in the kernel, whose write-back and \
    loop threads are not counted; the server's are those of the FUSE server's process. Requests: \
    those of the kernel to weft, counted in the warm-up.";

/// One piece of work.
#[derive(Debug, Clone)]
pub struct Work {
    pub title: String,
    /// The number of units that it does.
    pub units: u64,
    /// One of them, such as "file".
    pub unit: &'static str,
}

/// The cost of one piece of work, once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub seconds: f64,
    pub client_cpu: f64,
    pub server_cpu: f64,
    /// Requests of the kernel to the server, if they were counted.
    pub requests: Option<u64>,
}

/// Returns a message without what comes after its first lines: a program may say something of each of
/// its files.
fn shortened(message: &str) -> String {
    const LINES_MAX: usize = 3;
    let mut lines = message.lines();
    let first: Vec<&str> = lines.by_ref().take(LINES_MAX).collect();
    match lines.count() {
        0 => first.join(" "),
        more => format!("{} ... ({more} more lines)", first.join(" ")),
    }
}

impl Cost {
    /// The cost of `work` in the mounted directory, until all is durable and the server has ended.
    pub fn until_durable(
        mounted: Mounted<'_>,
        work: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let server_before = mounted.server_cpu();
        let before = family_cpu_seconds();
        let began = Instant::now();
        work(mounted.dir())?;
        let served = mounted.finish()?;
        let seconds = began.elapsed().as_secs_f64();
        // The server has ended, so that its time is in that of this process's children.
        let client_cpu = family_cpu_seconds() - before - served.cpu_seconds;
        Ok(Self {
            seconds,
            client_cpu: client_cpu.max(0.0),
            server_cpu: (served.cpu_seconds - server_before).max(0.0),
            requests: served.requests,
        })
    }

    /// The cost of `work`, which returns its own measure of the time in seconds, in a directory that
    /// stays mounted.
    pub fn timed_by(
        mounted: &Mounted<'_>,
        work: impl FnOnce(&Path) -> Result<f64>,
    ) -> Result<Self> {
        let server_before = mounted.server_cpu();
        let before = family_cpu_seconds();
        let seconds = work(mounted.dir())?;
        Ok(Self {
            seconds,
            client_cpu: family_cpu_seconds() - before,
            server_cpu: mounted.server_cpu() - server_before,
            requests: None,
        })
    }

    /// The cost of `work` in a directory that stays mounted.
    pub fn of(mounted: &Mounted<'_>, work: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        Self::timed_by(mounted, |dir| {
            let began = Instant::now();
            work(dir)?;
            Ok(began.elapsed().as_secs_f64())
        })
    }
}

/// The costs of one piece of work on one system over all rounds.
#[derive(Debug, Clone, Default)]
struct Costs {
    seconds: Times,
    client_cpu: Times,
    server_cpu: Times,
    requests: Option<u64>,
}

/// The systems and the costs of each piece of work on each of them.
#[derive(Debug)]
pub struct Comparison {
    works: Vec<Work>,
    rows: Vec<(Peer, Vec<Costs>)>,
}

impl Comparison {
    /// Takes the systems that can be measured here, and says in `section` why others are left out.
    pub fn new(section: &mut Section, setting: &Setting, peers: &[Peer], works: Vec<Work>) -> Self {
        let mut rows = Vec::new();
        for peer in peers {
            match peer.missing(setting) {
                Some(why) => section.line(&format!("Skipped: {peer}: {why}.")),
                None => rows.push((*peer, vec![Costs::default(); works.len()])),
            }
        }
        Self { works, rows }
    }

    pub fn peers(&self) -> Vec<Peer> {
        self.rows.iter().map(|(peer, _)| *peer).collect()
    }

    /// Runs all systems in turns, and that in rounds, of which the first is the warm-up and counts
    /// requests (the second argument of `round` is true). `round` returns the cost of each piece.
    /// A system that fails is left out from then on, and `section` says why: the others are still
    /// worth reporting. A piece that a system cannot do has no cost.
    pub fn run(
        &mut self,
        section: &mut Section,
        bench: &Bench,
        name: &str,
        mut round: impl FnMut(Peer, bool) -> Result<Vec<Option<Cost>>>,
    ) {
        for number in 0..=bench.pairs {
            self.rows.retain_mut(|(peer, costs)| {
                eprintln!("{name}: round {number} of {}, {peer}", bench.pairs);
                match round(*peer, number == 0) {
                    Ok(new) => {
                        for (costs, cost) in costs.iter_mut().zip(new) {
                            if let Some(cost) = cost {
                                costs.add(cost, number == 0);
                            }
                        }
                        true
                    }
                    Err(e) => {
                        section
                            .line(&format!("Left out: {peer}: {}.", shortened(&format!("{e:#}"))));
                        false
                    }
                }
            });
        }
    }

    /// Adds a table for each piece of work.
    pub fn tables(&self, section: &mut Section) {
        for (i, work) in self.works.iter().enumerate() {
            section.line(&format!("### {}", work.title));
            let kernel = self.rows.iter().find(|(peer, _)| *peer == Peer::KernelExt2);
            let kernel = kernel.map(|(_, costs)| &costs[i].seconds);
            let rows: Vec<Vec<String>> = self
                .rows
                .iter()
                .map(|(peer, costs)| costs[i].cells(*peer, kernel, work.units))
                .collect();
            let requests = format!("requests per {}", work.unit);
            let ratio = "times the kernel's ext2";
            let head = ["", "seconds", ratio, "client's CPU", "server's CPU", requests.as_str()];
            section.table(&head, &rows);
        }
    }
}

impl Costs {
    fn add(&mut self, cost: Cost, warm_up: bool) {
        if warm_up {
            self.requests = cost.requests;
            return;
        }
        self.seconds.push(cost.seconds);
        self.client_cpu.push(cost.client_cpu);
        self.server_cpu.push(cost.server_cpu);
    }

    fn cells(&self, peer: Peer, kernel: Option<&Times>, units: u64) -> Vec<String> {
        let none = || String::from("-");
        let ratio = kernel.and_then(|kernel| self.seconds.ratio_to(kernel));
        if self.seconds == Times::new() {
            return [vec![peer.to_string()], vec![none(); 5]].concat();
        }
        let requests = self.requests.map(|n| n as f64 / units.max(1) as f64);
        vec![
            peer.to_string(),
            self.seconds.show(),
            ratio.map_or_else(none, |r| format!("{r:.2}")),
            format!("{:.2}", self.client_cpu.median()),
            if peer.is_kernel() { none() } else { format!("{:.2}", self.server_cpu.median()) },
            requests.map_or_else(none, |n| format!("{n:.2}")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(seconds: f64) -> Cost {
        Cost { seconds, client_cpu: seconds / 2.0, server_cpu: 0.25, requests: Some(12) }
    }

    #[test]
    fn the_warm_up_gives_requests_and_no_times() {
        let mut ours = Costs::default();
        ours.add(cost(100.0), true);
        ours.add(Cost { requests: None, ..cost(2.0) }, false);
        let mut kernel = Times::new();
        kernel.push(4.0);
        assert_eq!(
            ours.cells(Peer::Fuse2fs, Some(&kernel), 4),
            ["fuse2fs", "2.00 (2.00 to 2.00)", "0.50", "1.00", "0.25", "3.00"]
        );
        assert_eq!(ours.cells(Peer::KernelExt3, None, 4)[2..5], ["-", "1.00", "-"]);
        let nothing = Costs::default();
        assert_eq!(nothing.cells(Peer::Fuse2fs, Some(&kernel), 4)[1..], ["-"; 5]);
    }
}
