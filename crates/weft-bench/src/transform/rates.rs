//! Rates by the number of stages, and times by the length of the read.

use super::mounts::Mounted;
use super::{STAGES, in_process, pipes, plain, zeroes};
use crate::Bench;
use crate::report::Section;
use crate::stats::Times;
use anyhow::Result;
use std::path::Path;
use weft::transform::exec::Pool;

/// The times of one number of stages and one length, for each implementation.
#[derive(Default)]
struct Row {
    plain: Times,
    process: Times,
    process_cpu: Times,
    pipes: [Times; pipes::BLOCKS.len()],
    pipes_cpu: [Times; pipes::BLOCKS.len()],
    cold: Times,
    warm: Times,
    kept_cold: Times,
    kept_warm: Times,
}

impl Row {
    fn best(&self) -> usize {
        let median = |nr: &usize| self.pipes[*nr].median();
        (0..self.pipes.len()).min_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or(0)
    }

    fn best_pipe(&self) -> &Times {
        &self.pipes[self.best()]
    }

    /// The least CPU time, which need not be that of the fastest block size.
    fn pipe_cpu(&self) -> f64 {
        self.pipes_cpu.iter().map(Times::median).fold(f64::INFINITY, f64::min)
    }

    fn measure(bench: &Bench, data: &Path, bytes: u64, stages: usize) -> Result<Self> {
        let mut row = Self::default();
        let pool = Pool::new(std::thread::available_parallelism()?.get())?;
        let path = data.join("input");
        // The first round is the warm-up.
        for round in 0..=bench.pairs {
            let keep = |times: &mut Times, seconds: f64| {
                if round > 0 {
                    times.push(seconds);
                }
            };
            keep(&mut row.plain, plain(&path, bytes, 0)?);
            let (seconds, cpu) = in_process(&pool, &path, bytes, stages)?;
            keep(&mut row.process, seconds);
            keep(&mut row.process_cpu, cpu);
            for (nr, block) in pipes::BLOCKS.into_iter().enumerate() {
                let (seconds, cpu) = pipes::through(&path, bytes, stages, block)?;
                keep(&mut row.pipes[nr], seconds);
                keep(&mut row.pipes_cpu[nr], cpu);
            }
            let mounted = Mounted::with_networks(bench, data)?;
            let view = mounted.view("input", stages);
            keep(&mut row.cold, plain(&view, bytes, stages)?);
            keep(&mut row.warm, plain(&view, bytes, stages)?);
            drop(mounted);
            let mounted = Mounted::keeping(bench, data)?;
            let view = mounted.view("input", stages);
            keep(&mut row.kept_cold, plain(&view, bytes, stages)?);
            mounted.wait_kept(&view)?;
            keep(&mut row.kept_warm, plain(&view, bytes, stages)?);
        }
        Ok(row)
    }
}

