//! `mkfs` and `info`.

use crate::run::Bench;

#[test]
fn a_volume_is_made_as_asked_and_e2fsck_agrees() {
    let bench = Bench::new();
    let said = bench.ok(&[
        "mkfs",
        "ext2",
        "v.img",
        "--size",
        "8M",
        "-b",
        "1024",
        "-I",
        "128",
        "-N",
        "512",
        "-L",
        "name",
        "-U",
        "00112233-4455-6677-8899-aabbccddeeff",
        "-m",
        "0",
    ]);
    assert!(said.starts_with("made ext2 in v.img: 8.0M in blocks of 1024 bytes, "), "{said}");
    let info = bench.json(&["info", "v.img"]);
    assert_eq!(info["format"], "ext2");
    assert_eq!(info["label"], "name");
    assert_eq!(info["uuid"], "00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(info["len_bytes"], 8 << 20);
    assert_eq!(info["inodes"], 512);
    assert_eq!(info["blocks_reserved"], 0);
    assert_eq!(info["clean"], true);
    assert!(bench.ok(&["info", "v.img"]).contains("unmounted cleanly"));
    bench.e2fsck_clean("v.img");
}

#[test]
fn ext3_is_ext2_with_a_journal() {
    let bench = Bench::new();
    let made = bench.json(&["mkfs", "ext3", "v.img", "--size", "64M"]);
    assert_eq!(made["format"], "ext3");
    assert!(made["journal_blocks"].as_u64().expect("a number") >= 1024, "{made}");
    let info = bench.json(&["info", "v.img"]);
    assert_eq!(info["format"], "ext3");
    let features = info["features"].as_array().expect("features");
    assert!(features.iter().any(|f| f == "has_journal"), "{info}");
    bench.e2fsck_clean("v.img");
}

#[test]
fn what_is_there_is_not_overwritten_without_force() {
    let bench = Bench::with_volume("ext2");
    let before = bench.json(&["info", "v.img"])["uuid"].clone();
    let err = bench.fails(1, &["mkfs", "ext2", "v.img"]);
    assert_eq!(
        err,
        "weft: v.img is in use already: it looks like an ext2, ext3 or ext4 volume. --force \
         overwrites it\n"
    );
    assert_eq!(bench.json(&["info", "v.img"])["uuid"], before);
    bench.ok(&["mkfs", "ext3", "v.img", "--force"]);
    let after = bench.json(&["info", "v.img"]);
    assert_ne!(after["uuid"], before);
    assert_eq!(after["format"], "ext3");
}

#[test]
fn a_new_image_needs_a_size_and_a_failed_one_is_not_left_behind() {
    let bench = Bench::new();
    assert!(bench.fails(2, &["mkfs", "ext2", "v.img"]).contains("--size 1G"));
    bench.fails(2, &["mkfs", "ext2", "v.img", "--size", "1M", "--block-size", "777"]);
    let odd = ["mkfs", "ext2", "v.img", "--size", "8M", "--blocks-per-group", "511"];
    assert!(bench.fails(2, &odd).contains("511 blocks per group"));
    assert!(!bench.path("v.img").exists());
    let made = bench.json(&["mkfs", "ext2", "v.img", "--size", "8M", "--blocks-per-group", "512"]);
    assert_eq!(made["groups"], 16);
}

#[test]
fn a_partition_is_a_volume_too() {
    let bench = Bench::new();
    // An MBR with one Linux partition from sector 2048 on, 16 MiB long.
    let mut mbr = vec![0_u8; 512];
    mbr[446 + 4] = 0x83;
    mbr[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    mbr[446 + 12..446 + 16].copy_from_slice(&32768_u32.to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    bench.write("disk.img", &mbr);
    let disk = std::fs::OpenOptions::new().write(true).open(bench.path("disk.img")).unwrap();
    disk.set_len(20 << 20).unwrap();
    let err = bench.fails(1, &["info", "disk.img"]);
    assert!(err.contains("name a partition: IMAGE?partition=1"), "{err}");
    bench.ok(&["mkfs", "ext2", "disk.img?partition=1"]);
    assert_eq!(bench.json(&["info", "disk.img?partition=1"])["len_bytes"], 16 << 20);
    bench.write("hello", b"from the host");
    bench.ok(&["put", "hello", "disk.img?partition=1:/"]);
    assert_eq!(bench.ok(&["cat", "disk.img?partition=1:/hello"]), "from the host");
}

#[test]
fn a_volume_can_be_made_full() {
    let bench = Bench::new();
    bench.write("tree/a/b", b"content");
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "8M", "-d", "tree"]);
    assert_eq!(bench.ok(&["cat", "v.img:/a/b"]), "content");
    bench.e2fsck_clean("v.img");
}
