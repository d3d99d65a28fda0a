//! `weft serve nbd` and `nbd://` sources, through the real command, with other people's clients
//! and servers.

use crate::run::{Bench, Ran, can_mount, tool};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const LEN: usize = 32 << 20;

/// A server in the background; it ends with the test.
struct Served<'a> {
    bench: &'a Bench,
    process: i32,
}

impl<'a> Served<'a> {
    /// Serves `source` on the socket `s` of the bench.
    fn new(bench: &'a Bench, source: &str, more: &[&str]) -> Self {
        let args = ["serve", "nbd", source, "--socket", "s", "--background", "--json"];
        let out = bench.ok(&args.iter().chain(more).copied().collect::<Vec<_>>());
        let said: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let process = said["process"].as_i64().expect("a process id");
        Self { bench, process: i32::try_from(process).expect("a process id") }
    }

    fn uri(&self) -> String {
        self.with_scheme("nbd+unix")
    }

    fn with_scheme(&self, scheme: &str) -> String {
        format!("{scheme}:///?socket={}", self.bench.path("s").display())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process).expect("a process id");
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Tells it to end, and waits until it has.
    fn stop(self) {
        self.signal(rustix::process::Signal::TERM);
        self.wait();
    }

    fn wait(&self) {
        let pid = rustix::process::Pid::from_raw(self.process).expect("a process id");
        for _ in 0..500 {
            if rustix::process::test_kill_process(pid).is_err() || is_zombie(self.process) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the server does not end");
    }
}

/// Whether it has ended and only waits for somebody to ask how: nobody does where there is no init.
fn is_zombie(process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::KILL);
    }
}

/// Runs a tool and demands success; `None` if it is not installed.
fn run_tool(name: &str, args: &[&str]) -> Option<Ran> {
    let ran = tool(name, args.iter().map(OsStr::new))?;
    assert_eq!(ran.code, 0, "{name} {}: {ran:#?}", args.join(" "));
    Some(ran)
}

/// An image with noise, zeroes and a hole in it.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut rng = weft::block::Rng::new(1);
    rng.fill(&mut bytes[100_000..9_000_000]);
    rng.fill(&mut bytes[20 << 20..(20 << 20) + 5000]);
    bytes
}

#[test]
fn nbdinfo_sees_the_export_as_it_is() {
    let bench = Bench::new();
    bench.write("disk.img", &image());
    let more = ["--description", "a disk of noise", "--read-only"];
    let served = Served::new(&bench, "disk.img", &more);
    let Some(info) = run_tool("nbdinfo", &["--json", &served.uri()]) else { return };
    let info: serde_json::Value = serde_json::from_str(&info.out).expect("JSON");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["description"], "a disk of noise");
    assert_eq!(export["export-size"], LEN);
    assert_eq!(export["contexts"][0], "base:allocation");
    for (ability, want) in [
        ("is_read_only", true),
        ("can_multi_conn", true),
        ("can_flush", true),
        ("can_df", true),
        ("can_trim", false),
        ("can_zero", false),
    ] {
        assert_eq!(export[ability], want, "{ability}: {export}");
    }
    run_tool("nbdinfo", &["--list", &served.uri()]);
    served.stop();
    assert!(!bench.path("s").exists(), "the socket is removed");
}

#[test]
fn nbdcopy_and_qemu_copy_both_ways() {
    let bench = Bench::new();
    let image = image();
    bench.write("from.img", &image);
    bench.write("disk.img", &vec![0xa5; LEN]);
    let path = |name: &str| bench.path(name).display().to_string();
    let served = Served::new(&bench, "disk.img", &[]);
    let uri = served.uri();
    if run_tool("nbdcopy", &[&path("from.img"), &uri]).is_some() {
        assert!(fs::read(bench.path("disk.img")).unwrap() == image, "nbdcopy in");
        run_tool("nbdcopy", &["--requests=32", "--connections=2", &uri, &path("back.img")]);
        assert!(fs::read(bench.path("back.img")).unwrap() == image, "nbdcopy out");
    }
    fs::write(bench.path("disk.img"), vec![0x5a; LEN]).unwrap();
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw"];
    let from = path("from.img");
    let there = [&convert[..], &[&from, &uri]].concat();
    if run_tool("qemu-img", &there).is_some() {
        assert!(fs::read(bench.path("disk.img")).unwrap() == image, "qemu-img in");
        let out = path("out.img");
        run_tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &out]);
        assert!(fs::read(bench.path("out.img")).unwrap() == image, "qemu-img out");
        run_tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &from]);
    }
    served.stop();
}

