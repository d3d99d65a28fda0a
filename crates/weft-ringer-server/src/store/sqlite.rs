//! A store in one SQLite file: the default of a cell, with nothing to set up.
//!
//! Source: <https://sqlite.org/wal.html>, <https://sqlite.org/pragma.html>. The file is in WAL mode
//! with `synchronous=FULL`, so a transaction is in the log and the log on the disk when it is
//! acknowledged. It is locked for one process, since a cell has one server; so SQLite needs no
//! shared memory beside it.
//!
//! ```text
//! record(key, value, revision)   the present records
//! change(revision, key, removed) the changes, as far as they are kept
//! cell(id = 1, revision, kept_after)
//! ```
//!
//! Invariant: a transaction is acknowledged only if the file and its log then still have their
//! names; a file that was removed or replaced meanwhile ends the server.
//!
//! Invariants of `change`:
//! - It has every change after `kept_after`, and none before.
//! - A row is needed only by a backup: it asks for the changes since its first page
//!   ([`backup`](crate::backup)), and begins anew if those were forgotten. So the last
//!   [`CHANGES_KEPT`] rows are enough, and each transaction removes at least as many beyond those
//!   as it adds.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};
use weft_ringer::query::Query;
use weft_ringer::{RnodeId, Version};

use super::index;
use super::sql_error::SqlResult;
use weft_ringer::store::{
    CellStore, Change, Having, Hits, IndexChange, Record, Revision, Store, StoreError, StoreResult,
    Term, Transaction,
};

/// The number in the file's header that distinguishes a cell from other SQLite files: "weft".
const APPLICATION_ID: i32 = 0x7765_6674;
/// The version of the tables.
const USER_VERSION: i32 = 2;

const TABLES: &str = "
    CREATE TABLE record (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)
        STRICT, WITHOUT ROWID;
    CREATE TABLE change (revision INTEGER, key BLOB, removed INTEGER NOT NULL,
        PRIMARY KEY (revision, key)) STRICT, WITHOUT ROWID;
    CREATE TABLE cell (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL,
        kept_after INTEGER NOT NULL) STRICT;
    INSERT INTO cell VALUES (1, 0, 0);
";

/// The maximum number of changes of [`Store::changes`], beside those of the last transaction. Some
/// 20 MB.
pub const CHANGES_KEPT: u64 = 200_000;

/// The number of rows that one transaction removes beyond those that it adds: a cell of an earlier
/// weft, which kept all, shrinks to the limit without blocking clients.
const FORGOTTEN_AT_ONCE: u64 = 1024;

/// Removes the oldest transactions after `old.start`, and none after `old.end`, while there are
/// more rows than are kept, at most about `at_once` rows. Returns the revision after which all are
/// kept, and the number of rows.
fn forget_oldest(
    db: &Connection,
    old: std::ops::Range<Revision>,
    mut rows: u64,
    at_once: u64,
) -> SqlResult<(Revision, u64)> {
    let enough = CHANGES_KEPT.max(rows.saturating_sub(at_once));
    let mut forget = db.prepare_cached("DELETE FROM change WHERE revision = ?")?;
    let mut kept_after = old.start;
    while rows > enough && kept_after < old.end {
        kept_after.0 += 1;
        rows = rows.saturating_sub(forget.execute([to_sql(kept_after)])? as u64);
    }
    Ok((kept_after, rows))
}

/// The number of problems of a damaged file that are named when it is opened.
const DAMAGE_NAMED: usize = 5;

/// A file by which it is told whether another has its path: device and inode number.
type FileId = (u64, u64);

fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The files of a store, to notice that one was removed or replaced while SQLite has it open: what
/// is then written to it is gone when the server ends.
#[derive(Debug)]
struct Files {
    main: (PathBuf, Option<FileId>),
    /// The log, which is there from the first transaction on.
    log: (PathBuf, Option<FileId>),
}

impl Files {
    fn new(path: &Path) -> Self {
        let with_end = |end: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        let log = with_end("-wal");
        let (main_id, log_id) = (file_id(path), file_id(&log));
        Self { main: (path.to_owned(), main_id), log: (log, log_id) }
    }

