//! The store: agrees with the model, is atomic under faults, and serves the owner of the cell alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_block::Rng;
use weft_ringer::mds::INDEX;
use weft_ringer::store::{CellStore, Revision, Store, StoreError, Transaction};
use weft_ringer_server::store::{EtcdCell, EtcdOptions, Taken};
use weft_ringer_server::testing::{Cluster, Lossy};

use super::{cell, cell_for, take};
use weft_testing::{LIMIT, wait_for};

/// The session of an owner that loses etcd: another takes over when it has ended.
const SESSION: Duration = Duration::from_secs(10);

#[test]
fn etcd_agrees_with_the_model() {
    let Some(etcd) = Cluster::start(1) else { return };
    for seed in 0..3 {
        let cell = cell(etcd.endpoints(), &format!("cell{seed}"));
        crate::store::compare(seed, 200, || Box::new(take(&cell, "me")));
    }
}

/// Makes a transaction of any size: some fit one transaction of etcd, some do not.
fn transaction(rng: &mut Rng, model: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> Transaction {
    let mut transaction = Transaction::default();
    let (count, most_bytes) = [(3, 100), (400, 50), (2, 2_500_000)][rng.index(3)];
    for _ in 0..count {
        let key = format!("k{:03}", rng.below(500)).into_bytes();
        if rng.below(4) == 0 {
            model.remove(&key);
            transaction.remove(key);
        } else {
            let value = vec![rng.below(256) as u8; rng.index(most_bytes)];
            model.insert(key.clone(), value.clone());
            transaction.put(key, value);
        }
    }
    transaction
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(store: &dyn Store) -> Content {
    let all = store.range(b"", b"\xff", usize::MAX).expect("readable");
    all.into_iter().map(|(key, record)| (key, record.value)).collect()
}

#[test]
fn large_transaction_is_atomic() {
    let Some(etcd) = Cluster::start(1) else { return };
    let cell = cell(etcd.endpoints(), "large");
    let mut store = take(&cell, "me");
    let (rng, mut model) = (&mut Rng::new(7), BTreeMap::new());
    for round in 0..25 {
        let before = store.revision().expect("known");
        let transaction = transaction(rng, &mut model);
        let revision = store.commit(&transaction).expect("room");
        let changes = store.changes(before, usize::MAX).expect("kept");
        assert!(changes.iter().all(|c| c.revision == revision), "round {round}");
        if round % 5 == 0 {
            drop(store);
            store = take(&cell, "me");
        }
        assert!(content(&store) == model, "round {round}");
    }
    // No other keys are left: a long value has its own parts alone.
    let parts: usize = model
        .values()
        .map(Vec::len)
        .filter(|&n| n > 512 << 10)
        .map(|n| n.div_ceil(512 << 10))
        .sum();
    assert!(parts > 0, "the seed makes no long value");
    assert_eq!(etcd.keys("weft/large/p").len(), parts);
    assert_eq!(etcd.keys("weft/large/j").len(), 0);
    assert_eq!(etcd.keys("weft/large/k").len(), model.len());
}

#[test]
fn the_log_of_changes_is_bounded() {
    let Some(etcd) = Cluster::start(1) else { return };
    let mut store = take(&cell(etcd.endpoints(), "log"), "me");
    for n in 0..1010_u64 {
        let mut transaction = Transaction::default();
        transaction.put(b"k".to_vec(), n.to_le_bytes().to_vec());
        store.commit(&transaction).expect("room");
    }
    assert_eq!(etcd.keys("weft/log/l").len(), 1000);
    assert!(matches!(store.changes(Revision(9), 1), Err(StoreError::Forgotten { .. })));
    assert_eq!(store.changes(Revision(10), usize::MAX).expect("kept").len(), 1000);
}

/// A request or an answer is lost: the transaction happens once all the same.
#[test]
fn lost_reply_of_a_commit_is_resolved() {
    let Some(etcd) = Cluster::start(1) else { return };
    let proxy = Lossy::new(etcd.port(0));
    let cell = cell(vec![proxy.endpoint()], "lossy");
    let mut store = take(&cell, "me");
    let (rng, mut model) = (&mut Rng::new(3), BTreeMap::new());
    for round in 0..16 {
        proxy.lose(rng.below(4), round % 2 == 0, false);
        let before = store.revision().expect("known");
        let transaction = transaction(rng, &mut model);
        let revision = store.commit(&transaction).expect("it happens");
        assert!(revision.0 <= before.0 + 1, "round {round}: twice");
        assert!(content(&store) == model, "round {round}");
    }
    drop(store);
    assert!(content(&take(&cell, "me")) == model);
}

/// The content of a cell before and after a transaction that is too large for one of etcd's.
fn two_states() -> (Transaction, Transaction, [Content; 2]) {
    let (mut first, mut second) = (Transaction::default(), Transaction::default());
    let mut before = BTreeMap::new();
    for n in 0..200_u32 {
        let key = n.to_be_bytes().to_vec();
        first.put(key.clone(), vec![1]);
        before.insert(key, vec![1]);
    }
    let mut after = before.clone();
    for n in 100..300_u32 {
        let key = n.to_be_bytes().to_vec();
        let value = (n % 3 > 0).then(|| vec![2; if n == 200 { 1_200_000 } else { 2 }]);
        match &value {
            Some(value) => drop(after.insert(key.clone(), value.clone())),
            None => drop(after.remove(&key)),
        }
        second.changes.push((key, value));
    }
    (first, second, [before, after])
}

/// The owner is cut off at request `at` of a large transaction, or at its answer, and another takes
/// over. Returns whether the transaction has happened; `None` if it was acknowledged before.
fn die(etcd: &Cluster, at: u64, answer: bool) -> Option<bool> {
    let (what, name) =
        (format!("request {at}, its answer: {answer}"), format!("dying{at}{answer}"));
    let proxy = Lossy::new(etcd.port(0));
    let mut store = take(&cell(vec![proxy.endpoint()], &name), "first");
    let (first, second, [before, after]) = two_states();
    store.commit(&first).expect("room");
    proxy.lose(at, answer, true);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| store.commit(&second));
        while !proxy.is_cut() && !committing.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !proxy.is_cut() {
            committing.join().expect("no panic").expect("it happens");
            return None;
        }
        // Its session is over for etcd, and it does not know.
        let [(_, lease)] = &etcd.keys(&format!("weft/{name}/o"))[..] else { panic!("one owner") };
        let _ = etcd.ask("/v3/lease/revoke", &serde_json::json!({"ID": lease}));
        let heir = take(&cell(etcd.endpoints(), &name), "second");
        let found = content(&heir);
        assert!(found == before || found == after, "{what}: torn");
        // The delayed request arrives after all, and changes nothing.
        proxy.heal();
        let late = committing.join().expect("no panic");
        assert!(matches!(late, Err(StoreError::Fenced)), "{what}: {late:?}");
        assert!(content(&heir) == found, "{what}: a late request was carried out");
        Some(found == after)
    })
}

