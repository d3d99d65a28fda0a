//! Mounts through the real binary: in the background, killed, remounted, unmounted.

use crate::run::{Bench, can_mount};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// A mounted volume; whatever a test does, nothing stays mounted.
struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(bench: &'a Bench, more: &[&str]) -> Self {
        fs::create_dir_all(bench.path("m")).unwrap();
        let args = ["mount", "v.img", "m", "--background", "--pid-file", "pid"];
        bench.ok(&args.iter().chain(more).copied().collect::<Vec<_>>());
        Self { bench, dir: bench.path("m") }
    }

    fn pid(&self) -> i32 {
        fs::read_to_string(self.bench.path("pid")).unwrap().trim().parse().unwrap()
    }

    fn kill(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the daemon is there");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

#[test]
fn files_written_through_a_mount_are_in_the_volume() {
    if !can_mount() {
        return;
    }
    for order in ["soft", "async", "journal=ordered", "journal=full"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::new(&bench, &["--order", order]);
        fs::create_dir_all(mount.dir.join("a/b")).unwrap();
        fs::write(mount.dir.join("a/b/file"), b"through the kernel").unwrap();
        fs::rename(mount.dir.join("a/b/file"), mount.dir.join("a/file")).unwrap();
        assert_eq!(fs::read(mount.dir.join("a/file")).unwrap(), b"through the kernel");
        // While it is mounted nobody else may have it.
        assert!(bench.fails(1, &["ls", "v.img:/"]).contains("in use"));
        bench.ok(&["umount", "m"]);
        assert_eq!(bench.ok(&["cat", "v.img:/a/file"]), "through the kernel", "{order}");
        bench.e2fsck_clean("v.img");
    }
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_synced() {
    if !can_mount() {
        return;
    }
    for order in ["soft", "journal=ordered"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::new(&bench, &["--order", order]);
        let mut synced = Vec::new();
        for i in 0..20 {
            let path = mount.dir.join(format!("file-{i}"));
            let mut file = fs::File::create(&path).unwrap();
            file.write_all(format!("content {i}").repeat(500).as_bytes()).unwrap();
            if i % 2 == 0 {
                file.sync_all().unwrap();
                synced.push(i);
            }
        }
        mount.kill(rustix::process::Signal::KILL);
        drop(mount);
        // A look needs neither a mount nor a repair, and changes nothing.
        assert!(bench.ok(&["cat", "v.img:/file-0"]).starts_with("content 0"), "{order}");
        // The dead mount is still there; mounting again clears it away, and needs no check.
        let mount = Mounted::new(&bench, &["--order", order]);
        for i in synced {
            let content = fs::read_to_string(mount.dir.join(format!("file-{i}"))).unwrap();
            assert_eq!(content, format!("content {i}").repeat(500), "{order}");
        }
        fs::write(mount.dir.join("after"), b"the crash").unwrap();
        bench.ok(&["umount", "m"]);
        let repaired = bench.run(&["fsck", "--repair", "v.img"]);
        assert!(repaired.code <= 1, "{order}: {repaired:#?}");
        bench.e2fsck_clean("v.img");
        assert_eq!(bench.ok(&["cat", "v.img:/after"]), "the crash");
    }
}

#[test]
fn syncing_the_mount_point_makes_everything_durable() {
    if !can_mount() {
        return;
    }
    for order in ["soft", "async", "journal", "journal=ordered", "journal=full"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::new(&bench, &["--order", order]);
        fs::create_dir_all(mount.dir.join("a/b")).unwrap();
        for i in 0..20 {
            fs::write(mount.dir.join(format!("a/b/file-{i}")), vec![i; 3000]).unwrap();
        }
        fs::File::open(&mount.dir).unwrap().sync_all().unwrap();
        mount.kill(rustix::process::Signal::KILL);
        drop(mount);
        let _again = Mounted::new(&bench, &["--order", order]);
        for i in 0..20 {
            let content = fs::read(bench.path(&format!("m/a/b/file-{i}"))).unwrap();
            assert_eq!(content, vec![i; 3000], "{order}");
        }
    }
}

#[test]
fn a_journal_beside_the_volume_is_replayed_by_fsck() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext3", "v.img", "--size", "64M", "--journal", "v.journal"]);
    let mount = Mounted::new(&bench, &["--journal", "v.journal"]);
    let mut file = fs::File::create(mount.dir.join("file")).unwrap();
    file.write_all(b"only in the journal").unwrap();
    file.sync_all().unwrap();
    mount.kill(rustix::process::Signal::KILL);
    drop(mount);
    let told = bench.run(&["fsck", "v.img"]);
    assert!(told.code == 4 && told.out.contains("external"), "{told:#?}");
    // As with the kernel's ext3, the superblock's totals are only right after an unmount.
    let told = bench.run(&["fsck", "v.img", "--journal", "v.journal"]);
    assert!(told.code == 4 && told.out.contains("0 leaked, 2 counts off, 0 corrupt"), "{told:#?}");
    let repaired = bench.run(&["fsck", "--repair", "v.img", "--journal", "v.journal"]);
    assert!(repaired.code <= 1, "{repaired:#?}");
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "only in the journal");
}

