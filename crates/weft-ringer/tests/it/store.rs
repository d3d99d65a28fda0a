//! Stores against the model: the same operations, the same answers.

use weft_block::Rng;
use weft_ringer::store::{MemoryStore, Revision, Store, StoreError, Transaction};

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

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_is_as_the_model() {
    for seed in 0..8 {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cell.db");
        compare(seed, 300, || {
            Box::new(weft_ringer::store::SqliteStore::open(&path).expect("opens"))
        });
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn other_files_and_later_versions_are_refused() {
    use weft_ringer::store::SqliteStore;
    let dir = tempfile::tempdir().expect("a directory");
    let stranger = dir.path().join("stranger");
    std::fs::write(&stranger, [b'x'; 5000]).expect("written");
    assert!(SqliteStore::open(&stranger).is_err());
    assert_eq!(std::fs::read(&stranger).expect("read"), [b'x'; 5000], "and not touched");

    let other = dir.path().join("other.db");
    let db = rusqlite::Connection::open(&other).expect("opens");
    db.execute_batch("CREATE TABLE mail (id INTEGER)").expect("made");
    drop(db);
    let error = SqliteStore::open(&other).expect_err("somebody else's");
    assert!(error.to_string().contains("no cell"), "{error}");

    let later = dir.path().join("later.db");
    drop(SqliteStore::open(&later).expect("made"));
    let db = rusqlite::Connection::open(&later).expect("opens");
    db.pragma_update(None, "user_version", 3).expect("set");
    drop(db);
    let error = SqliteStore::open(&later).expect_err("from the future");
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[cfg(feature = "sqlite")]
#[test]
fn a_cell_has_one_server() {
    use weft_ringer::store::SqliteStore;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cell.db");
    let mut first = SqliteStore::open(&path).expect("opens");
    let error = SqliteStore::open(&path).expect_err("in use");
    assert!(error.to_string().contains("locked"), "{error}");
    let mut transaction = Transaction::default();
    transaction.put(b"k".to_vec(), b"v".to_vec());
    first.commit(&transaction).expect("still ours");
}

#[test]
fn the_model_tells_whole_transactions() {
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
