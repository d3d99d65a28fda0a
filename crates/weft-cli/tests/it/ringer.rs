//! The shared file service through the real command: a server, two mounts, and what befalls them.

use crate::run::{Bench, can_mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_testing::{ends, wait_for, wait_until};

/// How long the leases of a client that died hold.
pub const EPOCH: Duration = Duration::from_secs(3);

/// A cell in a directory of its own; whatever a test does, nothing stays mounted or running.
pub struct Cell {
    pub bench: Bench,
}

impl Cell {
    pub fn new() -> Self {
        let cell = Self { bench: Bench::new() };
        cell.serve();
        cell
    }

    /// One in which the lease of a client that died outlasts any test.
    pub fn with_long_leases() -> Self {
        let cell = Self { bench: Bench::new() };
        serve_for(&cell.bench, "cell", &cell.address(), "server.pid", Duration::from_secs(3600));
        cell
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.bench.path("s").display())
    }

    pub fn serve(&self) {
        serve(&self.bench, "cell", &self.address(), "server.pid");
    }

    /// Mounts the cell as client `name`, on the directory of that name.
    pub fn mount(&self, name: &str) -> PathBuf {
        self.mount_by(name, &self.address())
    }

    /// The same by another way to the server.
    pub fn mount_by(&self, name: &str, address: &str) -> PathBuf {
        mount(&self.bench, name, address, &[])
    }

    pub fn kill(&self, name: &str) {
        kill(&self.bench, name);
    }

    fn status(&self) -> serde_json::Value {
        self.bench.json(&["ringer", "status", &self.address()])
    }
}

/// Kills, with no chance to clean up, the process that has written `NAME.pid`.
pub fn kill(bench: &Bench, name: &str) {
    let Ok(pid) = fs::read_to_string(bench.path(&format!("{name}.pid"))) else { return };
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).expect("a process id");
    if kill_process(pid, Signal::KILL).is_err() {
        return;
    }
    // It holds its sockets and locks until it has ended.
    wait_until("a killed process has ended", || has_ended(pid));
}

/// Returns true if a process has ended with all its threads. It is a child of init, which may not have
/// looked yet; a first thread that has ended leaves the files open while another one ends.
pub fn has_ended(pid: Pid) -> bool {
    let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return true };
    let is_zombie = stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z'));
    is_zombie && fs::read_dir(process.join("task")).map_or(true, |threads| threads.count() <= 1)
}

impl Drop for Cell {
    fn drop(&mut self) {
        end_mounts(&self.bench);
        self.kill("server");
    }
}

/// Serves a cell at an address.
pub fn serve(bench: &Bench, cell: &str, address: &str, pid_file: &str) {
    serve_for(bench, cell, address, pid_file, EPOCH);
}

fn serve_for(bench: &Bench, cell: &str, address: &str, pid_file: &str, epoch: Duration) {
    let epoch = epoch.as_secs().to_string();
    let args = ["ringer", "serve", cell, "--listen", address, "--epoch", &epoch];
    let out = bench.json(&[&args[..], &["--background", "--pid-file", pid_file]].concat());
    assert_eq!(out["addresses"][0], address);
}

/// Mounts a cell as client `name`, on the directory of that name.
pub fn mount(bench: &Bench, name: &str, address: &str, more: &[&str]) -> PathBuf {
    let dir = bench.path(name);
    // It is there already, and not to be looked at, where an earlier mount has died.
    let _ = fs::create_dir(&dir);
    let (store, pid) = (format!("{name}.store"), format!("{name}.pid"));
    let args = ["ringer", "mount", address, name, "--store", &store];
    bench.ok(&[&args[..], more, &["--background", "--pid-file", &pid]].concat());
    dir
}

/// Nothing that a test has mounted as `a`, `b` and `c` stays.
pub fn end_mounts(bench: &Bench) {
    for name in ["a", "b", "c"] {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = bench.run(&["umount", "--lazy", name]);
        kill(bench, name);
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 97) % 251) as u8).collect()
}

