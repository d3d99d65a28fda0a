//! What volumes come in: containers, partition maps, each other.

use super::{have, macbinary, noise, read, run, volume, wrap};
use crate::run::Bench;

#[test]
fn a_floppy_in_diskcopy_is_made_changed_and_summed() {
    for (format, size) in [("mfs", "400K"), ("hfs", "800K"), ("hfs", "1440K")] {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "f.image", "--size", size, "--diskcopy", "--label", "Floppy"]);
        bench.write("file", &noise(50_000, 6));
        bench.ok(&["put", "file", "f.image:/", "--quiet"]);
        let info = bench.json(&["info", "f.image"]);
        assert_eq!(info["format"], format);
        // A wrong sum would be told here.
        assert_eq!(info["layers"], serde_json::json!(["DiskCopy 4.2 \"Floppy\""]));
        bench.ok(&["get", "f.image:/file", "back"]);
        assert_eq!(read(&bench.path("back")), noise(50_000, 6));
        bench.ok(&["fsck", "f.image"]);
        bench.ok(&["hfs", "unwrap", "f.image", "raw.img", "--quiet"]);
        assert!(bench.json(&["info", "raw.img"])["layers"].as_array().unwrap().is_empty());
    }
    let bench = Bench::new();
    let said = bench.fails(1, &["mkfs", "hfs", "f.image", "--size", "5M", "--diskcopy"]);
    assert!(said.contains("400K, 720K, 800K or 1440K"), "{said}");
}

#[test]
fn a_disk_with_a_partition_map_is_opened_by_itself_or_by_number() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "hfs", "d.hda", "--size", "20M", "--apm", "--label", "Disk", "--quiet"]);
    bench.write("file", &noise(50_000, 7));
    bench.ok(&["put", "file", "d.hda:/", "--order", "journal", "--quiet"]);
    assert!(bench.path("d.hda.p2.wjournal").exists(), "the journal is the partition's");
    for source in ["d.hda", "d.hda?partition=2"] {
        bench.ok(&["get", &format!("{source}:/file"), "back", "--quiet"]);
        assert_eq!(read(&bench.path("back")), noise(50_000, 7));
        bench.ok(&["fsck", source]);
    }
    let info = bench.json(&["info", "d.hda"]);
    assert!(
        info["layers"][0].as_str().unwrap().starts_with("Apple partition 2 \"MacOS\""),
        "{info}"
    );
    assert!(bench.fails(1, &["ls", "d.hda?partition=7:/"]).contains("there is: 1"));
    assert!(bench.fails(1, &["mkfs", "hfs", "d.hda"]).contains("in use already"));

    // A driver is taken over from another disk: here one that only looks like it.
    let mut disk = read(&bench.path("d.hda"));
    disk[16..18].copy_from_slice(&1_u16.to_be_bytes());
    disk[18..26].copy_from_slice(&[0, 0, 0, 63, 0, 1, 0, 1]);
    let map = disk[512..1024].to_vec();
    disk[512 + 4..512 + 8].copy_from_slice(&3_u32.to_be_bytes());
    let volume = disk[1024..1536].to_vec();
    disk[1536..2048].copy_from_slice(&volume);
    disk[1024..1536].copy_from_slice(&map);
    disk[1024 + 8..1024 + 16].copy_from_slice(&[0, 0, 0, 63, 0, 0, 0, 1]);
    disk[1024 + 48..1024 + 68].copy_from_slice(b"Apple_Driver43\0\0\0\0\0\0");
    disk[63 * 512..64 * 512].copy_from_slice(&noise(512, 8));
    std::fs::write(bench.path("with-driver.hda"), &disk).unwrap();
    let from = ["--drivers-from", "with-driver.hda", "--quiet"];
    bench.ok(&[&["mkfs", "hfs", "e.hda", "--size", "20M", "--apm"][..], &from].concat());
    let made = read(&bench.path("e.hda"));
    assert_eq!(made[16..18], [0, 1], "one driver in the descriptor record");
    assert_eq!(made[18..22], [0, 0, 0, 64], "which is where it was put");
    assert_eq!(made[64 * 512..65 * 512], noise(512, 8));
    bench.ok(&["put", "file", "e.hda:/", "--quiet"]);
    bench.ok(&["fsck", "e.hda"]);
    let said = bench
        .fails(1, &["mkfs", "hfs", "x.hda", "--size", "9M", "--apm", "--drivers-from", "d.hda"]);
    assert!(said.contains("no driver"), "{said}");
}

