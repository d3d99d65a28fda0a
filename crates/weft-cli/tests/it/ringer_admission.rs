//! Which users of a machine a server without certificates serves over TCP: its own and root.

use crate::ringer::kill;
use crate::run::{Bench, Ran, ran};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Users that own nothing here.
const OWNER: u32 = 65_532;
const STRANGER: u32 = 65_533;

/// A server of `user` on a port of this machine.
struct Loopback {
    bench: Bench,
    port: String,
}

impl Loopback {
    fn new(user: u32, more: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can be another user");
            return None;
        }
        let bench = Bench::new();
        let open = |path: PathBuf| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(bench.dir().to_owned()).unwrap();
        // Other users may not reach where it is built. Another process copies it: a descriptor for
        // writing of this one may be inherited by a program that another test starts, and whoever runs
        // the copy then is told that it is busy (ETXTBSY).
        let mut copy = Command::new("cp");
        let copied = copy.arg(env!("CARGO_BIN_EXE_weft")).arg(bench.path("weft")).status().unwrap();
        assert!(copied.success());
        open(bench.path("weft")).unwrap();
        fs::create_dir(bench.path("own")).unwrap();
        chown(bench.path("own"), Some(user), Some(user)).unwrap();
        let mut loopback = Self { bench, port: String::new() };
        let args = ["ringer", "serve", "own/cell", "--listen", "127.0.0.1:0", "--json"];
        let background = ["--background", "--pid-file", "own/server.pid"];
        let served = loopback.run(user, &[&args[..], &background, more].concat());
        assert_eq!(served.code, 0, "{served:#?}");
        let served: serde_json::Value = serde_json::from_str(&served.out).unwrap();
        let address = served["addresses"][0].as_str().expect("an address");
        loopback.port = address.rsplit_once(':').expect("a port").1.to_owned();
        Some(loopback)
    }

    fn run(&self, user: u32, args: &[&str]) -> Ran {
        let mut weft = Command::new(self.bench.path("weft"));
        weft.args(args).current_dir(self.bench.dir()).stdin(Stdio::null());
        weft.env_remove("WEFT_LOG").env("LC_ALL", "C").env("HOME", self.bench.path("own"));
        weft.env("WEFT_RUNTIME_DIR", self.bench.path("own/run"));
        ran(&weft.uid(user).gid(user).output().unwrap())
    }

    fn at(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }

    fn status(&self, user: u32) -> Ran {
        self.run(user, &["ringer", "status", &self.at("127.0.0.1")])
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        kill(&self.bench, "own/server");
    }
}

#[test]
fn a_server_on_a_port_lets_in_its_own_user_and_root() {
    for user in [0, OWNER] {
        let Some(server) = Loopback::new(user, &[]) else { return };
        assert_eq!(server.status(0).code, 0);
        assert_eq!(server.status(user).code, 0);
        let (plain, mapped) = (server.at("127.0.0.1"), server.at("[::ffff:127.0.0.1]"));
        let theirs = server.bench.path("theirs");
        fs::create_dir_all(theirs.join("m")).unwrap();
        chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
        chown(theirs.join("m"), Some(STRANGER), Some(STRANGER)).unwrap();
        for args in [
            &["ringer", "status", &plain][..],
            &["ringer", "status", &mapped],
            &["ringer", "search", &plain, "word"],
            &["ringer", "backup", &plain, "theirs/copy"],
            &["ringer", "mount", &plain, "theirs/m", "--store", "theirs/store", "-b"],
            &["ringer", "doctor", &plain],
            &["ringer", "members", &plain],
            &["ringer", "leases", &plain],
        ] {
            let refused = server.run(STRANGER, args);
            assert_ne!(refused.code, 0, "{args:?}: {refused:#?}");
            let why = format!("admits only user {user} and root of this machine, not user 65533");
            assert!(refused.err.contains(&why), "{args:?}: {refused:#?}");
            assert!(refused.err.contains("--tls-certificates"), "{args:?}: {refused:#?}");
        }
    }
}

#[test]
fn root_of_a_user_namespace_is_the_user_outside() {
    let Some(server) = Loopback::new(0, &[]) else { return };
    let script = format!("unshare -Ur ./weft ringer status {}", server.at("127.0.0.1"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(server.bench.dir()).stdin(Stdio::null());
    let told = ran(&shell.uid(STRANGER).gid(STRANGER).output().unwrap());
    if told.err.contains("unshare") {
        println!("not here: namespaces of users: {}", told.err);
        return;
    }
    assert!(told.err.contains("not user 65533"), "{told:#?}");
}

#[test]
fn an_insecure_server_on_a_port_lets_in_all_users() {
    let Some(server) = Loopback::new(0, &["--insecure"]) else { return };
    let told = server.status(STRANGER);
    assert_eq!(told.code, 0, "{told:#?}");
}

/// A client that connects and hangs up keeps no other client out, and is not taken for another user.
#[test]
fn strangers_who_hang_up_do_no_harm() {
    let Some(server) = Loopback::new(0, &[]) else { return };
    let script = format!(
        "for i in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/{}; printf '\\x10\\0\\0\\0xxxx' >&3; exec 3>&-; \
         done",
        server.port
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).uid(STRANGER).gid(STRANGER);
    assert!(bash.status().unwrap().success());
    assert_eq!(server.status(0).code, 0);
    assert_ne!(server.status(STRANGER).code, 0);
}