fn ratio(a: &Times, b: &Times) -> String {
    a.ratio_to(b).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Measures rates by the number of stages.
pub fn rates(bench: &Bench, section: &mut Section, data: &Path) -> Result<()> {
    let bytes: u64 = if bench.quick { 64 << 20 } else { 512 << 20 };
    zeroes(&data.join("input"), bytes)?;
    let gib = bytes as f64 / f64::from(1 << 30);
    let rate = |times: &Times| format!("{:.2}", bytes as f64 / 1e9 / times.median().max(1e-9));
    let (mut rows, mut kept) = (Vec::new(), Vec::new());
    let mut measured: Vec<(usize, Row)> = Vec::new();
    for stages in STAGES {
        let row = Row::measure(bench, data, bytes, stages)?;
        let best = pipes::BLOCKS[row.best()] >> 10;
        rows.push(vec![
            stages.to_string(),
            rate(&row.plain),
            rate(&row.process),
            format!("{} ({best} KiB)", rate(row.best_pipe())),
            ratio(row.best_pipe(), &row.process),
            rate(&row.cold),
            ratio(row.best_pipe(), &row.cold),
            rate(&row.warm),
            ratio(&row.plain, &row.warm),
        ]);
        kept.push(vec![
            stages.to_string(),
            rate(&row.kept_cold),
            ratio(row.best_pipe(), &row.kept_cold),
            rate(&row.kept_warm),
            ratio(&row.plain, &row.kept_warm),
        ]);
        measured.push((stages, row));
    }
    section.line(&format!(
        "A file of {} MiB in the page cache, read to its end through N increments. GB/s; *times* is \
         how many times faster than the best pipeline (of blocks of 4 KiB, 64 KiB and 1 MiB, with \
         pipe buffers of 1 MiB); *of plain* is beside a plain read of the same file.",
        bytes >> 20
    ));
    let head = [
        "N",
        "plain read",
        "in process",
        "best pipes",
        "times",
        "mount, cold",
        "times",
        "mount, warm",
        "of plain",
    ];
    section.table(&head, &rows);
    section.line(
        "The same rounds on a mount with `--output-cache` and `--snapshot-views`: cold with an empty \
         cache, past the page cache (the output is put into the cache meanwhile and afterwards), and \
         warm once it is kept and the kernel reads it from there. *Times* beside the best pipeline \
         above, *of plain* beside the plain read.",
    );
    section.table(&["N", "kept, cold", "times", "kept, warm", "of plain"], &kept);
    if let (Some((_, one)), Some((last, many))) = (measured.first(), measured.last()) {
        let each = |one: f64, many: f64| (many - one) / (*last as f64 - 1.0) / gib;
        let ours = each(one.process_cpu.median(), many.process_cpu.median());
        let theirs = each(one.pipe_cpu(), many.pipe_cpu());
        section.line(&format!(
            "A further stage takes {ours:.3} seconds of CPU time for a GiB in process and \
             {theirs:.3} in a pipeline (the cheapest of the three): {:.1}%.",
            100.0 * ours / theirs.max(1e-9)
        ));
    }
    section.line(
        "Copies of a byte: in process one (the file to the block), whatever N is; a pipeline two for \
         each stage and one; through the mount three when cold (the file to the daemon's answer, the \
         answer to the kernel's page, the page to the reader) and one when warm. With outputs kept two \
         when cold (the file to the answer, the answer to the reader; what is kept is made beside or \
         behind that), and one when warm.",
    );
    plot(bench, bytes, &measured)?;
    section.line("![Rates by number of stages](plots/transform.svg)");
    lengths(bench, section, data)
}

fn plot(bench: &Bench, bytes: u64, measured: &[(usize, Row)]) -> Result<()> {
    let labels: Vec<String> = measured.iter().map(|(stages, _)| stages.to_string()).collect();
    let of = |pick: fn(&Row) -> &Times| {
        let rates = measured.iter().map(|(_, row)| bytes as f64 / 1e9 / pick(row).median());
        rates.collect::<Vec<f64>>()
    };
    let series = [
        ("in process".to_owned(), of(|row| &row.process)),
        ("best pipes".to_owned(), of(Row::best_pipe)),
        ("mount, cold".to_owned(), of(|row| &row.cold)),
        ("mount, warm".to_owned(), of(|row| &row.warm)),
        ("kept, cold".to_owned(), of(|row| &row.kept_cold)),
        ("kept, warm".to_owned(), of(|row| &row.kept_warm)),
    ];
    let bars = crate::plot::Bars {
        title: "N increments over a file in the page cache",
        y_label: "GB/s",
        labels: &labels,
        series: &series,
    };
    bench.plot("transform.svg", &bars.svg())
}

/// Measures times by the length of the read, at eight stages.
fn lengths(bench: &Bench, section: &mut Section, data: &Path) -> Result<()> {
    const AT_STAGES: usize = 8;
    let longest = if bench.quick { 64 << 20 } else { 1 << 30 };
    let mut rows = Vec::new();
    for bytes in [1 << 10, 32 << 10, 1 << 20, 32 << 20, longest] {
        zeroes(&data.join("input"), bytes)?;
        let row = Row::measure(bench, data, bytes, AT_STAGES)?;
        let show = |times: &Times| format!("{:.2}", times.median() * 1e3);
        rows.push(vec![
            if bytes < 1 << 20 {
                format!("{} KiB", bytes >> 10)
            } else {
                format!("{} MiB", bytes >> 20)
            },
            show(&row.process),
            show(row.best_pipe()),
            ratio(row.best_pipe(), &row.process),
            show(&row.cold),
            ratio(row.best_pipe(), &row.cold),
            show(&row.warm),
            show(&row.kept_cold),
            show(&row.kept_warm),
        ]);
    }
    section.line(&format!(
        "By the length of the file, at {AT_STAGES} stages: milliseconds from opening it to its end. \
         A pipeline starts its processes for each file, as a shell does."
    ));
    let head = [
        "length",
        "in process",
        "best pipes",
        "times",
        "mount, cold",
        "times",
        "mount, warm",
        "kept, cold",
        "kept, warm",
    ];
    section.table(&head, &rows);
    Ok(())
}
