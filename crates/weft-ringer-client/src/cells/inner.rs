//! The cells that a mount has entered: one client for each, however many mount points lead there.
//!
//! Invariants:
//! - A cell is opened by the first thread that needs it; others meanwhile wait for the same
//!   attempt.
//! - `cells/NUMBER/junction` exists from when a cell was opened until its server has all changes
//!   made in it; each cell that has this file at the next start is opened again in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use weft_net::{Address, ClientTls, Role, ServerTls};
use weft_ringer::{CELL_MOUNT_MAX_BYTES, CellId, CellMount};
use weft_ringer_net::{self as net, PORT, replace};
use weft_vfs::{Error, FileSystem, Result};

use super::place::Place;
use super::upward::{OfCell, Upward};
use crate::errors::ETIMEDOUT;
use crate::fs::RingerFs;
use crate::mutex::locked;
use crate::options::RingerFsOptions;

/// The maximum number of open cells: each has some threads, and an index of its blocks.
const CELLS_MAX: usize = 64;
/// The directory of the local stores.
const DIRECTORY: &str = "cells";
/// The file in each that has the text of the cell mount, under the name that earlier clients know.
const MARK: &str = "junction";
/// The interval between attempts to open a cell that could not be opened at the start.
const AGAIN: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);

/// `ENFILE`
const ENFILE: i32 = 23;
/// `EACCES`
const EACCES: i32 = 13;
/// `ESTALE`
const ESTALE: i32 = 116;
/// `EIO`
const EIO: i32 = 5;
/// `EREMOTEIO`: the server is there, and refuses.
const EREMOTEIO: i32 = 121;

/// Why a cell could not be opened; several waiting threads may get it.
#[derive(Debug, Clone)]
struct Failure {
    errno: i32,
    message: String,
}

impl Failure {
    fn new(cell_mount: &CellMount, errno: i32, why: impl std::fmt::Display) -> Self {
        let servers = cell_mount.servers.join(" or ");
        Self { errno, message: format!("cell {} at {servers}: {why}", cell_mount.cell) }
    }

    fn of(cell_mount: &CellMount, error: &net::Error) -> Self {
        let errno = match error {
            net::Error::Denied(_) => EACCES,
            net::Error::Refused(_) => EREMOTEIO,
            net::Error::OlderCell(_) => ESTALE,
            e if e.is_timeout() => ETIMEDOUT,
            _ => EIO,
        };
        Self::new(cell_mount, errno, error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Io { errno: failure.errno, message: failure.message }
    }
}

/// A cell, and its client if it could be opened.
#[derive(Debug)]
struct InnerCell {
    /// The mount point through which it was last reached.
    cell_mount: Mutex<CellMount>,
    fs: OnceLock<Arc<RingerFs>>,
    /// Held by the thread that opens or closes it.
    turn: Mutex<()>,
    /// The number of finished attempts, and the failure of the last one.
    attempts: Mutex<(u64, Option<Failure>)>,
}

/// All cells inside.
#[derive(Debug)]
pub(super) struct InnerCells {
    /// The options of the outermost cell.
    options: RingerFsOptions,
    cells: Mutex<BTreeMap<CellId, Arc<InnerCell>>>,
    stop: AtomicBool,
    upward: Weak<Upward>,
}

impl InnerCells {
    pub(super) fn new(options: RingerFsOptions, upward: &Arc<Upward>) -> Self {
        let (cells, stop) = (Mutex::default(), AtomicBool::new(false));
        Self { options, cells, stop, upward: Arc::downgrade(upward) }
    }

    fn directory(&self, cell: CellId) -> PathBuf {
        self.options.directory.join(DIRECTORY).join(cell.to_string())
    }

    /// Returns the client of a location's cell: enters the cell, and waits for its server.
    ///
    /// # Errors
    /// [`Error::SymlinkLoop`] if the cell is seen above itself; those of opening it.
    pub(super) fn enter(&self, place: &Place) -> Result<Arc<RingerFs>> {
        if let Some(fs) = place.fs.get() {
            return Ok(Arc::clone(fs));
        }
        let Some(above) = &place.above else { return Err(Error::Stale(0)) };
        let cell_mount = locked(&above.cell_mount).clone();
        let cell_mount = cell_mount.map_err(|e| {
            let message =
                format!("invalid record of an attached cell at inode {}: {e}", above.dir.0);
            Error::Io { errno: 5, message }
        })?;
        if above.place.is_within(cell_mount.cell) {
            tracing::warn!("cell {} is attached below itself", cell_mount.cell);
            return Err(Error::SymlinkLoop);
        }
        let fs = self.open(&cell_mount)?;
        Ok(Arc::clone(place.fs.get_or_init(|| fs)))
    }

