//! Directories as lists, also while they change.

use std::collections::{HashMap, HashSet};

use super::bench::{Bench, caller, refused};
use crate::path::Listed;
use crate::{Caller, DirCursor, FileKind, Node, Result};

fn fill<'a>(bench: &Bench<'a>, dir: &Node<'_>, prefix: &str) -> Result<HashSet<Vec<u8>>> {
    let mut names = HashSet::new();
    for at in 0..bench.limits.names {
        // Names of many lengths, so that freed slots do not fit every new name.
        let mut name = format!("{prefix}{at}{}", "x".repeat(at * 7 % 40));
        name.truncate(bench.limits.name_bytes);
        dir.create(&caller(), name.as_bytes(), 0o644)?;
        names.insert(name.into_bytes());
    }
    Ok(names)
}

fn batch(dir: &Node<'_>, cursor: DirCursor, max: usize) -> Result<Vec<Listed>> {
    let mut names = Vec::new();
    dir.list_from(cursor, max, &mut names)?;
    Ok(names)
}

/// Lists in batches, calling `between` after each batch with its entries.
fn list_with(
    dir: &Node<'_>,
    max: usize,
    mut between: impl FnMut(&[Listed]) -> Result<()>,
) -> Result<Vec<Vec<u8>>> {
    let mut cursor = DirCursor::START;
    let mut seen = Vec::new();
    loop {
        let names = batch(dir, cursor, max)?;
        let Some(last) = names.last() else { return Ok(seen) };
        assert_ne!(last.next, cursor, "the cursor moves");
        cursor = last.next;
        between(&names)?;
        seen.extend(names.into_iter().map(|l| l.name));
    }
}

/// Asserts that each name of `stayed` is listed exactly once, and no name twice.
fn check_seen(seen: &[Vec<u8>], stayed: &HashSet<Vec<u8>>) {
    let mut times: HashMap<&[u8], u32> = HashMap::new();
    for name in seen {
        *times.entry(name).or_default() += 1;
    }
    for name in stayed {
        let text = String::from_utf8_lossy(name);
        assert_eq!(times.get(name.as_slice()), Some(&1), "{text} stayed all along");
    }
    for (name, times) in times {
        assert_eq!(times, 1, "{} was listed {times} times", String::from_utf8_lossy(name));
    }
}

pub(super) fn empty_directory(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let upper = root.mkdir(&caller(), b"upper", 0o755)?;
    let dir = upper.mkdir(&caller(), b"dir", 0o755)?;
    let mut all = Vec::new();
    bench.fs.readdir(dir.ino(), DirCursor::START, &mut |d| {
        all.push((d.name.to_vec(), d.ino, d.kind));
        true
    })?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let want = [(b".".to_vec(), dir.ino()), (b"..".to_vec(), upper.ino())];
    assert_eq!(all, want.map(|(name, ino)| (name, ino, FileKind::Directory)));
    Ok(())
}

pub(super) fn all_names_with_kinds(bench: &Bench<'_>) -> Result<()> {
    let dir = bench.root().mkdir(&caller(), b"dir", 0o755)?;
    let names = fill(bench, &dir, "n")?;
    dir.mkdir(&caller(), b"directory", 0o755)?;
    let symlinks = bench.limits.symlinks;
    if symlinks {
        dir.symlink(&caller(), b"symlink", b"x")?;
    }
    let listed = dir.list()?;
    assert_eq!(listed.len(), names.len() + 1 + usize::from(symlinks));
    for l in listed {
        let want = match &l.name[..] {
            b"directory" => FileKind::Directory,
            b"symlink" => FileKind::Symlink,
            _ => FileKind::Regular,
        };
        let node = dir.lookup(&l.name)?;
        assert_eq!((l.kind, l.ino), (want, node.ino()));
        assert!(want != FileKind::Regular || names.contains(&l.name));
    }
    Ok(())
}

pub(super) fn any_cursor_goes_on(bench: &Bench<'_>) -> Result<()> {
    let dir = bench.root().mkdir(&caller(), b"dir", 0o755)?;
    let names = fill(bench, &dir, "n")?;
    let all = dir.list()?;
    for max in [1, 2, 7, 100] {
        let seen = list_with(&dir, max, |_| Ok(()))?;
        check_seen(&seen, &names);
        assert!(seen.iter().eq(all.iter().map(|l| &l.name)), "same order in batches of {max}");
    }
    // Seeking back to any cursor.
    for at in (0..all.len() - 1).rev().step_by(37) {
        let next = batch(&dir, all[at].next, 1)?;
        assert_eq!(next[0].name, all[at + 1].name);
    }
    let end = all.last().map_or(DirCursor::START, |l| l.next);
    assert!(batch(&dir, end, 10)?.is_empty());
    Ok(())
}

