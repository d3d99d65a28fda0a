//! A cache and its source, when the source has grown, shrunk, moved or is written in another way:
//! nothing that was flushed is lost or hidden, and each refusal names a way out that works.

use crate::run::Bench;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use weft::block::BlockDevice;
use weft::nbd::{NbdDevice, Uri};

const LEN: u64 = 16 << 20;
const PART: usize = 64 << 10;

/// `weft serve nbd` in the foreground; it ends with the test.
struct Server<'a> {
    bench: &'a Bench,
    socket: String,
    child: Child,
}

impl<'a> Server<'a> {
    fn start(bench: &'a Bench, source: &str, socket: &str, more: &[&str]) -> Self {
        let mut args = vec!["serve", "nbd", source, "--socket", socket];
        args.extend(more);
        let mut child = bench.command(&args).stdout(Stdio::piped()).spawn().expect("weft runs");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.contains("is served"), "{args:?}: {line:?}");
        Self { bench, socket: socket.to_owned(), child }
    }

    /// Behind the cache, which writes nothing back by itself.
    fn cached(bench: &'a Bench, source: &str, more: &[&str]) -> Self {
        let mut args = vec!["--cache", "c.img", "--cache-mode", "write-back"];
        args.extend(["--cache-options", "dirty-age-ms=6000000"]);
        args.extend(more);
        Self::start(bench, source, "s", &args)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.bench.path(&self.socket).display())
    }

    fn device(&self) -> NbdDevice {
        let uri: Uri = self.uri().parse().expect("a URI");
        NbdDevice::connect(uri.options().expect("options")).expect("it connects")
    }

    fn first_byte(&self) -> u8 {
        let mut byte = [0];
        self.device().read_at(&mut byte, 0).expect("a read");
        byte[0]
    }

    fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().expect("an end").success());
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("small")).expect("an id");
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A cache with 64 KiB of `z` for `source` that were flushed, and that the source lacks.
fn dirty(bench: &Bench, source: &str) {
    let served = Server::cached(bench, source, &[]);
    let device = served.device();
    device.write_at(&[b'z'; PART], 0).expect("a write");
    device.flush().expect("a flush");
    drop(device);
    served.stop();
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("disk.img", &vec![b'y'; LEN as usize]);
    bench.ok(&["cache", "create", "c.img", "--size", "4M"]);
    bench
}

fn resize(bench: &Bench, file: &str, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(bench.path(file)).expect("it is there");
    file.set_len(len).expect("a new length");
}

/// What a verb complains of that does not take the source.
fn refused(bench: &Bench, source: &str, more: &[&str]) -> String {
    let mut args = vec!["serve", "nbd", source, "--socket", "s", "--cache", "c.img"];
    args.extend(more);
    bench.fails(1, &args)
}

#[test]
fn a_source_that_has_grown_is_taken_with_its_dirty_data() {
    for by_flush in [true, false] {
        let bench = bench();
        dirty(&bench, "disk.img");
        resize(&bench, "disk.img", LEN + (8 << 20));
        let said = refused(&bench, "disk.img", &[]);
        assert!(said.contains("65536") && said.contains("--resized"), "{said}");
        let said = bench.fails(1, &["cache", "flush", "c.img", "disk.img"]);
        assert!(said.contains("--resized"), "{said}");
        let said = bench.fails(1, &["cache", "detach", "c.img"]);
        assert!(said.contains("--resized") && said.contains("--discard-dirty"), "{said}");
        if by_flush {
            let said = bench.ok(&["cache", "flush", "c.img", "disk.img", "--resized"]);
            assert!(said.contains("64K"), "{said}");
        }
        let more: &[&str] = if by_flush { &[] } else { &["--cache-resized"] };
        let served = Server::cached(&bench, "disk.img", more);
        assert_eq!(served.first_byte(), b'z');
        assert_eq!(served.device().geometry().len_bytes, LEN + (8 << 20));
        served.stop();
        let mut want = vec![b'y'; LEN as usize];
        want[..PART].fill(b'z');
        want.resize(want.len() + (8 << 20), 0);
        assert!(fs::read(bench.path("disk.img")).unwrap() == want, "the source is whole");
        bench.ok(&["cache", "detach", "c.img"]);
    }
}

