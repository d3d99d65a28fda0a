//! Journals against other people's tools: debugfs writes and we replay, we write and e2fsck and
//! the kernel replay; the volumes must come out the same.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_patch::jbd2::{CommitTime, Features, Log, LogMap, MAGIC, build_transaction, commit_block};

/// A device that holds `bytes`.
fn memory(bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(bytes, 0).unwrap();
    Arc::new(device)
}

fn content(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes).unwrap()];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn tools_missing() -> bool {
    for tool in ["mke2fs", "debugfs", "e2fsck"] {
        if Command::new(tool).arg("-V").output().is_err() {
            println!("skipped: {tool} is not installed");
            return true;
        }
    }
    false
}

/// Runs a tool; its output, and panics if it fails with a status above `highest_ok`.
fn run(command: &mut Command, highest_ok: i32) -> String {
    let out = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code().is_some_and(|c| c <= highest_ok), "{command:?}: {text}");
    text
}

fn le32(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// The blocks of the journal of a volume made by mke2fs: inode 8 by its block map.
fn journal_blocks(image: &[u8], block: usize) -> Vec<u64> {
    let inode_bytes = usize::from(image[1024 + 0x58]) | usize::from(image[1024 + 0x59]) << 8;
    let descriptors = if block == 1024 { 2048 } else { block };
    let inode = le32(image, descriptors + 8) * block + 7 * inode_bytes;
    let len = le32(image, inode + 4).div_ceil(block);
    let per = block / 4;
    let slot = |i: usize| le32(image, inode + 0x28 + 4 * i);
    let entry = |table: usize, i: usize| le32(image, table * block + 4 * i);
    (0..len)
        .map(|i| match i {
            0..12 => slot(i),
            _ if i - 12 < per => entry(slot(12), i - 12),
            _ => entry(entry(slot(13), (i - 12 - per) / per), (i - 12 - per) % per),
        } as u64)
        .collect()
}

/// An ext3 volume of 16 MiB.
fn new_volume(dir: &Path, block: usize, features: &str) -> PathBuf {
    let path = dir.join(format!("volume-{block}"));
    run(
        Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext3", "-b", &block.to_string(), "-J", "size=4"])
            .args(["-O", features])
            .arg(&path)
            .arg("16M"),
        0,
    );
    path
}

fn debugfs(image: &Path, commands: &str) -> String {
    let script = image.with_extension("commands");
    std::fs::write(&script, commands).unwrap();
    run(Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(image), 0)
}

fn replay_with_e2fsck(image: &Path) {
    let text = run(Command::new("e2fsck").args(["-fy", "-E", "journal_only"]).arg(image), 1);
    assert!(!text.contains("rror"), "{text}");
}

fn open_inner_log(image: &[u8], block: usize) -> (Arc<MemoryDevice>, Log) {
    let blocks = journal_blocks(image, block);
    let device = memory(image);
    let map = LogMap::from_blocks(device.clone(), u32::try_from(block).unwrap(), &blocks).unwrap();
    (device, Log::open(map).unwrap())
}

fn replay_with_weft(device: &MemoryDevice, log: &mut Log, volume_blocks: u64) {
    let block = u64::from(log.map().block_bytes());
    let recovery = log
        .recover(volume_blocks, |nr, content: &[u8]| device.write_at(content, nr * block))
        .unwrap();
    log.reset(recovery.next_sequence).unwrap();
}

/// Blocks of two images that differ, without the journal's and the first (the superblock's).
fn differing(a: &[u8], b: &[u8], block: usize, skip: &[u64]) -> Vec<u64> {
    (0..a.len() / block)
        .filter(|&i| i > usize::from(block == 1024) && !skip.contains(&(i as u64)))
        .filter(|&i| a[i * block..(i + 1) * block] != b[i * block..(i + 1) * block])
        .map(|i| i as u64)
        .collect()
}

/// The first of some hundred blocks that are free and not the journal's.
fn free_block(block: usize) -> u64 {
    if block == 1024 { 9500 } else { 3500 }
}

/// A file of blocks of which the second begins with the journal's magic.
fn payload(dir: &Path, block: usize, tag: u8) -> PathBuf {
    let mut bytes: Vec<u8> = (0..3 * block).map(|i| tag ^ (i / block) as u8 ^ i as u8).collect();
    bytes[block..block + 4].copy_from_slice(&MAGIC.to_be_bytes());
    let path = dir.join(format!("payload-{tag}"));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn debugfs_writes_weft_replays_as_e2fsck_does() {
    if tools_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for block in [1024, 4096] {
        for (features, open) in [
            ("none,has_journal", "jo"),
            ("none,has_journal", "jo -c"),
            ("none,has_journal,metadata_csum", "jo -c -v 2"),
            ("none,has_journal,metadata_csum", "jo -c -v 3"),
        ] {
            let path = new_volume(dir.path(), block, features);
            let (first, second) = (payload(dir.path(), block, 17), payload(dir.path(), block, 99));
            let (first, second) = (first.display(), second.display());
            // The second is revoked after it was written, the third written anew after it was
            // revoked. The last transaction has no commit block.
            let [a, b, c, d, e, f, g, h] = std::array::from_fn(|i| free_block(block) + i as u64);
            let mut script = format!("{open}\n");
            let _ = writeln!(script, "jw -b {a},{b},{c} {first}");
            // With the old transaction checksum debugfs counts revoke blocks in, and e2fsck (as
            // the kernel) then calls what it wrote corrupt.
            let revoke = open != "jo -c";
            if revoke {
                let _ = writeln!(script, "jw -r {b},{c} {first}");
            }
            let _ = writeln!(script, "jw -b {c},{d},{e} {second}");
            let _ = writeln!(script, "jw -c -b {f},{g},{h} {first}");
            script.push_str("jc\n");
            debugfs(&path, &script);
            let image = std::fs::read(&path).unwrap();
            let (device, mut log) = open_inner_log(&image, block);
            assert!(log.needs_recovery());
            replay_with_weft(&device, &mut log, (image.len() / block) as u64);
            replay_with_e2fsck(&path);
            let theirs = std::fs::read(&path).unwrap();
            let ours = content(&device);
            let skip = journal_blocks(&image, block);
            assert_eq!(differing(&ours, &theirs, block, &skip), [0_u64; 0], "{block} {open}");
            assert_eq!(
                differing(&image, &ours, block, &skip),
                if revoke { vec![a, c, d, e] } else { vec![a, b, c, d, e] },
                "{block} {open}"
            );
        }
    }
}

/// Writes three transactions of ours into the log and marks the volume as needing recovery.
/// Returns the image and the blocks that must come out.
fn write_ours(
    image: &[u8],
    block: usize,
    features: Features,
    rotate: u32,
) -> (Vec<u8>, BTreeMap<u64, Vec<u8>>) {
    let (device, mut log) = open_inner_log(image, block);
    // The last numbers before they wrap, and a start near the end of the ring.
    let mut sequence = u32::MAX - 1;
    let mut at = log.superblock().advance(1, rotate);
    log.update(|s| {
        s.features = features;
        s.sequence = sequence;
        s.start = at;
    })
    .unwrap();
    let format = log.format();
    let block_of = |tag: u8, magic: bool| {
        let mut bytes = vec![tag; block];
        if magic {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        bytes
    };
    let mut want = BTreeMap::new();
    for step in 0..3_u8 {
        // More than one descriptor block's worth of copies in the first.
        let count = if step == 0 { 260 } else { 4 };
        let blocks: Vec<(u64, Vec<u8>)> = (0..count)
            .map(|i| (free_block(block) + i, block_of(step * 50 + i as u8, i % 7 == 2)))
            .collect();
        let revoked: Vec<u64> =
            if step == 1 { vec![free_block(block) + 10, free_block(block) + 11] } else { vec![] };
        for nr in &revoked {
            want.remove(nr);
        }
        let borrowed: Vec<(u64, &[u8])> = blocks.iter().map(|(n, b)| (*n, &b[..])).collect();
        let transaction = build_transaction(&format, sequence, &borrowed, &revoked).unwrap();
        at = log.write_ring(at, &transaction.blocks).unwrap();
        let time = CommitTime { seconds: 1_700_000_000 + u64::from(step), nanoseconds: 5 };
        let commit = commit_block(&format, sequence, transaction.crc, time);
        at = log.write_ring(at, &[commit]).unwrap();
        want.extend(blocks);
        sequence = sequence.wrapping_add(1);
    }
    let mut bytes = content(&device);
    bytes[1024 + 0x60] |= 4;
    (bytes, want)
}

fn our_features() -> Vec<Features> {
    let mut all = Vec::new();
    for incompat in [0, Features::BITS64, Features::CSUM_V2, Features::CSUM_V3] {
        all.push(Features { compat: 0, incompat: Features::REVOKE | incompat, ro_compat: 0 });
    }
    all.push(Features { compat: Features::COMPAT_CHECKSUM, ..Features::revoke() });
    all
}

fn check_replayed(image: &[u8], block: usize, want: &BTreeMap<u64, Vec<u8>>, what: &str) {
    for (nr, content) in want {
        let at = usize::try_from(*nr).unwrap() * block;
        assert!(image[at..at + block] == content[..], "{what}: block {nr} differs");
    }
    for nr in [10, 11].map(|i| free_block(block) + i) {
        let at = usize::try_from(nr).unwrap() * block;
        assert!(image[at..][..block].iter().all(|&b| b == 0), "{what}: {nr} was revoked");
    }
}

#[test]
fn weft_writes_e2fsck_replays() {
    if tools_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for block in [1024, 4096] {
        let path = new_volume(dir.path(), block, "filetype");
        let empty = std::fs::read(&path).unwrap();
        for features in our_features() {
            // 1023 ring blocks of 4 KiB or 4095 of 1 KiB: the second start wraps round.
            for rotate in [0, 900] {
                let (image, want) = write_ours(&empty, block, features, rotate);
                std::fs::write(&path, &image).unwrap();
                replay_with_e2fsck(&path);
                let what = format!("{block} {features:?} {rotate}");
                check_replayed(&std::fs::read(&path).unwrap(), block, &want, &what);
                let (device, mut log) = open_inner_log(&image, block);
                replay_with_weft(&device, &mut log, (image.len() / block) as u64);
                check_replayed(&content(&device), block, &want, &what);
            }
        }
    }
}

#[test]
fn weft_writes_the_kernel_replays() {
    if tools_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mountpoint = dir.path().join("m");
    std::fs::create_dir(&mountpoint).unwrap();
    for block in [1024, 4096] {
        let path = new_volume(dir.path(), block, "filetype");
        let empty = std::fs::read(&path).unwrap();
        for features in our_features() {
            let (image, want) = write_ours(&empty, block, features, 900);
            std::fs::write(&path, &image).unwrap();
            let mount = Command::new("mount")
                .args(["-t", "ext3", "-o", "loop"])
                .arg(&path)
                .arg(&mountpoint)
                .output();
            if !mount.as_ref().is_ok_and(|out| out.status.success()) {
                println!("skipped: cannot mount here: {mount:?}");
                return;
            }
            run(Command::new("umount").arg(&mountpoint), 0);
            let what = format!("{block} {features:?}");
            check_replayed(&std::fs::read(&path).unwrap(), block, &want, &what);
        }
    }
}

#[test]
fn external_journals_of_mke2fs_are_understood() {
    if tools_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for block in ["1024", "4096"] {
        let path = dir.path().join("journal");
        run(
            Command::new("mke2fs")
                .args(["-q", "-F", "-O", "journal_dev", "-b", block])
                .args(["-U", "01020304-0506-0708-090a-0b0c0d0e0f10"])
                .arg(&path)
                .arg("8M"),
            0,
        );
        let device = memory(&std::fs::read(&path).unwrap());
        let (map, uuid) = LogMap::external(device).unwrap();
        assert_eq!(uuid, std::array::from_fn(|i| i as u8 + 1));
        assert_eq!(map.block_bytes().to_string(), block);
        let log = Log::open(map).unwrap();
        assert!(!log.needs_recovery());
        assert_eq!(log.superblock().first, log.map().superblock_at() + 1);
        let recovery = log.recover(1, |_, _: &[u8]| Ok::<(), Infallible>(())).unwrap();
        assert_eq!(recovery.transactions, 0);
    }
}
