//! Names, links, attributes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, StatxFlags, XattrFlags};

use super::{both_caches, mounted};

#[test]
fn create_rename_link_remove() {
    let Some(m) = mounted() else { return };
    fs::create_dir_all(m.at("a/b/c")).expect("mkdir");
    fs::write(m.at("a/file"), b"content").expect("write");
    fs::hard_link(m.at("a/file"), m.at("a/b/link")).expect("link");
    symlink("../file", m.at("a/b/symlink")).expect("symlink");
    assert_eq!(fs::read(m.at("a/b/symlink")).expect("read"), b"content");
    assert_eq!(fs::metadata(m.at("a/file")).expect("stat").nlink(), 2);
    assert_eq!(fs::metadata(m.at("a")).expect("stat").nlink(), 3);
    fs::rename(m.at("a/file"), m.at("a/b/c/moved")).expect("rename");
    assert_eq!(fs::metadata(m.at("a/file")).expect_err("gone").kind(), ErrorKind::NotFound);
    assert_eq!(fs::read(m.at("a/b/c/moved")).expect("read"), b"content");
    // Absent names are remembered by the kernel: creating must end that.
    for _ in 0..3 {
        assert!(!m.at("fresh").exists());
        fs::write(m.at("fresh"), b"x").expect("write");
        assert!(m.at("fresh").exists());
        fs::remove_file(m.at("fresh")).expect("remove");
    }
    assert_eq!(fs::remove_dir(m.at("a/b")).expect_err("full").kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(m.at("a")).expect("remove");
    assert_eq!(fs::read_dir(m.path()).expect("list").count(), 0);
}

#[test]
fn rename_flags() {
    let Some(m) = mounted() else { return };
    fs::write(m.at("one"), b"1").expect("write");
    fs::write(m.at("two"), b"2").expect("write");
    let rename = |flags| rustix::fs::renameat_with(CWD, m.at("one"), CWD, m.at("two"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read(m.at("one")).expect("read"), b"2");
    assert_eq!(fs::read(m.at("two")).expect("read"), b"1");
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
}

#[test]
fn ten_thousand_names() {
    let Some(m) = mounted() else { return };
    fs::create_dir(m.at("many")).expect("mkdir");
    for at in 0..10_000 {
        fs::File::create(m.at(&format!("many/file number {at}"))).expect("create");
    }
    let list = || -> HashSet<_> {
        let entries = fs::read_dir(m.at("many")).expect("list");
        entries.map(|e| e.expect("entry").file_name()).collect()
    };
    assert_eq!(list().len(), 10_000);
    // Listed while it changes, as `rm -r` does it.
    for entry in fs::read_dir(m.at("many")).expect("list") {
        fs::remove_file(entry.expect("entry").path()).expect("remove");
    }
    assert!(list().is_empty());
    fs::remove_dir(m.at("many")).expect("rmdir");
}

#[test]
fn names_are_bytes() {
    let Some(m) = mounted() else { return };
    let long = vec![0xfe; 255];
    for name in [&b"\xff\x80 \n"[..], &long] {
        let path = m.path().join(OsStr::from_bytes(name));
        fs::write(&path, b"x").expect("write");
        let listed = fs::read_dir(m.path()).expect("list").next().expect("one").expect("entry");
        assert_eq!(listed.file_name().as_bytes(), name);
        fs::remove_file(path).expect("remove");
    }
    let too_long = m.path().join(OsStr::from_bytes(&[b'x'; 256]));
    let refused = fs::write(too_long, b"x").expect_err("too long").raw_os_error();
    assert_eq!(refused, Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()));
}

#[test]
fn attributes() {
    both_caches(|m| {
        let path = m.at("file");
        fs::write(&path, vec![1; 10_000]).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
        let stat = fs::metadata(&path).expect("stat");
        assert_eq!((stat.mode(), stat.len()), (0o104_751, 10_000));
        let when = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.set_times(fs::FileTimes::new().set_modified(when).set_accessed(when)).expect("touch");
        drop(file);
        assert_eq!(fs::metadata(&path).expect("stat").modified().expect("mtime"), when);
        let statx =
            rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).expect("statx");
        assert!(statx.stx_mask & StatxFlags::BTIME.bits() != 0, "birth time is known");
        assert_eq!(statx.stx_mtime.tv_sec, 1_234_567_890);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12), Some(70_000)).expect("chown");
            let stat = fs::metadata(&path).expect("stat");
            // A change of owner takes setuid away.
            assert_eq!((stat.uid(), stat.gid(), stat.mode()), (12, 70_000, 0o100_751));
        }
        let space = rustix::fs::statvfs(m.path()).expect("statfs");
        assert!(space.f_blocks > space.f_bfree && space.f_namemax == 255);
    });
}

