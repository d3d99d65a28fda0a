//! From mounting to unmounting.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use weft_fuse::{Error, MountOptions};
use weft_vfs::{Caller, DirCursor, FileSystem, Handle, Node};

use super::mounted;
use weft_testing::wait_until;

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn unusable_mount_points() {
    let mount = |path: &Path| {
        weft_fuse::mount(Arc::new(crate::memory()), path, &MountOptions::default())
            .expect_err("mounted")
    };
    if !Path::new("/dev/fuse").exists() {
        assert!(matches!(mount(Path::new("/")), Error::NoDevice));
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    assert!(matches!(mount(&dir.path().join("none")), Error::NoMountpoint(_)));
    fs::write(dir.path().join("file"), b"x").expect("write");
    assert!(matches!(mount(&dir.path().join("file")), Error::NotADirectory(_)));
}

/// As with mount(8): what is there is hidden, and back afterwards.
#[test]
fn a_mount_point_may_hold_files() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::write(dir.path().join("below"), b"x").expect("write");
    let mount = weft_fuse::mount(Arc::new(crate::memory()), dir.path(), &MountOptions::default());
    let mut mount = mount.expect("mount");
    assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    crate::unmount(&mut mount);
    assert_eq!(fs::read(dir.path().join("below")).expect("read"), b"x");
}

#[test]
fn busy_until_files_are_closed() {
    let Some(mut m) = mounted() else { return };
    let mut mount = m.mount.take().expect("mounted");
    let mut file = File::create(m.at("open")).expect("create");
    file.write_all(b"x").expect("write");
    assert!(matches!(mount.unmount(), Err(Error::Busy(_))));
    assert!(is_mounted(m.path()));
    drop(file);
    crate::unmount(&mut mount);
    assert!(!is_mounted(m.path()));
    assert_eq!(fs::read_dir(m.path()).expect("list").count(), 0);
}

#[test]
fn unmounted_from_outside() {
    let Some(mut m) = mounted() else { return };
    let mount = m.mount.take().expect("mounted");
    fs::write(m.at("file"), b"kept").expect("write");
    // Busy for the reason that `crate::unmount` tells.
    wait_until("umount succeeds", || {
        Command::new("umount").arg(m.path()).status().expect("umount").success()
    });
    mount.join().expect("join");
    assert_eq!(weft_vfs::Walker::new(&*m.fs).read_file(b"/file").expect("read"), b"kept");
}

/// Between the end of a mount and its `join`, another may begin at the same path.
#[test]
fn a_later_mount_at_the_same_path_stays() {
    let Some(mut m) = mounted() else { return };
    let mount = m.mount.take().expect("mounted");
    wait_until("umount succeeds", || {
        Command::new("umount").arg(m.path()).status().expect("umount").success()
    });
    let later = weft_fuse::mount(Arc::new(crate::memory()), m.path(), &MountOptions::default());
    let mut later = later.expect("mount");
    mount.join().expect("join");
    assert!(is_mounted(m.path()), "the later mount was unmounted");
    fs::write(m.at("file"), b"x").expect("write");
    crate::unmount(&mut later);
}

/// The kernel ends a mount that is aborted, and leaves its path in the tree.
#[test]
fn an_aborted_mount_leaves_the_tree() {
    let Some(mut m) = mounted() else { return };
    let control = tempfile::tempdir().expect("temporary directory");
    let run = |command: &mut Command| command.status().expect("run").success();
    if !run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(control.path())) {
        eprintln!("skipped: only root may abort a mount");
        return;
    }
    let device = fs::metadata(m.path()).expect("metadata").dev();
    let connection = control.path().join(rustix::fs::minor(device).to_string());
    fs::write(connection.join("abort"), b"1").expect("abort");
    assert!(run(Command::new("umount").arg("--lazy").arg(control.path())));
    m.mount.take().expect("mounted").join().expect("join");
    assert!(!is_mounted(m.path()));
}

#[test]
fn dropping_unmounts() {
    let Some(mut m) = mounted() else { return };
    let held = File::create(m.at("open")).expect("create");
    let path = m.path().to_owned();
    let mount = m.mount.take();
    let dropper = std::thread::spawn(move || drop(mount));
    wait_until("it is unmounted", || !is_mounted(&path));
    drop(held);
    dropper.join().expect("dropped");
}

#[test]
fn shown_as_what_it_is() {
    let options = MountOptions { source: "some image".into(), ..MountOptions::default() };
    let Some(m) = super::mounted_with(&options) else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let path = m.path().to_str().expect("a path of letters");
    let line = mounts.lines().find(|line| line.contains(path)).expect("mounted");
    assert!(line.starts_with("some\\040image ") && line.contains(" fuse.weft "), "{line}");
    m.unmount();
}

