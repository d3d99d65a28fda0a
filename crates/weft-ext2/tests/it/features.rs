//! Features that a volume gets when the first thing is stored that needs them.

use crate::tools::{have_e2fsprogs, run};
use crate::volumes::{Kind, Mounted, POLICIES, empty, store};
use std::process::Command;
use weft_patch::Options;
use weft_vfs::{Caller, FileKind, FileSystem, XattrSet};

/// Features as `dumpe2fs` shows them.
fn features(mounted: Mounted, what: &str) -> String {
    let device = mounted.check(what);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device, &path);
    let (text, _) = run(Command::new("dumpe2fs").arg("-h").arg(&path));
    text.lines().find(|line| line.starts_with("Filesystem features")).expect("features").to_owned()
}

/// The kernel sets `ext_attr` wherever an attribute is stored, in the inode too.
#[test]
fn the_first_attribute_sets_its_feature() {
    if !have_e2fsprogs() {
        return;
    }
    let volume = |inode_bytes: &'static str| {
        let args: &'static [&'static str] = match inode_bytes {
            "128" => &["-t", "ext3", "-b", "1024", "-I", "128", "-O", "^ext_attr"],
            _ => &["-t", "ext3", "-b", "1024", "-I", "256", "-O", "^ext_attr"],
        };
        empty(&Kind { name: "without ext_attr", args, size: "16M" })
    };
    for (inode_bytes, policy) in ["128", "256"].iter().flat_map(|i| POLICIES.map(|p| (*i, p))) {
        let what = format!("inodes of {inode_bytes} bytes, {policy:?}");
        let image = volume(inode_bytes);
        let open = || Mounted::open(&image, Options { policy, ..Options::default() });
        let (caller, file) = (Caller::ROOT, FileKind::Regular);

        let without = open();
        let fs = &without.fs;
        fs.mknod(&caller, fs.root(), b"f", file, 0o644, 0).unwrap();
        assert!(!features(without, &what).contains("ext_attr"), "{what}: no attribute");

        let set = open();
        let fs = &set.fs;
        let ino = fs.mknod(&caller, fs.root(), b"f", file, 0o644, 0).unwrap().attr.ino;
        fs.setxattr(&caller, ino, b"user.note", b"short", XattrSet::Any).unwrap();
        assert!(features(set, &what).contains("ext_attr"), "{what}: a small attribute");
    }
}
