//! The verbs that look into a volume and change it.

use crate::run::Bench;

#[test]
fn a_session_with_files() {
    let bench = Bench::with_volume("ext2");
    bench.write("hello", b"hello, volume\n");
    bench.ok(&["mkdir", "v.img:/a", "v.img:/a/b"]);
    bench.ok(&["mkdir", "-p", "v.img:/x/y/z"]);
    bench.ok(&["put", "hello", "v.img:/a/b"]);
    assert_eq!(bench.ok(&["cat", "v.img:/a/b/hello"]), "hello, volume\n");
    bench.ok(&["ln", "v.img:/a/b/hello", "v.img:/a/second"]);
    bench.ok(&["ln", "-s", "b/hello", "v.img:/a/link"]);
    assert_eq!(bench.ok(&["cat", "v.img:/a/link"]), "hello, volume\n");
    assert_eq!(bench.ok(&["ls", "v.img:/a"]), "b\nlink -> b/hello\nsecond\n");
    assert_eq!(
        bench.ok(&["tree", "v.img:/a"]),
        "/a\n├── b\n│   └── hello\n├── link -> b/hello\n└── second\n\n1 directory, 3 files\n"
    );
    let stat = bench.json(&["stat", "v.img:/a/second"]);
    assert_eq!(stat[0]["links"], 2);
    assert_eq!(stat[0]["size_bytes"], 14);
    assert_eq!(stat[0]["kind"], "file");

    bench.ok(&["mv", "v.img:/a/second", "v.img:/x/renamed"]);
    bench.ok(&["mv", "v.img:/x/renamed", "v.img:/x/y"]);
    assert_eq!(bench.ok(&["ls", "v.img:/x/y"]), "renamed\nz\n");
    let exists = bench.fails(1, &["mv", "-n", "v.img:/x/y/renamed", "v.img:/a/b/hello"]);
    assert_eq!(exists, "weft: cannot rename /x/y/renamed in the volume: file exists\n");

    let err = bench.fails(1, &["rm", "v.img:/a"]);
    assert_eq!(
        err,
        "weft: cannot remove /a in the volume: is a directory (--recursive removes directories)\n"
    );
    assert_eq!(bench.json(&["rm", "-r", "v.img:/a"])["removed"], 4);
    bench.fails(1, &["rm", "v.img:/a"]);
    bench.ok(&["rm", "-f", "v.img:/a"]);
    assert_eq!(bench.ok(&["cat", "v.img:/x/y/renamed"]), "hello, volume\n");
    bench.e2fsck_clean("v.img");
}

#[test]
fn ls_shows_what_ls_shows() {
    let bench = Bench::with_volume("ext2");
    bench.write("file", &vec![7; 5000]);
    std::os::unix::fs::symlink("file", bench.path("link")).unwrap();
    bench.write(".hidden", b"");
    for (name, secs) in [("file", 1_000_000_000), ("link", 0), (".hidden", 1)] {
        let path = bench.path(name);
        let status = std::process::Command::new("touch")
            .args(["-h", "-d", &format!("@{secs}")])
            .arg(&path)
            .status()
            .expect("touch runs");
        assert!(status.success());
    }
    bench.ok(&["put", "file", "link", ".hidden", "v.img:/", "--owner", "1000:100"]);
    bench.ok(&["rm", "-rf", "v.img:/lost+found"]);
    assert_eq!(
        bench.ok(&["ls", "-l", "v.img:/"]),
        "-rw-r--r-- 1 1000:100 4.8K 2001-09-09 01:46:40 file\n\
         lrwxrwxrwx 1 1000:100    4 1970-01-01 00:00:00 link -> file\n"
    );
    assert_eq!(bench.ok(&["ls", "-a", "v.img:/"]), ".hidden\nfile\nlink -> file\n");
    let listing = bench.json(&["ls", "v.img:/"]);
    assert_eq!(listing[0]["entries"][0]["name"], "file");
    assert_eq!(listing[0]["entries"][0]["uid"], 1000);
    assert_eq!(listing[0]["entries"][1]["target"], "file");
    bench.ok(&["mkdir", "-p", "v.img:/d/e"]);
    assert_eq!(bench.ok(&["ls", "-R", "v.img:/d"]), "/d:\ne\n\n/d/e:\n");
    assert_eq!(bench.ok(&["ls", "-d", "v.img:/d"]), "/d\n");
}

#[test]
fn df_counts_what_is_used() {
    let bench = Bench::with_volume("ext2");
    let before = bench.json(&["df", "v.img"]);
    bench.write("big", &vec![1; 8 << 20]);
    bench.ok(&["put", "big", "v.img:/"]);
    let after = bench.json(&["df", "v.img"]);
    let free = |v: &serde_json::Value| v[0]["blocks_free"].as_u64().expect("a count");
    let used = (free(&before) - free(&after)) * 4096;
    assert!((8 << 20..9 << 20).contains(&used), "{used}");
    assert!(bench.ok(&["df", "v.img"]).contains("v.img"));
}

#[test]
fn a_full_volume_says_so_and_stays_whole() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "2M", "-m", "0"]);
    bench.write("big", &vec![1; 4 << 20]);
    let err = bench.fails(1, &["put", "big", "v.img:/"]);
    assert_eq!(
        err,
        "weft: cannot write /big in the volume: no space left on the volume (the volume is full; \
         see weft df)\n"
    );
    // Nothing that is shorter than it should be has the name.
    assert!(bench.fails(1, &["cat", "v.img:/big"]).contains("no such file"));
    bench.e2fsck_clean("v.img");
}

#[test]
fn a_volume_in_use_is_refused_with_a_reason() {
    let bench = Bench::with_volume("ext2");
    let image = bench.path("v.img");
    let held = weft::block::open_source(image.to_str().unwrap(), weft::block::OpenMode::READ_WRITE)
        .unwrap();
    let err = bench.fails(1, &["mkdir", "v.img:/x"]);
    assert!(err.contains("v.img is in use by another process"), "{err}");
    // Looking at it is no use of it.
    bench.ok(&["info", "v.img"]);
    drop(held);
    bench.ok(&["mkdir", "v.img:/x"]);
}

#[test]
fn every_order_of_writes_gives_the_same_volume() {
    let bench = Bench::with_volume("ext3");
    bench.write("file", b"content");
    for (number, order) in
        ["soft", "async", "journal", "journal=metadata", "journal=ordered", "journal=full"]
            .iter()
            .enumerate()
    {
        let to = format!("v.img:/copy-{number}");
        bench.ok(&["put", "file", &to, "--order", order]);
        assert_eq!(bench.ok(&["cat", &to]), "content", "{order}");
        bench.e2fsck_clean("v.img");
    }
}

#[test]
fn a_journal_needs_a_volume_that_has_one() {
    let bench = Bench::with_volume("ext2");
    let err = bench.fails(1, &["mkdir", "v.img:/x", "--order", "journal"]);
    assert!(err.contains("journal"), "{err}");
    bench.e2fsck_clean("v.img");
}
