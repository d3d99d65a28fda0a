//! Stages in one process and through a mount, beside the same stages as a pipeline of processes.
//!
//! The increment is the same code on both sides: a process of the pipeline is this program, which
//! reads a block, runs weft's own stage over it, and writes it on. Pipes are shown at their best of
//! three block sizes, each with a pipe buffer of a MiB.

use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use weft::transform::exec::{BLOCK_BYTES, Fused};
use weft::transform::{Context as Surroundings, Io, Registry};

const STAGES: [usize; 6] = [1, 2, 4, 8, 16, 25];
const PIPE_BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const PIPE_BYTES: usize = 1 << 20;

/// The network of this many increments.
fn text(stages: usize) -> String {
    format!("view: {}", vec!["increment"; stages].join(" | "))
}

fn increments(stages: usize) -> Result<Fused> {
    let network = Registry::new(Surroundings::default()).parse(&text(stages))?;
    Fused::new(network.layers(), Io::Read).context("increments work in place")
}

/// One process of the pipeline: standard input to standard output, incremented.
pub fn stage(block_bytes: usize) -> Result<()> {
    let increment = increments(1)?;
    // System calls alone: the buffers of the standard library would cost the pipeline copies.
    let (input, output) = (std::io::stdin(), std::io::stdout());
    // Not every kernel lets everybody have it.
    let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
    let mut block = vec![0; block_bytes];
    loop {
        let got = rustix::io::read(&input, &mut block[..])?;
        if got == 0 {
            return Ok(());
        }
        increment.apply(0, &mut block[..got])?;
        let mut done = 0;
        while done < got {
            done += rustix::io::write(&output, &block[done..got])?;
        }
    }
}

/// Reads all of a stream; its length, and its first byte.
fn consume(input: &mut dyn Read, block_bytes: usize) -> Result<(u64, u8)> {
    let mut block = vec![0; block_bytes];
    let (mut len, mut first) = (0, 0);
    loop {
        let got = input.read(&mut block)?;
        if got == 0 {
            return Ok((len, first));
        }
        if len == 0 {
            first = block[0];
        }
        len += got as u64;
    }
}

/// Seconds for a file through a pipeline of as many processes as stages.
fn through_pipes(path: &Path, bytes: u64, stages: usize, block_bytes: usize) -> Result<f64> {
    let began = Instant::now();
    let mut children: Vec<Child> = Vec::new();
    let mut from = Stdio::from(File::open(path)?);
    let mut end = None;
    for nr in 1..=stages {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["pipe-stage", &format!("--block-bytes={block_bytes}")])
            .stdin(from)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("a pipe")?;
        children.push(child);
        if nr == stages {
            end = Some(out);
            break;
        }
        from = out.into();
    }
    let mut end = end.context("a stage at least")?;
    let (len, first) = consume(&mut end, block_bytes)?;
    for mut child in children {
        ensure!(child.wait()?.success(), "a process of the pipeline failed");
    }
    check(len, first, bytes, stages)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds for a file in this process.
fn in_process(path: &Path, bytes: u64, stages: usize) -> Result<f64> {
    let network = increments(stages)?;
    let began = Instant::now();
    let file = File::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    let (mut at, mut first) = (0, 0);
    loop {
        let got = file.read_at(&mut block, at)?;
        if got == 0 {
            break;
        }
        network.apply(at, &mut block[..got])?;
        if at == 0 {
            first = block[0];
        }
        at += got as u64;
    }
    check(at, first, bytes, stages)?;
    Ok(began.elapsed().as_secs_f64())
}

fn check(len: u64, first: u8, bytes: u64, stages: usize) -> Result<()> {
    ensure!(len == bytes, "{len} bytes came in place of {bytes}");
    ensure!(usize::from(first) == stages, "the first byte is {first} after {stages} stages");
    Ok(())
}

/// Seconds to read a file by plain reads.
fn plain(path: &Path, bytes: u64, stages: usize) -> Result<f64> {
    let began = Instant::now();
    let (len, first) = consume(&mut File::open(path)?, 1 << 20)?;
    check(len, first, bytes, stages)?;
    Ok(began.elapsed().as_secs_f64())
}

/// A directory of the host on a mount with networks; unmounted when dropped.
struct Mounted<'a> {
    bench: &'a Bench,
    dir: std::path::PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(bench: &'a Bench, data: &Path) -> Result<Self> {
        let dir = bench.work.join("mounted");
        std::fs::create_dir_all(&dir)?;
        let rules = bench.work.join("rules");
        let rule = |n: &usize| format!("*@x{n} {}\n", text(*n));
        std::fs::write(&rules, STAGES.iter().map(rule).collect::<String>())?;
        let mounted = Command::new(&bench.weft)
            .args(["mount", "--background", "--quiet", "--transform"])
            .arg(&rules)
            .arg(format!("hostdir:{}", data.display()))
            .arg(&dir)
            .status()?;
        ensure!(mounted.success(), "weft mount failed");
        Ok(Self { bench, dir })
    }

    fn view(&self, stages: usize) -> std::path::PathBuf {
        self.dir.join(format!("input@x{stages}"))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.bench.weft).arg("umount").arg(&self.dir).status();
    }
}