pub(super) fn removing_while_listing(bench: &Bench<'_>) -> Result<()> {
    let dir = bench.root().mkdir(&caller(), b"dir", 0o755)?;
    let names = fill(bench, &dir, "n")?;
    let mut order: Vec<_> = names.iter().cloned().collect();
    order.sort();
    let mut stayed = names.clone();
    let mut victims = order.into_iter().step_by(3);
    let seen = list_with(&dir, 10, |brought| {
        // The entries just listed (the one before the cursor among them), and some others.
        for l in brought.iter().skip(7) {
            dir.remove(&Caller::ROOT, &l.name)?;
            stayed.remove(&l.name);
        }
        for name in victims.by_ref().take(2) {
            if stayed.remove(&name) {
                dir.remove(&Caller::ROOT, &name)?;
            }
        }
        Ok(())
    })?;
    check_seen(&seen, &stayed);
    let left: HashSet<_> = dir.list()?.into_iter().map(|l| l.name).collect();
    assert_eq!(left, stayed);
    Ok(())
}

pub(super) fn adding_while_listing(bench: &Bench<'_>) -> Result<()> {
    let dir = bench.root().mkdir(&caller(), b"dir", 0o755)?;
    let names = fill(bench, &dir, "n")?;
    let mut stayed = names.clone();
    let mut round = 0;
    let seen = list_with(&dir, 10, |brought| {
        // Removing and adding of longer names moves entries where the format packs them.
        if let Some(l) = brought.first() {
            dir.remove(&Caller::ROOT, &l.name)?;
            stayed.remove(&l.name);
        }
        // Fewer than are listed, or a listing that shows new names would never end.
        for _ in 0..brought.len() / 4 {
            round += 1;
            let mut name = format!("added{round}{}", "y".repeat(round % 100));
            name.truncate(bench.limits.name_bytes);
            dir.create(&caller(), name.as_bytes(), 0o644)?;
        }
        assert!(round < bench.limits.names, "a listing ends although names are added");
        Ok(())
    })?;
    check_seen(&seen, &stayed);
    Ok(())
}

pub(super) fn removing_everything_in_batches(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let names = fill(bench, &dir, "n")?;
    // The sequence of `rm -r`.
    let seen = list_with(&dir, 64, |brought| {
        brought.iter().try_for_each(|l| bench.fs.unlink(&Caller::ROOT, dir.ino(), &l.name))
    })?;
    check_seen(&seen, &names);
    assert!(dir.list()?.is_empty());
    root.remove(&Caller::ROOT, b"dir")
}

pub(super) fn plus_takes_references(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    for at in 0..10 {
        dir.create(&caller(), format!("f{at}").as_bytes(), 0o644)?;
    }
    let mut entries = Vec::new();
    fs.readdir_plus(dir.ino(), DirCursor::START, &mut |dirent, entry| {
        if dirent.name == b"." || dirent.name == b".." {
            return true;
        }
        if entries.len() == 5 {
            return false;
        }
        assert_eq!((dirent.ino, dirent.kind), (entry.attr.ino, entry.attr.kind));
        entries.push((dirent.name.to_vec(), entry));
        true
    })?;
    assert_eq!(entries.len(), 5);
    for (name, entry) in &entries {
        assert_eq!(fs.getattr(entry.attr.ino)?, entry.attr);
        dir.remove(&Caller::ROOT, name)?;
        // The reference of the listing keeps the inode.
        assert_eq!(fs.getattr(entry.attr.ino)?.nlink, 0);
    }
    for (_, entry) in &entries {
        fs.forget(entry.attr.ino, 1);
        refused!(fs.getattr(entry.attr.ino), Stale(_));
    }
    // The refused entry carries no reference: its inode is freed with its name.
    let left = dir.list()?;
    for l in left {
        dir.remove(&Caller::ROOT, &l.name)?;
        refused!(fs.getattr(l.ino), Stale(_));
    }
    Ok(())
}

pub(super) fn not_a_directory(bench: &Bench<'_>) -> Result<()> {
    let file = bench.root().create(&caller(), b"file", 0o644)?;
    refused!(file.list(), NotADirectory);
    let plus = bench.fs.readdir_plus(file.ino(), DirCursor::START, &mut |_, _| true);
    refused!(plus, NotADirectory);
    Ok(())
}
