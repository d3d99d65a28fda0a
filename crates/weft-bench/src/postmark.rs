//! A mix of small files in the manner of PostMark (J. Katcher, "PostMark: A New File System
//! Benchmark", 1997): a pool of files is made, then each transaction creates or deletes a file and
//! reads or appends to one, then the pool is deleted. The code is new, the figures are PostMark's.

use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use weft::block::Rng;

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub files: u64,
    pub transactions: u64,
    pub directories: u64,
    pub seed: u64,
    /// Reduces all figures to a tenth.
    pub quick: bool,
}

/// PostMark's own sizes.
const MIN_BYTES: u64 = 500;
const MAX_BYTES: u64 = 9770;

impl Default for Mix {
    fn default() -> Self {
        Self { files: 5000, transactions: 20_000, directories: 50, seed: 42, quick: false }
    }
}

impl Mix {
    /// The amount of work that is really done.
    pub fn scaled(&self) -> Self {
        let by = if self.quick { 10 } else { 1 };
        Self { files: self.files / by, transactions: self.transactions / by, ..*self }
    }

    pub fn describe(&self) -> String {
        let m = self.scaled();
        format!(
            "{} files of {MIN_BYTES} to {MAX_BYTES} bytes in {} directories, {} transactions",
            m.files, m.directories, m.transactions
        )
    }

    /// The arguments with which this program runs the mix in another process.
    pub fn arguments(&self) -> Vec<String> {
        let m = self.scaled();
        vec![
            format!("--files={}", m.files),
            format!("--transactions={}", m.transactions),
            format!("--directories={}", m.directories),
            format!("--seed={}", m.seed),
        ]
    }

    /// Runs the mix in `dir`, and removes its files.
    pub fn run(&self, dir: &Path) -> Result<()> {
        let top = dir.join("postmark");
        fs::create_dir(&top).with_context(|| format!("make {}", top.display()))?;
        let mut pool = Pool {
            rng: Rng::new(self.seed),
            directories: (0..self.directories.max(1)).map(|i| top.join(format!("s{i}"))).collect(),
            files: Vec::new(),
            next: 0,
            data: (0..MAX_BYTES as usize).map(|i| (i * 31 % 253) as u8).collect(),
            buffer: Vec::new(),
        };
        for dir in &pool.directories {
            fs::create_dir(dir)?;
        }
        for _ in 0..self.files {
            pool.create()?;
        }
        for _ in 0..self.transactions {
            if pool.rng.chance(1, 2) {
                pool.create()?;
            } else {
                pool.delete()?;
            }
            if pool.rng.chance(1, 2) {
                pool.read()?;
            } else {
                pool.append()?;
            }
        }
        while !pool.files.is_empty() {
            pool.delete()?;
        }
        for dir in &pool.directories {
            fs::remove_dir(dir)?;
        }
        fs::remove_dir(&top)?;
        Ok(())
    }
}

struct Pool {
    rng: Rng,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    next: u64,
    data: Vec<u8>,
    buffer: Vec<u8>,
}

impl Pool {
    fn some_data(&mut self) -> usize {
        (MIN_BYTES + self.rng.below(MAX_BYTES - MIN_BYTES)) as usize
    }

    fn create(&mut self) -> Result<()> {
        let dir = self.rng.index(self.directories.len());
        let path = self.directories[dir].join(self.next.to_string());
        self.next += 1;
        let len = self.some_data();
        File::create_new(&path)?.write_all(&self.data[..len])?;
        self.files.push(path);
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        if !self.files.is_empty() {
            let at = self.rng.index(self.files.len());
            fs::remove_file(self.files.swap_remove(at))?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        if !self.files.is_empty() {
            let at = self.rng.index(self.files.len());
            self.buffer.clear();
            File::open(&self.files[at])?.read_to_end(&mut self.buffer)?;
        }
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        if !self.files.is_empty() {
            let at = self.rng.index(self.files.len());
            let len = self.some_data();
            let mut file = OpenOptions::new().append(true).open(&self.files[at])?;
            file.write_all(&self.data[..len])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mix = Mix { files: 50, transactions: 200, directories: 3, seed: 1, quick: false };
        mix.run(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
