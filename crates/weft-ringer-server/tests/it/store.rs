//! Stores against the model: the same operations, the same answers.

use weft_block::Rng;
use weft_ringer::store::{MemoryStore, Revision, Store, StoreError, Transaction};
use weft_ringer_server::store::SqliteStore;

fn key(rng: &mut Rng) -> Vec<u8> {
    (0..1 + rng.below(3)).map(|_| b"ab\0\xff"[rng.index(4)]).collect()
}

fn transaction(rng: &mut Rng, model: &MemoryStore) -> Transaction {
    let mut transaction = Transaction::default();
    for _ in 0..rng.below(3) {
        let key = key(rng);
        // Mostly what is so.
        let known = model.get(&key).expect("memory").map(|r| r.revision);
        let expected = if rng.below(6) == 0 { Some(Revision(rng.below(9))) } else { known };
        transaction.expect.push((key, expected));
    }
    for _ in 0..rng.below(4) {
        let value = (rng.below(3) > 0).then(|| rng.next_u64().to_le_bytes().to_vec());
        transaction.changes.push((key(rng), value));
    }
    transaction
}

fn same<T: std::fmt::Debug + PartialEq>(
    a: Result<T, StoreError>,
    b: Result<T, StoreError>,
    what: &str,
) {
    let text = |r: Result<T, StoreError>| r.map_err(|e| e.to_string());
    assert_eq!(text(a), text(b), "{what}");
}

/// Drives `store`, which is opened again now and then, and the model.
pub fn compare(seed: u64, steps: u32, mut open: impl FnMut() -> Box<dyn Store>) {
    let rng = &mut Rng::new(seed);
    let (mut model, mut store) = (MemoryStore::new(), open());
    for step in 0..steps {
        let what = format!("seed {seed}, step {step}");
        match rng.below(20) {
            0 => {
                drop(store);
                store = open();
            }
            1 => {
                let revision = Revision(rng.below(u64::from(steps)));
                same(store.forget_before(revision), model.forget_before(revision), &what);
            }
            2..=4 => {
                let (after, limit) = (Revision(rng.below(u64::from(steps))), rng.index(5));
                same(store.changes(after, limit), model.changes(after, limit), &what);
            }
            5..=8 => {
                let (from, to, limit) = (key(rng), key(rng), rng.index(5));
                same(store.range(&from, &to, limit), model.range(&from, &to, limit), &what);
            }
            9..=10 => {
                let key = key(rng);
                same(store.get(&key), model.get(&key), &what);
            }
            _ => {
                let transaction = transaction(rng, &model);
                same(store.commit(&transaction), model.commit(&transaction), &what);
            }
        }
        same(store.revision(), model.revision(), &what);
    }
    let all = |s: &dyn Store| s.range(&[], &[0xff; 9], usize::MAX);
    same(all(&*store), all(&model), "everything");
}

#[test]
fn sqlite_agrees_with_the_model() {
    for seed in 0..8 {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cell.db");
        compare(seed, 300, || {
            Box::new(weft_ringer_server::store::SqliteStore::open(&path).expect("opens"))
        });
    }
}

#[test]
fn other_files_and_later_versions_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let stranger = dir.path().join("stranger");
    std::fs::write(&stranger, [b'x'; 5000]).expect("written");
    assert!(SqliteStore::open(&stranger).is_err());
    assert_eq!(std::fs::read(&stranger).expect("read"), [b'x'; 5000], "and not touched");

    let other = dir.path().join("other.db");
    let db = rusqlite::Connection::open(&other).expect("opens");
    db.execute_batch("CREATE TABLE mail (id INTEGER)").expect("made");
    drop(db);
    let error = SqliteStore::open(&other).expect_err("another program's");
    assert!(error.to_string().contains("not a weft cell"), "{error}");

    let later = dir.path().join("later.db");
    drop(SqliteStore::open(&later).expect("made"));
    let db = rusqlite::Connection::open(&later).expect("opens");
    db.pragma_update(None, "user_version", 3).expect("set");
    drop(db);
    let error = SqliteStore::open(&later).expect_err("from the future");
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn a_cell_has_one_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cell.db");
    let mut first = SqliteStore::open(&path).expect("opens");
    let error = SqliteStore::open(&path).expect_err("in use");
    assert!(error.to_string().contains("locked"), "{error}");
    let mut transaction = Transaction::default();
    transaction.put(b"k".to_vec(), b"v".to_vec());
    first.commit(&transaction).expect("still ours");
}

