//! Keys that members hand to each other, through the real command: in a cell, in one that is attached,
//! and behind a proxy; and encrypted directories there.

use crate::ringer::Cell;
use crate::ringer_cells::Cells;
use crate::ringer_encryption::{NEEDLE, is, saying, write_durably};
use crate::ringer_proxy::Proxy;
use crate::run::{Bench, can_mount};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The id by which others share with the cell at `path`.
fn id(bench: &Bench, path: &str) -> String {
    bench.ok(&["ringer", "key", "id", path]).trim().to_owned()
}

#[test]
fn members_hand_keys_to_each_other_and_no_secret_is_carried() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let bench = &cell.bench;
    let (a, b, c) = (cell.mount("a"), cell.mount("b"), cell.mount("c"));
    let ids = ["a", "b", "c"].map(|name| id(bench, name));
    assert_eq!(ids[1], id(bench, "b"), "it stays");
    assert_eq!(bench.json(&["ringer", "key", "id", "b"])["id"], ids[1]);
    let member = fs::metadata(bench.path("b.store").join("member")).unwrap();
    assert_eq!(member.permissions().mode() & 0o777, 0o600);
    fs::create_dir_all(a.join("safe")).unwrap();
    let said = bench.fails(1, &["ringer", "key", "share", "a/safe", &ids[1]]);
    assert!(said.contains("not encrypted"), "{said}");
    bench.ok(&["ringer", "encrypt", "a/safe"]);
    fs::create_dir(a.join("safe/deep")).unwrap();
    write_durably(&a.join("safe/deep/file"), NEEDLE).unwrap();
    let said = bench.fails(1, &["ringer", "key", "share", "a/safe/deep", &ids[1]]);
    assert!(said.contains("above it"), "{said}");
    bench.fails(2, &["ringer", "key", "share", "a/safe", &ids[1][..70]]);
    bench.ok(&["ringer", "key", "share", "a/safe", &ids[1]]);

    assert!(is(&fs::read(b.join("safe/deep/file")).unwrap_err(), Errno::NOKEY));
    let members = bench.json(&["ringer", "key", "members", "b/safe"]);
    let members = members.as_array().unwrap();
    let here = members.iter().find(|member| member["here"] == true).expect("this mount");
    assert!(here["id"].is_null() && members.len() == 2, "{members:?}");
    let said = bench.fails(1, &["ringer", "key", "trust", "b/safe", &ids[0]]);
    assert!(said.contains("root"), "{said}");
    bench.ok(&["ringer", "key", "trust", "b", &ids[0], &ids[2]]);
    bench.ok(&["ringer", "key", "trust", "b", "--remove", &ids[2]]);
    let trusted = bench.json(&["ringer", "key", "trust", "b"]);
    assert_eq!(trusted.as_array().unwrap().len(), 1);
    assert_eq!(trusted[0]["id"], ids[0]);
    let read = Command::new("cat").arg(b.join("safe/deep/file")).output().unwrap();
    assert_eq!(read.stdout, NEEDLE);
    write_durably(&b.join("safe/by b"), NEEDLE).unwrap();
    assert_eq!(fs::read(a.join("safe/by b")).unwrap(), NEEDLE);
    assert!(is(&fs::read(c.join("safe/by b")).unwrap_err(), Errno::NOKEY));

    // As it was imported: for good, and listed.
    cell.kill("b");
    let b = cell.mount("b");
    assert_eq!(fs::read(b.join("safe/deep/file")).unwrap(), NEEDLE);
    let list = bench.json(&["ringer", "key", "list", "b"]);
    assert_eq!(list[0]["shared_with"].as_array().unwrap().len(), 2, "{list}");
    assert!(bench.ok(&["ringer", "key", "list", "a"]).contains(&ids[1]));
    let members = bench.ok(&["ringer", "key", "members", "a/safe"]);
    assert!(members.contains(&ids[1]) && !members.contains(&ids[2]), "{members}");
    bench.ok(&["ringer", "doctor", &cell.address()]);
    let export = bench.ok(&["ringer", "key", "export", "a/safe"]);
    let secret = export.split('.').nth(3).unwrap();
    let places = ["cell", "cell-wal", "c.store", "b.store/journal"].map(|name| bench.path(name));
    assert!(saying(&places, secret.as_bytes()).is_empty());
    assert!(saying(&places, &NEEDLE[5..20]).is_empty());
}

