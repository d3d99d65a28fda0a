//! Ordinary users: commands that run without the rights of root, as those who use weft run them.
//!
//! Root may do everything to every file. A test that runs as root, as on most build machines, sees neither a
//! wrong owner nor a missing permission. A [`User`] runs commands as somebody else:
//!
//! ```
//! use weft_testing::{ORDINARY_USERS, as_user};
//!
//! for uid in ORDINARY_USERS {
//!     // `None` has said why on the standard output, in a line that begins with "skipped:".
//!     let Some(user) = as_user(uid) else { continue };
//!     user.write("greeting", b"hello\n");
//!     let said = user.shell("id -u; cat greeting; touch /root/x 2>/dev/null || echo refused");
//!     assert_eq!(said.text(), format!("{}\nhello\nrefused\n", user.uid()), "{said:?}");
//! }
//! ```
//!
//! If the test runs as root, a user has a number and a name, a group of its own, none of root's
//! capabilities, supplementary groups or variables, and a namespace of mounts: `/dev/fuse` can be opened there (mode 0666, as udev
//! makes it), `/etc/passwd` has an entry for the user, and what its commands mount is seen by its commands only.
//! Nothing of the machine is changed, and when the user is dropped every process in the namespace is killed, so that
//! mounts of a failed test do not stay. If the test runs as an ordinary user already, commands run as that user,
//! whatever number was asked for.
//!
//! Look at files in a mount by a command of the user (`user.shell("cat m/file")`), as the test itself is
//! not in the namespace.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, getegid, geteuid, kill_process};
use tempfile::TempDir;

/// Numbers for users: one as Debian gives them, one that nobody has, and `nobody`.
pub const ORDINARY_USERS: [u32; 3] = [1002, 12345, 65534];

/// Returns an ordinary user with this number, or, if the test itself runs as an ordinary user, that one.
///
/// `None` if this process is root and cannot become another user, as in some containers: a line that
/// begins with `skipped:` says why.
///
/// # Panics
/// If `uid` is 0, or there is no room for temporary files.
#[must_use]
pub fn as_user(uid: u32) -> Option<User> {
    assert_ne!(uid, 0, "root is no ordinary user");
    match User::new(uid) {
        Ok(user) => Some(user),
        Err(why) => {
            println!("skipped: commands cannot be run as the ordinary user {uid}: {why}");
            None
        }
    }
}

/// An ordinary user, with a home directory that is removed when it is dropped.
#[derive(Debug)]
pub struct User {
    uid: u32,
    gid: u32,
    directory: TempDir,
    /// The process that keeps the namespace of mounts.
    holder: Option<Child>,
    /// Commands have to become this user: the test runs as root.
    becomes: bool,
}

/// The result of a command of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The exit status; `None` if a signal has ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Returns the standard output.
    ///
    /// # Panics
    /// If the command has failed, with what it printed.
    #[must_use]
    pub fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        &self.out
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Makes the namespace ready, in the directory that is the first argument, and keeps it until the
/// standard input ends.
const HOLD: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
if mknod -m 666 "$1/dev/fuse" c 10 229 2>/dev/null && test -e /dev/fuse; then
    mount --bind "$1/dev/fuse" /dev/fuse
fi
mount --bind "$1/passwd" /etc/passwd
echo ready
exec cat >/dev/null
"#;

impl User {
    fn new(uid: u32) -> Result<Self, String> {
        let is_root = geteuid().is_root();
        let (uid, gid) = match is_root {
            true => (uid, uid),
            false => (geteuid().as_raw(), getegid().as_raw()),
        };
        let mut why = String::new();
        // The directory for temporary files may be closed to others.
        for parent in [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()] {
            let Ok(directory) = tempfile::Builder::new().prefix("weft-user-").tempdir_in(&parent)
            else {
                continue;
            };
            let mut user = Self { uid, gid, directory, holder: None, becomes: is_root };
            user.make_home().map_err(|e| format!("making a home directory: {e}"))?;
            if is_root {
                user.hold_namespace()?;
            }
            let said = user.shell("test -w . && test -w \"$TMPDIR\" && id -u");
            if said.out.trim() == uid.to_string() {
                return Ok(user);
            }
            why = format!("in {}: {}", parent.display(), said.err.trim());
        }
        Err(why)
    }

