//! Readers of a program that never ends, on a mount: they can be killed, and so can the mount. And what
//! programs that copy files make of files of unknown length.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use weft_fuse::MountOptions;
use weft_testing::{ends, wait_until};
use weft_transform::stages::Program;
use weft_transform::{Context, Registry, Rules, TransformFs, TransformOptions};
use weft_vfs::HostDir;

/// The directory that a process of [`serves`] mounts.
const DIRECTORY: &str = "WEFT_TEST_MOUNTED";
const RULES: &str = "*@endless view: exec program=endless\n\
    *@silent view: exec program=silent deadline=3600000\n\
    *.lines view: line-ends to=crlf\n";

/// Mounts `data` on `m` in the directory that it is told, and waits for the end.
#[test]
fn serves() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let mut context = Context::default();
    for (name, command) in
        [("endless", "while sleep 0.1; do echo more; done"), ("silent", "sleep 3600")]
    {
        context.programs.insert(name.to_owned(), Program::new(command));
    }
    let below = HostDir::open(&directory.join("data")).expect("a tree");
    let rules = Rules::parse(RULES.as_bytes()).expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    let fs = TransformFs::new(Arc::new(below), Registry::new(context), options).expect("a root");
    let options = MountOptions { shared: true, ..MountOptions::default() };
    let mount = weft_fuse::mount(Arc::new(fs), &directory.join("m"), &options).expect("mount");
    mount.unmount_on_signals().expect("signals");
    mount.join().expect("the end");
}

/// A mount that is served by a child, of a file with views by programs.
struct Served {
    dir: tempfile::TempDir,
    server: Option<Child>,
    readers: Vec<Child>,
}

