//! Setting attributes with `setattr`.

use super::bench::{Bench, caller};
use crate::{Caller, Result, SetAttr, SetTime, Time};

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