/// One number of stages, every way.
#[derive(Default)]
struct Row {
    plain: Times,
    process: Times,
    pipes: [Times; PIPE_BLOCKS.len()],
    cold: Times,
    warm: Times,
}

impl Row {
    fn best_pipe(&self) -> &Times {
        let by_median = |a: &&Times, b: &&Times| a.median().total_cmp(&b.median());
        self.pipes.iter().min_by(by_median).unwrap_or(&self.pipes[0])
    }

    fn measure(bench: &Bench, data: &Path, bytes: u64, stages: usize) -> Result<Self> {
        let mut row = Self::default();
        let path = data.join("input");
        // The first round warms up.
        for round in 0..=bench.pairs {
            let keep = |times: &mut Times, seconds: f64| {
                if round > 0 {
                    times.push(seconds);
                }
            };
            keep(&mut row.plain, plain(&path, bytes, 0)?);
            keep(&mut row.process, in_process(&path, bytes, stages)?);
            for (times, block) in row.pipes.iter_mut().zip(PIPE_BLOCKS) {
                keep(times, through_pipes(&path, bytes, stages, block)?);
            }
            let mounted = Mounted::new(bench, data)?;
            keep(&mut row.cold, plain(&mounted.view(stages), bytes, stages)?);
            keep(&mut row.warm, plain(&mounted.view(stages), bytes, stages)?);
        }
        Ok(row)
    }
}

/// Increments: in process and through the mount, beside pipes.
pub fn transform(bench: &Bench) -> Result<()> {
    let mut section = Section::new("transform", "Stages, beside a pipeline of processes");
    let bytes: u64 = if bench.quick { 64 << 20 } else { 512 << 20 };
    let data = bench.work.join("transform");
    std::fs::create_dir_all(&data)?;
    std::fs::write(data.join("input"), vec![0; usize::try_from(bytes)?])?;
    let gib = bytes as f64 / f64::from(1 << 30);
    let rate = |times: &Times| format!("{:.2}", bytes as f64 / 1e9 / times.median().max(1e-9));
    let ratio = |a: &Times, b: &Times| match a.ratio_to(b) {
        Some(ratio) => format!("{ratio:.2}"),
        None => "-".to_owned(),
    };
    let mut rows = Vec::new();
    let mut measured: Vec<(usize, Row)> = Vec::new();
    for stages in STAGES {
        let row = Row::measure(bench, &data, bytes, stages)?;
        rows.push(vec![
            stages.to_string(),
            rate(&row.plain),
            rate(&row.process),
            rate(row.best_pipe()),
            ratio(row.best_pipe(), &row.process),
            rate(&row.cold),
            ratio(row.best_pipe(), &row.cold),
            rate(&row.warm),
            ratio(&row.plain, &row.warm),
        ]);
        measured.push((stages, row));
    }
    section.line(&format!(
        "A file of {} MiB in the page cache, read to its end through N increments. GB/s; *times* is \
         how many times faster than the best pipeline (of blocks of 4 KiB, 64 KiB and 1 MiB).",
        bytes >> 20
    ));
    section.table(
        &[
            "N",
            "plain read",
            "in process",
            "best pipes",
            "times",
            "mount, cold",
            "times",
            "mount, warm",
            "of plain",
        ],
        &rows,
    );
    if let (Some((_, first)), Some((last, many))) = (measured.first(), measured.last()) {
        let further = |a: &Times, b: &Times| (b.median() - a.median()) / (*last as f64 - 1.0) / gib;
        section.line(&format!(
            "A further stage takes {:.3} s/GiB in process and {:.3} s/GiB in a pipeline (wall clock, \
             which on a pipeline is spread over the CPUs).",
            further(&first.process, &many.process),
            further(first.best_pipe(), many.best_pipe()),
        ));
    }
    section.line(
        "Copies of a byte: in process one (the file to the block), whatever N is; a pipeline two for \
         each stage and one; through the mount three when cold (the file to the daemon's answer, the \
         answer to the kernel's page, the page to the reader) and one when warm.",
    );
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
    ];
    let bars = crate::plot::Bars {
        title: "N increments over a file in the page cache",
        y_label: "GB/s",
        labels: &labels,
        series: &series,
    };
    bench.plot("transform.svg", &bars.svg())?;
    section.line("![Rates by number of stages](plots/transform.svg)");
    section.signed(&machine::describe(), "weft-bench transform").save(&bench.report)
}
