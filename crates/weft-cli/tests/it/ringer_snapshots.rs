//! Snapshots through the real command: made on one mount, read on the other, kept over a crash.

use crate::ringer::Cell;
use crate::run::can_mount;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn a_directory_is_kept_as_it_was() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir_all(a.join("d/deep")).unwrap();
    fs::write(a.join("d/plan"), "first").unwrap();
    fs::write(b.join("d/deep/tool"), vec![7; 300_000]).unwrap();
    fs::set_permissions(b.join("d/deep/tool"), fs::Permissions::from_mode(0o750)).unwrap();
    cell.bench.ok(&["ringer", "snapshot", "create", "a/d", "monday"]);
    fs::write(b.join("d/plan"), "second").unwrap();
    fs::remove_dir_all(a.join("d/deep")).unwrap();
    cell.bench.ok(&["ringer", "snapshot", "create", "b/d", "tuesday"]);
    // The server dies, and what it said stays.
    cell.kill("server");
    cell.serve();
    let list = cell.bench.json(&["ringer", "snapshot", "list", "b/d"]);
    let names: Vec<_> = list.as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["monday", "tuesday"]);
    assert_eq!((&list[0]["names"], &list[1]["names"]), (&3.into(), &1.into()));
    for mount in [&a, &b] {
        let monday = mount.join("d/.snapshots/monday");
        assert_eq!(fs::read_to_string(monday.join("plan")).unwrap(), "first");
        assert!(fs::read(monday.join("deep/tool")).unwrap() == vec![7; 300_000]);
        let tuesday = mount.join("d/.snapshots/tuesday");
        assert_eq!(fs::read_to_string(tuesday.join("plan")).unwrap(), "second");
        assert!(!tuesday.join("deep").exists());
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(mount.join("d/.snapshots")).unwrap().count(), 2);
    }
    let write = fs::write(b.join("d/.snapshots/monday/plan"), "never").unwrap_err();
    assert_eq!(write.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    // Whoever wants it back copies it.
    let from = a.join("d/.snapshots/monday/deep");
    let copied = Command::new("cp").arg("-a").arg(&from).arg(a.join("d")).status().unwrap();
    assert!(copied.success());
    assert!(fs::read(b.join("d/deep/tool")).unwrap() == vec![7; 300_000]);
    let mode = fs::metadata(b.join("d/deep/tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);

    let err = cell.bench.fails(1, &["ringer", "snapshot", "create", "a/d", "monday"]);
    assert!(err.contains("snapshot 'monday' already exists"), "{err}");
    let err = cell.bench.fails(1, &["ringer", "snapshot", "remove", "a/d", "sunday"]);
    assert!(err.contains("no such snapshot: 'sunday'"), "{err}");
    cell.bench.ok(&["ringer", "snapshot", "remove", "a/d", "monday"]);
    assert!(!b.join("d/.snapshots/monday").exists());
    let report = cell.bench.json(&["ringer", "doctor", &cell.address()]);
    assert_eq!(report["problem_count"], 0, "{report}");
}