#[test]
fn a_source_that_has_shrunk_is_refused_with_what_would_be_lost() {
    let bench = bench();
    dirty(&bench, "disk.img");
    resize(&bench, "disk.img", 16 << 10);
    for more in [&[][..], &["--cache-resized"]] {
        let said = refused(&bench, "disk.img", more);
        assert!(said.contains("49152 of them behind its new end"), "{said}");
        assert!(said.contains("Make it 16777216 bytes long again"), "{said}");
    }
    resize(&bench, "disk.img", LEN);
    // What was cut off is gone, and the cache notices; the dirty data is not lost.
    bench.fails(1, &["cache", "flush", "c.img", "disk.img"]);
    let served = Server::cached(&bench, "disk.img", &["--cache-invalidate"]);
    assert_eq!(served.first_byte(), b'z');
    served.stop();
}

#[test]
fn a_source_under_another_name_is_not_served_without_its_dirty_data() {
    let bench = bench();
    dirty(&bench, "disk.img");
    let old = bench.path("disk.img").display().to_string();
    fs::rename(bench.path("disk.img"), bench.path("new.img")).unwrap();
    let said = refused(&bench, "new.img", &[]);
    assert!(said.contains("65536 of them dirty"), "{said}");
    assert!(said.contains(&format!("--cache-name '{old}'")), "{said}");
    // Told to add it, it would be served as it was before.
    let said = refused(&bench, "new.img", &["--cache-add"]);
    assert!(said.contains("65536 bytes are in this cache only"), "{said}");
    let served = Server::cached(&bench, "new.img", &["--cache-name", &old]);
    assert_eq!(served.first_byte(), b'z');
    served.stop();
    // Another one that reads the same has a name of its own.
    fs::copy(bench.path("new.img"), bench.path("copy.img")).unwrap();
    let add = ["--cache-add", "--cache-name", "copy"];
    let served = Server::cached(&bench, "copy.img", &add);
    assert_eq!(served.first_byte(), b'y');
    served.stop();
    bench.ok(&["cache", "flush", "c.img", "new.img", "--cache-name", &old]);
    assert_eq!(fs::read(bench.path("new.img")).unwrap()[0], b'z');
}

#[test]
fn a_source_has_one_name_however_it_is_written() {
    let bench = bench();
    std::os::unix::fs::symlink(bench.path("disk.img"), bench.path("link")).unwrap();
    fs::create_dir(bench.path("d")).unwrap();
    dirty(&bench, "disk.img");
    for other in ["./disk.img", "link", "d/../disk.img"] {
        let served = Server::cached(&bench, other, &[]);
        assert_eq!(served.first_byte(), b'z', "{other}");
        served.stop();
    }
    // An export, by several URIs.
    let bench = self::bench();
    let origin = Server::start(&bench, "disk.img", "o", &[]);
    dirty(&bench, &origin.uri());
    let relative = "nbd+unix:///?timeout=9&socket=o&connections=2".to_owned();
    for other in [format!("{}&timeout=5", origin.uri()), relative] {
        let served = Server::cached(&bench, &other, &[]);
        assert_eq!(served.first_byte(), b'z', "{other}");
        served.stop();
    }
    let info = bench.json(&["cache", "info", "c.img"]);
    assert_eq!(info["origins"].as_array().unwrap().len(), 1, "{info}");
    origin.stop();
}

