//! The check and the repair, with e2fsck as the judge.

use crate::images::{index, make_image};
use crate::tools::{assert_clean, e2fsck, have_e2fsprogs, run};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, MemoryDevice, OpenMode, Rng};
use weft_ext2::fsck::{
    InodeProblem, Options, Problem, Repair, Report, Severity, Unattached, check, find_leaks,
};
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_vfs::path::Tree;
use weft_vfs::{FileKind, FileSystem, Walker};

// Without locks: a tool another test has just started shares our open files until it runs.
const READ: OpenMode = OpenMode { read_only: true, lock: false };
const WRITE: OpenMode = OpenMode { read_only: false, lock: false };

fn look(image: &Path) -> weft_ext2::Result<Report> {
    check(&FileDevice::open(image, READ).unwrap(), &Options::default())
}

fn repair(image: &Path) -> weft_ext2::Result<Report> {
    let device = FileDevice::open(image, WRITE).unwrap();
    check(&device, &Options { time: Some(1_700_000_000), ..Options::repair() })
}

fn debugfs(image: &Path, commands: &str) {
    let script = image.with_extension("commands");
    std::fs::write(&script, commands).unwrap();
    let (text, status) = run(Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(image));
    assert_eq!(status, 0, "{text}");
}

#[test]
fn clean_volumes_are_clean() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (kind, block, inode, size) in [
        ("ext2", 1024, 128, "3M"),
        ("ext2", 1024, 256, "3M"),
        ("ext3", 1024, 256, "6M"),
        ("ext2", 2048, 256, "6M"),
        ("ext2", 4096, 256, "12M"),
        ("ext3", 4096, 128, "20M"),
    ] {
        let image = make_image(dir.path(), kind, block, inode, size);
        assert_clean(&image, "mke2fs -d");
        let report = look(&image).unwrap();
        assert_eq!(report.problems, [], "{kind} {block} {inode}");
        assert_eq!(report.directories, 7, "{kind} {block} {inode}");
        let (text, _) = run(Command::new("e2fsck").arg("-fn").arg(&image));
        let summary = format!(" {}/{} files", report.inodes_used, report.inodes);
        assert!(text.contains(&summary), "{summary} is not in {text}");
        let summary = format!(" {}/{} blocks", report.blocks_used, report.blocks);
        assert!(text.contains(&summary), "{summary} is not in {text}");
        index(&image);
        assert_eq!(look(&image).unwrap().problems, [], "{kind} {block} {inode}, indexed");
    }
    for options in [MkfsOptions::ext2(), MkfsOptions::ext3()] {
        let device = MemoryDevice::new(40 << 20);
        mkfs(&device, &options).unwrap();
        assert_eq!(check(&device, &Options::default()).unwrap().problems, []);
    }
}

