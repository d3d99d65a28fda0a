//! Debian's hfsutils and weft read each other's volumes. Skipped, and said so, where they are
//! not installed.

use crate::volume::{assert_sound, name, quiet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode};
use weft_hfs::Hfs;
use weft_hfs::layout::{CatalogRecord, FInfo, Fork, Name, ROOT_ID};
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::volume::New;
use weft_vfs::FileSystem;

fn there() -> bool {
    let there = Command::new("hformat").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: hfsutils are not installed");
    }
    there
}

/// Runs one of the tools with its state in a directory of its own.
fn tool(home: &Path, program: &str, args: &[&str]) -> String {
    let out =
        Command::new(program).args(args).env("HOME", home).current_dir(home).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn open(path: &Path) -> Arc<Hfs> {
    let device = Arc::new(FileDevice::open(path, OpenMode::READ_WRITE).unwrap());
    Hfs::open(device as Arc<dyn BlockDevice>, quiet()).unwrap()
}

fn check(path: &Path) {
    let device = FileDevice::open(path, OpenMode::READ_ONLY).unwrap();
    assert_sound(&device);
}

#[test]
fn hfsutils_read_the_volumes_of_weft() {
    if !there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let image = home.join("weft.img");
    let device = FileDevice::create(&image, 20 << 20).unwrap();
    mkfs(&device, &MkfsOptions::new(name("From weft"), 3_000_000_000)).unwrap();
    drop(device);
    let fs = open(&image);
    let folder = New::Folder { info: Default::default(), xinfo: Default::default() };
    let folder = fs.create_item(ROOT_ID, &name("A folder"), &folder).unwrap();
    let info = FInfo { file_type: *b"TEXT", creator: *b"ttxt", ..FInfo::default() };
    let what = New::File { info, xinfo: Default::default() };
    // Every byte a name can have, in names of all lengths.
    let mut names = Vec::new();
    for byte in (1..=255_u8).filter(|&b| b != b':') {
        names.push(Name::new(&[b'n', byte, b'z']).unwrap());
    }
    for len in 1..=31 {
        names.push(Name::new(&vec![b'L'; len]).unwrap());
    }
    let mut made = Vec::new();
    for name in &names {
        // Some are one name to HFS.
        if fs.create_item(folder, name, &what).is_ok() {
            made.push(*name);
        }
    }
    let data: Vec<u8> = (0..300_000_u32).map(|i| (i / 3) as u8).collect();
    fs.create_item(ROOT_ID, &name("both"), &what).unwrap();
    fs.write_fork(ROOT_ID, &name("both"), Fork::Data, 0, &data).unwrap();
    fs.write_fork(ROOT_ID, &name("both"), Fork::Resource, 0, &data[..70_000]).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    check(&image);

    tool(home, "hmount", &["weft.img"]);
    let list = Command::new("hls")
        .args(["-1b", ":A folder"])
        .env("HOME", home)
        .current_dir(home)
        .output()
        .unwrap();
    let count = list.stdout.split(|&b| b == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(count, made.len());
    let long = tool(home, "hls", &["-l"]);
    assert!(
        long.contains("TEXT/ttxt") && long.contains("70000") && long.contains("300000"),
        "{long}"
    );
    tool(home, "hcopy", &["-r", ":both", "out"]);
    assert_eq!(std::fs::read(home.join("out")).unwrap(), data);
    // Its writer on our volume, and our check on its work.
    std::fs::write(home.join("in"), &data[..100_000]).unwrap();
    for i in 0..40 {
        tool(home, "hcopy", &["-r", "in", &format!(":copy {i}")]);
    }
    tool(home, "hdel", &[":copy 7"]);
    tool(home, "humount", &[]);
    let fs = open(&image);
    assert_eq!(fs.items(ROOT_ID).unwrap().len(), 41);
    let mut got = vec![0; 100_001];
    let n = fs.read_fork(ROOT_ID, &name("copy 39"), Fork::Data, 0, &mut got).unwrap();
    assert_eq!(&got[..n], &data[..100_000]);
    fs.unmount().unwrap();
}

#[test]
fn weft_reads_and_changes_the_volumes_of_hfsutils() {
    if !there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    for (i, bytes) in [819_200_u64, 1_474_560, 40 << 20].into_iter().enumerate() {
        let image = format!("{i}.img");
        std::fs::File::create(home.join(&image)).unwrap().set_len(bytes).unwrap();
        tool(home, "hformat", &["-l", "From hfsutils", &image]);
        tool(home, "hmount", &[&image]);
        tool(home, "hmkdir", &[":one", ":two"]);
        std::fs::write(home.join("in"), vec![7; 20_000]).unwrap();
        for n in 0..15 {
            tool(home, "hcopy", &["-r", "in", &format!(":one:file {n}")]);
        }
        tool(home, "hattrib", &["-t", "APPL", "-c", "weft", ":one:file 3"]);
        tool(home, "humount", &[]);
        let fs = open(&home.join(&image));
        assert_eq!(fs.volume_info().name, name("From hfsutils"));
        let items = fs.items(ROOT_ID).unwrap();
        assert_eq!(items.len(), 2);
        let CatalogRecord::Directory(one) = items[0].1 else { panic!("no folder") };
        let (_, CatalogRecord::File(file)) = fs.item(one.id, &name("file 3")).unwrap() else {
            panic!("no file")
        };
        assert_eq!((&file.info.file_type, &file.info.creator), (b"APPL", b"weft"));
        let mut got = vec![0; 30_000];
        let n = fs.read_fork(one.id, &name("file 14"), Fork::Data, 0, &mut got).unwrap();
        assert!(n == 20_000 && got[..n].iter().all(|&b| b == 7));
        for n in 0..100 {
            fs.create_item(one.id, &name(&format!("more {n}")), &New::FILE).unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        tool(home, "hmount", &[&image]);
        assert_eq!(tool(home, "hls", &["-1", ":one"]).lines().count(), 115);
        tool(home, "humount", &[]);
    }
}

/// Every size makes a volume that both take for one.
#[test]
fn volumes_of_every_size() {
    let tools = there();
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let mut sizes: Vec<u64> = vec![800, 801, 1600, 2880];
    for power in 10..=32 {
        sizes.extend([(1_u64 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    sizes.retain(|n| (800..=1 << 32).contains(n));
    for blocks in sizes {
        // A sparse file of 2 TB costs nothing; hfsutils take 800 KB to 2 GB.
        let path = home.join("size.img");
        let _ = std::fs::remove_file(&path);
        let device = FileDevice::create(&path, blocks * 512).unwrap();
        mkfs(&device, &MkfsOptions::new(name("Size"), 3_000_000_000)).unwrap();
        assert_sound(&device);
        let fs = Hfs::open(Arc::new(device) as Arc<dyn BlockDevice>, quiet()).unwrap();
        fs.create_item(ROOT_ID, &name("a"), &New::FILE).unwrap();
        fs.write_fork(ROOT_ID, &name("a"), Fork::Data, 0, &[5; 5000]).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        check(&path);
        if tools && (1600..1 << 22).contains(&blocks) {
            tool(home, "hmount", &["size.img"]);
            assert_eq!(tool(home, "hls", &["-1"]).trim(), "a", "{blocks} blocks");
            tool(home, "hcopy", &["-r", ":a", "out"]);
            assert_eq!(std::fs::read(home.join("out")).unwrap(), vec![5; 5000]);
            tool(home, "humount", &[]);
        }
    }
}
