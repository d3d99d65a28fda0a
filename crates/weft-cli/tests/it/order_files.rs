//! Engagements of single open files, through mounts.

use crate::run::{Bench, can_mount};
use std::fs::{File, OpenOptions, create_dir};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use weft::patchgroups::{Error, Fsync, MountedGroup};
use weft_testing::yield_until;

const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
const EXDEV: i32 = 18;

const ORDERS: [&str; 4] = ["soft", "async", "journal", "journal=ordered"];

/// A log that is written first, and a database in place after it, by open files alone: the thread that
/// engages them is not engaged itself.
const LOG_BEFORE_DATABASE: &str = r#"
import fcntl, mmap, os, struct
def command(fd, number, group, value):
    return struct.unpack("II", fcntl.ioctl(fd, 0xC0085700 | number, struct.pack("II", group, value)))[0]
log, db = os.open("log", os.O_RDWR), os.open("db", os.O_RDWR)
ENGAGE, DISENGAGE, FILE, BARRIER = 0xD3, 0xD4, 2, 256
before, after = command(log, 0xD0, 0, 0), command(log, 0xD0, 0, 0)
command(log, ENGAGE, before, FILE)
os.pwrite(db, b"o" * 8192, 0)  # without groups, its blocks are written first
os.pwrite(log, b"n" * 8192, 0)
command(log, DISENGAGE, before, FILE)
command(db, 0xD1, after, before)
command(db, ENGAGE, after, FILE | BARRIER)
"#;
const WRITE: &str = "os.pwrite(db, b'n' * 8192, 0)\nos.fsync(db)\n";
const MAP: &str = "m = mmap.mmap(db, 0)\nm[:] = b'n' * 8192\nm.flush()\n";

const OLD: &str = r"for f in log db; do head -c 8192 /dev/zero | tr '\0' o >$f; done";
const IN_ORDER: &str = "if grep -q n db; then ! grep -q o log && test $(stat -c %s log) = 8192; fi";

fn has_python() -> bool {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        println!("skipped: there is no python3 here");
    }
    there
}

#[test]
fn changes_by_an_open_file_are_never_durable_before_those_that_they_follow() {
    if !can_mount() || !has_python() {
        return;
    }
    let bench = Bench::new();
    let unordered = LOG_BEFORE_DATABASE.replace("command(db, ENGAGE", "#");
    let programs = [
        ("write", format!("{LOG_BEFORE_DATABASE}{WRITE}"), 0),
        ("mapping", format!("{LOG_BEFORE_DATABASE}{MAP}"), 0),
        ("neither", format!("{unordered}{}", WRITE.replace("os.fsync", "#")), 3),
    ];
    for (name, program, _) in &programs {
        bench.write(name, program.as_bytes());
    }
    for order in ORDERS {
        for (name, _, expected) in &programs {
            let run = format!("python3 {}", bench.path(name).display());
            let args = ["crash", "run", "--setup", OLD, "--order", order, "--states", "1500"];
            let args = [&args[..], &["--run", &run, "--check", IN_ORDER]].concat();
            let mut ran = bench.run(&args);
            // That the check can fail: if the program is stopped for long between its calls, what they
            // change is written in their order all the same.
            for _ in 0..3 {
                if *name != "neither" || ran.code == *expected {
                    break;
                }
                ran = bench.run(&args);
            }
            assert_eq!(ran.code, *expected, "{order}, {name}: {}{}", ran.out, ran.err);
        }
    }
}

/// A volume that is mounted, and unmounted at the end.
struct Mounted(Bench);

impl Mounted {
    fn new(options: &[&str]) -> Self {
        let bench = Bench::with_volume("ext2");
        create_dir(bench.path("m")).unwrap();
        bench.write("rules", b"*.z zstd\n");
        bench.ok(&[&["mount", "v.img", "m", "--background"], options].concat());
        Self(bench)
    }

    fn create(&self, name: &str) -> File {
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        options.open(self.0.path("m").join(name)).unwrap()
    }

    fn group(&self) -> MountedGroup {
        MountedGroup::new(&self.0.path("m")).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.ok(&["umount", "m"]);
            return;
        }
        self.0.run(&["umount", "m", "--lazy"]);
    }
}

/// Returns true if the group has changes that are not durable, and makes them so.
fn took(group: &MountedGroup) -> bool {
    let took = !group.is_durable().unwrap();
    group.sync().unwrap();
    took
}

