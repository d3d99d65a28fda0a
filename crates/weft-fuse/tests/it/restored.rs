//! A tree in memory that is replaced by another under a mount, with names and attributes cached for a
//! year.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::mounted;

/// All that a program sees below a directory: paths, lengths, content.
fn seen(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(&at).expect("list") {
            let path = entry.expect("entry").path();
            let meta = fs::symlink_metadata(&path).expect("stat");
            let name = path.strip_prefix(dir).expect("below").display().to_string();
            if meta.is_dir() {
                lines.push(format!("{name}/ {}", meta.nlink()));
                directories.push(path);
            } else {
                let text = fs::read_to_string(&path).expect("read");
                lines.push(format!("{name} {} {} {text}", meta.len(), meta.nlink()));
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn each_restored_tree_is_seen() {
    let Some(m) = mounted() else { return };
    fs::write(m.at("file"), "first").expect("write");
    fs::create_dir(m.at("dir")).expect("mkdir");
    fs::write(m.at("dir/below"), "below, first").expect("write");
    fs::hard_link(m.at("file"), m.at("dir/link")).expect("link");
    let first = (m.fs.snapshot(), seen(m.path()));
    assert_eq!(
        first.1,
        ["dir/ 2", "dir/below 12 1 below, first", "dir/link 5 2 first", "file 5 2 first"]
    );

    fs::write(m.at("file"), "the second content").expect("write");
    fs::write(m.at("dir/below"), "2").expect("write");
    fs::write(m.at("only now"), "x").expect("write");
    fs::remove_file(m.at("dir/link")).expect("remove");
    fs::create_dir(m.at("dir/sub")).expect("mkdir");
    let second = (m.fs.snapshot(), seen(m.path()));

    fs::remove_dir_all(m.at("dir")).expect("remove");
    fs::rename(m.at("file"), m.at("dir")).expect("rename");
    let third = (m.fs.snapshot(), seen(m.path()));
    let empty = crate::memory().snapshot();
    for name in ["dir", "file", "only now", "never"] {
        // The absence of names is cached, too.
        let _ = fs::metadata(m.at(name));
    }
    for _ in 0..3 {
        for (snapshot, then) in [&first, &second, &third, &second] {
            // The kernel may have held a removed file when the snapshot was taken: it has no name.
            assert_eq!(m.fs.restore(snapshot).dropped_names, 0);
            assert_eq!(&seen(m.path()), then);
        }
        m.fs.restore(&empty);
        assert_eq!(seen(m.path()), [""; 0]);
        assert!(fs::metadata(m.at("file")).is_err());
    }
    // The mount goes on.
    fs::write(m.at("file"), "x").expect("write");
    assert_eq!(seen(m.path()), ["file 1 1 x"]);
    m.unmount();
}

/// Two of them one after the other, with nothing looked at in between.
#[test]
fn two_restored_trees_in_a_row() {
    let Some(m) = mounted() else { return };
    fs::write(m.at("a"), "a").expect("write");
    let a = m.fs.snapshot();
    fs::rename(m.at("a"), m.at("b")).expect("rename");
    fs::write(m.at("b"), "bb").expect("write");
    let b = m.fs.snapshot();
    for _ in 0..20 {
        m.fs.restore(&a);
        m.fs.restore(&b);
        assert!(!m.at("a").exists());
        assert_eq!(seen(m.path()), ["b 2 1 bb"]);
        m.fs.restore(&b);
        m.fs.restore(&a);
        assert!(!m.at("b").exists());
        assert_eq!(fs::metadata(m.at("a")).expect("stat").len(), 1);
        assert_eq!(seen(m.path()), ["a 1 1 a"]);
    }
    m.unmount();
}

#[test]
fn files_that_were_open_are_stale() {
    let Some(m) = mounted() else { return };
    let mut file = File::create_new(m.at("file")).expect("create");
    file.write_all(b"before").expect("write");
    fs::create_dir(m.at("dir")).expect("mkdir");
    let dir = File::open(m.at("dir")).expect("open");
    let snapshot = m.fs.snapshot();
    m.fs.restore(&snapshot);
    let stale = |result: std::io::Result<()>| {
        let errno = result.expect_err("stale").raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::STALE.raw_os_error()));
    };
    stale(file.write_all(b"late"));
    stale(file.sync_all());
    stale(rustix::fs::mkdirat(&dir, "late", 0o755.into()).map_err(Into::into));
    drop((file, dir));
    let mut file = File::options().read(true).write(true).open(m.at("file")).expect("open");
    file.write_all_at(b"after", 2).expect("write");
    file.seek(SeekFrom::Start(0)).expect("seek");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "beafter");
    fs::write(m.at("dir/new"), "x").expect("write");
    drop(file);
    m.unmount();
}
