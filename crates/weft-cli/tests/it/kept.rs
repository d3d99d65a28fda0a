//! Outputs of networks on disk, through real mounts.

use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_testing::wait_until;

struct Kept {
    bench: Bench,
    source: &'static str,
    options: &'static [&'static str],
}

impl Kept {
    fn new(source: &'static str) -> Self {
        Self::with(source, &[])
    }

    fn with(source: &'static str, options: &'static [&'static str]) -> Self {
        let bench = Bench::new();
        for dir in ["m", "other", "data"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        if source == "v.img" {
            bench.ok(&["mkfs", "ext2", "v.img", "--size", "64M", "--quiet"]);
        }
        let rules = b"*.log zstd | rot13 | xor hex=616263\n*@json view: json\n*@loud view: upper\n";
        bench.write("rules", rules);
        let this = Self { bench, source, options };
        this.mount();
        this
    }

    fn mount(&self) {
        let options = ["--background", "--transform", "rules", "--output-cache", "kept"];
        self.bench.ok(&[&["mount", self.source, "m"], &options[..], self.options].concat());
    }

    fn unmount(&self) {
        // Programs that other tests start have this one's files open for a moment.
        for _ in 0..100 {
            let ran = self.bench.run(&["umount", "m"]);
            if ran.code == 0 || !ran.err.contains("busy") {
                assert_eq!(ran.code, 0, "{}", ran.err);
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the mount stays busy");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bench.path("m").join(name)
    }

    /// A counter of the mount, all networks together.
    fn count(&self, name: &str) -> f64 {
        let text = fs::read_to_string(self.at(".weft/metrics")).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    fn read_until_kept(&self, name: &str, want: &[u8]) {
        let before = self.count("weft_network_outputs_found_total");
        wait_until(&format!("{name} is kept"), || {
            assert!(fs::read(self.at(name)).unwrap() == want, "{name}");
            // From the kernel's cache nothing is to be learnt.
            let file = File::open(self.at(name)).unwrap();
            let whole = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, 0, None, whole).unwrap();
            self.count("weft_network_outputs_found_total") > before
        });
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
        let _ = self.bench.run(&["umount", "--lazy", "other"]);
    }
}

#[test]
fn a_new_mount_finds_what_another_one_made() {
    if !can_mount() {
        return;
    }
    for source in ["hostdir:data", "v.img"] {
        let kept = Kept::new(source);
        let text = "line of a log, again and again\n".repeat(20_000).into_bytes();
        fs::write(kept.at("x.log"), &text).unwrap();
        fs::write(kept.at("t.csv"), "a,b\n1,2\n").unwrap();
        // What was changed just now is not kept.
        kept.unmount();
        std::thread::sleep(Duration::from_millis(3100));
        kept.mount();
        kept.read_until_kept("x.log", &text);
        let json = fs::read(kept.at("t.csv@json")).unwrap();
        assert_eq!(json, b"{\"a\":\"1\",\"b\":\"2\"}\n");
        kept.read_until_kept("t.csv@json", &json);
        kept.unmount();
        kept.mount();
        for (name, want) in [("x.log", &text), ("t.csv@json", &json)] {
            assert!(fs::read(kept.at(name)).unwrap() == *want, "{source}: {name}");
            assert_eq!(fs::metadata(kept.at(name)).unwrap().len(), want.len() as u64, "{name}");
        }
        assert_eq!(kept.count("weft_network_outputs_found_total"), 2.0, "{source}");
        // The length of what is stored as zstd is in its index, which is read when it is looked up.
        assert!(kept.count("weft_stage_bytes_total") < 1000.0, "{source}: no stage did anything");
        // Damage costs the making, and nothing else.
        kept.unmount();
        for entry in fs::read_dir(kept.bench.path("kept/outputs")).unwrap() {
            let path = entry.unwrap().path();
            let mut content = fs::read(&path).unwrap();
            content[5] ^= 1;
            fs::write(&path, content).unwrap();
        }
        kept.mount();
        assert!(fs::read(kept.at("x.log")).unwrap() == text, "{source}");
        assert!(kept.count("weft_stage_bytes_total") > text.len() as f64, "{source}");
        // What is written goes before what is kept.
        fs::write(kept.at("x.log"), "short").unwrap();
        assert_eq!(fs::read(kept.at("x.log")).unwrap(), b"short");
        if source == "hostdir:data" {
            // Somebody else's change below, too.
            fs::write(kept.bench.path("data/t.csv"), "a,b\n3,4\n").unwrap();
            std::thread::sleep(Duration::from_millis(1100));
            assert_eq!(fs::read(kept.at("t.csv@json")).unwrap(), b"{\"a\":\"3\",\"b\":\"4\"}\n");
        }
        kept.unmount();
    }
}

#[test]
fn a_directory_of_others_is_refused() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("data")).unwrap();
    fs::create_dir_all(bench.path("m")).unwrap();
    fs::create_dir_all(bench.path("kept")).unwrap();
    bench.write("rules", b"*.log zstd\n");
    let mount = ["mount", "hostdir:data", "m", "--transform", "rules", "--output-cache", "kept"];
    let err = bench.fails(1, &mount);
    assert!(err.contains("mode 700"), "{err}");
    let err = bench.fails(2, &["mount", "hostdir:data", "m", "--output-cache", "kept"]);
    assert!(err.contains("--transform"), "{err}");
}

impl Kept {
    /// A file that was changed a while ago, so that what is made of it is kept.
    fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.bench.path("data").join(name), content).unwrap();
        let then = std::time::SystemTime::now() - Duration::from_secs(3600);
        let file = File::options().write(true).open(self.bench.path("data").join(name)).unwrap();
        file.set_modified(then).unwrap();
        // The time at which the inode was changed cannot be set.
        std::thread::sleep(Duration::from_millis(3100));
    }

