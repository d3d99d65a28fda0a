//! Errors say what, where and what to do, and exit codes are those of docs/exit-codes.md.

use crate::run::Bench;

#[test]
fn wrong_usage_is_2() {
    let bench = Bench::new();
    for args in [
        &["frobnicate"][..],
        &["ls"],
        &["mkfs", "ext5", "v.img"],
        &["mkfs", "ext2", "v.img", "--size", "huge"],
        &["mkfs", "ext2", "v.img", "--size", "1M", "--revision", "7"],
        &["mkfs", "ext2", "v.img", "--size", "1M", "--uuid", "x"],
        &["mkfs", "ext2", "v.img", "--size", "1M", "--features", "no_such_feature"],
        &["mkfs", "ext2", "v.img", "--size", "1M", "--journal-size", "1M"],
        &["mkdir", "v.img:/x", "--mode", "999"],
        &["cp", "a", "b"],
        &["mv", "a.img:/x", "b.img:/x"],
        &["mv", "x", "b.img:/x"],
        &["put", "a", "v.img:/", "--owner", "root"],
        &["mount", "v.img", "m", "--order", "hard"],
        &["mount", "v.img", "m", "-o", "frobnicate"],
        &["umount"],
    ] {
        let err = bench.fails(2, args);
        assert!(!err.is_empty(), "{args:?}");
    }
}

#[test]
fn a_missing_image_is_named_with_what_to_do() {
    let bench = Bench::new();
    for args in [&["ls", "v.img:/"][..], &["info", "v.img"], &["df", "v.img"]] {
        assert_eq!(
            bench.fails(1, args),
            "weft: cannot open v.img: No such file or directory (os error 2) (check the name; weft \
             mkfs makes a new volume)\n",
            "{args:?}"
        );
    }
    // fsck(8)'s own code for "the check could not be made".
    assert!(bench.fails(8, &["fsck", "v.img"]).contains("cannot open v.img"));
}

#[test]
fn what_is_not_a_volume_is_recognised_by_its_content() {
    let bench = Bench::new();
    bench.write("v.img", &[&[0x1f, 0x8b][..], &[7; 4000]].concat());
    bench.write("empty.img", b"");
    bench.write("zero.ext2", &[0; 1 << 16]);
    bench.write("text.ext2", b"this is not a volume");
    assert_eq!(
        bench.fails(1, &["info", "v.img"]),
        "weft: v.img holds no file system that weft knows; it looks like gzip-compressed data; \
         decompress it first\n"
    );
    for (image, saw) in [
        ("empty.img", "nothing at all"),
        ("zero.ext2", "nothing at all"),
        ("text.ext2", "its first bytes are 74 68 69 73 20 69 73 20"),
    ] {
        let err = bench.fails(1, &["ls", &format!("{image}:/")]);
        assert!(err.contains(saw), "{image}: {err}");
    }
}

#[test]
fn help_and_version_are_answered() {
    let bench = Bench::new();
    let help = bench.ok(&["--help"]);
    for verb in [
        "mkfs",
        "mount",
        "umount",
        "info",
        "ls",
        "tree",
        "stat",
        "cat",
        "cp",
        "get",
        "put",
        "mkdir",
        "rm",
        "mv",
        "ln",
        "df",
        "import",
        "export",
        "fsck",
        "crash",
        "completions",
        "man",
    ] {
        assert!(help.lines().any(|l| l.trim_start().starts_with(verb)), "{verb} is in the help");
        assert!(bench.ok(&[verb, "--help"]).contains("Usage:"), "{verb}");
    }
    assert_eq!(bench.ok(&["--version"]), format!("weft {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(bench.ok(&["completions", shell]).contains("mkfs"), "{shell}");
    }
    bench.ok(&["man", "pages"]);
    let page = std::fs::read_to_string(bench.path("pages/weft-mkfs.1")).expect("a page");
    assert!(page.contains("bytes\\-per\\-inode"), "{page}");
    assert!(bench.path("pages/weft.1").exists());
}
