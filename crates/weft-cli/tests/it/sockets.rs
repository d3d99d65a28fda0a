//! The sockets that weft makes, whatever the umask is.

use crate::run::{Bench, Ran, ran};
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
