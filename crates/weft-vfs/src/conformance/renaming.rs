//! Every case of `renameat2(2)`.

use super::bench::{Bench, caller, refused};
use crate::{Caller, Node, RenameFlags, Result};

const PLAIN: RenameFlags = RenameFlags::empty();

fn rename(
    bench: &Bench<'_>,
    from: (&Node<'_>, &[u8]),
    to: (&Node<'_>, &[u8]),
    flags: RenameFlags,
) -> Result<()> {
    bench.fs.rename(&Caller::ROOT, from.0.ino(), from.1, to.0.ino(), to.1, flags)
}

fn file<'a>(dir: &Node<'a>, name: &[u8]) -> Result<Node<'a>> {
    let node = dir.create(&caller(), name, 0o644)?;
    node.write_at(&Caller::ROOT, 0, name)?;
    Ok(node)
}

pub(super) fn within_and_across_directories(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let node = file(&root, b"a")?;
    rename(bench, (&root, b"a"), (&root, b"a much longer name"), PLAIN)?;
    refused!(root.lookup(b"a"), NotFound);
    assert_eq!(root.lookup(b"a much longer name")?.ino(), node.ino());
    rename(bench, (&root, b"a much longer name"), (&dir, b"b"), PLAIN)?;
    refused!(root.lookup(b"a much longer name"), NotFound);
    assert_eq!(dir.lookup(b"b")?.ino(), node.ino());
    assert_eq!((node.stat()?.nlink, node.read_all()?), (1, b"a".to_vec()));
    Ok(())
}

pub(super) fn over_a_file(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let (new, old) = (file(&root, b"new")?, file(&root, b"old")?);
    if bench.limits.hard_links {
        old.link_as(&Caller::ROOT, &root, b"old2")?;
    }
    rename(bench, (&root, b"new"), (&root, b"old"), PLAIN)?;
    refused!(root.lookup(b"new"), NotFound);
    assert_eq!(root.lookup(b"old")?.ino(), new.ino());
    let left = u32::from(bench.limits.hard_links);
    assert_eq!(old.stat()?.nlink, left, "a name of the replaced file is left if it had two");
    if !(bench.limits.symlinks && bench.limits.hard_links) {
        return Ok(());
    }
    let link = root.symlink(&caller(), b"link", b"old")?;
    rename(bench, (&root, b"link"), (&root, b"old2"), PLAIN)?;
    assert_eq!(root.lookup(b"old2")?.ino(), link.ino(), "a link is renamed, not followed");
    assert_eq!(old.stat()?.nlink, 0);
    Ok(())
}

pub(super) fn over_itself(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let node = file(&root, b"file")?;
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    rename(bench, (&root, b"file"), (&root, b"file"), PLAIN)?;
    rename(bench, (&root, b"dir"), (&root, b"dir"), PLAIN)?;
    assert_eq!(node.stat()?.nlink, 1);
    bench.assert_directory_links(&dir, 2);
    refused!(rename(bench, (&root, b"file"), (&root, b"file"), RenameFlags::NO_REPLACE), Exists);
    Ok(())
}

pub(super) fn two_names_of_one_inode(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let node = file(&root, b"one")?;
    node.link_as(&Caller::ROOT, &root, b"two")?;
    rename(bench, (&root, b"one"), (&root, b"two"), PLAIN)?;
    // POSIX: nothing happens, both names stay.
    assert_eq!(root.lookup(b"one")?.ino(), node.ino());
    assert_eq!(root.lookup(b"two")?.ino(), node.ino());
    assert_eq!(node.stat()?.nlink, 2);
    Ok(())
}

pub(super) fn kinds_must_agree(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    file(&root, b"file")?;
    root.mkdir(&caller(), b"dir", 0o755)?;
    refused!(rename(bench, (&root, b"file"), (&root, b"dir"), PLAIN), IsADirectory);
    refused!(rename(bench, (&root, b"dir"), (&root, b"file"), PLAIN), NotADirectory);
    Ok(())
}