/// Encrypts a directory that two mounts have, shares it, and has both write there.
fn is_shared(bench: &Bench, [a, b]: [&str; 2], ids: [&str; 2]) {
    let [file, other] = [a, b].map(|dir| bench.path(dir).join("deep/file"));
    bench.ok(&["ringer", "encrypt", a]);
    fs::create_dir(bench.path(a).join("deep")).unwrap();
    write_durably(&file, NEEDLE).unwrap();
    assert!(is(&fs::read(&other).unwrap_err(), Errno::NOKEY));
    bench.ok(&["ringer", "key", "share", a, ids[1]]);
    assert_eq!(fs::read(&other).unwrap(), NEEDLE);
    write_durably(&other, &NEEDLE.repeat(10_000)).unwrap();
    assert!(fs::read(&file).unwrap() == NEEDLE.repeat(10_000));
    let members = bench.ok(&["ringer", "key", "members", b]);
    assert!(ids.iter().all(|id| members.contains(id)), "{members}");
}

fn says_nowhere(bench: &Bench, places: &[&str]) {
    let places: Vec<_> = places.iter().map(|name| bench.path(name)).collect();
    assert!(places.iter().any(|path| Path::exists(path)));
    assert_eq!(saying(&places, &NEEDLE[5..20]), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_directory_of_an_attached_cell_is_encrypted_and_shared() {
    if !can_mount() {
        return;
    }
    let cells = Cells::new();
    let bench = &cells.bench;
    let (a, b) = (cells.mount("a", "o"), cells.mount("b", "o"));
    cells.attach("a/m", "m");
    fs::create_dir(a.join("m/safe")).unwrap();
    // Each cell has ids, trust and keys of its own.
    let ids = ["a/m", "b/m"].map(|path| id(bench, path));
    assert_ne!(ids[1], id(bench, "b"));
    bench.ok(&["ringer", "key", "trust", "b/m", &ids[0]]);
    assert_eq!(bench.json(&["ringer", "key", "trust", "b"]).as_array().unwrap().len(), 0);
    is_shared(bench, ["a/m/safe", "b/m/safe"], [&ids[0], &ids[1]]);
    assert_eq!(bench.json(&["ringer", "key", "list", "b/m"]).as_array().unwrap().len(), 1);
    assert_eq!(bench.json(&["ringer", "key", "list", "b"]).as_array().unwrap().len(), 0);
    fs::write(b.join("plain"), b"in the outer cell").unwrap();
    let moved = fs::rename(b.join("plain"), b.join("m/safe/plain")).unwrap_err();
    assert!(is(&moved, Errno::XDEV));
    // And none is attached in an encrypted directory.
    fs::create_dir_all(b.join("m/safe/inner")).unwrap();
    let address = cells.address("i");
    bench.fails(1, &["ringer", "attach", "b/m/safe/inner", &address]);
    // After both mounts began anew.
    for name in ["a", "b"] {
        bench.ok(&["umount", name]);
    }
    let (a, b) = (cells.mount("a", "o"), cells.mount("b", "o"));
    for dir in [&a, &b] {
        assert!(fs::read(dir.join("m/safe/deep/file")).unwrap() == NEEDLE.repeat(10_000));
    }
    says_nowhere(bench, &["m.cell", "m.cell-wal", "o.cell", "o.cell-wal", "a.store", "b.store"]);
    bench.ok(&["ringer", "doctor", &cells.address("m")]);
}

#[test]
fn a_directory_is_encrypted_and_shared_across_a_proxy() {
    if !can_mount() {
        return;
    }
    let proxy = Proxy::new();
    let (cell, bench) = (&proxy.cell, &proxy.cell.bench);
    // One behind the proxy, one at the cell's own server.
    let (a, b) = (proxy.mount("a"), cell.mount("b"));
    let ids = ["a", "b"].map(|name| id(bench, name));
    bench.ok(&["ringer", "key", "trust", "b", &ids[0]]);
    bench.ok(&["ringer", "key", "trust", "a", &ids[1]]);
    for (dirs, ids) in
        [(["a/safe", "b/safe"], [&ids[0], &ids[1]]), (["b/other", "a/other"], [&ids[1], &ids[0]])]
    {
        fs::create_dir(bench.path(dirs[0])).unwrap();
        is_shared(bench, dirs, ids.map(String::as_str));
    }
    assert!(fs::read(a.join("other/deep/file")).unwrap() == NEEDLE.repeat(10_000));
    assert!(fs::read(b.join("safe/deep/file")).unwrap() == NEEDLE.repeat(10_000));
    says_nowhere(bench, &["cell", "cell-wal", "proxy", "a.store", "b.store"]);
    bench.ok(&["ringer", "doctor", &cell.address()]);
}