    fn make_home(&self) -> io::Result<()> {
        let base = self.directory.path();
        fs::set_permissions(base, fs::Permissions::from_mode(0o755))?;
        for (name, mode) in [("", 0o755), ("tmp", 0o700), ("run", 0o700)] {
            let path = self.home().join(name);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            self.own(&path)?;
        }
        if self.becomes {
            fs::create_dir(base.join("dev"))?;
            let mut passwd = fs::read("/etc/passwd").unwrap_or_default();
            let (uid, gid, home) = (self.uid, self.gid, self.home());
            let name = format!("weft-user-{uid}:x:{uid}:{gid}::{}:/bin/sh\n", home.display());
            // The first entry of a number gives it its name.
            passwd.splice(0..0, name.into_bytes());
            fs::write(base.join("passwd"), passwd)?;
            fs::set_permissions(base.join("passwd"), fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    }

    fn hold_namespace(&mut self) -> Result<(), String> {
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "/bin/sh", "-c", HOLD, "sh"])
            .arg(self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let out = holder.stdout.take().ok_or("unshare has no output")?;
        let read = BufReader::new(out).read_line(&mut line);
        if read.is_ok() && line == "ready\n" {
            self.holder = Some(holder);
            return Ok(());
        }
        drop(holder.stdin.take());
        let said = holder.wait_with_output().map_err(|e| format!("unshare: {e}"))?;
        Err(format!("no mounts of its own: {}", String::from_utf8_lossy(&said.stderr).trim()))
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        if self.becomes { chown(path, Some(self.uid), Some(self.gid)) } else { Ok(()) }
    }

    /// Returns the number of the user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the home directory, in which commands start. `TMPDIR` is `tmp` in it, and
    /// `XDG_RUNTIME_DIR` is `run`.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Returns the path of a file in the home directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.home().join(name)
    }

    /// Makes a file of the user in the home directory, whose directory must exist.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        let written = fs::write(&path, content).and_then(|()| self.own(&path));
        written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Copies a file, or a directory with all that is in it, into the home directory. It belongs to the
    /// user then. Returns its path.
    ///
    /// # Panics
    /// If it cannot be copied.
    #[must_use]
    pub fn copy(&self, from: &Path) -> PathBuf {
        let name = from.file_name().unwrap_or_else(|| panic!("{} has no name", from.display()));
        let to = self.home().join(name);
        // By processes of their own: see `copy_program`.
        let copied = Command::new("cp").args(["-rL", "--"]).arg(from).arg(&to).output();
        let copied = copied.expect("cp");
        assert!(copied.status.success(), "{}: {copied:?}", from.display());
        if self.becomes {
            let owner = format!("{}:{}", self.uid, self.gid);
            let given = Command::new("chown").args(["-R", "--", &owner]).arg(&to).output();
            assert!(given.expect("chown").status.success(), "{}", to.display());
        }
        to
    }

