//! A cell on three members of etcd with two servers, through the real command, and what befalls them:
//! nothing that `fsync` has acknowledged is lost, and service is back.

use crate::ringer::kill;
use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_ringer_server::testing::{Cluster, Lossy};
use weft_testing::{wait_for, wait_until};

struct Cell {
    bench: Bench,
    etcd: Cluster,
    /// Between each server and each member.
    links: Vec<Vec<Lossy>>,
}

impl Cell {
    /// `None` where there is no etcd, or nothing can be mounted.
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let etcd = Cluster::start(3)?;
        let links = |_| (0..3).map(|member| Lossy::new(etcd.port(member))).collect();
        let links = (0..2).map(links).collect();
        let cell = Self { bench: Bench::new(), etcd, links };
        for server in 0..2 {
            cell.serve(server);
        }
        Some(cell)
    }

    fn address(&self, server: usize) -> String {
        format!("unix:{}", self.bench.path(&format!("s{server}")).display())
    }

    fn addresses(&self) -> String {
        [self.address(0), self.address(1)].join(",")
    }

    fn serve(&self, server: usize) {
        let members: Vec<String> = self.links[server].iter().map(Lossy::endpoint).collect();
        let (members, pid) = (members.join(","), format!("server{server}.pid"));
        let address = self.address(server);
        let args = ["ringer", "serve", "family", "--etcd", &members, "--listen", &address];
        let out = self.bench.json(&[&args[..], &["--background", "--pid-file", &pid]].concat());
        assert_eq!(out["addresses"][0], address);
    }

    fn mount(&self, name: &str) -> PathBuf {
        let dir = self.bench.path(name);
        fs::create_dir(&dir).unwrap();
        let (store, pid) = (format!("{name}.store"), format!("{name}.pid"));
        let addresses = self.addresses();
        let args = ["ringer", "mount", &addresses, name, "--store", &store, "--patience", "3600"];
        self.bench.ok(&[&args[..], &["--background", "--pid-file", &pid]].concat());
        dir
    }

    /// Which server owns the cell, as soon as one does.
    fn owner(&self) -> usize {
        wait_for("a server owns the cell", || {
            let ran = self.bench.run(&["ringer", "status", &self.addresses(), "--json"]);
            let Ok(status) = serde_json::from_str::<serde_json::Value>(&ran.out) else {
                return Err(ran);
            };
            let servers = status["servers"].as_array().expect("several");
            let owners: Vec<usize> = (0..2).filter(|&n| servers[n]["role"] == "owner").collect();
            let [owner] = owners[..] else { panic!("{servers:?}") };
            Ok(owner)
        })
    }

    /// Kills the server that owns the cell; another, fresh one is in its place afterwards.
    fn kill_owner(&self) {
        let owner = self.owner();
        kill(&self.bench, &format!("server{owner}"));
    }

    fn restart_dead(&self) {
        for server in 0..2 {
            let pid = fs::read_to_string(self.bench.path(&format!("server{server}.pid"))).unwrap();
            if !Path::new(&format!("/proc/{}", pid.trim())).exists() {
                self.serve(server);
            }
        }
    }

    fn kill_leader(&mut self) -> usize {
        let leader = wait_for("etcd has a leader", || self.etcd.leader().ok_or("none"));
        self.etcd.kill(leader);
        leader
    }

    /// The owner and etcd do not hear of each other. Returns once it refuses, and after how long.
    fn cut_owner(&self) -> (usize, Duration) {
        let owner = self.owner();
        let begun = Instant::now();
        self.links[owner].iter().for_each(Lossy::cut);
        wait_for("it refuses", || {
            let ran = self.bench.run(&["ringer", "status", &self.address(owner)]);
            if ran.code == 1 && ran.err.contains("is a standby") { Ok(()) } else { Err(ran) }
        });
        (owner, begun.elapsed())
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        for name in ["a", "b"] {
            let _ = self.bench.run(&["umount", "--lazy", name]);
            kill(&self.bench, name);
        }
        for server in 0..2 {
            kill(&self.bench, &format!("server{server}"));
        }
    }
}

