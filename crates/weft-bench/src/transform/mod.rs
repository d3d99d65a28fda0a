//! Stages in one process and through a mount, beside the same stages as a pipeline of processes.
//!
//! The increment is the same code on both sides. Pipes are shown at the best of three block sizes,
//! each with a pipe buffer of a MiB.

mod kinds;
mod mounts;
mod opening;
mod pipes;
mod rates;

use crate::report::Section;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use weft::transform::exec::{Fused, Pool, RunOptions, run};
use weft::transform::{Context as Surroundings, Io, Network, Registry};

pub use kinds::filter;
pub use pipes::stage;

const STAGES: [usize; 6] = [1, 2, 4, 8, 16, 25];

/// The text of a network of `stages` increments.
fn text(stages: usize) -> String {
    format!("view: {}", vec!["increment"; stages].join(" | "))
}

fn network(stages: usize) -> Result<Network> {
    Ok(Registry::new(Surroundings::default()).parse(&text(stages))?)
}

fn increments(stages: usize) -> Result<Fused> {
    Fused::new(network(stages)?.layers(), Io::Read).context("increments work in place")
}

/// Reads a stream to its end; returns its length and its first byte.
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

/// The end of a stream, which reads its bytes and drops them, as the end of a pipeline does.
#[derive(Default)]
struct End {
    len: u64,
    first: u8,
}

impl Write for End {
    fn write(&mut self, block: &[u8]) -> std::io::Result<usize> {
        if let (0, Some(first)) = (self.len, block.first()) {
            self.first = *first;
        }
        self.len += block.len() as u64;
        Ok(block.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a network on a file in this process, as `weft transform run` does; returns the seconds, and
/// the seconds of CPU time.
fn in_process(pool: &Pool, path: &Path, bytes: u64, stages: usize) -> Result<(f64, f64)> {
    let network = network(stages)?;
    let cpu = machine::family_cpu_seconds();
    let began = Instant::now();
    let mut end = End::default();
    let options = RunOptions { pool: Some(pool), ..RunOptions::default() };
    run(&network, Io::Read, &mut File::open(path)?, &mut end, options)?;
    check(end.len, end.first, bytes, stages)?;
    Ok((began.elapsed().as_secs_f64(), machine::family_cpu_seconds() - cpu))
}

fn check(len: u64, first: u8, bytes: u64, stages: usize) -> Result<()> {
    ensure!(len == bytes, "{len} bytes came in place of {bytes}");
    ensure!(usize::from(first) == stages, "the first byte is {first} after {stages} stages");
    Ok(())
}

/// Returns the seconds to read a file by plain reads.
fn plain(path: &Path, bytes: u64, stages: usize) -> Result<f64> {
    let began = Instant::now();
    let (len, first) = consume(&mut File::open(path)?, 1 << 20)?;
    check(len, first, bytes, stages)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Makes a file of zeroes, which is in the page cache afterwards.
fn zeroes(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path)?;
    let block = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        // No longer than the block.
        let step = (bytes - at).min(block.len() as u64) as usize;
        file.write_all_at(&block[..step], at)?;
        at += step as u64;
    }
    file.sync_all()?;
    // The output cache does not keep files that were changed just now.
    std::thread::sleep(Duration::from_secs(4));
    Ok(())
}

/// Measures increments in process and through the mount, beside pipes; the cost of opening; and
/// native code, WebAssembly and programs beside each other.
pub fn transform(bench: &Bench) -> Result<()> {
    let mut section = Section::new("transform", "Stages, beside a pipeline of processes");
    let data = bench.work.join("transform");
    std::fs::create_dir_all(&data)?;
    rates::rates(bench, &mut section, &data)?;
    opening::opening(bench, &mut section, &data)?;
    kinds::kinds(bench, &mut section)?;
    section.signed(&machine::describe(), "weft-bench transform").save(&bench.report)
}
