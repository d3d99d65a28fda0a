//! A directory of many files made by another client: listed for the first time, with some of its
//! files read.

use super::{DSL, LAN, Served, sshfs};
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weft::vfs::{FileSystem, Walker};

const FILES: usize = 1000;
const READ: usize = 100;
const CONTENT: [u8; 4096] = [7; 4096];

fn name(number: usize) -> String {
    format!("file-{number:04}")
}

/// Lists a directory as `ls -l` does, and reads some of the files; returns the seconds of each.
fn look(dir: &Path) -> Result<(f64, f64)> {
    let began = Instant::now();
    let mut count = 0;
    for entry in std::fs::read_dir(dir)? {
        let len_bytes = std::fs::symlink_metadata(entry?.path())?.len();
        ensure!(len_bytes == CONTENT.len() as u64, "{len_bytes} bytes");
        count += 1;
    }
    ensure!(count == FILES, "{count} files");
    let looked = began.elapsed().as_secs_f64();
    let began = Instant::now();
    for number in 0..READ {
        ensure!(std::fs::read(dir.join(name(number)))? == CONTENT, "other bytes");
    }
    Ok((looked, began.elapsed().as_secs_f64()))
}

/// A mount of a new client, unmounted on drop.
struct Mounted<'a> {
    bench: &'a Bench,
    at: PathBuf,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.bench.weft).arg("umount").arg(&self.at).status();
    }
}

fn with_weft(bench: &Bench, way: Duration) -> Result<(f64, f64)> {
    let served = Served::new(bench)?;
    let maker = served.client("maker", Duration::ZERO)?;
    let walker = Walker::new(&maker);
    walker.mkdir_all(b"/dir", 0o755)?;
    for number in 0..FILES {
        walker.write_file(format!("/dir/{}", name(number)).as_bytes(), &CONTENT, 0o644)?;
    }
    maker.sync()?;
    if !way.is_zero() {
        served.move_away("maker", way)?;
    }
    let at = served.path("mount");
    std::fs::create_dir(&at)?;
    let mounted = Command::new(&bench.weft)
        .args(["ringer", "mount", &served.at(way)?.to_string()])
        .arg(&at)
        .arg("--store")
        .arg(served.path("reader"))
        .arg("--background")
        .stdout(Stdio::null())
        .status()?;
    ensure!(mounted.success(), "weft ringer mount failed");
    let mounted = Mounted { bench, at };
    look(&mounted.at.join("dir"))
}

fn with_sshfs(bench: &Bench, way: Duration) -> Result<Option<(f64, f64)>> {
    let Some(mounted) = sshfs::Mounted::new(bench, way, true)? else { return Ok(None) };
    let dir = mounted.served().join("dir");
    std::fs::create_dir(&dir)?;
    for number in 0..FILES {
        std::fs::write(dir.join(name(number)), CONTENT)?;
    }
    look(&mounted.mount().join("dir")).map(Some)
}

pub fn listing(bench: &Bench) -> Result<()> {
    let mut section = Section::new(
        "ringer-listing",
        "The shared file service: a directory seen for the first time",
    );
    section.line(&format!(
        "Seconds, on mounts. *ls -l*: a directory of {FILES} files, listed, and each looked at, by who has \
         seen nothing of it. *read*: {READ} of the files after that, {} bytes each, one after the other. On \
         weft's side another client has made the files and holds the leases to write them; it is as far away \
         as the server.",
        CONTENT.len()
    ));
    let mut rows = Vec::new();
    for (distance, way) in
        [("local", Duration::ZERO), ("0.35 ms one way", LAN), ("17 ms one way", DSL)]
    {
        let mut times: [Times; 4] = Default::default();
        for _ in 0..bench.pairs.max(1) {
            let (looked, read) = with_weft(bench, way)?;
            times[0].push(looked);
            times[2].push(read);
            if let Some((looked, read)) = with_sshfs(bench, way)? {
                times[1].push(looked);
                times[3].push(read);
            }
        }
        let cells = times.iter().map(Times::show);
        rows.push(std::iter::once(distance.to_owned()).chain(cells).collect());
    }
    let head = ["", "weft, ls -l", "SSHFS, ls -l", "weft, read", "SSHFS, read"];
    section.table(&head, &rows);
    section.signed(&machine::describe(), "weft-bench ringer-listing").save(&bench.report)
}
