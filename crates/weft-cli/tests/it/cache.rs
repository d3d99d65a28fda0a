//! A cache in front of a volume, through the real binary.

use crate::run::{Bench, can_mount};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::net::TcpStream;

/// A volume and a cache.
fn bench() -> Bench {
    let bench = Bench::with_volume("ext2");
    bench.ok(&["cache", "create", "c.img", "--size", "32M"]);
    fs::create_dir(bench.path("m")).unwrap();
    bench
}

/// Whatever a test does, nothing stays mounted.
struct Mounted<'a>(&'a Bench);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = self.0.run(&["umount", "--lazy", "m"]);
    }
}

/// Mounts in the background, with what the tests of a cache have in common.
fn mount<'a>(bench: &'a Bench, more: &[&str]) -> Mounted<'a> {
    let args = ["mount", "v.img", "m", "--cache", "c.img", "--background", "--pid-file", "pid"];
    bench.ok(&args.iter().chain(more).copied().collect::<Vec<_>>());
    Mounted(bench)
}

fn kill(bench: &Bench) {
    let pid = fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
    bench.ok(&["umount", "--lazy", "m"]);
}

fn figure(bench: &Bench, name: &str) -> f64 {
    let info = bench.json(&["cache", "info", "c.img"]);
    info["figures"][format!("weft_cache_{name}")].as_f64().expect("a figure")
}

fn sync(bench: &Bench) {
    fs::File::open(bench.path("m")).unwrap().sync_all().unwrap();
}

/// It will hold blocks of a source that others may not read.
#[test]
fn a_cache_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let bench = bench();
    let mode = fs::metadata(bench.path("c.img")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

/// Whoever makes a cache where one is already is told what it is, and what would be lost.
#[test]
fn a_cache_is_not_made_over_another_unless_told_to() {
    let bench = Bench::with_volume("ext2");
    bench.ok(&["cache", "create", "c.img", "--size", "32M"]);
    let said = bench.fails(1, &["cache", "create", "c.img", "--size", "32M"]);
    assert!(said.contains("a cache of weft of 32 MiB, for no source yet"), "{said}");
    assert!(said.contains("--force overwrites it"), "{said}");
    // Used once, it has a source.
    let source = bench.path("v.img").display().to_string();
    bench.ok(&["cache", "flush", "c.img", &source]);
    let said = bench.fails(1, &["cache", "create", "c.img"]);
    assert!(said.contains(&format!("for '{source}' (")), "{said}");
    bench.ok(&["cache", "create", "c.img", "--force"]);
}

#[test]
fn what_was_synced_survives_a_kill_and_the_cache_stays_warm() {
    if !can_mount() {
        return;
    }
    for mode in ["write-through", "write-back"] {
        let bench = bench();
        let _mounted = mount(&bench, &["--cache-mode", mode]);
        let data = vec![7; 3 << 20];
        fs::write(bench.path("m/file"), &data).unwrap();
        sync(&bench);
        kill(&bench);

        let _mounted = mount(&bench, &["--cache-mode", mode]);
        assert_eq!(fs::read(bench.path("m/file")).unwrap(), data, "{mode}");
        // In write-through, what was written moments before the kill has an intent still, and is
        // read from the source again.
        let hits = figure(&bench, "hits_total");
        assert!(mode == "write-through" || hits >= 768.0, "{hits} hits, and 768 blocks were read");
        bench.ok(&["umount", "m"]);
        // What is left in the cache is written back, and the volume is whole without it.
        bench.ok(&["cache", "flush", "c.img", "v.img"]);
        bench.ok(&["cache", "detach", "c.img"]);
        assert!(bench.ok(&["cat", "v.img:/file"]).as_bytes() == data);
        bench.run(&["fsck", "--repair", "v.img"]);
        bench.e2fsck_clean("v.img");
    }
}

#[test]
fn a_cache_in_use_is_asked_and_told() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    assert!(
        bench.fails(1, &["top", "c.img", "-n", "1"]).contains("no process of yours uses c.img")
    );
    let _mounted = mount(&bench, &["--cache-mode", "write-back", "--metrics", "127.0.0.1:0"]);
    fs::write(bench.path("m/file"), vec![1; 1 << 20]).unwrap();
    sync(&bench);
    assert!(figure(&bench, "dirty_bytes") > 1e6);
    let top = bench.json(&["top", "c.img", "-n", "1", "--interval-ms", "100"]);
    assert!(top["dirty_bytes"].as_f64().unwrap() > 1e6, "{top}");
    for what in ["read", "write", "flush", "source_read"] {
        assert!(top["latency_ms"][what].is_number(), "{what}: {top}");
    }
    assert!(figure(&bench, "writes_total") > 0.0, "what was synced was written");
    assert!(figure(&bench, "write_nanoseconds_total") > 0.0);
    assert!(figure(&bench, "flush_nanoseconds_total") > 0.0);

    bench.ok(&["cache", "flush", "c.img"]);
    assert!(figure(&bench, "dirty_bytes") < 1.0);
    bench.ok(&["cache", "mode", "c.img", "write-through"]);
    let info = bench.json(&["cache", "info", "c.img"]);
    assert_eq!(info["origins"][0]["mode"], "write-through");
    bench.fails(1, &["cache", "resize", "c.img", "--size", "1"]);
    bench.ok(&["cache", "resize", "c.img", "--size", "64M"]);
    assert!(figure(&bench, "slots") > 15_000.0);
    bench.ok(&["cache", "trace", "c.img", "-o", "t.oracleGeneral", "--seconds", "0"]);
    assert!(bench.path("t.oracleGeneral").exists());
    // Who cannot have it, and why.
    assert!(bench.fails(8, &["cache", "check", "c.img"]).contains("in use"));
    bench.ok(&["umount", "m"]);
    assert_eq!(bench.json(&["cache", "check", "c.img"])["clean"], true);
}

