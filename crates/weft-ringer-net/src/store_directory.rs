//! The store directory of a client: its identity, and the lock that keeps it unique.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};
use weft_ringer::{ClientId, Incarnation};
use weft_vfs::host_file;

use crate::files::replace;
use crate::random::fill_random;
use crate::{Error, Result, SECRET_BYTES, StoreRuns};

/// The directory in which a client keeps its identity, locked while it is in use.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    lock: OwnedFd,
    /// The secret that makes this client the same over restarts.
    pub secret: Vec<u8>,
    /// The number of times that the client was started with this directory.
    pub incarnation: Incarnation,
    /// The runs of the store, by which a server recognises a copy of it.
    pub runs: StoreRuns,
    /// Whether a server has accepted the present run.
    is_accepted: AtomicBool,
}

/// The maximum number of runs kept that no server may have accepted.
const RUNS_MAX: usize = 200;

/// Reads the runs in a file: one on each line, in hex, the last one at the end.
fn read_runs(path: &Path) -> io::Result<Vec<u64>> {
    let bytes = read(path)?.unwrap_or_default();
    let bad =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    let text = std::str::from_utf8(&bytes).map_err(|_| bad())?;
    text.lines().map(|line| u64::from_str_radix(line, 16).map_err(|_| bad())).collect()
}

fn write_runs(path: &Path, runs: &[u64]) -> io::Result<()> {
    let text: String = runs.iter().map(|run| format!("{run:016x}\n")).collect();
    replace(path, text.as_bytes())
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn read_number(path: &Path) -> io::Result<Option<u64>> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let number = std::str::from_utf8(&bytes).ok().and_then(|t| t.trim().parse().ok());
    let bad =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    number.map(Some).ok_or_else(bad)
}

impl Home {
    /// Opens the directory for a new incarnation, and makes it if it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format!("the local store {}", dir.display()), e);
        host_file::create_dir_all(dir, 0o700).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(
            |e| match e {
                rustix::io::Errno::WOULDBLOCK => {
                    Error::Refused(format!("{} is in use by another mount", dir.display()))
                }
                e => failed(e.into()),
            },
        )?;
        let identity = dir.join("identity");
        let secret = match read(&identity).map_err(failed)? {
            Some(secret) if secret.len() == SECRET_BYTES => secret,
            Some(_) => return Err(Error::Refused(format!("{} is damaged", identity.display()))),
            None => {
                let mut secret = vec![0; SECRET_BYTES];
                fill_random(&mut secret).map_err(failed)?;
                replace(&identity, &secret).map_err(failed)?;
                secret
            }
        };
        let path = dir.join("incarnation");
        let incarnation = read_number(&path).map_err(failed)?.unwrap_or(0) + 1;
        replace(&path, format!("{incarnation}\n").as_bytes()).map_err(failed)?;
        // A new store has a new number for the server, which has seen no run of it.
        let path = dir.join("runs");
        let mut before = read_runs(&path).map_err(failed)?;
        if before.len() > RUNS_MAX {
            // The first is the one that a server has accepted.
            before.remove(1);
        }
        let mut run = [0; 8];
        fill_random(&mut run).map_err(failed)?;
        let now = u64::from_le_bytes(run).max(1);
        let all: Vec<u64> = before.iter().copied().chain([now]).collect();
        write_runs(&path, &all).map_err(failed)?;
        Ok(Self {
            dir: dir.into(),
            lock,
            secret,
            incarnation: Incarnation(incarnation),
            runs: StoreRuns { before, now },
            is_accepted: AtomicBool::new(false),
        })
    }

    /// Records that a server has accepted the present run: earlier ones are of no more use.
    ///
    /// # Errors
    /// [`Error::Net`].
    pub fn accepted(&self) -> Result<()> {
        if self.is_accepted.load(Ordering::Acquire) {
            return Ok(());
        }
        let path = self.path("runs");
        write_runs(&path, &[self.runs.now])
            .map_err(|e| Error::io(path.display().to_string(), e))?;
        self.is_accepted.store(true, Ordering::Release);
        Ok(())
    }

    /// Checks that the directory still has the place that it had: files in it are found by their
    /// paths. It may have been moved, or another may be mounted there by now.
    ///
    /// # Errors
    /// It has not.
    pub fn check_place(&self) -> io::Result<()> {
        let ours = rustix::fs::fstat(&self.lock)?;
        let there = rustix::fs::stat(&self.dir);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} was moved or replaced while it is in use: put it back, and mount again",
            self.dir.display()
        )))
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The cell that this store belongs to; 0 if it is new.
    pub fn cell(&self) -> Result<u64> {
        let path = self.path("cell");
        let number = read_number(&path).map_err(|e| Error::io(path.display().to_string(), e))?;
        Ok(number.unwrap_or(0))
    }

    /// Records the cell that the store belongs to.
    ///
    /// # Errors
    /// [`Error::Net`].
    pub fn set_cell(&self, cell: u64) -> Result<()> {
        let path = self.path("cell");
        replace(&path, format!("{cell}\n").as_bytes())
            .map_err(|e| Error::io(path.display().to_string(), e))
    }
}

/// The number of the client with this secret.
pub fn client_id(secret: &[u8]) -> ClientId {
    let hash = blake3::derive_key("weft-ringer 2026 client number", secret);
    let [a, b, c, d, e, f, g, h, ..] = hash;
    ClientId(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}
