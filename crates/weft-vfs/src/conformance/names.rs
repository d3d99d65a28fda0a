//! Valid names, and how they are returned.

use std::collections::BTreeSet;

use super::bench::{Bench, caller, refused};
use crate::{Caller, RenameFlags, Result};

fn check_listed(bench: &Bench<'_>, want: &BTreeSet<Vec<u8>>) -> Result<()> {
    let listed: Vec<_> = bench.root().list()?.into_iter().map(|l| l.name).collect();
    assert_eq!(listed.len(), want.len(), "number of names listed");
    assert_eq!(&listed.into_iter().collect::<BTreeSet<_>>(), want);
    Ok(())
}

pub(super) fn every_length(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let mut want: BTreeSet<_> = root.list()?.into_iter().map(|l| l.name).collect();
    let longest = bench.limits.name_bytes;
    for len in 1..=longest {
        let name = vec![b'n'; len];
        let made = root.create(&caller(), &name, 0o644)?;
        assert_eq!(root.lookup(&name)?.ino(), made.ino(), "length {len}");
        want.insert(name);
    }
    check_listed(bench, &want)?;
    for len in 1..=longest {
        root.remove(&Caller::ROOT, &vec![b'n'; len])?;
        refused!(root.lookup(&vec![b'n'; len]), NotFound);
    }
    Ok(())
}

pub(super) fn every_byte(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let mut want: BTreeSet<_> = root.list()?.into_iter().map(|l| l.name).collect();
    for byte in (1..=255).filter(|&b| b != b'/') {
        for name in [vec![byte], vec![b'x', byte], vec![byte, 0xff, byte, b'.']] {
            if name == b"." || name == b".." || want.contains(&name) {
                continue;
            }
            root.create(&caller(), &name, 0o600)?;
            root.lookup(&name)?;
            want.insert(name);
        }
    }
    check_listed(bench, &want)
}

pub(super) fn too_long_everywhere(bench: &Bench<'_>) -> Result<()> {
    let (root, long) = (bench.root(), vec![b'l'; bench.limits.name_bytes + 1]);
    let file = root.create(&caller(), b"file", 0o644)?;
    refused!(root.lookup(&long), NameTooLong);
    refused!(root.create(&caller(), &long, 0o644), NameTooLong);
    refused!(root.mkdir(&caller(), &long, 0o755), NameTooLong);
    if bench.limits.symlinks {
        refused!(root.symlink(&caller(), &long, b"file"), NameTooLong);
    }
    if bench.limits.hard_links {
        refused!(file.link_as(&Caller::ROOT, &root, &long), NameTooLong);
    }
    refused!(bench.fs.unlink(&Caller::ROOT, root.ino(), &long), NameTooLong);
    refused!(bench.fs.rmdir(&Caller::ROOT, root.ino(), &long), NameTooLong);
    let flags = RenameFlags::empty();
    refused!(
        bench.fs.rename(&Caller::ROOT, root.ino(), b"file", root.ino(), &long, flags),
        NameTooLong
    );
    refused!(
        bench.fs.rename(&Caller::ROOT, root.ino(), &long, root.ino(), b"file", flags),
        NameTooLong
    );
    Ok(())
}

pub(super) fn forbidden(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    for name in [&b""[..], b"a/b", b"/", b"a\0", b"\0"] {
        refused!(root.lookup(name), Invalid(_) | NotFound);
        refused!(root.create(&caller(), name, 0o644), Invalid(_) | NotFound);
        refused!(root.mkdir(&caller(), name, 0o755), Invalid(_) | NotFound);
    }
    for name in [&b"."[..], b".."] {
        refused!(root.create(&caller(), name, 0o644), Exists);
        refused!(root.mkdir(&caller(), name, 0o755), Exists);
        if bench.limits.symlinks {
            refused!(root.symlink(&caller(), name, b"x"), Exists);
        }
    }
    Ok(())
}

pub(super) fn dot_and_dot_dot(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let upper = root.mkdir(&caller(), b"upper", 0o755)?;
    let lower = upper.mkdir(&caller(), b"lower", 0o755)?;
    assert_eq!(lower.lookup(b".")?.ino(), lower.ino());
    assert_eq!(lower.lookup(b"..")?.ino(), upper.ino());
    assert_eq!(upper.lookup(b"..")?.ino(), root.ino());
    assert_eq!(root.lookup(b"..")?.ino(), root.ino(), "the root is its own parent");
    refused!(bench.fs.rmdir(&Caller::ROOT, lower.ino(), b"."), Invalid(_));
    refused!(bench.fs.rmdir(&Caller::ROOT, lower.ino(), b".."), NotEmpty);
    refused!(bench.fs.unlink(&Caller::ROOT, lower.ino(), b"."), IsADirectory);
    Ok(())
}
