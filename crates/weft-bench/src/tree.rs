//! The input: about 26,000 files and 265 MB of Debian's Linux 6.1 source, as an uncompressed tar
//! file whose one top directory is `tree`. Made once, kept in a cache directory.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian package's file, and the directories taken from it.
const SOURCE: &str = "/usr/src/linux-source-6.1.tar.xz";
const TOP: &str = "linux-source-6.1";
const DIRECTORIES: [&str; 9] =
    ["fs", "kernel", "net", "include", "lib", "mm", "arch/x86", "drivers/usb", "drivers/media"];
const DOCUMENTATION: &str = "Documentation";

/// Size of the units of a tar file.
const TAR_BLOCK: u64 = 512;

/// The name of the directory that the tar file unpacks to.
pub const NAME: &str = "tree";

/// The input.
#[derive(Debug, Clone)]
pub struct Tree {
    pub tar: PathBuf,
    pub files: u64,
    pub bytes: u64,
}

impl Tree {
    /// Returns the given tar file, or the cached one, which is made first if need be.
    pub fn find(given: Option<&Path>, cache: &Path) -> Result<Self> {
        let tar = match given {
            Some(tar) => tar.to_owned(),
            None => {
                let tar = cache.join("tree.tar");
                if !tar.exists() {
                    build(&tar)?;
                }
                tar
            }
        };
        Self::measure(tar)
    }

    fn measure(tar: PathBuf) -> Result<Self> {
        let file = File::open(&tar).with_context(|| format!("open {}", tar.display()))?;
        let mut archive = tar::Archive::new(BufReader::with_capacity(1 << 20, file));
        let (mut files, mut bytes) = (0, 0);
        for entry in archive.entries_with_seek()? {
            let entry = entry.with_context(|| format!("read {}", tar.display()))?;
            let path = entry.path_bytes();
            let name = path.strip_prefix(b"./").unwrap_or(&path);
            ensure!(
                name.split(|b| *b == b'/').next() == Some(NAME.as_bytes()),
                "{}: everything in it must lie in one directory called {NAME}",
                tar.display()
            );
            if entry.header().entry_type().is_file() {
                files += 1;
                bytes += entry.size();
            }
        }
        Ok(Self { tar, files, bytes })
    }

    /// Writes the first tenth of the files to a tar file of its own at `tar`.
    pub fn tenth(&self, tar: &Path) -> Result<Self> {
        let mut archive =
            tar::Archive::new(BufReader::with_capacity(1 << 20, File::open(&self.tar)?));
        let (mut files, mut len_bytes) = (0, 0);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            files += u64::from(entry.header().entry_type().is_file());
            len_bytes = entry.raw_file_position() + entry.size().next_multiple_of(TAR_BLOCK);
            if files >= self.files.div_ceil(10) {
                break;
            }
        }
        let mut part = File::create(tar).with_context(|| format!("write {}", tar.display()))?;
        std::io::copy(&mut File::open(&self.tar)?.take(len_bytes), &mut part)?;
        // The end of a tar file is two blocks of zeroes.
        part.set_len(len_bytes + 2 * TAR_BLOCK)?;
        Self::measure(tar.to_owned())
    }

    /// Describes the input: `26,123 files, 265 MB`
    pub fn describe(&self) -> String {
        format!("{} files, {} MB", crate::stats::thousands(self.files), self.bytes / 1_000_000)
    }
}

fn build(tar: &Path) -> Result<()> {
    if !Path::new(SOURCE).exists() {
        bail!(
            "{SOURCE} is not there (Debian package linux-source-6.1); give another tree with \
             --tree: a tar file whose one top directory is called {NAME}"
        );
    }
    let dir = tar.parent().context("the cache has a directory")?;
    std::fs::create_dir_all(dir)?;
    eprintln!("making {} from {SOURCE}, once", tar.display());
    let work = tempfile::tempdir_in(dir)?;
    let top = work.path().join(NAME);
    std::fs::create_dir(&top)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xJf").arg(SOURCE).arg("--strip-components=1").arg("-C").arg(&top);
    for name in DIRECTORIES.iter().chain([&DOCUMENTATION]) {
        unpack.arg(format!("{TOP}/{name}"));
    }
    run(&mut unpack)?;
    let half = work.path().join("tree.tar");
    run(Command::new("tar").arg("-cf").arg(&half).arg("-C").arg(work.path()).args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--format=gnu",
        NAME,
    ]))?;
    // The rename makes the file appear only when complete.
    std::fs::rename(half, tar)?;
    Ok(())
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let out = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(
        out.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar file with 25 files of 1 to 25 times 100 bytes in one directory.
    fn small(path: &Path) -> Tree {
        let mut tar = tar::Builder::new(File::create(path).unwrap());
        for i in 1..=25 {
            let content = vec![7; i * 100];
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            let name = format!("{NAME}/{}{i}", "long".repeat(30));
            tar.append_data(&mut header, name, content.as_slice()).unwrap();
        }
        tar.finish().unwrap();
        Tree::measure(path.to_owned()).unwrap()
    }

    #[test]
    fn a_tenth_is_a_tar_file_of_the_first_files() {
        let dir = tempfile::tempdir().unwrap();
        let tree = small(&dir.path().join("tree.tar"));
        assert_eq!((tree.files, tree.bytes), (25, 32_500));
        let tenth = tree.tenth(&dir.path().join("tenth.tar")).unwrap();
        assert_eq!((tenth.files, tenth.bytes), (3, 600));
        // Neither reader misses the end, but other programs do.
        assert!(std::fs::read(&tenth.tar).unwrap().ends_with(&[0; 2 * TAR_BLOCK as usize]));
    }
}
