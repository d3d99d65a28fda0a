//! A file whose length is damaged costs one error and that file: nothing is left in its place, and the
//! rest of the tree comes out, from every format, as a directory and as a tar stream.

use crate::run::{Bench, Ran, tool};
use std::ffi::OsStr;
use std::fs;

/// A tree in which the file `hello.txt` has neighbours.
fn tree(bench: &Bench) {
    bench.write("tree/a.txt", b"first");
    bench.write("tree/hello.txt", b"hello, volume\n");
    bench.write("tree/z.txt", &vec![b'z'; 70_000]);
}

/// Writes `bytes` at a distance from the only place where `what` is in an image.
fn poke(bench: &Bench, image: &str, what: &[u8], at: isize, bytes: &[u8]) {
    let mut all = fs::read(bench.path(image)).unwrap();
    let place = all.windows(what.len()).position(|w| w == what).expect("it is there");
    let place = place.checked_add_signed(at).expect("a place in the image");
    all[place..place + bytes.len()].copy_from_slice(bytes);
    fs::write(bench.path(image), all).unwrap();
}

/// Gets `hello.txt` out of the volume, and the tree around it, in each way; whatever is `said`.
fn assert_skipped(bench: &Bench, image: &str, said: &str) {
    let one_error = |way: &str, ran: &Ran| {
        assert_eq!(ran.code, 1, "{image}, {way}: {ran:#?}");
        let told = ran.err.lines().filter(|line| line.contains("hello.txt")).count();
        assert_eq!(told, 1, "{image}, {way}: {ran:#?}");
        assert!(ran.err.contains(said), "{image}, {way}: {ran:#?}");
        if way != "get" {
            assert!(ran.err.contains("1 thing could not be read"), "{image}, {way}: {ran:#?}");
        }
    };
    let volume = format!("{image}:/");
    one_error("get", &bench.run(&["get", &format!("{volume}hello.txt"), "got"]));
    assert!(!bench.path("got").exists(), "{image}: get left something");
    // What was there before is still there.
    bench.write("got", b"old");
    one_error("get", &bench.run(&["get", &format!("{volume}hello.txt"), "got"]));
    assert_eq!(fs::read(bench.path("got")).unwrap(), b"old", "{image}");
    one_error("export", &bench.run(&["export", &volume, "out"]));
    one_error("export to tar", &bench.run(&["export", &volume, "out.tar"]));
    one_error("export to -", &bench.run(&["export", &volume, "-"]));
    fs::create_dir(bench.path("untarred")).unwrap();
    let (archive, to) = (bench.path("out.tar"), bench.path("untarred"));
    let args = [OsStr::new("-xf"), archive.as_os_str(), OsStr::new("-C"), to.as_os_str()];
    let mut outs = vec!["out"];
    if let Some(ran) = tool("tar", args) {
        assert_eq!(ran.code, 0, "{ran:#?}");
        outs.push("untarred");
    }
    for out in outs {
        assert!(!bench.path(out).join("hello.txt").exists(), "{image}: {out}/hello.txt");
        assert_eq!(fs::read(bench.path(out).join("a.txt")).unwrap(), b"first", "{image}: {out}");
        let z = fs::read(bench.path(out).join("z.txt")).unwrap();
        assert!(z == vec![b'z'; 70_000], "{image}: {out}/z.txt");
    }
    for out in ["out", "untarred"] {
        fs::remove_dir_all(bench.path(out)).unwrap();
    }
    fs::remove_file(bench.path("got")).unwrap();
    // Strictly, it ends there.
    let ran = bench.run(&["export", "--strict", &volume, "strict"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(!bench.path("strict/hello.txt").exists(), "{image}");
    let _ = fs::remove_dir_all(bench.path("strict"));
}

#[test]
fn of_hfs() {
    let bench = Bench::new();
    tree(&bench);
    bench.ok(&["mkfs", "hfs", "v.img", "--size", "800K", "-d", "tree", "--quiet"]);
    // Behind the key, which ends at an even place, as the record does.
    for len in [0xffff_0000_u32, 0x7fff_ffff, 900_000] {
        poke(&bench, "v.img", b"\x09hello.txt", 10 + 26, &len.to_be_bytes());
        assert_skipped(&bench, "v.img", "more than the volume has");
    }
}

/// An MFS volume is checked as a whole when it is opened, and read without the forks that are damaged.
#[test]
fn of_mfs() {
    let bench = Bench::new();
    tree(&bench);
    bench.ok(&["mkfs", "mfs", "v.img", "--size", "800K", "-d", "tree", "--quiet"]);
    for (number, len) in [0xffff_0000_u32, 900_000].iter().enumerate() {
        // In front of the name, which follows the fields.
        poke(&bench, "v.img", b"\x09hello.txt", -26, &len.to_be_bytes());
        let out = format!("out-{number}");
        for args in [&["get", "v.img:/hello.txt", "got"][..], &["export", "v.img:/", &out]] {
            let ran = bench.run(args);
            assert_eq!(ran.code, 1, "{ran:#?}");
            assert!(ran.err.contains("do not fit together"), "{ran:#?}");
        }
        let z = fs::read(bench.path(&out).join("z.txt")).unwrap();
        assert!(z == vec![b'z'; 70_000], "{out}/z.txt");
        assert!(fs::metadata(bench.path(&out).join("hello.txt")).unwrap().len() < 4096);
    }
}

#[test]
fn of_hfs_plus() {
    let bench = Bench::new();
    tree(&bench);
    let (to, from) = (bench.path("disc"), bench.path("tree"));
    let args = ["-as", "mkisofs", "-quiet", "-hfsplus", "-V", "Plus", "-o"].map(OsStr::new);
    let args = args.into_iter().chain([to.as_os_str(), from.as_os_str()]);
    let Some(made) = tool("xorriso", args) else { return };
    assert_eq!(made.code, 0, "{made:#?}");
    let name: Vec<u8> = "hello.txt".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let key = [&[0, 24, 0, 0, 0, 2, 0, 9][..], &name].concat();
    for len in [1_u64 << 61, 32 << 30, u64::MAX, 90_000] {
        poke(&bench, "disc", &key, key.len() as isize + 88, &len.to_be_bytes());
        assert_skipped(&bench, "disc", "hello.txt");
    }
}

#[test]
fn of_ext2() {
    // More than any file of this format can have.
    for len in ["2305843009213693952", "18446744073709547520"] {
        let bench = Bench::with_volume("ext2");
        tree(&bench);
        bench.ok(&["import", "tree", "v.img:/"]);
        bench.ok(&["rm", "-r", "v.img:/lost+found"]);
        let image = bench.path("v.img");
        let set = format!("sif hello.txt size {len}");
        let args = ["-w", "-R", &set].map(OsStr::new);
        let Some(ran) = tool("debugfs", args.into_iter().chain([image.as_os_str()])) else {
            return;
        };
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert_skipped(&bench, "v.img", "hello.txt");
    }
    // A file with a hole at its end may be longer than its volume.
    let bench = Bench::with_volume("ext2");
    tree(&bench);
    fs::File::options()
        .write(true)
        .open(bench.path("tree/hello.txt"))
        .unwrap()
        .set_len(1 << 33)
        .unwrap();
    bench.ok(&["import", "tree", "v.img:/"]);
    bench.ok(&["export", "v.img:/", "out"]);
    assert_eq!(fs::metadata(bench.path("out/hello.txt")).unwrap().len(), 1 << 33);
    bench.ok(&["export", "v.img:/", "out.tar"]);
    assert!(fs::metadata(bench.path("out.tar")).unwrap().len() < 1 << 20);
}
