//! An image that the kernel has mounted behind a loop device, or swaps to, is read but not written. Needs
//! root and loop devices.

use crate::run::{Bench, tool};
use std::ffi::OsStr;

/// Ends what a test made of the kernel, whatever happens to the test.
struct End(Vec<(&'static str, Vec<String>)>);

impl Drop for End {
    fn drop(&mut self) {
        for (program, args) in self.0.drain(..).rev() {
            tool(program, args.iter().map(OsStr::new));
        }
    }
}

/// Runs a program that needs root; `None` with a line if it is missing or fails.
fn root_tool(name: &str, args: &[&str]) -> Option<String> {
    let ran = tool(name, args.iter().map(OsStr::new))?;
    if ran.code != 0 {
        println!("skipped: {name} {}: {}", args.join(" "), ran.err.trim());
        return None;
    }
    Some(ran.out.trim().to_owned())
}

/// Every verb that opens a volume for writing. `DEV` stands for the image.
const WRITERS: &[&[&str]] = &[
    &["put", "file", "DEV:/"],
    &["put", "--recursive", "tree", "DEV:/"],
    &["import", "tree", "DEV:/"],
    &["mkdir", "DEV:/new"],
    &["rm", "DEV:/old"],
    &["mv", "DEV:/old", "DEV:/older"],
    &["ln", "DEV:/old", "DEV:/linked"],
    &["cp", "DEV:/old", "DEV:/copy"],
    &["mkfs", "ext2", "DEV"],
    &["mkfs", "ext2", "DEV", "--force"],
    &["mkfs", "hfs", "DEV", "--force"],
    &["fsck", "--repair", "DEV"],
    &["mount", "DEV", "m"],
    &["mount", "DEV", "m", "--background"],
    &["serve", "nbd", "DEV", "--socket", "s"],
    &["cache", "create", "DEV", "--size", "8M", "--force"],
];

fn writers_are_refused(bench: &Bench, image: &str, says: &[&str]) {
    let before = std::fs::read(bench.path("v.img")).unwrap();
    for verb in WRITERS {
        if verb[0] == "cache" && image.contains(':') {
            // A cache is a file, without filters.
            continue;
        }
        let args: Vec<String> = verb.iter().map(|arg| arg.replace("DEV", image)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = bench.run(&args);
        assert!(matches!(ran.code, 1 | 8), "weft {}: {ran:#?}", args.join(" "));
        for says in says {
            assert!(ran.err.contains(says), "weft {}: {ran:#?}", args.join(" "));
        }
    }
    let after = std::fs::read(bench.path("v.img")).unwrap();
    let changed = before.iter().zip(&after).position(|(before, after)| before != after);
    assert_eq!((changed, after.len()), (None, before.len()), "the first byte that was written");
}

fn bench() -> Bench {
    let bench = Bench::with_volume("ext2");
    bench.write("file", b"content");
    bench.write("tree/x", b"content");
    bench.write("old", b"old");
    bench.ok(&["put", "old", "v.img:/"]);
    std::fs::create_dir(bench.path("m")).unwrap();
    std::fs::create_dir(bench.path("k")).unwrap();
    bench
}

#[test]
fn an_image_that_the_kernel_has_mounted_is_only_read() {
    let bench = bench();
    let at = |name: &str| bench.path(name).to_str().unwrap().to_owned();
    let (image, k) = (at("v.img"), at("k"));
    if root_tool("mount", &["-o", "loop,noinit_itable", &image, &k]).is_none() {
        return;
    }
    let end = End(vec![("umount", vec![k.clone()])]);
    // The kernel notes the mount in the superblock at its leisure; by `noinit_itable` it notes nothing else.
    root_tool("sync", &["-f", &k]);
    std::fs::hard_link(&image, at("link.img")).unwrap();
    std::os::unix::fs::symlink(&image, at("symlink.img")).unwrap();
    for name in ["v.img", "link.img", "symlink.img", "delay=1us:v.img"] {
        writers_are_refused(&bench, name, &["/dev/loop", &format!("mounted on {k}"), "umount"]);
        assert!(bench.ok(&["ls", &format!("{name}:/")]).contains("old"));
        assert_eq!(bench.ok(&["cat", &format!("{name}:/old")]), "old");
    }
    drop(end);
    // Mount name spaces of other tests may have been made meanwhile, and hold the mount a little longer.
    weft_testing::wait_until("the loop device is free", || {
        root_tool("losetup", &["-j", &image]).is_none_or(|said| said.is_empty())
    });
    bench.ok(&["put", "file", "v.img:/"]);
    bench.e2fsck_clean("v.img");
}

/// The name of the backing file leads nowhere any more.
#[test]
fn an_image_that_the_kernel_has_mounted_by_a_name_that_is_gone_is_known_by_its_inode() {
    let bench = bench();
    let at = |name: &str| bench.path(name).to_str().unwrap().to_owned();
    std::fs::rename(at("v.img"), at("first.img")).unwrap();
    std::fs::hard_link(at("first.img"), at("v.img")).unwrap();
    if root_tool("mount", &["-o", "loop", &at("first.img"), &at("k")]).is_none() {
        return;
    }
    let _end = End(vec![("umount", vec![at("k")])]);
    std::fs::remove_file(at("first.img")).unwrap();
    writers_are_refused(&bench, "v.img", &["/dev/loop"]);
}

/// A loop device on the image that is mounted nowhere is no obstacle; one that device-mapper has is.
#[test]
fn a_loop_device_is_an_obstacle_if_something_uses_it() {
    let bench = bench();
    let image = bench.path("v.img").to_str().unwrap().to_owned();
    let Some(device) = root_tool("losetup", &["--find", "--show", &image]) else { return };
    let mut end = End(vec![("losetup", vec!["-d".into(), device.clone()])]);
    bench.ok(&["put", "file", "v.img:/"]);
    if !std::path::Path::new("/sys/class/misc/device-mapper").exists() {
        println!("not here: the kernel has no device-mapper");
        return;
    }
    let name = format!("weft-test-{}", std::process::id());
    let sectors = (64 << 20) / 512;
    let table = format!("0 {sectors} linear {device} 0");
    if root_tool("dmsetup", &["create", &name, "--table", &table]).is_none() {
        return;
    }
    end.0.push(("dmsetup", vec!["remove".into(), name.clone()]));
    writers_are_refused(&bench, "v.img", &[&device, &format!("/dev/mapper/{name}")]);
}

#[test]
fn a_swap_file_is_only_read() {
    let bench = bench();
    let image = bench.path("v.img").to_str().unwrap().to_owned();
    std::fs::write(&image, vec![0; 16 << 20]).unwrap();
    if root_tool("mkswap", &[&image]).is_none() || root_tool("swapon", &[&image]).is_none() {
        return;
    }
    let _end = End(vec![("swapoff", vec![image.clone()])]);
    let err = bench.fails(1, &["mkfs", "ext2", "v.img", "--force"]);
    assert!(err.contains("swaps to it") && err.contains("swapoff"), "{err}");
}

/// The kernel's driver takes no notice of locks.
#[test]
fn a_loop_device_of_an_image_that_weft_has_mounted_is_not_written() {
    if !crate::run::can_mount() {
        return;
    }
    let bench = bench();
    let image = bench.path("v.img").to_str().unwrap().to_owned();
    bench.ok(&["mount", "v.img", "m", "--background"]);
    let device = root_tool("losetup", &["--find", "--show", &image]);
    if let Some(device) = &device {
        let _end = End(vec![("losetup", vec!["-d".into(), device.clone()])]);
        let err = bench.fails(1, &["put", "file", &format!("{device}:/")]);
        assert!(err.contains("its backing file") && err.contains("v.img"), "{err}");
    }
    bench.ok(&["umount", "m"]);
}

/// QEMU's own tools, in place of a virtual machine.
#[test]
fn an_image_that_qemu_has_is_refused_and_qemu_refuses_one_that_weft_has() {
    if !crate::run::can_mount() {
        return;
    }
    let bench = bench();
    let image = bench.path("v.img").to_str().unwrap().to_owned();
    let qemu_io =
        |command: &str| tool("qemu-io", ["-f", "raw", "-c", command, &image].map(OsStr::new));
    let Some(ran) = qemu_io("write 0 512") else { return };
    assert_eq!(ran.code, 0, "{ran:#?}");
    bench.ok(&["mkfs", "ext2", "v.img", "--force"]);
    bench.ok(&["mount", "v.img", "m", "--background"]);
    let ran = qemu_io("write 0 512").expect("it ran");
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("lock"), "{ran:#?}");
    bench.ok(&["umount", "m"]);

    let mut machine = std::process::Command::new("qemu-io")
        .args(["-f", "raw", &image])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("qemu-io");
    // Its prompt comes when it has the image.
    let mut prompt = [0; 8];
    std::io::Read::read_exact(machine.stdout.as_mut().unwrap(), &mut prompt).unwrap();
    writers_are_refused(&bench, "v.img", &["virtual machines"]);
    drop(machine.stdin.take());
    machine.wait().unwrap();
    bench.ok(&["put", "file", "v.img:/"]);
}