#[test]
fn qemu_io_does_every_kind_of_request() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; LEN]);
    let served = Served::new(&bench, "disk.img", &["--listen", "127.0.0.1:0"]);
    let Some(ran) = run_tool(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "write -P 7 1M 100k",
            "-c",
            "write -f -P 8 3M 4k",
            "-c",
            "aio_write -P 9 5M 2M",
            "-c",
            "aio_write -P 10 8M 2M",
            "-c",
            "aio_flush",
            "-c",
            "write -z 1M 4k",
            "-c",
            "write -z -u 6M 64k",
            "-c",
            "discard 12M 1M",
            "-c",
            "flush",
            "-c",
            "read -P 0 1M 4k",
            "-c",
            "read -P 7 1052672 98304",
            "-c",
            "read -P 8 3M 4k",
            "-c",
            "read -P 9 5M 1M",
            "-c",
            "read -P 0 6M 64k",
            "-c",
            "read -P 10 8M 2M",
            &served.uri(),
        ],
    ) else {
        return;
    };
    assert!(!ran.out.contains("failed") && !ran.out.contains("error"), "{ran:#?}");
    served.stop();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; LEN]);
    let served = Served::new(&bench, "disk.img", &[]);
    let uri = format!("--uri={}", served.uri());
    // Debian's fio may be built without the engine.
    let Some(engines) = tool("fio", [OsStr::new("--enghelp")]) else { return };
    if !engines.out.contains("nbd") {
        return println!("not here: the packaged fio has no engine for NBD");
    }
    // Not mixed with --fsync: then this fio complains of any server (seen with nbdkit too).
    for load in [&["--rw=randwrite", "--bsrange=1k-64k"], &["--rw=randrw", "--bs=4k"]] {
        let fixed = ["--name=x", "--ioengine=nbd", &uri, "--size=16M", "--iodepth=16"];
        let verify = ["--verify=crc32c", "--randseed=7", "--verify_state_save=0"];
        run_tool("fio", &[&fixed[..], &verify, load].concat());
    }
    served.stop();
}

#[test]
fn tls_works_with_other_peoples_clients_and_servers() {
    let bench = Bench::new();
    let pki = bench.path("pki");
    // As docs/nbd.md says.
    bench.ok(&["ringer", "init", "pki", "--host", "localhost", "--quiet"]);
    let anonymous = bench.path("anonymous");
    fs::create_dir_all(&anonymous).unwrap();
    fs::copy(pki.join("ca-cert.pem"), anonymous.join("ca-cert.pem")).unwrap();
    bench.write("disk.img", &image());
    let at = |served: &Served<'_>, directory: &Path| {
        let uri = served.with_scheme("nbds+unix");
        format!("{uri}&tls-hostname=localhost&tls-certificates={}", directory.display())
    };

    let certificates = format!("--tls-certificates={}", pki.display());
    let served = Served::new(&bench, "disk.img", &["--tls=require", &certificates]);
    if let Some(ran) = run_tool("nbdinfo", &[&at(&served, &anonymous)]) {
        assert!(ran.out.contains("with TLS"), "{ran:#?}");
        let plain = tool("nbdinfo", [OsStr::new(&served.uri())]).unwrap();
        assert_ne!(plain.code, 0, "{plain:#?}");
        let copy = bench.path("copy.img").display().to_string();
        run_tool("nbdcopy", &[&at(&served, &anonymous), &copy]);
        assert!(fs::read(bench.path("copy.img")).unwrap() == image());
    }
    // Our own client, against our own server.
    assert!(bench.fails(1, &["info", &served.uri()]).contains("TLS"));
    bench.ok(&["mkfs", "ext2", &at(&served, &anonymous), "--force"]);
    served.stop();

    let served =
        Served::new(&bench, "disk.img", &["--tls=require", &certificates, "--tls-verify-peer"]);
    if let Some(ran) = tool("nbdinfo", [OsStr::new(&at(&served, &anonymous))]) {
        assert_ne!(ran.code, 0, "no certificate: {ran:#?}");
        run_tool("nbdinfo", &[&at(&served, &pki)]);
    }
    bench.fails(1, &["info", &at(&served, &anonymous)]);
    bench.ok(&["info", &at(&served, &pki)]);
    served.stop();

    // Our client, against another server.
    let socket = bench.path("kit").display().to_string();
    let certificates = format!("--tls-certificates={}", pki.display());
    let args = ["-f", "-U", &socket, "--tls=require", &certificates, "--tls-verify-peer"];
    let Some(_kit) = start_server("nbdkit", &[&args[..], &["memory", "64M"]].concat(), &socket)
    else {
        return;
    };
    let uri = format!("nbds+unix:///?socket={socket}&tls-certificates={}", pki.display());
    bench.ok(&["mkfs", "ext2", &uri]);
    bench.write("hello", b"over TLS");
    bench.ok(&["put", "hello", &format!("{uri}:/")]);
    assert_eq!(bench.ok(&["cat", &format!("{uri}:/hello")]), "over TLS");
}

