//! New volumes, judged by e2fsck and the kernel.

use crate::tools::{assert_clean, have_e2fsprogs, run, unmount};
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_block::{FileDevice, MemoryDevice, Rng};
use weft_ext2::Error;
use weft_ext2::layout::{Features, Superblock};
use weft_ext2::mkfs::{
    Journal, JournalDeviceOptions, MkfsOptions, Report, Revision, format_journal_device, mkfs,
};

fn make(path: &Path, len_bytes: u64, options: &MkfsOptions) -> Result<Report, Error> {
    let _ = std::fs::remove_file(path);
    let device = FileDevice::create(path, len_bytes).unwrap();
    mkfs(&device, options)
}

fn fixed() -> MkfsOptions {
    MkfsOptions { uuid: Some([7; 16]), time: Some(1_700_000_000), ..MkfsOptions::ext2() }
}

fn image(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("volume.img")
}

#[test]
fn every_size_is_clean() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let kib = 1024;
    let mib = 1024 * kib;
    for block in [1024, 2048, 4096] {
        for len in [
            64 * kib,
            100 * kib + 700,
            360 * kib,
            8 * mib,
            8 * mib + kib,
            8 * mib + 90 * kib,
            33 * mib,
            129 * mib,
            600 * mib,
            3000 * mib,
        ] {
            for base in [MkfsOptions::ext2(), MkfsOptions::ext3()] {
                if base.journal.is_some() && len < 2048 * u64::from(block) {
                    continue;
                }
                let options = MkfsOptions { block_bytes: Some(block), ..base };
                let what = format!("{len} bytes, blocks of {block}");
                let report = make(&path, len, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_clean(&path, &format!("{what}, {report:?}"));
            }
        }
    }
}

#[test]
fn groups_have_the_blocks_that_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    for (block, per_group) in [(1024, 256), (1024, 512), (1024, 8192), (4096, 256), (4096, 8000)] {
        for base in [MkfsOptions::ext2(), MkfsOptions::ext3()] {
            let options =
                MkfsOptions { block_bytes: Some(block), blocks_per_group: Some(per_group), ..base };
            let report = make(&path, 100 << 20, &options).unwrap();
            let blocks = report.blocks - u32::from(block == 1024);
            assert_eq!(report.groups, blocks.div_ceil(per_group), "{per_group}");
            if !have_e2fsprogs() {
                continue;
            }
            assert_clean(&path, &format!("{per_group} blocks of {block} per group"));
            let (text, _) = run(Command::new("dumpe2fs").arg("-h").arg(&path));
            let line = format!("Blocks per group:         {per_group}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
    for (block, per_group) in [(1024, 0), (1024, 248), (1024, 257), (1024, 8200), (4096, 32_776)] {
        let options = MkfsOptions {
            block_bytes: Some(block),
            blocks_per_group: Some(per_group),
            ..MkfsOptions::ext2()
        };
        let refused = make(&path, 100 << 20, &options);
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("multiple of 8")));
    }
}