#[test]
fn a_cache_belongs_to_its_source() {
    let bench = bench();
    let missing = bench.fails(1, &["cache", "flush", "no.img", "v.img"]);
    assert!(missing.contains("weft cache create no.img"), "{missing}");
    bench.ok(&["cache", "flush", "c.img", "v.img"]);
    bench.ok(&["mkfs", "ext2", "w.img", "--size", "64M"]);
    let other = bench.fails(1, &["cache", "flush", "c.img", "w.img"]);
    assert!(other.contains("v.img") && other.contains("w.img"), "{other}");
    // Written to without its cache.
    bench.ok(&["mkdir", "v.img:/new"]);
    let changed = bench.fails(1, &["cache", "flush", "c.img", "v.img"]);
    assert!(changed.contains("changed without the cache"), "{changed}");
    bench.ok(&["cache", "detach", "c.img"]);
    bench.ok(&["cache", "flush", "c.img", "w.img"]);
    assert!(bench.fails(1, &["cache", "create", "c.img"]).contains("a cache of weft"));
}

#[test]
fn damage_is_found_and_repaired() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let _mounted = mount(&bench, &["--cache-mode", "write-back"]);
    fs::write(bench.path("m/file"), vec![1; 8 << 20]).unwrap();
    sync(&bench);
    kill(&bench);
    assert_eq!(bench.json(&["cache", "check", "c.img"])["clean"], true, "a kill is no damage");
    let dump = bench.json(&["cache", "dump", "c.img"]);
    assert!(dump["blocks"].as_array().unwrap().len() > 2000);

    // In the middle of the data, one byte a block for forty blocks.
    let mut file = fs::OpenOptions::new().write(true).open(bench.path("c.img")).unwrap();
    for block in 0..40 {
        file.seek(SeekFrom::Start((4 << 20) + block * 4096)).unwrap();
        file.write_all(&[0xa5]).unwrap();
    }
    drop(file);
    let found = bench.run(&["cache", "check", "c.img"]);
    assert!(found.out.contains("v.img") && found.out.contains("do not match"), "{}", found.out);
    // What is clean is not lost: the origin has it. How much was written back before the kill
    // decides whether all of it is.
    let listed: serde_json::Value =
        serde_json::from_str(&bench.run(&["--json", "cache", "check", "c.img"]).out).unwrap();
    let findings = listed["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 40, "{listed}");
    let all_clean = findings.iter().all(|finding| finding["dirty"] == false);
    let said = found.out.contains("nothing is lost: what is named above heals in use");
    assert_eq!((found.code, said), if all_clean { (0, true) } else { (4, false) }, "{found:#?}");
    let dry = bench.run(&["cache", "repair", "--dry-run", "c.img"]);
    assert_eq!(dry, found, "a dry run changes nothing");
    assert_eq!(bench.run(&["cache", "repair", "c.img"]).code, 1);
    assert_eq!(bench.json(&["cache", "check", "c.img"])["clean"], true);
}

