//! Snapshots: taken, built, restored.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{MemFs, Restored, Snapshot, SnapshotAttr, SnapshotNode};
use crate::{
    Caller, Error, FileKind, FileSystem, Handle, Ino, Invalidate, OpenFlags, Result, Walker,
    XattrSet,
};

const ROOT: u64 = Snapshot::ROOT;

fn attr() -> SnapshotAttr {
    SnapshotAttr { perm: 0o644, ..SnapshotAttr::default() }
}

fn file() -> SnapshotNode {
    SnapshotNode::new(FileKind::Regular, &attr())
}

fn directory() -> SnapshotNode {
    SnapshotNode::new(FileKind::Directory, &SnapshotAttr { perm: 0o755, ..attr() })
}

/// Mounts a tree in memory.
fn restored(snapshot: &Snapshot) -> (MemFs, Restored) {
    let fs = MemFs::new();
    let restored = fs.restore(snapshot);
    (fs, restored)
}

fn find(fs: &MemFs, path: &[u8]) -> Result<Ino> {
    let at = path
        .split(|&b| b == b'/')
        .try_fold(fs.root(), |at, name| fs.lookup(at, name).map(|entry| entry.attr.ino))?;
    Ok(at)
}

#[test]
fn a_snapshot_is_not_changed_by_later_writes() -> Result<()> {
    let fs = MemFs::new();
    let walker = Walker::new(&fs);
    walker.write_file(b"/file", &[b'a'; 10_000], 0o644)?;
    let before = fs.snapshot();
    let hash = before.hash();
    let ino = find(&fs, b"file")?;
    fs.write(&Caller::ROOT, ino, Handle::NONE, 5000, b"later")?;
    fs.setxattr(&Caller::ROOT, ino, b"user.late", b"x", XattrSet::Any)?;
    fs.mkdir(&Caller::ROOT, fs.root(), b"late", 0o755)?;
    fs.unlink(&Caller::ROOT, fs.root(), b"file")?;
    assert_eq!(before.hash(), hash);
    assert_ne!(fs.snapshot().hash(), hash);
    let (again, restored) = restored(&before);
    assert_eq!(restored, Restored { inodes: 2, unnamed: 0, dropped_names: 0 });
    assert_eq!(Walker::new(&again).read_file(b"/file")?, vec![b'a'; 10_000]);
    assert_eq!(again.snapshot().hash(), hash);
    Ok(())
}

#[test]
fn pages_are_shared_until_they_are_changed() -> Result<()> {
    let fs = MemFs::new();
    Walker::new(&fs).write_file(b"/file", &[b'a'; 3 * 4096], 0o644)?;
    let number = fs.number(find(&fs, b"file")?)?;
    let page =
        |of: &Snapshot, nr| Arc::clone(of.node(number).and_then(|n| n.page(nr)).expect("page"));
    let before = fs.snapshot();
    fs.write(&Caller::ROOT, find(&fs, b"file")?, Handle::NONE, 4096, b"x")?;
    let after = fs.snapshot();
    assert!(Arc::ptr_eq(&page(&before, 0), &page(&after, 0)));
    assert!(!Arc::ptr_eq(&page(&before, 1), &page(&after, 1)));
    assert_ne!(page(&before, 1).hash(), page(&after, 1).hash());
    Ok(())
}

#[test]
fn no_inode_number_is_used_twice() -> Result<()> {
    let fs = MemFs::new();
    let walker = Walker::new(&fs);
    walker.write_file(b"/file", b"content", 0o644)?;
    fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755)?;
    let snapshot = fs.snapshot();
    let mut used = vec![find(&fs, b"file")?, find(&fs, b"dir")?];
    for _ in 0..3 {
        fs.mkdir(&Caller::ROOT, find(&fs, b"dir")?, b"later", 0o755)?;
        used.push(find(&fs, b"dir/later")?);
        fs.restore(&snapshot);
        assert_eq!(fs.root(), Ino(ROOT));
        for &old in &used {
            assert!(matches!(fs.getattr(old), Err(Error::Stale(_))), "{old:?} of {used:?}");
        }
        let new = [find(&fs, b"file")?, find(&fs, b"dir")?];
        assert_eq!(new.map(|ino| fs.number(ino).ok()), [Some(2), Some(3)]);
        assert!(new.iter().all(|ino| !used.contains(ino)), "{new:?}, after {used:?}");
        used.extend(new);
        // The parent of a directory, in both ways in which it is seen.
        assert_eq!(fs.lookup(new[1], b"..")?.attr.ino, fs.root());
        assert!(matches!(fs.lookup(new[1], b"later"), Err(Error::NotFound)));
    }
    Ok(())
}