impl Served {
    fn new() -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: there is no /dev/fuse here");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["data", "m"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        fs::write(dir.path().join("data/file"), "words\n").expect("a file");
        fs::write(dir.path().join("data/f.lines"), "words\n".repeat(100_000)).expect("a file");
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "mounted::serves"]).env(DIRECTORY, dir.path());
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
        let served = Self { dir, server: Some(server), readers: Vec::new() };
        wait_until("it is mounted", || served.at("file").exists());
        Some(served)
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("m").join(name)
    }

    /// Starts a program that reads a view, and waits until it waits for the mount.
    fn reader(&mut self, program: &str, view: &str) -> u32 {
        let path = self.at(&format!("file@{view}"));
        let reader = Command::new(program).arg(path).stdout(Stdio::null()).spawn().expect(program);
        let pid = reader.id();
        self.readers.push(reader);
        wait_until("the reader waits", || waits(pid));
        pid
    }

    /// Waits for the end of the reader that was started last.
    fn reader_ends(&mut self) -> ExitStatus {
        let mut reader = self.readers.pop().expect("a reader");
        ends("the reader ends", move || reader.wait().expect("ended"))
    }

    fn server_ends(&mut self) -> ExitStatus {
        let mut server = self.server.take().expect("a server");
        ends("the server ends", move || server.wait().expect("ended"))
    }

    fn umount(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new("umount");
        command.args(arguments).arg(self.dir.path().join("m")).stderr(Stdio::null());
        command.status().expect("umount").success()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.umount(&["-l"]);
        for mut child in self.server.take().into_iter().chain(self.readers.drain(..)) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns true if a process waits for the answer of a file system.
fn waits(pid: u32) -> bool {
    let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    channel.contains("request_wait_answer")
}

fn kill(pid: u32, signal: &str) {
    let args = [format!("-{signal}"), pid.to_string()];
    assert!(Command::new("kill").args(args).status().expect("kill").success());
}

#[test]
fn readers_can_be_killed() {
    let Some(mut served) = Served::new() else { return };
    for view in ["endless", "silent"] {
        for (signal, number) in [("KILL", 9), ("TERM", 15), ("INT", 2)] {
            let reader = served.reader("cat", view);
            kill(reader, signal);
            assert_eq!(served.reader_ends().signal(), Some(number), "{view} {signal}");
        }
    }
    // Two wait for the same, one of them for the other; then one for its attributes as well.
    let first = served.reader("cat", "endless");
    let second = served.reader("cat", "endless");
    let third = served.reader("stat", "endless");
    for pid in [third, second] {
        kill(pid, "TERM");
        assert_eq!(served.reader_ends().signal(), Some(15));
    }
    assert!(waits(first));
    kill(first, "TERM");
    assert_eq!(served.reader_ends().signal(), Some(15));
    wait_until("nobody uses the mount any more", || served.umount(&[]));
    assert!(served.server_ends().success());
}

/// A program that handles the signal sees the error of an interrupted call.
#[test]
fn a_reader_that_handles_the_signal_goes_on() {
    let Some(mut served) = Served::new() else { return };
    let script = "$SIG{INT} = sub {}; open F, '<', $ARGV[0] or exit 2; $| = 1; print qq(open\\n); \
        defined sysread F, $b, 100000 and exit 3; exit($!{EINTR} ? 0 : 4)";
    let mut command = Command::new("perl");
    command.args(["-MErrno", "-e", script]).arg(served.at("file@silent")).stdout(Stdio::piped());
    let mut reader = command.spawn().expect("perl");
    let (pid, out) = (reader.id(), reader.stdout.take().expect("piped"));
    served.readers.push(reader);
    let mut said = String::new();
    BufReader::new(out).read_line(&mut said).expect("it has opened the view");
    wait_until("the reader waits", || waits(pid));
    kill(pid, "INT");
    assert_eq!(served.reader_ends().code(), Some(0));
}

#[test]
fn a_signal_ends_the_mount() {
    for view in ["endless", "silent"] {
        let Some(mut served) = Served::new() else { return };
        served.reader("cat", view);
        kill(served.server.as_ref().expect("a server").id(), "TERM");
        assert!(served.server_ends().success(), "{view}");
        // It cannot read on.
        assert_eq!(served.reader_ends().code(), Some(1), "{view}");
    }
}

#[test]
fn a_lazy_unmount_ends_the_mount() {
    let Some(mut served) = Served::new() else { return };
    served.reader("cat", "endless");
    assert!(!served.umount(&[]), "it is in use");
    assert!(served.umount(&["-l"]));
    assert!(served.server_ends().success());
    assert_eq!(served.reader_ends().code(), Some(1));
}

/// Files that are open, but of which nobody waits for anything, stay usable after the first signal;
/// the second ends the mount.
#[test]
fn a_second_signal_ends_a_mount_in_use() {
    let Some(mut served) = Served::new() else { return };
    let file = fs::File::open(served.at("file")).expect("open");
    let server = served.server.as_ref().expect("a server").id();
    kill(server, "TERM");
    wait_until("it is detached", || !served.at("file").exists());
    assert_eq!(std::io::read_to_string(&file).expect("read"), "words\n");
    kill(server, "TERM");
    assert_eq!(served.server_ends().code(), Some(1));
}

/// tar and rsync take the length of a file before they open it.
#[test]
fn files_of_unknown_length_are_copied_whole() {
    let Some(served) = Served::new() else { return };
    let want = "words\r\n".repeat(100_000);
    for line in
        ["tar c -C m f.lines | tar x -C out", "rsync -a m/f.lines out/", "cp m/f.lines out/"]
    {
        let _ = fs::remove_dir_all(served.dir.path().join("out"));
        fs::create_dir(served.dir.path().join("out")).expect("a directory");
        let tool = line.split(' ').next().expect("a word");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("command -v {tool} >/dev/null || exit 99; {line}")]);
        let status = command.current_dir(served.dir.path()).status().expect("sh");
        if status.code() == Some(99) {
            eprintln!("skipped: {tool} is not installed");
            continue;
        }
        assert!(status.success(), "{line}");
        let got = fs::read_to_string(served.dir.path().join("out/f.lines")).expect(line);
        assert!(got == want, "{line}: {} bytes", got.len());
    }
}