#[test]
fn a_write_clears_setuid_only_without_privilege() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to write as somebody else");
        return;
    }
    both_caches(|m| {
        fs::set_permissions(m.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        let path = m.at("program");
        fs::write(&path, b"#!").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        fs::write(&path, b"by root").expect("write");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o6777);
        // Another user, in a process of its own: `dd` does not create or cut.
        let dd = format!("printf xy | dd of={} conv=notrunc status=none", path.display());
        let status = std::process::Command::new("setpriv")
            .args(["--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-c", &dd])
            .status()
            .expect("setpriv");
        assert!(status.success());
        assert_eq!(fs::read(&path).expect("read"), b"xy root");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
    });
}

#[test]
fn permissions_are_checked() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to act as somebody else");
        return;
    }
    let Some(m) = mounted() else { return };
    fs::write(m.at("secret"), b"x").expect("write");
    fs::set_permissions(m.at("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(m.at("open"), b"x").expect("write");
    fs::set_permissions(m.at("open"), fs::Permissions::from_mode(0o644)).expect("chmod");
    fs::set_permissions(m.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let cat = |name: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=12345", "--regid=12345", "--clear-groups", "cat"]);
        command.arg(m.at(name)).stderr(std::process::Stdio::null());
        command.output().expect("setpriv").status.success()
    };
    assert!(cat("open") && !cat("secret"));
}

#[test]
fn special_files() {
    let Some(m) = mounted() else { return };
    let mode = Mode::from_raw_mode(0o600);
    let make = |name: &str, kind, dev| rustix::fs::mknodat(CWD, m.at(name), kind, mode, dev);
    make("fifo", FileType::Fifo, 0).expect("mkfifo");
    assert!(fs::metadata(m.at("fifo")).expect("stat").file_type().is_fifo());
    let _socket = std::os::unix::net::UnixListener::bind(m.at("socket")).expect("bind");
    assert!(fs::metadata(m.at("socket")).expect("stat").file_type().is_socket());
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        make("null", FileType::CharacterDevice, null).expect("mknod");
        assert_eq!(fs::metadata(m.at("null")).expect("stat").rdev(), null);
        fs::write(m.at("null"), b"swallowed").expect("a device that works");
        let far = rustix::fs::makedev(300, 70_000);
        make("far", FileType::BlockDevice, far).expect("mknod");
        assert_eq!(fs::metadata(m.at("far")).expect("stat").rdev(), far);
    }
}

#[test]
fn extended_attributes() {
    let Some(m) = mounted() else { return };
    let path = m.at("file");
    fs::write(&path, b"x").expect("write");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.one", b"first", XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.one", b"x", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    set("user.big", &vec![7; 40_000], XattrFlags::empty()).expect("set");
    set("user.empty", b"", XattrFlags::empty()).expect("set");
    let mut value = vec![0; 50_000];
    let got = rustix::fs::getxattr(&path, "user.one", &mut value[..]).expect("get");
    assert_eq!(&value[..got], b"first");
    assert_eq!(rustix::fs::getxattr(&path, "user.big", &mut value[..]), Ok(40_000));
    assert_eq!(
        rustix::fs::getxattr(&path, "user.big", &mut value[..10]),
        Err(rustix::io::Errno::RANGE)
    );
    let mut names = vec![0; 1000];
    let got = rustix::fs::listxattr(&path, &mut names[..]).expect("list");
    let mut names: Vec<_> = names[..got].split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"user.big"[..], b"user.empty", b"user.one"]);
    rustix::fs::removexattr(&path, "user.big").expect("remove");
    assert_eq!(
        rustix::fs::getxattr(&path, "user.big", &mut value[..]),
        Err(rustix::io::Errno::NODATA)
    );
}

#[test]
fn without_extended_attributes() {
    let options = weft_fuse::MountOptions { xattrs: false, ..super::options() };
    let Some(m) = super::mounted_with(&options) else { return };
    fs::write(m.at("file"), b"x").expect("write");
    let refused = Err(rustix::io::Errno::OPNOTSUPP);
    let flags = XattrFlags::empty();
    assert_eq!(rustix::fs::setxattr(m.at("file"), "user.a", b"1", flags), refused);
    let mut value = [0; 10];
    let got = rustix::fs::getxattr(m.at("file"), "user.a", &mut value[..]);
    assert_eq!(got.map(|_| ()), refused);
    m.unmount();
}

#[test]
fn for_root_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to act as somebody else");
        return;
    }
    let options = weft_fuse::MountOptions::default();
    let Some(m) = super::mounted_with(&options) else { return };
    fs::write(m.at("file"), b"x").expect("write");
    fs::set_permissions(m.at("file"), fs::Permissions::from_mode(0o000)).expect("chmod");
    assert_eq!(fs::read(m.at("file")).expect("root reads everything"), b"x");
    let run = std::process::Command::new(m.at("file")).spawn().expect_err("not executable");
    assert_eq!(run.kind(), ErrorKind::PermissionDenied);
    fs::set_permissions(m.at("file"), fs::Permissions::from_mode(0o777)).expect("chmod");
    let mut other = std::process::Command::new("setpriv");
    other.args(["--reuid=12345", "--regid=12345", "--clear-groups", "cat"]);
    other.arg(m.at("file")).stderr(std::process::Stdio::null());
    assert!(!other.status().expect("setpriv").success(), "others stay out");
    m.unmount();
}
