//! Blocks and inodes that a crash has leaked are freed while the volume is in use; e2fsck is the
//! judge.

use crate::images::make_image;
use crate::tools::{assert_clean, e2fsck, have_e2fsprogs, run};
use crate::volumes::{plain, store};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice, Recorder, Rng, replay};
use weft_ext2::fsck::{Options, Problem, Severity, check};
use weft_ext2::{Ext2, OpenOptions};
use weft_vfs::{FileSystem, Walker};

fn debugfs(image: &Path, commands: &str) {
    let script = image.with_extension("commands");
    std::fs::write(&script, commands).unwrap();
    let (text, status) = run(Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(image));
    assert_eq!(status, 0, "{text}");
}

fn load(image: &Path) -> Arc<MemoryDevice> {
    let bytes = std::fs::read(image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(&bytes, 0).unwrap();
    Arc::new(device)
}

/// Leaves of a crash: leaked blocks and inodes, files and a directory without a name, counts that
/// are too high or lag, and the mark of a volume that was not unmounted.
const LEFT_BEHIND: &str = "setb 2000 30\nseti <200>\nseti <201>\nunlink a/b/double\n\
    sif fifo links_count 4\nsif a/indirect blocks 10\nsif a/indirect size 1000\nunlink empty\n\
    link a many/second\nsif a links_count 5\nset_bg 0 used_dirs_count 30\n\
    set_bg 0 free_blocks_count 7\nssv state 0\n";

#[test]
fn leaks_are_given_back_while_the_volume_is_in_use() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (kind, inode) in [("ext2", 256), ("ext2", 128)] {
        let image = make_image(dir.path(), kind, 1024, inode, "3M");
        debugfs(&image, LEFT_BEHIND);
        for no_healing in [true, false] {
            let device = load(&image);
            let options = OpenOptions { no_healing, ..OpenOptions::default() };
            let fs = Ext2::open(device.clone(), options).unwrap();
            let walker = Walker::new(&*fs);
            // Changes of all kinds while the check looks and gives back.
            for i in 0..60 {
                let path = format!("/many/new-{i}");
                walker.write_file(path.as_bytes(), &vec![7; 3000], 0o644).unwrap();
                if i % 3 == 0 {
                    walker.remove(path.as_bytes()).unwrap();
                }
            }
            walker.remove(b"/a/hard-link").unwrap();
            fs.finish_healing();
            assert_eq!(fs.damage(), None);
            drop(walker);
            fs.unmount().unwrap();
            let path = dir.path().join("after.img");
            store(&device, &path);
            if no_healing {
                assert_ne!(e2fsck(&path).1, 0, "without healing nothing is freed");
            } else {
                // The second name of the directory stays, and the count that goes with it: which
                // of the names is meant, only people know.
                debugfs(&path, "unlink many/second\nsif a links_count 3\n");
                assert_clean(&path, "healed");
                let (text, _) = run(Command::new("dumpe2fs").arg("-h").arg(&path));
                assert!(text.contains("Filesystem state:         clean"), "{text}");
            }
        }
    }
}

#[test]
fn a_damaged_volume_is_left_to_a_repair() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    debugfs(&image, "setb 2000 30\nsif a/b/double block[2] 2\nssv state 0\n");
    let device = load(&image);
    let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
    fs.finish_healing();
    assert!(fs.damage().is_some());
    fs.unmount().unwrap();
    let path = dir.path().join("after.img");
    store(&device, &path);
    let (said, status) = e2fsck(&path);
    assert_eq!(status, 4);
    assert!(said.iter().any(|line| line.contains("2000--2029")), "nothing was freed: {said:?}");
    let (text, _) = run(Command::new("dumpe2fs").arg("-h").arg(&path));
    assert!(text.contains("not clean with errors"), "{text}");
}

/// Mounts an image, waits for the check and unmounts. Returns the first damage, and what e2fsck says.
fn healed(image: &Path) -> (Option<String>, Vec<String>) {
    let device = load(image);
    let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
    assert!(fs.is_being_checked());
    fs.finish_healing();
    let damage = fs.damage();
    fs.unmount().unwrap();
    let path = image.with_extension("healed");
    store(&device, &path);
    (damage, e2fsck(&path).0)
}

/// A directory that lost its name, with what is in it, and the old `..` of one that was renamed. The
/// tree of [`make_image`] has directories `a/b` and `many`.
#[test]
fn directories_without_a_name_move_to_lost_and_found_and_get_their_new_parent() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for lost_and_found in [true, false] {
        let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
        let less = if lost_and_found { "" } else { "rmdir lost+found\n" };
        debugfs(
            &image,
            &format!(
                "{less}mkdir old\nmkdir new\nmkdir old/moved\nlink old/moved new/moved\n\
                 unlink old/moved\nsif new links_count 3\nunlink a\nssv state 0\n"
            ),
        );
        let before = e2fsck(&image).0.join("\n");
        assert!(before.contains("Unconnected directory") && before.contains("'..' in"), "{before}");
        let (damage, said) = healed(&image);
        assert_eq!(damage, None);
        assert_clean(&image.with_extension("healed"), &said.join("\n"));
        let path = image.with_extension("healed");
        let (text, _) = run(Command::new("debugfs").args(["-R", "ls -l lost+found"]).arg(&path));
        assert!(text.contains('#'), "{text}");
        let (text, _) = run(Command::new("debugfs").args(["-R", "stat new/moved/.."]).arg(&path));
        let (new, _) = run(Command::new("debugfs").args(["-R", "stat new"]).arg(&path));
        let inode = |text: &str| text.split_whitespace().nth(1).map(str::to_owned);
        assert!(inode(&text).is_some() && inode(&text) == inode(&new), "{text}{new}");
    }
}