    /// Opens a view until the kernel reads it past weft. `None`: it never does here.
    fn open_past(&self, name: &str) -> Option<File> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let before = self.count("weft_network_opens_past_total");
            let file = File::open(self.at(name)).unwrap();
            if self.count("weft_network_opens_past_total") > before {
                return Some(file);
            }
            if !rustix::process::geteuid().is_root() || Instant::now() > end {
                println!("not here: the kernel or the file system has no passthrough");
                return None;
            }
            drop(fs::read(self.at(name)).unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn views_that_are_kept_are_read_by_the_kernel() {
    if !can_mount() {
        return;
    }
    let kept = Kept::with("hostdir:data", &["--snapshot-views"]);
    let text = "line of a log, again and again\n".repeat(100_000).into_bytes();
    let loud = text.to_ascii_uppercase();
    kept.put("x", &text);
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud, "cold");
    let Some(view) = kept.open_past("x@loud") else { return };
    let reads = kept.count("weft_network_reads_total");
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud, "warm");
    let mut part = [0; 100];
    view.read_exact_at(&mut part, 1_000_000).unwrap();
    assert_eq!(part, loud[1_000_000..1_000_100]);
    assert_eq!(view.read_at(&mut part, loud.len() as u64).unwrap(), 0, "nothing behind the end");
    let mut grep = std::process::Command::new("grep");
    let found = grep.args(["-c", "AGAIN"]).arg(kept.at("x@loud")).output().unwrap();
    assert_eq!(found.stdout, b"100000\n");
    assert_eq!(kept.count("weft_network_reads_total"), reads, "weft was not asked");
    assert!(File::options().write(true).open(kept.at("x@loud")).is_err());

    // Who has it open goes on seeing what it was; who opens it sees what there is.
    let number = fs::metadata(kept.at("x@loud")).unwrap().ino();
    fs::write(kept.at("x"), "other words").unwrap();
    assert_eq!(fs::read(kept.at("x@loud")).unwrap(), b"OTHER WORDS");
    assert_eq!(fs::metadata(kept.at("x@loud")).unwrap().len(), 11);
    assert_ne!(fs::metadata(kept.at("x@loud")).unwrap().ino(), number);
    assert_eq!(view.metadata().unwrap().len(), loud.len() as u64);
    view.read_exact_at(&mut part, 0).unwrap();
    assert_eq!(part, loud[..100]);
    // The same for a change below, which nobody announces.
    fs::write(kept.bench.path("data/x"), "more words").unwrap();
    assert_eq!(fs::read(kept.at("x@loud")).unwrap(), b"MORE WORDS");
    for nr in 0..20 {
        fs::write(kept.at("x"), format!("words {nr}")).unwrap();
        assert_eq!(fs::read(kept.at("x@loud")).unwrap(), format!("WORDS {nr}").as_bytes());
    }
    // What is thrown out of the cache stays for who has it open.
    for entry in fs::read_dir(kept.bench.path("kept/outputs")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    view.read_exact_at(&mut part, 2_000_000).unwrap();
    assert_eq!(part, loud[2_000_000..2_000_100]);
    // Also when its base has no name any more.
    fs::remove_file(kept.at("x")).unwrap();
    assert!(File::open(kept.at("x@loud")).is_err());
    view.read_exact_at(&mut part, 0).unwrap();
    assert_eq!(part, loud[..100]);
    drop(view);
    kept.unmount();
}

#[test]
fn what_was_damaged_on_disk_is_not_read_by_the_kernel() {
    if !can_mount() {
        return;
    }
    let kept = Kept::with("hostdir:data", &["--snapshot-views"]);
    let text = "line of a log, again and again\n".repeat(100_000).into_bytes();
    let loud = text.to_ascii_uppercase();
    kept.put("x", &text);
    let Some(reader) = kept.open_past("x@loud") else { return };
    let damage = || {
        for entry in fs::read_dir(kept.bench.path("kept/outputs")).unwrap() {
            let path = entry.unwrap().path();
            File::options().write(true).open(path).unwrap().write_all_at(b"?", 2_000_000).unwrap();
        }
    };
    // While it is mounted, by somebody who may: seen by its time of change. Also while the kernel
    // reads the damaged file for an earlier reader, and while the close of that one is under way.
    damage();
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud);
    drop(reader);
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud);
    assert!(kept.open_past("x@loud").is_some(), "made again");
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud);
    // Between two mounts: each checks what it has not made.
    kept.unmount();
    damage();
    kept.mount();
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud);
    assert!(kept.open_past("x@loud").is_some());
    // A whole one is checked while it is read once, and made by nobody.
    kept.unmount();
    kept.mount();
    assert!(kept.open_past("x@loud").is_some());
    assert!(fs::read(kept.at("x@loud")).unwrap() == loud);
    assert_eq!(kept.count("weft_stage_bytes_total"), 0.0);
    kept.unmount();
}

