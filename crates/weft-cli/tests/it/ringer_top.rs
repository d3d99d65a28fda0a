//! Who holds what, and what is moved, through the real command.

use crate::ringer::Cell;
use crate::run::can_mount;
use std::fs;

#[test]
fn leases_messages_and_transfers_are_shown() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (bench, server) = (&cell.bench, cell.address());
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir(a.join("dir")).unwrap();
    fs::write(a.join("dir/file"), vec![7; 400_000]).unwrap();
    assert!(fs::read(b.join("dir/file")).unwrap() == vec![7; 400_000]);

    let leases = bench.json(&["ringer", "leases", &server]);
    let list = leases["leases"].as_array().unwrap();
    assert_eq!(leases["total"], list.len());
    let on = |path: &str| list.iter().filter(|l| l["path"] == path).collect::<Vec<_>>();
    // Both have read it, and nobody may change it without asking.
    let file = on("/dir/file");
    assert!(file.len() == 2 && file.iter().all(|l| l["mode"] == "read"), "{leases}");
    assert!(!on("/").is_empty() && !on("/dir").is_empty(), "{leases}");
    let few = bench.json(&["ringer", "leases", &server, "--limit", "1"]);
    assert_eq!((few["leases"].as_array().unwrap().len(), &few["total"]), (1, &leases["total"]));

    let top = bench.json(&["ringer", "top", &server, "--once", "--interval-ms", "200"]);
    let clients = top["clients"].as_array().unwrap();
    assert!(clients.len() == 2 && clients.iter().all(|c| c["state"] == "here"), "{top}");
    assert_eq!(
        top["read_leases"].as_u64().unwrap() + top["write_leases"].as_u64().unwrap(),
        leases["total"].as_u64().unwrap(),
        "{top}"
    );
    let shown = bench.ok(&["ringer", "top", &server, "--once", "--interval-ms", "200"]);
    assert!(shown.contains("2 clients") && shown.lines().count() == 5, "{shown}");

    // The bytes went from one mount to the other.
    let status = |name| bench.json(&["ringer", "status", name]);
    assert_eq!(status("a")["peer_bytes_given"], 400_000);
    assert_eq!(status("b")["peer_bytes_read"], 400_000);
    for top in [&["ringer", "top", "b", "--once"][..], &["top", "b", "--count", "1"]] {
        let shown = bench.json(&[top, &["--interval-ms", "200"]].concat());
        assert_eq!(shown["cached_bytes"], 400_000, "{shown}");
        assert!(shown["read_leases"].as_u64().unwrap() > 0, "{shown}");
    }
    bench.fails(1, &["ringer", "top", ".", "--once"]);
    bench.fails(1, &["ringer", "top", "unix:nowhere", "--once"]);
}
