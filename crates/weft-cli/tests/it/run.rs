//! Runs the real binary in a directory of its own, so that what it prints has no path of this
//! machine in it and can be compared as a whole.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A directory to work in.
pub struct Bench {
    dir: TempDir,
}

/// What a run left.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Bench {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// With an empty volume `v.img` of 64 MiB, of whoever runs the test.
    pub fn with_volume(format: &str) -> Self {
        let bench = Self::new();
        bench.ok(&["mkfs", format, "v.img", "--size", "64M", "--quiet"]);
        bench
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, content).expect("a file");
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(args);
        self.prepare(command)
    }

    /// A shell that runs a script, with the command on its `PATH`.
    pub fn shell(&self, script: &str) -> Command {
        let weft = Path::new(env!("CARGO_BIN_EXE_weft")).parent().expect("a directory").display();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("PATH", format!("{weft}:{path}"));
        self.prepare(command)
    }

    fn prepare(&self, mut command: Command) -> Command {
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("WEFT_LOG").env("LC_ALL", "C");
        command.env("WEFT_RUNTIME_DIR", self.dir.path().join("run"));
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(&self.command(args).output().expect("weft runs"))
    }

    /// Runs, demands success, and returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "weft {}: {ran:#?}", args.join(" "));
        ran.out
    }

    /// Runs, demands this exit code, and returns what it complained.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, code, "weft {}: {ran:#?}", args.join(" "));
        ran.err
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let out = self.ok(&args);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e} in {out}"))
    }

    /// e2fsck finds nothing at all; `false` if there is no e2fsck here.
    pub fn e2fsck_clean(&self, image: &str) -> bool {
        let Some(ran) = tool("e2fsck", [OsStr::new("-fn"), self.path(image).as_os_str()]) else {
            return false;
        };
        assert_eq!(ran.code, 0, "{ran:#?}");
        true
    }
}

pub fn ran(output: &Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a tool of the system; `None`, with a line that says so, if it is not installed.
pub fn tool<'a>(name: &str, args: impl IntoIterator<Item = &'a OsStr>) -> Option<Ran> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("env");
    command.arg(format!("PATH={path}")).arg("LC_ALL=C").arg(name).args(args).stdin(Stdio::null());
    let ran = ran(&command.output().expect("env runs"));
    if ran.code == 127 {
        println!("skipped: {name} is not installed");
        return None;
    }
    Some(ran)
}

/// Whether a FUSE mount can be made here; if not, a line says so.
pub fn can_mount() -> bool {
    let there = Path::new("/dev/fuse").exists();
    let root = rustix::process::geteuid().is_root();
    let helper = std::env::var("PATH")
        .unwrap_or_default()
        .split(':')
        .any(|dir| Path::new(dir).join("fusermount3").exists());
    if !there {
        println!("skipped: there is no /dev/fuse");
    } else if !root && !helper {
        println!("skipped: not root, and there is no fusermount3");
    }
    there && (root || helper)
}