#[test]
fn prometheus_reads_and_cannot_change() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    // A port that is free now; nobody else takes it so soon.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let _mounted = mount(&bench, &["--metrics", &address]);
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let metrics = ask("GET /metrics");
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("weft_cache_hits_total{"));
    assert!(ask("POST /detach").starts_with("HTTP/1.1 404"));
    assert!(ask("GET /secret").starts_with("HTTP/1.1 404"));
    bench.ok(&["umount", "m"]);
}

#[test]
fn a_trace_says_which_cache_to_take() {
    let bench = Bench::new();
    // Eight blocks in turn: nothing but a cache of all eight hits, and that after the first round.
    let blocks: String = (0..800).map(|i| format!("{}\n", i % 8)).collect();
    bench.write("t.csv", blocks.as_bytes());
    let advice =
        bench.json(&["cache", "advise", "t.csv", "--policy", "lru", "-s", "16K", "-s", "32K"]);
    assert_eq!((&advice["requests"], &advice["blocks"]), (&800.into(), &8.into()));
    let ratio = |i: usize| advice["curves"][0]["points"][i]["hit_ratio"].as_f64().unwrap();
    assert!(ratio(0) < 0.001 && (ratio(1) - 0.99).abs() < 0.001, "{advice}");
    assert!(bench.ok(&["cache", "advise", "t.csv"]).contains("Take 32K"));
    assert!(bench.fails(1, &["cache", "advise", "no.csv"]).contains("no.csv"));
}

/// A cache is taken out of use under a mounted volume: nothing that was written before, meanwhile
/// or afterwards is lost, and the volume goes on.
#[test]
fn a_live_detach_loses_nothing() {
    if !can_mount() {
        return;
    }
    for mode in ["write-back", "write-through"] {
        let bench = bench();
        let mounted = mount(&bench, &["--cache-mode", mode]);
        let content = |n: u8| vec![n; 700_000 + usize::from(n)];
        for n in 1..6 {
            fs::write(bench.path(&format!("m/before-{n}")), content(n)).unwrap();
        }
        // Not synced: the file system still holds some of it.
        let said = bench.ok(&["cache", "detach", "c.img"]);
        assert!(format!("{said:?}").contains("complete without the cache"), "{said:?}");
        for n in 6..12 {
            fs::write(bench.path(&format!("m/after-{n}")), content(n)).unwrap();
        }
        for n in 1..6 {
            assert!(fs::read(bench.path(&format!("m/before-{n}"))).unwrap() == content(n));
        }
        bench.fails(1, &["cache", "mode", "c.img", "write-back"]);
        bench.ok(&["umount", "m"]);
        drop(mounted);
        bench.e2fsck_clean("v.img");
        for (name, n) in (1..6).map(|n| ("before", n)).chain((6..12).map(|n| ("after", n))) {
            let path = format!("v.img:/{name}-{n}");
            let there = bench.command(&["cat", &path]).output().unwrap();
            assert!(there.stdout == content(n), "{mode}: {path}");
        }
        assert_eq!(bench.json(&["cache", "info", "c.img"])["origins"], serde_json::json!([]));
    }
}
