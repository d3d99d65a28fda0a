//! What a mount has beside the kernel's own ext2: flags by `chattr` and `lsattr` and what they forbid,
//! `fstrim`, files without a name.

use crate::run::{Bench, can_mount, ran, tool};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The volume `v.img` mounted on `m`: by weft, or by the kernel.
struct Mounted<'a> {
    bench: &'a Bench,
    kernel: bool,
}

impl<'a> Mounted<'a> {
    fn by_weft(bench: &'a Bench, more: &[&str]) -> Self {
        fs::create_dir_all(bench.path("m")).unwrap();
        let args = ["mount", "v.img", "m", "--background"];
        bench.ok(&args.iter().chain(more).copied().collect::<Vec<_>>());
        Self { bench, kernel: false }
    }

    fn by_kernel(bench: &'a Bench) -> Option<Self> {
        fs::create_dir_all(bench.path("m")).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop", "v.img", "m"]).current_dir(bench.dir());
        let mounted = ran(&mount.output().expect("mount runs"));
        if mounted.code != 0 {
            println!("skipped: no loop mounts here: {}", mounted.err);
            return None;
        }
        Some(Self { bench, kernel: true })
    }

    fn dir(&self) -> PathBuf {
        self.bench.path("m")
    }

    fn end(self) {
        if self.kernel {
            // Busy for a moment while another test starts a program, which has our files until it runs.
            let unmounted = (0..3000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut umount = Command::new("umount");
                umount.arg(self.dir()).status().expect("umount runs").success()
            });
            assert!(unmounted);
            // A crash test has copies of all mounts in its namespace, where the volume stays in use.
            let freed = (0..6000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                !has_loop_device(&self.bench.path("v.img"))
            });
            assert!(freed, "a loop device of the volume is left");
        } else {
            self.bench.ok(&["umount", "m"]);
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if weft::mounts::mounted_at(&self.dir()).is_ok_and(|mounted| mounted.is_some()) {
            let _ = Command::new("umount").arg("--lazy").arg(self.dir()).status();
        }
    }
}

/// Returns true if a loop device shows this file.
fn has_loop_device(image: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let mut backed = devices.filter_map(|d| fs::read(d.path().join("loop/backing_file")).ok());
    backed.any(|file| file.trim_ascii_end() == image.as_os_str().as_encoded_bytes())
}

/// Runs one of e2fsprogs' programs in a directory.
fn attr_tool(dir: &Path, name: &str, args: &[&str]) -> crate::run::Ran {
    let mut command = Command::new(name);
    command.args(args).current_dir(dir).env("LC_ALL", "C");
    ran(&command.output().expect("e2fsprogs are installed"))
}

fn chattr(dir: &Path, args: &[&str]) {
    let done = attr_tool(dir, "chattr", args);
    assert_eq!(done.code, 0, "chattr {}: {done:?}", args.join(" "));
}

/// The letters that lsattr shows of a file.
fn lsattr(dir: &Path, name: &str) -> String {
    let shown = attr_tool(dir, "lsattr", &["-d", name]);
    assert_eq!(shown.code, 0, "lsattr {name}: {shown:?}");
    shown.out.split(' ').next().unwrap_or_default().to_owned()
}

fn usable() -> bool {
    if !can_mount() || tool("lsattr", ["-V".as_ref()]).is_none() {
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root sets all flags");
        return false;
    }
    true
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(bytes)
}

/// Writes at the beginning. A mount by FUSE says with the write what the kernel says with the opening.
fn overwrite(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(b"over")
}

fn touch(path: &Path, secs: Option<i64>) -> io::Result<()> {
    let time = secs
        .map_or(rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }, |tv_sec| {
            rustix::fs::Timespec { tv_sec, tv_nsec: 0 }
        });
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