#[test]
fn reads_far_ahead() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may set how far the kernel reads ahead");
        return;
    }
    if !Path::new("/sys/class/bdi").exists() {
        eprintln!("not here: sysfs does not show how far the kernel reads ahead");
        return;
    }
    let options = MountOptions { max_readahead_bytes: 640 << 10, ..MountOptions::default() };
    let Some(m) = super::mounted_with(&options) else { return };
    let device = rustix::fs::stat(m.path()).expect("stat").st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let knob = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    assert_eq!(knob.expect("read").trim(), "640");
    m.unmount();
}

#[test]
fn read_only() {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let Some(m) = super::mounted_with(&options) else { return };
    let refused = fs::write(m.at("file"), b"x").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    m.unmount();
}

#[test]
fn announced_changes_are_seen() {
    let Some(m) = mounted() else { return };
    fs::write(m.at("file"), b"old content").expect("write");
    assert_eq!(fs::read(m.at("file")).expect("read"), b"old content");
    assert!(!m.at("late").exists());
    // Behind the kernel's back.
    let root = Node::root(&*m.fs).expect("root");
    let file = root.lookup(b"file").expect("lookup");
    m.fs.write(&Caller::ROOT, file.ino(), Handle::NONE, 0, b"new").expect("write");
    root.create(&weft_vfs::Caller::ROOT, b"late", 0o644).expect("create");
    assert_eq!(fs::read(m.at("file")).expect("read"), b"old content", "the kernel remembers");
    let sink = m.fs.invalidate().expect("the mount has given a sink");
    sink.inode(file.ino(), true);
    sink.entry(root.ino(), b"late");
    wait_until("the notice has arrived", || {
        m.at("late").exists() && fs::read(m.at("file")).expect("read") == b"new content"
    });
    let mut names = 0;
    let count = m.fs.readdir(root.ino(), DirCursor::START, &mut |_| {
        names += 1;
        true
    });
    count.expect("list");
    assert_eq!(names, 4);
}

/// Runs this test again in a process of its own, which mounts and waits for a signal.
#[test]
fn signals_unmount() {
    const MOUNTPOINT: &str = "WEFT_TEST_MOUNTPOINT";
    if let Some(path) = std::env::var_os(MOUNTPOINT) {
        let fs = Arc::new(crate::memory());
        let mount = weft_fuse::mount(fs, Path::new(&path), &MountOptions::default());
        let mount = mount.expect("mount");
        mount.unmount_on_signals().expect("signals");
        println!("watching");
        mount.join().expect("join");
        println!("at rest");
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return;
    }
    for signal in ["TERM", "INT", "HUP"] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "life::signals_unmount", "--nocapture"])
            .env(MOUNTPOINT, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        wait_until("it is mounted", || is_mounted(dir.path()));
        // The signal must not come between mounting and watching for it.
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("watching") {
            assert!(out.read_line(&mut said).expect("text") > 0, "it ended: {said}");
        }
        fs::write(dir.path().join("file"), b"x").expect("write");
        let arguments = [format!("-{signal}"), child.id().to_string()];
        assert!(Command::new("kill").args(arguments).status().expect("kill").success());
        out.read_to_string(&mut said).expect("text");
        let status = child.wait().expect("wait");
        assert!(status.success(), "{signal}: {status:?}");
        assert!(said.contains("at rest"), "{said}");
        assert!(!is_mounted(dir.path()), "{signal} did not unmount");
    }
}

/// A daemon that was killed leaves a dead mount; the next mount there clears it away.
#[test]
fn dead_mounts_are_cleared_away() {
    const MOUNTPOINT: &str = "WEFT_TEST_DEAD";
    if let Some(path) = std::env::var_os(MOUNTPOINT) {
        let fs = Arc::new(crate::memory());
        let mount = weft_fuse::mount(fs, Path::new(&path), &MountOptions::default());
        mount.expect("mount").join().expect("join");
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "life::dead_mounts_are_cleared_away"])
        .env(MOUNTPOINT, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("start");
    wait_until("it is mounted", || is_mounted(dir.path()));
    child.kill().expect("kill");
    child.wait().expect("wait");
    let mount = weft_fuse::mount(Arc::new(crate::memory()), dir.path(), &MountOptions::default());
    let mut mount = mount.expect("mount over the dead one");
    fs::write(dir.path().join("file"), b"x").expect("write");
    crate::unmount(&mut mount);
    assert!(!is_mounted(dir.path()));
}