    /// Returns the client of a cell, opened if it is not yet: waits for its server.
    pub(super) fn open(&self, cell_mount: &CellMount) -> Result<Arc<RingerFs>> {
        let cell = self.cell(cell_mount)?;
        if let Some(fs) = cell.fs.get() {
            return Ok(Arc::clone(fs));
        }
        let seen = locked(&cell.attempts).0;
        let _turn = locked(&cell.turn);
        if let Some(fs) = cell.fs.get() {
            return Ok(Arc::clone(fs));
        }
        {
            let attempts = locked(&cell.attempts);
            // The result of an attempt that ended while this thread waited is its result too.
            if let (true, Some(failure)) = (attempts.0 != seen, &attempts.1) {
                return Err(failure.clone().into());
            }
        }
        let joined = self.join(cell_mount);
        let mut attempts = locked(&cell.attempts);
        attempts.0 += 1;
        match joined {
            Ok(fs) => {
                attempts.1 = None;
                Ok(Arc::clone(cell.fs.get_or_init(|| Arc::new(fs))))
            }
            Err(failure) => {
                tracing::warn!("{}", failure.message);
                attempts.1 = Some(failure.clone());
                Err(failure.into())
            }
        }
    }

    /// Returns the table entry of a cell, made if there is none.
    fn cell(&self, cell_mount: &CellMount) -> Result<Arc<InnerCell>> {
        let mut cells = locked(&self.cells);
        if self.stop.load(Ordering::Acquire) {
            return Err(Failure::new(cell_mount, EIO, "the mount has ended").into());
        }
        if let Some(cell) = cells.get(&cell_mount.cell) {
            if cell.fs.get().is_none() {
                locked(&cell.cell_mount).clone_from(cell_mount);
            }
            return Ok(Arc::clone(cell));
        }
        if cells.len() >= CELLS_MAX {
            // An entry that could not be opened only records its failure.
            cells.retain(|_, cell| cell.fs.get().is_some() || Arc::strong_count(cell) > 1);
        }
        if cells.len() >= CELLS_MAX {
            let why = format!("too many attached cells: a mount opens at most {CELLS_MAX}");
            return Err(Failure::new(cell_mount, ENFILE, why).into());
        }
        let cell = Arc::new(InnerCell {
            cell_mount: Mutex::new(cell_mount.clone()),
            fs: OnceLock::new(),
            turn: Mutex::default(),
            attempts: Mutex::default(),
        });
        cells.insert(cell_mount.cell, Arc::clone(&cell));
        Ok(cell)
    }

