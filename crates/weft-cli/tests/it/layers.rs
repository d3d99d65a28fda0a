//! Trees put over trees: layers, packages, streams of other people with lists and labels, and files
//! that replace files on a volume that has no room for both.

use crate::run::{Bench, tool};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

fn tar(bench: &Bench, name: &str, from: &str, members: &[&str]) -> bool {
    let (archive, from) = (bench.path(name), bench.path(from));
    let args = [OsStr::new("-cf"), archive.as_os_str(), OsStr::new("-C"), from.as_os_str()];
    let Some(ran) = tool("tar", args.into_iter().chain(members.iter().map(OsStr::new))) else {
        return false;
    };
    assert_eq!(ran.code, 0, "{ran:#?}");
    true
}

/// A volume with a tree whose `bin` and `run` are symbolic links, as Debian's are.
fn base(top: &str) -> Bench {
    let bench = Bench::with_volume("ext2");
    bench.write("base/usr/bin/old", b"old");
    bench.write("base/etc/motd", b"hello");
    fs::create_dir_all(bench.path("base/run")).unwrap();
    fs::create_dir_all(bench.path("base/var")).unwrap();
    symlink("usr/bin", bench.path("base/bin")).unwrap();
    symlink("/run", bench.path("base/var/run")).unwrap();
    symlink("../../../../../etc", bench.path("base/var/up")).unwrap();
    symlink("nowhere", bench.path("base/dangling")).unwrap();
    symlink("round", bench.path("base/round")).unwrap();
    fs::set_permissions(bench.path("base/usr/bin"), fs::Permissions::from_mode(0o751)).unwrap();
    bench.ok(&["import", "base", &format!("v.img:{top}")]);
    bench
}

#[test]
fn a_layer_goes_through_the_links_of_the_tree_below_it() {
    // The destination is the root of its links, whether it is the root of the volume or not.
    for top in ["/", "/rootfs"] {
        let bench = base(top);
        bench.write("layer/bin/tool", b"tool");
        bench.write("layer/var/run/pid", b"1");
        bench.write("layer/var/up/issue", b"issue");
        bench.write("layer/dangling/file", b"in a directory");
        fs::set_permissions(bench.path("layer/bin"), fs::Permissions::from_mode(0o700)).unwrap();
        let path = |name: &str| format!("v.img:{}/{name}", top.trim_end_matches('/'));
        // With members for the directories, and without: `bin/tool` alone.
        let whole = tar(&bench, "whole.tar", "layer", &["."]);
        let parts = ["bin/tool", "var/run/pid", "var/up/issue"];
        if !whole || !tar(&bench, "parts.tar", "layer", &parts) {
            return;
        }
        for from in ["parts.tar", "layer", "whole.tar"] {
            bench.ok(&["import", from, &format!("v.img:{top}")]);
            assert_eq!(bench.ok(&["cat", &path("usr/bin/tool")]), "tool", "{from}");
            assert_eq!(bench.ok(&["cat", &path("run/pid")]), "1", "{from}");
            assert_eq!(bench.ok(&["cat", &path("etc/issue")]), "issue", "{from}");
            for link in ["bin", "var/run", "var/up"] {
                assert_eq!(bench.json(&["stat", &path(link)])[0]["kind"], "symlink", "{from}");
            }
            // The member is of the link's name, not of the directory that it leads to.
            let mode = bench.json(&["stat", &path("usr/bin")])[0]["mode"].clone();
            assert_eq!(mode, "0751", "{from}");
            bench.ok(&["rm", &path("usr/bin/tool"), &path("run/pid"), &path("etc/issue")]);
        }
        // A link to nothing is replaced, as tar does it.
        assert_eq!(bench.ok(&["cat", &path("dangling/file")]), "in a directory");
        assert_eq!(bench.ok(&["cat", &path("usr/bin/old")]), "old");
        assert!(bench.run(&["ls", "v.img:/etc"]).code == i32::from(top != "/"), "{top}");
        bench.e2fsck_clean("v.img");
    }
}

