//! Encrypted directories through the real command and real mounts.

use crate::ringer::Cell;
use crate::run::can_mount;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft_testing::wait_for;

pub const NEEDLE: &[u8] = b"the harvest is late this year";

fn pattern(len: usize) -> Vec<u8> {
    NEEDLE.iter().copied().cycle().take(len).collect()
}

/// The files in these places that say this.
pub fn saying(places: &[PathBuf], what: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = places.to_vec();
    while let Some(path) = left.pop() {
        let Ok(kind) = fs::symlink_metadata(&path).map(|m| m.file_type()) else { continue };
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            if bytes.windows(what.len()).any(|window| window == what) {
                found.push(path);
            }
        }
    }
    found
}

pub fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Takes the key of a directory from one mount to another.
fn carry_key(cell: &Cell, from: &str, to: &str) -> String {
    let text = cell.bench.ok(&["ringer", "key", "export", from]);
    let mut import = cell.bench.command(&["ringer", "key", "import", to]);
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    import.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(import.wait().unwrap().success());
    text
}

#[test]
fn who_has_the_key_reads_and_nobody_else_and_no_disk_has_it_plain() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let bench = &cell.bench;
    let (a, b, c) = (cell.mount("a"), cell.mount("b"), cell.mount("c"));
    #[cfg(feature = "archive")]
    {
        fs::create_dir(bench.path("archive")).unwrap();
        let url = format!("file://{}", bench.path("archive").display());
        bench.ok(&["ringer", "archive", "add", &cell.address(), &url]);
        bench.ok(&["ringer", "policy", "a", "--archive", "fsync"]);
    }
    fs::create_dir(a.join("safe")).unwrap();
    let out = bench.json(&["ringer", "encrypt", "a/safe"]);
    let id = out["key"].as_str().unwrap().to_owned();
    bench.fails(1, &["ringer", "encrypt", "a/safe"]);
    bench.fails(1, &["ringer", "encrypt", "a"]);
    bench.fails(1, &["ringer", "encrypt", "."]);
    let keys = bench.path("a.store").join("keys");
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);

    let content = pattern(700_000);
    fs::create_dir(a.join("safe/deep")).unwrap();
    write_durably(&a.join("safe/deep/file"), &content).unwrap();
    // Names and lengths are seen by all, content by nobody else.
    assert_eq!(fs::metadata(b.join("safe/deep/file")).unwrap().len(), 700_000);
    assert!(is(&fs::read(b.join("safe/deep/file")).unwrap_err(), Errno::NOKEY));
    assert!(is(&fs::write(b.join("safe/new"), b"words").unwrap_err(), Errno::NOKEY));
    let file = OpenOptions::new().write(true).open(b.join("safe/deep/file"));
    assert!(is(&file.unwrap_err(), Errno::NOKEY));
    let cut = Command::new("truncate").args(["-s", "5"]).arg(b.join("safe/deep/file")).output();
    let cut = cut.unwrap();
    assert!(
        !cut.status.success() && String::from_utf8_lossy(&cut.stderr).contains("key"),
        "{cut:?}"
    );
    bench.fails(1, &["ringer", "key", "export", "b/safe"]);
    bench.fails(1, &["ringer", "key", "export", "a"]);
    assert_eq!(bench.json(&["ringer", "key", "list", "b"]).as_array().unwrap().len(), 0);

    let text = carry_key(&cell, "a/safe/deep/file", "c");
    let list = bench.json(&["ringer", "key", "list", "c"]);
    assert_eq!(list[0]["key"], id, "{list}");
    assert!(fs::read(c.join("safe/deep/file")).unwrap() == content);
    // A small write of one that dies at once.
    let file = OpenOptions::new().write(true).open(c.join("safe/deep/file")).unwrap();
    file.write_all_at(b"words", 400_000).unwrap();
    cell.kill("c");
    cell.mount("c");
    let mut content = content;
    content[400_000..400_005].copy_from_slice(b"words");
    assert!(fs::read(a.join("safe/deep/file")).unwrap() == content);

    // mv copies, in and out.
    fs::write(a.join("plain"), b"a plain file").unwrap();
    let error = fs::rename(a.join("plain"), a.join("safe/moved")).unwrap_err();
    assert!(is(&error, Errno::XDEV));
    assert!(is(&fs::hard_link(a.join("plain"), a.join("safe/l")).unwrap_err(), Errno::XDEV));
    for (from, to) in [("plain", "safe/moved"), ("safe/moved", "out")] {
        let moved = Command::new("mv").arg(a.join(from)).arg(a.join(to)).status().unwrap();
        assert!(moved.success() && !a.join(from).exists(), "{from} {to}");
        assert_eq!(fs::read(a.join(to)).unwrap(), b"a plain file", "{to}");
    }
    File::open(&a).unwrap().sync_all().unwrap();

    let mut places: Vec<PathBuf> = ["a.store", "b.store", "c.store", "archive", "cell"]
        .iter()
        .map(|name| bench.path(name))
        .collect();
    places.extend(["cell-wal", "cell-shm"].iter().map(|name| bench.path(name)));
    #[cfg(feature = "archive")]
    assert!(!saying(&places, b"weB1").is_empty(), "encrypted blocks are there");
    let found = saying(&places, &NEEDLE[5..20]);
    assert!(found.is_empty(), "{found:?}");
    let secret = text.split('.').nth(3).unwrap();
    let found = saying(&places, secret.as_bytes());
    assert_eq!(found.len(), 2, "the two that have it: {found:?}");

    // Texts that are no key, and one of another cell.
    for bad in ["", "weftkey1", &text[..90], &text.replace("weftkey1", "weftkey2")] {
        fs::write(bench.path("key.txt"), bad).unwrap();
        let said = bench.fails(1, &["ringer", "key", "import", "b", "--from", "key.txt"]);
        assert!(said.contains("key") && !said.contains(secret), "{said}");
    }
    fs::write(bench.path("key.txt"), &text).unwrap();
    let other = Cell::new();
    other.mount("a");
    let key = bench.path("key.txt").display().to_string();
    let said = other.bench.fails(1, &["ringer", "key", "import", "a", "--from", &key]);
    assert!(said.contains("of cell"), "{said}");
    bench.ok(&["ringer", "key", "import", "b", "--from", "key.txt"]);
    assert!(fs::read(b.join("safe/deep/file")).unwrap() == content);
    bench.ok(&["ringer", "doctor", &cell.address()]);
}

