//! Cells in cells through the real command: servers that are killed, mounts that are killed, and what
//! the kernel makes of it.

use crate::ringer::{self, kill};
use crate::run::{Bench, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::PathBuf;
use weft_testing::{wait_for, wait_until};

/// Three cells, `o`, `m` and `i`; whatever a test does, nothing stays mounted or running.
pub struct Cells {
    pub bench: Bench,
}

impl Cells {
    pub fn new() -> Self {
        let cells = Self { bench: Bench::new() };
        ["o", "m", "i"].iter().for_each(|name| cells.serve(name));
        cells
    }

    pub fn address(&self, name: &str) -> String {
        format!("unix:{}", self.bench.path(&format!("{name}.sock")).display())
    }

    fn serve(&self, name: &str) {
        let (cell, pid) = (format!("{name}.cell"), format!("{name}.server.pid"));
        ringer::serve(&self.bench, &cell, &self.address(name), &pid);
    }

    fn stop(&self, name: &str) {
        kill(&self.bench, &format!("{name}.server"));
    }

    /// Mounts cell `of` as client `name`, on the directory of that name.
    pub fn mount(&self, name: &str, of: &str) -> PathBuf {
        ringer::mount(&self.bench, name, &self.address(of), &["--patience", "3"])
    }

    pub fn attach(&self, path: &str, cell: &str) -> serde_json::Value {
        fs::create_dir(self.bench.path(path)).unwrap();
        self.bench.json(&["ringer", "attach", path, &self.address(cell)])
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        ringer::end_mounts(&self.bench);
        ["o", "m", "i"].iter().for_each(|name| self.stop(name));
    }
}

fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

fn names(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn nested_cells_are_one_folder_on_every_mount() {
    if !can_mount() {
        return;
    }
    let cells = Cells::new();
    let (a, b) = (cells.mount("a", "o"), cells.mount("b", "o"));
    let attached = cells.attach("a/m", "m");
    assert_eq!(attached["servers"], serde_json::json!([cells.address("m")]));
    cells.attach("a/m/i", "i");
    fs::create_dir_all(a.join("m/i/d")).unwrap();
    fs::write(a.join("m/i/d/deep"), vec![7; 300_000]).unwrap();
    assert!(fs::read(b.join("m/i/d/deep")).unwrap() == vec![7; 300_000]);
    fs::write(b.join("m/half"), b"way").unwrap();
    assert_eq!(fs::read(a.join("m/i/d/../../half")).unwrap(), b"way");
    assert_eq!(
        (names(a.clone()), names(a.join("m"))),
        (vec!["m".into()], vec!["half".into(), "i".into()])
    );

    // Numbers: one for each, the same in listings and on both mounts.
    let number = |dir: &PathBuf, path: &str| fs::metadata(dir.join(path)).unwrap().ino();
    let paths = ["", "m", "m/i", "m/i/d", "m/i/d/deep", "m/half"];
    let numbers: std::collections::BTreeSet<u64> = paths.iter().map(|p| number(&a, p)).collect();
    assert_eq!(numbers.len(), paths.len());
    assert!(paths.iter().all(|path| number(&a, path) == number(&b, path)));
    let listed = fs::read_dir(a.join("m/i/d")).unwrap().next().unwrap().unwrap().ino();
    assert_eq!(listed, number(&a, "m/i/d/deep"));

    // As between file systems.
    assert_eq!(errno(fs::rename(a.join("m/half"), a.join("half"))), 18);
    assert_eq!(errno(fs::hard_link(a.join("m/half"), a.join("m/i/half"))), 18);
    fs::copy(a.join("m/half"), a.join("m/i/half")).unwrap();
    assert_eq!(errno(fs::remove_dir(a.join("m"))), 16);
    fs::create_dir(a.join("empty")).unwrap();
    assert_eq!(errno(fs::rename(a.join("empty"), a.join("m"))), 16);
    fs::rename(a.join("m"), a.join("moved")).unwrap();
    assert_eq!(fs::read(b.join("moved/i/half")).unwrap(), b"way");
    fs::rename(b.join("moved"), b.join("m")).unwrap();

    // Inside it is a cell as any other: locks, snapshots, searches, attributes.
    let (la, lb) =
        (File::open(a.join("m/i/half")).unwrap(), File::open(b.join("m/i/half")).unwrap());
    la.lock().unwrap();
    assert!(matches!(lb.try_lock(), Err(fs::TryLockError::WouldBlock)));
    la.unlock().unwrap();
    lb.try_lock().unwrap();
    drop((la, lb));
    cells.bench.ok(&["ringer", "snapshot", "create", "a/m/i", "then"]);
    fs::write(b.join("m/i/half"), b"another").unwrap();
    assert_eq!(fs::read(a.join("m/i/.snapshots/then/half")).unwrap(), b"way");
    cells.bench.ok(&["ringer", "tag", "b/m/i/half", "--add", "un"]);
    File::open(b.join("m/i")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(a.join("m/i/.query/tag:un/half")).unwrap(), b"another");
    // What a snapshot around a cell mount shows in its place is the empty directory.
    cells.bench.ok(&["ringer", "snapshot", "create", "a/m", "around"]);
    assert_eq!(names(b.join("m/.snapshots/around/i")), Vec::<String>::new());

    // Who looks after a cell is told which.
    let status = cells.bench.json(&["ringer", "status", "a"]);
    let inside = status["cells"].as_array().unwrap();
    assert_eq!(inside.len(), 2, "{status:#}");
    assert!(inside.iter().all(|cell| cell["state"] == "connected"), "{status:#}");
    assert!(inside.iter().any(|cell| cell["cell"] == attached["cell"]), "{status:#}");
    let own = cells.bench.json(&["ringer", "status", "a/m"]);
    assert_eq!(own["cell"], attached["cell"]);
    let doctor = cells.bench.json(&["ringer", "doctor", &cells.address("m")]);
    assert_eq!((&doctor["cell"], &doctor["problem_count"]), (&attached["cell"], &0.into()));

    // A mount of the inner cell is the same folder.
    let c = cells.mount("c", "i");
    assert_eq!(names(c.clone()), ["d", "half"]);
    fs::write(c.join("from there"), b"x").unwrap();
    assert_eq!(fs::read(a.join("m/i/from there")).unwrap(), b"x");

    // What cannot be attached says why.
    let err = cells.bench.fails(1, &["ringer", "attach", "a/m", &cells.address("i")]);
    assert!(err.contains("already attached to a/m"), "{err}");
    fs::write(a.join("empty/no more"), b"").unwrap();
    let err = cells.bench.fails(1, &["ringer", "attach", "a/empty", &cells.address("i")]);
    assert!(err.contains("is not empty"), "{err}");
    fs::create_dir(a.join("m/i/circle")).unwrap();
    let err = cells.bench.fails(1, &["ringer", "attach", "a/m/i/circle", &cells.address("o")]);
    assert!(err.contains("below itself"), "{err}");
    let err = cells.bench.fails(1, &["ringer", "detach", "a/empty"]);
    assert!(err.contains("no cell is attached"), "{err}");

    cells.bench.ok(&["ringer", "detach", "b/m"]);
    assert_eq!(names(a.join("m")), Vec::<String>::new());
    fs::remove_dir(a.join("m")).unwrap();
    assert_eq!(names(c), ["circle", "d", "from there", "half"]);
    ["a", "b", "c"].iter().for_each(|name| drop(cells.bench.ok(&["umount", name])));
}

#[test]
fn a_cell_that_is_away_stops_nobody_but_who_walks_into_it() {
    if !can_mount() {
        return;
    }
    let cells = Cells::new();
    let a = cells.mount("a", "o");
    cells.attach("a/m", "m");
    cells.attach("a/i", "i");
    fs::write(a.join("m/file"), b"there").unwrap();
    fs::write(a.join("file"), b"here").unwrap();
    cells.stop("m");
    cells.stop("i");
    // One was walked into before, the other was not.
    let inside: Vec<_> = ["m/new", "i/new"]
        .map(|path| {
            let path = a.join(path);
            std::thread::spawn(move || errno(fs::read(path)))
        })
        .into_iter()
        .collect();
    // Meanwhile everybody goes on, also in the very directory.
    for round in 0..20_u32 {
        fs::write(a.join(format!("{round}")), b"on").unwrap();
        let shown: Vec<_> =
            fs::read_dir(&a).unwrap().map(|e| e.unwrap().metadata().unwrap().is_dir()).collect();
        assert_eq!(shown.iter().filter(|is_dir| **is_dir).count(), 2);
    }
    assert_eq!(fs::read(a.join("file")).unwrap(), b"here");
    // What is under leases is read, as far as they go; what is not fails, and is named.
    for thread in inside {
        let told = thread.join().unwrap();
        assert!(told == 110 || told == 2, "{told}");
    }
    let status = cells.bench.json(&["ringer", "status", "a"]);
    let states: Vec<_> = status["cells"].as_array().unwrap().iter().map(|c| &c["state"]).collect();
    assert!(states.iter().all(|s| *s == "away" || *s == "closed"), "{status:#}");
    assert!(status["cells"][0]["why"].as_str().unwrap().contains("cannot connect"), "{status:#}");
    cells.serve("m");
    cells.serve("i");
    for (path, content) in [("m/file", Some("there")), ("i/file", None)] {
        wait_for(&format!("{path} is what the server has"), || {
            match fs::read_to_string(a.join(path)) {
                Ok(found) if Some(found.as_str()) == content => Ok(()),
                Err(e) if content.is_none() && e.raw_os_error() == Some(2) => Ok(()),
                other => Err(other),
            }
        });
    }
    // A server that is away for good does not keep a cell mount from being taken away.
    cells.stop("i");
    cells.bench.ok(&["ringer", "detach", "a/i"]);
    fs::remove_dir(a.join("i")).unwrap();
}

#[test]
fn what_a_killed_mount_had_changed_in_an_inner_cell_is_not_lost() {
    if !can_mount() {
        return;
    }
    let cells = Cells::new();
    let a = cells.mount("a", "o");
    cells.attach("a/m", "m");
    cells.attach("a/m/i", "i");
    // What a client has made it knows all of.
    fs::create_dir(a.join("m/i/d")).unwrap();
    let mut synced = File::create(a.join("m/i/d/synced")).unwrap();
    synced.write_all(&[1; 70_000]).unwrap();
    synced.sync_all().unwrap();
    cells.stop("i");
    // Under its leases it goes on, and its server hears nothing of it.
    let mut more = OpenOptions::new().append(true).open(a.join("m/i/d/synced")).unwrap();
    more.write_all(b"more").unwrap();
    fs::write(a.join("m/i/d/new"), b"only here").unwrap();
    drop((synced, more));
    cells.bench.ok(&["umount", "--lazy", "a"]);
    kill(&cells.bench, "a");
    cells.serve("i");
    // The next life sends it, though nobody walks in there.
    let a = cells.mount("a", "o");
    let c = cells.mount("c", "i");
    wait_until("what was only there is sent", || c.join("d/new").exists());
    assert_eq!(fs::read(c.join("d/new")).unwrap(), b"only here");
    assert_eq!(fs::metadata(c.join("d/synced")).unwrap().len(), 70_004);
    assert_eq!(fs::read(a.join("m/i/d/new")).unwrap(), b"only here");
    assert_eq!(cells.bench.json(&["ringer", "conflicts", "a/m/i"]), serde_json::json!([]));
    // And what was changed last is with the servers once it is unmounted.
    fs::write(a.join("m/i/d/last"), b"words").unwrap();
    cells.bench.ok(&["umount", "a"]);
    wait_until("the last change is with the server", || c.join("d/last").exists());
}

#[test]
fn a_mount_is_searched_with_the_cells_in_it() {
    if !can_mount() {
        return;
    }
    let cells = Cells::new();
    let a = cells.mount("a", "o");
    cells.attach("a/m", "m");
    let inner = cells.attach("a/m/i", "i");
    for path in ["a/one", "a/m/two", "a/m/i/three"] {
        fs::write(cells.bench.path(path), b"x").unwrap();
        cells.bench.ok(&["ringer", "tag", path, "--add", "un"]);
    }
    let found = cells.bench.json(&["ringer", "search", "a", "tag:un"]);
    assert_eq!(found["paths"], serde_json::json!(["/m/i/three", "/m/two", "/one"]));
    assert_eq!(found["complete"], true);
    // A link leads there.
    assert_eq!(fs::read(a.join(".query/tag:un/three")).unwrap(), b"x");
    let found = cells.bench.json(&["ringer", "search", "a", "tag:deux"]);
    let states: Vec<_> = found["cells"].as_array().unwrap().iter().map(|c| &c["state"]).collect();
    assert_eq!(states, ["complete", "pruned", "pruned"], "{found:#}");
    cells.stop("i");
    let found = cells.bench.json(&["ringer", "search", "a", "tag:un"]);
    assert_eq!(
        (&found["complete"], &found["paths"]),
        (&false.into(), &serde_json::json!(["/m/two", "/one"]))
    );
    let last = &found["cells"][2];
    assert_eq!((&last["cell"], &last["path"]), (&inner["cell"], &"/m/i".into()));
    assert_eq!(last["state"], "unreachable");
    let ran = cells.bench.run(&["ringer", "search", "a", "tag:un"]);
    assert!(ran.err.contains("is unreachable: cannot connect"), "{ran:?}");
    cells.bench.fails(2, &["ringer", "search", "a", "name:a/b"]);
}

#[test]
fn each_cell_has_an_authority_of_its_own() {
    if !can_mount() {
        return;
    }
    let cells = Cells { bench: Bench::new() };
    let bench = &cells.bench;
    let serve = |name: &str| {
        let (cell, pki, pid) =
            (format!("{name}.cell"), format!("{name}.pki"), format!("{name}.server.pid"));
        bench.ok(&["ringer", "init", &pki, "--host", "localhost"]);
        let args =
            ["ringer", "serve", &cell, "--listen", "localhost:0", "--tls-certificates", &pki];
        let served = bench.json(&[&args[..], &["--background", "--pid-file", &pid]].concat());
        let address = served["addresses"][0].as_str().unwrap().to_owned();
        let invited = bench.ok(&["ringer", "invite", &address, "--tls-certificates", &pki]);
        (address, invited.trim().to_owned())
    };
    let ((outer, outer_token), (inner, inner_token)) = (serve("o"), serve("i"));
    bench.ok(&["ringer", "join", &outer_token, "o.keys", "--name", "me"]);
    let a = bench.path("a");
    fs::create_dir(&a).unwrap();
    let args =
        ["ringer", "mount", &outer, "a", "--store", "a.store", "--tls-certificates", "o.keys"];
    let more = ["--cells-certificates", "keys", "--background", "--pid-file", "a.pid"];
    bench.ok(&[&args[..], &more].concat());
    fs::create_dir(a.join("i")).unwrap();
    bench.ok(&["ringer", "attach", "a/i", &inner, "--tls-certificates", "i.pki"]);

    // A mount without a certificate of that cell is refused, and the error says what is missing.
    assert_eq!(
        errno(fs::read_dir(a.join("i")).and_then(Iterator::collect::<Result<Vec<_>, _>>)),
        13
    );
    let status = bench.json(&["ringer", "status", "a"]);
    assert!(status["cells"][0]["why"].as_str().unwrap().contains("no certificates"), "{status:#}");
    let found = bench.json(&["ringer", "search", "a", "kind:file"]);
    assert_eq!(found["cells"][1]["state"], "refused", "{found:#}");

    bench.ok(&["ringer", "join", &inner_token, "keys", "--name", "me", "--by-cell"]);
    fs::write(a.join("i/file"), b"inside").unwrap();
    assert_eq!(fs::read(a.join("i/file")).unwrap(), b"inside");
    let found = bench.json(&["ringer", "search", "a", "kind:file"]);
    assert_eq!(
        (&found["paths"], &found["complete"]),
        (&serde_json::json!(["/i/file"]), &true.into())
    );
    bench.ok(&["umount", "a"]);
}
