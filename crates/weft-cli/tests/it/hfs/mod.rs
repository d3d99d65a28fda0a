//! HFS and MFS through the real command: made, filled, mounted, packed, checked; and by the side of
//! other people's tools, which are skipped with a line that says so where they are missing.

mod collisions;
mod damaged;
mod forks;
mod images;
mod mounted;
mod names;
mod peers;
mod remote;
mod sizes;
/// Writers of disk images in their wrappings.
#[allow(dead_code)] // shared with those who need all of it
#[path = "../../../../weft-block/tests/it/wrap.rs"]
mod wrap;

use crate::run::Bench;
use std::path::Path;
use std::process::{Command, Output};

/// An empty HFS volume `v.img` of 20 MiB.
fn volume() -> Bench {
    let bench = Bench::new();
    bench.ok(&["mkfs", "hfs", "v.img", "--size", "20M", "--label", "Test", "--quiet"]);
    bench
}

/// Bytes that look like nothing, the same for the same seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A MacBinary III file, by hand: "MacBinary III", 1996.
fn macbinary(name: &[u8], kind: &[u8; 8], data: &[u8], resource: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 128];
    head[1] = name.len() as u8;
    head[2..2 + name.len()].copy_from_slice(name);
    head[65..73].copy_from_slice(kind);
    head[83..87].copy_from_slice(&(data.len() as u32).to_be_bytes());
    head[87..91].copy_from_slice(&(resource.len() as u32).to_be_bytes());
    // 2001-02-03 04:05:06 and a year later.
    head[91..95].copy_from_slice(&3_064_016_706_u32.to_be_bytes());
    head[95..99].copy_from_slice(&3_095_552_706_u32.to_be_bytes());
    head[102..106].copy_from_slice(b"mBIN");
    (head[122], head[123]) = (130, 129);
    let crc = head[..124].iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 }
        })
    });
    head[124..126].copy_from_slice(&crc.to_be_bytes());
    for fork in [data, resource] {
        head.extend_from_slice(fork);
        head.resize(head.len().next_multiple_of(128), 0);
    }
    head
}

/// Whether all of `tools` are installed; says so if not.
fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

/// Runs a tool that keeps its state in `$HOME`, and demands success.
fn run(dir: &Path, name: &str, args: &[&str]) -> Output {
    let mut command = Command::new(name);
    command.current_dir(dir).env("HOME", dir).env("TZ", "UTC").args(args);
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
    out
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_general_verbs_work_on_a_macintosh_volume() {
    for format in ["hfs", "mfs"] {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "v.img", "--size", "800K", "--label", "Été", "--quiet"]);
        bench.write("a.txt", b"hello");
        bench.ok(&["put", "a.txt", "v.img:/"]);
        assert_eq!(bench.ok(&["cat", "v.img:/a.txt"]), "hello");
        assert_eq!(bench.ok(&["ls", "v.img:/"]), "a.txt\n");
        bench.ok(&["mv", "v.img:/a.txt", "v.img:/b.txt"]);
        assert_eq!(bench.ok(&["ls", "v.img:/"]), "b.txt\n");
        if format == "hfs" {
            bench.ok(&["mkdir", "-p", "v.img:/one/two"]);
            bench.ok(&["cp", "v.img:/b.txt", "v.img:/one/two"]);
            assert_eq!(bench.ok(&["cat", "v.img:/ONE/Two/B.TXT"]), "hello", "case does not count");
            bench.ok(&["rm", "-r", "v.img:/one"]);
        }
        assert!(bench.ok(&["tree", "v.img:/"]).contains("b.txt"));
        assert!(bench.ok(&["stat", "v.img:/b.txt"]).contains("b.txt"));
        assert_eq!(bench.json(&["df", "v.img"])[0]["image"], "v.img");
        let info = bench.json(&["info", "v.img"]);
        assert_eq!((&info["format"], &info["label"]), (&format.into(), &"Été".into()));
        assert_eq!(info["files"], 1);
        assert_eq!(bench.ok(&["hfs", "label", "v.img"]), "Été\n");
        bench.ok(&["hfs", "label", "v.img", "Hiver", "--quiet"]);
        assert_eq!(bench.json(&["info", "v.img"])["label"], "Hiver");
        let fsck = bench.json(&["fsck", "v.img"]);
        assert_eq!((&fsck["clean"], &fsck["files"]), (&true.into(), &1.into()), "{fsck}");
        bench.ok(&["rm", "v.img:/b.txt"]);
        assert_eq!(bench.ok(&["ls", "v.img:/"]), "");
        bench.ok(&["fsck", "v.img"]);
    }
}