#[test]
fn what_was_open_or_referenced_is_stale() -> Result<()> {
    let fs = MemFs::new();
    let made = fs.create(&Caller::ROOT, fs.root(), b"file", 0o644, OpenFlags::WRITE)?;
    let (ino, handle) = (made.0.attr.ino, made.1.handle);
    let snapshot = fs.snapshot();
    fs.restore(&snapshot);
    let stale = |result: Result<()>| assert!(matches!(result, Err(Error::Stale(_))), "{result:?}");
    stale(fs.write(&Caller::ROOT, ino, handle, 0, b"late").map(drop));
    stale(fs.read(ino, handle, 0, &mut [0]).map(drop));
    stale(fs.fsync(&Caller::ROOT, ino, false));
    stale(fs.release(ino, handle));
    stale(fs.mkdir(&Caller::ROOT, ino, b"below", 0o755).map(drop));
    stale(fs.number(ino).map(drop));
    let new = find(&fs, b"file")?;
    fs.forget(ino, 1);
    fs.forget(ino, 7);
    assert_eq!(fs.getattr(new)?.nlink, 1);
    // The handle is not that of the new file by chance.
    assert!(fs.release(new, handle).is_err());
    Ok(())
}

/// An unlinked file that is open is in a snapshot, and is lost when that is restored.
#[test]
fn a_file_without_a_name_is_not_restored() -> Result<()> {
    let fs = MemFs::new();
    let made = fs.create(&Caller::ROOT, fs.root(), b"file", 0o644, OpenFlags::WRITE)?;
    fs.write(&Caller::ROOT, made.0.attr.ino, made.1.handle, 0, &[1; 5000])?;
    fs.unlink(&Caller::ROOT, fs.root(), b"file")?;
    let mut snapshot = fs.snapshot();
    let number = fs.number(made.0.attr.ino)?;
    assert!(snapshot.node(number).is_some());
    assert_eq!(fs.restore(&snapshot), Restored { inodes: 1, unnamed: 1, dropped_names: 0 });
    let blocks = fs.statfs()?;
    assert_eq!(blocks.blocks_free, blocks.blocks);
    snapshot.set_entry(ROOT, b"found", number)?;
    fs.restore(&snapshot);
    assert_eq!(Walker::new(&fs).read_file(b"/found")?, vec![1; 5000]);
    let blocks = fs.statfs()?;
    assert_eq!(blocks.blocks_free, blocks.blocks - 2);
    Ok(())
}

/// In whichever order they reach the disk.
#[test]
fn data_and_size_are_set_apart() -> Result<()> {
    let mut tree = Snapshot::new();
    tree.insert(5, file())?;
    tree.set_entry(ROOT, b"file", 5)?;
    let read = |tree: &Snapshot| Walker::new(&restored(tree).0).read_file(b"/file");
    let mut with_data = tree.clone();
    with_data.write(5, 4090, b"twelve bytes")?;
    assert_eq!(read(&with_data)?, b"");
    assert_eq!(with_data.hash(), tree.hash(), "nobody sees what is past the end");
    let mut both = with_data.clone();
    both.set_size(5, 4100)?;
    assert_eq!(read(&both)?, [vec![0; 4090], b"twelve byt".to_vec()].concat());
    // What a file system grows after the crash is not from before it.
    let (fs, _) = restored(&both);
    let set = crate::SetAttr { size_bytes: Some(5000), ..Default::default() };
    fs.setattr(&Caller::ROOT, find(&fs, b"file")?, &set)?;
    assert_eq!(Walker::new(&fs).read_file(b"/file")?[4100..], [0; 900]);
    // Cutting is no growing: what was cut stays cut.
    both.set_size(5, 4091)?;
    both.set_size(5, 4100)?;
    assert_eq!(read(&both)?[4090..], *b"t\0\0\0\0\0\0\0\0\0");
    let mut size_first = tree.clone();
    size_first.set_size(5, 4100)?;
    assert_eq!(read(&size_first)?, vec![0; 4100]);
    size_first.write(5, 4090, b"twelve bytes")?;
    assert_ne!(size_first.hash(), both.hash());
    both.write(5, 4090, b"twelve bytes")?;
    assert_eq!(size_first.hash(), both.hash());
    both.zero(5, 0, 4094)?;
    assert_eq!(read(&both)?[4090..], *b"\0\0\0\0ve byt");
    Ok(())
}

#[test]
fn pages_are_set_without_copying() -> Result<()> {
    let mut tree = Snapshot::new();
    tree.insert(2, file())?;
    tree.insert(3, file())?;
    tree.write(2, 0, &[b'x'; 4096])?;
    let page = tree.node(2).and_then(|node| node.page(0)).cloned();
    tree.set_page(3, 9, page.clone())?;
    tree.set_size(3, 10 * 4096 - 1)?;
    tree.set_entry(ROOT, b"file", 3)?;
    assert_eq!(
        Walker::new(&restored(&tree).0).read_file(b"/file")?[9 * 4096 - 1..9 * 4096 + 1],
        *b"\0x"
    );
    assert_eq!(page.map(|page| Arc::strong_count(&page)), Some(3));
    tree.set_page(3, 9, None)?;
    assert_eq!(tree.node(3).map(|node| node.pages().count()), Some(0));
    Ok(())
}

