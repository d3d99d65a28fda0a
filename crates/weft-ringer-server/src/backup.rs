//! Backups of a cell: made while it is served, and restored.
//!
//! A backup is taken over a connection of an administrator, so from any machine and of any store.
//! Records come page by page while others change them; the records changed since the first page
//! follow, until none are left: then the copy is the cell at that revision. (A fuzzy copy and its
//! redo.) It is a cell in one SQLite file, which a server can serve as it is.
//!
//! The server only reads for it, a page at a time, between other requests. A client that has seen
//! later revisions than a copy has refuses it when it is served
//! ([`weft_ringer_net::ServerGeneration`]).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weft_ringer::Bytes;
use weft_ringer::mds::{Checked, INDEX, check};
use weft_ringer::store::{
    CellStore, IndexChange, Record, Revision, Store, StoreError, StoreResult, Transaction,
};
use weft_ringer_net::{Answer, Ask, Error, Observer, Result};
use weft_vfs::host_file;

use crate::store::SqliteStore;

/// A record that every cell has; rewritten to carry changes of the index, which need a record.
const CELL_KEY: &[u8] = b"x";
/// The maximum number of attempts, if too much changes meanwhile.
const TRIES: usize = 3;

/// A copy of a cell.
#[derive(Debug)]
pub struct Copied {
    /// The number of records.
    pub records: u64,
    /// The revision of the copy.
    pub revision: u64,
    /// The result of a consistency check of the copy.
    pub checked: Checked,
}

fn failed(path: &Path) -> impl Fn(StoreError) -> Error + '_ {
    move |e| Error::Store(format!("{}: {e}", path.display()))
}

/// The temporary file of a copy, beside its final name.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    PathBuf::from(name)
}

/// Removes a store and SQLite's files beside it.
fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let _ = fs::remove_file(PathBuf::from(name));
    }
}

fn refuse_to_replace(path: &Path) -> Result<()> {
    if path.exists() {
        let why = format!("{} already exists: move it away first", path.display());
        return Err(Error::Refused(why));
    }
    Ok(())
}

/// Gives a finished copy its name, durably.
fn finish(from: &Path, to: &Path) -> Result<()> {
    let io = |e| Error::io(to.display().to_string(), e);
    File::open(from).and_then(|file| file.sync_all()).map_err(io)?;
    // A file that appeared there meanwhile is not replaced.
    fs::hard_link(from, to).map_err(io)?;
    fs::remove_file(from).map_err(io)?;
    host_file::sync_parent(to).map_err(io)
}

/// Copies the cell that a server has into a new file at `path`.
///
/// # Errors
/// [`Error::Denied`] if the observer is no administrator of the cell, [`Error::Refused`] if there
/// is a file at `path` already, [`Error::Store`]. Nothing is left then.
pub fn backup(server: &mut Observer, path: &Path) -> Result<Copied> {
    refuse_to_replace(path)?;
    let new = unfinished(path);
    let mut tried = 0;
    let made = loop {
        remove(&new);
        tried += 1;
        match copy(server, &new) {
            Err(Error::Refused(why)) if tried < TRIES => tracing::info!("{why}"),
            made => break made,
        }
    };
    let made = made.and_then(|copied| finish(&new, path).map(|()| copied));
    if made.is_err() {
        remove(&new);
    }
    made
}

fn copy(server: &mut Observer, path: &Path) -> Result<Copied> {
    let mut store = SqliteStore::open(path).map_err(failed(path))?;
    let mut after = Bytes::default();
    let mut since = None;
    loop {
        let asked = server.ask(&Ask::Copy { after: after.clone() })?;
        let Answer::Copied { records, complete, revision } = asked else {
            return Err(unexpected());
        };
        since.get_or_insert(revision);
        if let Some((last, _)) = records.last() {
            after = last.clone();
        }
        let records = records.into_iter().map(|(key, value)| (key, Some(value)));
        put(&mut store, records).map_err(failed(path))?;
        if complete {
            break;
        }
    }
    let mut since = since.unwrap_or_default();
    loop {
        let asked = server.ask(&Ask::ChangedSince { after: since })?;
        let Answer::Changed { records, upto, complete } = asked else { return Err(unexpected()) };
        put(&mut store, records).map_err(failed(path))?;
        since = upto;
        if complete {
            break;
        }
    }
    index(&mut store).map_err(failed(path))?;
    store.become_copy(Revision(since)).map_err(failed(path))?;
    examine(&store, path)
}