#[test]
fn what_a_macintosh_cannot_have_is_said() {
    let bench = volume();
    bench.write("file", b"x");
    let long = format!("v.img:/{}", "x".repeat(32));
    assert!(bench.fails(1, &["put", "file", &long]).contains("name too long"));
    assert!(bench.fails(1, &["put", "file", "v.img:/日本"]).contains("MacRoman"));
    assert!(
        bench.fails(2, &["hfs", "label", "v.img", "28 letters are one too many!"]).contains("27")
    );
    assert!(bench.fails(2, &["mkfs", "hfs", "w.img", "--inodes", "5"]).contains("--inodes"));
    assert!(bench.fails(2, &["mkfs", "ext2", "w.img", "--apm"]).contains("--apm"));
    assert!(bench.fails(1, &["mkfs", "hfs", "w.img", "--size", "100K"]).contains("400 KB"));
    assert!(!bench.path("w.img").exists(), "nothing is left behind");
    let args = ["put", "file", "v.img:/", "--order", "journal=full"];
    assert!(bench.fails(1, &args).contains("journal=ordered"));
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn links_are_left_out_or_copied() {
    let bench = volume();
    bench.write("d/file", b"content");
    std::os::unix::fs::symlink("file", bench.path("d/link")).unwrap();
    std::fs::hard_link(bench.path("d/file"), bench.path("d/second")).unwrap();
    let ran = bench.run(&["put", "d", "v.img:/"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("/d/link: the volume has no symbolic links"), "{ran:#?}");
    assert_eq!(bench.ok(&["ls", "v.img:/d"]), "file\nsecond\n");
    assert_eq!(bench.ok(&["cat", "v.img:/d/second"]), "content");
}

#[test]
fn a_journal_lies_beside_the_image_and_is_found_again() {
    let bench = volume();
    // Allocation blocks of 512 bytes are all journaled: more than the log holds at once.
    bench.write("d/a", &noise(9_000_000, 1));
    bench.ok(&["put", "d", "v.img:/", "--order", "journal", "--quiet"]);
    assert!(bench.path("v.img.wjournal").exists());
    let info = bench.json(&["info", "v.img"]);
    assert!(info["journal"].as_str().unwrap().ends_with("v.img.wjournal"));
    bench.ok(&["get", "v.img:/d/a", "back"]);
    assert!(read(&bench.path("back")) == noise(9_000_000, 1));
    bench.ok(&["put", "d", "v.img:/e", "--quiet"]);
    assert_eq!(bench.json(&["fsck", "v.img"])["clean"], true);
    // The date it was made is what the journal knows it by.
    let said = bench.fails(1, &["hfs", "volume", "v.img", "--created", "1990-01-01"]);
    assert!(said.contains("v.img.wjournal"), "{said}");
    // Another volume's journal is not replayed.
    let other =
        ["mkfs", "hfs", "w.img", "--size", "20M", "--label", "Other", "--quiet", "-b", "1024"];
    bench.ok(&other);
    std::fs::copy(bench.path("v.img.wjournal"), bench.path("w.img.wjournal")).unwrap();
    assert!(bench.fails(1, &["ls", "w.img:/"]).contains("another volume's"));
}

#[test]
fn damage_is_4_repaired_1_and_a_dry_run_says_how() {
    let bench = volume();
    bench.write("file", &noise(300_000, 2));
    bench.ok(&["put", "file", "v.img:/", "--quiet"]);
    // The bitmap is at block 3: blocks in use are called free.
    let mut image = read(&bench.path("v.img"));
    image[3 * 512 + 20..3 * 512 + 60].fill(0);
    std::fs::write(bench.path("v.img"), &image).unwrap();
    let ran = bench.run(&["fsck", "v.img"]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    let ran = bench.run(&["fsck", "--dry-run", "v.img"]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    assert!(ran.out.contains("would rebuild the bitmap"), "{ran:#?}");
    assert_eq!(read(&bench.path("v.img")), image, "a dry run changes nothing");
    let ran = bench.run(&["fsck", "--json", "v.img"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(report["problems"][0]["fix"].is_string(), "{report}");
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 1);
    assert_eq!(bench.run(&["fsck", "v.img"]).code, 0);
    bench.ok(&["get", "v.img:/file", "back"]);
    assert_eq!(read(&bench.path("back")), noise(300_000, 2));

    // Not even the MDB is there: its copy at the end says where everything is.
    let mut image = read(&bench.path("v.img"));
    image[1024..1536].fill(0);
    std::fs::write(bench.path("v.img"), &image).unwrap();
    assert_eq!(bench.run(&["fsck", "v.img"]).code, 4);
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 1);
    bench.ok(&["get", "v.img:/file", "again"]);
    assert_eq!(read(&bench.path("again")), noise(300_000, 2));
}

#[test]
fn a_repair_on_a_full_volume_says_that_it_is_done_in_place() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "hfs", "v.img", "--size", "800K", "--quiet"]);
    let space = &bench.json(&["df", "v.img"])[0];
    let free = space["blocks_free"].as_u64().unwrap() * space["block_bytes"].as_u64().unwrap();
    let content = noise(usize::try_from(free).unwrap(), 3);
    bench.write("file", &content);
    bench.ok(&["put", "file", "v.img:/", "--quiet"]);
    assert_eq!(bench.json(&["df", "v.img"])[0]["blocks_free"], 0);
    // A leaf of the catalog, behind the header of the tree, says that another comes before it.
    let mut image = read(&bench.path("v.img"));
    let number = |at: usize| usize::from(image[1024 + at]) << 8 | usize::from(image[1025 + at]);
    let catalog = (number(28) + number(150) * (number(22) / 512)) * 512;
    let leaf = catalog + 512;
    assert_eq!(image[leaf + 8..leaf + 10], [0xff, 1], "a leaf");
    image[leaf + 7] ^= 5;
    bench.write("v.img", &image);
    let ran = bench.run(&["fsck", "--repair", "v.img"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.out.contains("too full for new trees"), "{ran:#?}");
    let sound = bench.json(&["fsck", "v.img"]);
    assert_eq!((&sound["clean"], &sound["in_place"]), (&true.into(), &false.into()));
    bench.ok(&["get", "v.img:/file", "back"]);
    assert!(read(&bench.path("back")) == content);

    // With room beside the trees there is nothing to be said.
    bench.ok(&["rm", "v.img:/file"]);
    let mut image = read(&bench.path("v.img"));
    image[leaf + 7] ^= 5;
    bench.write("v.img", &image);
    let ran = bench.run(&["fsck", "--repair", "v.img"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(!ran.out.contains("too full"), "{ran:#?}");
}

#[test]
fn a_damaged_mfs_volume_is_read_and_repaired() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "mfs", "v.img", "--size", "400K", "--quiet"]);
    for n in 0..3 {
        bench.write(&format!("f{n}"), &noise(20_000, n));
        bench.ok(&["put", &format!("f{n}"), "v.img:/", "--quiet"]);
    }
    // The map behind the volume information, 12 bits a block: a chain that leaves its file.
    let mut image = read(&bench.path("v.img"));
    image[1024 + 64 + 3] ^= 0x55;
    std::fs::write(bench.path("v.img"), &image).unwrap();
    assert_eq!(bench.run(&["fsck", "v.img"]).code, 4);
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 1);
    assert_eq!(bench.run(&["fsck", "v.img"]).code, 0);
    bench.ok(&["get", "v.img:/f2", "back"]);
    assert_eq!(read(&bench.path("back")), noise(20_000, 2));
}