    fn join(&self, cell_mount: &CellMount) -> std::result::Result<RingerFs, Failure> {
        let address = |text: &String| Address::parse(text, PORT);
        let servers: std::result::Result<Vec<_>, _> =
            cell_mount.servers.iter().map(address).collect();
        let servers = servers.map_err(|e| Failure::new(cell_mount, EIO, e))?;
        let directory = self.directory(cell_mount.cell);
        let mut options = self.options.clone();
        options.cell = Some(cell_mount.cell);
        options.servers = servers;
        options.tls = self.certificates(cell_mount)?;
        options.listen = match &self.options.listen {
            // The outermost cell uses the port.
            Some(Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), 0)),
            Some(Address::Quic(host, _)) => Some(Address::Quic(host.clone(), 0)),
            Some(Address::Unix(_)) | None => None,
        };
        options.directory.clone_from(&directory);
        let io =
            |e| Failure::new(cell_mount, EIO, net::Error::io(directory.display().to_string(), e));
        let is_new = !directory.exists();
        let joined = RingerFs::join(options).map_err(|e| Failure::of(cell_mount, &e));
        if joined.is_err() && is_new {
            // The server never accepted a client from there.
            let _ = std::fs::remove_dir_all(&directory);
        }
        let fs = joined?;
        let upward = Weak::clone(&self.upward);
        fs.set_invalidate(Arc::new(OfCell { cell: cell_mount.cell, upward }));
        replace(&directory.join(MARK), cell_mount.to_string().as_bytes()).map_err(io)?;
        Ok(fs)
    }

    /// Returns the certificates for a cell. A cell without them is called only if the outermost
    /// cell has none either; the result is `None` then.
    fn certificates(
        &self,
        cell_mount: &CellMount,
    ) -> std::result::Result<Option<(ClientTls, ServerTls)>, Failure> {
        let own = self.options.cells_certificates.as_ref();
        let own = own.map(|dir| dir.join(cell_mount.cell.to_string())).filter(|dir| dir.exists());
        match own {
            Some(dir) => {
                let pair = ClientTls::mutual(&dir)
                    .and_then(|client| Ok((client, ServerTls::mutual(&dir, Role::Client)?)));
                pair.map(Some).map_err(|e| Failure::new(cell_mount, EACCES, e))
            }
            None if self.options.tls.is_none() => Ok(None),
            None => {
                let why = "no certificates for this cell: see --cells-certificates";
                Err(Failure::new(cell_mount, EACCES, why))
            }
        }
    }

    /// The outermost cell's servers, and the certificates to call them with.
    pub(super) fn outermost(&self) -> (&[Address], Option<&ClientTls>) {
        (&self.options.servers, self.options.tls.as_ref().map(|(client, _)| client))
    }

    /// The certificates to call the servers of a cell with.
    pub(super) fn certificates_of(
        &self,
        cell_mount: &CellMount,
    ) -> std::result::Result<Option<ClientTls>, String> {
        let pair = self.certificates(cell_mount).map_err(|failure| failure.message)?;
        Ok(pair.map(|(client, _)| client))
    }

    /// Sends changes made here to the server of a cell.
    pub(super) fn tell(&self, cell: CellId) -> Result<()> {
        let fs = locked(&self.cells).get(&cell).and_then(|cell| cell.fs.get().cloned());
        fs.filter(|fs| fs.standing().1 > 0).map_or(Ok(()), |fs| fs.sync())
    }

    /// Opens, in a thread of its own, the cells for which an earlier run may have left changes.
    pub(super) fn reopen(self: &Arc<Self>) -> std::io::Result<()> {
        let mut left = BTreeSet::new();
        let entries = match std::fs::read_dir(self.options.directory.join(DIRECTORY)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        for entry in entries {
            left.insert(entry?.path());
        }
        let cell_mount = |dir: &PathBuf| {
            let text =
                std::fs::read(dir.join(MARK)).ok().filter(|t| t.len() <= CELL_MOUNT_MAX_BYTES);
            text.and_then(|text| CellMount::parse(&text).ok())
        };
        let mut left: Vec<CellMount> = left.iter().filter_map(cell_mount).collect();
        if left.is_empty() {
            return Ok(());
        }
        let cells = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("ringer-cells".into());
        thread.spawn(move || {
            while !left.is_empty() {
                left.retain(|cell_mount| {
                    cells.upgrade().is_some_and(|cells| cells.open(cell_mount).is_err())
                });
                let mut wait = if left.is_empty() { Duration::ZERO } else { AGAIN };
                while !wait.is_zero() && Weak::strong_count(&cells) > 0 {
                    std::thread::sleep(TICK);
                    wait = wait.saturating_sub(TICK);
                }
            }
        })?;
        Ok(())
    }

    /// The clients of the open cells.
    fn open_ones(&self) -> Vec<Arc<RingerFs>> {
        locked(&self.cells).values().filter_map(|cell| cell.fs.get().cloned()).collect()
    }

    /// Makes everything durable, in all cells in parallel.
    pub(super) fn sync(&self) -> Result<()> {
        at_once(&self.open_ones(), |fs| fs.sync())
    }

    /// Gives back the leases of all cells, with the changes made under them, and ends.
    pub(super) fn leave(&self) -> Result<()> {
        let cells = {
            let mut cells = locked(&self.cells);
            self.stop.store(true, Ordering::Release);
            std::mem::take(&mut *cells)
        };
        let cells: Vec<_> = cells.into_iter().collect();
        at_once(&cells, |(number, cell)| {
            let _turn = locked(&cell.turn);
            let Some(fs) = cell.fs.get() else { return Ok(()) };
            fs.unmount()?;
            match std::fs::remove_file(self.directory(*number).join(MARK)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::Io {
                    errno: e.raw_os_error().unwrap_or(EIO),
                    message: format!("the local store of cell {number}: {e}"),
                }),
                _ => Ok(()),
            }
        })
    }

    /// Ends all clients at once, with everything left as it is.
    pub(super) fn vanish(&self) {
        self.stop.store(true, Ordering::Release);
        self.open_ones().iter().for_each(|fs| fs.vanish());
    }

    /// Describes the cells, a line each: number, `connected`, `away` or `closed`, number of changes
    /// that the server may not have, number of conflicts, addresses of the servers, and the reason
    /// for no connection; with tabs between them.
    pub(super) fn describe(&self) -> Vec<u8> {
        let mut text = String::new();
        for (number, cell) in locked(&self.cells).iter() {
            let servers = locked(&cell.cell_mount).servers.join(",");
            let (state, unsent, conflicts, why) = match cell.fs.get() {
                Some(fs) => {
                    let (is_linked, unsent, conflicts, why) = fs.standing();
                    (if is_linked { "connected" } else { "away" }, unsent, conflicts, why)
                }
                None => {
                    let why = locked(&cell.attempts).1.as_ref().map(|f| f.message.clone());
                    ("closed", 0, 0, why)
                }
            };
            let why = why.unwrap_or_default().replace(['\t', '\n'], " ");
            text.push_str(&format!("{number}\t{state}\t{unsent}\t{conflicts}\t{servers}\t{why}\n"));
        }
        text.into_bytes()
    }
}

/// Runs `work` on each in threads, and returns the first error.
fn at_once<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || work(one))).collect();
        let panicked = || Error::Io { errno: EIO, message: "a thread panicked".into() };
        let mut first = Ok(());
        for thread in threads {
            // Waits for all of them, even after an error.
            first = first.and(thread.join().unwrap_or_else(|_| Err(panicked())));
        }
        first
    })
}
