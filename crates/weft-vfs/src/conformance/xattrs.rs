//! Extended attributes.

use std::collections::BTreeSet;

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, Result, XattrSet};

pub(super) fn set_get_list_remove(bench: &Bench<'_>) -> Result<()> {
    if bench.limits.xattr_bytes == 0 {
        return Ok(());
    }
    let (fs, root) = (&bench.fs, bench.root());
    for node in [root.create(&caller(), b"file", 0o644)?, root.mkdir(&caller(), b"dir", 0o755)?] {
        let ino = node.ino();
        assert!(fs.listxattr(ino)?.is_empty());
        refused!(fs.getxattr(ino, b"user.none"), NoAttribute);
        refused!(fs.removexattr(&Caller::ROOT, ino, b"user.none"), NoAttribute);
        let of_kernel =
            if bench.limits.privileges { b"security.c".as_slice() } else { b"trusted.c" };
        let names: [&[u8]; 5] = [b"user.a", b"user.b", b"trusted.a", of_kernel, b"user.\xff\xfe"];
        for (at, name) in names.into_iter().enumerate() {
            fs.setxattr(&Caller::ROOT, ino, name, &pattern(at as u64, at * 10), XattrSet::Any)?;
        }
        for (at, name) in names.into_iter().enumerate() {
            assert_eq!(fs.getxattr(ino, name)?, pattern(at as u64, at * 10));
        }
        let listed: BTreeSet<_> = fs.listxattr(ino)?.into_iter().collect();
        assert_eq!(listed, names.iter().map(|n| n.to_vec()).collect());
        fs.setxattr(&Caller::ROOT, ino, b"user.a", b"longer than before, by far", XattrSet::Any)?;
        assert_eq!(fs.getxattr(ino, b"user.a")?, b"longer than before, by far");
        for name in names {
            fs.removexattr(&Caller::ROOT, ino, name)?;
            refused!(fs.getxattr(ino, name), NoAttribute);
        }
        assert!(fs.listxattr(ino)?.is_empty());
    }
    Ok(())
}

pub(super) fn create_and_replace(bench: &Bench<'_>) -> Result<()> {
    if bench.limits.xattr_bytes == 0 {
        return Ok(());
    }
    let fs = &bench.fs;
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    refused!(
        fs.setxattr(&Caller::ROOT, node.ino(), b"user.a", b"1", XattrSet::Replace),
        NoAttribute
    );
    fs.setxattr(&Caller::ROOT, node.ino(), b"user.a", b"1", XattrSet::Create)?;
    refused!(fs.setxattr(&Caller::ROOT, node.ino(), b"user.a", b"2", XattrSet::Create), Exists);
    fs.setxattr(&Caller::ROOT, node.ino(), b"user.a", b"3", XattrSet::Replace)?;
    assert_eq!(fs.getxattr(node.ino(), b"user.a")?, b"3");
    refused!(
        fs.setxattr(&Caller::ROOT, node.ino(), b"nonsense", b"1", XattrSet::Any),
        Unsupported(_)
    );
    Ok(())
}

pub(super) fn values_of_many_sizes(bench: &Bench<'_>) -> Result<()> {
    let longest = bench.limits.xattr_bytes;
    if longest == 0 {
        return Ok(());
    }
    let (fs, root) = (&bench.fs, bench.root());
    for len in [0, 1, 3, 4, 31, 60, 100, 255, 256, 500, 1000, longest] {
        if len > longest {
            continue;
        }
        let node = root.create(&caller(), b"file", 0o644)?;
        let value = pattern(len as u64, len);
        fs.setxattr(&Caller::ROOT, node.ino(), b"user.value", &value, XattrSet::Any)?;
        assert!(fs.getxattr(node.ino(), b"user.value")? == value, "{len} bytes");
        let mut name = b"user.".to_vec();
        name.resize(255, b'n');
        if len < longest / 4 {
            fs.setxattr(&Caller::ROOT, node.ino(), &name, &value, XattrSet::Any)?;
            assert_eq!(fs.getxattr(node.ino(), &name)?, value);
        }
        root.remove(&Caller::ROOT, b"file")?;
    }
    // Too long for any file system: refused, and the earlier value stays.
    let node = root.create(&caller(), b"file", 0o644)?;
    fs.setxattr(&Caller::ROOT, node.ino(), b"user.a", b"kept", XattrSet::Any)?;
    let result =
        fs.setxattr(&Caller::ROOT, node.ino(), b"user.b", &vec![1; (64 << 10) + 1], XattrSet::Any);
    refused!(result, NoSpace | Range | TooLarge);
    assert_eq!(fs.getxattr(node.ino(), b"user.a")?, b"kept");
    assert_eq!(fs.listxattr(node.ino())?.len(), 1);
    Ok(())
}

pub(super) fn go_with_the_inode(bench: &Bench<'_>) -> Result<()> {
    if bench.limits.xattr_bytes == 0 {
        return Ok(());
    }
    let (fs, root) = (&bench.fs, bench.root());
    let value = pattern(9, bench.limits.xattr_bytes / 2);
    {
        let node = root.create(&caller(), b"file", 0o644)?;
        fs.setxattr(&Caller::ROOT, node.ino(), b"user.kept", &value, XattrSet::Any)?;
        node.link_as(&Caller::ROOT, &root, b"name2")?;
        root.remove(&Caller::ROOT, b"file")?;
    }
    fs.sync()?;
    let node = root.lookup(b"name2")?;
    assert_eq!(fs.getxattr(node.ino(), b"user.kept")?, value);
    let free = fs.statfs()?.blocks_free;
    root.remove(&Caller::ROOT, b"name2")?;
    drop(node);
    fs.sync()?;
    assert!(!bench.limits.counts_space || fs.statfs()?.blocks_free >= free);
    root.create(&caller(), b"file", 0o644)?;
    assert!(fs.listxattr(root.lookup(b"file")?.ino())?.is_empty(), "a new inode starts without");
    Ok(())
}
