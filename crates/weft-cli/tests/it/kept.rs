//! Outputs of networks on disk, through real mounts.

use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct Kept {
    bench: Bench,
    source: &'static str,
}

impl Kept {
    fn new(source: &'static str) -> Self {
        let bench = Bench::new();
        for dir in ["m", "other", "data"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        if source == "v.img" {
            bench.ok(&["mkfs", "ext2", "v.img", "--size", "64M", "--quiet"]);
        }
        bench.write("rules", b"*.log zstd | rot13 | xor hex=616263\n*@json view: json\n");
        let this = Self { bench, source };
        this.mount();
        this
    }

    fn mount(&self) {
        let options = ["--background", "--transform", "rules", "--output-cache", "kept"];
        self.bench.ok(&[&["mount", self.source, "m"], &options[..]].concat());
    }

    fn unmount(&self) {
        self.bench.ok(&["umount", "m"]);
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
        let end = Instant::now() + Duration::from_secs(30);
        while self.count("weft_network_outputs_found_total") == before {
            assert!(fs::read(self.at(name)).unwrap() == want, "{name}");
            assert!(Instant::now() < end, "{name} is never kept");
            // From the kernel's cache nothing is to be learnt.
            let file = File::open(self.at(name)).unwrap();
            let whole = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, 0, None, whole).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
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
