//! Real programs on a mount: what they copy arrives whole, with its mode and its ACL, and stays so
//! for the kernel's own driver.

use crate::run::{Bench, can_mount, ran, tool};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Runs a shell line in the bench's directory; `None` if one of the tools is missing.
fn shell(bench: &Bench, tools: &[&str], line: &str) -> Option<String> {
    for name in tools {
        tool(name, [OsStr::new("--version")])?;
    }
    let mut command = Command::new("sh");
    command.args(["-euc", line]).current_dir(bench.dir()).env("LC_ALL", "C");
    let ran = ran(&command.output().expect("sh runs"));
    assert_eq!(ran.code, 0, "{line}: {ran:#?}");
    Some(ran.out)
}

/// A mount on `m`; whatever a test does, nothing stays mounted.
struct Mounted<'a>(&'a Bench);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = self.0.run(&["umount", "--lazy", "m"]);
    }
}

fn mount<'a>(bench: &'a Bench, options: &str) -> Mounted<'a> {
    mount_of(bench, "v.img", &["-o", options])
}

fn mount_of<'a>(bench: &'a Bench, source: &str, options: &[&str]) -> Mounted<'a> {
    fs::create_dir_all(bench.path("m")).unwrap();
    bench.ok(&[&["mount", source, "m", "--background"], options].concat());
    Mounted(bench)
}

fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root may set owners and mount with the kernel's driver");
    }
    root
}

/// Programs that look for holes see the data that another one has just written and not synced.
#[test]
fn copies_of_a_file_that_is_being_written_are_whole() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let _mounted = mount(&bench, "rw");
    let content: Vec<u8> = (0..1 << 20).map(|at| (at % 251 + 1) as u8).collect();
    let file = File::create(bench.path("m/log")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    let stat = file.metadata().unwrap();
    assert!(stat.blocks() * 512 >= stat.len(), "{} blocks of {} bytes", stat.blocks(), stat.len());
    for (name, line) in [
        ("cp", "cp m/log cp"),
        ("dense", "cp --sparse=never m/log dense"),
        ("installed", "install m/log installed"),
        ("tar/m/log", "mkdir tar && tar -S -cf - m/log | tar -xf - -C tar"),
    ] {
        shell(&bench, &[], line);
        assert!(fs::read(bench.path(name)).unwrap() == content, "{line}");
    }
    drop(file);
    bench.ok(&["umount", "m"]);
    bench.e2fsck_clean("v.img");
}

/// write(2) itself says that the volume is full, or the file too long for it.
#[test]
fn write_says_that_the_volume_is_full() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "3M", "--quiet"]);
    let _mounted = mount(&bench, "rw");
    let mut file = File::create(bench.path("m/big")).unwrap();
    let mut taken = 0;
    let refused = loop {
        match file.write(&[7; 64 << 10]) {
            Ok(some) => taken += some,
            Err(e) => break e,
        }
        assert!(taken <= 3 << 20, "it took more than the volume holds");
    };
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    let far = file.write_at(b"x", 1 << 50).unwrap_err();
    assert_eq!(far.kind(), ErrorKind::FileTooLarge);
    drop(file);
    bench.ok(&["umount", "m"]);
    bench.e2fsck_clean("v.img");
}

/// `stat` and `getfacl` of everything below a directory.
const SHOW: &str = "show() { (cd \"$1\" && find . ! -name lost+found -printf '%p %M %U %G\\n' | sort && \
    find . ! -name lost+found ! -type l | sort | getfacl -p -n -s -); }; ";