/// Each change that flags may forbid, with what it failed with.
fn outcomes(dir: &Path) -> Vec<(String, Option<i32>)> {
    let at = |name: &str| dir.join(name);
    for name in ["immutable", "append", "plain"] {
        fs::write(at(name), b"content").unwrap();
        fs::create_dir(at(&format!("{name}-dir"))).unwrap();
        fs::write(at(&format!("{name}-dir/old")), b"content").unwrap();
        fs::create_dir(at(&format!("{name}-dir/sub"))).unwrap();
    }
    chattr(dir, &["+i", "immutable", "immutable-dir"]);
    chattr(dir, &["+a", "append", "append-dir"]);
    let mut outcomes = Vec::new();
    let mut note = |name: &str, what: &str, done: io::Result<()>| {
        outcomes.push((format!("{what} {name}"), done.err().and_then(|e| e.raw_os_error())));
    };
    for name in ["immutable", "append"] {
        let path = at(name);
        note(name, "overwrite", overwrite(&path));
        note(name, "append", append(&path, b", more"));
        note(
            name,
            "truncate",
            OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(1)),
        );
        note(name, "cut", fs::write(&path, b""));
        note(name, "chmod", fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        note(name, "chown", chown(&path, Some(1), Some(1)));
        note(name, "touch", touch(&path, None));
        note(name, "set times of", touch(&path, Some(1)));
        note(name, "link", fs::hard_link(&path, at("another")));
        note(name, "link over", fs::hard_link(at("plain"), &path));
        note(name, "rename", fs::rename(&path, at("renamed")));
        note(name, "rename over", fs::rename(at("plain"), &path));
        note(name, "rename to itself", fs::rename(&path, &path));
        note(name, "unlink", fs::remove_file(&path));
        let set = rustix::fs::setxattr(&path, "user.name", b"v", rustix::fs::XattrFlags::empty());
        note(name, "set attribute of", set.map_err(io::Error::from));
    }
    for name in ["immutable-dir", "append-dir"] {
        let path = at(name);
        note(name, "create in", fs::write(path.join("new"), b"new"));
        note(name, "create old in", fs::File::create_new(path.join("old")).map(drop));
        note(name, "mkdir in", fs::create_dir(path.join("dir")));
        note(name, "symlink in", symlink("x", path.join("symlink")));
        note(name, "link in", fs::hard_link(at("plain"), path.join("link")));
        note(name, "write in", fs::write(path.join("old"), b"in place"));
        note(name, "unlink in", fs::remove_file(path.join("old")));
        note(name, "unlink nothing in", fs::remove_file(path.join("nothing")));
        note(name, "rmdir in", fs::remove_dir(path.join("sub")));
        note(name, "rename in", fs::rename(path.join("old"), path.join("other")));
        note(name, "rename out of", fs::rename(path.join("old"), at("out")));
        note(name, "rename over old in", fs::rename(at("plain"), path.join("old")));
        let exchange = rustix::fs::renameat_with(
            rustix::fs::CWD,
            at("plain-dir/old"),
            rustix::fs::CWD,
            path.join("old"),
            rustix::fs::RenameFlags::EXCHANGE,
        );
        note(name, "exchange with old in", exchange.map_err(io::Error::from));
        note(name, "rename into", fs::rename(at("plain-dir/old"), path.join("in")));
        fs::write(at("plain-dir/old"), b"again").unwrap();
        note(name, "chmod", fs::set_permissions(&path, fs::Permissions::from_mode(0o700)));
        note(name, "touch", touch(&path, None));
        note(name, "rename", fs::rename(&path, at("renamed")));
        note(name, "rmdir", fs::remove_dir(&path));
    }
    outcomes.push((
        "flags of append".into(),
        Some(i32::from(lsattr(dir, "append").trim_matches('-') == "a")),
    ));
    chattr(dir, &["-ia", "immutable", "immutable-dir", "append", "append-dir"]);
    let content = fs::read_to_string(at("append")).unwrap();
    outcomes.push((format!("the content is {content}"), None));
    for name in ["immutable", "append", "immutable-dir", "append-dir"] {
        let path = at(name);
        let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        outcomes.push((format!("remove {name}"), gone.err().and_then(|e| e.raw_os_error())));
    }
    outcomes
}