#[test]
fn sigterm_unmounts_cleanly() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::new(&bench, &[]);
    fs::write(mount.dir.join("file"), b"kept").unwrap();
    mount.kill(rustix::process::Signal::TERM);
    let image = bench.path("v.img");
    let free =
        weft::mounts::wait_until_free(image.to_str().unwrap(), std::time::Duration::from_secs(30));
    assert!(free.unwrap(), "the daemon ends");
    assert_eq!(weft::mounts::mounted_at(&mount.dir).unwrap(), None);
    assert_eq!(bench.json(&["info", "v.img"])["clean"], true);
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "kept");
}

#[test]
fn a_read_only_mount_refuses_writes() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    bench.write("file", b"there");
    bench.ok(&["put", "file", "v.img:/"]);
    let before = fs::read(bench.path("v.img")).unwrap();
    let mount = Mounted::new(&bench, &["-o", "ro,nosuid"]);
    assert_eq!(fs::read(mount.dir.join("file")).unwrap(), b"there");
    let e = fs::write(mount.dir.join("new"), b"").unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    bench.ok(&["umount", "m"]);
    assert!(fs::read(bench.path("v.img")).unwrap() == before, "not a byte has changed");
}

#[test]
fn what_cannot_be_mounted_says_why() {
    let bench = Bench::with_volume("ext2");
    let err = bench.fails(1, &["mount", "v.img", "nowhere", "--background"]);
    assert!(err.contains("nowhere"), "{err}");
    bench.write("noise", &vec![1; 10_000]);
    fs::create_dir(bench.path("m")).unwrap();
    for more in [&[][..], &["--background"]] {
        let args: Vec<&str> = ["mount", "noise", "m"].iter().chain(more).copied().collect();
        assert!(bench.fails(1, &args).contains("no file system that weft knows"), "{more:?}");
    }
    let err = bench.fails(1, &["umount", "m"]);
    assert!(err.contains("nothing is mounted on m"), "{err}");
}

#[test]
fn the_mount_helper_speaks_the_language_of_mount() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    fs::create_dir(bench.path("m")).unwrap();
    let helper = bench.path("mount.fuse.weft");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft"), &helper).unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(&helper);
        command.args(args).current_dir(bench.dir());
        command.output().expect("the helper runs")
    };
    let wrong = run(&["v.img", "m", "-o", "frobnicate"]);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let failed = run(&["none.img", "m"]);
    assert_eq!(failed.status.code(), Some(32), "{failed:?}");
    assert_eq!(run(&["v.img"]).status.code(), Some(1));
    let done = run(&["v.img", "m", "-o", "rw,noatime,order=soft"]);
    assert!(done.status.success(), "{done:?}");
    fs::write(bench.path("m/file"), b"by fstab").unwrap();
    bench.ok(&["umount", "m"]);
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "by fstab");
}

/// The volume is still in use at its first place: there is nothing to wait for.
#[test]
fn a_second_place_of_a_mount_is_unmounted_alone() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root may mount what is mounted at a second place");
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::new(&bench, &[]);
    fs::write(mount.dir.join("file"), b"x").unwrap();
    fs::write(bench.path("second"), b"").unwrap();
    let mut bind = std::process::Command::new("mount");
    bind.arg("--bind").arg(mount.dir.join("file")).arg(bench.path("second"));
    assert!(bind.status().expect("mount(8) runs").success());
    assert_eq!(fs::read(bench.path("second")).unwrap(), b"x");
    bench.ok(&["umount", "second"]);
    assert_eq!(fs::read(bench.path("second")).unwrap(), b"");
    fs::write(mount.dir.join("file"), b"y").unwrap();
    bench.ok(&["umount", "m"]);
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "y");
}