    /// Returns a command that runs as the user, in the home directory, with nothing on its standard
    /// input. Of the variables of the test it has the `PATH`.
    ///
    /// A program that the user may not execute where it is (below root's home directory) is copied.
    /// `Command::current_dir` has no effect: see [`command_in`](Self::command_in).
    ///
    /// # Panics
    /// If the program has to be copied, and cannot be.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_in(&self.home(), program)
    }

    /// As [`command`](Self::command), in another directory.
    ///
    /// # Panics
    /// As [`command`](Self::command).
    #[must_use]
    pub fn command_in(&self, directory: &Path, program: impl AsRef<OsStr>) -> Command {
        let program = program.as_ref();
        let path = Path::new(program);
        if path.is_absolute() && path.exists() && !self.may_execute(path) {
            let name = path.file_name().map(|name| self.home().join(name));
            let copy = name.filter(|copy| self.may_execute(copy));
            let copy = copy.unwrap_or_else(|| self.copy(path));
            return self.plain(directory, copy.as_os_str());
        }
        self.plain(directory, program)
    }

    fn may_execute(&self, path: &Path) -> bool {
        let mut test = self.plain(Path::new("/"), "test".as_ref());
        test.arg("-x").arg(path).status().is_ok_and(|status| status.success())
    }

    fn plain(&self, directory: &Path, program: &OsStr) -> Command {
        let mut command = if self.becomes {
            let mut command = match &self.holder {
                Some(holder) => {
                    let mut command = Command::new("nsenter");
                    command.arg(format!("--mount=/proc/{}/ns/mnt", holder.id()));
                    command.arg("setpriv");
                    command
                }
                None => Command::new("setpriv"),
            };
            command.arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
            command.args(["--clear-groups", "--inh-caps=-all"]);
            command.args(["/bin/sh", "-c", "cd -- \"$1\" || exit 125; shift; exec \"$@\"", "sh"]);
            command.arg(directory).arg(program);
            command
        } else {
            let mut command = Command::new(program);
            command.current_dir(directory);
            command
        };
        let path = std::env::var("PATH").unwrap_or_default();
        command.env_clear().stdin(Stdio::null());
        command.env("PATH", format!("{path}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"));
        command.env("HOME", self.home()).env("LC_ALL", "C").env("RUST_BACKTRACE", "1");
        command.env("TMPDIR", self.path("tmp")).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env("USER", format!("weft-user-{}", self.uid));
        command
    }

    /// Runs a line for `/bin/sh` as the user.
    ///
    /// # Panics
    /// If there is no shell.
    #[must_use]
    pub fn shell(&self, line: &str) -> Said {
        let ran = self.plain(&self.home(), "/bin/sh".as_ref()).args(["-c", line]).output();
        ran.expect("a shell").into()
    }

    /// Returns whether the user can open `/dev/fuse`, as it must for a FUSE mount; if not, a line that begins
    /// with `skipped:` says so.
    #[must_use]
    pub fn can_mount(&self) -> bool {
        let said = self.shell("exec 3<>/dev/fuse");
        if said.code != Some(0) {
            println!("skipped: user {} cannot open /dev/fuse: {}", self.uid, said.err.trim());
        }
        said.code == Some(0)
    }

    /// Kills the processes in the namespace: mounts of commands that went on are gone then.
    fn end_all(&self, holder: &Child) {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let ours = namespace(&holder.id().to_string());
        if ours.is_none() || ours == namespace("self") {
            return;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let pid = name.parse().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| namespace(&name) == ours) {
                // One that has ended meanwhile is no error.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            self.end_all(&holder);
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_no_rights_of_root_and_its_own_files() {
        for uid in ORDINARY_USERS {
            let Some(user) = as_user(uid) else { return };
            user.write("f", b"content");
            let said = user.shell(
                "cat f; id -u; stat -c %u . f tmp; pwd; echo $HOME; echo ${CARGO_MANIFEST_DIR-none}; \
                 grep CapEff /proc/self/status",
            );
            let (own, home) = (user.uid(), user.home().canonicalize().unwrap());
            let home = home.display();
            assert_eq!(
                said.text(),
                format!(
                    "content{own}\n{own}\n{own}\n{own}\n{home}\n{}\nnone\nCapEff:\t0000000000000000\n",
                    user.home().display()
                )
            );
            assert_eq!(user.shell("test -w /etc/passwd").code, Some(1));
            assert_eq!(user.shell("exit 7").code, Some(7));
        }
    }

    #[test]
    fn programs_that_a_user_cannot_reach_are_copied() {
        let Some(user) = as_user(ORDINARY_USERS[1]) else { return };
        let hidden = tempfile::tempdir().unwrap();
        crate::copy_program(Path::new("/bin/echo"), &hidden.path().join("say"));
        for _ in 0..2 {
            let said = user.command(hidden.path().join("say")).arg("a b").output().unwrap();
            assert_eq!(Said::from(said).text(), "a b\n");
        }
        let tree = hidden.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("x"), "in it").unwrap();
        let copy = user.copy(&tree);
        let said = user.command_in(&copy, "cat").arg("x").output().unwrap();
        assert_eq!(Said::from(said).text(), "in it");
    }

    #[test]
    fn what_a_user_has_left_running_ends_with_it() {
        let Some(user) = as_user(ORDINARY_USERS[0]) else { return };
        if user.holder.is_none() {
            println!("skipped: not root, so that there is no namespace");
            return;
        }
        let said = user.shell("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!");
        let pid = said.text().trim().to_owned();
        let (home, is_running) = (user.home(), || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains("(sleep)") && !stat.contains("(sleep) Z")
        });
        crate::wait_until("it runs", is_running);
        drop(user);
        crate::wait_until("it has ended", || !is_running());
        assert!(!home.exists());
    }
}
