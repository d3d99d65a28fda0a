//! A volume mounted over the network behind a cache, and its daemon killed: nothing that was synced
//! is lost, and the cache is warm at once.

use crate::run::{Bench, can_mount};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft::block::{FileDevice, OpenMode, Rng};
use weft::nbd::{Export, Server, server};
use weft::net::Address;
use weft_testing::wait_until;

const SOURCE: &str = "nbd+unix:///?socket=nbd.sock";

/// Bytes of the files that are read again after each restart.
const WARM_FILES: usize = 64;
const WARM_FILE_BYTES: usize = 100_000;

/// The machine with the volume, which is never killed: it counts what is asked of it.
fn serve(bench: &Bench) -> Server {
    let device = FileDevice::open(bench.path("v.img"), OpenMode::READ_WRITE).unwrap();
    let exports = vec![Export::new("", Arc::new(device))];
    let mut server = Server::new(exports, server::Options::default()).unwrap();
    server.listen(&Address::Unix(bench.path("nbd.sock"))).unwrap();
    server
}

struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(bench: &'a Bench, mode: &str) -> Self {
        fs::create_dir_all(bench.path("m")).unwrap();
        bench.ok(&[
            "mount",
            SOURCE,
            "m",
            "--background",
            "--pid-file",
            "pid",
            "--cache",
            "c.img",
            "--cache-mode",
            mode,
            // What is asked of the origin is counted, and is to be what somebody has asked for.
            "--cache-options",
            "readahead=0",
        ]);
        Self { bench, dir: bench.path("m") }
    }

    fn kill(&self) {
        let pid = fs::read_to_string(self.bench.path("pid")).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

/// Mounts, works and is killed, again and again. Each time everything that was synced is there, and
/// next to nothing of what was read before is asked of the origin again.
fn killed_behind_a_cache(mode: &str, kills: u64) {
    let bench = Bench::new();
    // After a kill ext2 looks at all inodes, which nobody may have read before: let them be few.
    let size = ["--size", "256M", "--inodes", "1024"];
    bench.ok(&[&["mkfs", "ext2", "v.img", "--quiet"], &size[..]].concat());
    bench.ok(&["cache", "create", "c.img", "--size", "64M"]);
    let server = serve(&bench);
    let counters = server.counters();
    let asked = || counters.read_bytes.load(Ordering::Relaxed);
    let mut rng = Rng::new(kills);
    let content = |name: usize| -> Vec<u8> {
        let mut bytes = vec![0; WARM_FILE_BYTES];
        Rng::new(name as u64).fill(&mut bytes);
        bytes
    };

    // The cache is filled in good order: what is in it is in its metadata.
    let mount = Mounted::new(&bench, mode);
    fs::create_dir(mount.dir.join("warm")).unwrap();
    for i in 0..WARM_FILES {
        fs::write(mount.dir.join(format!("warm/{i}")), content(i)).unwrap();
    }
    bench.ok(&["umount", "m"]);
    drop(mount);
    let mount = Mounted::new(&bench, mode);
    for i in 0..WARM_FILES {
        assert!(fs::read(mount.dir.join(format!("warm/{i}"))).unwrap() == content(i));
    }
    bench.ok(&["umount", "m"]);
    drop(mount);

    let mut synced: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..=kills {
        let mount = Mounted::new(&bench, mode);
        let before = asked();
        for i in 0..WARM_FILES {
            let there = fs::read(mount.dir.join(format!("warm/{i}"))).unwrap_or_default();
            assert!(there == content(i), "{mode}, round {round}: warm/{i}");
        }
        let again = asked() - before;
        let all = (WARM_FILES * WARM_FILE_BYTES) as u64;
        println!("{mode}, round {round}: {again} bytes of {all} asked of the origin");
        // Where writes go to the origin first, what lies beside the last of them is not believed
        // after a kill.
        let part = if mode == "write-back" { 20 } else { 4 };
        assert!(again * part <= all, "{mode}, round {round}: {again} bytes of {all} were cold");
        for (name, content) in &synced {
            let there = fs::read(mount.dir.join(name)).unwrap_or_default();
            assert!(there == *content, "{mode}, round {round}: {name} was fsynced");
        }
        if round == kills {
            bench.ok(&["umount", "m"]);
            break;
        }
        // Somebody writes all the time and syncs nothing; somebody syncs each file.
        let mut noise = std::process::Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "count=5000"])
            .arg(format!("of=m/noise-{}", round % 3))
            .current_dir(bench.dir())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("dd runs");
        for i in 0..1 + rng.below(12) {
            let name = format!("synced-{round}-{i}");
            let mut content = vec![0; rng.index(20_000)];
            rng.fill(&mut content);
            let mut file = fs::File::create(mount.dir.join(&name)).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            synced.push((name, content));
        }
        std::thread::sleep(std::time::Duration::from_millis(rng.below(150)));
        mount.kill();
        // Not unmounted before: it would write to the bare directory.
        noise.wait().expect("dd ends");
        drop(mount);
    }
    bench.ok(&["cache", "flush", "c.img", SOURCE]);
    server.stop(std::time::Duration::from_secs(10)).unwrap();
    let repaired = bench.run(&["fsck", "--repair", "v.img"]);
    assert!(repaired.code <= 1, "{mode}: {repaired:#?}");
    bench.e2fsck_clean("v.img");
    for (name, content) in &synced {
        let there = bench.command(&["cat", &format!("v.img:/{name}")]).output().unwrap();
        assert!(there.stdout == *content, "{mode}: {name} is in the origin");
    }
}