/// A container, say, began while the volume was mounted, and has it still.
#[test]
fn a_mount_that_lives_on_in_another_namespace_is_named() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root may make a mount namespace");
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::new(&bench, &[]);
    fs::write(mount.dir.join("file"), b"x").unwrap();
    // The new namespace lets go of what other tests have mounted.
    let script = "awk -v ours=\"$0\" '$3 ~ /^fuse/ && $2 != ours { print $2 }' /proc/self/mounts |
        while read -r other; do umount -l \"$other\"; done
        echo ready; read -r _ || true";
    let mut holder = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(&mount.dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("unshare(1) runs");
    let mut said = String::new();
    let mut stdout = std::io::BufReader::new(holder.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut stdout, &mut said).unwrap();
    assert_eq!(said, "ready\n");
    let err = bench.fails(1, &["umount", "m"]);
    let named = format!("in another mount namespace, that of process {} (sh)", holder.id());
    assert!(err.contains(&named), "{err}");
    drop(holder.stdin.take());
    assert!(holder.wait().expect("it ends").success());
    let image = bench.path("v.img");
    let free =
        weft::mounts::wait_until_free(image.to_str().unwrap(), std::time::Duration::from_secs(60));
    assert!(free.unwrap(), "the daemon ends when the other namespace does");
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "x");
}

/// The helper that umount(8) and systemd run: when it returns, the image may be looked at.
#[test]
fn the_umount_helper_returns_when_all_is_durable() {
    if !can_mount() {
        return;
    }
    let helper = |bench: &Bench, name: &str, args: &[&str]| {
        let place = bench.path(name);
        if !place.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft"), &place).unwrap();
        }
        let mut command = std::process::Command::new(place);
        command.args(args).current_dir(bench.dir()).output().expect("the helper runs")
    };
    for order in ["soft", "async", "journal=ordered"] {
        let bench = Bench::with_volume("ext3");
        let mount = Mounted::new(&bench, &["--order", order]);
        for i in 0..200 {
            fs::write(mount.dir.join(format!("file-{i}")), vec![i as u8; 100_000]).unwrap();
        }
        let done = helper(&bench, "umount.fuse.weft", &["m", "-n"]);
        assert!(done.status.success(), "{done:?}");
        bench.e2fsck_clean("v.img");
        let again = helper(&bench, "umount.fuse.weft", &["m"]);
        assert_eq!(again.status.code(), Some(32), "{again:?}");
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may remount");
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::new(&bench, &[]);
    fs::write(mount.dir.join("file"), b"x").unwrap();
    let done = helper(&bench, "mount.fuse.weft", &["v.img", "m", "-o", "remount,ro,nosuid"]);
    assert!(done.status.success(), "{done:?}");
    let e = fs::write(mount.dir.join("file"), b"y").unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let done = helper(&bench, "mount.fuse.weft", &["v.img", "m", "-o", "remount,rw"]);
    assert!(done.status.success(), "{done:?}");
    fs::write(mount.dir.join("file"), b"z").unwrap();
    bench.ok(&["umount", "m"]);
    assert_eq!(bench.ok(&["cat", "v.img:/file"]), "z");
}

/// The host's file system is full: unmounting says so, to whoever unmounts and to the system's log,
/// and what could not be written is kept until there is room.
#[test]
fn unmounting_says_what_could_not_be_written_and_keeps_it() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root can make a file system that is full");
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("host")).unwrap();
    let host = |options: &str| {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(bench.path("host"));
        assert!(command.status().expect("mount runs").success());
    };
    host("size=8M");
    let _host = Host(bench.path("host"));
    std::os::unix::fs::symlink("host/v.img", bench.path("v.img")).unwrap();
    bench.ok(&["mkfs", "ext2", "host/v.img", "--size", "64M", "--quiet"]);
    let log = std::os::unix::net::UnixDatagram::bind(bench.path("log")).unwrap();
    log.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    fs::create_dir(bench.path("m")).unwrap();
    let mut command = bench.command(&["mount", "v.img", "m", "--background"]);
    command.env("WEFT_LOG_SOCKET", bench.path("log"));
    assert!(command.output().expect("weft runs").status.success());
    fs::write(bench.path("m/file"), vec![7; 20 << 20]).unwrap();

    let said = bench.fails(1, &["umount", "m"]);
    assert!(said.contains("No space left on device") && said.contains("tries again"), "{said}");
    let mut told = vec![0; 4096];
    let logged = loop {
        let len = log.recv(&mut told).expect("a line in the log");
        let line = String::from_utf8_lossy(&told[..len]).into_owned();
        if line.contains("tries again") {
            break line;
        }
    };
    assert!(logged.starts_with("<27>weft[") && logged.contains("No space left"), "{logged}");
    assert_eq!(weft::mounts::mounted_at(&bench.path("m")).unwrap(), None);

    host("remount,size=100M");
    let image = bench.path("host/v.img");
    let limit = std::time::Duration::from_secs(120);
    assert!(weft::mounts::wait_until_free(image.to_str().unwrap(), limit).unwrap());
    bench.e2fsck_clean("host/v.img");
    bench.ok(&["get", "v.img:/file", "back"]);
    assert!(fs::read(bench.path("back")).unwrap() == vec![7; 20 << 20]);
}