/// With a damaged directory a file without a name may have one in it: it is kept. Blocks that no inode
/// has are freed.
#[test]
fn while_a_directory_is_damaged_no_file_is_freed() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    debugfs(&image, "setb 2000 30\nunlink a/b/double\nssv state 0\n");
    let (text, _) = run(Command::new("debugfs").args(["-R", "blocks many"]).arg(&image));
    let block = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).nth(1).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 64], block * 1024 + 64).unwrap();
    drop(file);
    let problems = |path: &Path| check(&*load(path), &Options::default()).unwrap().problems;
    let leaked = |path: &Path| {
        let is_run =
            |p: &Problem| matches!(p, Problem::BlockBitmap { first: 2000, leaked: true, .. });
        problems(path).iter().any(is_run)
    };
    assert!(leaked(&image), "blocks have leaked");
    assert!(healed(&image).0.is_some());
    let after = image.with_extension("healed");
    let kept = |p: &Problem| matches!(p, Problem::Unattached { empty: false, .. });
    assert!(problems(&after).iter().any(kept), "the file is kept: {:?}", problems(&after));
    assert!(!leaked(&after), "the blocks are freed: {:?}", problems(&after));
}

/// A user removes files while the check looks at them, and others get their numbers.
#[test]
fn files_that_are_removed_during_the_check_are_gone_after_it() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    debugfs(&image, LEFT_BEHIND);
    for _ in 0..20 {
        let device = load(&image);
        let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
        let walker = Walker::new(&*fs);
        walker.remove(b"/fifo").unwrap();
        walker.remove(b"/a/indirect").unwrap();
        for i in 0..20 {
            walker.write_file(format!("/n{i}").as_bytes(), &[7; 3000], 0o644).unwrap();
        }
        fs.finish_healing();
        assert_eq!(fs.damage(), None);
        drop(walker);
        fs.unmount().unwrap();
        let path = dir.path().join("after.img");
        store(&device, &path);
        debugfs(&path, "unlink many/second\nsif a links_count 3\n");
        assert_clean(&path, "removed during the check");
    }
}

/// A directory with two names is counted by both directories above it: whichever name a user removes, the
/// other directory counts it.
#[test]
fn either_name_of_a_directory_with_two_can_be_removed() {
    if !have_e2fsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), "ext2", 1024, 256, "3M");
    // As a rename from / to many leaves it: the count of many went up before the name was there.
    debugfs(
        &image,
        "mkdir x\nlink x many/second\nsif x links_count 3\nsif many links_count 3\nssv state 0\n",
    );
    for name in [&b"/x"[..], b"/many/second"] {
        let device = load(&image);
        let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
        fs.finish_healing();
        assert_eq!(fs.damage(), None);
        Walker::new(&*fs).remove(name).unwrap();
        fs.unmount().unwrap();
        let report = check(&*device, &Options::default()).unwrap();
        let worst = report.worst();
        assert!(worst < Some(Severity::Corruption), "{name:?}: {:?}", report.problems);
    }
}

#[test]
fn a_volume_is_clean_after_each_crash_and_a_mount() {
    if !have_e2fsprogs() {
        return;
    }
    let disk = Arc::new(Recorder::new(MemoryDevice::from_image(plain().clone())));
    let fs = Ext2::open(disk.clone(), OpenOptions::default()).unwrap();
    let mut rng = Rng::new(20_260_721);
    let walker = Walker::new(&*fs);
    for i in 0..400 {
        let name = format!("/f{}", rng.below(40));
        match rng.below(8) {
            0 => drop(walker.mkdir(format!("/d{i}").as_bytes(), 0o755)),
            1 => drop(walker.remove(name.as_bytes())),
            2 => drop(walker.remove(format!("/d{}", rng.below(i + 1)).as_bytes())),
            3 => drop(walker.link(name.as_bytes(), format!("/l{i}").as_bytes())),
            4 if i % 5 == 0 => fs.sync().unwrap(),
            _ => {
                let len = usize::try_from(rng.below(200_000)).unwrap();
                drop(walker.write_file(name.as_bytes(), &vec![1; len], 0o644));
            }
        }
    }
    fs.sync().unwrap();
    let events = disk.events();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("after.img");
    let mut leaked = 0;
    for cut in 0..40 {
        // Everything up to some write has reached the disk, and nothing after it.
        let device = Arc::new(MemoryDevice::from_image(plain().clone()));
        let end = usize::try_from(rng.below(events.len() as u64)).unwrap();
        replay(&events[..end], &*device).unwrap();
        store(&device, &path);
        leaked += u64::from(e2fsck(&path).1 != 0);
        let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
        fs.finish_healing();
        assert_eq!(fs.damage(), None, "cut {cut} after {end} of {} writes", events.len());
        fs.unmount().unwrap();
        store(&device, &path);
        assert_clean(&path, &format!("cut {cut} after {end} of {} writes", events.len()));
    }
    assert!(leaked > 10, "only {leaked} crashes left anything to give back");
}
