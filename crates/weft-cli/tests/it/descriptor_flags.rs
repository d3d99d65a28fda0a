//! What the flags of a descriptor mean, on every kind of mount: `O_APPEND` with a mapping, `O_NOATIME`,
//! `O_DIRECT` next to others.

use crate::ringer::Cell;
use crate::run::{Bench, can_mount};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits().cast_signed();
const O_NOATIME: i32 = rustix::fs::OFlags::NOATIME.bits().cast_signed();

/// A volume or directory and how it is mounted.
const MOUNTS: [&[&str]; 12] = [
    &["mount", "ext2.img"],
    &["mount", "ext2.img", "-o", "io_uring=off,writeback"],
    &["mount", "ext2.img", "-o", "open_files"],
    &["mount", "ext3.img", "--order", "journal=full"],
    &["mount", "hfs.img"],
    &["mount", "hostdir:data"],
    &["mount", "hostdir:data", "-o", "nopassthrough"],
    &["mount", "hostdir:data", "--transform", "rules"],
    &["mount", "hostdir:data", "--transform", "rules", "-o", "nopassthrough"],
    &["mount", "ext2.img", "--transform", "rules"],
    &["mount", "hfs.img", "--transform", "rules"],
    &["crash", "mount", "data"],
];

/// Unmounts `m` also when a test fails.
struct Mounted<'a>(&'a Bench);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["umount", "--lazy", "m"]);
    }
}

/// Calls `check` in each kind of mount, with its directory and what it is called.
fn on_every_mount(check: impl Fn(&Path, &str)) {
    if !can_mount() {
        return;
    }
    for args in MOUNTS {
        let bench = Bench::new();
        for dir in ["data", "m"] {
            fs::create_dir(bench.path(dir)).unwrap();
        }
        bench.write("rules", b"*.zst zstd\n*.rot rot13\n*.xz xz\n");
        for format in ["ext2", "ext3", "hfs"] {
            let image = format!("{format}.img");
            if args.contains(&image.as_str()) {
                bench.ok(&["mkfs", format, &image, "--size", "32M"]);
            }
        }
        let background = ["m", "--background"];
        let at = args.iter().position(|arg| arg.contains(['.', ':']) || *arg == "data").unwrap();
        bench.ok(&[&args[..=at], &background, &args[at + 1..]].concat());
        let mounted = Mounted(&bench);
        check(&bench.path("m"), &args.join(" "));
        drop(mounted);
    }
    let cell = Cell::new();
    check(&cell.mount("a"), "ringer mount");
}

/// `python3` maps in place of this process: a mapping needs `unsafe` here.
fn python(script: &str, args: &[&Path]) -> bool {
    let status = Command::new("python3").args(["-c", script]).args(args).status();
    let Ok(status) = status else {
        println!("skipped: there is no python3 here");
        return false;
    };
    assert!(status.success(), "{args:?}");
    true
}

/// The kernel sends no flags with the pages of a mapping, and any handle that is open for writing.
#[test]
fn a_mapping_of_a_descriptor_that_appends_is_stored_in_place() {
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(fd, b'0123456789' * 1000)
m = mmap.mmap(fd, 10000)
m[0:1] = b'X'
m[5000:5004] = b'page'
m.flush()
os.write(fd, b'end')
m[9999:10000] = b'Y'
m.flush()
os.close(fd)
m[1:2] = b'Z'
m.close()
";
    on_every_mount(|dir, mount| {
        let mut want = b"0123456789".repeat(1000);
        want.extend_from_slice(b"end");
        (want[0], want[1], want[9999]) = (b'X', b'Z', b'Y');
        want[5000..5004].copy_from_slice(b"page");
        for name in ["plain", "f.zst", "f.rot", "f.xz"] {
            if !python(script, &[&dir.join(name)]) {
                return;
            }
            // Written back, not only in the kernel's cache.
            File::open(dir.join(name)).unwrap().sync_all().unwrap();
            let found = fs::read(dir.join(name)).unwrap();
            assert_eq!(found.len(), want.len(), "{mount}, {name}");
            assert!(found == want, "{mount}, {name}");
        }
    });
}

fn set_old_atime(path: &Path) -> SystemTime {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_times(FileTimes::new().set_accessed(old))
        .unwrap();
    old
}

