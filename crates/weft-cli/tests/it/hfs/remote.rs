//! Volumes on another machine: over NBD, and behind a cache.

use super::{macbinary, noise, read, volume};
use crate::run::{Bench, can_mount};
use std::fs;
use std::io::Write;
use std::sync::Arc;
use weft::block::{FileDevice, OpenMode};
use weft::nbd::{Export, Server, server};
use weft::net::Address;

const SOURCE: &str = "nbd+unix:///?socket=nbd.sock";

/// A path on the served volume.
fn there(path: &str) -> String {
    format!("{SOURCE}:/{path}")
}

/// Serves `v.img`.
fn serve(bench: &Bench) -> Server {
    let device = FileDevice::open(bench.path("v.img"), OpenMode::READ_WRITE).unwrap();
    let exports = vec![Export::new("", Arc::new(device))];
    let mut server = Server::new(exports, server::Options::default()).unwrap();
    server.listen(&Address::Unix(bench.path("nbd.sock"))).unwrap();
    server
}

fn stop(server: Server) {
    server.stop(std::time::Duration::from_secs(10)).unwrap();
}

#[test]
fn the_verbs_work_over_nbd() {
    let bench = volume();
    let server = serve(&bench);
    let (data, resource) = (noise(300_000, 21), noise(70_000, 22));
    bench.write("Game.bin", &macbinary(b"Game", b"APPLWeFt", &data, &resource));
    bench.ok(&["put", "--as", "macbinary", "Game.bin", &there(""), "--quiet"]);
    bench.ok(&["mkdir", &there("System Folder")]);
    bench.ok(&["mv", &there("Game"), &there("System Folder/Play")]);
    bench.ok(&["hfs", "set", &there("System Folder/Play"), "--flags", "+inited"]);
    bench.ok(&["hfs", "bless", &there("System Folder"), "--quiet"]);
    assert!(bench.json(&["info", SOURCE])["blessed_folder"].is_u64());
    assert_eq!(bench.json(&["fsck", SOURCE])["clean"], true);
    let args = ["get", "--as", "macbinary", &there("System Folder/Play"), "back.bin", "--quiet"];
    bench.ok(&args);
    let back = read(&bench.path("back.bin"));
    assert!(back[128..].starts_with(&data));
    assert!(back[128 + data.len().next_multiple_of(128)..].starts_with(&resource));

    // A journal lies beside an image file; elsewhere it must be named.
    let put = ["put", "Game.bin", &there("journaled"), "--quiet", "--order", "journal"];
    assert!(bench.fails(2, &put).contains("--journal"));
    bench.write("journal", &vec![0; 4 << 20]);
    bench.ok(&[&put[..], &["--journal", "journal"]].concat());
    assert_eq!(bench.json(&["fsck", SOURCE, "--journal", "journal"])["clean"], true);

    // What is on a device of another machine is no image that could be made longer.
    assert!(bench.fails(1, &["mkfs", "hfs", SOURCE]).contains("in use already"));
    bench.ok(&["mkfs", "hfs", SOURCE, "--label", "Anew", "--force", "--quiet"]);
    assert_eq!(bench.ok(&["hfs", "label", SOURCE]), "Anew\n");
    assert_eq!(bench.ok(&["ls", &there("")]), "");
    stop(server);
    assert_eq!(bench.json(&["fsck", "v.img"])["clean"], true);
}

/// Both forks, as `--forks appledouble` shows them.
struct File {
    name: String,
    data: Vec<u8>,
    resource: Vec<u8>,
}

impl File {
    fn new(n: usize) -> Self {
        let seed = n as u64;
        let name = format!("file {n}");
        Self { name, data: noise(n * 1000, seed), resource: noise(n * 321, seed + 1000) }
    }

    /// An AppleDouble with this resource fork alone.
    fn double(&self) -> Vec<u8> {
        let mut raw = [0x0005_1607_u32, 0x0002_0000].map(u32::to_be_bytes).concat();
        raw.resize(24, 0);
        raw.extend([0, 1]);
        raw.extend([2, 38, self.resource.len() as u32].map(u32::to_be_bytes).concat());
        raw.extend(&self.resource);
        raw
    }

    fn assert_there(&self, bench: &Bench, image: &str) {
        let path = format!("{image}:/{}", self.name);
        bench.ok(&["get", "--as", "macbinary", &path, "out.bin", "--quiet"]);
        let packed = read(&bench.path("out.bin"));
        let (data, resource) = (&packed[128..], self.data.len().next_multiple_of(128));
        assert!(data.starts_with(&self.data), "{}", self.name);
        assert!(data[resource..].starts_with(&self.resource), "{}", self.name);
    }
}

#[test]
fn what_was_synced_outlives_the_daemon_behind_a_cache() {
    if !can_mount() {
        return;
    }
    for (order, journal) in [("soft", false), ("journal=ordered", true)] {
        let bench = volume();
        bench.ok(&["cache", "create", "c.img", "--size", "64M"]);
        bench.write("journal", &vec![0; 4 << 20]);
        let server = serve(&bench);
        fs::create_dir(bench.path("m")).unwrap();
        let mut args = vec!["mount", SOURCE, "m", "--background", "--quiet", "--pid-file", "pid"];
        args.extend(["--cache", "c.img", "--cache-mode", "write-back", "--forks", "appledouble"]);
        args.extend(["--order", order]);
        if journal {
            args.extend(["--journal", "journal"]);
        }
        let files: Vec<File> = (1..30).map(File::new).collect();
        for round in 0..2 {
            bench.ok(&args);
            for (i, file) in files.iter().enumerate().filter(|(i, _)| i % 2 == round) {
                for (name, content) in
                    [(file.name.clone(), &file.data), (format!("._{}", file.name), &file.double())]
                {
                    let path = bench.path("m").join(name);
                    let mut to = fs::File::create(path).unwrap();
                    to.write_all(content).unwrap();
                    to.sync_all().unwrap_or_else(|e| panic!("{order}, file {i}: {e}"));
                }
            }
            let pid = fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let _ = bench.run(&["umount", "--lazy", "m"]);
        }
        bench.ok(&args);
        for file in &files {
            let read = fs::read(bench.path("m").join(&file.name)).unwrap();
            assert!(read == file.data, "{order}: {}", file.name);
        }
        bench.ok(&["umount", "m"]);
        // Written back, the volume stands by itself.
        bench.ok(&["cache", "flush", "c.img", SOURCE]);
        stop(server);
        let report = bench.json(&["fsck", "v.img"]);
        assert_eq!((&report["clean"], &report["unmounted"]), (&true.into(), &true.into()));
        for file in &files {
            file.assert_there(&bench, "v.img");
        }
    }
}
