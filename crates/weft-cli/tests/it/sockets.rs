//! The sockets that weft makes, whatever the umask is, and those that it is given (socket activation).

use crate::run::{Bench, Ran, ran, tool};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

fn mode_of(bench: &Bench, name: &str) -> u32 {
    let meta = std::fs::symlink_metadata(bench.path(name)).expect("a socket");
    meta.permissions().mode() & 0o777
}

/// Runs weft under a umask.
fn under(bench: &Bench, umask: &str, args: &[&str]) -> Ran {
    let plain = bench.command(args);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("umask {umask} && exec \"$0\" \"$@\""));
    command.arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
    command.current_dir(bench.dir()).env("WEFT_RUNTIME_DIR", bench.path("run"));
    ran(&command.output().expect("sh runs"))
}

fn end(said: &str) {
    let said: serde_json::Value = serde_json::from_str(said).expect("JSON");
    let pid = i32::try_from(said["process"].as_i64().expect("a process id")).expect("small");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
}

#[test]
fn each_socket_has_its_permissions_under_any_umask() {
    for umask in ["000", "022", "027", "077"] {
        let bench = Bench::new();
        bench.write("disk.img", &vec![0; 1 << 20]);
        bench.ok(&["cache", "create", "c.img", "--size", "4M"]);
        let run = |args: &[&str]| {
            let ran = under(&bench, umask, args);
            assert_eq!(ran.code, 0, "umask {umask}: {ran:#?}");
            ran.out
        };
        for mode in ["600", "660", "666"] {
            let args = ["serve", "nbd", "disk.img", "--socket", "s", "--socket-mode", mode];
            let said = run(&[&args[..], &["--cache", "c.img", "--background", "--json"]].concat());
            assert_eq!(
                mode_of(&bench, "s"),
                u32::from_str_radix(mode, 8).unwrap(),
                "umask {umask}"
            );
            // The control socket of the cache is its owner's alone, and no one else's directory.
            let run = std::fs::read_dir(bench.path("run")).expect("a directory");
            let control = run.map(|entry| entry.expect("an entry").file_name());
            let control: Vec<_> = control.collect();
            let name = format!("run/{}", control[0].to_string_lossy());
            assert_eq!((control.len(), mode_of(&bench, &name)), (1, 0o600), "umask {umask}");
            assert_eq!(mode_of(&bench, "run") & 0o022, 0, "umask {umask}");
            end(&said);
            weft_testing::wait_until("it has ended", || !bench.path("s").exists());
            let ended = || bench.run(&["cache", "check", "--quick", "c.img"]).code == 0;
            weft_testing::wait_until("the cache is free", ended);
        }
        let args = ["ringer", "serve", "cell", "--listen", "unix:r", "--background", "--json"];
        let said = run(&args);
        assert_eq!(mode_of(&bench, "r"), 0o600, "umask {umask}");
        end(&said);
    }
}

/// libnbd's way: it opens the socket, and starts the server with it.
#[test]
fn libnbd_starts_the_server_with_its_socket() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; 3 << 20]);
    let (weft, disk) = (env!("CARGO_BIN_EXE_weft"), bench.path("disk.img"));
    let disk = disk.to_str().expect("UTF-8");
    let args = ["--size", "[", weft, "serve", "nbd", disk, "]"];
    let Some(ran) = tool("nbdinfo", args.map(OsStr::new)) else { return };
    assert_eq!((ran.code, ran.out.trim()), (0, "3145728"), "{ran:#?}");
}