/// A backup that is made like that changes, and writes, no inode.
#[test]
fn reading_with_o_noatime_keeps_the_access_time() {
    on_every_mount(|dir, mount| {
        // HFS has no access times.
        if mount.contains("hfs") {
            return;
        }
        let names = ["plain", "f.zst"];
        for name in names {
            let path = dir.join(name);
            fs::write(&path, "content").unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            let old = set_old_atime(&path);
            let quiet = || {
                let options = OpenOptions::new().read(true).custom_flags(O_NOATIME).open(&path);
                let mut file = options.unwrap();
                let mut content = String::new();
                file.read_to_string(&mut content).unwrap();
                assert_eq!(content, "content");
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_exact(&mut [0; 3]).unwrap();
            };
            quiet();
            let after = fs::metadata(&path).unwrap().accessed().unwrap();
            assert_eq!(after, old, "{mount}, {name}");
        }
    });
}

/// The same call without the flag does change it, where access times are kept: the test above could
/// not fail otherwise.
#[test]
fn reading_without_o_noatime_changes_the_access_time() {
    if !can_mount() {
        return;
    }
    for options in ["rw", "open_files", "io_uring=off"] {
        let bench = Bench::with_volume("ext2");
        fs::create_dir(bench.path("m")).unwrap();
        bench.ok(&["mount", "v.img", "m", "--background", "-o", options]);
        let _mounted = Mounted(&bench);
        let path = bench.path("m/file");
        fs::write(&path, "content").unwrap();
        let old = set_old_atime(&path);
        // The kernel answers from its cache, and asks for the attributes again then.
        bench.ok(&["umount", "m"]);
        bench.ok(&["mount", "v.img", "m", "--background", "-o", options]);
        let dir_before = fs::metadata(bench.path("m")).unwrap().atime();
        let read = |flags| {
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            file.unwrap().read_exact(&mut [0; 7]).unwrap();
        };
        read(O_NOATIME);
        assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap(), old, "{options}");
        bench.ok(&["umount", "m"]);
        bench.ok(&["mount", "v.img", "m", "--background", "-o", options]);
        read(0);
        bench.ok(&["umount", "m"]);
        bench.ok(&["mount", "v.img", "m", "--background", "-o", options]);
        assert!(fs::metadata(&path).unwrap().accessed().unwrap() > old, "{options}");
        assert!(dir_before > 0);
    }
}

fn aligned(path: &Path) -> Vec<u8> {
    let dd = Command::new("dd")
        .arg(format!("if={}", path.display()))
        .args(["bs=4096", "iflag=direct", "status=none"])
        .output()
        .unwrap();
    assert!(dd.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&dd.stderr));
    dd.stdout
}

fn write_aligned(path: &Path, content: &[u8]) {
    let mut dd = Command::new("dd")
        .arg(format!("of={}", path.display()))
        .args(["bs=4096", "oflag=direct", "conv=notrunc", "status=none"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    dd.stdin.take().unwrap().write_all(content).unwrap();
    assert!(dd.wait().unwrap().success(), "{}", path.display());
}

/// QEMU with `cache=none` opens an image like that while a backup or a preview has it open.
#[test]
fn a_file_that_others_have_open_is_opened_with_o_direct() {
    on_every_mount(|dir, mount| {
        let path: PathBuf = dir.join("image");
        let content: Vec<u8> = (0..64 << 10).map(|at| (at % 253) as u8).collect();
        fs::write(&path, &content).unwrap();
        let mut held = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(aligned(&path) == content, "{mount}: read while another has it open");
        held.write_all(b"by another").unwrap();
        assert_eq!(&aligned(&path)[..10], b"by another", "{mount}");
        write_aligned(&path, &[7; 8192]);
        held.seek(SeekFrom::Start(0)).unwrap();
        let mut found = vec![0; 9000];
        held.read_exact(&mut found).unwrap();
        assert!(found[..8192] == [7; 8192] && found[8192..] == content[8192..9000], "{mount}");
        // And in the other order.
        let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).expect(mount);
        drop(held);
        assert!(fs::read(&path).unwrap()[..8192] == [7; 8192], "{mount}");
        drop(direct);
        assert_eq!(aligned(&path).len(), content.len(), "{mount}: after all closed it");
    });
}
