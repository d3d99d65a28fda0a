//! libhfs, from Debian's source package, built outside the tree with a small program that calls it.

use super::{BYTES, Operation, Took};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that calls libhfs.
#[derive(Debug)]
pub struct Peer {
    program: PathBuf,
    version: String,
}

const SOURCE: &str = include_str!("libhfs_peer.c");

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Peer {
    /// Fetches the source package and builds it, unless it is built already.
    pub fn build(cache: &Path) -> Result<Self> {
        let dir = cache.join("libhfs");
        std::fs::create_dir_all(&dir)?;
        let source = match source(&dir)? {
            Some(source) => source,
            None => {
                fetch(&dir)?;
                source(&dir)?.context("the source package hfsutils has no libhfs")?
            }
        };
        let program = dir.join("peer");
        let c = dir.join("peer.c");
        std::fs::write(&c, SOURCE)?;
        // The definitions that configure would make on any current system.
        let defines = ["STDC_HEADERS", "HAVE_MKTIME", "HAVE_FCNTL_H", "HAVE_UNISTD_H"];
        let mut command = Command::new("cc");
        command.args(["-O2", "-w"]).args(defines.map(|d| format!("-D{d}")));
        command.arg("-I").arg(&source).arg("-o").arg(&program).arg(&c);
        for part in [
            "data", "block", "low", "medium", "file", "btree", "node", "record", "volume", "hfs",
            "version",
        ] {
            command.arg(source.join(part).with_extension("c"));
        }
        command.arg(source.join("os/unix.c"));
        run(&mut command)?;
        let version = source
            .parent()
            .and_then(Path::file_name)
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self { program, version })
    }

    /// The version of the source package.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs an operation, and returns the times.
    pub fn run(&self, image: &Path, operation: Operation) -> Result<Took> {
        let (name, n, request) = match operation {
            Operation::Create(n) => ("create", n as usize, 0),
            Operation::Delete(n) => ("delete", n as usize, 0),
            Operation::Write(request) => ("write", BYTES, request),
            Operation::Overwrite(request) => ("overwrite", BYTES, request),
            Operation::Read(request) => ("read", BYTES, request),
        };
        let mut command = Command::new(&self.program);
        command.arg(image).arg(name).arg(n.to_string()).arg(request.to_string());
        let said = run(&mut command)?;
        let mut seconds = said.split_whitespace().map(str::parse::<f64>);
        match (seconds.next(), seconds.next()) {
            (Some(Ok(calls)), Some(Ok(durable))) => Ok(Took { calls, durable }),
            _ => bail!("libhfs said {said:?}"),
        }
    }
}

/// The directory of the unpacked library, if it exists.
fn source(dir: &Path) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(dir)? {
        let library = entry?.path().join("libhfs");
        if library.join("hfs.h").exists() {
            return Ok(Some(library));
        }
    }
    Ok(None)
}

/// Fetches the source package with apt, with its own package lists: those of the system seldom
/// include sources.
fn fetch(dir: &Path) -> Result<()> {
    let apt = dir.join("apt");
    std::fs::create_dir_all(apt.join("lists/partial"))?;
    std::fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("libhfs is fetched from Debian's archive; this is no Debian")?;
    let list = apt.join("sources.list");
    let line = format!(
        "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
         http://deb.debian.org/debian {suite} main\n"
    );
    std::fs::write(&list, line)?;
    for what in [&["update"][..], &["source", "hfsutils"]] {
        let mut command = Command::new("apt-get");
        command.arg("-q").current_dir(dir);
        for (option, path) in [
            ("Dir::Etc::sourcelist", list.clone()),
            ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
            ("Dir::State::lists", apt.join("lists")),
            ("Dir::Cache", apt.join("cache")),
        ] {
            command.arg("-o").arg(format!("{option}={}", path.display()));
        }
        run(command.args(what))?;
    }
    Ok(())
}
