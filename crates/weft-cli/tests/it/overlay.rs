//! A mount as the upper layer of an overlay of the kernel's (overlayfs). Needs root.

use crate::run::{Bench, can_mount, tool};
use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

struct End(Vec<std::path::PathBuf>);

impl Drop for End {
    fn drop(&mut self) {
        for mount in self.0.drain(..).rev() {
            tool("umount", [mount.as_os_str()]);
        }
    }
}

#[test]
fn a_mount_can_be_the_upper_layer_of_an_overlay() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: an overlay needs root");
        return;
    }
    for format in ["ext2", "ext3"] {
        let bench = Bench::with_volume(format);
        for dir in ["m", "o", "low/dir"] {
            std::fs::create_dir_all(bench.path(dir)).unwrap();
        }
        for name in ["low/kept", "low/removed", "low/renamed", "low/dir/x"] {
            bench.write(name, name.as_bytes());
        }
        bench.ok(&["mount", "v.img", "m", "--background"]);
        let mut end = End(vec![bench.path("m")]);
        for dir in ["m/up", "m/work"] {
            std::fs::create_dir(bench.path(dir)).unwrap();
        }
        let path = |name: &str| bench.path(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            path("low"),
            path("m/up"),
            path("m/work")
        );
        let (o, t) = (path("o"), "overlay");
        let args = ["-t", t, t, "-o", &options, &o].map(OsStr::new);
        let Some(ran) = tool("mount", args) else { return };
        if ran.err.contains("unknown filesystem type") {
            println!("not here: the kernel has no overlayfs");
            return;
        }
        assert_eq!(ran.code, 0, "{ran:#?}");
        end.0.push(bench.path("o"));
        std::fs::write(bench.path("o/kept"), "changed").unwrap();
        std::fs::remove_file(bench.path("o/removed")).unwrap();
        std::fs::rename(bench.path("o/renamed"), bench.path("o/new")).unwrap();
        std::fs::remove_dir_all(bench.path("o/dir")).unwrap();
        std::fs::create_dir(bench.path("o/dir")).unwrap();
        std::fs::write(bench.path("o/dir/y"), "opaque").unwrap();
        let names = |dir: &str| {
            let all = std::fs::read_dir(bench.path(dir)).unwrap();
            let mut all: Vec<_> =
                all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(names("o"), ["dir", "kept", "new"]);
        assert_eq!(names("o/dir"), ["y"]);
        assert_eq!(std::fs::read_to_string(bench.path("o/new")).unwrap(), "low/renamed");
        for whiteout in ["m/up/removed", "m/up/renamed"] {
            let meta = std::fs::symlink_metadata(bench.path(whiteout)).unwrap();
            assert!(meta.file_type().is_char_device() && meta.rdev() == 0, "{whiteout}: {meta:?}");
        }
        drop(End(end.0.split_off(1)));
        bench.ok(&["umount", "m"]);
        end.0.clear();
        bench.e2fsck_clean("v.img");
        assert_eq!(std::fs::read_to_string(bench.path("low/kept")).unwrap(), "low/kept");
    }
}