pub(super) fn directory_over_directory(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let links = root.stat()?.nlink;
    let from = root.mkdir(&caller(), b"from", 0o755)?;
    file(&from, b"inner")?;
    let to = root.mkdir(&caller(), b"to", 0o755)?;
    file(&to, b"in the way")?;
    refused!(rename(bench, (&root, b"from"), (&root, b"to"), PLAIN), NotEmpty | Exists);
    to.remove(&Caller::ROOT, b"in the way")?;
    rename(bench, (&root, b"from"), (&root, b"to"), PLAIN)?;
    refused!(root.lookup(b"from"), NotFound);
    assert_eq!(root.lookup(b"to")?.ino(), from.ino());
    bench.assert_directory_links(&root, links + 1);
    from.lookup(b"inner")?;
    // The same from another parent.
    let upper = root.mkdir(&caller(), b"upper", 0o755)?;
    let lower = upper.mkdir(&caller(), b"lower", 0o755)?;
    rename(bench, (&upper, b"lower"), (&root, b"to"), PLAIN).expect_err("not empty");
    from.remove(&Caller::ROOT, b"inner")?;
    rename(bench, (&upper, b"lower"), (&root, b"to"), PLAIN)?;
    assert_eq!(lower.lookup(b"..")?.ino(), root.ino());
    bench.assert_directory_links(&upper, 2);
    bench.assert_directory_links(&root, links + 2);
    Ok(())
}

pub(super) fn directory_across_parents(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let (a, b) = (root.mkdir(&caller(), b"a", 0o755)?, root.mkdir(&caller(), b"b", 0o755)?);
    let moved = a.mkdir(&caller(), b"moved", 0o755)?;
    let child = moved.mkdir(&caller(), b"child", 0o755)?;
    bench.assert_directory_links(&a, 3);
    bench.assert_directory_links(&b, 2);
    rename(bench, (&a, b"moved"), (&b, b"arrived"), PLAIN)?;
    bench.assert_directory_links(&a, 2);
    bench.assert_directory_links(&b, 3);
    assert_eq!(moved.lookup(b"..")?.ino(), b.ino());
    bench.assert_directory_links(&moved, 3);
    assert_eq!(child.lookup(b"..")?.ino(), moved.ino());
    rename(bench, (&b, b"arrived"), (&root, b"top"), PLAIN)?;
    assert_eq!(moved.lookup(b"..")?.ino(), root.ino());
    root.remove(&Caller::ROOT, b"a")?;
    root.remove(&Caller::ROOT, b"b")
}

pub(super) fn into_own_subtree(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let a = root.mkdir(&caller(), b"a", 0o755)?;
    let b = a.mkdir(&caller(), b"b", 0o755)?;
    let c = b.mkdir(&caller(), b"c", 0o755)?;
    for below in [&a, &b, &c] {
        refused!(rename(bench, (&root, b"a"), (below, b"x"), PLAIN), Invalid(_));
    }
    // Over its own ancestor: that is not empty.
    refused!(rename(bench, (&b, b"c"), (&root, b"a"), PLAIN), NotEmpty | Exists);
    if bench.limits.exchange {
        let flags = RenameFlags::EXCHANGE;
        refused!(rename(bench, (&root, b"a"), (&b, b"c"), flags), Invalid(_));
        refused!(rename(bench, (&b, b"c"), (&root, b"a"), flags), Invalid(_));
    }
    assert_eq!(c.lookup(b"..")?.ino(), b.ino());
    Ok(())
}

pub(super) fn no_replace(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let (one, two) = (file(&root, b"one")?, file(&root, b"two")?);
    let flags = RenameFlags::NO_REPLACE;
    refused!(rename(bench, (&root, b"one"), (&root, b"two"), flags), Exists);
    refused!(rename(bench, (&root, b"none"), (&root, b"two"), flags), NotFound);
    assert_eq!(root.lookup(b"one")?.ino(), one.ino());
    assert_eq!(root.lookup(b"two")?.ino(), two.ino());
    rename(bench, (&root, b"one"), (&root, b"three"), flags)?;
    assert_eq!(root.lookup(b"three")?.ino(), one.ino());
    Ok(())
}

