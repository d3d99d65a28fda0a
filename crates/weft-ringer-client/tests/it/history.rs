//! Versions of files: kept by policy, listed and restored.

use std::time::Duration;

use weft_ringer_client::{HISTORY_XATTR, RESTORE_XATTR, RingerFs};
use weft_vfs::{Caller, FileSystem, RenameFlags, Walker, XattrSet};

use super::{Cell, content, ino, set_policy, write};
use weft_testing::wait_until;

const EPOCH: Duration = Duration::from_secs(2);

fn join(cell: &Cell, name: &str) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(50);
    options.scan_every = Duration::from_millis(500);
    options.cache_max_bytes = 0;
    RingerFs::join(options).expect("it joins")
}

fn read(fs: &RingerFs, path: &str) -> Vec<u8> {
    Walker::new(fs).read_file(path.as_bytes()).expect("read")
}

/// Each version or removed file, newest first: number, length, and the path of a removed one.
fn history(fs: &RingerFs, path: &str) -> Vec<(u64, u64, String)> {
    let text = fs.getxattr(ino(fs, path), HISTORY_XATTR).expect("a list");
    let text = String::from_utf8(text).expect("text");
    let lines = text.lines().map(|line| {
        let parts: Vec<&str> = line.split('\t').collect();
        let path = parts.get(4).map_or(String::new(), |path| (*path).to_owned());
        (parts[1].parse().expect("a number"), parts[3].parse().expect("a length"), path)
    });
    lines.collect()
}

fn restore(fs: &RingerFs, path: &str, text: &str) -> weft_vfs::Result<()> {
    fs.setxattr(&Caller::ROOT, ino(fs, path), RESTORE_XATTR, text.as_bytes(), XattrSet::Any)
}

#[test]
fn versions_are_kept_on_close_and_restored() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    set_policy(&a, "", "versions=10 every=0");
    let states: Vec<Vec<u8>> = (1..=4).map(|n| content(n, 70_000 * usize::from(n))).collect();
    for (n, state) in states.iter().enumerate() {
        write(if n % 2 == 0 { &a } else { &b }, "/file", state);
    }
    // Many writes through one handle are one.
    let file = ino(&a, "file");
    let opened = a.open(&Caller::ROOT, file, weft_vfs::OpenFlags::WRITE).expect("open");
    for n in 0..20 {
        a.write(&Caller::ROOT, file, opened.handle, n * 1000, &[9; 500]).expect("written");
    }
    a.release(file, opened.handle).expect("closed");
    let found = history(&b, "file");
    let sizes: Vec<u64> = found.iter().map(|(_, size, _)| *size).collect();
    assert_eq!(sizes, [280_000, 210_000, 140_000, 70_000]);
    assert!(found.windows(2).all(|pair| pair[0].0 > pair[1].0));
    assert_eq!(history(&a, "file"), found);

    // In place: what it was before that is kept as well.
    let last = read(&a, "/file");
    for (number, size, _) in found.iter().rev() {
        restore(&b, "file", &number.to_string()).expect("restored");
        let state = &states[usize::try_from(*size).expect("small") / 70_000 - 1];
        assert!(&read(&a, "/file") == state, "version {number}");
    }
    let found = history(&b, "file");
    assert!(found.len() > 4, "{found:?}");
    let before = found.iter().find(|(_, size, _)| *size == last.len() as u64).expect("kept");
    // As another file.
    let text = format!("{} {} copy", ino(&a, "file").0, before.0);
    restore(&a, "", &text).expect("a copy");
    assert!(read(&b, "/copy").len() == last.len());
    restore(&a, "", &text).expect_err("the name is taken");
    for bad in ["", "0", "x", "99999999"] {
        restore(&a, "file", bad).expect_err(bad);
    }
    for bad in ["1 2", "x 1 y", "1 0 ..", "1 0 a/b", "7777 1 new"] {
        restore(&a, "", bad).expect_err(bad);
    }
    assert!(!Walker::new(&a).exists(b"/new").expect("a look"));
}

