//! Repairs of volumes whose root, journal, inode tables or other metadata are lost: e2fsck finds nothing
//! afterwards, and at least as many files are there as after its own repair.

use crate::images::make_image;
use crate::tools::{assert_clean, have_e2fsprogs, run};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weft_block::{FileDevice, MemoryDevice, OpenMode, Rng};
use weft_ext2::{Ext2, OpenOptions, fsck};
use weft_vfs::{FileKind, FileSystem, Walker};

/// The content of all files on a volume, with the number of files that have it.
type Contents = BTreeMap<Vec<u8>, usize>;

fn contents(image: &Path) -> Contents {
    let device = Arc::new(FileDevice::open(image, OpenMode::READ_ONLY).unwrap());
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fs = Ext2::open(device, options).unwrap();
    let walker = Walker::new(&*fs);
    let mut all = Contents::new();
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        let node = walker.resolve(if dir.is_empty() { b"/" } else { &dir });
        for entry in node.and_then(|node| node.list()).unwrap_or_default() {
            let path = [&dir[..], b"/", &entry.name[..]].concat();
            match entry.kind {
                FileKind::Directory => todo.push(path),
                // One that cannot be read is lost, though it has a name.
                FileKind::Regular => {
                    if let Ok(content) = walker.read_file(&path) {
                        *all.entry(content).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
    }
    drop(walker);
    fs.unmount().unwrap();
    all
}

/// How many of the files there were are left.
fn saved(before: &Contents, after: &Contents) -> usize {
    let left =
        |(content, n): (&Vec<u8>, &usize)| (*n).min(after.get(content).copied().unwrap_or(0));
    // Empty files are not worth a name in lost+found, to e2fsck neither.
    before.iter().filter(|(content, _)| !content.is_empty()).map(left).sum()
}

struct Volume {
    path: PathBuf,
    bytes: Vec<u8>,
    block_bytes: u64,
    before: Contents,
}

impl Volume {
    fn new(dir: &Path, kind: &str, block_bytes: u32, size: &str) -> Self {
        let path = make_image(dir, kind, block_bytes, 256, size);
        let bytes = std::fs::read(&path).unwrap();
        let before = contents(&path);
        Self { path, bytes, block_bytes: block_bytes.into(), before }
    }

    /// Lets e2fsck repair the damage on one copy, and weft on another. Returns the numbers of files
    /// saved by both.
    fn judge(&self, what: &str, damage: &dyn Fn(&Path)) -> (usize, usize) {
        let [theirs, ours] = ["theirs", "ours"].map(|name| self.path.with_extension(name));
        for path in [&theirs, &ours] {
            std::fs::write(path, &self.bytes).unwrap();
            damage(path);
        }
        let (text, status) = run(Command::new("e2fsck").arg("-fy").arg(&theirs));
        let by_them = if status <= 1 { saved(&self.before, &contents(&theirs)) } else { 0 };
        let device = FileDevice::open(&ours, OpenMode::READ_WRITE).unwrap();
        let report = fsck::check(&device, &fsck::Options::repair());
        drop(device);
        let report = match report {
            Ok(report) => report,
            Err(e) => {
                assert!(status > 1, "{what}: weft gives up ({e}), and e2fsck does not: {text}");
                return (0, 0);
            }
        };
        if status <= 1 {
            assert!(report.remaining.is_empty(), "{what}: left: {:?}", report.remaining);
            assert_clean(&ours, what);
        }
        let by_us =
            if report.remaining.is_empty() { saved(&self.before, &contents(&ours)) } else { 0 };
        assert!(by_us >= by_them, "{what}: e2fsck saves {by_them} files, weft {by_us}");
        (by_them, by_us)
    }

    fn debugfs(&self, request: &str) -> impl Fn(&Path) {
        let request = request.to_owned();
        move |path| {
            let (text, status) =
                run(Command::new("debugfs").args(["-w", "-R", &request]).arg(path));
            assert_eq!(status, 0, "{text}");
        }
    }

    fn overwrite(&self, block: u64, content: Vec<u8>) -> impl Fn(&Path) {
        let at = block * self.block_bytes;
        move |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&content, at).unwrap();
        }
    }
}

fn noise(rng: &mut Rng, len: u64) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// The inodes that a volume begins with, and the root's and lost+found's blocks.
#[test]
fn lost_roots_and_journals() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (kind, block_bytes, size) in
        [("ext2", 1024, "6M"), ("ext3", 1024, "12M"), ("ext3", 4096, "40M")]
    {
        let volume = Volume::new(dir.path(), kind, block_bytes, size);
        let all: usize = saved(&volume.before, &volume.before);
        for inode in 1..=13 {
            let what = format!("{kind}, {block_bytes}: inode {inode} cleared");
            let (_, ours) = volume.judge(&what, &volume.debugfs(&format!("clri <{inode}>")));
            if matches!(inode, 1 | 2 | 7 | 8) {
                assert_eq!(ours, all, "{what}");
            }
        }
        let what = format!("{kind}, {block_bytes}: no lost+found, a file without a name");
        volume.judge(&what, &|path| {
            volume.debugfs("rmdir lost+found")(path);
            volume.debugfs("unlink a/b/double")(path);
            volume.debugfs("unlink many")(path);
        });
    }
}

