//! A volume made and filled by e2fsprogs, and workloads on the names it holds.

use std::process::{Command, Stdio};
use weft_block::{FileDevice, Image, OpenMode, Rng};
use weft_crash::e2fsck::find_e2fsck;
use weft_crash::{Op, Workload};

/// Directories with names of 1 to 200 bytes.
const DIRS: [&str; 2] = ["dense", "other"];
const NAMES: usize = 40;

fn name(i: usize) -> String {
    format!("{i}-{}", "n".repeat(i * 37 % 200))
}

/// `None`, and a line that says why, where mke2fs is not installed.
pub fn volume() -> Option<Image> {
    let mke2fs = find_e2fsck().map(|p| p.with_file_name("mke2fs")).filter(|p| p.is_file());
    let Some(mke2fs) = mke2fs else {
        println!("skipped: mke2fs is not installed");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    for sub in DIRS {
        std::fs::create_dir_all(tree.join(sub)).unwrap();
        for i in 0..NAMES {
            std::fs::write(tree.join(sub).join(name(i)), vec![b'x'; i * 100]).unwrap();
        }
    }
    let path = dir.path().join("image");
    let made = Command::new(mke2fs)
        .args(["-q", "-t", "ext2", "-b", "1024", "-N", "256", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg("2500")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    let device = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    Some(Image::copy_of(&device).unwrap())
}

/// A few changes of names that are there, and new ones of all lengths.
pub fn workload(rng: &mut Rng) -> Workload {
    let mut names: Vec<String> =
        DIRS.iter().flat_map(|d| (0..NAMES).map(move |i| format!("{d}/{}", name(i)))).collect();
    let mut ops = Vec::new();
    for i in 0..1 + rng.index(4) {
        let old = names.swap_remove(rng.index(names.len()));
        let dir = DIRS[rng.index(2)];
        let new = format!("{dir}/new{i}{}", "m".repeat(rng.index(180)));
        ops.push(match rng.below(6) {
            0 | 1 => Op::Creat(new),
            2 => Op::Unlink(old),
            3 => Op::Rename(old, new),
            4 => Op::Rename(old, names.swap_remove(rng.index(names.len()))),
            _ => Op::Link(old, new),
        });
        if rng.chance(1, 3) {
            ops.push(Op::Fsync(dir.to_owned()));
        }
    }
    Workload { ops, ..Workload::default() }
}
