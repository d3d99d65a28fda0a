//! Many directories, and paths through them.

use std::collections::BTreeMap;

use super::bench::{Bench, caller, refused};
use crate::{Caller, FileKind, Node, Result, Walker};

pub(super) fn deep(bench: &Bench<'_>) -> Result<()> {
    const DEPTH: usize = 1000;
    let root = bench.root();
    let mut at = root.mkdir(&caller(), b"d", 0o755)?;
    for _ in 1..DEPTH {
        at = at.mkdir(&caller(), b"d", 0o755)?;
    }
    at.create(&caller(), b"bottom", 0o644)?.write_at(&Caller::ROOT, 0, b"here")?;
    let mut up = at;
    for _ in 0..DEPTH {
        up = up.lookup(b"..")?;
    }
    assert_eq!(up.ino(), root.ino());
    let walker = Walker::new(&*bench.fs);
    let path = [b"d/".repeat(DEPTH), b"bottom".to_vec()].concat();
    assert_eq!(walker.read_file(&path)?, b"here");
    let found = walker.tree(b"/d")?.try_fold(0, |n, found| found.map(|_| n + 1))?;
    assert_eq!(found, DEPTH + 1);
    let mut removed = 0;
    walker.remove_tree(b"/d", &mut |_| removed += 1)?;
    assert_eq!(removed, DEPTH + 1);
    refused!(walker.resolve(b"/d"), NotFound);
    Ok(())
}

/// A small tree: path and content of each file (`None`: a directory).
fn plant(bench: &Bench<'_>) -> Result<BTreeMap<Vec<u8>, Option<Vec<u8>>>> {
    let walker = Walker::owned_by(&*bench.fs, caller());
    let mut planted = BTreeMap::from([(vec![], None)]);
    walker.mkdir(b"/tree", 0o755)?;
    for a in 0..4 {
        let upper = format!("a{a}");
        planted.insert(upper.clone().into_bytes(), None);
        for b in 0..4 {
            let dir = format!("{upper}/b{b}");
            walker.mkdir_all(format!("/tree/{dir}").as_bytes(), 0o755)?;
            planted.insert(dir.clone().into_bytes(), None);
            for c in 0..a * b {
                let file = format!("{dir}/c{c}");
                walker.write_file(format!("/tree/{file}").as_bytes(), file.as_bytes(), 0o644)?;
                planted.insert(file.clone().into_bytes(), Some(file.into_bytes()));
            }
        }
    }
    Ok(planted)
}

pub(super) fn walk_sees_everything_once(bench: &Bench<'_>) -> Result<()> {
    let planted = plant(bench)?;
    let walker = Walker::new(&*bench.fs);
    let mut seen = BTreeMap::new();
    for found in walker.tree(b"tree")? {
        let found = found?;
        let depth = found.path.split(|&b| b == b'/').filter(|n| !n.is_empty()).count();
        assert_eq!(found.depth, depth);
        let content = if found.node.is_dir() { None } else { Some(found.node.read_all()?) };
        assert!(seen.insert(found.path, content).is_none(), "seen twice");
    }
    assert_eq!(seen, planted);
    Ok(())
}

pub(super) fn remove_tree(bench: &Bench<'_>) -> Result<()> {
    let before = bench.fs.statfs()?.inodes_free;
    let planted = plant(bench)?;
    let walker = Walker::new(&*bench.fs);
    let mut removed = BTreeMap::new();
    walker.remove_tree(b"/tree/", &mut |path| {
        removed.insert(path.to_vec(), ());
    })?;
    assert!(removed.keys().eq(planted.keys()));
    bench.fs.sync()?;
    assert!(bench.fs.statfs()?.inodes_free == before || !bench.limits.reuses_inodes);
    refused!(walker.remove_tree(b"/", &mut |_| {}), Busy);
    Ok(())
}

pub(super) fn symbolic_links(bench: &Bench<'_>) -> Result<()> {
    let walker = Walker::new(&*bench.fs);
    walker.mkdir_all(b"/a/b", 0o755)?;
    let file = walker.write_file(b"/a/b/file", b"x", 0o644)?.ino();
    walker.symlink(b"/absolute", b"/a/b")?;
    walker.symlink(b"/a/relative", b"b/../b/./file")?;
    walker.symlink(b"/a/up", b"..")?;
    let ino = |path: &[u8]| walker.resolve(path).map(|n: Node<'_>| n.ino());
    assert_eq!(ino(b"/absolute/file")?, file);
    assert_eq!(ino(b"a/relative")?, file);
    assert_eq!(ino(b"/a/up/a/up/absolute/../b//file")?, file);
    assert_eq!(ino(b"/../../a/b/file")?, file);
    assert_eq!(walker.resolve_link(b"/a/relative")?.kind(), FileKind::Symlink);
    walker.symlink(b"/loop", b"loop")?;
    refused!(walker.resolve(b"/loop"), SymlinkLoop);
    walker.resolve_link(b"/loop")?;
    // A chain of 40 is followed, one of 41 is not.
    walker.symlink(b"/chain1", b"a/b/file")?;
    for at in 2..=41 {
        let target = format!("chain{}", at - 1);
        walker.symlink(format!("/chain{at}").as_bytes(), target.as_bytes())?;
    }
    assert_eq!(ino(b"/chain40")?, file);
    refused!(ino(b"/chain41"), SymlinkLoop);
    walker.symlink(b"/dangling", b"nowhere")?;
    refused!(ino(b"/dangling"), NotFound);
    refused!(ino(b"/a/b/file/x"), NotADirectory);
    refused!(ino(b""), NotFound);
    Ok(())
}

pub(super) fn trailing_slashes(bench: &Bench<'_>) -> Result<()> {
    let walker = Walker::new(&*bench.fs);
    walker.mkdir(b"/dir/", 0o755)?;
    walker.write_file(b"/file", b"x", 0o644)?;
    assert!(walker.resolve(b"//dir//")?.is_dir());
    refused!(walker.resolve(b"/file/"), NotADirectory);
    if bench.limits.symlinks {
        walker.symlink(b"/link", b"dir")?;
        walker.symlink(b"/to_file", b"file")?;
        assert!(walker.resolve_link(b"/link/")?.is_dir(), "a slash follows the link");
        refused!(walker.resolve(b"/to_file/"), NotADirectory);
    }
    refused!(walker.remove(b"/file/"), NotADirectory);
    refused!(walker.create_file(b"/new/", 0o644), IsADirectory);
    walker.rename(b"/dir/", b"/moved/", crate::RenameFlags::empty())?;
    let to_slash = walker.rename(b"/file", b"/x/", crate::RenameFlags::empty());
    refused!(to_slash, NotADirectory);
    walker.remove(b"/moved/")
}
