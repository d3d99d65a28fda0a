//! `weft crash mount`, `report`, `lose` and `sync`: with real programs in a real mount.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::run::{Bench, ran};
use weft_testing::wait_until;

/// A directory `d` that is mounted on `m` until this is dropped.
struct Mounted {
    bench: Bench,
}

impl Mounted {
    fn new(options: &[&str]) -> Self {
        let bench = Bench::new();
        for dir in ["d", "m"] {
            std::fs::create_dir(bench.path(dir)).unwrap();
        }
        let this = Self { bench };
        this.mount(options);
        this
    }

    fn mount(&self, options: &[&str]) {
        self.bench.ok(&[&["crash", "mount", "--background", "d", "m"][..], options].concat());
    }

    fn at(&self, path: &str) -> PathBuf {
        self.bench.path("m").join(path)
    }

    fn below(&self, path: &str) -> PathBuf {
        self.bench.path("d").join(path)
    }

    fn lose(&self, options: &[&str]) -> serde_json::Value {
        let args = [&["--json", "crash", "lose", "m"][..], options].concat();
        serde_json::from_str(&self.bench.ok(&args)).unwrap()
    }

    /// Begins to wait for a call; returns when it counts.
    fn lose_at(&self, options: &[&str]) -> Child {
        let args = [&["crash", "lose", "m"][..], options].concat();
        let mut losing = self.bench.command(&args);
        let mut losing =
            losing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft runs");
        wait_until("the request waits", || {
            let report = self.bench.ok(&["--json", "crash", "report", "m"]);
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            assert!(losing.try_wait().unwrap().is_none(), "weft crash lose has ended");
            report["waiting"] == 1
        });
        losing
    }

    fn shell(&self, line: &str) -> bool {
        let status =
            Command::new("sh").args(["-c", line]).current_dir(self.bench.path("m")).status();
        status.unwrap().success()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut umount = self.bench.command(&["umount", "m"]);
        let _ = umount.stderr(Stdio::null()).status();
    }
}

#[test]
fn what_is_not_fsynced_is_told_and_lost() {
    let folder = Mounted::new(&[]);
    std::fs::write(folder.at("kept"), "1").unwrap();
    std::fs::File::open(folder.at("kept")).unwrap().sync_all().unwrap();
    std::fs::create_dir(folder.at("sub")).unwrap();
    std::fs::write(folder.at("sub/gone"), vec![7; 10_000]).unwrap();

    let report = folder.bench.ok(&["crash", "report", "m"]);
    for text in
        ["ext4-ordered", "\"sub/gone\": new inode; bytes 0 to 10000; size 10000", "mkdir(\"sub\")"]
    {
        assert!(report.contains(text), "{text}: {report}");
    }
    assert_eq!(std::fs::read(folder.below("kept")).unwrap(), b"1");
    assert!(!folder.below("sub").exists());

    let lost = folder.lose(&[]);
    assert_eq!(lost["lost"]["bytes"], 10_000);
    assert_eq!(lost["lost"]["files"][1]["path"], "sub/gone");
    assert!(!folder.at("sub").exists());
    assert_eq!(std::fs::read(folder.at("kept")).unwrap(), b"1");
    let report = folder.bench.ok(&["crash", "report", "m"]);
    assert!(report.contains("everything is durable"), "{report}");
}

#[test]
fn an_unmount_keeps_everything_and_a_killed_mount_what_is_durable() {
    let folder = Mounted::new(&["--pid-file", "pid"]);
    std::fs::write(folder.at("f"), "durable").unwrap();
    folder.bench.ok(&["crash", "sync", "m"]);
    std::fs::write(folder.at("f"), "not yet").unwrap();
    let pid = std::fs::read_to_string(folder.bench.path("pid")).unwrap();
    assert!(folder.shell(&format!("kill -9 {pid}")));
    let _ = folder.bench.run(&["umount", "m"]);
    assert_eq!(std::fs::read(folder.below("f")).unwrap(), b"durable");

    folder.mount(&[]);
    std::fs::write(folder.at("f"), "kept").unwrap();
    std::fs::rename(folder.at("f"), folder.at("g")).unwrap();
    folder.bench.ok(&["umount", "m"]);
    assert_eq!(std::fs::read(folder.below("g")).unwrap(), b"kept");
    assert!(!folder.below("f").exists());
}