    /// Checks that both are what they were.
    fn check(&mut self) -> Result<(), StoreError> {
        if self.log.1.is_none() {
            self.log.1 = file_id(&self.log.0);
        }
        for (path, id) in [&self.main, &self.log] {
            let now = file_id(path);
            if id.is_some() && now != *id {
                let how = if now.is_some() { "replaced" } else { "removed" };
                return Err(StoreError::Failed(format!(
                    "{} was {how} while the cell is served: nothing more is written. What was \
                    acknowledged until then is in the file that was {how}",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// A store in a SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    db: Connection,
    files: Files,
    revision: Revision,
    kept_after: Revision,
    /// The number of rows of `change`.
    change_rows: u64,
    /// The last revision that may have added something to the index.
    added: Revision,
}

/// SQLite's integers are signed.
fn to_sql(revision: Revision) -> i64 {
    revision.0.cast_signed()
}

fn from_sql(number: i64) -> Revision {
    Revision(number.cast_unsigned())
}

impl SqliteStore {
    /// Opens the store in the file at `path`, and makes it if there is none.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if the file is not a cell's, is of a later version, or is in use.
    pub fn open(path: &Path) -> StoreResult<Self> {
        Ok(Self::open_file(path)?)
    }

    fn open_file(path: &Path) -> SqlResult<Self> {
        // Readable for its user alone: SQLite gives the files beside it the same permissions.
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Failed(e.to_string()).into());
            }
            _ => {}
        }
        let mut db = Connection::open(path)?;
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        let mode: String = db.query_row("PRAGMA journal_mode=WAL", [], |r| r.get(0))?;
        if mode != "wal" {
            let why = format!("SQLite took journal mode {mode}, not WAL");
            return Err(StoreError::Failed(why).into());
        }
        db.pragma_update(None, "synchronous", "FULL")?;
        let tables = db.transaction()?;
        let id: i32 = tables.query_row("PRAGMA application_id", [], |r| r.get(0))?;
        let version: i32 = tables.query_row("PRAGMA user_version", [], |r| r.get(0))?;
        let empty: bool =
            tables.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |r| r.get(0))?;
        match (id, version) {
            (0, 0) if empty => {
                tables.execute_batch(TABLES)?;
                tables.execute_batch(index::TABLES)?;
                tables.execute_batch(index::TEXT_TABLES)?;
                tables.pragma_update(None, "application_id", APPLICATION_ID)?;
                tables.pragma_update(None, "user_version", USER_VERSION)?;
            }
            (APPLICATION_ID, USER_VERSION) => {}
            (APPLICATION_ID, 1) => {
                tables.execute_batch(index::TEXT_TABLES)?;
                tables.pragma_update(None, "user_version", USER_VERSION)?;
            }
            (APPLICATION_ID, later) => {
                let why = format!(
                    "the cell has format version {later}, this weft supports {USER_VERSION}"
                );
                return Err(StoreError::Failed(why).into());
            }
            _ => return Err(StoreError::Failed("the file is not a weft cell".into()).into()),
        }
        tables.commit()?;
        let (revision, kept_after) =
            db.query_row("SELECT revision, kept_after FROM cell", [], |r| {
                Ok((from_sql(r.get(0)?), from_sql(r.get(1)?)))
            })?;
        let change_rows: i64 = db.query_row("SELECT count(*) FROM change", [], |r| r.get(0))?;
        let change_rows = change_rows.unsigned_abs();
        let files = Files::new(path);
        // It is not known which earlier revisions added something.
        Ok(Self { db, files, revision, kept_after, change_rows, added: revision })
    }
}

impl SqliteStore {
    /// Makes this the copy of another store at a revision, of which it has all records.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn become_copy(&mut self, revision: Revision) -> StoreResult<()> {
        Ok(self.take_over(revision)?)
    }

    fn take_over(&mut self, revision: Revision) -> SqlResult<()> {
        let db = self.db.transaction()?;
        db.execute("DELETE FROM change", [])?;
        db.execute("UPDATE record SET revision = min(revision, ?)", [to_sql(revision)])?;
        let number = to_sql(revision);
        db.execute("UPDATE cell SET revision = ?, kept_after = ?", [number, number])?;
        db.commit()?;
        (self.revision, self.kept_after, self.added) = (revision, revision, revision);
        self.change_rows = 0;
        Ok(())
    }

    /// The rnodes that match a query with their paths, in the order of those, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn search(&self, query: &Query, limit: usize) -> StoreResult<Vec<(RnodeId, Vec<u8>)>> {
        Ok(index::search(&self.db, query, limit)?)
    }

