//! A directory of the host on a mount, with networks or without.

use super::{STAGES, text};
use crate::Bench;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unmounted when dropped.
pub struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Each file has a view `@xN` through N increments, and `@same` through the identity.
    pub fn with_networks(bench: &'a Bench, data: &Path) -> Result<Self> {
        let rules = bench.work.join("rules");
        let rule = |n: &usize| format!("*@x{n} {}\n", text(*n));
        let mut all: String = STAGES.iter().chain(&[5]).map(rule).collect();
        all.push_str("*@same view: identity\n");
        std::fs::write(&rules, all)?;
        Self::new(bench, data, &[format!("--transform={}", rules.display())])
    }

    pub fn without(bench: &'a Bench, data: &Path) -> Result<Self> {
        // Through the same process as with networks, so that it is them that is measured.
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
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.bench.weft).arg("umount").arg(&self.dir).status();
    }
}