#[test]
fn random_options_are_clean() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut random = Rng::new(20_260_721);
    let mut made = 0;
    for round in 0..150 {
        let mut options = fixed();
        options.block_bytes = Some(*random.pick(&[1024, 2048, 4096]).unwrap());
        options.inode_bytes = Some(*random.pick(&[128, 256, 512]).unwrap());
        options.bytes_per_inode =
            *random.pick(&[None, Some(1024), Some(4096), Some(65_536)]).unwrap();
        options.inodes = *random.pick(&[None, None, None, Some(1), Some(100), Some(5000)]).unwrap();
        options.blocks_per_group = *random.pick(&[None, None, Some(256), Some(4088)]).unwrap();
        options.reserved_percent = *random.pick(&[0.0, 1.5, 5.0, 50.0]).unwrap();
        options.journal_checksums = random.below(2) == 0;
        if random.below(8) == 0 {
            options.revision = Revision::GoodOld;
            options.inode_bytes = Some(128);
        } else {
            for feature in ["resize_inode", "dir_index", "filetype", "ext_attr", "large_file"] {
                if random.below(3) == 0 {
                    options.set_features(&format!("^{feature}")).unwrap();
                }
            }
            if random.below(4) == 0 {
                options.set_features("^resize_inode,^sparse_super").unwrap();
            }
            if random.below(3) == 0 {
                let len_bytes = *random.pick(&[None, Some(1024 * 4096), Some(6 << 20)]).unwrap();
                options.journal = Some(Journal::Internal { len_bytes });
            }
        }
        let most = 1 << (17 + random.below(13));
        let len = 65_536 + random.below(most);
        let what = format!("round {round}: {len} bytes, {options:?}");
        match make(&path, len, &options) {
            Ok(report) => {
                made += 1;
                assert_clean(&path, &format!("{what}: {report:?}"));
            }
            Err(Error::Invalid(why)) => assert!(
                why.contains("too few") || why.contains("journal"),
                "{what}: refused: {why}"
            ),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    assert!(made > 75, "only {made} volumes were made");
}

#[test]
fn the_same_options_make_the_same_bytes() {
    let image = || {
        let device = MemoryDevice::new(20 << 20);
        mkfs(&device, &MkfsOptions { journal: MkfsOptions::ext3().journal, ..fixed() }).unwrap();
        let mut bytes = vec![0; 20 << 20];
        device.snapshot().read(&mut bytes, 0).unwrap();
        bytes
    };
    let (first, second) = (image(), image());
    let apart: Vec<usize> = (0..first.len()).filter(|&i| first[i] != second[i]).collect();
    assert!(apart.is_empty(), "{apart:?}");
}

#[test]
fn old_content_does_not_shine_through() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    for options in [MkfsOptions::ext3(), MkfsOptions { discard: false, ..MkfsOptions::ext3() }] {
        std::fs::write(&path, vec![0xa5; 24 << 20]).unwrap();
        let device = FileDevice::open(&path, weft_block::OpenMode::READ_WRITE).unwrap();
        mkfs(&device, &options).unwrap();
        drop(device);
        assert_clean(&path, "over old content");
    }
}

#[test]
fn options_arrive() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut options = MkfsOptions {
        block_bytes: Some(2048),
        inode_bytes: Some(128),
        inodes: Some(4000),
        label: b"backup disk".to_vec(),
        reserved_percent: 10.0,
        root_uid: 70_000,
        root_gid: 8,
        journal: Some(Journal::Internal { len_bytes: Some(3 << 20) }),
        len_bytes: Some(40 << 20),
        ..fixed()
    };
    options.set_features("^dir_index").unwrap();
    let report = make(&path, 50 << 20, &options).unwrap();
    assert_eq!(report.blocks, 40 << 9);
    assert_eq!(report.reserved_blocks, 4 << 9);
    assert_eq!(report.journal_blocks, 1536);
    let (text, _) = run(Command::new("dumpe2fs").arg("-h").arg(&path));
    for line in [
        "Filesystem volume name:   backup disk",
        "Filesystem UUID:          07070707-0707-0707-0707-070707070707",
        "has_journal ext_attr resize_inode filetype sparse_super large_file",
        "Block size:               2048",
        "Inode size:\t          128",
        "Reserved block count:     2048",
        "Total journal size:       3072k",
        "Journal backup:           inode blocks",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let (text, _) = run(Command::new("debugfs").args(["-R", "stat <2>"]).arg(&path));
    assert!(text.contains("70000") && text.contains("Mode:  0755"), "{text}");
    assert_clean(&path, "options");
}

#[test]
fn contradictions_are_refused_and_nothing_is_written() {
    type Change = fn(&mut MkfsOptions);
    let cases: &[(u64, Change)] = &[
        (10 << 20, |o| o.block_bytes = Some(8192)),
        (10 << 20, |o| o.block_bytes = Some(1500)),
        (10 << 20, |o| o.inode_bytes = Some(192)),
        (10 << 20, |o| o.inode_bytes = Some(2048)),
        (10 << 20, |o| o.bytes_per_inode = Some(0)),
        (10 << 20, |o| o.reserved_percent = 51.0),
        (10 << 20, |o| o.reserved_percent = f64::NAN),
        (10 << 20, |o| o.label = vec![b'a'; 17]),
        (10 << 20, |o| o.len_bytes = Some(11 << 20)),
        (10 << 20, |o| o.journal = Some(Journal::Internal { len_bytes: Some(1 << 19) })),
        (10 << 20, |o| o.journal = Some(Journal::Internal { len_bytes: Some(9 << 20) })),
        (1 << 20, |o| o.journal = Some(Journal::Internal { len_bytes: None })),
        (10 << 20, |o| {
            o.revision = Revision::GoodOld;
            o.inode_bytes = Some(256);
        }),
        (10 << 20, |o| o.features = Features::by_name("extent").unwrap()),
        (4096, |_| ()),
        (0, |_| ()),
        (20_000, |o| o.inodes = Some(1000)),
    ];
    for (i, (len, change)) in cases.iter().enumerate() {
        let mut options = fixed();
        change(&mut options);
        let device = MemoryDevice::new(*len);
        let result = mkfs(&device, &options);
        assert!(matches!(result, Err(Error::Invalid(_))), "case {i}: {result:?}");
        assert_eq!(device.snapshot().pages().count(), 0, "case {i} wrote");
    }
    assert!(fixed().set_features("nonsense").is_err());
    assert!(fixed().set_features("64bit").is_err());
}