    /// Looks for damage of the file's structure. Much faster than [`CellStore::damage`], which also
    /// compares the indexes: some seconds for a cell of a million files.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn quick_damage(&self) -> StoreResult<Vec<String>> {
        Ok(self.check_quickly()?)
    }

    fn check_quickly(&self) -> SqlResult<Vec<String>> {
        let mut check = self.db.prepare(&format!("PRAGMA quick_check({DAMAGE_NAMED})"))?;
        let lines: Vec<String> = check.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?;
        Ok(lines.into_iter().filter(|line| line != "ok").collect())
    }

    fn check_file(&self) -> SqlResult<Vec<String>> {
        let mut check = self.db.prepare("PRAGMA integrity_check")?;
        let lines: Vec<String> = check.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?;
        Ok(lines.into_iter().filter(|line| line != "ok").collect())
    }

    fn record(&self, key: &[u8]) -> SqlResult<Option<Record>> {
        let mut find =
            self.db.prepare_cached("SELECT value, revision FROM record WHERE key = ?")?;
        let record = find
            .query_row([key], |r| Ok(Record { value: r.get(0)?, revision: from_sql(r.get(1)?) }));
        Ok(record.optional()?)
    }

    fn records(&self, from: &[u8], to: &[u8], limit: usize) -> SqlResult<Vec<(Vec<u8>, Record)>> {
        let mut find = self.db.prepare_cached(
            "SELECT key, value, revision FROM record WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
        )?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = find.query_map(params![from, to, limit], |r| {
            let record = Record { value: r.get(1)?, revision: from_sql(r.get(2)?) };
            Ok((r.get(0)?, record))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn carry_out(&mut self, transaction: &Transaction) -> SqlResult<Revision> {
        let revision = Revision(self.revision.0 + 1);
        let db = self.db.transaction()?;
        let mut noted = 0;
        {
            let mut find = db.prepare_cached("SELECT revision FROM record WHERE key = ?")?;
            for (key, expected) in &transaction.expect {
                let found = find.query_row([key], |r| r.get(0)).optional()?.map(from_sql);
                if found != *expected {
                    return Err(StoreError::Conflict { key: key.clone() }.into());
                }
            }
            let mut put = db.prepare_cached("INSERT OR REPLACE INTO record VALUES (?, ?, ?)")?;
            let mut remove = db.prepare_cached("DELETE FROM record WHERE key = ?")?;
            let mut note = db.prepare_cached("INSERT INTO change VALUES (?, ?, ?)")?;
            let last: std::collections::BTreeMap<_, _> =
                transaction.changes.iter().map(|(k, v)| (k, v)).collect();
            for (key, value) in last {
                match value {
                    Some(value) => drop(put.execute(params![key, value, to_sql(revision)])?),
                    None if remove.execute([key])? > 0 => {}
                    None => continue,
                }
                note.execute(params![to_sql(revision), key, value.is_none()])?;
                noted += 1;
            }
        }
        if noted > 0 {
            for change in &transaction.index {
                index::update(&db, change)?;
            }
            let (kept_after, change_rows) = forget_oldest(
                &db,
                self.kept_after..self.revision,
                self.change_rows + noted,
                2 * noted + FORGOTTEN_AT_ONCE,
            )?;
            let numbers = [to_sql(revision), to_sql(kept_after)];
            db.execute("UPDATE cell SET revision = ?, kept_after = ?", numbers)?;
            db.commit()?;
            self.files.check()?;
            self.revision = revision;
            (self.kept_after, self.change_rows) = (kept_after, change_rows);
            if transaction.index.iter().any(IndexChange::adds) {
                self.added = revision;
            }
        }
        Ok(self.revision)
    }

    fn changes_after(&self, after: Revision, limit: usize) -> SqlResult<Vec<Change>> {
        if after < self.kept_after {
            return Err(StoreError::Forgotten { kept_after: self.kept_after }.into());
        }
        let mut find = self.db.prepare_cached(
            "SELECT revision, key, removed FROM change WHERE revision > ? ORDER BY revision, key",
        )?;
        let mut rows = find.query([to_sql(after)])?;
        let mut changes: Vec<Change> = Vec::new();
        while let Some(row) = rows.next()? {
            let revision = from_sql(row.get(0)?);
            let same_transaction = changes.last().is_some_and(|c| c.revision == revision);
            if changes.len() >= limit && !same_transaction {
                break;
            }
            changes.push(Change { revision, key: row.get(1)?, removed: row.get(2)? });
        }
        if limit == 0 {
            changes.clear();
        }
        Ok(changes)
    }

    fn forget_until(&mut self, revision: Revision) -> SqlResult<()> {
        let kept_after = self.kept_after.max(revision.min(self.revision));
        let db = self.db.transaction()?;
        let forgotten =
            db.execute("DELETE FROM change WHERE revision <= ?", [to_sql(kept_after)])?;
        db.execute("UPDATE cell SET kept_after = ?", [to_sql(kept_after)])?;
        db.commit()?;
        self.kept_after = kept_after;
        self.change_rows = self.change_rows.saturating_sub(forgotten as u64);
        Ok(())
    }
}

impl CellStore for SqliteStore {
    fn search(&self, query: &Query, limit: usize) -> StoreResult<Option<Hits>> {
        self.search(query, limit).map(Some)
    }

    fn texts(&self, after: RnodeId, limit: usize) -> StoreResult<Option<Vec<(RnodeId, Version)>>> {
        Ok(Some(index::texts(&self.db, after, limit)?))
    }

    fn having(&self, attribute: &str, limit: usize) -> StoreResult<Option<Having>> {
        Ok(Some(index::having(&self.db, attribute, limit)?))
    }

    fn terms(&self, max: usize) -> StoreResult<Option<Vec<Term>>> {
        Ok(index::terms(&self.db, max)?)
    }

    fn added(&self) -> StoreResult<Revision> {
        Ok(self.added)
    }

    fn damage(&self) -> StoreResult<Vec<String>> {
        Ok(self.check_file()?)
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Record>> {
        Ok(self.record(key)?)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Record)>> {
        Ok(self.records(from, to, limit)?)
    }

    fn commit(&mut self, transaction: &Transaction) -> StoreResult<Revision> {
        Ok(self.carry_out(transaction)?)
    }

    fn revision(&self) -> StoreResult<Revision> {
        Ok(self.revision)
    }

    fn changes(&self, after: Revision, limit: usize) -> StoreResult<Vec<Change>> {
        Ok(self.changes_after(after, limit)?)
    }

    fn forget_before(&mut self, revision: Revision) -> StoreResult<()> {
        Ok(self.forget_until(revision)?)
    }
}
