//! The directory of a client: who it is, and that nobody else is it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::room::{private, private_dir};
use crate::net::{Error, Result, SECRET_BYTES};
use crate::types::{ClientId, Incarnation};

#[derive(Debug)]
pub(crate) struct Home {
    dir: PathBuf,
    _lock: OwnedFd,
    pub(crate) secret: Vec<u8>,
    pub(crate) incarnation: Incarnation,
}

/// Puts a small file in the place of another, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = private().write(true).create(true).truncate(true).open(&new)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
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
    /// Opens the directory for a new life, and makes it if it is not there.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format!("the local store {}", dir.display()), e);
        private_dir(dir).map_err(failed)?;
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
        let lives = dir.join("incarnation");
        let incarnation = read_number(&lives).map_err(failed)?.unwrap_or(0) + 1;
        replace(&lives, format!("{incarnation}\n").as_bytes()).map_err(failed)?;
        Ok(Self { dir: dir.into(), _lock: lock, secret, incarnation: Incarnation(incarnation) })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The cell that this store belongs to; 0 if it is new.
    pub(crate) fn cell(&self) -> Result<u64> {
        let path = self.path("cell");
        let number = read_number(&path).map_err(|e| Error::io(path.display().to_string(), e))?;
        Ok(number.unwrap_or(0))
    }

    pub(crate) fn set_cell(&self, cell: u64) -> Result<()> {
        let path = self.path("cell");
        replace(&path, format!("{cell}\n").as_bytes())
            .map_err(|e| Error::io(path.display().to_string(), e))
    }
}

/// What makes a client the same over restarts, and what it alone has changed.
const OF_ONE_PAST: [&str; 6] =
    ["identity", "incarnation", "known", "journal", "journal.damaged", "conflicts"];
/// Directories of blocks that only it may have.
const ITS_BLOCKS: [&str; 2] = ["own", "kept"];

/// Sets aside what a client has of a past that its cell does not have any more, so that it begins anew:
/// who it was and what it had changed. Its blocks stay, since the cell may have use for them; what they were
/// is kept by second names.
pub(crate) fn set_aside(dir: &Path, why: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io(format!("the local store {}", dir.display()), e);
    let aside = (1..).map(|n| dir.join(format!("older-cell-{n}"))).find(|path| !path.exists());
    let Some(aside) = aside else { return Ok(()) };
    private_dir(&aside).map_err(failed)?;
    for kind in ITS_BLOCKS {
        for rnode in fs::read_dir(dir.join(kind)).into_iter().flatten() {
            let rnode = rnode.map_err(failed)?;
            let to = aside.join(kind).join(rnode.file_name());
            private_dir(&to).map_err(failed)?;
            for block in fs::read_dir(rnode.path()).map_err(failed)? {
                let block = block.map_err(failed)?;
                fs::hard_link(block.path(), to.join(block.file_name())).map_err(failed)?;
            }
        }
    }
    for name in OF_ONE_PAST {
        match fs::rename(dir.join(name), aside.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    tracing::warn!("{why}. That is accepted: what this client had is in {}", aside.display());
    Ok(())
}

/// Fills `buf` with random bytes of the kernel.
pub(crate) fn fill_random(mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        let n = rustix::rand::getrandom(&mut *buf, rustix::rand::GetRandomFlags::empty())?;
        buf = &mut buf[n..];
    }
    Ok(())
}

/// The number of the client with this secret.
pub(crate) fn client_id(secret: &[u8]) -> ClientId {
    let hash = blake3::derive_key("weft-ringer 2026 client number", secret);
    let [a, b, c, d, e, f, g, h, ..] = hash;
    ClientId(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}