#[test]
fn links_are_counted_and_impossible_names_dropped() -> Result<()> {
    let mut tree = Snapshot::new();
    for (number, node) in [(2, directory()), (3, directory()), (4, file()), (9, directory())] {
        tree.insert(number, node)?;
    }
    // A rename of which the old name is still there; one into itself; a name of nothing.
    tree.set_entry(ROOT, b"new", 2)?;
    tree.set_entry(ROOT, b"old", 2)?;
    tree.set_entry(2, b"below", 3)?;
    tree.set_entry(3, b"loop", 2)?;
    tree.set_entry(3, b"root", ROOT)?;
    tree.set_entry(3, b"file", 4)?;
    tree.set_entry(ROOT, b"file", 4)?;
    tree.set_entry(ROOT, b"nothing", 77)?;
    // A cycle that nobody reaches.
    tree.set_entry(9, b"self", 9)?;
    let hash = tree.hash();
    let (fs, restored) = restored(&tree);
    assert_eq!(restored, Restored { inodes: 4, unnamed: 1, dropped_names: 4 });
    let paths: Vec<_> =
        Walker::new(&fs).tree(b"/")?.map(|found| found.expect("path").path).collect();
    let links = |path| Ok::<_, Error>(fs.getattr(find(&fs, path)?)?.nlink);
    assert_eq!(paths.len(), 1 + 4, "{paths:?}");
    assert_eq!((links(b"new/below/file")?, links(b"file")?), (2, 2));
    assert_eq!((fs.getattr(fs.root())?.nlink, links(b"new")?, links(b"new/below")?), (3, 3, 2));
    assert_eq!(fs.lookup(find(&fs, b"new/below")?, b"..")?.attr.ino, find(&fs, b"new")?);
    assert_eq!(fs.snapshot().hash(), hash, "the hash is of what is restored");
    Ok(())
}

#[test]
fn a_hash_is_of_what_is_observed() -> Result<()> {
    let mut tree = Snapshot::new();
    tree.insert(2, file())?;
    tree.set_entry(ROOT, b"file", 2)?;
    tree.set_size(2, 9000)?;
    let hash = tree.hash();
    let mut same = Snapshot::new();
    same.insert(70, file())?;
    same.set_entry(ROOT, b"file", 70)?;
    same.set_size(70, 9000)?;
    same.write(70, 0, &[0; 5000])?;
    same.set_attr(70, &SnapshotAttr { mtime: crate::Time::now(), ..attr() })?;
    assert_eq!(same.hash(), hash, "numbers, times, and zeroes in place of a hole are not observed");
    let differs = |change: &dyn Fn(&mut Snapshot) -> Result<()>| {
        let mut other = tree.clone();
        change(&mut other).expect("change");
        assert_ne!(other.hash(), hash);
    };
    differs(&|t| t.set_size(2, 9001));
    differs(&|t| t.write(2, 8999, b"x"));
    differs(&|t| t.set_attr(2, &SnapshotAttr { uid: 3, ..attr() }));
    differs(&|t| t.set_xattr(2, b"user.x", b""));
    differs(&|t| t.set_entry(ROOT, b"second", 2));
    differs(&|t| t.remove_entry(ROOT, b"file"));
    differs(&|t| t.insert(2, SnapshotNode::symlink(b"target", &attr())));
    // Two names of one file, or two files that are the same.
    let mut linked = tree.clone();
    linked.set_entry(ROOT, b"second", 2)?;
    let mut copied = tree.clone();
    copied.insert(3, Arc::clone(tree.node(2).expect("node")))?;
    copied.set_entry(ROOT, b"second", 3)?;
    assert_ne!(linked.hash(), copied.hash());
    Ok(())
}

