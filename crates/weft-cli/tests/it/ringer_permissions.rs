//! What a mount makes of a cell beside its files, asked for by another user: what the files deny, query folders,
//! snapshots, history and attributes of the mount deny too.

use crate::ringer::Cell;
use crate::run::can_mount;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_testing::copy_program;

/// A user and group that own nothing here.
const STRANGER: u32 = 65_533;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A cell that is mounted for all users.
struct Shared {
    cell: Cell,
    at: PathBuf,
}

impl Shared {
    /// `None` where that takes more than this user has.
    fn new() -> Option<Self> {
        Self::with("allow_other")
    }

    /// The same with these options of the mount.
    fn with(options: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can be another user");
            return None;
        }
        let cell = Cell::new();
        chmod(cell.bench.dir(), 0o755);
        let at = crate::ringer::mount(&cell.bench, "a", &cell.address(), &["-o", options]);
        chmod(&at, 0o755);
        Some(Self { cell, at })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn dir(&self, name: &str, mode: u32) {
        fs::create_dir(self.at(name)).unwrap();
        chmod(&self.at(name), mode);
    }

    fn file(&self, name: &str, content: &str, mode: u32) {
        fs::write(self.at(name), content).unwrap();
        chmod(&self.at(name), mode);
    }

    /// What a shell of a user says of a command in the mount.
    fn shell(&self, user: u32, command: &str) -> (bool, String) {
        let out = Command::new("sh")
            .args(["-c", command])
            .current_dir(&self.at)
            .env("LC_ALL", "C")
            .uid(user)
            .gid(user)
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn denied(&self, command: &str) {
        let (ok, said) = self.shell(STRANGER, command);
        assert!(!ok && said.contains("Permission denied"), "{command}: {ok} {said:?}");
    }

    fn allowed(&self, user: u32, command: &str, want: &str) {
        let (ok, said) = self.shell(user, command);
        assert!(ok && said.contains(want), "{command}: {ok} {said:?}");
    }

    fn ringer(&self, args: &[&str]) -> String {
        self.cell.bench.ok(&[&["ringer"], args].concat())
    }
}

/// Root of one machine, or the owner of an attached cell, sets owners and modes as he likes: that gives
/// nobody another machine's root.
#[test]
fn a_setuid_program_in_a_cell_has_no_power_unless_the_mount_says_so() {
    let Some(m) = Shared::new() else { return };
    copy_program("/usr/bin/id".as_ref(), &m.at("id"));
    chmod(&m.at("id"), 0o4755);
    m.allowed(STRANGER, "./id -u", &STRANGER.to_string());
    let options = |at: &Path| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|l| l.split(' ').nth(1) == at.to_str()).expect("a mount");
        line.split(' ').nth(3).expect("options").split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    for option in ["nosuid", "nodev"] {
        assert!(options(&m.at).iter().any(|o| o == option), "{option}: {:?}", options(&m.at));
    }
    let more = ["-o", "allow_other,suid,dev"];
    let trusting = crate::ringer::mount(&m.cell.bench, "b", &m.cell.address(), &more);
    assert!(!options(&trusting).iter().any(|o| o.starts_with("no")), "{:?}", options(&trusting));
}

/// The cell `inner`, served at a socket beside [`Shared`]'s and mounted by itself as `b`; whatever a test does, its
/// server does not stay.
struct Inner<'a> {
    shared: &'a Shared,
    at: PathBuf,
}

impl<'a> Inner<'a> {
    fn new(shared: &'a Shared) -> Self {
        let bench = &shared.cell.bench;
        let address = Self::address(bench);
        crate::ringer::serve(bench, "inner", &address, "inner.pid");
        let at = crate::ringer::mount(bench, "b", &address, &[]);
        Self { shared, at }
    }

    fn address(bench: &crate::run::Bench) -> String {
        format!("unix:{}", bench.path("i").display())
    }

