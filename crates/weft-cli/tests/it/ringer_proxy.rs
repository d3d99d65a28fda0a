//! A server in front of another, through the real command: two mounts behind it and one directly at
//! the cell's own server are one folder, whichever of the servers dies.

use crate::ringer::{Cell, EPOCH, mount};
use crate::run::{Bench, can_mount};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weft_testing::wait_for;

pub struct Proxy {
    pub cell: Cell,
}

impl Proxy {
    pub fn new() -> Self {
        let proxy = Self { cell: Cell::new() };
        proxy.begin();
        proxy
    }

    fn address(&self) -> String {
        format!("unix:{}", self.cell.bench.path("f").display())
    }

    fn begin(&self) {
        let parent = format!("unix:{}", self.cell.bench.path("s").display());
        let address = self.address();
        let args = ["ringer", "serve", "proxy", "--upstream", &parent, "--listen", &address];
        let more = ["--background", "--pid-file", "proxy.pid"];
        let out = self.cell.bench.json(&[&args[..], &more].concat());
        assert_eq!(out["addresses"][0], address);
    }

    pub fn mount(&self, name: &str) -> PathBuf {
        self.cell.mount_by(name, &self.address())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cell.kill("proxy");
    }
}

/// Every mount sees at once what any other wrote, while all have the file open.
fn is_one_file(mounts: &[PathBuf], name: &str) {
    let open = |dir: &PathBuf| OpenOptions::new().read(true).write(true).open(dir.join(name));
    let files: Vec<File> = mounts.iter().map(|dir| open(dir).expect("the file")).collect();
    for round in 0..12_u8 {
        let writer = usize::from(round) % files.len();
        files[writer].write_all_at(&[round + 1; 100], u64::from(round) * 50).unwrap();
        for (reader, file) in files.iter().enumerate() {
            let mut seen = [0; 100];
            file.read_exact_at(&mut seen, u64::from(round) * 50).unwrap();
            assert_eq!(seen, [round + 1; 100], "{writer} wrote, {reader} read");
        }
    }
}

fn sync(dir: &Path) {
    File::open(dir).and_then(|d| d.sync_all()).expect("synced");
}

#[test]
fn mounts_behind_a_proxy_are_the_same_folder() {
    if !can_mount() {
        return;
    }
    let proxy = Proxy::new();
    let mounts = [proxy.mount("a"), proxy.mount("b"), proxy.cell.mount("c")];
    let [a, b, c] = &mounts;
    fs::create_dir_all(a.join("d/e")).unwrap();
    fs::write(a.join("d/e/big"), vec![7; 1 << 20]).unwrap();
    for dir in &mounts {
        assert!(fs::read(dir.join("d/e/big")).unwrap() == vec![7; 1 << 20]);
    }
    // Names that come and go, wherever.
    for (n, dir) in mounts.iter().enumerate() {
        fs::write(dir.join(format!("d/{n}")), [n as u8]).unwrap();
        for other in &mounts {
            assert_eq!(fs::read(other.join(format!("d/{n}"))).unwrap(), [n as u8]);
        }
        fs::rename(dir.join(format!("d/{n}")), dir.join(format!("d/e/{n}"))).unwrap();
        for other in &mounts {
            assert!(!other.join(format!("d/{n}")).exists());
            assert_eq!(fs::read_dir(other.join("d/e")).unwrap().count(), 2 + n);
        }
    }
    fs::write(b.join("shared"), [0; 4096]).unwrap();
    is_one_file(&mounts, "shared");
    // Questions are passed on, and answered by who has the records.
    let bench = &proxy.cell.bench;
    let found = bench.json(&["ringer", "search", &proxy.address(), "big"]);
    assert!(found.to_string().contains("d/e/big"), "{found}");
    assert_eq!(bench.run(&["ringer", "doctor", &proxy.address()]).code, 0);
    // A lock that one has nobody else gets.
    let locked = File::open(a.join("shared")).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for dir in [b, c] {
        let other = File::open(dir.join("shared")).unwrap();
        let taken = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(taken.is_err(), "{dir:?} has the lock too");
    }
}

