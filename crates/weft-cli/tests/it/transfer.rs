//! Trees in and out, as directories and tar streams.

use crate::run::{Bench, tool};
use std::ffi::OsStr;
use std::process::Stdio;

/// A small tree with one of each kind that any user can make.
fn tree(bench: &Bench) {
    bench.write("tree/readme", b"read me");
    bench.write("tree/sub/deep/er/data", &vec![0x5a; 300_000]);
    bench.write("tree/empty", b"");
    std::fs::hard_link(bench.path("tree/readme"), bench.path("tree/sub/same")).unwrap();
    std::os::unix::fs::symlink("../readme", bench.path("tree/sub/link")).unwrap();
    for i in 0..300 {
        bench.write(&format!("tree/many/file-{i}"), format!("number {i}").as_bytes());
    }
}

fn assert_same(bench: &Bench, a: &str, b: &str) {
    let (a, b) = (bench.path(a), bench.path(b));
    let args = ["-r", "--no-dereference"].map(OsStr::new);
    if let Some(diff) = tool("diff", args.into_iter().chain([a.as_os_str(), b.as_os_str()])) {
        assert_eq!((diff.code, diff.out.as_str()), (0, ""), "{diff:#?}");
    }
}

#[test]
fn a_directory_goes_in_and_comes_out_the_same() {
    for format in ["ext2", "ext3"] {
        let bench = Bench::with_volume(format);
        tree(&bench);
        let report = bench.json(&["import", "tree", "v.img:/in/there"]);
        assert_eq!(report["files"], 303);
        assert_eq!(report["hard_links"], 1);
        bench.e2fsck_clean("v.img");
        bench.ok(&["export", "v.img:/in/there", "out"]);
        assert_same(&bench, "tree", "out");

        bench.ok(&["export", "v.img:/in/there", "out.tar"]);
        std::fs::create_dir(bench.path("untarred")).unwrap();
        let (tar, to) = (bench.path("out.tar"), bench.path("untarred"));
        let args = [OsStr::new("-xf"), tar.as_os_str(), OsStr::new("-C"), to.as_os_str()];
        if let Some(ran) = tool("tar", args) {
            assert_eq!(ran.code, 0, "{ran:#?}");
            assert_same(&bench, "tree", "untarred");
        }
        bench.ok(&["import", "out.tar", "v.img:/again"]);
        bench.ok(&["get", "v.img:/again", "again"]);
        assert_same(&bench, "tree", "again");
        bench.e2fsck_clean("v.img");
    }
}

