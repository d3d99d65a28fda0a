//! Mounts under soft updates that are killed in a row: each mount reclaims what the kill before it has
//! left, so that nothing adds up.

use crate::run::{Bench, can_mount, tool};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A generator of random numbers (xorshift): the crate under test is a program.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Makes, removes and renames files and directories, until it is told to stop. Errors of single calls do
/// not matter: the mount ends in the middle of one.
fn work(root: &Path, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    let dirs = ["a", "b", "c", "d"].map(|name| root.join(format!("{name}{}", seed % 7)));
    for dir in &dirs {
        let _ = std::fs::create_dir_all(dir);
    }
    while !stop.load(Ordering::Relaxed) {
        let path = |random: &mut Random| {
            let dir = &dirs[random.below(4) as usize];
            dir.join(format!("{}", random.below(40)))
        };
        let (one, other) = (path(&mut random), path(&mut random));
        if seed % 10 == 1 && random.below(100) == 0 {
            // Of a busy mount nothing would be written for ten seconds.
            let _ = std::fs::File::open(root).and_then(|dir| dir.sync_all());
        }
        let _ = match random.below(10) {
            0..=3 => {
                let len = random.below(60_000) as usize;
                std::fs::write(&one, vec![seed as u8; len])
            }
            4 => std::fs::create_dir(&one)
                .and_then(|()| std::fs::write(one.join("x"), [1; 5000]))
                .and_then(|()| std::fs::create_dir(one.join("y"))),
            5 => std::fs::remove_file(&one),
            6 => std::fs::remove_dir_all(&one),
            7 => std::fs::hard_link(&one, &other),
            _ => std::fs::rename(&one, &other),
        };
    }
}

struct Killed {
    bench: Bench,
    mounted: Option<Child>,
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Killed {
    fn new() -> Self {
        let bench = Bench::new();
        bench.ok(&["mkfs", "ext2", "v.img", "--size", "200M", "--quiet"]);
        std::fs::create_dir(bench.path("m")).unwrap();
        Self { bench, mounted: None }
    }

    /// Mounts in the foreground, with the log in a file.
    fn mount(&mut self) {
        let log = std::fs::File::create(self.bench.path("log")).unwrap();
        let mut command = self.bench.command(&["mount", "v.img", "m", "--order", "soft"]);
        command.env("WEFT_LOG", "info").stderr(log);
        self.mounted = Some(command.spawn().unwrap());
        self.wait_for("is mounted on");
    }

    /// Waits until the log says so, and returns it.
    fn wait_for(&mut self, what: &str) -> String {
        loop {
            let log = std::fs::read_to_string(self.bench.path("log")).unwrap();
            if log.contains(what) {
                return log;
            }
            let ended = self.mounted.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the check in the background has ended, and returns what it reclaimed.
    fn checked(&mut self) -> Vec<String> {
        let log = self.wait_for("the check in the background has ended");
        assert!(!log.contains("damage"), "{log}");
        let said = log.lines().filter(|line| line.contains("was not unmounted:"));
        said.filter(|line| line.contains("heal")).map(str::to_owned).collect()
    }

    fn kill(&mut self) {
        let Some(mut mounted) = self.mounted.take() else { return };
        let _ = mounted.kill();
        let _ = mounted.wait();
        let m = self.bench.path("m");
        tool("umount", [OsStr::new("-l"), m.as_os_str()]);
    }

    /// Bytes that df calls used, and bytes of all inodes that can be reached.
    fn used(&self) -> (u64, u64) {
        let m = self.bench.path("m");
        let df = rustix::fs::statvfs(&m).unwrap();
        let mut seen = HashSet::new();
        let mut todo = vec![m];
        let mut bytes = 0;
        while let Some(path) = todo.pop() {
            let meta = std::fs::symlink_metadata(&path).unwrap();
            if !seen.insert(meta.ino()) {
                continue;
            }
            bytes += meta.blocks() * 512;
            if meta.is_dir() {
                todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        ((df.f_blocks - df.f_bfree) * df.f_frsize, bytes)
    }
}

/// Kills `times` mounts, each after `secs` of work.
fn kills(times: u64, secs: u64) {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not here: lost+found, which is to be counted, is open to root alone");
        return;
    }
    let mut killed = Killed::new();
    killed.mount();
    let (used, reached) = killed.used();
    // What the volume itself takes.
    let own = used - reached;
    let mut reclaimed = 0;
    for round in 0..times {
        let stop = AtomicBool::new(false);
        let m = killed.bench.path("m");
        std::thread::scope(|scope| {
            for worker in 1..=3 {
                let (m, stop) = (&m, &stop);
                scope.spawn(move || work(m, round * 10 + worker, stop));
            }
            let until = Instant::now() + Duration::from_secs(secs);
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            killed.kill();
            stop.store(true, Ordering::Relaxed);
        });
        killed.mount();
        let said = killed.checked();
        println!("round {round}: {}", said.join(" "));
        reclaimed += u64::from(!said.is_empty());
        let (used, reached) = killed.used();
        assert_eq!(used, own + reached, "round {round}: space has leaked");
    }
    println!("{reclaimed} of {times} kills left something");
    killed.bench.ok(&["umount", "m"]);
    assert!(killed.mounted.take().unwrap().wait().unwrap().success());
    let image = killed.bench.path("v.img");
    let Some(ran) = tool("e2fsck", [OsStr::new("-fn"), image.as_os_str()]) else { return };
    let second_names = ran.out.contains(" is a link to directory ");
    assert!(ran.code == 0 || second_names, "{ran:#?}");
    assert!(!ran.out.contains("bitmap differences") && !ran.out.contains("Unattached"), "{ran:#?}");
    killed.bench.run(&["fsck", "--repair", "v.img"]);
    killed.bench.e2fsck_clean("v.img");
}

#[test]
fn what_two_kills_leave_is_reclaimed() {
    kills(2, 2);
}

#[test]
#[ignore = "long: make test-long"]
fn long_what_kills_in_a_row_leave_is_reclaimed() {
    let secs: u64 =
        std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(80);
    kills(8, (secs / 8).clamp(6, 60));
}