#[test]
fn copies_history_and_eviction_need_no_key() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let bench = &cell.bench;
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir(a.join("safe")).unwrap();
    bench.ok(&["ringer", "encrypt", "a/safe"]);
    bench.ok(&["ringer", "policy", "a/safe", "--copies", "1", "--fsync", "copies=1"]);
    bench.ok(&["ringer", "policy", "a/safe", "--versions", "3", "--every", "0s", "--text", "64K"]);
    for n in 1..=3 {
        write_durably(&a.join("safe/file"), &pattern(300_000 * n)).expect("b has it");
    }
    write_durably(&a.join("safe/note"), NEEDLE).expect("b has it");
    let found = bench.json(&["ringer", "search", &cell.address(), "text:harvest"]);
    assert_eq!(found["paths"].as_array().unwrap().len(), 0, "{found}");
    bench.ok(&["ringer", "snapshot", "create", "b/safe", "monday"]);
    let history = bench.json(&["ringer", "history", "b/safe/file"]);
    let oldest = history["versions"].as_array().unwrap().last().expect("kept").clone();
    assert_eq!(oldest["bytes"], 300_000, "{history}");
    let number = oldest["version"].to_string();
    bench.ok(&["ringer", "restore", "b/safe/file", "--version", &number]);
    carry_key(&cell, "a/safe", "b");
    // The machine that wrote it is lost.
    cell.kill("a");
    fs::remove_dir_all(bench.path("a.store")).unwrap();
    let restored = wait_for("the archive has it", || fs::read(b.join("safe/file")));
    assert!(restored == pattern(300_000));
    assert!(fs::read(b.join("safe/.snapshots/monday/file")).unwrap() == pattern(900_000));
    assert_eq!(fs::read(b.join("safe/note")).unwrap(), NEEDLE);
}