#[test]
fn without_a_policy_nothing_is_kept() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a");
    write(&a, "/file", b"one");
    write(&a, "/file", b"two");
    Walker::new(&a).remove(b"/file").expect("removed");
    write(&a, "/file", b"three");
    assert!(history(&a, "file").is_empty() && history(&a, "").is_empty());
    set_policy(&a, "", "versions=3 every=1000");
    for n in 0..5_u8 {
        write(&a, "/file", &[n; 10]);
    }
    assert_eq!(history(&a, "file").len(), 1, "the others stood too short");
}

#[test]
fn policy_bounds_the_kept_versions() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a");
    set_policy(&a, "", "versions=3 every=0");
    for n in 0..8_u8 {
        write(&a, "/file", &content(n, 1000 + usize::from(n)));
    }
    a.sync().expect("with the server");
    let found = history(&a, "file");
    let sizes: Vec<u64> = found.iter().map(|(_, size, _)| *size).collect();
    assert_eq!(sizes, [1006, 1005, 1004]);
    // Three and the present one: the blocks of the others go.
    let own = cell.path("a").join("own").join(format!("{:016x}", ino(&a, "file").0));
    let blocks = || std::fs::read_dir(&own).expect("blocks").count();
    wait_until("the blocks of other versions are gone", || blocks() == 4);
    // The oldest, of which what is there now takes the place.
    let (number, size, _) = &found[2];
    restore(&a, "file", &number.to_string()).expect("restored");
    assert_eq!(read(&a, "/file").len() as u64, *size);
    let sizes: Vec<u64> = history(&a, "file").iter().map(|(_, size, _)| *size).collect();
    assert_eq!(sizes, [1007, 1006, 1005]);
}

#[test]
fn removed_files_and_trees_are_restored() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    let walker = Walker::new(&a);
    walker.mkdir_all(b"/d/e/f", 0o755).expect("made");
    set_policy(&a, "d", "versions=5 every=0");
    write(&a, "/d/one", &content(1, 100_000));
    write(&a, "/d/e/f/two", &content(2, 100_001));
    write(&a, "/d/replaced", &content(3, 100_002));
    write(&a, "/d/new", &content(4, 100_003));
    a.sync().expect("with the server");
    Walker::new(&b).rename(b"/d/new", b"/d/replaced", RenameFlags::empty()).expect("renamed");
    Walker::new(&b).remove(b"/d/one").expect("removed");
    Walker::new(&b).remove_tree(b"/d/e", &mut |_| {}).expect("removed");
    let mut found = history(&b, "d");
    found.sort_by_key(|(_, size, _)| *size);
    let paths: Vec<&str> = found.iter().map(|(_, _, path)| &path[..]).collect();
    assert_eq!(paths, ["/one", "/e/f/two", "/replaced"]);
    assert!(history(&a, "").is_empty(), "listed where the policy is");
    // Its blocks are only with a, which has long heard of it.
    std::thread::sleep(Duration::from_secs(2));
    for ((number, size, _), seed) in found.iter().zip(1..) {
        restore(&b, "d", &format!("{number} 0 back{seed}")).expect("restored");
        let size = usize::try_from(*size).expect("small");
        assert!(read(&b, &format!("/d/back{seed}")) == content(seed, size));
    }
    a.unmount().expect("it ends");
    assert!(read(&b, "/d/back2") == content(2, 100_001), "it is b's own by now");
}

#[test]
fn kept_versions_survive_a_restart_and_expire() {
    let mut cell = Cell::new(EPOCH);
    let a = join(&cell, "a");
    set_policy(&a, "", "versions=5 every=0 keep=3");
    for n in 1..=3_u8 {
        write(&a, "/file", &content(n, 1000));
    }
    write(&a, "/gone", &content(9, 1000));
    Walker::new(&a).remove(b"/gone").expect("removed");
    a.sync().expect("with the server");
    cell.stop();
    cell.start();
    assert_eq!((history(&a, "file").len(), history(&a, "").len()), (2, 1));
    wait_until("no version is kept", || history(&a, "file").len() + history(&a, "").len() == 0);
    // Then the blocks are deleted.
    let own = cell.path("a").join("own");
    let left = || {
        let dirs = std::fs::read_dir(&own).expect("blocks").flatten();
        dirs.map(|d| std::fs::read_dir(d.path()).map_or(0, Iterator::count)).sum::<usize>()
    };
    wait_until("their blocks are gone", || left() == 1);
    assert!(read(&a, "/file") == content(3, 1000));
}
