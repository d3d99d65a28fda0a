//! Mounts under soft updates that are killed in a row: each mount reclaims what the kill before it has
//! left, so that nothing adds up.

use crate::run::{Bench, Ran, can_mount, ran, tool};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
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
    socket: UnixDatagram,
}

impl Killed {
    fn new() -> Self {
        let bench = Bench::new();
        bench.ok(&["mkfs", "ext2", "v.img", "--size", "200M", "--quiet"]);
        std::fs::create_dir(bench.path("m")).unwrap();
        let socket = UnixDatagram::bind(bench.path("log")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        Self { bench, socket }
    }

    fn mount(&self) -> u32 {
        let args = ["mount", "v.img", "m", "--background", "--order", "soft", "--pid-file", "pid"];
        let mut command = self.bench.command(&args);
        command.env("WEFT_LOG_SOCKET", self.bench.path("log")).env("WEFT_LOG", "weft=info,info");
        let mounted: Ran = ran(&command.stderr(Stdio::piped()).output().unwrap());
        assert_eq!(mounted.code, 0, "{mounted:?}");
        std::fs::read_to_string(self.bench.path("pid")).unwrap().trim().parse().unwrap()
    }

    /// Waits until the log says that the check has ended, and returns what it said before.
    fn checked(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut buf = [0; 4096];
        loop {
            let n = self.socket.recv(&mut buf).expect("the check ends");
            let line = String::from_utf8_lossy(&buf[..n]).into_owned();
            if line.contains("has ended") {
                return all;
            }
            assert!(!line.contains("damage"), "{line}");
            all.push(line);
        }
    }

    fn kill(&self, pid: u32) {
        let pid = pid.to_string();
        tool("kill", ["-9", &pid].map(OsStr::new));
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
    let killed = Killed::new();
    let pid = killed.mount();
    let (used, reached) = killed.used();
    // What the volume itself takes.
    let own = used - reached;
    let mut pid = pid;
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
            killed.kill(pid);
            stop.store(true, Ordering::Relaxed);
        });
        pid = killed.mount();
        let said = killed.checked();
        println!("round {round}: {}", said.join(" "));
        reclaimed += u64::from(!said.is_empty());
        let (used, reached) = killed.used();
        assert_eq!(used, own + reached, "round {round}: space has leaked");
    }
    println!("{reclaimed} of {times} kills left something");
    killed.bench.ok(&["umount", "m"]);
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