/// A server of somebody else; it ends when this is dropped.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one and waits for its socket; `None` if it is not installed.
fn start_server(name: &str, args: &[&str], socket: &str) -> Option<Foreign> {
    let spawned = Command::new(name).args(args).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(child) = spawned else {
        println!("skipped: {name} is not installed");
        return None;
    };
    let server = Foreign(child);
    for _ in 0..500 {
        if Path::new(socket).exists() {
            return Some(server);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{name} does not listen");
}

#[test]
fn volumes_live_on_servers_of_others_too() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; LEN]);
    let disk = bench.path("disk.img").display().to_string();
    let (kit, qemu) = (bench.path("kit"), bench.path("qemu"));
    let (kit, qemu) = (kit.display().to_string(), qemu.display().to_string());
    // Blocks of 4 KiB only; one connection and simple replies only; the usual.
    let blocks = ["-f", "-U", &kit, "--filter=blocksize-policy", "file", &disk];
    let sizes = ["blocksize-minimum=4096", "blocksize-error-policy=error"];
    let old = ["-f", "-U", &kit, "--no-sr", "--filter=multi-conn", "file", &disk];
    let servers: [(&str, Vec<&str>, &str); 3] = [
        ("nbdkit", [&blocks[..], &sizes].concat(), &kit),
        ("nbdkit", [&old[..], &["multi-conn-mode=disable"]].concat(), &kit),
        ("qemu-nbd", vec!["-f", "raw", "-t", "-e", "8", "-k", &qemu, &disk], &qemu),
    ];
    for (name, args, socket) in servers {
        let Some(_server) = start_server(name, &args, socket) else { continue };
        let uri = format!("nbd+unix:///?socket={socket}");
        bench.ok(&["mkfs", "ext2", &uri, "--block-size", "1024", "--force"]);
        bench.write("hello", name.as_bytes());
        bench.ok(&["put", "hello", &format!("{uri}:/")]);
        assert_eq!(bench.ok(&["cat", &format!("{uri}:/hello")]), name);
        bench.ok(&["fsck", &uri]);
        drop(_server);
        let _ = fs::remove_file(socket);
        bench.e2fsck_clean("disk.img");
    }
}

#[test]
fn every_verb_takes_a_uri_and_a_mount_survives_the_servers_death() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; LEN]);
    let served = Served::new(&bench, "disk.img", &[]);
    let uri = served.uri();
    bench.ok(&["mkfs", "ext3", &uri]);
    assert_eq!(bench.json(&["info", &uri])["format"], "ext3");
    assert!(bench.ok(&["ls", &format!("{uri}:/")]).contains("lost+found"));
    bench.ok(&["fsck", &uri]);
    if !can_mount() {
        return;
    }
    fs::create_dir_all(bench.path("m")).unwrap();
    bench.ok(&["mount", &uri, "m", "--background"]);
    // While it is mounted nobody else of this host may write to it.
    bench.write("other", b"x");
    assert!(bench.fails(1, &["put", "other", &format!("{uri}:/")]).contains("in use"));
    fs::write(bench.path("m/before"), vec![1; 300_000]).unwrap();
    served.signal(rustix::process::Signal::KILL);
    served.wait();
    let served = Served::new(&bench, "disk.img", &[]);
    fs::write(bench.path("m/after"), vec![2; 300_000]).unwrap();
    bench.ok(&["umount", "m"]);
    // The server is told to end, flushes, and lets go of the image.
    served.stop();
    bench.e2fsck_clean("disk.img");
    assert_eq!(bench.run(&["cat", "disk.img:/before"]).out.len(), 300_000);
    assert_eq!(bench.run(&["cat", "disk.img:/after"]).out.len(), 300_000);
}