/// Makes files all the time, each durable before the next is begun.
struct Work {
    stop: Arc<AtomicBool>,
    /// How many were acknowledged.
    done: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

fn content(n: usize) -> Vec<u8> {
    n.to_string().into_bytes().repeat(n % 300 + 1)
}

impl Work {
    fn start(dir: PathBuf) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_over, acknowledged) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            for n in 0.. {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let mut file = File::create(dir.join(format!("{n}.new"))).unwrap();
                file.write_all(&content(n)).unwrap();
                fs::rename(dir.join(format!("{n}.new")), dir.join(n.to_string())).unwrap();
                file.sync_all().unwrap();
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
        });
        let work = Self { stop, done, thread: Some(thread) };
        work.goes_on();
        work
    }

    fn count(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }

    /// Waits until files are acknowledged that were begun after this call: the first may have been
    /// under way.
    fn goes_on(&self) {
        let before = self.count();
        wait_until("files are acknowledged", || self.count() > before + 1);
    }

    /// Ends it, and tells how many were acknowledged.
    fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("once").join().expect("every call succeeds");
        self.count()
    }
}

/// Everything that was acknowledged is there, seen from another machine.
fn judge(other: &Path, count: usize) {
    for n in 0..count {
        let found = fs::read(other.join(n.to_string()));
        let found = found.unwrap_or_else(|e| panic!("{n} of {count} was acknowledged: {e}"));
        assert!(found == content(n), "{n} is not what was written");
    }
    assert!(fs::read_dir(other).unwrap().count() <= count + 1);
}

/// One fault, and after how long the service was back: a measurement.
fn befall(cell: &mut Cell, work: &Work, fault: &str) -> Duration {
    let begun = Instant::now();
    match fault {
        "a killed server" => {
            cell.kill_owner();
            work.goes_on();
            cell.restart_dead();
        }
        "a killed etcd leader" => {
            let leader = cell.kill_leader();
            work.goes_on();
            cell.etcd.restart(leader);
        }
        _ => {
            let (owner, refused) = cell.cut_owner();
            println!("the server that is cut off refuses after {refused:?}");
            work.goes_on();
            assert_ne!(cell.owner(), owner);
            cell.links[owner].iter().for_each(Lossy::heal);
        }
    }
    let took = begun.elapsed();
    println!("{fault}: work goes on after {took:?}");
    took
}

const FAULTS: [&str; 3] = ["a killed server", "a killed etcd leader", "a server cut off from etcd"];

#[test]
fn nothing_acknowledged_is_lost_when_servers_change() {
    let Some(mut cell) = Cell::new() else { return };
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let work = Work::start(a);
    for fault in FAULTS {
        befall(&mut cell, &work, fault);
    }
    let count = work.end();
    println!("{count} files were acknowledged");
    judge(&b, count);
    cell.bench.ok(&["ringer", "doctor", &cell.addresses()]);
}

/// For an eighth of `WEFT_LONG_SECONDS`.
#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn servers_change_for_a_long_time() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(600_u64) / 8);
    let Some(mut cell) = Cell::new() else { return };
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let work = Work::start(a);
    let mut took: [Vec<Duration>; 3] = Default::default();
    for round in 0.. {
        if round >= 3 && Instant::now() > end {
            break;
        }
        took[round % 3].push(befall(&mut cell, &work, FAULTS[round % 3]));
    }
    let count = work.end();
    judge(&b, count);
    cell.bench.ok(&["ringer", "doctor", &cell.addresses()]);
    for (fault, mut took) in FAULTS.into_iter().zip(took) {
        took.sort();
        println!(
            "{fault}: {} times, median {:?}, worst {:?}",
            took.len(),
            took[took.len() / 2],
            took[took.len() - 1]
        );
    }
    println!("{count} files were acknowledged");
}