pub(super) fn exchange_files(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let (one, two) = (file(&root, b"one")?, file(&dir, b"two")?);
    rename(bench, (&root, b"one"), (&dir, b"two"), RenameFlags::EXCHANGE)?;
    assert_eq!(root.lookup(b"one")?.ino(), two.ino());
    assert_eq!(dir.lookup(b"two")?.ino(), one.ino());
    assert_eq!((one.stat()?.nlink, two.stat()?.nlink), (1, 1));
    refused!(rename(bench, (&root, b"one"), (&dir, b"none"), RenameFlags::EXCHANGE), NotFound);
    // Swapping two names of one inode changes nothing.
    one.link_as(&Caller::ROOT, &dir, b"again")?;
    rename(bench, (&dir, b"two"), (&dir, b"again"), RenameFlags::EXCHANGE)?;
    assert_eq!(one.stat()?.nlink, 2);
    Ok(())
}

pub(super) fn exchange_directories(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let (a, b) = (root.mkdir(&caller(), b"a", 0o755)?, root.mkdir(&caller(), b"b", 0o755)?);
    let (in_a, in_b) = (a.mkdir(&caller(), b"x", 0o755)?, b.mkdir(&caller(), b"y", 0o755)?);
    file(&in_a, b"full")?;
    file(&in_b, b"full")?;
    rename(bench, (&a, b"x"), (&b, b"y"), RenameFlags::EXCHANGE)?;
    assert_eq!((a.lookup(b"x")?.ino(), b.lookup(b"y")?.ino()), (in_b.ino(), in_a.ino()));
    assert_eq!(in_a.lookup(b"..")?.ino(), b.ino());
    assert_eq!(in_b.lookup(b"..")?.ino(), a.ino());
    assert_eq!((a.stat()?.nlink, b.stat()?.nlink), (3, 3));
    Ok(())
}

pub(super) fn exchange_file_and_directory(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let (a, b) = (root.mkdir(&caller(), b"a", 0o755)?, root.mkdir(&caller(), b"b", 0o755)?);
    let (dir, leaf) = (a.mkdir(&caller(), b"x", 0o755)?, file(&b, b"y")?);
    rename(bench, (&a, b"x"), (&b, b"y"), RenameFlags::EXCHANGE)?;
    assert_eq!((a.lookup(b"x")?.ino(), b.lookup(b"y")?.ino()), (leaf.ino(), dir.ino()));
    assert_eq!(dir.lookup(b"..")?.ino(), b.ino());
    assert_eq!((a.stat()?.nlink, b.stat()?.nlink), (2, 3));
    let kinds: Vec<_> = a.list()?.into_iter().map(|l| l.kind).collect();
    assert_eq!(kinds, [crate::FileKind::Regular], "the name's kind changed too");
    a.remove(&Caller::ROOT, b"x")?;
    b.remove(&Caller::ROOT, b"y")
}

pub(super) fn refused_renames(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let node = file(&root, b"file")?;
    root.mkdir(&caller(), b"dir", 0o755)?;
    refused!(rename(bench, (&root, b"none"), (&root, b"x"), PLAIN), NotFound);
    refused!(rename(bench, (&node, b"x"), (&root, b"y"), PLAIN), NotADirectory);
    refused!(rename(bench, (&root, b"file"), (&node, b"y"), PLAIN), NotADirectory);
    for name in [&b"."[..], b".."] {
        refused!(rename(bench, (&root, name), (&root, b"x"), PLAIN), Busy | Invalid(_));
        refused!(rename(bench, (&root, b"dir"), (&root, name), PLAIN), Busy | Invalid(_) | Exists);
    }
    let both = RenameFlags::EXCHANGE | RenameFlags::NO_REPLACE;
    refused!(rename(bench, (&root, b"file"), (&root, b"dir"), both), Invalid(_));
    assert_eq!(root.list()?.iter().filter(|l| l.name != b"lost+found").count(), 2);
    Ok(())
}