/// The proxy calls the cell's server over TCP and TLS, as one at another site does.
#[test]
fn a_proxy_over_tls_is_the_same_folder() {
    if !can_mount() {
        return;
    }
    let two = Proxy { cell: Cell { bench: Bench::new() } };
    let bench = &two.cell.bench;
    bench.ok(&["ringer", "init", "pki", "--host", "127.0.0.1"]);
    let background = |name| ["--background", "--pid-file", name];
    let listen = ["--listen", "127.0.0.1:0", "--tls-certificates", "pki"];
    let serve = |args: &[&str], pid| {
        let out = bench.json(&[&["ringer", "serve"][..], args, &listen, &background(pid)].concat());
        out["addresses"][0].as_str().unwrap().to_owned()
    };
    let server = serve(&["cell"], "server.pid");
    let proxy =
        serve(&["proxy", "--upstream", &server, "--upstream-certificates", "pki"], "proxy.pid");
    let certificates = ["--tls-certificates", "pki"];
    let a = mount(bench, "a", &proxy, &certificates);
    let b = mount(bench, "b", &server, &certificates);
    fs::write(a.join("file"), "from a").unwrap();
    assert_eq!(fs::read_to_string(b.join("file")).unwrap(), "from a");
    fs::write(b.join("file"), "from b").unwrap();
    assert_eq!(fs::read_to_string(a.join("file")).unwrap(), "from b");
}

#[test]
fn a_proxy_that_dies_holds_up_nobody_for_long() {
    if !can_mount() {
        return;
    }
    let proxy = Proxy::new();
    let mounts = [proxy.mount("a"), proxy.mount("b"), proxy.cell.mount("c")];
    let [a, b, c] = &mounts;
    fs::write(a.join("synced"), b"s").unwrap();
    sync(a);
    fs::write(a.join("later"), b"l").unwrap();
    assert_eq!(fs::read(b.join("synced")).unwrap(), b"s");
    proxy.cell.kill("proxy");
    // What is held is read on, and what a proxy gave away is its clients' until its epoch ends.
    assert_eq!(fs::read(b.join("synced")).unwrap(), b"s");
    wait_for("a change elsewhere is made", || fs::write(c.join("synced"), b"t"));
    proxy.begin();
    wait_for("the proxy's clients are served", || fs::write(b.join("back"), b"b"));
    wait_for("what was not sent yet", || fs::metadata(c.join("later")).map(|_| ()));
    for dir in &mounts {
        wait_for("the change", || {
            let seen = fs::read(dir.join("synced"))?;
            assert_eq!(seen, b"t", "{dir:?}: stale");
            Ok::<_, std::io::Error>(())
        });
        assert_eq!(fs::read(dir.join("later")).unwrap(), b"l");
        assert_eq!(fs::read(dir.join("back")).unwrap(), b"b");
    }
    is_one_file(&mounts, "synced");
}

#[test]
fn a_parent_that_is_away_for_a_while_is_gone_on_with() {
    if !can_mount() {
        return;
    }
    let proxy = Proxy::new();
    let mounts = [proxy.mount("a"), proxy.mount("b"), proxy.cell.mount("c")];
    let [a, b, _] = &mounts;
    fs::write(a.join("f"), vec![1; 4096]).unwrap();
    sync(a);
    assert_eq!(fs::read(b.join("f")).unwrap().len(), 4096);
    proxy.cell.kill("server");
    // Under leases all goes on.
    assert_eq!(fs::read(b.join("f")).unwrap().len(), 4096);
    assert_eq!(fs::metadata(a.join("f")).unwrap().len(), 4096);
    proxy.cell.serve();
    is_one_file(&mounts, "f");
    // For longer than anybody may vouch for anything: nothing is answered that might not be so.
    proxy.cell.kill("server");
    std::thread::sleep(EPOCH * 2);
    proxy.cell.serve();
    wait_for("after the epoch", || fs::write(a.join("g"), b"g"));
    for dir in &mounts {
        wait_for("the other's change", || {
            assert_eq!(fs::read(dir.join("g"))?, b"g");
            Ok::<_, std::io::Error>(())
        });
    }
    is_one_file(&mounts, "f");
}
