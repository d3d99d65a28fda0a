//! Reads and writes of 2 bytes to 2 MiB in four situations: by the distances of the data and of the
//! metadata server.

use super::{DSL, LAN, Micros, ReadsAndWrites, Served, sshfs};
use crate::report::Section;
use crate::{Bench, machine};
use anyhow::Result;
use std::time::Duration;
use weft::vfs::{Caller, FileSystem, OpenFlags, Walker};

const RUNS: usize = 50;
const QUICK_RUNS: usize = 5;

struct Situation {
    name: &'static str,
    /// One-way delay to the metadata server.
    server: Duration,
    /// One-way delay to the client that has the data; `None` if that is the reader itself.
    data: Option<Duration>,
}

const SITUATIONS: [Situation; 4] = [
    Situation { name: "all local", server: Duration::ZERO, data: None },
    Situation { name: "data on the LAN", server: Duration::ZERO, data: Some(LAN) },
    Situation { name: "data behind DSL", server: Duration::ZERO, data: Some(DSL) },
    Situation { name: "data and server behind DSL", server: DSL, data: Some(DSL) },
];

pub fn sizes(bench: &Bench) -> Result<()> {
    let runs = if bench.quick { QUICK_RUNS } else { RUNS };
    let step = if bench.quick { 5 } else { 1 };
    let sizes: Vec<usize> = (1..=21).step_by(step).map(|power| 1 << power).collect();
    let mut section = Section::new("ringer-sizes", "The shared file service: sizes");
    section.line(&format!(
        "Microseconds, medians of {runs}. *Read*: the first read of a whole file, with the lease and \
         the blocks that it needs first; each run reads a file of its own. *Write*: a whole file is \
         written anew under the lease; it is durable after the next sync, as with any local file. \
         weft's side is the client as a file system in this process, SSHFS is a mount: some tens of \
         microseconds a call are the kernel's."
    ));
    let mut columns = Vec::new();
    for situation in &SITUATIONS {
        columns.push((situation.name, measure(bench, situation, &sizes, runs)?));
    }
    for (name, way) in [("SSHFS, local", Duration::ZERO), ("SSHFS, LAN", LAN), ("SSHFS, DSL", DSL)]
    {
        for cached in [false, true] {
            let how = if cached { "cached" } else { "uncached" };
            let runs = if way == DSL { runs.min(10) } else { runs };
            if let Some(times) = sshfs::sizes(bench, way, cached, &sizes, runs)? {
                let name: &'static str = Box::leak(format!("{name}, {how}").into_boxed_str());
                columns.push((name, times));
            }
        }
    }
    for (what, of) in [("Read", 0), ("Write", 1)] {
        let head: Vec<&str> = [what].into_iter().chain(columns.iter().map(|(n, _)| *n)).collect();
        let rows = sizes.iter().enumerate().map(|(i, size)| {
            let cells = columns.iter().map(|(_, times)| {
                let median = [&times[i].0, &times[i].1][of].percentile(50);
                format!("{median:.0}")
            });
            std::iter::once(format!("{size} B")).chain(cells).collect()
        });
        section.table(&head, &rows.collect::<Vec<_>>());
        plot(bench, what, of, &sizes, &columns)?;
        let name = what.to_lowercase();
        section.line(&format!("![{what}s by size](plots/ringer-{name}.svg)"));
    }
    section.signed(&machine::describe(), "weft-bench ringer-sizes").save(&bench.report)
}

/// Plots the rates of near data: the others are flat, limited by the delay of the link.
fn plot(
    bench: &Bench,
    what: &str,
    of: usize,
    sizes: &[usize],
    columns: &[(&str, ReadsAndWrites)],
) -> Result<()> {
    let labels: Vec<String> = sizes.iter().map(|size| format!("2^{}", size.ilog2())).collect();
    let near = ["all local", "data on the LAN", "SSHFS, local, cached", "SSHFS, LAN, cached"];
    let series = columns.iter().filter(|(name, _)| near.contains(name)).map(|(name, times)| {
        let millis = times.iter().map(|both| [&both.0, &both.1][of].percentile(50) / 1e3);
        ((*name).to_owned(), millis.collect())
    });
    let bars = crate::plot::Bars {
        title: &format!("{what}s of a whole file, by its length in bytes"),
        y_label: "ms",
        labels: &labels,
        series: &series.collect::<Vec<(String, Vec<f64>)>>(),
    };
    bench.plot(&format!("ringer-{}.svg", what.to_lowercase()), &bars.svg())
}

fn measure(
    bench: &Bench,
    situation: &Situation,
    sizes: &[usize],
    runs: usize,
) -> Result<ReadsAndWrites> {
    let served = Served::new(bench)?;
    let reader = served.client("reader", situation.server)?;
    let far = match situation.data {
        Some(way) => {
            // The client that has the data has no delay to the server.
            let far = served.client("far", Duration::ZERO)?;
            served.move_away("far", way)?;
            Some(far)
        }
        None => None,
    };
    let owner: &dyn FileSystem = far.as_ref().map_or(&reader, |far| far);
    let mut all = Vec::new();
    for &size in sizes {
        let (mut reads, mut writes) = (Micros::default(), Micros::default());
        let mut data = vec![0; size];
        for run in 0..runs {
            data.iter_mut().zip((run..).map(|n| n as u8)).for_each(|(to, byte)| *to = byte);
            let path = format!("/{size}-{run}");
            Walker::new(owner).write_file(path.as_bytes(), &data, 0o644)?;
            owner.sync()?;
            let mut got = vec![0; size];
            let ino = reads.time(|| {
                let ino = reader.lookup(reader.root(), &path.as_bytes()[1..])?.attr.ino;
                let opened = reader.open(&Caller::ROOT, ino, OpenFlags::READ)?;
                let n = reader.read(ino, opened.handle, 0, &mut got)?;
                reader.release(ino, opened.handle)?;
                anyhow::ensure!(n == size, "a short read");
                Ok(ino)
            })?;
            anyhow::ensure!(got == data, "other bytes");
            let opened = reader.open(&Caller::ROOT, ino, OpenFlags::WRITE)?;
            // The first write acquires the lease.
            reader.write(&Caller::ROOT, ino, opened.handle, 0, &data)?;
            data[0] = data[0].wrapping_add(1);
            writes.time(|| Ok(reader.write(&Caller::ROOT, ino, opened.handle, 0, &data)?))?;
            reader.release(ino, opened.handle)?;
            reader.forget(ino, 1);
        }
        all.push((reads, writes));
    }
    Ok(all)
}