#[test]
fn streams_pass_through_pipes() {
    let bench = Bench::with_volume("ext2");
    tree(&bench);
    bench.ok(&["import", "tree", "v.img:/"]);
    bench.ok(&["mkfs", "ext2", "w.img", "--size", "64M", "-q"]);
    let mut export = bench
        .command(&["export", "v.img:/", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("weft runs");
    let stream = export.stdout.take().expect("a pipe");
    let import = bench.command(&["import", "-", "w.img:/"]).stdin(stream).output().unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    assert!(export.wait().unwrap().success());
    bench.ok(&["rm", "-r", "w.img:/lost+found"]);
    bench.ok(&["export", "w.img:/", "out"]);
    assert_same(&bench, "tree", "out");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let bench = Bench::with_volume("ext2");
    bench.write("big", &vec![b'x'; 3 << 20]);
    bench.ok(&["put", "big", "v.img:/"]);
    let mut cat =
        bench.command(&["cat", "v.img:/big"]).stdout(Stdio::piped()).spawn().expect("weft runs");
    drop(cat.stdout.take());
    assert!(cat.wait().unwrap().success());
}

#[test]
fn compressed_archives_are_recognised_with_advice() {
    let bench = Bench::with_volume("ext2");
    bench.write("linux.tar.xz", b"\xfd7zXZ\0 and so on");
    assert_eq!(
        bench.fails(1, &["import", "linux.tar.xz", "v.img:/"]),
        "weft: linux.tar.xz is compressed; give the stream to weft instead: xz -dc linux.tar.xz | \
         weft import - IMAGE:/path\n"
    );
    bench.write("noise.tar", &vec![0xaa; 5000]);
    let err = bench.fails(1, &["import", "noise.tar", "v.img:/"]);
    assert!(err.starts_with("weft: tar stream: "), "{err}");
    bench.e2fsck_clean("v.img");
}

#[test]
fn cp_goes_every_way() {
    let bench = Bench::with_volume("ext2");
    tree(&bench);
    bench.ok(&["mkfs", "ext3", "w.img", "--size", "64M", "-q"]);
    bench.ok(&["cp", "tree", "v.img:/"]);
    bench.ok(&["cp", "v.img:/tree", "v.img:/twice"]);
    bench.ok(&["cp", "v.img:/twice", "w.img:/"]);
    bench.ok(&["cp", "w.img:/twice", "out"]);
    assert_same(&bench, "tree", "out");
    // Into itself: refused before anything is made.
    let err = bench.fails(1, &["cp", "v.img:/tree", "v.img:/tree/sub"]);
    assert!(err.contains("the destination lies inside it"), "{err}");
    assert_eq!(bench.ok(&["ls", "v.img:/tree/sub"]), "deep\nlink -> ../readme\nsame\n");
    // A name of its own, and several at once.
    bench.ok(&["put", "tree/readme", "v.img:/other-name"]);
    assert_eq!(bench.ok(&["cat", "v.img:/other-name"]), "read me");
    bench.ok(&["get", "v.img:/other-name", "v.img:/tree/empty", "."]);
    assert_eq!(std::fs::read(bench.path("other-name")).unwrap(), b"read me");
    assert_eq!(std::fs::read(bench.path("empty")).unwrap(), b"");
    bench.fails(1, &["put", "tree/readme", "tree/empty", "v.img:/no-such-directory"]);
    bench.fails(1, &["put", "no-such-file", "v.img:/"]);
    bench.e2fsck_clean("v.img");
    bench.e2fsck_clean("w.img");
}

/// As `ls` has it, and as users of cp(1) type it.
#[test]
fn an_image_alone_is_the_root_of_its_volume() {
    let bench = Bench::with_volume("ext2");
    tree(&bench);
    bench.write("a", b"content");
    bench.ok(&["put", "-R", "a", "tree", "v.img"]);
    assert_eq!(bench.ok(&["cat", "v.img:/a"]), "content");
    bench.ok(&["cp", "-r", "v.img:/tree", "v.img:/copy"]);
    bench.ok(&["export", "v.img", "out"]);
    assert_same(&bench, "tree", "out/copy");
    bench.ok(&["import", "tree", "v.img"]);
    assert_eq!(bench.ok(&["cat", "v.img:/readme"]), "read me");
    assert!(bench.fails(1, &["cat", "v.img"]).contains("directory"));
}

/// An item that the destination cannot hold is reported and counted, and the rest is copied.
#[test]
fn one_item_without_a_place_does_not_end_a_copy() {
    let bench = Bench::with_volume("ext2");
    for name in ["s/d/x", "s/e/y", "s/zz"] {
        bench.write(name, name.as_bytes());
    }
    bench.ok(&["put", "s", "v.img:/"]);
    for verb in [&["get", "-r"][..], &["export"]] {
        for what in ["file", "dangling", "linked directory", "directory"] {
            let _ = std::fs::remove_dir_all(bench.path("out"));
            let _ = std::fs::remove_dir_all(bench.path("other"));
            std::fs::create_dir(bench.path("other")).unwrap();
            let link = |to: &str| {
                std::fs::create_dir_all(bench.path("out/s")).unwrap();
                std::os::unix::fs::symlink(to, bench.path("out/s/d")).unwrap();
            };
            match what {
                "file" => bench.write("out/s/d", b"old"),
                "dangling" => link("nowhere"),
                "linked directory" => link("../../other"),
                _ => bench.write("out/s/zz/old", b"old"),
            }
            let to = if verb == ["export"] { "out/s" } else { "out" };
            let err = bench.fails(1, &[verb, &["v.img:/s", to]].concat());
            assert!(err.contains("left out, for the reasons above"), "{what}: {err}");
            let read = |name: &str| std::fs::read(bench.path(name)).ok();
            assert_eq!(read("out/s/e/y"), Some(b"s/e/y".to_vec()), "{what}: {err}");
            let refused = if what == "directory" { "out/s/zz" } else { "out/s/d/x" };
            assert_eq!(read(refused), None, "{what}");
            let other = if what == "directory" { "out/s/d/x" } else { "out/s/zz" };
            assert!(read(other).is_some(), "{what}: {err}");
            let empty = std::fs::read_dir(bench.path("other")).unwrap().next().is_none();
            assert!(empty, "{what}: written through a link");
        }
    }
    // A file that is longer than any of the volume may be, in a directory and in a stream.
    let big = std::fs::File::create(bench.path("s/big")).unwrap();
    big.set_len(1 << 40).unwrap();
    bench.ok(&["mkfs", "ext2", "w.img", "--size", "16M", "--block-size", "1024", "--quiet"]);
    let err = bench.fails(1, &["import", "s", "w.img:/"]);
    assert!(err.contains("/big in the volume: file too large"), "{err}");
    assert_eq!(bench.ok(&["cat", "w.img:/zz"]), "s/zz");
    let args = ["-cSf", "s.tar", "s"].map(OsStr::new);
    let tar = std::process::Command::new("tar").args(args).current_dir(bench.dir()).status();
    if tar.is_ok_and(|status| status.success()) {
        let err = bench.fails(1, &["import", "s.tar", "w.img:/t"]);
        assert!(err.contains("big in the volume: file too large"), "{err}");
        assert_eq!(bench.ok(&["cat", "w.img:/t/s/zz"]), "s/zz");
    }
    bench.e2fsck_clean("w.img");
}

#[test]
fn extended_attributes_are_carried() {
    let bench = Bench::with_volume("ext2");
    bench.write("file", b"x");
    let file = bench.path("file");
    let args = ["-n", "user.colour", "-v", "blue"].map(OsStr::new);
    match tool("setfattr", args.into_iter().chain([file.as_os_str()])) {
        Some(ran) if ran.code == 0 => {}
        _ => {
            println!("not here: the file system of temporary files has no user attributes");
            return;
        }
    }
    bench.ok(&["put", "file", "v.img:/"]);
    let stat = bench.json(&["stat", "v.img:/file"]);
    assert_eq!(stat[0]["attributes"][0]["name"], "user.colour");
    assert_eq!(stat[0]["attributes"][0]["value"], "blue");
    bench.ok(&["put", "--no-xattrs", "file", "v.img:/bare"]);
    assert_eq!(bench.json(&["stat", "v.img:/bare"])[0]["attributes"], serde_json::json!([]));
    bench.e2fsck_clean("v.img");
}

#[test]
fn an_attribute_that_does_not_fit_is_left_behind() {
    let bench = Bench::new();
    bench.write("s/a", b"a");
    bench.write("s/z", b"z");
    let flags = rustix::fs::XattrFlags::empty();
    let value = vec![b'v'; 3000];
    if let Err(e) = rustix::fs::setxattr(bench.path("s/a"), "user.large", &value, flags) {
        println!("not here: attributes of 3000 bytes: {e}");
        return;
    }
    rustix::fs::setxattr(bench.path("s/a"), "user.small", b"s", flags).unwrap();
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "4M", "--block-size", "1024", "--quiet"]);
    let ran = bench.run(&["import", "s", "v.img"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("no place for 1 of the extended attributes"), "{ran:#?}");
    assert_eq!(bench.ok(&["cat", "v.img:/a", "v.img:/z"]), "az");
    assert!(bench.ok(&["stat", "v.img:/a"]).contains("user.small"));
    bench.e2fsck_clean("v.img");
}

/// What cannot be read costs itself alone, as with cp(1) and tar(1).
#[test]
fn an_unreadable_item_does_not_end_a_copy() {
    let Some(user) = weft_testing::as_user(weft_testing::ORDINARY_USERS[0]) else { return };
    let weft = env!("CARGO_BIN_EXE_weft");
    let said = user.shell(
        "mkdir -p s/closed s/open && echo a >s/a && echo b >s/b && echo x >s/closed/x && echo z >s/open/z
         chmod 0 s/a s/closed",
    );
    assert_eq!(said.code, Some(0), "{said:?}");
    for format in ["ext2", "hfs"] {
        for verb in ["import s v.img:/s", "put s v.img", "mkfs"] {
            let line = match verb {
                "mkfs" => format!("{weft} mkfs {format} v.img --size 4M --force --import s"),
                verb => {
                    format!("{weft} mkfs {format} v.img --size 4M --force --quiet && {weft} {verb}")
                }
            };
            let said = user.shell(&line);
            assert_eq!(said.code, Some(1), "{line}: {said:?}");
            assert!(said.err.contains("s/a: ") && said.err.contains("s/closed: "), "{said:?}");
            let top = if verb == "mkfs" { "" } else { "/s" };
            let read = user.shell(&format!("{weft} cat v.img:{top}/b v.img:{top}/open/z"));
            assert_eq!((read.code, read.text()), (Some(0), "b\nz\n"), "{line}: {read:?}");
        }
    }
    let _ = user.shell("chmod 700 s/closed");
}