/// A file system of the host, unmounted at the end.
struct Host(PathBuf);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Another program cuts the image off while everything is in memory.
#[test]
fn a_truncated_image_is_told_by_fsync_and_by_umount() {
    if !can_mount() {
        return;
    }
    let kinds: [(&str, &str, &[&str]); 5] = [
        ("ext3", "soft", &[]),
        ("ext3", "async", &[]),
        ("ext3", "journal=ordered", &[]),
        ("hfs", "soft", &[]),
        ("ext2", "soft", &["--cache", "c.img"]),
    ];
    for (format, order, more) in kinds {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "v.img", "--size", "64M", "--quiet"]);
        bench.ok(&["cache", "create", "c.img", "--size", "32M", "--quiet"]);
        let mount = Mounted::new(&bench, &[&["--order", order], more].concat());
        let mut file = fs::File::create(mount.dir.join("file")).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let image = fs::File::options().write(true).open(bench.path("v.img")).unwrap();
        image.set_len(1 << 20).unwrap();
        let what = format!("{format} {order} {more:?}");
        assert!(file.sync_all().is_err(), "{what}: fsync with nothing to write");
        assert!(file.write_all(&[8; 1 << 20]).and_then(|()| file.sync_all()).is_err(), "{what}");
        drop(file);
        let pid = mount.pid();
        let said = bench.fails(1, &["umount", "m"]);
        assert!(said.contains("was cut to 1048576 bytes"), "{order}: {said}");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("still there");
        let limit = std::time::Duration::from_secs(60);
        assert!(
            weft::mounts::wait_until_free(bench.path("v.img").to_str().unwrap(), limit).unwrap()
        );
        assert_eq!(image.metadata().unwrap().len(), 1 << 20, "{order}: nothing was written there");
    }
}

/// The number in it may be another process' afterwards.
#[test]
fn the_file_with_the_process_id_ends_with_the_process() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let pid = bench.path("pid");
    let is_gone = || !pid.exists();
    let mount = Mounted::new(&bench, &[]);
    bench.ok(&["umount", "m"]);
    weft_testing::wait_until("the file is removed", is_gone);
    drop(mount);
    let served = ["serve", "nbd", "v.img", "--socket", "s", "--background", "--pid-file", "pid"];
    bench.ok(&served);
    let id = fs::read_to_string(&pid).unwrap();
    let process = rustix::process::Pid::from_raw(id.trim().parse().unwrap()).unwrap();
    // One that is another process' by now is left alone.
    fs::write(&pid, "1\n").unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    weft_testing::wait_until("the server has ended", || {
        let state = fs::read_to_string(format!("/proc/{}/stat", id.trim()));
        state.map_or(true, |state| state.contains(") Z "))
    });
    assert_eq!(fs::read_to_string(&pid).unwrap(), "1\n");
}

/// A walk of it would never end, and wait for itself.
#[test]
fn a_directory_is_not_mounted_within_itself() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("data/below/deep")).unwrap();
    std::os::unix::fs::symlink("data/below", bench.path("link")).unwrap();
    for at in ["data/below", "data/below/deep", "link/deep"] {
        let err = bench.fails(2, &["mount", "hostdir:data", at, "--background"]);
        assert!(err.contains("which would hold itself"), "{at}: {err}");
    }
    if !can_mount() {
        return;
    }
    // It may hide itself.
    fs::write(bench.path("data/file"), "x").unwrap();
    bench.ok(&["mount", "hostdir:data", "data", "--background"]);
    assert_eq!(fs::read(bench.path("data/file")).unwrap(), b"x");
    bench.ok(&["umount", "data"]);
}