/// The owner dies at each step of a large transaction: all of it is there afterwards, or nothing.
#[test]
fn transaction_of_a_dead_owner_is_atomic() {
    let Some(etcd) = Cluster::start(1) else { return };
    let mut outcomes = Vec::new();
    for at in 0.. {
        let happened = [die(&etcd, at, false), die(&etcd, at, true)];
        if happened == [None, None] {
            break;
        }
        outcomes.extend(happened.into_iter().flatten());
    }
    println!("it has happened: {outcomes:?}");
    // At one step it happens: not before, and from then on.
    assert!(outcomes.is_sorted() && outcomes.len() > 14, "{outcomes:?}");
    assert_eq!((outcomes.first(), outcomes.last()), (Some(&false), Some(&true)));
}

#[test]
fn owner_without_etcd_stops_before_another_begins() {
    let Some(etcd) = Cluster::start(1) else { return };
    let proxy = Lossy::new(etcd.port(0));
    let mut old = take(&cell_for(vec![proxy.endpoint()], "cut", SESSION), "old");
    let mut mine = Transaction::default();
    mine.put(b"k".to_vec(), b"old".to_vec());
    old.commit(&mine).expect("ours");
    let other = cell_for(etcd.endpoints(), "cut", SESSION);
    assert_eq!(other.owner().expect("etcd answers").as_deref(), Some("old"));
    assert!(matches!(other.take("new"), Ok(Taken::Theirs(owner)) if owner == "old"));
    proxy.cut();
    let begun = Instant::now();
    let watch = std::thread::spawn(move || {
        let store = take(&other, "new");
        (store, Instant::now())
    });
    assert!(matches!(old.commit(&mine), Err(StoreError::Fenced)));
    let stopped = Instant::now();
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    assert!(!old.is_owned());
    // It does not answer from its cache either.
    assert!(matches!(old.get(b"k"), Err(StoreError::Fenced)));
    let (mut new, took) = watch.join().expect("no panic");
    assert!(stopped < took, "two owners");
    let mut theirs = Transaction::default();
    theirs.put(b"k".to_vec(), b"new".to_vec());
    new.commit(&theirs).expect("theirs now");
    proxy.heal();
    std::thread::sleep(Duration::from_millis(300));
    assert!(matches!(old.commit(&mine), Err(StoreError::Fenced)));
    assert_eq!(new.get(b"k").expect("there").expect("there").value, b"new");
    println!("stopped after {:?}, taken after {:?}", stopped - begun, took - begun);
}

