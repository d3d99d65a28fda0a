//! Copies through the real command: policies, holders, pins, and a machine that is lost.

use crate::ringer::Cell;
use crate::run::can_mount;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use weft_testing::wait_until;

fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[test]
fn what_fsync_returned_for_outlives_the_machine_that_wrote_it() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir(a.join("safe")).unwrap();
    let out =
        cell.bench.json(&["ringer", "policy", "a/safe", "--copies", "1", "--fsync", "copies=1"]);
    assert_eq!((&out["copies"], &out["fsync_waits_for"]), (&1.into(), &1.into()));
    // Seen by the other, and inherited.
    fs::create_dir(a.join("safe/deep")).unwrap();
    let out = cell.bench.json(&["ringer", "policy", "b/safe/deep"]);
    assert_eq!((&out["copies"], &out["own"]), (&1.into(), &false.into()));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 249) as u8).collect();
    write_durably(&a.join("safe/deep/file"), &bytes).expect("b has it");
    let out = cell.bench.json(&["ringer", "holders", "b/safe/deep/file"]);
    let copies = out["copies"].as_array().unwrap();
    assert_eq!(copies.len(), 2, "{out}");
    assert!(
        copies.iter().all(|c| c["current"] == true) && copies.iter().any(|c| c["here"] == true)
    );
    cell.kill("a");
    fs::remove_dir_all(cell.bench.path("a.store")).unwrap();
    assert!(fs::read(b.join("safe/deep/file")).unwrap() == bytes);
    // Alone now, b cannot do what fsync is to do there; elsewhere it can.
    write_durably(&b.join("other"), &bytes).expect("local");
    let report = cell.bench.json(&["ringer", "status", "b"]);
    assert!(report["staying_bytes"].as_u64().unwrap() >= 6_000_000, "{report}");
}

#[test]
fn what_is_pinned_is_read_without_the_others() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir_all(a.join("d/e")).unwrap();
    fs::write(a.join("d/e/file"), vec![7; 700_000]).unwrap();
    write_durably(&a.join("other"), &vec![8; 700_000]).expect("the server knows");
    cell.bench.json(&["ringer", "pin", "b/d"]);
    wait_until("the copy", || {
        let out = cell.bench.json(&["ringer", "holders", "b/d/e/file"]);
        out["copies"].as_array().is_some_and(|c| c.iter().any(|c| c["here"] == true))
    });
    cell.kill("a");
    assert!(fs::read(b.join("d/e/file")).unwrap() == vec![7; 700_000]);
    assert_eq!(fs::read(b.join("other")).unwrap_err().raw_os_error(), Some(5));
    cell.bench.ok(&["ringer", "unpin", "b/d"]);
    cell.bench.fails(1, &["ringer", "unpin", "b/d"]);
    cell.bench.fails(1, &["ringer", "pin", "."]);
    cell.bench.fails(2, &["ringer", "policy", "b/d", "--copies", "99"]);
    cell.bench.fails(1, &["ringer", "policy", "b/other", "--copies", "1"]);
}