/// A source with a volatile cache (nbdkit's), and a power cut of it and of weft after zeroes and
/// discards longer than the cache keeps as such.
#[test]
fn what_was_flushed_survives_long_zeroes_and_a_power_cut_of_the_source() {
    for zeroes in [true, false] {
        let bench = bench();
        let origin = || {
            let mut nbdkit = Command::new("nbdkit");
            nbdkit.args(["-f", "-U"]).arg(bench.path("o")).args(["--filter=cache", "file"]);
            nbdkit.arg(bench.path("disk.img")).arg("cache=writeback").stdin(Stdio::null());
            let _ = fs::remove_file(bench.path("o"));
            let child = nbdkit.spawn().ok()?;
            weft_testing::wait_until("nbdkit listens", || bench.path("o").exists());
            Some(Killed(child))
        };
        let Some(disk) = origin() else {
            println!("skipped: nbdkit is not installed");
            return;
        };
        let uri = format!("nbd+unix:///?socket={}", bench.path("o").display());
        bench.ok(&["cache", "create", "c.img", "--size", "32M", "--force"]);
        let served = Server::cached(&bench, &uri, &[]);
        let device = served.device();
        let all = |byte: u8| {
            device.write_at(&vec![byte; 4 << 20], 0).expect("a write");
            device.flush().expect("a flush");
        };
        all(b'A');
        bench.ok(&["cache", "flush", "c.img"]);
        all(b'B');
        let commits = || {
            let info = bench.json(&["cache", "info", "c.img"]);
            info["figures"]["weft_cache_commits_total"].as_f64().expect("a figure")
        };
        let before = commits();
        let done =
            if zeroes { device.write_zeroes(0, 2 << 20) } else { device.discard(0, 2 << 20) };
        done.expect("done");
        weft_testing::wait_until("the cache has logged that", || commits() > before);
        drop(served);
        drop(disk);
        let _disk = origin().expect("nbdkit");
        let served = Server::cached(&bench, &uri, &[]);
        let mut got = vec![0; 4 << 20];
        served.device().read_at(&mut got, 0).expect("a read");
        let (zeroed, rest) = got.split_at(2 << 20);
        assert!(zeroed.iter().all(|b| [0, b'B'].contains(b)), "zeroes: {zeroes}: {:?}", zeroed[0]);
        assert!(rest.iter().all(|b| *b == b'B'), "zeroes: {zeroes}");
        served.stop();
    }
}

/// A process that is killed, as by a power cut.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exit codes of fsck(8): a script can tell what was repaired from what was not.
#[test]
fn check_and_repair_exit_as_fsck_does() {
    let bench = Bench::new();
    bench.ok(&["cache", "create", "c.img", "--size", "4M"]);
    bench.write("junk", &[7; 1 << 20]);
    for verb in [&["cache", "check"][..], &["cache", "repair"], &["cache", "repair", "-n"]] {
        let run = |code, cache| bench.fails(code, &[verb, &[cache]].concat());
        run(0, "c.img");
        run(8, "absent.img");
        run(8, "junk");
    }
    let whole = fs::read(bench.path("c.img")).unwrap();
    resize(&bench, "c.img", 3 << 20);
    for verb in [&["cache", "check"][..], &["cache", "repair"], &["cache", "repair", "-n"]] {
        let said = bench.fails(4, &[verb, &["c.img"]].concat());
        assert!(said.contains("truncate -s 4194304 c.img"), "{said}");
    }
    // The way out.
    resize(&bench, "c.img", 4 << 20);
    bench.fails(0, &["cache", "check", "c.img"]);
    fs::write(bench.path("c.img"), &whole).unwrap();
    // A damaged superblock: of one copy, it is repaired; of both, it is not.
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    fs::write(bench.path("c.img"), &damaged).unwrap();
    bench.fails(1, &["cache", "repair", "c.img"]);
    bench.fails(0, &["cache", "check", "c.img"]);
    damaged[4096 + 100] ^= 1;
    fs::write(bench.path("c.img"), &damaged).unwrap();
    for verb in [&["cache", "check"][..], &["cache", "repair"]] {
        bench.fails(4, &[verb, &["c.img"]].concat());
    }
}