/// Flags set on a directory with everything, and what is made in it.
fn inherited(dir: &Path) -> Vec<(String, String)> {
    fs::create_dir(dir.join("d")).unwrap();
    chattr(dir, &["+csuSDdAatT", "d"]);
    fs::create_dir(dir.join("d/dir")).unwrap();
    fs::write(dir.join("d/file"), b"x").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("d/fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    symlink("file", dir.join("d/link")).unwrap();
    let mut shown: Vec<(String, String)> =
        ["d", "d/dir", "d/file"].map(|name| (name.to_owned(), lsattr(dir, name))).into();
    for name in ["d/fifo", "d/link"] {
        let refused = attr_tool(dir, "lsattr", &["-d", name]);
        shown.push((name.to_owned(), format!("{} {}", refused.code, refused.err)));
    }
    // Flags of directories on a file, and one taken away.
    fs::write(dir.join("f"), b"x").unwrap();
    for args in [["+D", "f"], ["+T", "f"], ["-d", "d/file"]] {
        let done = attr_tool(dir, "chattr", &args);
        shown.push((args.join(" "), format!("{} {}", done.code, done.err)));
    }
    shown.push(("f".into(), lsattr(dir, "f")));
    shown.push(("d/file".into(), lsattr(dir, "d/file")));
    shown
}

fn beside_the_kernel<T: PartialEq + std::fmt::Debug>(look: impl Fn(&Path) -> Vec<T>) {
    if !usable() {
        return;
    }
    let kernel = {
        let bench = Bench::with_volume("ext2");
        let Some(mount) = Mounted::by_kernel(&bench) else { return };
        let seen = look(&mount.dir());
        mount.end();
        seen
    };
    for order in ["soft", "async"] {
        let bench = Bench::with_volume("ext2");
        let mount = Mounted::by_weft(&bench, &["--order", order]);
        let seen = look(&mount.dir());
        mount.end();
        bench.e2fsck_clean("v.img");
        for (ours, theirs) in seen.iter().zip(&kernel) {
            assert_eq!(ours, theirs, "{order}: weft, then the kernel");
        }
        assert_eq!(seen.len(), kernel.len());
    }
}

#[test]
fn flags_forbid_on_a_mount_what_they_forbid_in_the_kernel() {
    beside_the_kernel(outcomes);
}

#[test]
fn flags_are_inherited_as_in_the_kernel() {
    beside_the_kernel(inherited);
}

/// Flags set by one of the two are those that the other one shows.
#[test]
fn flags_are_those_of_the_kernel_on_the_same_volume() {
    if !usable() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::by_weft(&bench, &[]);
    fs::write(mount.dir().join("ours"), b"ours").unwrap();
    chattr(&mount.dir(), &["+iAdS", "ours"]);
    let ours = lsattr(&mount.dir(), "ours");
    mount.end();
    let Some(mount) = Mounted::by_kernel(&bench) else { return };
    assert_eq!(lsattr(&mount.dir(), "ours"), ours);
    fs::write(mount.dir().join("theirs"), b"theirs").unwrap();
    chattr(&mount.dir(), &["+asu", "theirs"]);
    let theirs = lsattr(&mount.dir(), "theirs");
    mount.end();
    let mount = Mounted::by_weft(&bench, &[]);
    assert_eq!(lsattr(&mount.dir(), "theirs"), theirs);
    assert_eq!(lsattr(&mount.dir(), "ours"), ours);
    mount.end();
    bench.e2fsck_clean("v.img");
}

/// The kernel collects writes and hands over whole pages: what was appended arrives, and what is
/// immutable stays as it was.
#[test]
fn flags_hold_where_the_kernel_collects_writes() {
    if !usable() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::by_weft(&bench, &["-o", "writeback"]);
    for name in ["log", "fixed"] {
        fs::write(mount.dir().join(name), b"first").unwrap();
        fs::File::open(mount.dir().join(name)).unwrap().sync_all().unwrap();
    }
    chattr(&mount.dir(), &["+a", "log"]);
    chattr(&mount.dir(), &["+i", "fixed"]);
    append(&mount.dir().join("log"), b", second").unwrap();
    fs::File::open(mount.dir().join("log")).unwrap().sync_all().unwrap();
    // The kernel takes the write, and learns when it hands it over that nothing may be written.
    let mut fixed = OpenOptions::new().write(true).open(mount.dir().join("fixed")).unwrap();
    let refused = fixed.write_all(b"over").and_then(|()| fixed.sync_all());
    assert!(refused.is_err());
    drop(fixed);
    mount.end();
    assert_eq!(bench.ok(&["cat", "v.img:/log"]), "first, second");
    assert_eq!(bench.ok(&["cat", "v.img:/fixed"]), "first");
}

/// Only the owner sets flags, and only root those that bind everybody.
#[test]
fn flags_are_set_by_those_who_may() {
    const USER: u32 = 1234;
    if !usable() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mounted::by_weft(&bench, &["-o", "allow_other"]);
    for (name, owner) in [("own", USER), ("foreign", 0)] {
        fs::write(mount.dir().join(name), b"x").unwrap();
        chown(mount.dir().join(name), Some(owner), Some(owner)).unwrap();
    }
    let by_user = |args: [&str; 2]| {
        let mut command = Command::new("chattr");
        command.args(args).current_dir(mount.dir()).env("LC_ALL", "C").uid(USER).gid(USER);
        ran(&command.output().expect("chattr runs"))
    };
    assert_eq!(by_user(["+d", "own"]).code, 0);
    for refused in [["+i", "own"], ["+a", "own"], ["+d", "foreign"]] {
        let said = by_user(refused);
        assert!(said.code != 0 && said.err.contains("not permitted"), "{refused:?}: {said:?}");
    }
    assert!(lsattr(&mount.dir(), "own").trim_matches('-') == "d");
    assert!(lsattr(&mount.dir(), "foreign").trim_matches('-').is_empty());
    mount.end();
}

/// What a file system keeps no flags of has no such command.
#[test]
fn file_systems_without_flags_say_so() {
    if !usable() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    bench.ok(&["mkfs", "hfs", "v.img", "--size", "4M", "--quiet"]);
    let mount = Mounted::by_weft(&bench, &[]);
    fs::write(mount.dir().join("f"), b"x").unwrap();
    let said = attr_tool(&mount.dir(), "lsattr", &["-d", "f"]);
    assert!(said.code != 0 && !said.err.is_empty(), "{said:?}");
    mount.end();
}

/// fstrim on a mount frees the image file's blocks on the host, and the files stay.
#[test]
fn fstrim_gives_the_free_blocks_of_an_image_back() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() || tool("fstrim", ["--version".as_ref()]).is_none() {
        return;
    }
    for order in ["soft", "journal=ordered"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::by_weft(&bench, &["--order", order]);
        fs::write(mount.dir().join("kept"), vec![3; 5_000_000]).unwrap();
        fs::write(mount.dir().join("gone"), vec![7; 30_000_000]).unwrap();
        fs::File::open(mount.dir()).unwrap().sync_all().unwrap();
        let full = bench.path("v.img").metadata().unwrap().blocks();
        fs::remove_file(mount.dir().join("gone")).unwrap();
        let args = ["--verbose".into(), mount.dir().into_os_string()];
        let args = args.iter().map(std::ffi::OsString::as_os_str);
        let said = tool("fstrim", args).expect("it is installed");
        assert!(said.code == 0 && said.out.contains("trimmed"), "{order}: {said:?}");
        let trimmed = bench.path("v.img").metadata().unwrap().blocks();
        assert!(trimmed + 29_000_000 / 512 < full, "{order}: {full}, then {trimmed}");
        assert!(fs::read(mount.dir().join("kept")).unwrap() == vec![3; 5_000_000]);
        mount.end();
        bench.e2fsck_clean("v.img");
    }
}

/// `O_TMPFILE`, and the name that such a file gets by `linkat`.
#[test]
fn a_file_is_made_without_a_name_and_gets_one() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    use std::os::fd::AsRawFd;
    if !can_mount() {
        return;
    }
    for order in ["soft", "journal=ordered"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::by_weft(&bench, &["--order", order]);
        let make = || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let made = rustix::fs::open(mount.dir(), flags, Mode::from_raw_mode(0o640));
            fs::File::from(made.expect("O_TMPFILE"))
        };
        let (mut named, mut nameless) = (make(), make());
        named.write_all(b"now it has a name").unwrap();
        nameless.write_all(&[1; 100_000]).unwrap();
        assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 1, "lost+found alone");
        let path = format!("/proc/self/fd/{}", named.as_raw_fd());
        let new = mount.dir().join("name");
        rustix::fs::linkat(CWD, path, CWD, &new, AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"now it has a name");
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o7777, 0o640);
        drop((named, nameless));
        mount.end();
        assert_eq!(bench.ok(&["cat", "v.img:/name"]), "now it has a name", "{order}");
        bench.e2fsck_clean("v.img");
    }
}
