//! A directory of the host on a mount, with networks or without.

use super::{STAGES, text};
use crate::Bench;
use anyhow::{Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A mount that is unmounted on drop.
pub struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Mounts so that each file has a view `@xN` through N increments, and `@same` through the
    /// identity.
    pub fn with_networks(bench: &'a Bench, data: &Path) -> Result<Self> {
        Self::new(bench, data, &[Self::rules(bench)?])
    }

    fn rules(bench: &Bench) -> Result<String> {
        let rules = bench.work.join("rules");
        let rule = |n: &usize| format!("*@x{n} {}\n", text(*n));
        let mut all: String = STAGES.iter().chain(&[5]).map(rule).collect();
        all.push_str("*@same view: identity\n");
        std::fs::write(&rules, all)?;
        Ok(format!("--transform={}", rules.display()))
    }

    /// The same, with outputs kept on disk in an empty cache, from which the kernel reads them.
    pub fn keeping(bench: &'a Bench, data: &Path) -> Result<Self> {
        let cache = bench.work.join("outputs");
        if cache.exists() {
            std::fs::remove_dir_all(&cache)?;
        }
        let rules = Self::rules(bench)?;
        let cache = format!("--output-cache={}", cache.display());
        let more = ["--output-cache-size=8G", "--snapshot-views"].map(str::to_owned);
        Self::new(bench, data, &[&[rules, cache][..], &more].concat())
    }

    pub fn without(bench: &'a Bench, data: &Path) -> Result<Self> {
        // Without passthrough, so that the process is the same and only the networks are measured.
        Self::new(bench, data, &["--options=nopassthrough".to_owned()])
    }

    fn new(bench: &'a Bench, data: &Path, options: &[String]) -> Result<Self> {
        let dir = bench.work.join("mounted");
        std::fs::create_dir_all(&dir)?;
        let mounted = Command::new(&bench.weft)
            .args(["mount", "--background", "--quiet"])
            .args(options)
            .arg(format!("hostdir:{}", data.display()))
            .arg(&dir)
            .status()?;
        ensure!(mounted.success(), "weft mount failed");
        Ok(Self { bench, dir })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn view(&self, name: &str, stages: usize) -> PathBuf {
        self.dir.join(format!("{name}@x{stages}"))
    }

    /// The number of opens for which the kernel got a file of the output cache to read.
    fn opened_past(&self) -> Result<u64> {
        let metrics = std::fs::read_to_string(self.dir.join(".weft/metrics"))?;
        let lines = metrics.lines().filter(|l| l.starts_with("weft_network_opens_past_total"));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// Waits until the output of a view is in the output cache.
    pub fn wait_kept(&self, view: &Path) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let before = self.opened_past()?;
            drop(File::open(view)?);
            if self.opened_past()? > before {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the output of {} is not kept", view.display());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.bench.weft).arg("umount").arg(&self.dir).status();
    }
}