/// systemd's way: the server is started when the first client comes, with the socket that it came by.
#[test]
fn systemd_starts_each_server_with_its_socket() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; 3 << 20]);
    let socket = bench.path("s");
    let start = |args: &[&str]| {
        let mut command = Command::new("systemd-socket-activate");
        command.arg("-l").arg(&socket).arg(env!("CARGO_BIN_EXE_weft")).args(args);
        command.current_dir(bench.dir()).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("WEFT_RUNTIME_DIR", bench.path("run"));
        command.spawn().ok()
    };
    for kind in ["nbd", "ringer"] {
        let args: &[&str] = match kind {
            "nbd" => &["serve", "nbd", "disk.img"],
            _ => &["ringer", "serve", "cell"],
        };
        let Some(mut child) = start(args) else {
            println!("skipped: systemd-socket-activate is not installed");
            return;
        };
        weft_testing::wait_until("the socket is there", || socket.exists());
        let at = socket.display().to_string();
        let ran = match kind {
            "nbd" => bench.run(&["info", &format!("nbd+unix:///?socket={at}")]),
            _ => bench.run(&["ringer", "status", &format!("unix:{at}")]),
        };
        let (answered, what) = match kind {
            // An empty disk: what matters is that it was read.
            "nbd" => (ran.err.contains("nbd+unix") && !ran.err.contains("connect"), "volume"),
            _ => (ran.code == 0, "cell"),
        };
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = child.wait().expect("an end");
        assert!(answered, "{kind}: {ran:#?}");
        assert!(ended.success(), "{kind}: {what}: {ended}");
        // The file of the socket is the service manager's.
        assert!(socket.exists(), "{kind}");
        std::fs::remove_file(&socket).unwrap();
    }
}

/// Sockets of a service manager are no occasion to listen elsewhere too, or to leave its process; and
/// a socket that all users may use needs to be meant.
#[test]
fn sockets_that_were_passed_are_taken_as_they_are_or_refused() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; 1 << 20]);
    let passed = |args: &str, fds: &str, more: &str| {
        let script =
            format!("export LISTEN_PID=$$ LISTEN_FDS={fds}; exec \"$0\" {args} {more} 3</dev/null");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_weft")).current_dir(bench.dir());
        ran(&command.stdin(Stdio::null()).output().expect("sh runs"))
    };
    for args in ["serve nbd disk.img", "ringer serve cell"] {
        let said = passed(args, "1", "");
        assert!(said.code != 0 && said.err.contains("descriptor 3"), "{args}: {said:#?}");
        let said = passed(args, "1", "--background");
        assert!(said.code == 2 && said.err.contains("--background"), "{args}: {said:#?}");
        let said = passed(args, "1", "--listen localhost");
        assert!(said.code == 2 && said.err.contains("LISTEN_FDS"), "{args}: {said:#?}");
        let said = passed(args, "many", "");
        assert!(
            said.code != 0 && said.err.contains("LISTEN_FDS is no number"),
            "{args}: {said:#?}"
        );
    }
}

#[test]
fn a_socket_of_all_users_needs_to_be_meant() {
    let bench = Bench::new();
    bench.write("disk.img", &vec![0; 1 << 20]);
    let socket = bench.path("s");
    for (args, refused) in [("disk.img", true), ("disk.img --insecure", false)] {
        let script = format!(
            "systemd-socket-activate -l \"$1\" \"$0\" serve nbd {args} 2>err & pid=$!; \
             while ! [ -S \"$1\" ]; do kill -0 $pid || exit 77; sleep 0.05; done; chmod 666 \"$1\"; \
             \"$0\" info \"nbd+unix:///?socket=$1&timeout=1\" 2>/dev/null || \
             for i in $(seq 100); do grep -q permissions err && break; sleep 0.1; done; \
             kill $pid 2>/dev/null; wait $pid; rm \"$1\""
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_weft")).arg(&socket);
        command.current_dir(bench.dir());
        let ran = ran(&command.stdin(Stdio::null()).output().expect("sh runs"));
        if ran.code == 77 {
            println!("skipped: systemd-socket-activate is not installed");
            return;
        }
        let said = std::fs::read_to_string(bench.path("err")).unwrap_or_default();
        let told = said.contains("open to all users (its permissions are 666)");
        assert_eq!(told, refused, "{said}");
    }
}
