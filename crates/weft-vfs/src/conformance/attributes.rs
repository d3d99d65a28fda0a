//! Setting attributes with `setattr`.

use super::bench::{Bench, caller};
use crate::{Caller, Result, SetAttr, SetTime, Time, access};

pub(super) fn mode_and_owner(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let nodes = [root.create(&caller(), b"file", 0o644)?, root.mkdir(&caller(), b"dir", 0o755)?];
    for node in nodes {
        for perm in [0, 0o777, 0o7777, 0o1000, 0o4711] {
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            let attr = bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?;
            let perm = bench.limits.shown(node.kind(), perm);
            assert_eq!((attr.perm, attr.kind), (perm, node.kind()));
            assert_eq!(node.stat()?, attr);
        }
        for id in [0, 1, 65_535, 65_536, 1_000_000, u32::MAX - 1] {
            let set = SetAttr { uid: Some(id), gid: Some(id / 2), ..SetAttr::default() };
            let attr = bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?;
            let perm = bench.limits.shown(node.kind(), 0o4711);
            assert_eq!((attr.uid, attr.gid, attr.perm), (id, id / 2, perm));
        }
    }
    Ok(())
}

pub(super) fn explicit_times(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    let unit = bench.limits.time_unit_nanos;
    let range = &bench.limits.seconds;
    for secs in [*range.start(), -1, 0, 1_000_000_000, i64::from(i32::MAX), 1 << 32, *range.end()] {
        if !range.contains(&secs) {
            continue;
        }
        for nanos in [0, 123_456_789, 999_999_999] {
            let nanos = nanos / unit * unit;
            let (at, other) = (Time { secs, nanos }, Time { secs: secs / 2, nanos });
            let set = SetAttr {
                atime: Some(SetTime::At(at)),
                mtime: Some(SetTime::At(other)),
                ..SetAttr::default()
            };
            bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?;
            let attr = node.stat()?;
            assert_eq!(attr.mtime, other);
            assert!(attr.atime == at || !bench.limits.own_times);
        }
    }
    let before = Time { secs: Time::now().secs - 2, nanos: 0 };
    let old = Some(SetTime::At(Time::default()));
    bench.fs.setattr(
        &Caller::ROOT,
        node.ino(),
        &SetAttr { atime: old, mtime: old, ..SetAttr::default() },
    )?;
    let set = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    let attr = bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?;
    assert!(attr.atime > before || !bench.limits.own_times);
    assert!(attr.mtime < before, "only the one asked for is set to now");
    Ok(())
}

pub(super) fn privileges_fall(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let kill = SetAttr { kill_privileges: true, ..SetAttr::default() };
    for (name, perm, left) in
        [("run", 0o6755, 0o755), ("lock", 0o6745, 0o2745), ("none", 0o644, 0o644)]
    {
        let node = root.create(&caller(), name.as_bytes(), perm)?;
        let left = bench.limits.shown(node.kind(), left);
        assert_eq!(bench.fs.setattr(&Caller::ROOT, node.ino(), &kill)?.perm, left);
    }
    Ok(())
}

/// Setuid and setgid fall with a change of owner, as with a change of content, but not those of a
/// directory: what is made in a directory with setgid gets its group. A mode that is set at the same
/// time is meant as it is.
pub(super) fn privileges_of_files_alone_fall(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let owners = [(None, None), (Some(17), None), (None, Some(11)), (Some(18), Some(12))];
    for (at, (uid, gid)) in owners.into_iter().enumerate() {
        let chown = SetAttr { uid, gid, kill_privileges: true, ..SetAttr::default() };
        for perm in [0o2775, 0o4755, 0o6755, 0o7777, 0o2745, 0o644] {
            let chmod = SetAttr { perm: Some(perm), ..SetAttr::default() };
            let name = |kind| format!("{kind}-{at}-{perm:o}");
            let dir = root.mkdir(&caller(), name("dir").as_bytes(), 0o755)?;
            bench.fs.setattr(&Caller::ROOT, dir.ino(), &chmod)?;
            let before = dir.stat()?;
            let after = bench.fs.setattr(&Caller::ROOT, dir.ino(), &chown)?;
            let owner = (uid.unwrap_or(before.uid), gid.unwrap_or(before.gid));
            assert_eq!((after.perm, after.uid, after.gid), (perm, owner.0, owner.1));
            assert_eq!(dir.stat()?.perm, perm);
            if perm & 0o2000 != 0 {
                let made = dir.create(&Caller::ROOT, b"made", 0o644)?;
                assert_eq!(made.stat()?.gid, owner.1, "the group of a directory with setgid");
                let sub = dir.mkdir(&Caller::ROOT, b"sub", 0o755)?;
                assert_eq!((sub.stat()?.gid, sub.stat()?.perm & 0o2000), (owner.1, 0o2000));
            }

            let file = root.create(&caller(), name("file").as_bytes(), 0o644)?;
            bench.fs.setattr(&Caller::ROOT, file.ino(), &chmod)?;
            let after = bench.fs.setattr(&Caller::ROOT, file.ino(), &chown)?;
            let left = bench.limits.shown(file.kind(), access::without_privileges(perm));
            assert_eq!((after.perm, file.stat()?.perm), (left, left), "a file with {perm:o}");
            let both = SetAttr { perm: Some(perm), ..chown };
            let after = bench.fs.setattr(&Caller::ROOT, file.ino(), &both)?;
            assert_eq!(after.perm, bench.limits.shown(file.kind(), perm), "with a mode");
        }
    }
    Ok(())
}

pub(super) fn survive_forgetting(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let before = {
        let node = root.create(&caller(), b"file", 0o640)?;
        node.write_at(&Caller::ROOT, 100, b"x")?;
        let at = Time { secs: 1_000_000_000, nanos: 0 };
        let set = SetAttr {
            uid: bench.limits.owners_and_modes.then_some(4242),
            atime: Some(SetTime::At(at)),
            mtime: Some(SetTime::At(at)),
            ..SetAttr::default()
        };
        bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?
    };
    bench.fs.sync()?;
    let after = root.lookup(b"file")?.stat()?;
    assert_eq!(after, before);
    Ok(())
}
