//! Volumes full of all kinds of things, made by mke2fs without mounting.

use crate::tools::run;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small tree with every kind of file that can be made without being root.
pub fn make_tree(root: &Path) {
    let write = |name: &str, len: usize| {
        let content: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        std::fs::write(root.join(name), content).unwrap();
    };
    for dir in ["a", "a/b", "a/b/c", "empty", "many"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    write("small", 10);
    write("a/one-block", 1024);
    write("a/indirect", 40_000);
    write("a/b/double", 400_000);
    write("a/b/c/zero", 0);
    for i in 0..120 {
        write(&format!("many/a-file-with-a-name-of-some-length-{i}"), i % 3);
    }
    std::fs::hard_link(root.join("small"), root.join("a/hard-link")).unwrap();
    symlink("small", root.join("fast-link")).unwrap();
    symlink("x".repeat(200), root.join("slow-link")).unwrap();
    let _ = rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    );
}

/// Makes a volume with the tree in it.
pub fn make_image(dir: &Path, kind: &str, block: u32, inode: u32, size: &str) -> PathBuf {
    let tree = dir.join("tree");
    if !tree.exists() {
        std::fs::create_dir(&tree).unwrap();
        make_tree(&tree);
    }
    let path = dir.join(format!("{kind}-{block}-{inode}.img"));
    let _ = std::fs::remove_file(&path);
    let (text, status) = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", kind, "-b", &block.to_string(), "-I", &inode.to_string()])
        .args(["-N", "256", "-U", "01020304-0506-0708-090a-0b0c0d0e0f10", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg(size));
    assert_eq!(status, 0, "{text}");
    // Items that mke2fs cannot copy: a device, attributes in the inode and in a block of their own.
    let big = "v".repeat(600);
    let script = format!(
        "mknod null c 1 3\nea_set small user.note hello\nea_set a/indirect user.big {big}\n"
    );
    let commands = dir.join("commands");
    std::fs::write(&commands, script).unwrap();
    run(Command::new("debugfs").args(["-w", "-f"]).arg(&commands).arg(&path));
    path
}

/// Gives the volume's directories hash trees, where they have more than one block.
pub fn index(image: &Path) {
    let (text, status) = run(Command::new("e2fsck").args(["-fyD"]).arg(image));
    assert!(status <= 1, "{text}");
}