#[test]
fn two_mounts_are_one_folder() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));

    // What is written and closed on one is there on the other.
    fs::create_dir_all(a.join("d/e")).unwrap();
    for (n, len) in [0, 1, 4096, 70_000, 1 << 20, 5_000_001].into_iter().enumerate() {
        let name = format!("d/e/{len}");
        fs::write(a.join(&name), pattern(n, len)).unwrap();
        assert!(fs::read(b.join(&name)).unwrap() == pattern(n, len), "{len}");
    }
    let names = |dir: PathBuf| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(a.join("d/e")), names(b.join("d/e")));
    assert_eq!(names(b.join("d/e")).len(), 6);

    // More than close-to-open: both hold the file open, and each sees what the other writes at once.
    fs::write(a.join("shared"), pattern(1, 300_000)).unwrap();
    let open = |dir: &PathBuf| OpenOptions::new().read(true).write(true).open(dir.join("shared"));
    let (fa, fb) = (open(&a).unwrap(), open(&b).unwrap());
    for round in 0..30_u8 {
        let (writer, reader) = if round % 2 == 0 { (&fa, &fb) } else { (&fb, &fa) };
        let at = u64::from(round) * 9_999;
        let mut seen = [0; 100];
        reader.read_exact_at(&mut seen, at).unwrap();
        writer.write_all_at(&[round; 100], at).unwrap();
        reader.read_exact_at(&mut seen, at).unwrap();
        assert_eq!(seen, [round; 100], "round {round}: stale");
    }
    writer_cuts_reader_sees(&fa, &fb);

    // Appends to one file from both sides.
    let append = |dir: &PathBuf| OpenOptions::new().append(true).create(true).open(dir.join("log"));
    let (mut la, mut lb) = (append(&a).unwrap(), append(&b).unwrap());
    for i in 0..20 {
        let log = if i % 2 == 0 { &mut la } else { &mut lb };
        writeln!(log, "line {i:03}").unwrap();
    }
    let want: String = (0..20).map(|i| format!("line {i:03}\n")).collect();
    assert_eq!(fs::read_to_string(a.join("log")).unwrap(), want);
    assert_eq!(fs::read_to_string(b.join("log")).unwrap(), want);

    // Names.
    fs::rename(b.join("d/e"), b.join("moved")).unwrap();
    assert!(!a.join("d/e").exists() && a.join("moved/4096").exists());
    assert!(!b.join("new").exists());
    fs::write(a.join("new"), b"").unwrap();
    assert!(b.join("new").exists(), "that a name is absent is not remembered");
    let error = fs::rename(a.join("d"), a.join("d/inside")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22));

    // A file that is open outlives its name, on both.
    fs::remove_file(a.join("shared")).unwrap();
    assert!(!b.join("shared").exists());
    let mut left = Vec::new();
    (&fb).seek(SeekFrom::Start(0)).unwrap();
    (&fb).read_to_end(&mut left).unwrap();
    assert_eq!(left.len(), 1234);
    drop((fa, fb, la, lb));

    // Attributes.
    rustix::fs::chmod(a.join("new"), rustix::fs::Mode::from_raw_mode(0o751)).unwrap();
    std::os::unix::fs::symlink("moved/1", b.join("link")).unwrap();
    fs::hard_link(a.join("new"), a.join("newer")).unwrap();
    let meta = fs::metadata(b.join("newer")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o751, 2));
    assert_eq!(fs::read(a.join("link")).unwrap(), pattern(1, 1));

    // What is searched for is found by whoever asks the server.
    let tags = "un,draft";
    rustix::fs::setxattr(
        a.join("new"),
        "user.xdg.tags",
        tags.as_bytes(),
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    File::open(&a).unwrap().sync_all().unwrap();
    let address = cell.address();
    let search = |query: &[&str]| {
        let args = [&["ringer", "search", &address], query].concat();
        cell.bench.json(&args)["paths"].clone()
    };
    assert_eq!(search(&["tag:un"]), serde_json::json!(["/new", "/newer"]));
    assert_eq!(search(&["tag:un", "newer"]), serde_json::json!(["/newer"]));
    assert_eq!(search(&["size>4M"]), serde_json::json!(["/moved/5000001"]));
    cell.bench.fails(1, &["ringer", "search", &cell.address(), "size>big"]);

    let status = cell.status();
    let clients = status["clients"].as_array().unwrap();
    assert_eq!(clients.iter().filter(|c| c["connected"] == true).count(), 2, "{status:#}");
    let text = cell.bench.ok(&["ringer", "status", &cell.address()]);
    assert_eq!(text.matches(" here ").count(), 2, "{text}");
    for name in ["a", "b"] {
        cell.bench.ok(&["umount", name]);
    }
    // Whoever left keeps no lease, as soon as the server has heard its last words.
    let holds = |c: &serde_json::Value| c["write_leases"] != 0 || c["read_leases"] != 0;
    wait_for("no client has a lease", || {
        let status = cell.status();
        if status["clients"].as_array().unwrap().iter().any(holds) { Err(status) } else { Ok(()) }
    });
}