/// The owner's clock says that it owns the cell still: etcd knows better.
#[test]
fn etcd_refuses_commits_of_a_former_owner() {
    let Some(etcd) = Cluster::start(1) else { return };
    let cell = cell(etcd.endpoints(), "revoked");
    let mut old = take(&cell, "old");
    let mut mine = Transaction::default();
    mine.put(b"k".to_vec(), b"old".to_vec());
    old.commit(&mine).expect("ours");
    let [(_, lease)] = &etcd.keys("weft/revoked/o")[..] else { panic!("one owner") };
    let _ = etcd.ask("/v3/lease/revoke", &serde_json::json!({"ID": lease}));
    let new = take(&cell, "new");
    assert!(old.is_owned(), "it cannot know yet");
    mine.put(b"k".to_vec(), b"late".to_vec());
    assert!(matches!(old.commit(&mine), Err(StoreError::Fenced)));
    assert!(!old.is_owned());
    assert_eq!(new.get(b"k").expect("there").expect("there").value, b"old");
}

#[test]
fn etcd_and_server_authenticate_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let [good, foreign] = ["good", "foreign"].map(|name| dir.path().join(name));
    weft_net::testing::make_certificates(&good, &["localhost"], &["client"]);
    weft_net::testing::make_certificates(&foreign, &["localhost"], &["client"]);
    let Some(etcd) = Cluster::start_with_tls(good.clone()) else { return };
    let with = |certificates: &std::path::Path| {
        let mut options = EtcdOptions::new(etcd.endpoints(), "tls".into());
        options.certificates = Some(certificates.into());
        EtcdCell::new(&options, INDEX).expect("good options")
    };
    let cell = with(&good);
    wait_for("etcd answers", || cell.owner());
    let mut store = take(&cell, "me");
    let mut transaction = Transaction::default();
    transaction.put(b"k".to_vec(), b"v".to_vec());
    assert_eq!(store.commit(&transaction).expect("room"), Revision(1));
    // Another authority's, on either side.
    let error = with(&foreign).owner().expect_err("a stranger");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
    std::fs::copy(good.join("ca-cert.pem"), foreign.join("ca-cert.pem")).expect("copied");
    assert!(with(&foreign).owner().is_err(), "etcd lets a stranger in");
    assert!(EtcdCell::new(&options_without(&etcd), INDEX).is_err());
}

fn options_without(etcd: &Cluster) -> EtcdOptions {
    EtcdOptions::new(etcd.endpoints(), "tls".into())
}

#[test]
fn stopping_releases_ownership_at_once() {
    let Some(etcd) = Cluster::start(1) else { return };
    let cell = cell(etcd.endpoints(), "stops");
    drop(take(&cell, "first"));
    assert!(matches!(cell.take("second"), Ok(Taken::Ours(_))));
}

#[test]
fn the_wrong_options_are_refused() {
    let new = |endpoint: &str, name: &str| {
        EtcdCell::new(&EtcdOptions::new(vec![endpoint.into()], name.into()), INDEX)
    };
    assert!(new("http://localhost:1", "a/b").is_err());
    assert!(new("https://localhost:1", "cell").is_err());
    // A refused connection is an error at once.
    let begun = Instant::now();
    assert!(new("http://localhost:1", "cell").expect("good").owner().is_err());
    assert!(begun.elapsed() < LIMIT);
}

/// Operations each second, for the measurements: `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn throughput() {
    for members in [1, 3] {
        let Some(etcd) = Cluster::start(members) else { return };
        let mut store = take(&cell(etcd.endpoints(), "speed"), "me");
        let mut run = |what: &str, times: u64, work: &mut dyn FnMut(&mut dyn Store, u64)| {
            let mut took: Vec<Duration> = (0..times)
                .map(|n| {
                    let begun = Instant::now();
                    work(&mut store, n);
                    begun.elapsed()
                })
                .collect();
            took.sort();
            let total: Duration = took.iter().sum();
            let share = |percent: usize| took[took.len() * percent / 100];
            let rate = times as f64 / total.as_secs_f64();
            println!(
                "{members} members, {what}: {rate:.0}/s, p50 {:?}, p99 {:?}",
                share(50),
                share(99)
            );
        };
        run("commit of 5 keys", 500, &mut |store, n| {
            let mut transaction = Transaction::default();
            for k in 0..5 {
                transaction.put(format!("r{n:08}{k}").into_bytes(), vec![1; 200]);
            }
            store.commit(&transaction).expect("room");
        });
        run("commit of 500 keys", 30, &mut |store, n| {
            let mut transaction = Transaction::default();
            for k in 0..500 {
                transaction.put(format!("b{n:08}{k}").into_bytes(), vec![1; 200]);
            }
            store.commit(&transaction).expect("room");
        });
        run("read of a known key", 1000, &mut |store, _| {
            drop(store.get(b"r000000010").expect("there"));
        });
        run("read of a new key", 500, &mut |store, n| {
            drop(store.get(format!("no{n}").as_bytes()).expect("read"));
        });
    }
}