#[test]
fn images_in_images_are_taken_apart_and_written_in_place() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "mfs", "f.image", "--size", "400K", "--diskcopy", "--quiet"]);
    let inner = read(&bench.path("f.image"));
    bench.write("f.bin", &macbinary(b"Disk", b"dImgdCpy", &inner, b"rsrc"));
    bench.write("file", b"in three layers");
    bench.ok(&["put", "file", "f.bin:/", "--quiet"]);
    assert_eq!(bench.ok(&["cat", "f.bin:/file"]), "in three layers");
    let layers = bench.json(&["info", "f.bin"])["layers"].to_string();
    assert!(layers.contains("MacBinary III") && layers.contains("DiskCopy 4.2"), "{layers}");
    bench.ok(&["fsck", "f.bin"]);
}

/// A volume of 5 MiB with a file of both forks.
fn to_be_packed(bench: &Bench) -> Vec<u8> {
    bench.ok(&["mkfs", "hfs", "v.img", "--size", "5M", "--label", "Packed", "--quiet"]);
    let file = macbinary(b"Game", b"APPLWeFt", &noise(40_000, 11), &noise(9000, 12));
    bench.write("Game.bin", &file);
    bench.ok(&["put", "--as", "macbinary", "Game.bin", "v.img:/", "--quiet"]);
    bench.ok(&["get", "--as", "macbinary", "v.img:/Game", "whole.bin", "--quiet"]);
    read(&bench.path("v.img"))
}

/// A packed image is read, unwrapped to what it was, and never written.
fn assert_packed(bench: &Bench, image: &str, layer: &str) {
    let info = bench.json(&["info", image]);
    assert_eq!((&info["format"], &info["label"]), (&"hfs".into(), &"Packed".into()), "{info}");
    assert!(info["layers"].to_string().contains(layer), "{info}");
    let before = read(&bench.path(image));
    let file = format!("{image}:/Game");
    bench.ok(&["get", "--as", "macbinary", &file, "back.bin", "--quiet"]);
    assert!(read(&bench.path("back.bin")) == read(&bench.path("whole.bin")), "{image}");
    assert_eq!(bench.json(&["fsck", image])["clean"], true);
    for (code, args) in [
        (1, &["put", "Game.bin", &format!("{image}:/")][..]),
        (1, &["rm", &file]),
        (1, &["hfs", "set", &file, "--type", "TEXT"]),
        (8, &["fsck", "--repair", image]),
    ] {
        let said = bench.fails(code, args);
        assert!(said.contains("compressed") && said.contains("unwrap"), "{args:?}: {said}");
    }
    assert!(read(&bench.path(image)) == before, "{image} is as it was");
    bench.ok(&["hfs", "unwrap", image, "plain.img", "--quiet"]);
    assert!(read(&bench.path("plain.img")) == read(&bench.path("v.img")), "{image}");
    std::fs::remove_file(bench.path("plain.img")).unwrap();
}

#[test]
fn ndif_images_are_read_with_their_resource_fork_beside_them() {
    let bench = Bench::new();
    let (data, resource) = wrap::ndif(&to_be_packed(&bench));
    bench.write("disk.img", &data);
    let said = bench.fails(1, &["ls", "disk.img:/"]);
    assert!(said.contains("no file system that weft knows"), "{said}");
    for place in ["._disk.img", "__MACOSX/._disk.img", ".rsrc/disk.img", "disk.img.rsrc"] {
        let double = wrap::apple(None, &resource);
        bench.write(place, if place.contains("._") { &double } else { &resource });
        assert_packed(&bench, "disk.img", "NDIF");
        std::fs::remove_file(bench.path(place)).unwrap();
    }
    // Both forks in one file.
    bench.write("disk.bin", &wrap::macbinary(2, &data, &resource));
    assert_packed(&bench, "disk.bin", "NDIF");
}