/// As mount(8) has them: a kill just after a call takes nothing of its change.
#[test]
fn sync_and_dirsync_wait_for_the_disk() {
    if !can_mount() {
        return;
    }
    for options in ["sync", "async,sync", "dirsync"] {
        let bench = Bench::with_volume("ext3");
        bench.write("old", b"old");
        bench.ok(&["put", "old", "v.img:/file"]);
        {
            let mount = Mounted::new(&bench, &["-o", options]);
            fs::write(mount.dir.join("file"), "new").unwrap();
            fs::create_dir(mount.dir.join("dir")).unwrap();
            fs::write(mount.dir.join("dir/name"), "x").unwrap();
            fs::hard_link(mount.dir.join("dir/name"), mount.dir.join("linked")).unwrap();
            fs::rename(mount.dir.join("dir/name"), mount.dir.join("dir/renamed")).unwrap();
            fs::remove_file(mount.dir.join("linked")).unwrap();
            mount.kill(rustix::process::Signal::KILL);
        }
        bench.run(&["umount", "m"]);
        if options.ends_with("dirsync") {
            bench.ok(&["stat", "v.img:/dir/renamed"]);
        } else {
            assert_eq!(bench.ok(&["cat", "v.img:/file", "v.img:/dir/renamed"]), "newx");
        }
        let names = bench.ok(&["ls", "v.img:/", "v.img:/dir"]);
        assert!(!names.contains("linked") && !names.contains("name\n"), "{options}: {names}");
    }
}

#[test]
fn options_for_volumes_without_owners_are_refused_by_others() {
    let bench = Bench::with_volume("ext2");
    fs::create_dir(bench.path("m")).unwrap();
    for option in ["uid=1000", "gid=1000", "umask=077", "fmask=111", "strictatime"] {
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        let name = name.replace("umask", "fmask");
        let err = bench.fails(2, &["mount", "v.img", "m", "-o", option]);
        assert!(err.contains(&name), "{option}: {err}");
    }
}

/// A killed process cannot have written all; unmounting what it left says so.
#[test]
fn unmounting_a_dead_mount_is_no_success() {
    if !can_mount() {
        return;
    }
    let bench = Bench::with_volume("ext2");
    let mount = Mounted::new(&bench, &[]);
    fs::write(mount.dir.join("file"), b"never synced").unwrap();
    mount.kill(rustix::process::Signal::KILL);
    let image = bench.path("v.img");
    let limit = std::time::Duration::from_secs(60);
    assert!(weft::mounts::wait_until_free(image.to_str().unwrap(), limit).unwrap());
    let said = bench.fails(1, &["umount", "m"]);
    assert!(said.contains("had died") && said.contains("weft fsck"), "{said}");
}

/// Kills the daemon at some moment of a copy, again and again on the same volume: each time the
/// next mount works at once and everything that was fsynced is there.
fn killed_again_and_again(format: &str, order: &str, kills: u64) {
    let bench = Bench::with_volume(format);
    for i in 0..400 {
        let len = 500 + i * 37 % 9000;
        bench.write(&format!("tree/d{}/f{i}", i % 20), &vec![(i % 251) as u8; len]);
    }
    let mut rng = weft::block::Rng::new(kills);
    let mut synced: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..=kills {
        let mount = Mounted::new(&bench, &["--order", order]);
        for (name, content) in &synced {
            let there = fs::read(mount.dir.join(name)).unwrap_or_default();
            assert!(there == *content, "{order}, round {round}: {name} was fsynced");
        }
        if round == kills {
            bench.ok(&["umount", "m"]);
            break;
        }
        let mut copy = std::process::Command::new("cp")
            .args(["-r", "tree"])
            .arg(mount.dir.join(format!("copy-{round}")))
            .current_dir(bench.dir())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("cp runs");
        for i in 0..rng.below(12) {
            let name = format!("synced-{round}-{i}");
            let content = vec![rng.below(256) as u8; rng.index(20_000)];
            let mut file = fs::File::create(mount.dir.join(&name)).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            synced.push((name, content));
        }
        std::thread::sleep(std::time::Duration::from_millis(rng.below(150)));
        mount.kill(rustix::process::Signal::KILL);
        drop(mount);
        copy.wait().expect("cp ends");
    }
    let repaired = bench.run(&["fsck", "--repair", "v.img"]);
    assert!(repaired.code <= 1, "{order}: {repaired:#?}");
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_volume_survives_its_daemon_being_killed_while_it_works() {
    if can_mount() {
        killed_again_and_again("ext2", "soft", 3);
        killed_again_and_again("ext3", "journal=ordered", 2);
    }
}

#[test]
#[ignore = "a campaign: make test-long"]
fn long_many_kills() {
    if can_mount() {
        for order in ["soft", "journal", "journal=ordered", "journal=full"] {
            killed_again_and_again("ext3", order, 10);
        }
    }
}
