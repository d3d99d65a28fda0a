//! A power cut at every write of a cell's file.
//!
//! SQLite writes in this order (<https://sqlite.org/wal.html>): frames of the log, a barrier, and the
//! transaction is acknowledged; at a checkpoint pages of the file, a barrier; then the log from its
//! beginning, over what was there. Between barriers the disk may keep any sectors of what was
//! written. So the states a cut can leave are made from copies of both files after each commit.
//! That SQLite issues its barriers is read from its setting (`synchronous`), not tested.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use weft_block::Rng;
use weft_ringer::query::Query;
use weft_ringer::store::{Facts, IndexChange, Store, Transaction};
use weft_ringer::{Rnode, RnodeId};
use weft_ringer_server::store::SqliteStore;
use weft_vfs::Time;

const SECTOR: usize = 512;

/// Both files, and what was acknowledged, at one moment.
struct Moment {
    file: Vec<u8>,
    log: Vec<u8>,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names in the index.
    named: usize,
    revision: u64,
}

fn log_of(path: &Path) -> PathBuf {
    path.with_file_name("cell-wal")
}

/// A store with what was acknowledged of it, and copies of its files.
struct Recorder {
    path: PathBuf,
    store: SqliteStore,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    named: usize,
}

impl Recorder {
    fn new(dir: &Path) -> Self {
        let path = dir.join("cell");
        let store = SqliteStore::open(&path).expect("a store");
        Self { path, store, model: BTreeMap::new(), named: 0 }
    }

    fn commit(&mut self, rng: &mut Rng) {
        let mut transaction = Transaction::default();
        for _ in 0..1 + rng.index(3) {
            let key = vec![b'k', rng.below(40) as u8];
            if rng.below(5) == 0 && self.model.remove(&key).is_some() {
                transaction.remove(key);
            } else {
                let value = vec![rng.below(256) as u8; rng.index(150_000)];
                self.model.insert(key.clone(), value.clone());
                transaction.put(key, value);
            }
        }
        self.named += 1;
        let rnode = RnodeId(self.named as u64 + 1);
        let name = format!("word{}", self.named).into_bytes();
        transaction.index.push(IndexChange::Name { dir: RnodeId::ROOT, name, rnode: Some(rnode) });
        let facts = Some(Facts::of(&Rnode::root(Time::default())));
        transaction.index.push(IndexChange::File { rnode, facts });
        self.store.commit(&transaction).expect("room");
    }

    fn moment(&self) -> Moment {
        Moment {
            file: fs::read(&self.path).expect("the file"),
            log: fs::read(log_of(&self.path)).unwrap_or_default(),
            model: self.model.clone(),
            named: self.named,
            revision: self.store.revision().expect("a revision").0,
        }
    }
}

/// `new` over `old`, as far as the sectors were written.
fn torn(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = old.to_vec();
    let share = rng.below(5);
    for (at, sector) in new.chunks(SECTOR).enumerate() {
        let begin = at * SECTOR;
        if rng.below(4) < share {
            let end = begin + sector.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[begin..end].copy_from_slice(sector);
        }
    }
    bytes
}

/// Opens what a cut has left. It must be one of `moments`.
fn judge(dir: &Path, file: &[u8], log: &[u8], moments: &[&Moment], what: &str) {
    let path = dir.join("cut");
    fs::create_dir_all(&path).expect("a directory");
    let path = path.join("cell");
    fs::write(&path, file).expect("the file");
    fs::write(log_of(&path), log).expect("the log");
    let store = SqliteStore::open(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
    let revision = store.revision().expect("a revision").0;
    let moment = moments.iter().find(|m| m.revision == revision);
    let told: Vec<u64> = moments.iter().map(|m| m.revision).collect();
    let moment = moment.unwrap_or_else(|| panic!("{what}: revision {revision}, not of {told:?}"));
    let found = store.range(b"k", b"l", usize::MAX).expect("readable");
    let found: BTreeMap<_, _> = found.into_iter().map(|(k, r)| (k, r.value)).collect();
    assert!(found == moment.model, "{what}: revision {revision} is not what it was");
    let query: Query = "word".parse().expect("a query");
    assert_eq!(store.search(&query, usize::MAX).expect("an index").len(), moment.named, "{what}");
    let changes = store.changes(Default::default(), usize::MAX).expect("kept");
    assert!(changes.iter().all(|c| c.revision.0 <= revision), "{what}");
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let seed = 1;
    let rng = &mut Rng::new(seed);
    let (mut cuts, mut checkpoints, mut restarts) = (0, 0, 0);
    let mut recorder = Recorder::new(dir.path());
    let mut before = recorder.moment();
    for commit in 0.. {
        // Long enough for the log to begin anew twice.
        if restarts == 2 {
            break;
        }
        assert!(commit < 500, "{checkpoints} checkpoints, {restarts} restarts");
        recorder.commit(rng);
        let after = recorder.moment();
        restarts += u32::from(!after.log.starts_with(&before.log));
        // While the log is written: nothing after the barrier before it is sure to be there.
        for _ in 0..3 {
            let log = torn(&before.log, &after.log, rng);
            let what = format!("seed {seed}, commit {commit}");
            judge(dir.path(), &before.file, &log, &[&before, &after], &what);
            cuts += 1;
        }
        if after.file != before.file {
            checkpoints += 1;
            // While the checkpoint is made, which comes after the transaction.
            for _ in 0..20 {
                let file = torn(&before.file, &after.file, rng);
                let what = format!("seed {seed}, the checkpoint of commit {commit}");
                judge(dir.path(), &file, &after.log, &[&after], &what);
                cuts += 1;
            }
        }
        before = after;
    }
    println!("{cuts} cuts, {checkpoints} checkpoints, {restarts} restarts");
}