/// The kernel wants all who have an inode open to use it in one way: whoever comes in between.
#[test]
fn readers_of_all_kinds_come_and_go_while_the_base_changes() {
    if !can_mount() {
        return;
    }
    let kept = Kept::with("hostdir:data", &["--snapshot-views"]);
    let text = |nr: usize| format!("line {nr} of a log\n").repeat(100_000).into_bytes();
    kept.put("x", &text(0));
    let end = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let view = fs::read(kept.at("x@loud")).unwrap();
                    let nr = std::str::from_utf8(&view).unwrap().split(' ').nth(1);
                    let nr: usize = nr.unwrap().parse().unwrap();
                    assert!(view == text(nr).to_ascii_uppercase(), "{nr}");
                    let mut grep = std::process::Command::new("grep");
                    let found = grep.args(["-c", "LOG"]).arg(kept.at("x@loud")).output().unwrap();
                    assert_eq!(found.stdout, b"100000\n", "{:?}", found.stderr);
                }
            });
        }
        for nr in 1..3 {
            // As an editor does: a new file in the place of the old one.
            kept.put("new", &text(nr));
            fs::rename(kept.at("new"), kept.at("x")).unwrap();
        }
    });
    assert!(fs::read(kept.at("x@loud")).unwrap() == text(2).to_ascii_uppercase());
    kept.unmount();
}

/// Damage anywhere in what is kept costs the making, and is never a short file.
#[test]
fn a_damaged_entry_is_no_short_file() {
    if !can_mount() {
        return;
    }
    let kept = Kept::new("hostdir:data");
    let text: String =
        (0..60_000).map(|nr| format!("{nr},a value that is long enough\n")).collect();
    fs::write(kept.at("t.csv"), format!("a,b\n{text}")).unwrap();
    fs::write(kept.at("x.log"), &text).unwrap();
    kept.unmount();
    std::thread::sleep(Duration::from_millis(3100));
    kept.mount();
    let json = fs::read(kept.at("t.csv@json")).unwrap();
    assert!(json.len() > 2 << 20);
    kept.read_until_kept("t.csv@json", &json);
    kept.read_until_kept("x.log", text.as_bytes());
    kept.unmount();
    // At the end of the entry, and in its middle; before the mount, and while it is open.
    for (at, while_open) in [(2, false), (1000, false), (2, true), (1000, true)] {
        if while_open {
            kept.mount();
        }
        let reader = while_open.then(|| File::open(kept.at("t.csv@json")).unwrap());
        for entry in fs::read_dir(kept.bench.path("kept/outputs")).unwrap() {
            let file = File::options().read(true).write(true).open(entry.unwrap().path()).unwrap();
            let at = file.metadata().unwrap().len() * at / 1001;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }
        if !while_open {
            kept.mount();
        }
        for (name, want) in [("t.csv@json", &json[..]), ("x.log", text.as_bytes())] {
            let out = std::process::Command::new("cat").arg(kept.at(name)).output().unwrap();
            assert!(out.status.success(), "{name}");
            assert_eq!(out.stdout.len(), want.len(), "{name}, damaged at {at}, {while_open}");
            assert!(out.stdout == want, "{name}");
        }
        drop(reader);
        kept.read_until_kept("t.csv@json", &json);
        kept.read_until_kept("x.log", text.as_bytes());
        kept.unmount();
    }
    kept.mount();
}