#[test]
fn a_folder_becomes_the_same_volume_twice() {
    let bench = Bench::new();
    for n in 0..40 {
        bench.write(&format!("tree/d{}/f{n}.txt", n % 5), &noise(n * 100, n as u64));
    }
    bench.write("tree/Game", b"data");
    bench.ok(&["hfs", "convert", "tree/Game", "packed", "--as", "macbinary", "--quiet"]);
    let make = |image: &str| {
        let args = ["mkfs", "hfs", image, "--size", "4M", "--label", "Same", "--reproducible"];
        bench.ok(&[&args[..], &["--import", "tree", "--quiet"]].concat());
        read(&bench.path(image))
    };
    let first = make("a.img");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(first == make("b.img"), "two volumes of the same folder differ");
    bench.ok(&["fsck", "a.img"]);
    let info = bench.json(&["info", "a.img"]);
    assert_eq!(info["created"], "2000-01-01 00:00:00");
    assert_eq!(info["files"], 41);
}

#[test]
fn finder_information_is_set_and_shown() {
    let bench = volume();
    bench.write("Game", b"data");
    bench.ok(&["put", "Game", "v.img:/", "--type", "APPL", "--creator", "WeFt", "--quiet"]);
    bench.ok(&["mkdir", "v.img:/System Folder"]);
    let set = ["hfs", "set", "v.img:/Game", "--flags", "+bundle,+inited", "--location=-3,40"];
    bench.ok(&[&set[..], &["--locked", "yes", "--color", "2"]].concat());
    bench.ok(&["hfs", "set-type", "v.img:/Game", "--type", "TEXT"]);
    bench.ok(&["hfs", "set", "v.img:/Game", "--created", "1990-05-06 07:08:09"]);
    let info = &bench.json(&["hfs", "info", "v.img:/Game"])[0];
    assert_eq!(info["file_type"], "TEXT");
    assert_eq!(info["creator"], "WeFt");
    assert_eq!(info["locked"], true);
    assert_eq!(info["created"], "1990-05-06 07:08:09");
    assert_eq!(info["flags"], serde_json::json!(["bundle", "inited"]));
    assert_eq!(info["finder"]["location"], serde_json::json!([-3, 40]));
    assert_eq!(info["finder"]["color"], 2);
    let set = ["hfs", "set", "v.img:/System Folder", "--window", "10,20,300,400", "--view", "256"];
    bench.ok(&set);
    let info = &bench.json(&["hfs", "info", "v.img:/System Folder"])[0];
    assert_eq!(info["finder"]["window"], serde_json::json!([10, 20, 300, 400]));
    // Every other field of FInfo and FXInfo, DInfo and DXInfo, each by itself.
    let common =
        [("script", -2), ("x_flags", -128), ("comment_id", -7), ("put_away", 4_000_000_000_i64)];
    for (path, own) in [
        ("v.img:/Game", [("folder", -3_i64), ("icon_id", 129)]),
        ("v.img:/System Folder", [("open_chain", 70_000), ("view", -1)]),
    ] {
        let mut wanted = bench.json(&["hfs", "info", path])[0]["finder"].clone();
        for (field, value) in common.into_iter().chain(own) {
            let option = format!("--{}={value}", field.replace('_', "-"));
            bench.ok(&["hfs", "set", path, &option]);
            wanted[field] = value.into();
            let mut found = bench.json(&["hfs", "info", path])[0]["finder"].clone();
            found["raw"] = wanted["raw"].clone();
            assert_eq!(found, wanted, "{path} {option}");
        }
    }
    bench.ok(&["hfs", "set", "v.img:/System Folder", "--scroll=-5,6"]);
    let finder = &bench.json(&["hfs", "info", "v.img:/System Folder"])[0]["finder"];
    assert_eq!(finder["scroll"], serde_json::json!([-5, 6]));
    for (path, option) in
        [("Game", "--scroll=1,2"), ("Game", "--open-chain=1"), ("System Folder", "--icon-id=1")]
    {
        bench.fails(2, &["hfs", "set", &format!("v.img:/{path}"), option]);
    }
    let id = info["id"].as_u64().unwrap();
    bench.ok(&["hfs", "bless", "v.img:/System Folder", "--quiet"]);
    assert_eq!(bench.json(&["info", "v.img"])["blessed_folder"], id);
    bench.ok(&["hfs", "bless", "v.img:", "--none", "--quiet"]);
    assert!(bench.json(&["info", "v.img"])["blessed_folder"].is_null());
    let list = bench.ok(&["hfs", "ls", "v.img:/"]);
    assert!(list.contains("fL  TEXT/WeFt"), "{list}");
    assert!(
        bench
            .fails(2, &["hfs", "set", "v.img:/System Folder", "--type", "TEXT"])
            .contains("folder")
    );
    let dates = ["--created", "1984-01-24", "--modified", "1985-01-01", "--backed-up", "never"];
    bench.ok(&[&["hfs", "volume", "v.img", "--quiet"][..], &dates].concat());
    let info = bench.json(&["info", "v.img"]);
    assert_eq!(info["created"], "1984-01-24 00:00:00");
    assert_eq!(info["modified"], "1985-01-01 00:00:00");
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn local_time_is_what_the_clock_on_the_macintosh_showed() {
    let bench = volume();
    bench.write("file", b"x");
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::File::open(bench.path("file")).unwrap().set_modified(at).unwrap();
    bench.ok(&["put", "file", "v.img:/", "--timezone", "+02:00", "--quiet"]);
    // 2001-09-09 01:46:40 UTC.
    let list = bench.ok(&["hfs", "ls", "v.img:/"]);
    assert!(list.contains("2001-09-09 03:46:40"), "{list}");
    bench.ok(&["get", "v.img:/file", "back", "--timezone", "+02:00", "--quiet"]);
    assert_eq!(std::fs::metadata(bench.path("back")).unwrap().modified().unwrap(), at);
    let unix = &bench.json(&["stat", "v.img:/file", "--timezone", "utc"])[0]["modified"];
    assert_eq!(unix.as_f64(), Some(1_000_007_200.0));
    assert!(bench.fails(2, &["ls", "v.img:/", "--timezone", "Mars"]).contains("time zone"));
}