#[test]
fn a_cached_volume_survives_its_daemon_being_killed_while_it_works() {
    if can_mount() {
        killed_behind_a_cache("write-back", 2);
    }
}

#[test]
#[ignore = "a campaign: make test-long"]
fn long_many_kills_behind_a_cache() {
    if can_mount() {
        for mode in ["write-back", "write-through", "write-invalidate"] {
            killed_behind_a_cache(mode, 10);
        }
    }
}

/// The machine with the volume is gone when it is unmounted: unmounting says so and fails, and what
/// could not be written is written once the machine is there again.
#[test]
fn unmounting_says_that_the_server_is_gone_and_keeps_what_it_has() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let source = format!("{SOURCE}&timeout=1");
    let server = serve(&bench);
    fs::create_dir(bench.path("m")).unwrap();
    bench.ok(&["mount", &source, "m", "--background", "--pid-file", "pid"]);
    fs::write(bench.path("m/file"), vec![7; 5 << 20]).unwrap();
    server.stop(Duration::ZERO).unwrap();
    let said = bench.fails(1, &["umount", "m"]);
    assert!(said.contains("nbd.sock") && said.contains("tries again"), "{said}");
    let pid = fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
    let daemon = rustix::process::Pid::from_raw(pid).expect("a process id");

    let server = serve(&bench);
    wait_until("it has written the rest", || rustix::process::test_kill_process(daemon).is_err());
    server.stop(Duration::from_secs(10)).unwrap();
    bench.e2fsck_clean("v.img");
    bench.ok(&["get", "v.img:/file", "back"]);
    assert!(fs::read(bench.path("back")).unwrap() == vec![7; 5 << 20]);
}

/// The file of a cache that writes back is cut off by another program, with changes in it that are
/// nowhere else: unmounting does not say that all is well.
#[test]
fn unmounting_says_that_the_cache_is_damaged() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    bench.ok(&["cache", "create", "c.img", "--size", "64M", "--quiet"]);
    let _server = serve(&bench);
    let mount = Mounted::new(&bench, "write-back");
    fs::write(mount.dir.join("file"), vec![7; 5 << 20]).unwrap();
    rustix::fs::sync();
    let cache = fs::File::options().write(true).open(bench.path("c.img")).unwrap();
    cache.set_len(1 << 20).unwrap();
    fs::write(mount.dir.join("file"), vec![8; 5 << 20]).unwrap();
    let said = bench.fails(1, &["umount", "m"]);
    assert!(said.contains("was cut"), "{said}");
    // It would try again for ever.
    mount.kill();
}