fn unexpected() -> Error {
    Error::Refused(
        "protocol error: unexpected reply from the server (is it an older version?)".into(),
    )
}

fn put(
    store: &mut SqliteStore,
    records: impl IntoIterator<Item = (Bytes, Option<Bytes>)>,
) -> StoreResult<()> {
    let mut transaction = Transaction::default();
    let records = records.into_iter().map(|(key, value)| (key.0, value.map(|value| value.0)));
    transaction.changes.extend(records);
    store.commit(&transaction).map(|_| ())
}

/// Builds the index of a store that has all records.
fn index(store: &mut SqliteStore) -> StoreResult<()> {
    let cell = store.get(CELL_KEY)?.map(|record| record.value);
    for (from, to, page) in INDEX.ranges {
        let mut from = from.to_vec();
        loop {
            let records = store.range(&from, to, *page)?;
            let Some((last, _)) = records.last() else { break };
            from = [&last[..], &[0]].concat();
            let read = |(key, record): &(Vec<u8>, Record)| (INDEX.read)(key, &record.value);
            let index: StoreResult<Vec<IndexChange>> =
                records.iter().filter_map(|one| read(one).transpose()).collect();
            let (index, changes) = (index?, vec![(CELL_KEY.to_vec(), cell.clone())]);
            store.commit(&Transaction { changes, index, ..Transaction::default() })?;
        }
    }
    Ok(())
}

/// Checks the consistency of a copy.
fn examine(store: &SqliteStore, path: &Path) -> Result<Copied> {
    let failed = failed(path);
    if let Some(damage) = store.damage().map_err(&failed)?.first() {
        return Err(Error::Store(format!("{} is damaged: {damage}", path.display())));
    }
    let checked = check(store).map_err(&failed)?;
    let revision = store.revision().map_err(&failed)?.0;
    let (mut records, mut from) = (0, Vec::new());
    loop {
        let page = store.range(&from, &[0xff], 10_000).map_err(&failed)?;
        let Some((last, _)) = page.last() else { break };
        records += page.len() as u64;
        from = [&last[..], &[0]].concat();
    }
    Ok(Copied { records, revision, checked })
}

/// Puts a copy of a cell into a new file at `cell`, to be served.
///
/// # Errors
/// [`Error::Refused`] if there is a file at `cell` already, or the copy is being served;
/// [`Error::Store`] if it is damaged. Nothing is left then.
pub fn restore(copy: &Path, cell: &Path) -> Result<Copied> {
    refuse_to_replace(cell)?;
    let mut log = copy.as_os_str().to_owned();
    log.push("-wal");
    if fs::metadata(PathBuf::from(log)).is_ok_and(|found| found.len() > 0) {
        let why = format!(
            "{} has changes beside it that are not in it: it is being served, or its server was \
             killed. Start and stop a server of it first, or copy it with `weft ringer backup`",
            copy.display()
        );
        return Err(Error::Refused(why));
    }
    let new = unfinished(cell);
    remove(&new);
    let io = |path: &Path| {
        let what = path.display().to_string();
        move |e| Error::io(what.clone(), e)
    };
    let made = (|| {
        let mut from = File::open(copy).map_err(io(copy))?;
        let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let mut to = to.map_err(io(&new))?;
        std::io::copy(&mut from, &mut to).map_err(io(&new))?;
        drop(to);
        let store = SqliteStore::open(&new).map_err(failed(copy))?;
        let copied = examine(&store, copy)?;
        drop(store);
        finish(&new, cell).map(|()| copied)
    })();
    if made.is_err() {
        remove(&new);
    }
    made
}