/// Each damage of a clean volume, and how bad it must be found to be.
const DAMAGES: &[(&str, Severity)] = &[
    // Leaks.
    ("setb 2000 5", Severity::Leak),
    ("seti <200>", Severity::Leak),
    ("unlink small\nunlink a/hard-link", Severity::Leak),
    ("unlink a/b/c/zero", Severity::Leak),
    ("sif a/b/c/zero links_count 0\nunlink a/b/c/zero", Severity::CountOff),
    ("ssv last_orphan 12", Severity::Leak),
    // A directory that was being made or removed looks like this under soft updates.
    ("unlink a/b", Severity::CountOff),
    // Counts that say too much or lag.
    ("sif small links_count 7", Severity::CountOff),
    ("sif <2> links_count 50", Severity::CountOff),
    ("sif a/indirect blocks 10", Severity::CountOff),
    ("sif a/indirect blocks 500", Severity::CountOff),
    ("sif a/b/double size 1000", Severity::CountOff),
    ("sif many size 1024", Severity::CountOff),
    ("sif small dtime 1000000", Severity::CountOff),
    ("ssv free_blocks_count 3", Severity::CountOff),
    ("ssv free_inodes_count 3", Severity::CountOff),
    ("set_bg 0 free_blocks_count 1", Severity::CountOff),
    ("set_bg 0 free_inodes_count 1", Severity::CountOff),
    ("set_bg 0 used_dirs_count 1", Severity::CountOff),
    // Corruption.
    ("freeb 300 4", Severity::Corruption),
    ("freei small", Severity::Corruption),
    ("clri small", Severity::Corruption),
    ("clri a", Severity::Corruption),
    ("clri a/b", Severity::Corruption),
    ("sif small links_count 1", Severity::Corruption),
    ("sif small mode 0", Severity::Corruption),
    ("sif small mode 0170644", Severity::Corruption),
    ("sif small size 0x7000000000000000", Severity::Corruption),
    ("sif many size 1000", Severity::Corruption),
    ("sif many size 100000", Severity::Corruption),
    ("sif small block[0] 0xffffffff", Severity::Corruption),
    ("sif small block[0] 1", Severity::Corruption),
    ("sif small block[0] 2", Severity::Corruption),
    ("sif small block[3] 3", Severity::Corruption),
    ("sif a/indirect block[IND] 0x7fffffff", Severity::Corruption),
    ("sif a/indirect block[IND] 4", Severity::Corruption),
    ("sif a/b/double block[DIND] 99999999", Severity::Corruption),
    ("sif a/b/double block[TIND] 99999999", Severity::Corruption),
    ("sif many block[0] 0", Severity::Corruption),
    ("sif many block[1] 0", Severity::Corruption),
    ("sif empty block[0] 0", Severity::Corruption),
    ("sif small file_acl 5", Severity::Corruption),
    ("sif small file_acl 0xfffffff", Severity::Corruption),
    ("sif small faddr 5", Severity::Corruption),
    ("sif fast-link size 30", Severity::Corruption),
    ("sif fast-link size 0", Severity::Corruption),
    ("sif slow-link size 100", Severity::Corruption),
    ("sif slow-link flags 0x800", Severity::Corruption),
    ("sif fifo size 7", Severity::Corruption),
    ("sif null flags 0x1000", Severity::Corruption),
    ("sif small flags 0x80000", Severity::Corruption),
    ("sif small flags 0x10000000", Severity::Corruption),
    ("link small a/second", Severity::Corruption),
    ("link a empty/again\nsif a links_count 4", Severity::CountOff),
    ("link a empty/again", Severity::Corruption),
    ("link a a/b/c/loop\nunlink a", Severity::Corruption),
    ("unlink a/b/c/zero\nln empty a/b/c/x", Severity::Corruption),
    ("link <9> a/reserved", Severity::Corruption),
    ("link <2> a/root", Severity::Corruption),
    ("link <230> a/free", Severity::Corruption),
    ("sif <8> block[0] 1500", Severity::Corruption),
    ("sif <6> mode 0100600", Severity::Corruption),
    ("sif <7> block[DIND] 0", Severity::Corruption),
    ("sif <7> block[0] 1500", Severity::Corruption),
    ("sif <7> mode 0", Severity::Corruption),
    ("set_bg 0 block_bitmap 0", Severity::Corruption),
    ("set_bg 0 inode_bitmap 9999", Severity::Corruption),
    ("set_bg 0 inode_table 2", Severity::Corruption),
    ("ssv r_blocks_count 2900", Severity::Corruption),
    ("feature -resize_inode", Severity::Corruption),
    ("feature -ext_attr", Severity::Corruption),
    ("feature -filetype", Severity::Corruption),
    ("feature needs_recovery", Severity::Corruption),
];