#[test]
fn whoever_has_a_descriptor_of_the_file_changes_it_in_the_group() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["-o", "open_files"]);
    let (file, other) = (mounted.create("f"), mounted.create("f"));
    let group = mounted.group();
    group.engage_file(&file, Fsync::Wait).unwrap();
    std::thread::scope(|scope| scope.spawn(|| file.write_at(b"of a thread", 0).unwrap()).join())
        .unwrap();
    assert!(took(&group));
    file.set_len(5).unwrap();
    assert!(took(&group), "ftruncate");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::ZERO_RANGE, 0, 3).unwrap();
    assert!(took(&group), "fallocate");
    // A process that does not descend from this one, but has a descriptor.
    let script = "(sleep 0.3; echo passed on) &";
    let passed = Stdio::from(file.try_clone().unwrap());
    assert!(Command::new("sh").args(["-c", script]).stdout(passed).status().unwrap().success());
    yield_until("it writes", || file.metadata().unwrap().len() > 5);
    assert!(took(&group));
    // Another open file of the same inode, another file, and names.
    other.write_at(b"changed", 0).unwrap();
    mounted.create("g").write_all(b"changed").unwrap();
    std::fs::rename(mounted.0.path("m/g"), mounted.0.path("m/h")).unwrap();
    assert!(!took(&group));
    group.disengage_file(&file).unwrap();
    file.write_at(b"no more", 0).unwrap();
    assert!(!took(&group));
    // A file without a name; its engagement ends with its last descriptor.
    let (unnamed, next) =
        (OpenOptions::new().write(true).custom_flags(0o20_200_000).clone(), mounted.group());
    let unnamed = unnamed.open(mounted.0.path("m")).unwrap();
    next.engage_file(&unnamed, Fsync::Barrier).unwrap();
    unnamed.write_at(b"content", 0).unwrap();
    unnamed.sync_all().unwrap();
    assert!(!next.is_durable().unwrap(), "fsync does not wait");
    let third = mounted.group();
    assert!(third.depend(&next).is_err(), "it is engaged");
    drop(unnamed);
    yield_until("the file is closed", || third.depend(&next).is_ok());
}

#[test]
fn pages_of_a_mapping_are_in_the_group_at_msync_and_at_its_end() {
    if !can_mount() || !has_python() {
        return;
    }
    const SCRIPT: &str = "import mmap, sys\nm = mmap.mmap(0, 0)\nm[0:3] = b'new'\n";
    for (writeback, end) in [(false, "m.flush()"), (false, "m.close()"), (true, "m.flush()")] {
        let options = if writeback { "open_files,writeback" } else { "open_files" };
        let mounted = Mounted::new(&["-o", options]);
        let (file, other) = (mounted.create("f"), mounted.create("f"));
        file.set_len(8192).unwrap();
        file.sync_all().unwrap();
        let group = mounted.group();
        group.engage_file(&file, Fsync::Barrier).unwrap();
        for mapped in [&file, &other] {
            let mut python = Command::new("python3");
            python.args(["-c", &format!("{SCRIPT}{end}\n")]);
            let ran = python.stdin(Stdio::from(mapped.try_clone().unwrap())).status();
            assert!(ran.unwrap().success());
            // By the other file msync waits.
            let waited = std::ptr::eq(mapped, &other) && end == "m.flush()";
            assert_eq!(took(&group), !waited, "{options}, {end}");
        }
    }
}

#[test]
fn what_cannot_be_engaged_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let refused = |result: Result<(), Error>| match result {
        Err(e @ (Error::Refused { .. } | Error::NoGroups)) => e.errno(),
        other => panic!("{other:?}"),
    };
    let plain = Mounted::new(&[]);
    let (file, group) = (plain.create("f"), plain.group());
    let result = group.engage_file(&file, Fsync::Wait);
    assert!(matches!(result, Err(Error::NoOpenFiles)), "{result:?}");
    assert!(result.unwrap_err().to_string().contains("-o open_files"));

    let mounted = Mounted::new(&["-o", "open_files", "--transform", "rules"]);
    let group = mounted.group();
    let of = |name: &str| File::open(mounted.0.path(name)).unwrap();
    assert_eq!(refused(group.engage_file(of("m").as_fd(), Fsync::Wait)), EINVAL, "a directory");
    assert_eq!(refused(group.engage_file(file.as_fd(), Fsync::Wait)), EXDEV, "of another mount");
    assert_eq!(refused(group.engage_file(of("rules").as_fd(), Fsync::Wait)), EXDEV);
    let transformed = mounted.create("t.z");
    let result = group.engage_file(transformed.as_fd(), Fsync::Wait);
    assert_eq!(refused(result), ENOTTY, "its content is made later");
}

/// The transformations number open files themselves.
#[test]
fn below_transformations_too_it_is_the_open_file_that_is_engaged() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&["-o", "open_files", "--transform", "rules"]);
    let _transformed = mounted.create("t.z");
    let files = ["a", "b", "c"].map(|name| mounted.create(name));
    for engaged in 0..3 {
        let group = mounted.group();
        group.engage_file(&files[engaged], Fsync::Barrier).unwrap();
        for (number, file) in files.iter().enumerate() {
            file.set_len(100).unwrap();
            file.write_at(b"changed", 0).unwrap();
            file.set_len(50).unwrap();
            file.sync_all().unwrap();
            assert_eq!(took(&group), number == engaged, "{engaged} {number}");
        }
    }
}