#[test]
fn what_one_member_meets_costs_that_member_alone() {
    let bench = base("/");
    bench.write("layer/a", b"a");
    // In place of a file: a directory. In place of directories, an empty and a full one: files.
    bench.write("layer/etc/motd/new", b"below a former file");
    bench.write("layer/run", b"a file");
    bench.write("layer/usr", b"a file");
    bench.write("layer/z", b"z");
    fs::hard_link(bench.path("layer/a"), bench.path("layer/other")).unwrap();
    bench.write("more/round/x", b"x");
    let links = ["a", "other", "etc", "run", "usr", "z"];
    if !tar(&bench, "layer.tar", "layer", &links) || !tar(&bench, "m.tar", "more", &["round/x"]) {
        return;
    }
    let ran = bench.run(&["import", "layer.tar", "v.img:/"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert_eq!(
        ran.err,
        "weft: cannot replace /usr in the volume: directory not empty\n\
         weft: 1 name left out, for the reasons above; everything else was copied\n"
    );
    assert_eq!(bench.ok(&["cat", "v.img:/etc/motd/new"]), "below a former file");
    assert_eq!(bench.ok(&["cat", "v.img:/run"]), "a file");
    assert_eq!(bench.ok(&["cat", "v.img:/z"]), "z");
    assert_eq!(bench.ok(&["cat", "v.img:/usr/bin/old"]), "old");

    // A hard link to a file that is not there, and members behind it.
    fs::write(bench.path("layer.tar"), without_first_member(&bench)).unwrap();
    bench.ok(&["rm", "v.img:/a", "v.img:/other", "v.img:/z"]);
    let ran = bench.run(&["import", "layer.tar", "v.img:/"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.err.contains("cannot link to /a in the volume: no such file"), "{ran:#?}");
    assert!(ran.err.contains("2 names left out"), "{ran:#?}");
    assert_eq!(bench.ok(&["cat", "v.img:/z"]), "z");

    // Links that lead to themselves.
    let ran = bench.run(&["import", "m.tar", "v.img:/"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.err.contains("too many levels of symbolic links"), "{ran:#?}");
    bench.e2fsck_clean("v.img");
}

/// The stream without its first member, which is the file `a`: a header and a block.
fn without_first_member(bench: &Bench) -> Vec<u8> {
    let whole = fs::read(bench.path("layer.tar")).unwrap();
    assert!(whole.starts_with(b"a\0"));
    whole[1024..].to_vec()
}

#[test]
fn layers_take_away_what_their_whiteouts_name() {
    let bench = Bench::with_volume("ext2");
    for name in ["d/one", "d/two", "e/old", "e/sub/old", "f/old", "keep/x", "gone/a/b"] {
        bench.write(&format!("base/{name}"), b"base");
    }
    bench.ok(&["import", "base", "v.img:/"]);
    bench.write("layer/d/.wh.one", b"");
    bench.write("layer/.wh.gone", b"");
    bench.write("layer/d/.wh.never", b"");
    bench.write("layer/e/a-new", b"new");
    bench.write("layer/e/sub/new", b"new");
    bench.write("layer/e/.wh..wh..opq", b"");
    // As files unless they are asked for.
    bench.ok(&["import", "layer", "v.img:/plain"]);
    assert_eq!(bench.ok(&["ls", "-a", "v.img:/plain/d"]), ".wh.never\n.wh.one\n");
    bench.ok(&["import", "--whiteouts", "layer", "v.img:/"]);
    assert_eq!(bench.ok(&["ls", "-a", "v.img:/d"]), "two\n");
    assert_eq!(bench.ok(&["ls", "-aR", "v.img:/e"]), "/e:\na-new\nsub\n\n/e/sub:\nnew\n");
    assert!(bench.fails(1, &["ls", "v.img:/gone"]).contains("no such file"));
    assert_eq!(bench.ok(&["cat", "v.img:/keep/x"]), "base");
    // The upper directory of an overlay: device 0:0, and an attribute.
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all(bench.path("upper/f")).unwrap();
        fs::create_dir_all(bench.path("upper/keep")).unwrap();
        let node = bench.path("upper/keep/x");
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &node, kind, rustix::fs::Mode::empty(), 0).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        let opaque = "trusted.overlay.opaque";
        if let Err(e) = rustix::fs::setxattr(bench.path("upper/f"), opaque, b"y", flags) {
            return println!("not here: attributes trusted.* of temporary files: {e}");
        }
        bench.write("upper/f/new", b"new");
        bench.ok(&["import", "--whiteouts", "upper", "v.img:/"]);
        assert_eq!(bench.ok(&["ls", "-a", "v.img:/f"]), "new\n");
        assert_eq!(bench.ok(&["ls", "-a", "v.img:/keep"]), "");
        let stat = bench.json(&["stat", "v.img:/f"]);
        assert_eq!(stat[0]["attributes"], serde_json::json!([]));
    }
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_mode_is_not_the_mask_of_a_list_that_is_left_behind() {
    let bench = Bench::with_volume("ext2");
    bench.write("s/f", b"secret");
    fs::set_permissions(bench.path("s/f"), fs::Permissions::from_mode(0o640)).unwrap();
    let f = bench.path("s/f");
    let args = ["-m", "u:99:rwx"].map(OsStr::new);
    match tool("setfacl", args.into_iter().chain([f.as_os_str()])) {
        Some(ran) if ran.code == 0 => {}
        _ => return println!("not here: setfacl, or access control lists of temporary files"),
    }
    let mode = |path: &str| bench.json(&["stat", path])[0]["mode"].clone();
    bench.ok(&["import", "s", "v.img:/with"]);
    assert_eq!(mode("v.img:/with/f"), "0670");
    bench.ok(&["import", "--no-xattrs", "s", "v.img:/without"]);
    assert_eq!(mode("v.img:/without/f"), "0640");
    bench.ok(&["export", "--no-xattrs", "v.img:/with", "out"]);
    let meta = fs::metadata(bench.path("out/f")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
    // A volume without attributes, and one without modes and owners: both say it.
    bench.ok(&["mkfs", "ext2", "old.img", "--size", "4M", "--revision", "0", "--quiet"]);
    bench.ok(&["mkfs", "hfs", "mac.img", "--size", "4M", "--quiet"]);
    for image in ["old.img", "mac.img"] {
        let ran = bench.run(&["import", "s", &format!("{image}:/s")]);
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert!(ran.err.contains("no place for 1 access control list"), "{image}: {ran:#?}");
    }
    assert_eq!(mode("old.img:/s/f"), "0640");
    // A tar without lists: what any reader makes of it.
    bench.ok(&["export", "v.img:/with", "w.tar"]);
    fs::create_dir(bench.path("plain")).unwrap();
    let (archive, to) = (bench.path("w.tar"), bench.path("plain"));
    let args = [OsStr::new("-xpf"), archive.as_os_str(), OsStr::new("-C"), to.as_os_str()];
    if let Some(ran) = tool("tar", args) {
        assert_eq!(ran.code, 0, "{ran:#?}");
        let meta = fs::metadata(bench.path("plain/f")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
    }
}

#[test]
fn a_put_that_fails_leaves_the_old_file() {
    for (format, size) in [("ext2", "1440K"), ("ext3", "4M"), ("hfs", "1440K"), ("mfs", "800K")] {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "v.img", "--size", size, "--quiet"]);
        let free = bench.json(&["df", "v.img"])[0].clone();
        let number = |key: &str| free[key].as_u64().expect("a number");
        let free = number("blocks_available") * number("block_bytes");
        // The old file takes two thirds of what is free.
        let old: Vec<u8> = (0..free / 3 * 2).map(|i| (i / 7) as u8).collect();
        bench.write("old", &old);
        bench.ok(&["put", "old", "v.img:/doc"]);
        let doc = || bench.command(&["cat", "v.img:/doc"]).output().unwrap().stdout;
        let names = bench.ok(&["ls", "-a", "v.img:/"]);
        // More than root may have, for whom some blocks are kept.
        bench.write("big", &vec![b'x'; 2 * free as usize]);
        let err = bench.fails(1, &["put", "big", "v.img:/doc"]);
        assert!(err.contains("/doc: the old file is still there"), "{format}: {err}");
        assert!(err.contains("no space left on the volume"), "{format}: {err}");
        assert!(doc() == old, "{format}: the old file has changed");
        // Its length is not known before its end: nothing is removed for it.
        let mut command = bench.command(&["put", "-", "v.img:/doc"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(&vec![b'x'; 2 * free as usize]);
        assert_eq!(child.wait().unwrap().code(), Some(1), "{format}");
        assert!(doc() == old, "{format}: the old file has changed");
        assert_eq!(bench.ok(&["ls", "-a", "v.img:/"]), names, "{format}");
        // There is room for the new one alone.
        let other = vec![b'y'; free as usize / 2];
        bench.write("other", &other);
        let ran = bench.run(&["put", "other", "v.img:/doc"]);
        assert_eq!(ran.code, 0, "{format}: {ran:#?}");
        assert!(ran.err.contains("/doc: the old file was removed first"), "{format}: {ran:#?}");
        assert!(doc() == other, "{format}: the new file");
        // And for both.
        bench.write("small", b"small");
        let ran = bench.run(&["put", "small", "v.img:/doc"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{format}");
        assert_eq!(doc(), b"small", "{format}");
        assert_eq!(bench.ok(&["ls", "-a", "v.img:/"]), names, "{format}");
        assert_eq!(bench.run(&["fsck", "v.img"]).code, 0, "{format}");
    }
}

#[test]
fn a_setuid_program_does_not_become_one_of_the_user_who_exports_it() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root, who alone runs weft as another user");
        return;
    }
    let bench = Bench::with_volume("ext2");
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755), ("plain", 0o640)] {
        bench.write(&format!("s/{name}"), b"#!/bin/sh\n");
        let path = bench.path(&format!("s/{name}"));
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    bench.ok(&["put", "s", "v.img:/root"]);
    bench.ok(&["put", "--owner", "12345:12345", "s", "v.img:/own"]);
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let weft = env!("CARGO_BIN_EXE_weft");
    let dir = bench.dir().to_str().unwrap();
    for (from, want) in [("root", [0o755, 0o755, 0o640]), ("own", [0o4755, 0o2755, 0o640])] {
        let (volume, to) = (format!("{dir}/v.img:/{from}"), format!("{dir}/out-{from}"));
        let args =
            ["--reuid=12345", "--regid=12345", "--clear-groups", weft, "export", &volume, &to];
        let Some(ran) = tool("setpriv", args.map(OsStr::new)) else { return };
        if ran.code == 126 || ran.err.contains("failed to execute") {
            println!("not here: another user may not run {weft}");
            return;
        }
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert_eq!(ran.err.contains("setuid or setgid"), from == "root", "{ran:#?}");
        for (name, mode) in ["suid", "sgid", "plain"].iter().zip(want) {
            let meta = fs::metadata(format!("{to}/{name}")).unwrap();
            assert_eq!(meta.permissions().mode() & 0o7777, mode, "{from}/{name}");
        }
    }
}