    /// Attaches it to the directory `name` of the shared mount, which is made.
    fn attach(&self, name: &str) {
        self.shared.dir(name, 0o755);
        self.shared.ringer(&[
            "attach",
            &format!("a/{name}"),
            &Self::address(&self.shared.cell.bench),
        ]);
        chmod(&self.at, 0o755);
    }
}

impl Drop for Inner<'_> {
    fn drop(&mut self) {
        crate::ringer::end_mounts(&self.shared.cell.bench);
        crate::ringer::kill(&self.shared.cell.bench, "inner");
    }
}

/// The owner of an attached cell is not the owner of the one that it is attached in.
#[test]
fn nothing_in_an_attached_cell_has_power_even_where_the_mount_says_so() {
    let Some(m) = Shared::with("allow_other,suid,dev") else { return };
    let inner = Inner::new(&m);
    // What the mount says holds for its own cell, so that the rest of the test shows something.
    copy_program("/usr/bin/id".as_ref(), &m.at("id"));
    chmod(&m.at("id"), 0o4755);
    m.allowed(STRANGER, "./id -u", "0");

    copy_program("/usr/bin/id".as_ref(), &inner.at.join("id"));
    copy_program("/usr/bin/id".as_ref(), &inner.at.join("capable"));
    fs::write(inner.at.join("plain"), "words").unwrap();
    fs::create_dir(inner.at.join("d")).unwrap();
    let inside = |command: &str| {
        let out = Command::new("sh").args(["-c", command]).current_dir(&inner.at).output().unwrap();
        assert!(out.status.success(), "{command}: {out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    // cap_setuid, effective and permitted.
    let capability =
        "setfattr -n security.capability -v 0x0100000280000000000000000000000000000000";
    inside("chmod 6755 id && chmod 2775 d && mknod -m 666 zero c 1 5 && mknod -m 666 disk b 7 0");
    inside(&format!("mknod d/pipe p && {capability} capable && cp -a id d/id"));
    inner.attach("in");

    let shows = |what: &str, format: &str, want: &str| {
        m.allowed(0, &format!("stat -c '%A {format}' {what}"), want);
    };
    // By listing, by name, and what a call that changes something answers.
    m.allowed(0, "ls -l in", "-rwxr-xr-x");
    for program in ["in/id", "in/d/id"] {
        shows(program, "%u", "-rwxr-xr-x 0");
        m.allowed(STRANGER, &format!("./{program} -u"), &STRANGER.to_string());
    }
    m.allowed(
        0,
        "chmod 4755 in/plain; touch in/id; stat -c %A in/plain in/id",
        "-rwxr-xr-x\n-rwxr-xr-x",
    );
    m.allowed(STRANGER, "./in/id -u", &STRANGER.to_string());
    m.allowed(0, "ln in/id in/second; stat -c %A in/second", "-rwxr-xr-x");
    // To whoever has that cell itself, nothing is lost.
    assert_eq!(inside("stat -c %A id plain").trim(), "-rwsr-sr-x\n-rwsr-xr-x");
    shows("in/d", "%u", "drwxrwsr-x 0");
    shows("in/d/pipe", "%F", "fifo");

    for (device, kind) in [("zero", "character"), ("disk", "block")] {
        shows(&format!("in/{device}"), "%F %t,%T", &format!("{kind} special file 0,0"));
        for user in [0, STRANGER] {
            let (ok, said) = m.shell(user, &format!("head -c 1 in/{device}"));
            assert!(!ok && said.contains("cannot open"), "{user} {device}: {ok} {said}");
        }
    }
    m.allowed(0, "mknod -m 666 in/made c 1 5; stat -c %t,%T in/made", "0,0");
    assert_eq!(inside("stat -c %t,%T made").trim(), "1,5");

    assert!(inside("getfattr -m - capable").contains("security.capability"));
    let (ok, said) = m.shell(0, "getfattr -n security.capability in/capable");
    assert!(!ok && said.contains("No such attribute"), "{said}");
    let (ok, said) = m.shell(0, "getfattr -m - in/capable");
    assert!(ok && !said.contains("security"), "{said}");
    let (ok, said) = m.shell(0, &format!("{capability} in/plain"));
    assert!(!ok && said.contains("not supported"), "{said}");
    let (ok, said) = m.shell(0, "setfattr -x security.capability in/capable");
    assert!(!ok && said.contains("No such attribute"), "{said}");
    m.allowed(0, "setfattr -n user.a -v b in/plain; getfattr -d in/plain", "user.a=\"b\"");
    // Snapshots of it are of it.
    m.ringer(&["snapshot", "create", "a/in/d", "then"]);
    shows("in/d/.snapshots/then/id", "%u", "-rwxr-xr-x 0");
}

/// A cell that is attached is called by every mount, and shown to all its users.
#[test]
fn cells_are_attached_by_root_and_the_mounts_own_user() {
    let Some(m) = Shared::new() else { return };
    let inner = Inner::new(&m);
    fs::write(inner.at.join("inside"), "words").unwrap();
    inner.attach("in");
    m.allowed(STRANGER, "cat in/inside", "words");
    m.dir("own", 0o755);
    m.dir("own/j", 0o755);
    chown(m.at("own"), Some(STRANGER), Some(STRANGER)).unwrap();
    chown(m.at("own/j"), Some(STRANGER), Some(STRANGER)).unwrap();
    let attach = "setfattr -n user.weft.junction -v \"$(getfattr --only-values -n user.weft.junction in)\" own/j";
    m.denied(attach);
    m.allowed(STRANGER, "ls own/j; echo empty", "empty");
    let (ok, said) = m.shell(STRANGER, "cat own/j/inside");
    assert!(!ok && said.contains("No such file"), "{said}");
    // What counts for detaching are the permissions of what is seen there.
    m.allowed(0, attach, "");
    m.allowed(STRANGER, "cat own/j/inside", "words");
    let detach = "setfattr -x user.weft.junction own/j";
    m.denied(detach);
    m.allowed(0, detach, "");
    m.denied(attach);

    // Where the mount says so.
    let more = ["-o", "allow_other", "--allow-attach"];
    let at = crate::ringer::mount(&m.cell.bench, "c", &m.cell.address(), &more);
    let out = Command::new("sh")
        .args(["-c", &format!("{attach} && cat own/j/inside")])
        .current_dir(&at)
        .uid(STRANGER)
        .gid(STRANGER)
        .output()
        .unwrap();
    assert_eq!(out.stdout, b"words", "{out:?}");
}

/// A query finds names, words and tags in the whole cell, whoever may look there.
#[test]
fn query_folders_are_for_the_mounts_own_user() {
    let Some(m) = Shared::new() else { return };
    m.dir("private", 0o700);
    m.dir("open", 0o755);
    m.file("private/plan", "hidden words", 0o644);
    m.file("open/secret", "hidden words", 0o600);
    m.ringer(&["tag", "a/private/plan", "--add", "un"]);
    m.ringer(&["tag", "a/open/secret", "--add", "un"]);
    m.allowed(0, "ls .query/tag:un", "plan\nsecret");
    m.allowed(0, "cat .query/tag:un/plan", "hidden");
    for command in [
        "ls .query",
        "ls .query/tag:un",
        "ls .query/plan",
        "stat .query/tag:un/plan",
        "readlink -v .query/tag:un/secret",
        "cat .query/tag:un/secret",
        "getfattr -n user.weft.complete .query/tag:un",
        "ls private",
        "cat open/secret",
        "getfattr -n user.xdg.tags open/secret",
        "getfattr -n user.weft.history open/secret",
        "getfattr -n user.weft.holders open/secret",
    ] {
        m.denied(command);
    }
}

/// A snapshot shows no more of a file than the file does now, and no more than it did then.
#[test]
fn snapshots_deny_what_was_made_private_since() {
    let Some(m) = Shared::new() else { return };
    m.dir("d", 0o755);
    m.dir("d/sub", 0o755);
    m.file("d/notes", "words", 0o644);
    m.file("d/closed", "words", 0o600);
    m.file("d/gone", "words", 0o644);
    m.file("d/sub/inner", "words", 0o644);
    m.ringer(&["tag", "a/d/notes", "--add", "un"]);
    m.ringer(&["snapshot", "create", "a/d", "then"]);
    let then = "d/.snapshots/then";
    m.allowed(
        STRANGER,
        &format!("ls d/.snapshots {then}; cat {then}/notes {then}/sub/inner"),
        "wordswords",
    );
    m.denied(&format!("cat {then}/closed"));
    // Open now, and not then.
    chmod(&m.at("d/closed"), 0o644);
    m.denied(&format!("cat {then}/closed"));

    for mode in [0o600, 0o640, 0o004 | 0o600] {
        chmod(&m.at("d/notes"), mode);
        let read = format!("cat {then}/notes && getfattr -n user.xdg.tags {then}/notes");
        if mode == 0o604 { m.allowed(STRANGER, &read, "un") } else { m.denied(&read) }
    }
    // Given to another, who may: as the file itself.
    chmod(&m.at("d/notes"), 0o600);
    chown(m.at("d/notes"), Some(STRANGER), Some(STRANGER)).unwrap();
    m.allowed(STRANGER, "cat d/notes", "words");
    m.denied(&format!("cat {then}/notes"));
    assert_eq!(fs::read_to_string(m.at(&format!("{then}/notes"))).unwrap(), "words");

    chmod(&m.at("d/sub"), 0o700);
    m.denied(&format!("ls {then}/sub"));
    m.denied(&format!("cat {then}/sub/inner"));
    // What was removed is as it was.
    fs::remove_file(m.at("d/gone")).unwrap();
    m.allowed(STRANGER, &format!("cat {then}/gone"), "words");

    chmod(&m.at("d"), 0o711);
    m.denied("ls d/.snapshots");
    chmod(&m.at("d"), 0o700);
    m.denied("ls d/.snapshots");
    m.denied(&format!("cat {then}/gone"));
    m.denied("getfattr -n user.weft.snapshots d");
    m.allowed(0, &format!("cat {then}/notes {then}/sub/inner {then}/gone"), "wordswordswords");
}

/// An older version that was closed to others is not opened by making it the present one again.
#[test]
fn history_opens_nothing() {
    let Some(m) = Shared::new() else { return };
    m.dir("d", 0o755);
    m.dir("d/private", 0o700);
    m.dir("theirs", 0o755);
    chown(m.at("theirs"), Some(STRANGER), Some(STRANGER)).unwrap();
    m.ringer(&["policy", "a/d", "--versions", "5", "--every", "0s"]);
    m.file("d/f", "secret", 0o600);
    m.file("d/private/known-by-name", "secret", 0o644);
    let inode = fs::metadata(m.at("d/f")).unwrap().ino();
    // What the private file was is kept; now it says other things, to everybody.
    fs::write(m.at("d/f"), "public").unwrap();
    fs::File::open(m.at("d/f")).unwrap().sync_all().unwrap();
    chmod(&m.at("d/f"), 0o666);
    m.allowed(STRANGER, "cat d/f", "public");
    let history = m.cell.bench.json(&["ringer", "history", "a/d/f"]);
    let version = history["versions"][0]["version"].as_u64().expect("a version");

    // A copy of it below a directory of one's own.
    m.denied(&format!("setfattr -n user.weft.restore -v '{inode} {version} taken' theirs"));
    assert!(!m.at("theirs/taken").exists());
    // Whoever may write the file, and has it open, does not read by it what it was.
    let restore = format!("setfattr -n user.weft.restore -v {version} d/f");
    m.denied(&restore);
    m.allowed(STRANGER, &format!("exec 3<>d/f; {restore}; cat <&3"), "public");
    // Where root makes it what it was, it is closed again.
    m.allowed(0, &restore, "");
    assert_eq!(fs::read_to_string(m.at("d/f")).unwrap(), "secret");
    m.denied("cat d/f");
    assert_eq!(fs::metadata(m.at("d/f")).unwrap().mode() & 0o777, 0o600);

    // Names of what was removed where others may not look.
    fs::remove_file(m.at("d/private/known-by-name")).unwrap();
    assert!(m.ringer(&["history", "a/d"]).contains("known-by-name"));
    m.denied("getfattr -n user.weft.history d");
}

/// A file that was given away keeps from its new owner what it was while its old owner had it closed.
#[test]
fn history_stays_with_who_could_read_it() {
    let Some(m) = Shared::new() else { return };
    m.dir("d", 0o777);
    m.ringer(&["policy", "a/d", "--versions", "9", "--every", "0s"]);
    let settle = || fs::File::open(m.at("d/f")).unwrap().sync_all().unwrap();
    m.file("d/f", "secret", 0o600);
    settle();
    m.file("d/f", "everybody's", 0o644);
    settle();
    // Closed to others again, when it says something else: by another group's bits it is open.
    m.file("d/f", "group", 0o640);
    settle();
    m.file("d/f", "public", 0o644);
    settle();
    chown(m.at("d/f"), Some(STRANGER), Some(STRANGER)).unwrap();
    m.file("d/f", "theirs", 0o600);
    settle();
    // The oldest first.
    let versions_of_f = || {
        let history = m.cell.bench.json(&["ringer", "history", "a/d/f"]);
        let versions = history["versions"].as_array().expect("a list").iter().rev();
        let number = |version: &serde_json::Value| version["version"].as_u64().expect("a number");
        versions.map(number).collect::<Vec<_>>()
    };
    let versions = versions_of_f();
    let [secret, everybodys, group, public] = versions[..] else { panic!("{versions:?}") };
    let restore = |number| format!("setfattr -n user.weft.restore -v {number} d/f");
    m.denied(&restore(secret));
    m.denied(&restore(group));
    m.allowed(STRANGER, "cat d/f", "theirs");
    // What was open to all when it was kept, by its mode then.
    for (number, what) in [(public, "public"), (everybodys, "everybody's")] {
        m.allowed(STRANGER, &restore(number), "");
        m.allowed(STRANGER, "cat d/f", what);
    }
    let (ok, said) = m.shell(STRANGER, &restore(99_999));
    assert!(!ok && !said.contains("Permission denied"), "{said}");
    // What was the new owner's own is: the first that was kept since.
    let theirs = versions_of_f().into_iter().find(|number| *number > public).expect("kept");
    m.allowed(STRANGER, &restore(theirs), "");
    m.allowed(STRANGER, "cat d/f", "theirs");
    // Root gives whom he likes what he likes.
    m.allowed(0, &restore(secret), "");
    m.allowed(STRANGER, "cat d/f", "secret");
}

/// Attributes that speak of the mount and its keys, or act for its user.
#[test]
fn attributes_of_the_mount_are_for_its_own_user() {
    let Some(m) = Shared::new() else { return };
    m.dir("safe", 0o755);
    m.ringer(&["encrypt", "a/safe"]);
    chmod(&m.at, 0o777);
    for (name, of) in [
        ("conflicts", "."),
        ("store", "."),
        ("scrub", "."),
        ("keys", "."),
        ("keys", "safe"),
        ("member", "."),
        ("trusted", "."),
        ("shares", "safe"),
        ("cells", "."),
    ] {
        m.denied(&format!("getfattr -n user.weft.{name} {of}"));
    }
    for (name, value) in [
        ("conflicts", "mine 1"),
        ("scrub", "start"),
        ("keys", "weftkey1.x"),
        ("trusted", "add x"),
        ("pin", "1"),
    ] {
        m.denied(&format!("setfattr -n user.weft.{name} -v '{value}' ."));
    }
    m.denied("setfattr -x user.weft.pin .");
    m.allowed(0, "getfattr -n user.weft.store .", "user.weft.store");
}