/// Copies have the modes and ACLs of what they copy, on the mount and for the kernel's driver.
#[test]
fn copies_keep_modes_and_acls() {
    let kernel_driver = || -> bool {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.contains("ext2") || known.contains("ext4")
    };
    if !can_mount() || !root() {
        return;
    }
    for order in ["soft", "journal=ordered"] {
        let bench = Bench::with_volume("ext3");
        let made = shell(
            &bench,
            &["setfacl", "getfacl"],
            "umask 022; mkdir from m && mkdir from/d && cd from && echo one > plain && \
             echo two > run && chmod 755 run && echo three > secret && chmod 600 secret && \
             echo four > named && setfacl -m u:1001:rwx,g:1002:r,m::rx named && \
             setfacl -d -m u:1001:rwx,g::r,o::- d && chmod 2750 d && echo five > d/inherits && \
             mkdir d/below && ln -s plain link && echo six > d/moved",
        );
        if made.is_none() {
            return;
        }
        let _mounted = mount(&bench, &format!("allow_other,order={order}"));
        // What has no list of its own is handed one all the same, which says what its mode says.
        let copied = shell(
            &bench,
            &[],
            "cp -a from/. m/a && mkdir m/p && cp -p from/run from/secret m/p/ && \
             cp -a /etc/hostname m/hostname && install -m 751 from/plain m/installed && \
             tar --acls --xattrs -C from -cf - . | (mkdir m/t && tar --acls --xattrs -C m/t -xf -)",
        );
        assert!(copied.is_some());
        let moved = "d=$(mktemp -d -p /dev/shm) && cp -a from $d/x && mv $d/x m/moved && rmdir $d";
        if Path::new("/dev/shm").is_dir() {
            shell(&bench, &[], moved);
        }
        for copy in ["a", "t", "moved"] {
            if bench.path("m").join(copy).is_dir() {
                let line = format!("{SHOW} show from > want; show m/{copy} > have; diff want have");
                shell(&bench, &[], &line);
            }
        }
        let mode =
            |name: &str| fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode("m/p/run"), mode("m/p/secret"), mode("m/installed")),
            (0o755, 0o600, 0o751)
        );
        assert_eq!(mode("m/hostname"), mode("/etc/hostname"));
        let here = shell(&bench, &[], &format!("{SHOW} show m")).unwrap();
        bench.ok(&["umount", "m"]);
        bench.e2fsck_clean("v.img");
        if kernel_driver() {
            let line = format!("{SHOW} mount -o loop,ro v.img m && show m; umount m");
            assert_eq!(shell(&bench, &[], &line).unwrap(), here, "{order}: the kernel's driver");
        }
        // And out again without a mount.
        bench.ok(&["get", "v.img:/a", "back"]);
        shell(&bench, &[], &format!("{SHOW} show from > want; show back > have; diff want have"));
    }
}

/// The kernel obeys the lists, chmod changes the mask, and what is made inherits.
#[test]
fn acls_are_obeyed() {
    if !can_mount() || !root() {
        return;
    }
    for (source, options) in [
        ("v.img", &["-o", "allow_other"][..]),
        ("hostdir:data", &["-o", "allow_other"]),
        ("hostdir:data", &["-o", "allow_other", "--transform", "rules"]),
    ] {
        let bench = Bench::with_volume("ext2");
        fs::create_dir(bench.path("data")).unwrap();
        bench.write("rules", b"*.z zstd\n");
        let mounted = mount_of(&bench, source, options);
        obey_acls(&bench);
        bench.ok(&["umount", "m"]);
        drop(mounted);
        bench.e2fsck_clean("v.img");
    }
}

fn obey_acls(bench: &Bench) {
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    shell(
        bench,
        &["setfacl", "getfacl", "setpriv"],
        "cd m && as() { u=$1; shift; setpriv --reuid=$u --regid=$u --clear-groups \"$@\"; }; \
         echo x > f && chmod 644 f && as 1001 cat f && \
         setfacl -m u:1001:- f && ! as 1001 cat f 2>/dev/null && as 1002 cat f && \
         echo y > g && chmod 600 g && setfacl -m u:1001:rw g && as 1001 sh -c 'echo z >> g' && \
         ! as 1002 cat g 2>/dev/null && chmod 640 g && as 1001 cat g && \
         ! as 1001 sh -c 'echo z >> g' 2>/dev/null && getfacl -c g | grep -qx 'mask::r--' && \
         mkdir d && chmod 777 d && setfacl -d -m u:1001:rwx,o::- d && \
         as 1002 sh -c 'umask 077; echo w > d/f; mkdir d/e' && as 1001 cat d/f && \
         ! as 1003 cat d/f 2>/dev/null && as 1001 touch d/e/g && \
         setfacl -b g && test $(stat -c %a g) = 600 || { echo failed here; exit 1; }",
    );
}