#[test]
fn every_damage_is_found_and_repaired() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let clean = make_image(dir.path(), "ext2", 1024, 256, "3M");
    let image = dir.path().join("damaged.img");
    let mut wrong = Vec::new();
    for (damage, severity) in DAMAGES {
        std::fs::copy(&clean, &image).unwrap();
        debugfs(&image, damage);
        if std::fs::read(&image).unwrap() == std::fs::read(&clean).unwrap() {
            wrong.push(format!("{damage:?} changed nothing"));
        }
        let (said, _) = e2fsck(&image);
        let report = look(&image).unwrap_or_else(|e| panic!("{damage:?}: {e}"));
        if report.worst() != Some(*severity) {
            wrong.push(format!(
                "{damage:?} is not {severity}: {:?}; e2fsck: {said:?}",
                report.problems
            ));
        }
        let report = repair(&image).unwrap();
        let (said, status) = e2fsck(&image);
        if !report.is_clean() || status != 0 || !said.is_empty() {
            wrong.push(format!(
                "{damage:?}, repaired of {:?}, leaves {:?}; e2fsck: {said:?}",
                report.problems, report.remaining
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_superblock_is_restored_from_its_backup() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "20M");
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[1024..2048].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    let error = look(&image).unwrap_err().to_string();
    assert!(error.contains("backup in block 8193"), "{error}");
    let report = repair(&image).unwrap();
    assert!(report.is_clean(), "{:?}", report.remaining);
    assert_clean(&image, "restored");
}

#[test]
fn lost_descriptors_are_restored_from_their_backup() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "20M");
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[2048..2048 + 64].fill(0xff);
    std::fs::write(&image, &bytes).unwrap();
    let report = repair(&image).unwrap();
    assert!(report.is_clean(), "{:?}", report.remaining);
    assert_clean(&image, "restored");
}

#[test]
fn a_journal_is_replayed_in_memory_by_a_check_and_on_disk_by_a_repair() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let clean = make_image(dir.path(), "ext3", 1024, 256, "6M");
    let image = dir.path().join("journaled.img");
    std::fs::copy(&clean, &image).unwrap();
    // The root directory's block, taken away on disk and kept in the journal.
    let (text, _) = run(Command::new("debugfs").args(["-R", "blocks <2>"]).arg(&image));
    let root: usize =
        text.split_whitespace().find_map(|word| word.parse().ok()).expect("a block number");
    let block = dir.path().join("block");
    let bytes = std::fs::read(&image).unwrap();
    std::fs::write(&block, &bytes[root * 1024..(root + 1) * 1024]).unwrap();
    debugfs(&image, &format!("jo\njw -b {root} {}\njc\n", block.display()));
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[root * 1024..(root + 1) * 1024].fill(0);
    std::fs::write(&image, &bytes).unwrap();

    let report = look(&image).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.journal.unwrap().blocks_replayed, 1);
    assert!(std::fs::read(&image).unwrap() == bytes, "a check changed the volume");
    let report = repair(&image).unwrap();
    assert!(report.is_clean() && report.journal.is_some());
    assert_clean(&image, "replayed");
    assert!(look(&image).unwrap().journal.is_none());
}

#[test]
fn leaks_are_listed_as_of_the_crash() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    let device = || FileDevice::open(&image, READ).unwrap();
    assert!(find_leaks(&device()).unwrap().is_empty());
    debugfs(
        &image,
        "setb 2000 5\nseti <200>\nunlink a/b/double\nsif fifo links_count 4\n\
         sif a/indirect blocks 10\nunlink empty\n",
    );
    let leaks = find_leaks(&device()).unwrap();
    assert_eq!(leaks.blocks, [(2000, 5)]);
    assert_eq!(leaks.inodes, [200]);
    assert_eq!(leaks.unattached.len(), 1);
    assert_eq!(leaks.directories.len(), 1);
    // The root counts the directory without a name.
    assert_eq!(leaks.excess_links.len(), 2);
    assert_eq!((leaks.excess_links[0], leaks.excess_links[1].1), ((2, 1), 3));
    assert_eq!(leaks.sectors.len(), 1);
    assert_eq!(leaks.corruption, []);
    // A repair that frees instead of reattaching leaves nothing in lost+found.
    let how = Repair { unattached: Unattached::Free };
    let device = FileDevice::open(&image, WRITE).unwrap();
    let report = check(&device, &Options { repair: Some(how), ..Options::default() }).unwrap();
    assert!(report.is_clean(), "{:?}", report.remaining);
    drop(device);
    assert_clean(&image, "freed");
    let (text, _) = run(Command::new("debugfs").args(["-R", "ls lost+found"]).arg(&image));
    assert!(!text.contains('#'), "{text}");
}