#[test]
fn impossible_changes_are_refused() -> Result<()> {
    let mut tree = Snapshot::new();
    tree.insert(2, file())?;
    assert!(matches!(tree.insert(0, file()), Err(Error::Invalid(_))));
    assert!(matches!(tree.insert(Snapshot::NUMBER_MAX + 1, file()), Err(Error::Invalid(_))));
    assert!(matches!(tree.insert(ROOT, file()), Err(Error::Invalid(_))));
    assert!(matches!(tree.remove(ROOT), Err(Error::Invalid(_))));
    assert!(matches!(tree.set_size(9, 0), Err(Error::Stale(9))));
    assert!(matches!(tree.set_size(ROOT, 0), Err(Error::IsADirectory)));
    assert!(matches!(tree.set_size(2, u64::MAX), Err(Error::TooLarge)));
    assert!(matches!(tree.write(2, u64::MAX, b"x"), Err(Error::TooLarge)));
    assert!(matches!(tree.zero(2, 1, u64::MAX), Err(Error::TooLarge)));
    assert!(matches!(tree.set_page(2, u64::MAX, None), Err(Error::TooLarge)));
    assert!(matches!(tree.set_entry(2, b"x", 2), Err(Error::NotADirectory)));
    assert!(matches!(tree.set_entry(ROOT, b"a/b", 2), Err(Error::Invalid(_))));
    assert!(matches!(tree.set_entry(ROOT, b"..", 2), Err(Error::Invalid(_))));
    assert!(matches!(tree.remove_entry(9, b"x"), Err(Error::Stale(9))));
    tree.remove_entry(ROOT, b"never there")
}

#[derive(Default)]
struct Announced(Mutex<Vec<String>>);

impl Invalidate for Announced {
    fn inode(&self, ino: Ino, data: bool) {
        self.0.lock().expect("lock").push(format!("inode {} {data}", ino.0));
    }

    fn entry(&self, parent: Ino, name: &[u8]) {
        self.0.lock().expect("lock").push(format!("{} {}", parent.0, name.escape_ascii()));
    }

    fn settle(&self) {
        self.0.lock().expect("lock").push("settle".into());
    }
}

#[test]
fn names_of_the_root_are_announced() -> Result<()> {
    let fs = MemFs::new();
    let announced = Arc::new(Announced::default());
    fs.set_invalidate(announced.clone());
    for name in [b"both", b"new1"] {
        fs.mkdir(&Caller::ROOT, fs.root(), name, 0o755)?;
    }
    let snapshot = fs.snapshot();
    fs.rmdir(&Caller::ROOT, fs.root(), b"new1")?;
    fs.mkdir(&Caller::ROOT, fs.root(), b"old1", 0o755)?;
    fs.restore(&snapshot);
    let said = announced.0.lock().expect("lock").join(", ");
    assert_eq!(said, "1 both, 1 new1, 1 old1, inode 1 true, settle");
    Ok(())
}

/// Not asserted, as it depends on the machine: read it with `--nocapture`.
#[test]
fn a_tree_of_forty_megabytes_is_taken_and_restored_at_once() -> Result<()> {
    let fs = MemFs::new();
    let walker = Walker::new(&fs);
    for dir in 0..10 {
        walker.mkdir(format!("/{dir}").as_bytes(), 0o755)?;
        for nr in 0..100 {
            walker.write_file(format!("/{dir}/{nr}").as_bytes(), &[b'x'; 40 << 10], 0o644)?;
        }
    }
    let began = Instant::now();
    let snapshot = fs.snapshot();
    let taken = began.elapsed();
    let began = Instant::now();
    for _ in 0..100 {
        fs.restore(&snapshot);
    }
    let restored = began.elapsed() / 100;
    let began = Instant::now();
    let hash = snapshot.hash();
    let first = began.elapsed();
    let mut changed = snapshot.clone();
    changed.set_size(fs.number(find(&fs, b"3/33")?)?, 100)?;
    let began = Instant::now();
    assert_ne!(changed.hash(), hash);
    let second = began.elapsed();
    println!(
        "1,000 files, 40 MB: snapshot {taken:?}, restore {restored:?}, first hash {first:?}, hash after one change {second:?}"
    );
    Ok(())
}

#[test]
fn a_file_without_a_name_may_get_one_and_a_removed_one_may_not() {
    let fs = MemFs::new();
    let caller = Caller { uid: 7, gid: 8, ..Caller::ROOT };
    let made = fs.create_unnamed(&caller, fs.root(), 0o640).unwrap().attr;
    assert_eq!((made.nlink, made.uid, made.gid, made.perm), (0, 7, 8, 0o640));
    assert_eq!(fs.write(&caller, made.ino, Handle::NONE, 0, b"content").unwrap(), 7);
    assert!(Walker::new(&fs).resolve(b"/").unwrap().list().unwrap().is_empty());
    assert_eq!(fs.link(&caller, made.ino, fs.root(), b"f").unwrap().attr.nlink, 1);
    assert_eq!(Walker::new(&fs).read_file(b"/f").unwrap(), b"content");
    fs.unlink(&caller, fs.root(), b"f").unwrap();
    assert!(matches!(fs.link(&caller, made.ino, fs.root(), b"g"), Err(Error::NotFound)));
    // One that nobody refers to any more is gone.
    fs.forget(made.ino, 2);
    assert!(fs.getattr(made.ino).is_err());
    let file = fs.mknod(&caller, fs.root(), b"h", FileKind::Regular, 0o644, 0).unwrap().attr.ino;
    assert!(fs.create_unnamed(&caller, file, 0o644).is_err());
}