fn writer_cuts_reader_sees(writer: &File, reader: &File) {
    writer.set_len(1234).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 1234);
    let mut buf = [0; 100];
    assert_eq!(reader.read_at(&mut buf, 1200).unwrap(), 34);
}

#[test]
fn a_killed_server_comes_back_to_the_same_folder() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    for round in 0..3 {
        // What a client has made it knows all of.
        fs::create_dir(a.join(format!("{round}"))).unwrap();
        let mut file = File::create(a.join(format!("{round}/synced"))).unwrap();
        file.write_all(&pattern(round, 50_000)).unwrap();
        file.sync_all().unwrap();
        fs::write(a.join(format!("{round}/written")), pattern(round, 3000)).unwrap();
        cell.kill("server");
        // Under its leases the writer goes on.
        fs::write(a.join(format!("{round}/meanwhile")), pattern(round, 100)).unwrap();
        cell.serve();
        for (name, len) in [("synced", 50_000), ("written", 3000), ("meanwhile", 100)] {
            let content = fs::read(b.join(format!("{round}/{name}"))).unwrap();
            assert!(content == pattern(round, len), "round {round}: {name}");
        }
        fs::write(b.join("theirs"), [round as u8]).unwrap();
        assert_eq!(fs::read(a.join("theirs")).unwrap(), [round as u8]);
    }
    assert_eq!(cell.status()["generation"], 4);
}