#[test]
fn files_come_back_from_a_lost_directory() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    debugfs(&image, "clri many");
    let report = repair(&image).unwrap();
    assert!(report.is_clean(), "{:?}", report.remaining);
    assert_clean(&image, "reattached");
    let (text, _) = run(Command::new("debugfs").args(["-R", "ls -l lost+found"]).arg(&image));
    // Those without content are not kept.
    assert_eq!(text.matches('#').count(), 80, "{text}");
}

#[test]
fn a_hash_tree_of_two_levels_is_followed() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("many")).unwrap();
    for i in 0..6000 {
        std::fs::write(tree.join(format!("many/a-name-of-thirty-characters-{i}")), b"").unwrap();
    }
    let image = dir.path().join("indexed.img");
    let (text, status) = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext2", "-b", "1024", "-N", "6100", "-d"])
        .arg(&tree)
        .arg(&image)
        .arg("12M"));
    assert_eq!(status, 0, "{text}");
    index(&image);
    assert_clean(&image, "indexed");
    assert_eq!(look(&image).unwrap().problems, []);
    let (text, _) = run(Command::new("debugfs").args(["-R", "htree_dump many"]).arg(&image));
    assert!(text.contains("Indirect levels: 1"), "{text}");
    // A hash of the root, one of a node, a pointer of the root, the number of a root's entries.
    let blocks = blocks_of(&image, "many");
    let bytes = std::fs::read(&image).unwrap();
    let le32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let node = (0..blocks.len())
        .map(|i| blocks[i] * 1024)
        .find(|&at| le32(at) == 0 && bytes[at + 4..at + 6] == [0, 4])
        .unwrap();
    let root = blocks[0] * 1024;
    // (e2fsck does not compare the root's hashes with the names two levels below.)
    for at in [root + 0x28 + 3, node + 16 + 3, root + 0x24 + 1, root + 0x22 + 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x35;
        std::fs::write(&image, &damaged).unwrap();
        assert!(at == root + 0x28 + 3 || e2fsck(&image).1 != 0, "{at:#x}");
        let report = look(&image).unwrap();
        assert_eq!(report.worst(), Some(Severity::Corruption), "{at:#x}: {:?}", report.problems);
        assert!(repair(&image).unwrap().is_clean());
        assert_clean(&image, "repaired");
    }
}

#[test]
fn files_that_were_being_cut_lose_their_tail_and_lost_ones_get_new_names() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext3", 1024, 256, "6M");
    let number = |path: &str| {
        let request = format!("stat {path}");
        let (text, _) = run(Command::new("debugfs").args(["-R", &request]).arg(&image));
        text.split_whitespace().nth(1).unwrap().to_owned()
    };
    let (cut, lost) = (number("a/b/double"), number("small"));
    // Cut to 100,000 bytes, but for its blocks; and a name in lost+found that is in the way.
    debugfs(
        &image,
        &format!(
            "sif a/b/double size 100000\nssv last_orphan {cut}\nsif a/indirect links_count 2\n\
             ln a/indirect lost+found/#{lost}\nunlink small\nunlink a/hard-link\n"
        ),
    );
    let report = repair(&image).unwrap();
    assert!(report.is_clean(), "{:?}", report.remaining);
    assert_clean(&image, "cut");
    let (text, _) = run(Command::new("debugfs").args(["-R", "stat a/b/double"]).arg(&image));
    assert!(text.contains("Size: 100000"), "{text}");
    let (text, _) = run(Command::new("debugfs").args(["-R", "ls lost+found"]).arg(&image));
    assert!(text.contains(&format!("#{lost}-1")), "{text}");
}

