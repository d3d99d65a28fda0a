//! A large file in an encrypted directory and in a plain one: written, fetched by another client,
//! and read again there.

use super::bulk::{Pair, random, read};
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

const BYTES: u64 = 256 << 20;
const QUICK_BYTES: u64 = 32 << 20;
const DIRECTORIES: [&str; 2] = ["plain", "encrypted"];

/// Encrypts a directory, and gives the other mount the key.
fn encrypt(bench: &Bench, pair: &Pair<'_>) -> Result<()> {
    let weft = |args: &[&str]| {
        let mut command = Command::new(&bench.weft);
        command.arg("ringer").args(args);
        command
    };
    let directory = pair.at("far/encrypted");
    let encrypted = weft(&["encrypt", "--quiet"]).arg(&directory).status()?;
    let exported = weft(&["key", "export"]).arg(&directory).output()?;
    ensure!(encrypted.success() && exported.status.success(), "weft ringer encrypt failed");
    let mut import = weft(&["key", "import", "--quiet"]);
    let mut import = import.arg(pair.at("near")).stdin(Stdio::piped()).spawn()?;
    import.stdin.take().context("a pipe")?.write_all(&exported.stdout)?;
    ensure!(import.wait()?.success(), "weft ringer key import failed");
    Ok(())
}

pub fn encrypted(bench: &Bench) -> Result<()> {
    let bytes = if bench.quick { QUICK_BYTES } else { BYTES };
    let pair = Pair::new(bench, "256K")?;
    for directory in DIRECTORIES {
        std::fs::create_dir(pair.at("far").join(directory))?;
    }
    encrypt(bench, &pair)?;
    // For each directory: the times of the write, the fetch and the second read.
    let mut times: [[Times; 3]; 2] = Default::default();
    let mut seed = 0;
    for round in 0..=bench.pairs {
        for (directory, times) in DIRECTORIES.iter().zip(&mut times) {
            seed += 1;
            let (far, near) = (pair.at("far").join(directory), pair.at("near").join(directory));
            let began = Instant::now();
            random(&far.join("file"), bytes, seed)?;
            let written = began.elapsed().as_secs_f64();
            let fetched = read(&near.join("file"), bytes)?;
            let again = read(&near.join("file"), bytes)?;
            std::fs::remove_file(far.join("file"))?;
            if round > 0 {
                for (times, seconds) in times.iter_mut().zip([written, fetched, again]) {
                    times.push(seconds);
                }
            }
        }
    }
    let mut section =
        Section::new("ringer-encrypted", "The shared file service: an encrypted directory");
    section.line(&format!(
        "{} MiB, in turn in a plain directory and in an encrypted one, with blocks of 256K: written on one \
         mount with an fsync at the end (what is written is drawn at random meanwhile), read on another that \
         has none of it, and read there again. MB/s.",
        bytes >> 20
    ));
    let rows = DIRECTORIES.iter().zip(&times).map(|(directory, times)| {
        let rate = |times: &Times| format!("{:.0}", bytes as f64 / 1e6 / times.median());
        std::iter::once((*directory).to_owned()).chain(times.iter().map(rate)).collect()
    });
    section.table(&["", "written", "fetched", "read again"], &rows.collect::<Vec<Vec<String>>>());
    section.signed(&machine::describe(), "weft-bench ringer-encrypted").save(&bench.report)
}
