//! A large file that one client has and another reads, through real mounts, by block size.

use super::sshfs;
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft::block::Rng;

const BLOCKS: [&str; 4] = ["64K", "256K", "1M", "4M"];
const BYTES: u64 = 256 << 20;
const QUICK_BYTES: u64 = 32 << 20;

/// A cell with two mounts, which are removed on drop.
pub(super) struct Pair<'a> {
    bench: &'a Bench,
    dir: tempfile::TempDir,
    server: Child,
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for name in ["near", "far"] {
            let _ = Command::new(&self.bench.weft).arg("umount").arg(self.at(name)).status();
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl<'a> Pair<'a> {
    pub(super) fn new(bench: &'a Bench, block_size: &str) -> Result<Self> {
        let dir = tempfile::tempdir_in(&bench.work)?;
        let address = format!("unix:{}", dir.path().join("mds").display());
        let server = Command::new(&bench.weft)
            .args(["ringer", "serve", "--listen", &address])
            .arg(dir.path().join("cell"))
            .stdout(Stdio::null())
            .spawn()
            .context("serve a cell")?;
        let pair = Self { bench, dir, server };
        sshfs::wait(|| pair.at("mds").exists(), "the server listens")?;
        for name in ["near", "far"] {
            std::fs::create_dir(pair.at(name))?;
            let mounted = Command::new(&bench.weft)
                .args(["ringer", "mount", &address])
                .arg(pair.at(name))
                .arg("--store")
                .arg(pair.at(&format!("{name}.store")))
                .args(["--block-size", block_size, "--background"])
                .stdout(Stdio::null())
                .status()?;
            ensure!(mounted.success(), "weft ringer mount failed");
        }
        Ok(pair)
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Writes a file of random bytes, a MiB at a time, durable.
pub(super) fn random(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut file = File::create(path)?;
    let mut block = vec![0; 1 << 20];
    for _ in 0..bytes / block.len() as u64 {
        rng.fill(&mut block);
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// Reads a file to its end; returns the seconds.
pub(super) fn read(path: &Path, bytes: u64) -> Result<f64> {
    let mut buf = vec![0; 1 << 20];
    let began = Instant::now();
    let mut file = File::open(path)?;
    let mut len = 0;
    loop {
        match file.read(&mut buf)? {
            0 => break,
            got => len += got as u64,
        }
    }
    ensure!(len == bytes, "{len} bytes came of {bytes}");
    Ok(began.elapsed().as_secs_f64())
}

/// A name, and a function that makes a file from a seed, reads it and returns the seconds of the
/// read.
type Way<'a> = (String, Box<dyn Fn(u64) -> Result<f64> + 'a>);

pub fn bulk(bench: &Bench) -> Result<()> {
    let bytes = if bench.quick { QUICK_BYTES } else { BYTES };
    let mut ways: Vec<Way<'_>> = Vec::new();
    for block_size in BLOCKS {
        let pair = Pair::new(bench, block_size)?;
        let run = move |seed| {
            random(&pair.at("far/file"), bytes, seed)?;
            let seconds = read(&pair.at("near/file"), bytes)?;
            std::fs::remove_file(pair.at("far/file"))?;
            Ok(seconds)
        };
        ways.push((format!("weft, blocks of {block_size}"), Box::new(run)));
    }
    for (name, cached) in [("SSHFS", true), ("SSHFS, direct_io", false)] {
        let Some(mounted) = sshfs::Mounted::new(bench, Duration::ZERO, cached)? else { break };
        let run = move |seed| {
            random(&mounted.served().join("file"), bytes, seed)?;
            let seconds = read(&mounted.mount().join("file"), bytes)?;
            std::fs::remove_file(mounted.served().join("file"))?;
            Ok(seconds)
        };
        ways.push((name.to_owned(), Box::new(run)));
    }
    let mut times = vec![Times::default(); ways.len()];
    let mut seed = 0;
    for round in 0..=bench.pairs {
        for ((_, run), times) in ways.iter().zip(&mut times) {
            seed += 1;
            let seconds = run(seed)?;
            if round > 0 {
                times.push(seconds);
            }
        }
    }
    let mut section = Section::new("ringer-bulk", "The shared file service: a large file");
    section.line(&format!(
        "{} MiB that one mount has written are read on another, which has none of it. Blocks are \
         checked by their hash and kept in the reader's store on the way; the connection is a Unix \
         socket, for SSHFS it is OpenSSH's on the loopback interface, encrypted.",
        bytes >> 20
    ));
    let rows = ways.iter().zip(&times).map(|((name, _), times)| {
        let rate = format!("{:.0}", bytes as f64 / 1e6 / times.median());
        vec![name.clone(), times.show(), rate]
    });
    section.table(&["", "seconds", "MB/s"], &rows.collect::<Vec<_>>());
    drop(ways);
    section.signed(&machine::describe(), "weft-bench ringer-bulk").save(&bench.report)
}