#[test]
fn truncated_and_absurd_volumes_are_refused() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    let bytes = std::fs::read(&image).unwrap();
    let device = |len: usize| {
        let device = MemoryDevice::new(len as u64);
        device.write_at(&bytes[..len], 0).unwrap();
        device
    };
    for len in [0, 1024, 1500, 2048, 100_000, bytes.len() - 1024] {
        assert!(check(&device(len), &Options::default()).is_err(), "{len}");
        assert!(check(&device(len), &Options::repair()).is_err(), "{len}");
    }
}

/// Where a random change lands: blocks of metadata mostly.
fn mutate(bytes: &mut [u8], block: usize, random: &mut Rng, metadata: &[usize]) -> String {
    let mut what = String::new();
    for _ in 0..=random.below(3) {
        let at = random.pick(metadata).unwrap() * block
            + usize::try_from(random.below(block as u64)).unwrap();
        let old = bytes[at];
        bytes[at] = match random.below(4) {
            0 => old ^ (1 << random.below(8)),
            1 => 0,
            2 => 0xff,
            _ => u8::try_from(random.below(256)).unwrap(),
        };
        what.push_str(&format!("[{at:#x}] {old:#x} -> {:#x}; ", bytes[at]));
    }
    what
}

/// The blocks of a file, indirect ones among them.
fn blocks_of(image: &Path, name: &str) -> Vec<usize> {
    let (text, _) = run(Command::new("debugfs").args(["-R", &format!("blocks {name}")]).arg(image));
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    line.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Blocks that hold metadata in use, some of them several times so that they are hit more often.
fn metadata_blocks(image: &Path, block: usize) -> Vec<usize> {
    let mut blocks = Vec::new();
    let first = usize::from(block == 1024);
    // Descriptors, bitmaps, the used part of the inode table.
    let (text, _) = run(Command::new("debugfs").args(["-R", "stats"]).arg(image));
    let number = |label: &str| -> usize {
        let rest = &text[text.find(label).unwrap() + label.len()..];
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    blocks.push(first + 1);
    blocks.push(number("block bitmap at"));
    blocks.push(number("inode bitmap at"));
    let table = number("inode table at");
    for i in 0..40 * 1024 / block {
        blocks.push(table + i);
    }
    for name in ["<2>", "a", "a/b", "many", "lost+found", "<8>"] {
        let listed = blocks_of(image, name);
        assert!(!listed.is_empty() || name == "<8>", "{name}");
        blocks.extend(listed.into_iter().take(6));
    }
    for (name, skip) in [("a/indirect", 12), ("a/b/double", 12), ("a/indirect", 0)] {
        blocks.extend(blocks_of(image, name).get(skip));
    }
    blocks
}

/// One random change judged by both. `None`: they agree.
/// Looks at all that a mount would show of a volume that a check found clean: names, attributes,
/// and both ends of each file, as one may be as long as the format allows, and nothing but a hole.
fn walk(image: &Path) -> weft_vfs::Result<usize> {
    let bytes = std::fs::read(image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(&bytes, 0).unwrap();
    let fs = Ext2::open(Arc::new(device), OpenOptions::default()).map_err(weft_vfs::Error::from)?;
    let mut found = 0;
    for item in Tree::new(Walker::new(&*fs).root()?) {
        let node = item?.node;
        for name in fs.listxattr(node.ino())? {
            fs.getxattr(node.ino(), &name)?;
        }
        match node.kind() {
            FileKind::Symlink => drop(node.readlink()?),
            FileKind::Regular => {
                let len_bytes = node.attr().size_bytes;
                for offset in [0, len_bytes.saturating_sub(4096)] {
                    node.read_at(offset, &mut [0; 4096])?;
                }
            }
            _ => {}
        }
        found += 1;
    }
    Ok(found)
}

fn disagreement(image: &Path, what: &str) -> Option<String> {
    let (said, status) = e2fsck(image);
    let ours = look(image);
    let theirs_clean = status == 0;
    let ours_clean = ours.as_ref().is_ok_and(Report::is_clean);
    let mut text = match (ours_clean, theirs_clean) {
        (true, false) => format!("{what}: e2fsck alone: {said:?}"),
        (false, true) => format!("{what}: weft alone: {ours:?}"),
        (true, true) => match walk(image) {
            Ok(_) => String::new(),
            Err(e) => format!("{what}: called clean: {e}"),
        },
        (false, false) => String::new(),
    };
    if let Ok(report) = repair(image)
        && report.is_clean()
    {
        if let Err(e) = walk(image) {
            text.push_str(&format!("{what}: after repair of {:?}: {e}", report.problems));
        }
        let (said, status) = e2fsck(image);
        if status != 0 {
            text.push_str(&format!("{what}: after repair of {:?}: {said:?}", report.problems));
        }
    }
    (!text.is_empty()).then_some(text)
}

fn differential(rounds: u64, seed: u64) -> (u64, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Rng::new(seed);
    let mut apart = Vec::new();
    let mut damaged = 0;
    let images: Vec<_> = [
        ("ext2", 1024, 256, "3M"),
        ("ext2", 1024, 128, "3M"),
        ("ext2", 4096, 256, "12M"),
        ("ext3", 1024, 256, "6M"),
    ]
    .into_iter()
    .map(|(kind, block, inode, size)| {
        let path = make_image(dir.path(), kind, block, inode, size);
        if inode == 128 {
            index(&path);
        }
        let metadata = metadata_blocks(&path, block as usize);
        (std::fs::read(&path).unwrap(), block as usize, metadata)
    })
    .collect();
    let image = dir.path().join("mutated.img");
    for round in 0..rounds {
        let (bytes, block, metadata) = &images[usize::try_from(round).unwrap() % images.len()];
        let mut bytes = bytes.clone();
        let what = mutate(&mut bytes, *block, &mut random, metadata);
        std::fs::write(&image, &bytes).unwrap();
        damaged += u64::from(!look(&image).is_ok_and(|report| report.is_clean()));
        apart.extend(disagreement(&image, &format!("round {round}, {block}: {what}")));
    }
    (damaged, apart)
}

#[test]
fn random_damage_is_judged_as_e2fsck_judges_it() {
    if !have_e2fsprogs() {
        return;
    }
    let rounds = std::env::var("WEFT_DIFFERENTIAL_ROUNDS").ok().and_then(|n| n.parse().ok());
    let (damaged, apart) = differential(rounds.unwrap_or(300), 20_260_721);
    for text in &apart {
        println!("{text}");
    }
    assert!(damaged > 100, "only {damaged} volumes were damaged");
    assert!(apart.is_empty(), "{} disagreements", apart.len());
}

#[test]
fn reserved_inodes_are_judged_as_e2fsck_judges_them() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut apart = Vec::new();
    for ino in [3, 4, 5, 6, 8, 9, 10] {
        for field in [
            "size 0x500",
            "size 0xffffffffffffff",
            "file_acl 500",
            "flags 0x1000",
            "flags 0x80000",
            "flags 0x10000000",
            "flags 0x40000000",
            "blocks 7",
            "links_count 1",
        ] {
            let image = dir.path().join("image");
            let options = MkfsOptions { uuid: Some([1; 16]), ..MkfsOptions::ext2() };
            let device = FileDevice::create(&image, 4 << 20).unwrap();
            mkfs(&device, &options).unwrap();
            drop(device);
            let what = format!("set_inode_field <{ino}> {field}");
            debugfs(&image, &what);
            apart.extend(disagreement(&image, &what));
            std::fs::remove_file(&image).unwrap();
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}

/// For hours: `WEFT_LONG_SECONDS`, shared with the other campaigns.
#[test]
#[ignore = "a campaign"]
fn long_random_damage() {
    if !have_e2fsprogs() {
        return;
    }
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|n| n.parse::<u64>().ok());
    let time = std::time::Duration::from_secs(seconds.unwrap_or(60) / 8);
    let (began, mut seed) = (std::time::Instant::now(), 0);
    while began.elapsed() < time {
        let (_, apart) = differential(100, seed);
        assert!(apart.is_empty(), "seed {seed}: {}", apart.join("\n"));
        seed += 1;
    }
    println!("{} volumes", seed * 100);
}

#[test]
fn hostile_volumes_are_survived() {
    // The same image mutated wildly, without a judge: no panic, no hang, nothing written by a
    // check, and a repair that says it is clean is believed by a check.
    let device = MemoryDevice::new(4 << 20);
    mkfs(&device, &MkfsOptions { uuid: Some([1; 16]), time: Some(1), ..MkfsOptions::ext3() })
        .unwrap();
    let clean = device.snapshot();
    let mut random = Rng::new(99);
    for _ in 0..400 {
        let device = MemoryDevice::from_image(clean.clone());
        for _ in 0..=random.below(60) {
            let at = random.below(600 * 1024);
            let len = usize::try_from(1 + random.below(8)).unwrap();
            let value = *random.pick(&[0, 1, 0x7f, 0x80, 0xff]).unwrap();
            device.write_at(&vec![value; len], at).unwrap();
        }
        let before = device.snapshot();
        let _ = check(&device, &Options::default());
        assert!(device.snapshot().pages_apart(&before).is_empty());
        if let Ok(report) = check(&device, &Options::repair())
            && report.is_clean()
        {
            let again = check(&device, &Options::default()).unwrap();
            assert_eq!(again.problems, []);
        }
    }
}

#[test]
fn problems_name_the_structure_and_the_fault() {
    let text = Problem::Inode {
        ino: 12,
        problem: InodeProblem::Size { found: 5, expected: 1024, lags: true },
    }
    .to_string();
    assert_eq!(text, "inode 12: i_size is 5, should be 1024");
    let text = Problem::BlockBitmap { first: 5, len: 3, leaked: true }.to_string();
    assert_eq!(text, "block bitmap: blocks 5 to 7 marked in use, but free");
}

/// Descriptors in each of several meta groups: checked as e2fsck does, and taken from their copies.
#[test]
fn meta_groups_are_checked_and_repaired() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    crate::images::make_tree(&tree);
    let image = dir.path().join("image");
    let (text, status) = run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext2", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode"])
        .arg("-d")
        .arg(&tree)
        .arg(&image)
        .arg("36M"));
    assert_eq!(status, 0, "{text}");
    assert_clean(&image, "mke2fs -d");
    let report = look(&image).unwrap();
    assert_eq!(report.problems, []);
    let (text, _) = run(Command::new("e2fsck").arg("-fn").arg(&image));
    let summary = format!(" {}/{} blocks", report.blocks_used, report.blocks);
    assert!(text.contains(&summary), "{summary} is not in {text}");

    // The counts of the first meta group, and all descriptors of the second and the last one.
    let sb =
        weft_ext2::layout::Superblock::parse(&std::fs::read(&image).unwrap()[1024..2048]).unwrap();
    let geometry = sb.geometry();
    assert_eq!(geometry.desc_blocks(), 3);
    {
        let device = FileDevice::open(&image, WRITE).unwrap();
        let (block, offset) = geometry.desc_position(5);
        let at = block * 1024 + offset as u64;
        device.write_at(&[9, 0], at + 0x0C).unwrap();
        for index in [1, 2] {
            device.write_at(&[0xFF; 1024], geometry.desc_block(index) * 1024).unwrap();
        }
    }
    let problems = look(&image).unwrap().problems;
    let damaged = problems.iter().filter(|p| matches!(p, Problem::GroupDescriptor { .. })).count();
    assert_eq!(damaged, geometry.groups as usize - 32, "{problems:?}");
    repair(&image).unwrap();
    repair(&image).unwrap();
    assert_clean(&image, "repaired");
    assert_eq!(look(&image).unwrap().problems, []);
}