/// Whoever may not set them takes setuid and setgid away with what he changes, and all see it.
#[test]
fn setuid_falls_when_others_write() {
    if !can_mount() || !root() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let _mounted = mount(&bench, "allow_other");
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let changed = shell(
        &bench,
        &["setpriv", "fallocate"],
        "cd m; as() { setpriv --reuid=1001 --regid=1001 --clear-groups \"$@\"; }; \
         for how in 'sh -c \"echo x >> f\"' 'fallocate -l 8192 f' 'fallocate -p -l 4096 f'; do \
           for mode in 6666 6676 6777; do \
             echo content > f; chmod $mode f; eval \"as $how\"; stat -c %a f; done; done | xargs",
    );
    bench.ok(&["umount", "m"]);
    if let Some(changed) = changed {
        assert_eq!(changed.trim(), "666 676 777 666 676 777 666 676 777");
    }
}

/// The umask still counts, for files, directories and FIFOs.
#[test]
fn the_umask_counts() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let _mounted = mount(&bench, "rw");
    let line = "cd m; umask 027; echo x > f; mkdir d; mkfifo p; stat -c %a f d p | tr '\\n' ' '";
    assert_eq!(shell(&bench, &[], line).unwrap(), "640 750 640 ");
    let mut text = String::new();
    File::open(bench.path("m/f")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "x\n");
    bench.ok(&["umount", "m"]);
}

/// As on the kernel's file systems: a directory keeps setgid, by which what is made in it gets its
/// group; a file loses what would give its new owner's rights, also by a change to the same owner.
#[test]
fn a_change_of_owner_takes_privileges_from_files_alone() {
    if !can_mount() || !root() {
        return;
    }
    let line = "cd m; \
        for mode in 2775 6775 7777; do mkdir d$mode; chmod $mode d$mode; \
          chgrp 11 d$mode; chown 17 d$mode; chown 18:12 d$mode; \
          mkdir d$mode/sub; echo > d$mode/file; \
          stat -c '%a %u %g' d$mode d$mode/sub d$mode/file; done; \
        for mode in 6755 2745 644; do for ids in 17,-1 -1,11 18,12 -1,-1; do \
          echo > f; chmod $mode f; python3 -c \"import os; os.chown('f', $ids)\"; \
          stat -c '%a %u %g' f; chown 0:0 f; done; done; cd ..";
    let mut want = None;
    for (source, options) in [
        ("the kernel", &[][..]),
        ("v.img", &["-o", "rw"][..]),
        ("v.img", &["-o", "open_files,io_uring=off"]),
        ("hostdir:data", &["-o", "rw"]),
        ("hostdir:data", &["--transform", "rules"]),
    ] {
        let bench = Bench::with_volume("ext2");
        bench.write("rules", b"*.z zstd\n");
        for dir in ["data", "m"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        // Without a mount: what the kernel does here.
        let mounted = (source != "the kernel").then(|| mount_of(&bench, source, options));
        let Some(found) = shell(&bench, &["python3"], line) else { return };
        drop(mounted);
        let want = want.get_or_insert_with(|| found.clone());
        assert_eq!(&found, want, "{source} {options:?}");
        assert!(found.starts_with("2775 18 12\n2755 0 12\n644 0 12\n"), "{found}");
    }
}