#[test]
fn udif_images_are_read() {
    type Pack = fn(&[u8]) -> Vec<u8>;
    let packings: [(u32, Pack); 2] = [(1, <[u8]>::to_vec), (0x8000_0004, wrap::adc)];
    let bench = Bench::new();
    let image = to_be_packed(&bench);
    for (kind, pack) in packings {
        for old in [false, true] {
            bench.write("disk.dmg", &wrap::udif(&image, kind, old, &pack));
            assert_packed(&bench, "disk.dmg", "UDIF");
        }
    }
    // A byte of the file's content, which is stored as it is, is another.
    let mut hurt = wrap::udif(&image, 1, false, &<[u8]>::to_vec);
    let at = hurt.windows(512).position(|w| w == &noise(40_000, 11)[..512]).unwrap();
    hurt[at + 100] ^= 1;
    bench.write("hurt.dmg", &hurt);
    bench.ok(&["get", "hurt.dmg:/Game", "back", "--quiet", "--as", "data"]);
    let ran = bench.run(&["fsck", "--json", "hurt.dmg"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let problems = report["problems"].to_string();
    assert_eq!((ran.code, &report["clean"]), (4, &false.into()), "{report}");
    assert!(problems.contains("UDIF data fork") && problems.contains("block table 0"), "{report}");
    let ran = bench.run(&["hfs", "unwrap", "hurt.dmg", "hurt.img"]);
    assert_eq!(ran.code, 0, "it is written, and said: {ran:#?}");
    assert!(ran.err.contains("CRC-32"), "{ran:#?}");
    // Cut off, it says what is missing.
    let whole = read(&bench.path("disk.dmg"));
    bench.write("cut.dmg", &whole[whole.len() / 2..]);
    let said = bench.fails(1, &["ls", "cut.dmg:/"]);
    assert!(said.contains("UDIF"), "{said}");
}

#[test]
fn boot_blocks_are_taken_over_from_a_volume_that_has_them() {
    let bench = volume();
    let mut image = read(&bench.path("v.img"));
    image[..1024].copy_from_slice(&noise(1024, 13));
    image[..2].copy_from_slice(b"LK");
    let boot = image[..1024].to_vec();
    bench.write("bootable.img", &image);
    bench.ok(&["mkfs", "hfs", "d.hda", "--size", "20M", "--apm", "--quiet"]);
    for target in ["v.img", "d.hda"] {
        bench.ok(&["mkdir", &format!("{target}:/System Folder")]);
        let folder = format!("{target}:/System Folder");
        let from = ["hfs", "bless", &folder, "--boot-blocks-from"];
        let said = bench.fails(1, &[&from[..], &["v.img"]].concat());
        assert!(said.contains("v.img has no boot blocks"), "{said}");
        assert!(bench.json(&["info", target])["blessed_folder"].is_null(), "nothing was done");
        bench.ok(&[&from[..], &["bootable.img", "--quiet"]].concat());
        assert!(bench.json(&["info", target])["blessed_folder"].is_u64());
        assert_eq!(bench.json(&["fsck", target])["clean"], true);
        let disk = read(&bench.path(target));
        // Of a disk with a map, the blocks are those of the partition.
        let starts: Vec<usize> = (0..disk.len() / 512)
            .map(|block| block * 512)
            .filter(|&at| disk[at..].starts_with(&boot))
            .collect();
        assert_eq!(starts.len(), 1, "{target}");
        assert_eq!(starts[0] == 0, target == "v.img");
        assert_eq!(disk[starts[0] + 1024..][..2], *b"BD");
        if target == "v.img" {
            // What comes next takes them from here: not any more from a volume without.
            let mut bare = disk;
            bare[..1024].fill(0);
            bench.write("v.img", &bare);
        }
    }
}

#[test]
fn a_hybrid_disc_is_read() {
    if !have(&["genisoimage"]) {
        return;
    }
    let bench = Bench::new();
    bench.write("tree/readme.txt", b"for both");
    let args = ["-quiet", "-hfs", "-part", "-o", "cd.iso", "-V", "Hybrid", "tree"];
    run(bench.dir(), "genisoimage", &args);
    let info = bench.json(&["info", "cd.iso"]);
    assert_eq!((&info["format"], &info["label"]), (&"hfs".into(), &"Hybrid".into()), "{info}");
    assert!(bench.ok(&["ls", "cd.iso:/"]).to_lowercase().contains("readme"));
}

#[test]
fn what_is_no_macintosh_volume_is_named() {
    let bench = Bench::new();
    bench.write("noise", &noise(100_000, 9));
    assert!(bench.fails(1, &["hfs", "ls", "noise:/"]).contains("no file system that weft knows"));
    bench.ok(&["mkfs", "ext2", "e.img", "--size", "4M", "--quiet"]);
    assert!(bench.fails(2, &["hfs", "ls", "e.img:/"]).contains("no Macintosh volume"));
    assert!(bench.fails(1, &["mkfs", "hfs", "e.img"]).contains("an ext2, ext3 or ext4 volume"));
    // A volume cut short says so, is read as far as it goes, and is not written.
    let v = volume();
    let whole = read(&v.path("v.img"));
    v.write("cut.img", &whole[..whole.len() / 2]);
    let read = v.fails(1, &["ls", "cut.img:/"]);
    assert!(read.contains("the image is truncated"), "{read}");
    let written = v.fails(1, &["mkdir", "cut.img:/new"]);
    assert!(written.contains("MDB") && written.contains("the image is truncated"), "{written}");
}