/// Appends lines to `log`, makes each durable, and says so.
const WRITER: &str = r#"
import os, sys
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
directory = os.open(".", os.O_RDONLY)
os.fsync(directory)
for nr in range(1000000):
    os.write(log, b"%d\n" % nr)
    os.fsync(log)
    print(nr, flush=True)
"#;

#[test]
fn a_program_is_killed_at_its_call_and_what_it_promised_is_there() {
    let folder = Mounted::new(&[]);
    folder.bench.write("writer.py", WRITER.as_bytes());
    let losing =
        folder.lose_at(&["--at", "fsync:log", "--nth", "20", "--kill", "--timeout", "60s"]);
    let mut writer = Command::new("python3")
        .arg(folder.bench.path("writer.py"))
        .current_dir(folder.bench.path("m"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = String::new();
    writer.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let ended = writer.wait().unwrap();
    assert!(!ended.success() && ended.code().is_none(), "killed: {ended}");
    let lost = ran(&losing.wait_with_output().unwrap());
    assert_eq!(lost.code, 0, "{}", lost.err);
    assert!(lost.out.contains("the power was cut at fsync(\"log\")"), "{}", lost.out);
    assert!(lost.out.contains(&format!("killed: {}", writer.id())), "{}", lost.out);
    assert_eq!(said.lines().count(), 19);
    let log = std::fs::read_to_string(folder.at("log")).unwrap();
    assert_eq!(log, said, "what was fsynced, and nothing else");
    assert_eq!(std::fs::read_to_string(folder.below("log")).unwrap(), said);
}

#[test]
fn a_program_that_goes_on_has_lost_its_open_files() {
    let folder = Mounted::new(&["--model", "posix"]);
    let mut file = std::fs::File::create(folder.at("f")).unwrap();
    file.write_all(b"1").unwrap();
    folder.lose(&[]);
    let error = file.write_all(b"2").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    assert!(!folder.at("f").exists());
    // A shell that changes something and asks for a power cut is not killed.
    let weft = env!("CARGO_BIN_EXE_weft");
    assert!(
        folder
            .shell(&format!("echo x >g; {weft} --quiet crash lose --kill . >/dev/null; echo y >h"))
    );
    assert!(folder.at("h").exists() && !folder.at("g").exists());
}

#[test]
fn pages_changed_through_a_mapping_are_lost_with_the_power() {
    let folder = Mounted::new(&["--model", "posix"]);
    let program = "import mmap, os, sys
f = open('f', 'w+b'); f.write(bytes(8192)); f.flush(); os.fsync(f.fileno())
d = os.open('.', os.O_RDONLY); os.fsync(d)
m = mmap.mmap(f.fileno(), 8192)
m[0:1] = b'1'; m.flush(0, 4096)
m[4096:4097] = b'2'
print('mapped', flush=True); sys.stdin.read()";
    let mut mapped = Command::new("python3")
        .args(["-c", program])
        .current_dir(folder.bench.path("m"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = BufReader::new(mapped.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    folder.lose(&["--kill"]);
    mapped.wait().unwrap();
    let left = std::fs::read(folder.at("f")).unwrap();
    assert_eq!((left[0], left[4096]), (b'1', 0));
}

#[test]
fn the_socket_speaks_json() {
    let folder = Mounted::new(&["--control", "socket", "--model", "xfs-like"]);
    let stream = UnixStream::connect(folder.bench.path("socket")).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut ask = |request: &str| -> serde_json::Value {
        writeln!(&stream, "{request}").unwrap();
        serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap()
    };
    assert_eq!(ask(r#""report""#)["report"]["model"], "xfs-like");
    std::fs::write(folder.at("f"), "1").unwrap();
    assert_eq!(ask(r#"{"lose":{"path":"nothing"}}"#)["lost"]["lost"]["calls"], 0);
    // What was kept is on the disk now.
    assert_eq!(ask(r#"{"lose":{"mode":{"newest":1}}}"#)["lost"]["lost"]["calls"], 0);
    std::fs::write(folder.at("g"), "1").unwrap();
    assert_eq!(ask(r#"{"lose":{"mode":{"newest":1}}}"#)["lost"]["lost"]["calls"], 1);
    assert_eq!(ask(r#""sync""#), "done");
    for wrong in
        [r#"{"lose":{"path":"a["}}"#, r#"{"lose":{"at":{"call":"fly"}}}"#, "{", r#""gain""#]
    {
        assert!(ask(wrong)["error"].is_string(), "{wrong}");
    }
    assert_eq!(ask(r#"{"lose":{"at":{"call":"unlink"},"kill":false}}"#), "armed");
    assert!(std::fs::remove_file(folder.at("f")).is_err());
    let lost: serde_json::Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
    assert_eq!(lost["lost"]["at"], "unlink(\"f\")");
    assert!(folder.at("f").exists());
}

#[test]
fn hostile_clients_of_the_socket_harm_nobody() {
    let folder = Mounted::new(&["--control", "socket"]);
    let connect = || UnixStream::connect(folder.bench.path("socket")).unwrap();
    let idle: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
    let closed = |mut stream: UnixStream| {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    };
    // A line without an end, bytes that are no text, half a request.
    let mut long = connect();
    let _ = long.write_all(&[b'{'; 100 << 10]);
    assert_eq!(closed(long), b"");
    let mut binary = connect();
    binary.write_all(b"\xff\x00\n\"rep").unwrap();
    binary.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(closed(binary).starts_with(b"{\"error\""));
    // One that waits for a call and goes away, and one that waits on.
    let request = b"{\"lose\":{\"at\":{\"call\":\"mkdir\",\"nth\":2}}}\n";
    for goes in [true, false] {
        let mut waits = connect();
        waits.write_all(request).unwrap();
        let mut answer = BufReader::new(waits.try_clone().unwrap());
        let mut armed = String::new();
        answer.read_line(&mut armed).unwrap();
        assert_eq!(armed, "\"armed\"\n");
        if goes {
            drop((answer, waits));
            wait_until("nobody waits", || {
                let report = folder.bench.ok(&["--json", "crash", "report", "m"]);
                serde_json::from_str::<serde_json::Value>(&report).unwrap()["waiting"] == 0
            });
            continue;
        }
        std::fs::create_dir(folder.at("one")).unwrap();
        assert!(std::fs::create_dir(folder.at("two")).is_err());
        answer.read_line(&mut armed).unwrap();
        assert!(armed.contains("mkdir(\\\"two\\\")"), "{armed}");
    }
    assert!(!folder.at("one").exists());
    drop(idle);
    let report = folder.bench.ok(&["crash", "report", "m"]);
    assert!(report.contains("everything is durable"), "{report}");
}

#[test]
fn wrong_uses_are_named() {
    let folder = Mounted::new(&[]);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["crash", "lose", "m", "--at", "fsnyc"], 2, "fsync"),
        (&["crash", "lose", "m", "--path", "a["], 2, "a["),
        (&["crash", "report", "d"], 1, "nothing is mounted"),
        (&["crash", "mount", "d", "e"], 1, "in use by another process of weft"),
        (&["crash", "lose", "m", "--at", "read", "--timeout", "100ms"], 1, "did not come"),
    ];
    std::fs::create_dir(folder.bench.path("e")).unwrap();
    for (args, code, text) in cases {
        let ran = folder.bench.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(text), "{args:?}: {}", ran.err);
    }
    // What waited waits no more: nothing is cut.
    std::fs::write(folder.at("f"), "1").unwrap();
    assert_eq!(std::fs::read(folder.at("f")).unwrap(), b"1");
}

#[test]
fn a_directory_can_be_mounted_over_itself() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("d")).unwrap();
    bench.write("d/f", b"1");
    bench.ok(&["crash", "mount", "--background", "d", "d"]);
    bench.write("d/f", b"2");
    bench.ok(&["crash", "lose", "d"]);
    assert_ne!(std::fs::read(bench.path("d/f")).unwrap(), b"2");
    bench.write("d/g", b"3");
    bench.ok(&["umount", "d"]);
    assert_eq!(std::fs::read(bench.path("d/g")).unwrap(), b"3");
}