#[test]
fn partitions_are_served_and_taken() {
    let bench = Bench::new();
    let mut disk = vec![0; LEN];
    // An MBR with one partition, from 1 MiB to 9 MiB.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&16384_u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    bench.write("disk.img", &disk);
    let served = Served::new(&bench, "disk.img", &[]);
    let uri = format!("{}&partition=1", served.uri());
    bench.ok(&["mkfs", "ext2", &uri]);
    assert_eq!(bench.json(&["info", &uri])["len_bytes"], 8 << 20);
    served.stop();
    let served = Served::new(&bench, "disk.img?partition=1", &[]);
    assert_eq!(bench.json(&["info", &served.uri()])["len_bytes"], 8 << 20);
    served.stop();
}

#[test]
fn wrong_usage_is_explained() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; 4096]);
    for (code, args, says) in [
        (2, &["serve", "nbd", "disk.img", "--tls", "require"][..], "--tls-certificates"),
        (2, &["serve", "nbd", "disk.img", "--tls-verify-peer"], "--tls"),
        (2, &["serve", "nbd", "disk.img", "--listen", "host:x"], "HOST:PORT"),
        (1, &["serve", "nbd", "missing.img", "--socket", "s"], "missing.img"),
        (1, &["serve", "nbd", "missing.img", "--socket", "s", "--background"], "missing.img"),
        (2, &["ls", "nbd+unix:///x:/"], "socket"),
        (1, &["info", "nbds+unix:///x?socket=s"], "tls-certificates"),
        (1, &["info", "nbd+unix:///x?socket=s&timeout=1"], "cannot connect"),
    ] {
        let complaint = bench.fails(code, args);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
}

/// An unmount waits for a slow server, and meanwhile another mount, in a container, say, is given the
/// device number that the ended one had: the unmount does not take it for its own.
#[test]
fn an_unmount_that_waits_is_not_confused_by_a_mount_with_its_device_number() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root may make a mount namespace");
        return;
    }
    // Another test's mount may be the one that is given the number.
    assert!((0..20).any(|_| unmount_beside_a_mount_with_its_number()), "no mount had the number");
}

fn unmount_beside_a_mount_with_its_number() -> bool {
    let bench = Bench::with_volume("ext2");
    let served = Served::new(&bench, "v.img", &[]);
    let dir = bench.path("m");
    fs::create_dir(&dir).unwrap();
    bench.ok(&["mount", &served.uri(), "m", "--background"]);
    fs::write(dir.join("file"), b"x").unwrap();
    let mounted = weft::mounts::mounted_at(&dir).unwrap().expect("it is mounted");
    served.signal(rustix::process::Signal::STOP);
    let mut unmount = bench.command(&["umount", "m"]).stderr(Stdio::piped()).spawn().unwrap();
    weft_testing::wait_until("it is unmounted", || {
        weft::mounts::mounted_at(&dir).unwrap().is_none()
    });
    // The lowest free number is given first. What other tests have mounted is let go.
    let script = "awk '$3 ~ /^fuse/ { print $2 }' /proc/self/mounts |
        while read -r other; do umount -l \"$other\"; done
        number=none
        for i in $(seq 50); do
            mkdir $i; \"$0\" mkfs ext2 $i.img --size 1M --quiet
            \"$0\" mount $i.img $i --background >/dev/null
            if mountpoint -d $i | grep -qx \"$1\"; then number=$1; break; fi
        done
        echo $number; read -r _
        for j in $(seq $i); do \"$0\" umount $j; done";
    let (major, minor) = mounted.device;
    let number = format!("{major}:{minor}");
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .args([env!("CARGO_BIN_EXE_weft"), &number])
        .current_dir(bench.dir())
        .env("WEFT_RUNTIME_DIR", bench.path("run"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare(1) runs");
    let mut given = String::new();
    BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut given).unwrap();
    let mut told = BufReader::new(unmount.stderr.take().expect("a pipe"));
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    served.signal(rustix::process::Signal::CONT);
    told.read_to_string(&mut line).unwrap();
    let ended = unmount.wait().unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert!(ended.success() && line.contains("waiting until"), "{line}");
    served.stop();
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "x");
    given.trim_end() == number
}
