//! A cell on three members of etcd with two servers, through the real command, and what befalls them:
//! nothing that `fsync` has acknowledged is lost, and service is back soon.

use crate::ringer::kill;
use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_ringer_server::testing::{Cluster, Lossy};

/// What the service may be interrupted for.
const LIMIT: Duration = Duration::from_secs(10);

/// When whatever a fault leads to has begun: the session of a dead server is over by then.
const CALM: Duration = Duration::from_secs(8);

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
        let args = ["ringer", "mount", &addresses, name, "--store", &store, "--patience", "60"];
        self.bench.ok(&[&args[..], &["--background", "--pid-file", &pid]].concat());
        dir
    }

    /// Which server owns the cell, as soon as one does.
    fn owner(&self) -> usize {
        let end = Instant::now() + LIMIT;
        loop {
            let ran = self.bench.run(&["ringer", "status", &self.addresses(), "--json"]);
            if let Ok(status) = serde_json::from_str::<serde_json::Value>(&ran.out) {
                let servers = status["servers"].as_array().expect("several");
                let owners: Vec<usize> =
                    (0..2).filter(|&n| servers[n]["role"] == "owner").collect();
                let [owner] = owners[..] else { panic!("{servers:?}") };
                return owner;
            }
            assert!(Instant::now() < end, "nobody owns the cell: {ran:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
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
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(leader) = self.etcd.leader() {
                self.etcd.kill(leader);
                return leader;
            }
            assert!(Instant::now() < end, "etcd has no leader");
        }
    }

    /// The owner and etcd do not hear of each other. Returns once it refuses, and after how long.
    fn cut_owner(&self) -> (usize, Duration) {
        let owner = self.owner();
        let begun = Instant::now();
        self.links[owner].iter().for_each(Lossy::cut);
        loop {
            let ran = self.bench.run(&["ringer", "status", &self.address(owner)]);
            if ran.code == 1 && ran.err.contains("is a standby") {
                return (owner, begun.elapsed());
            }
            assert!(begun.elapsed() < LIMIT, "it does not refuse: {ran:#?}");
        }
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
    /// When each was acknowledged.
    done: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

fn content(n: usize) -> Vec<u8> {
    n.to_string().into_bytes().repeat(n % 300 + 1)
}

impl Work {
    fn start(dir: PathBuf) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
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
                acknowledged.lock().unwrap().push(Instant::now());
            }
        });
        let work = Self { stop, done, thread: Some(thread) };
        let end = Instant::now() + LIMIT;
        while work.count() == 0 {
            assert!(Instant::now() < end, "nothing is acknowledged");
            std::thread::sleep(Duration::from_millis(5));
        }
        work
    }

    fn count(&self) -> usize {
        self.done.lock().unwrap().len()
    }

    /// The longest time after `fault` in which nothing was acknowledged, once work goes on.
    fn interruption(&self, fault: Instant) -> Duration {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let done = self.done.lock().unwrap().clone();
            let from = done.partition_point(|at| *at < fault).saturating_sub(1);
            let longest = done[from..].windows(2).map(|w| w[1] - w[0]).max();
            let goes_on = done.last().is_some_and(|at| at.elapsed() < Duration::from_millis(500));
            if let (Some(longest), true, true) = (longest, goes_on, fault.elapsed() > CALM) {
                return longest;
            }
            assert!(fault.elapsed() < Duration::from_secs(40), "service does not come back");
        }
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

/// One fault, and how long the service was interrupted.
fn befall(cell: &mut Cell, work: &Work, fault: &str) -> Duration {
    let begun = Instant::now();
    let took = match fault {
        "a killed server" => {
            cell.kill_owner();
            let took = work.interruption(begun);
            cell.restart_dead();
            took
        }
        "a killed etcd leader" => {
            let leader = cell.kill_leader();
            let took = work.interruption(begun);
            cell.etcd.restart(leader);
            took
        }
        _ => {
            let (owner, refused) = cell.cut_owner();
            println!("the server that is cut off refuses after {refused:?}");
            let took = work.interruption(begun);
            assert_ne!(cell.owner(), owner);
            cell.links[owner].iter().for_each(Lossy::heal);
            took
        }
    };
    println!("{fault}: nothing is acknowledged for {took:?}");
    assert!(took < LIMIT, "{fault}: {took:?}");
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