#[test]
fn the_leases_of_a_killed_client_run_out() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let mut file = File::create(a.join("file")).unwrap();
    file.write_all(&pattern(1, 100_000)).unwrap();
    file.sync_all().unwrap();
    // Another client has a copy by now.
    assert!(fs::read(b.join("file")).unwrap() == pattern(1, 100_000));
    fs::write(a.join("only here"), pattern(2, 5000)).unwrap();
    cell.kill("a");
    drop(file);
    // The directory is under the dead client's lease to write.
    let next = b.join("next");
    ends("the lease has run out", move || fs::write(next, b"after the lease")).unwrap();
    assert!(fs::read(b.join("file")).unwrap() == pattern(1, 100_000));
    // A dead mount is cleared away, and the client is the one it was: what it wrote last and nobody
    // was told of is there.
    cell.mount("a");
    assert_eq!(fs::read(a.join("next")).unwrap(), b"after the lease");
    fs::File::open(&a).unwrap().sync_all().unwrap();
    // Its new name is made still: it is in nobody's way.
    assert!(fs::read(b.join("only here")).unwrap() == pattern(2, 5000));
    assert_eq!(cell.bench.json(&["ringer", "conflicts", "a"]), serde_json::json!([]));
    // Each client has one connection and one identity.
    assert_eq!(cell.status()["clients"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_shared_says_why() {
    let bench = Bench::new();
    let err = bench.fails(2, &["ringer", "serve", "cell", "--listen", "0.0.0.0:0"]);
    assert!(err.contains("--tls-certificates"), "{err}");
    let err = bench.fails(2, &["ringer", "status", "unix:"]);
    assert!(err.contains("invalid address"), "{err}");
    let err = bench.fails(1, &["ringer", "status", "unix:nobody"]);
    assert!(err.contains("cannot connect"), "{err}");
    bench.write("cell", b"this is no cell, it is a text");
    let args = ["ringer", "serve", "cell", "--listen", "unix:s", "--background", "--quiet"];
    let err = bench.fails(1, &args);
    assert!(err.contains("cell"), "{err}");
    fs::create_dir(bench.path("m")).unwrap();
    let args =
        ["ringer", "mount", "unix:s", "m", "--store", "st", "--patience", "1", "--background"];
    let err = bench.fails(1, &args);
    assert!(err.contains("does not answer"), "{err}");
}

fn resolve<'a>(number: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["ringer", "resolve", "a", number][..], more].concat()
}

#[test]
fn a_conflict_is_listed_and_settled() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    fs::write(a.join("file"), b"first").unwrap();
    assert_eq!(fs::read(b.join("file")).unwrap(), b"first");
    fs::write(a.join("file"), b"mine!").unwrap();
    cell.kill("a");
    fs::write(b.join("file"), b"theirs").unwrap();
    cell.mount("a");
    assert_eq!(fs::read(a.join("file")).unwrap(), b"theirs");
    let list = cell.bench.json(&["ringer", "conflicts", "a"]);
    let [conflict] = &list.as_array().unwrap()[..] else { panic!("{list:#}") };
    assert_eq!(conflict["inode"], fs::metadata(b.join("file")).unwrap().ino());
    let number = conflict["number"].to_string();
    let resolve = |more: &[&'static str]| resolve(&number, more);
    cell.bench.fails(2, &resolve(&["--keep", "both"]));
    cell.bench.fails(1, &resolve(&["--keep", "both", "--as", "file"]));
    cell.bench.ok(&resolve(&["--keep", "both", "--as", "copy"]));
    assert_eq!(fs::read(b.join("copy")).unwrap(), b"mine!");
    assert_eq!(fs::read(b.join("file")).unwrap(), b"theirs");
    assert_eq!(cell.bench.json(&["ringer", "conflicts", "a"]), serde_json::json!([]));
    cell.bench.fails(1, &resolve(&["--keep", "mine"]));
    fs::create_dir(cell.bench.path("no cell")).unwrap();
    let err = cell.bench.fails(1, &["ringer", "conflicts", "no cell"]);
    assert!(err.contains("no cell is mounted on"), "{err}");
}

#[test]
fn query_folders_show_what_fits_now() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let tag = |path: PathBuf, tags: &str| {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.xdg.tags", tags.as_bytes(), none).unwrap();
    };
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    };
    for dir in ["x", "y"] {
        fs::create_dir(a.join(dir)).unwrap();
        fs::write(a.join(dir).join("notes"), dir).unwrap();
        tag(a.join(dir).join("notes"), "un,draft");
    }
    fs::write(a.join("plan"), "1").unwrap();
    let tagged = cell.bench.json(&["ringer", "tag", "a/plan", "--add", "un,late"]);
    assert_eq!(tagged[0]["tags"], serde_json::json!(["late", "un"]));
    let tagged = cell.bench.json(&["ringer", "tag", "a/plan", "a/x", "--remove", "late"]);
    assert_eq!(tagged[0]["tags"], serde_json::json!(["un"]));
    assert_eq!(tagged[1]["tags"], serde_json::json!([]));

    // At once, where it was tagged; on the other mount when the server knows, which this has told.
    let un = PathBuf::from(".query/tag:un & kind:file");
    assert_eq!(names(a.join(&un)), ["plan", "x:notes", "y:notes"]);
    assert_eq!(names(b.join(&un)), ["plan", "x:notes", "y:notes"]);
    assert_eq!(names(b.join(".query/tag:draft -plan")), ["x:notes", "y:notes"]);
    assert_eq!(fs::read(b.join(&un).join("y:notes")).unwrap(), b"y");
    assert_eq!(fs::read_link(b.join(&un).join("plan")).unwrap(), PathBuf::from("../../plan"));
    assert!(fs::symlink_metadata(b.join(&un).join("x")).is_err());
    let mut complete = [0; 8];
    let n = rustix::fs::getxattr(b.join(&un), "user.weft.complete", &mut complete[..]).unwrap();
    assert_eq!(&complete[..n], b"1");

    // A listing is never old.
    tag(b.join("x/notes"), "draft");
    fs::remove_file(b.join("y/notes")).unwrap();
    assert_eq!(names(b.join(&un)), ["plan"]);
    assert_eq!(names(a.join(&un)), ["plan"]);

    // They are in no listing, cannot be changed, and a bad query says so.
    assert_eq!(names(a.clone()), ["plan", "x", "y"]);
    assert_eq!(names(a.join(".query")), [""; 0]);
    let refused = |errno: rustix::io::Errno, what: std::io::Result<()>| {
        assert_eq!(what.unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
    };
    use rustix::io::Errno;
    refused(Errno::EXIST, fs::create_dir(a.join(".query")));
    assert!(fs::rename(a.join("x"), a.join(".query")).is_err());
    // For others than root the kernel looks at the mode first.
    let read_only = if rustix::process::geteuid().is_root() { Errno::ROFS } else { Errno::ACCESS };
    refused(read_only, fs::write(a.join(&un).join("new"), ""));
    refused(read_only, fs::remove_file(a.join(&un).join("plan")));
    refused(Errno::INVAL, fs::read_dir(a.join(".query/size>x")).map(drop));
    refused(Errno::INVAL, fs::read_dir(a.join(".query/tag:")).map(drop));
}
