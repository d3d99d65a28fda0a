//! History and membership through the real command and real mounts.

use crate::ringer::Cell;
use crate::run::{Bench, can_mount};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use weft_testing::LIMIT;

#[test]
fn what_a_file_was_is_listed_and_made_again() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::create_dir(a.join("d")).unwrap();
    cell.bench.json(&[
        "ringer",
        "policy",
        "a/d",
        "--versions",
        "5",
        "--keep",
        "1d",
        "--every",
        "0s",
    ]);
    for text in ["first", "second one", "the third one"] {
        fs::write(a.join("d/file"), text).unwrap();
    }
    let list = cell.bench.json(&["ringer", "history", "b/d/file"]);
    let versions = list["versions"].as_array().unwrap();
    let bytes: Vec<u64> = versions.iter().map(|v| v["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [10, 5], "{list}");
    let first = versions[1]["version"].to_string();
    cell.bench.ok(&["ringer", "restore", "b/d/file", "--version", &first, "--as", "b/d/copy"]);
    assert_eq!(fs::read_to_string(a.join("d/copy")).unwrap(), "first");
    cell.bench.ok(&["ringer", "restore", "b/d/file", "--version", &first]);
    assert_eq!(fs::read_to_string(a.join("d/file")).unwrap(), "first");
    cell.bench.fails(1, &["ringer", "restore", "b/d/file", "--version", "987654"]);

    // What an editor replaces, and what is removed.
    fs::write(b.join("d/new"), "new").unwrap();
    fs::rename(b.join("d/new"), b.join("d/file")).unwrap();
    fs::remove_file(a.join("d/copy")).unwrap();
    let list = cell.bench.json(&["ringer", "history", "a/d"]);
    let removed = list["removed"].as_array().unwrap();
    let of = |path: &str| {
        let found = removed.iter().find(|r| r["path"] == path);
        found.unwrap_or_else(|| panic!("{path} in {list}"))["removed"].to_string()
    };
    cell.bench.ok(&["ringer", "restore", "a/d", "--removed", &of("copy")]);
    assert_eq!(fs::read_to_string(b.join("d/copy")).unwrap(), "first");
    // The name is taken.
    cell.bench.fails(1, &["ringer", "restore", "a/d", "--removed", &of("file")]);
    cell.bench.ok(&["ringer", "restore", "a/d", "--removed", &of("file"), "--as", "a/old"]);
    assert_eq!(fs::read_to_string(b.join("old")).unwrap(), "first");
    cell.bench.fails(1, &["ringer", "history", "."]);
}

/// A cell over TLS that others join; whatever a test does, nothing stays mounted or running.
struct Joined {
    cell: Cell,
    address: String,
    metrics: String,
}

impl Joined {
    fn new() -> Self {
        let cell = Cell { bench: Bench::new() };
        cell.bench.ok(&["ringer", "init", "pki", "--host", "127.0.0.1"]);
        cell.bench.fails(1, &["ringer", "init", "pki", "--host", "127.0.0.1"]);
        let args = ["ringer", "serve", "cell", "--listen", "127.0.0.1:0", "--epoch", "2"];
        let more = ["--tls-certificates", "pki", "--background", "--pid-file", "server.pid"];
        let more = [&more[..], &["--metrics", "127.0.0.1:0"]].concat();
        let out = cell.bench.json(&[&args[..], &more].concat());
        let address = out["addresses"][0].as_str().unwrap().to_owned();
        let metrics = out["metrics"].as_str().unwrap().to_owned();
        Self { cell, address, metrics }
    }

    fn invite(&self, more: &[&str]) -> String {
        let args = ["ringer", "invite", &self.address, "--tls-certificates", "pki"];
        let out = self.cell.bench.json(&[&args[..], more].concat());
        out["token"].as_str().unwrap().to_owned()
    }

    fn mount(&self, name: &str, keys: &str) -> Vec<String> {
        let _ = fs::create_dir(self.cell.bench.path(name));
        let (store, pid) = (format!("{name}.store"), format!("{name}.pid"));
        let args = ["ringer", "mount", &self.address, name, "--store", &store, "--patience", "5"];
        let more = ["--tls-certificates", keys, "--background", "--pid-file", &pid];
        args.iter().chain(&more).map(|word| (*word).to_owned()).collect()
    }
}

#[test]
fn a_machine_joins_by_a_token_works_and_is_sent_away() {
    if !can_mount() {
        return;
    }
    let joined = Joined::new();
    let bench = &joined.cell.bench;
    let run = |args: Vec<String>| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        bench.ok(&args)
    };
    let token = joined.invite(&[]);
    bench.ok(&["ringer", "join", &token, "a.keys", "--name", "ada"]);
    let key = fs::metadata(bench.path("a.keys/client-key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let said = bench.fails(1, &["ringer", "join", &token, "b.keys", "--name", "bob"]);
    assert!(said.contains("already used"), "{said}");
    let token = joined.invite(&["--read-only"]);
    bench.ok(&["ringer", "join", &token, "b.keys", "--name", "bob"]);
    bench.fails(2, &["ringer", "join", "nonsense", "c.keys"]);

    run(joined.mount("a", "a.keys"));
    run(joined.mount("b", "b.keys"));
    fs::write(bench.path("a/file"), "content").unwrap();
    assert_eq!(fs::read_to_string(bench.path("b/file")).unwrap(), "content");
    let refused = fs::write(bench.path("b/file"), "other").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(1));
    fs::write(bench.path("b/new"), "other").unwrap_err();

    let mut stream = std::net::TcpStream::connect(&joined.metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\nweft_ringer_clients_connected 2\n"), "{text}");
    let admin = ["--tls-certificates", "pki"];
    let members = bench.json(&[&["ringer", "members", &joined.address][..], &admin].concat());
    let names: Vec<&str> =
        members.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ada", "bob"]);
    let not = ["ringer", "revoke", &joined.address, "ada", "--tls-certificates", "b.keys"];
    let said = bench.fails(1, &not);
    assert!(said.contains("needs an administrator of the cell"), "{said}");
    bench.ok(&["ringer", "revoke", &joined.address, "ada", "--force", "--tls-certificates", "pki"]);
    let status = ["ringer", "status", &joined.address, "--tls-certificates", "a.keys"];
    let said = bench.fails(1, &status);
    assert!(said.contains("revoked"), "{said}");
    assert!(fs::write(bench.path("a/later"), "x").is_err() || !bench.path("b/later").exists());
}

/// What a mount needs the server for says that it may not, at once: nothing waits until it is given up.
#[test]
fn a_mount_that_was_sent_away_says_permission_denied() {
    if !can_mount() {
        return;
    }
    let joined = Joined::new();
    let bench = &joined.cell.bench;
    let token = joined.invite(&[]);
    bench.ok(&["ringer", "join", &token, "a.keys", "--name", "ada"]);
    let mount = joined.mount("a", "a.keys");
    bench.ok(&mount.iter().map(String::as_str).collect::<Vec<_>>());
    fs::create_dir(bench.path("a/d")).unwrap();
    fs::write(bench.path("a/d/file"), "content").unwrap();
    bench.ok(&["ringer", "revoke", &joined.address, "ada", "--force", "--tls-certificates", "pki"]);
    // What is under leases goes on until its epoch is over.
    let watchdog = Instant::now() + LIMIT;
    let mut denied = 0;
    for n in 0.. {
        assert!(Instant::now() < watchdog, "a revoked member still works");
        let tried = [
            fs::write(bench.path(&format!("a/d/later-{n}")), "x").err(),
            fs::read(bench.path("a/d/file")).err(),
            fs::read_dir(bench.path("a")).err(),
            fs::File::open(bench.path("a")).and_then(|root| root.sync_all()).err(),
        ];
        for error in tried.iter().flatten() {
            let eacces = rustix::io::Errno::ACCESS.raw_os_error();
            assert_eq!(error.raw_os_error(), Some(eacces), "{tried:?}");
        }
        denied += usize::from(tried.iter().all(Option::is_some));
        if denied == 3 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Ending it says what is lost, and does not wait for a server either.
    let _ = bench.run(&["umount", "a"]);
}

/// Two machines of one name, of which neither says another.
#[test]
fn a_name_that_is_taken_costs_no_invitation() {
    let joined = Joined::new();
    let bench = &joined.cell.bench;
    let name = rustix::system::uname().nodename().to_str().expect("a name").to_owned();
    let first = bench.json(&["ringer", "join", &joined.invite(&[]), "a.keys"]);
    assert_eq!(first["member"], name.as_str());
    let token = joined.invite(&[]);
    let said = bench.fails(1, &["ringer", "join", &token, "b.keys"]);
    assert!(said.contains(&format!("'{name}'")) && said.contains("--name"), "{said}");
    assert!(!bench.path("b.keys/client-cert.pem").exists());
    // Also one that was sent away keeps its name.
    bench.ok(&["ringer", "revoke", &joined.address, &name, "--tls-certificates", "pki"]);
    let said = bench.fails(1, &["ringer", "join", &token, "b.keys"]);
    assert!(said.contains("revoked"), "{said}");
    bench.ok(&["ringer", "join", &token, "b.keys", "--name", "another"]);
    let members = ["ringer", "members", &joined.address, "--tls-certificates", "pki"];
    let members = bench.json(&members);
    let names: Vec<_> = members.as_array().unwrap().iter().map(|m| m["name"].clone()).collect();
    assert!(
        names.contains(&name.as_str().into()) && names.contains(&"another".into()),
        "{names:?}"
    );
}