/// Only a copy of a cell that is being made asks what has changed, since its first page. So what has changed is kept
/// for so many changes, and not for ever.
#[test]
fn change_log_is_bounded() {
    use weft_ringer_server::store::{CHANGES_KEPT, SqliteStore};
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cell.db");
    let rows = || {
        let db = rusqlite::Connection::open(&path).expect("opens");
        let count = db.query_row("SELECT count(*) FROM change", [], |r| r.get::<_, i64>(0));
        count.expect("counted").unsigned_abs()
    };
    let put = |store: &mut SqliteStore, keys: u64, value: u64| {
        let mut transaction = Transaction::default();
        for key in 0..keys {
            transaction.put(key.to_le_bytes().to_vec(), value.to_le_bytes().to_vec());
        }
        store.commit(&transaction).expect("room")
    };
    // A cell of a weft that has let nothing go.
    drop(SqliteStore::open(&path).expect("made"));
    let db = rusqlite::Connection::open(&path).expect("opens");
    let old = 2 * CHANGES_KEPT;
    db.execute_batch(&format!(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {old})
            INSERT INTO change SELECT i, x'00', 0 FROM n;
         UPDATE cell SET revision = {old};"
    ))
    .expect("filled");
    drop(db);
    assert_eq!(rows(), old);
    let mut store = SqliteStore::open(&path).expect("opens");
    for value in 0..250 {
        put(&mut store, 100, value);
    }
    let last = store.revision().expect("known");
    drop(store);
    assert!(rows() <= CHANGES_KEPT, "{} rows", rows());
    // All changes after some revision are kept; earlier ones are reported as forgotten.
    let mut store = SqliteStore::open(&path).expect("opens");
    let Err(StoreError::Forgotten { kept_after }) = store.changes(Revision(0), 1) else {
        panic!("it knows no bounds")
    };
    let kept = store.changes(kept_after, usize::MAX).expect("kept");
    assert_eq!(kept.last().expect("some").revision, last);
    assert_eq!(kept.first().expect("some").revision, Revision(kept_after.0 + 1));
    assert!(kept.len() as u64 > CHANGES_KEPT - 1000, "{} are kept", kept.len());
    // A single transaction with more changes than that is reported whole.
    let revision = put(&mut store, CHANGES_KEPT + 10, 1);
    let told = store.changes(Revision(revision.0 - 1), usize::MAX).expect("kept");
    assert_eq!(told.len() as u64, CHANGES_KEPT + 10);
    put(&mut store, 1, 2);
    let kept_after = Revision(revision.0 - 1);
    assert!(matches!(store.changes(kept_after, 1), Err(StoreError::Forgotten { .. })));
}

#[test]
fn model_reports_whole_transactions() {
    let mut store = MemoryStore::new();
    let mut transaction = Transaction::default();
    transaction.put(b"a".to_vec(), vec![1]);
    transaction.put(b"b".to_vec(), vec![1]);
    transaction.put(b"a".to_vec(), vec![2]);
    assert_eq!(store.commit(&transaction).expect("committed"), Revision(1));
    assert_eq!(store.get(b"a").expect("memory").expect("there").value, [2]);
    assert_eq!(store.changes(Revision(0), 1).expect("known").len(), 2);
    let mut nothing = Transaction::default();
    nothing.remove(b"c".to_vec());
    assert_eq!(store.commit(&nothing).expect("committed"), Revision(1));
    nothing.expect.push((b"a".to_vec(), None));
    assert!(matches!(store.commit(&nothing), Err(StoreError::Conflict { .. })));
    store.forget_before(Revision(1)).expect("forgotten");
    assert!(matches!(store.changes(Revision(0), 1), Err(StoreError::Forgotten { .. })));
}

/// What is written to a file that is gone, or to its log, is gone when the server ends: so nothing is
/// acknowledged then.
#[test]
fn file_that_was_removed_or_replaced_takes_no_transaction() {
    let put = |n: u8| {
        let mut transaction = Transaction::default();
        transaction.put(vec![n], vec![n]);
        transaction
    };
    for name in ["cell", "cell-wal"] {
        for is_replaced in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut store = SqliteStore::open(&dir.path().join("cell")).expect("a store");
            store.commit(&put(1)).expect("room");
            std::fs::rename(dir.path().join(name), dir.path().join("away")).expect("renamed");
            if is_replaced {
                std::fs::copy(dir.path().join("away"), dir.path().join(name)).expect("copied");
            }
            let why = store.commit(&put(2)).expect_err("it is elsewhere").to_string();
            let how = if is_replaced { "replaced" } else { "removed" };
            assert!(why.contains(how) && why.contains(name), "{why}");
        }
    }
}

/// Damage of the file's structure is found when it is opened.
#[test]
fn damage_of_the_structure_is_found_quickly() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cell");
    let mut store = SqliteStore::open(&path).expect("a store");
    for n in 0..2000_u32 {
        let mut transaction = Transaction::default();
        transaction.put(n.to_be_bytes().to_vec(), vec![7; 100]);
        store.commit(&transaction).expect("room");
    }
    assert_eq!(store.quick_damage().expect("it is read"), Vec::<String>::new());
    drop(store);
    let whole = std::fs::read(&path).expect("there");
    let mut found = 0;
    let pages = whole.len() / 4096;
    for page in 1..pages {
        // The head of a page, which says how the rest is to be read.
        let mut bytes = whole.clone();
        bytes[page * 4096..page * 4096 + 16].fill(0xff);
        std::fs::write(&path, bytes).expect("room");
        let _ = std::fs::remove_file(dir.path().join("cell-wal"));
        let damage = SqliteStore::open(&path).and_then(|store| store.quick_damage());
        found += usize::from(damage.is_err() || damage.is_ok_and(|found| !found.is_empty()));
    }
    assert!(pages > 50 && found == pages - 1, "{found} of {} damaged pages", pages - 1);
}
