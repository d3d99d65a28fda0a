//! Directories of the host with more files than this process may have descriptors.

use crate::run::{Bench, can_mount};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Descriptors that the process which serves the mount may have.
const DESCRIPTORS: usize = 256;
const FILES: usize = 3000;

#[test]
fn more_files_than_descriptors() {
    if !can_mount() {
        return;
    }
    for rules in ["-", "*.log zstd\n"] {
        let bench = Bench::new();
        for dir in ["m", "data/many", "data/sub"] {
            fs::create_dir_all(bench.path(dir)).unwrap();
        }
        for nr in 0..FILES {
            fs::write(bench.path(&format!("data/many/{nr}")), nr.to_string()).unwrap();
        }
        let rules = if rules == "-" {
            "-"
        } else {
            bench.write("rules", rules.as_bytes());
            "rules"
        };
        let weft = env!("CARGO_BIN_EXE_weft");
        let script = format!(
            "ulimit -n {DESCRIPTORS}; exec {weft} mount hostdir:data m --background --transform {rules}"
        );
        let mounted = Command::new("sh")
            .args(["-c", &script])
            .current_dir(bench.dir())
            .env("WEFT_RUNTIME_DIR", bench.path("run"))
            .status();
        assert!(mounted.unwrap().success());
        let at = |name: &str| bench.path("m").join(name);
        let held = File::open(at("many/7")).unwrap();
        // The kernel remembers all of them.
        for nr in 0..FILES {
            let name = format!("many/{nr}");
            let len = fs::metadata(at(&name)).unwrap_or_else(|e| panic!("{name}: {e}")).len();
            assert_eq!(len, nr.to_string().len() as u64, "{name}");
        }
        for nr in (0..FILES).rev() {
            let name = format!("many/{nr}");
            let content = fs::read_to_string(at(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(content, nr.to_string(), "{name}");
        }
        // Everybody else goes on, also with files that lost their name meanwhile.
        fs::write(at("sub/new"), "new").unwrap();
        let mut gone = File::open(at("many/5")).unwrap();
        fs::remove_file(at("many/5")).unwrap();
        fs::rename(at("many/6"), at("many/5")).unwrap();
        for nr in 10..FILES {
            assert!(fs::metadata(at(&format!("many/{nr}"))).is_ok(), "{nr}");
        }
        let mut content = String::new();
        gone.read_to_string(&mut content).unwrap();
        assert_eq!(content, "5");
        assert_eq!(fs::read_to_string(at("many/5")).unwrap(), "6");
        assert_eq!(held.metadata().unwrap().len(), 1);
        // A mount that somebody has a file open in does not end.
        drop((held, gone));
        bench.ok(&["umount", "m"]);
    }
}

/// What `tar` and `rsync` go by: a directory and a file keep their numbers, whatever the kernel
/// forgets and whatever is written anew beside them.
#[test]
fn numbers_stay_when_the_kernel_forgets() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    for dir in ["m", "data"] {
        fs::create_dir_all(bench.path(dir)).unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not here: only root makes the kernel forget");
        return;
    }
    bench.write("rules", b"*.log zstd\n");
    bench.ok(&["mount", "hostdir:data", "m", "--background", "--transform", "rules"]);
    let at = |name: &str| bench.path("m").join(name);
    let mut numbers = Vec::new();
    for nr in 0..100 {
        // Each is written anew at its close, and gives its number on the host to what comes next.
        fs::write(at(&format!("{nr}.log")), "text").unwrap();
        fs::create_dir(at(&format!("d{nr}"))).unwrap();
        fs::write(at(&format!("d{nr}/f")), "text").unwrap();
        for name in [format!("{nr}.log"), format!("d{nr}"), format!("d{nr}/f")] {
            numbers.push((fs::metadata(at(&name)).unwrap().ino(), name));
        }
    }
    let mut unique: Vec<u64> = numbers.iter().map(|(ino, _)| *ino).collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), numbers.len(), "no two have one number");
    // Names and inodes of this mount, as far as nobody uses them.
    let _ = rustix::fs::syncfs(File::open(at("")).unwrap());
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    for (ino, name) in &numbers {
        assert_eq!(fs::metadata(at(name)).unwrap().ino(), *ino, "{name}");
    }
    bench.ok(&["umount", "m"]);
}
