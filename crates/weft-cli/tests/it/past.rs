//! Files without networks, which the kernel uses past weft.

use crate::run::{Bench, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Past {
    bench: Bench,
}

impl Past {
    fn new(rules: &str, options: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root may let the kernel use files past weft");
            return None;
        }
        let bench = Bench::new();
        for dir in ["m", "data"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        bench.write("rules", rules.as_bytes());
        let mount = ["mount", "hostdir:data", "m", "--background", "--transform", "rules"];
        bench.ok(&[&mount[..], options].concat());
        Some(Self { bench })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bench.path("m").join(name)
    }

    /// Whether the kernel here uses files past the process that serves the mount: one that is open so
    /// gets no network.
    fn is_past(&self) -> bool {
        fs::write(self.at("probe"), "x").unwrap();
        let held = File::open(self.at("probe")).unwrap();
        let refused = self.bench.run(&["transform", "push", "rot13", "m/probe"]).code != 0;
        drop(held);
        if !refused {
            println!("not here: the kernel or the file system has no passthrough");
        }
        refused
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

#[test]
fn files_without_networks_are_read_and_written_past_weft() {
    let Some(past) = Past::new("*.log zstd\n*@loud view: upper\n", &[]) else { return };
    if !past.is_past() {
        return;
    }
    let text = "some words\n".repeat(50_000);
    fs::write(past.at("plain"), &text).unwrap();
    assert!(fs::read_to_string(past.at("plain")).unwrap() == text);
    assert!(fs::read_to_string(past.bench.path("data/plain")).unwrap() == text);
    // Appended, cut, written in the middle, seen by all at once.
    let reader = File::open(past.at("plain")).unwrap();
    let mut file = OpenOptions::new().append(true).open(past.at("plain")).unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(fs::metadata(past.at("plain")).unwrap().len(), text.len() as u64 + 4);
    let mut tail = [0; 4];
    reader.read_exact_at(&mut tail, text.len() as u64).unwrap();
    assert_eq!(&tail, b"more");
    file.set_len(4).unwrap();
    assert_eq!(fs::read(past.at("plain")).unwrap(), b"some");
    drop(file);
    // Somebody else's change of the host's file is seen at once.
    fs::write(past.bench.path("data/plain"), "other").unwrap();
    let mut now = String::new();
    (&reader).read_to_string(&mut now).unwrap();
    assert_eq!(now, "other");
    drop(reader);
    // A view of it, and files with networks, go through weft all the same.
    assert_eq!(fs::read(past.at("plain@loud")).unwrap(), b"OTHER");
    fs::write(past.at("plain"), "again").unwrap();
    assert_eq!(fs::read(past.at("plain@loud")).unwrap(), b"AGAIN");
    // Also while it is being written.
    let mut file = OpenOptions::new().append(true).open(past.at("plain")).unwrap();
    for round in 1..=5 {
        file.write_all(b"!").unwrap();
        assert_eq!(fs::metadata(past.at("plain@loud")).unwrap().len(), 5 + round);
        assert_eq!(fs::read(past.at("plain@loud")).unwrap().len() as u64, 5 + round);
    }
    drop(file);
    fs::write(past.at("x.log"), &text).unwrap();
    assert!(fs::read_to_string(past.at("x.log")).unwrap() == text);
    assert!(fs::read(past.bench.path("data/x.log")).unwrap().len() < text.len() / 10);
}

#[test]
fn a_file_that_is_open_past_weft_gets_no_network() {
    let Some(past) = Past::new("secret/ zstd\n", &[]) else { return };
    if !past.is_past() {
        return;
    }
    fs::write(past.at("words"), "Hello").unwrap();
    let open = File::open(past.at("words")).unwrap();
    for verb in ["attach", "push"] {
        let err = past.bench.fails(1, &["transform", verb, "rot13", "m/words"]);
        assert!(err.contains("nopassthrough"), "{err}");
    }
    let err = weft::attach_ioctl::push(&open, "rot13").unwrap_err().to_string();
    assert!(err.contains("open with passthrough"), "{err}");
    // Moved under a rule it would be written anew: tools copy it, and the copy is.
    fs::create_dir(past.at("secret")).unwrap();
    let moved = fs::rename(past.at("words"), past.at("secret/words")).unwrap_err();
    assert_eq!(moved.raw_os_error(), Some(18), "EXDEV");
    drop(open);
    fs::rename(past.at("words"), past.at("secret/words")).unwrap();
    assert_eq!(fs::read(past.at("secret/words")).unwrap(), b"Hello");
    assert!(fs::read(past.bench.path("data/secret/words")).unwrap().starts_with(b"\x28\xb5"));
    fs::write(past.at("more"), "Hello").unwrap();
    past.bench.ok(&["transform", "push", "rot13", "m/more"]);
    assert_eq!(fs::read(past.at("more")).unwrap(), b"Uryyb");
}

#[test]
fn nopassthrough_leaves_all_to_weft() {
    let Some(past) = Past::new("*.log zstd\n", &["-o", "nopassthrough"]) else { return };
    fs::write(past.at("words"), "Hello").unwrap();
    let open = File::open(past.at("words")).unwrap();
    assert_eq!(weft::attach_ioctl::push(&open, "rot13").unwrap(), "rot13");
    assert_eq!(fs::read(past.at("words")).unwrap(), b"Uryyb");
}