#[test]
fn a_half_made_volume_is_not_taken_for_one() {
    use weft_block::{BlockDevice, Fault, FaultDevice, Request, Rule};
    let device = FaultDevice::new(MemoryDevice::new(8 << 20));
    mkfs(&device, &fixed()).unwrap();
    device.add(Rule::nth(Request::Write, 5, Fault::EIO));
    assert!(matches!(mkfs(&device, &fixed()), Err(Error::Device(_))));
    let mut raw = [0; 1024];
    device.read_at(&mut raw, 1024).unwrap();
    assert!(matches!(Superblock::parse(&raw), Err(Error::NotExt2 { .. })));
}

#[test]
fn the_kernel_mounts_and_resize2fs_grows() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mountpoint = dir.path().join("m");
    std::fs::create_dir(&mountpoint).unwrap();
    for (block, base) in [
        (1024, MkfsOptions::ext2()),
        (4096, MkfsOptions::ext2()),
        (1024, MkfsOptions::ext3()),
        (4096, MkfsOptions::ext3()),
    ] {
        let kind = if base.journal.is_some() { "ext3" } else { "ext2" };
        make(&path, 200 << 20, &MkfsOptions { block_bytes: Some(block), ..base }).unwrap();
        let (text, status) =
            run(Command::new("mount").args(["-t", kind, "-o", "loop"]).arg(&path).arg(&mountpoint));
        if status == 0 {
            std::fs::write(mountpoint.join("file"), vec![1; 3 << 20]).unwrap();
            std::fs::create_dir(mountpoint.join("dir")).unwrap();
            assert!(mountpoint.join("lost+found").is_dir());
            unmount(&mountpoint);
            assert_clean(&path, "after the kernel");
        } else {
            println!("skipped: cannot mount here: {text}");
        }
        // It asks for a check where the volume was mounted in a later second than it was made.
        let (text, status) = run(Command::new("e2fsck").arg("-fp").arg(&path));
        assert_eq!(status, 0, "{text}");
        let (text, status) = run(Command::new("resize2fs").arg(&path).arg("900M"));
        assert_eq!(status, 0, "{text}");
        assert_clean(&path, "after resize2fs");
    }
}

#[test]
fn an_external_journal_fits_its_volume() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let journal = dir.path().join("journal.img");
    for block in [1024, 4096] {
        let _ = std::fs::remove_file(&journal);
        let device = FileDevice::create(&journal, 8 << 20).unwrap();
        let uuid = format_journal_device(
            &device,
            &JournalDeviceOptions {
                block_bytes: block,
                uuid: None,
                label: b"log".to_vec(),
                users: vec![[7; 16]],
                checksums: false,
            },
        )
        .unwrap();
        drop(device);
        let options = MkfsOptions {
            block_bytes: Some(block),
            journal: Some(Journal::External { uuid }),
            ..fixed()
        };
        make(&path, 32 << 20, &options).unwrap();
        let (text, status) =
            run(Command::new("e2fsck").arg("-fn").arg("-j").arg(&journal).arg(&path));
        assert_eq!(status, 0, "{text}");
        assert!(!text.contains("xternal journal"), "{text}");
        let (text, _) = run(Command::new("dumpe2fs").arg(&journal));
        assert!(text.contains("Journal users:            07070707-"), "{text}");
    }
}