/// A journal with transactions that lost its inode is replayed all the same: the superblock has a copy of
/// the map.
#[test]
fn a_lost_journal_is_restored_and_replayed() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = make_image(dir.path(), "ext3", 1024, 256, "12M");
    let script = dir.path().join("script");
    // A transaction that writes one block, which belongs to nothing.
    std::fs::write(&script, "jo\njw -b 11000 /dev/zero\njc\nclri <8>\n").unwrap();
    let (text, status) = run(Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(&path));
    if status != 0 || text.contains("not found") {
        println!("not here: this debugfs writes no journals: {text}");
        return;
    }
    let device = MemoryDevice::new(std::fs::metadata(&path).unwrap().len());
    weft_block::BlockDevice::write_at(&device, &std::fs::read(&path).unwrap(), 0).unwrap();
    let report = fsck::check(&device, &fsck::Options::repair()).unwrap();
    assert!(report.remaining.is_empty(), "{:?}", report.remaining);
    let restored = |p: &fsck::Problem| {
        matches!(p, fsck::Problem::Journal { fix: fsck::JournalFix::Restore, .. })
    };
    assert!(report.problems.iter().any(restored), "{:?}", report.problems);
    assert!(report.journal.is_some(), "its transaction was replayed");
    let mut raw = [0; 1024];
    weft_block::BlockDevice::read_at(&device, &mut raw, 1024).unwrap();
    let superblock = weft_ext2::layout::Superblock::parse(&raw).unwrap();
    assert!(superblock.features.compat.contains(weft_ext2::layout::Compat::HAS_JOURNAL));
}

/// Each block of the metadata, zeroed or full of noise; then noise anywhere.
#[test]
fn lost_blocks_of_metadata() {
    if !have_e2fsprogs() {
        return;
    }
    let seeds = std::env::var("WEFT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::new(dir.path(), "ext3", 1024, "12M");
    let mut rng = Rng::new(20_261_129);
    let (mut theirs, mut ours) = (0, 0);
    let mut add = |(them, us): (usize, usize)| {
        theirs += them;
        ours += us;
    };
    // The superblock, descriptors, bitmaps and the first blocks of the inode table, directories.
    let (text, _) = run(Command::new("debugfs").args(["-R", "stats"]).arg(&volume.path));
    let table: u64 = text
        .split_once("inode table at ")
        .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .unwrap();
    let mut blocks: Vec<u64> = vec![1, 2, table - 2, table - 1];
    blocks.extend(table..table + 8);
    for name in ["/", "a", "a/b", "many", "lost+found"] {
        let request = format!("blocks {name}");
        let (text, _) = run(Command::new("debugfs").args(["-R", &request]).arg(&volume.path));
        blocks.extend(text.split_whitespace().filter_map(|n| n.parse::<u64>().ok()).take(3));
    }
    for &block in &blocks {
        let zeroes = vec![0; volume.block_bytes as usize];
        add(volume.judge(&format!("block {block} zeroed"), &volume.overwrite(block, zeroes)));
        let noise = noise(&mut rng, volume.block_bytes);
        add(volume.judge(&format!("block {block} full of noise"), &volume.overwrite(block, noise)));
    }
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let damages: Vec<_> = (0..1 + rng.below(3))
            .map(|_| {
                let block = blocks[rng.index(blocks.len())];
                let len = 16 << rng.below(4);
                let at = rng.below(volume.block_bytes / len) * len;
                let mut content = volume.bytes[(block * volume.block_bytes) as usize..]
                    [..volume.block_bytes as usize]
                    .to_vec();
                content[at as usize..][..len as usize].copy_from_slice(&noise(&mut rng, len));
                volume.overwrite(block, content)
            })
            .collect();
        add(volume.judge(&format!("seed {seed}"), &|path| damages.iter().for_each(|d| d(path))));
    }
    println!("files saved: e2fsck {theirs}, weft {ours}");
}

/// More files without a name than the twelve first blocks of lost+found hold.
#[test]
fn lost_and_found_grows_past_its_direct_blocks() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("many");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    for i in 0..1500 {
        std::fs::write(tree.join(format!("d/{i}")), format!("file {i}")).unwrap();
    }
    let path = dir.path().join("v.img");
    let (text, status) = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext2", "-b", "1024", "-N", "2000", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg("8M"));
    assert_eq!(status, 0, "{text}");
    let before = contents(&path);
    let (_, status) = run(Command::new("debugfs").args(["-w", "-R", "clri d"]).arg(&path));
    assert_eq!(status, 0);
    let device = FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
    let report = fsck::check(&device, &fsck::Options::repair()).unwrap();
    drop(device);
    assert!(report.remaining.is_empty(), "{:?}", report.remaining);
    assert_clean(&path, "1500 files in lost+found");
    assert_eq!(saved(&before, &contents(&path)), 1500);
}

/// The inode of bad blocks counts these alone.
#[test]
fn a_list_of_bad_blocks_is_no_problem() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("bad");
    let blocks: String = (3000..4001).map(|n| format!("{n}\n")).collect();
    std::fs::write(&list, blocks).unwrap();
    let path = dir.path().join("v.img");
    let (text, status) = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext2", "-b", "1024", "-l"])
        .arg(&list)
        .arg(&path)
        .arg("8M"));
    assert_eq!(status, 0, "{text}");
    assert_clean(&path, "as mke2fs made it");
    let device = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
    let report = fsck::check(&device, &fsck::Options::default()).unwrap();
    assert_eq!(report.problems, []);
}
