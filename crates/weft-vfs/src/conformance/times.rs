//! The times that each call changes. Each time is first set to a distant past, so that no test has
//! to wait.

use super::bench::{Bench, caller};
use crate::{Caller, Ino, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time};

const OLD: Time = Time { secs: 1_000_000_000, nanos: 0 };

fn age(bench: &Bench<'_>, ino: Ino) -> Result<()> {
    let set = SetAttr {
        atime: Some(SetTime::At(OLD)),
        mtime: Some(SetTime::At(OLD)),
        ctime: Some(OLD),
        ..SetAttr::default()
    };
    let attr = bench.fs.setattr(&Caller::ROOT, ino, &set)?;
    assert_eq!((attr.atime, attr.mtime), (OLD, OLD), "setattr sets every time");
    if bench.limits.sets_ctime {
        assert_eq!(attr.ctime, OLD, "setattr sets every time");
    }
    Ok(())
}

/// For each inode, whether its mtime and its ctime changed; the latter if the format has it.
#[derive(Debug)]
struct Seen<const N: usize> {
    of: [(bool, bool); N],
    own_times: bool,
}

impl<const N: usize> PartialEq<[(bool, bool); N]> for Seen<N> {
    fn eq(&self, want: &[(bool, bool); N]) -> bool {
        self.of
            .iter()
            .zip(want)
            .all(|(is, want)| is.0 == want.0 && (is.1 == want.1 || !self.own_times))
    }
}

/// Runs `call` and returns for each inode whether its mtime and its ctime changed to about now.
fn changed<const N: usize>(
    bench: &Bench<'_>,
    inodes: [Ino; N],
    call: impl FnOnce() -> Result<()>,
) -> Result<Seen<N>> {
    let mut before = [OLD; N];
    for (ino, before) in inodes.into_iter().zip(&mut before) {
        age(bench, ino)?;
        *before = bench.fs.getattr(ino)?.ctime;
    }
    if !bench.limits.sets_ctime {
        // Longer than the tick of the slowest clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    call()?;
    let soon = Time::now().secs - 60;
    let mut of = [(false, false); N];
    for ((ino, before), result) in inodes.into_iter().zip(before).zip(&mut of) {
        let attr = bench.fs.getattr(ino)?;
        for time in [attr.mtime, attr.ctime] {
            assert!(time == OLD || time.secs > soon, "neither the old time nor now: {time:?}");
        }
        *result = (attr.mtime != OLD, attr.ctime != before);
    }
    Ok(Seen { of, own_times: bench.limits.own_times })
}

const BOTH: (bool, bool) = (true, true);
const CTIME: (bool, bool) = (false, true);
const NONE: (bool, bool) = (false, false);

pub(super) fn of_content(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let node = root.create(&caller(), b"file", 0o644)?;
    let ino = node.ino();
    let set = |set: SetAttr| move || fs.setattr(&Caller::ROOT, ino, &set).map(|_| ());
    let size = |size| SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    assert_eq!(changed(bench, [ino], || node.write_at(&Caller::ROOT, 0, b"x"))?, [BOTH], "write");
    let nothing = || fs.write(&Caller::ROOT, ino, crate::Handle::NONE, 0, b"").map(|_| ());
    assert_eq!(changed(bench, [ino], nothing)?, [NONE], "a write of nothing");
    assert_eq!(changed(bench, [ino], set(size(100)))?, [BOTH], "growing");
    assert_eq!(changed(bench, [ino], set(size(10)))?, [BOTH], "cutting");
    assert_eq!(changed(bench, [ino], set(size(10)))?, [BOTH], "setting the same length");
    let read = || node.read_at(0, &mut [0; 10]).map(|_| ());
    assert_eq!(changed(bench, [ino], read)?, [NONE], "reading");
    let open = |flags| {
        move || {
            let opened = fs.open(&Caller::ROOT, ino, flags)?;
            fs.release(ino, opened.handle)
        }
    };
    assert_eq!(changed(bench, [ino], open(OpenFlags::READ))?, [NONE], "opening");
    let cut = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    assert_eq!(changed(bench, [ino], open(cut))?, [BOTH], "opening to cut");
    // A given mtime wins over that of the change of length, and ctime is now.
    let both = SetAttr { mtime: Some(SetTime::At(OLD)), ..size(5) };
    assert_eq!(changed(bench, [ino], set(both))?, [CTIME], "length and mtime at once");
    Ok(())
}

pub(super) fn of_names(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let file = root.create(&caller(), b"file", 0o644)?;
    let (d, f) = (dir.ino(), file.ino());
    let who = caller();
    let create = || dir.create(&who, b"a", 0o644).map(|_| ());
    assert_eq!(changed(bench, [d], create)?, [BOTH], "create");
    assert_eq!(changed(bench, [d], || dir.mkdir(&who, b"b", 0o755).map(|_| ()))?, [BOTH], "mkdir");
    if bench.limits.symlinks {
        let symlink = || dir.symlink(&who, b"c", b"x").map(|_| ());
        assert_eq!(changed(bench, [d], symlink)?, [BOTH], "symlink");
    }
    if bench.limits.hard_links {
        assert_eq!(
            changed(bench, [d, f], || file.link_as(&Caller::ROOT, &dir, b"l"))?,
            [BOTH, CTIME],
            "link"
        );
        assert_eq!(
            changed(bench, [d, f], || dir.remove(&Caller::ROOT, b"l"))?,
            [BOTH, CTIME],
            "unlink"
        );
    }
    assert_eq!(changed(bench, [d], || dir.remove(&Caller::ROOT, b"b"))?, [BOTH], "rmdir");
    let lookup = || dir.lookup(b"a").map(|_| ());
    assert_eq!(changed(bench, [d], lookup)?, [NONE], "lookup");
    let list = || dir.list().map(|_| ());
    assert_eq!(changed(bench, [d], list)?, [NONE], "listing");
    let failing = || {
        dir.create(&who, b"a", 0o644).expect_err("exists");
        dir.remove(&Caller::ROOT, b"none").expect_err("not there");
        Ok(())
    };
    assert_eq!(changed(bench, [d], failing)?, [NONE], "what fails changes nothing");
    Ok(())
}

pub(super) fn of_renames(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let (a, b) = (root.mkdir(&caller(), b"a", 0o755)?, root.mkdir(&caller(), b"b", 0o755)?);
    let file = a.create(&caller(), b"file", 0o644)?;
    let old = b.create(&caller(), b"old", 0o644)?;
    if bench.limits.hard_links {
        old.link_as(&Caller::ROOT, &root, b"kept")?;
    }
    let watched = [a.ino(), b.ino(), file.ino(), old.ino()];
    let rename = |from: (Ino, &'static [u8]), to: (Ino, &'static [u8]), flags| {
        move || fs.rename(&Caller::ROOT, from.0, from.1, to.0, to.1, flags)
    };
    let plain = RenameFlags::empty();
    let over = rename((a.ino(), b"file"), (b.ino(), b"old"), plain);
    assert_eq!(changed(bench, watched, over)?, [BOTH, BOTH, CTIME, CTIME], "over a file");
    let within = rename((b.ino(), b"old"), (b.ino(), b"new"), plain);
    assert_eq!(changed(bench, watched, within)?, [NONE, BOTH, CTIME, NONE], "in one directory");
    let same = rename((b.ino(), b"new"), (b.ino(), b"new"), plain);
    assert_eq!(changed(bench, watched, same)?, [NONE; 4], "to the same name");
    let dir = a.mkdir(&caller(), b"dir", 0o755)?;
    let watched = [a.ino(), b.ino(), dir.ino()];
    let moved = rename((a.ino(), b"dir"), (b.ino(), b"dir"), plain);
    let result = changed(bench, watched, moved)?;
    // Whether `..` counts as content of a moved directory is up to the format.
    assert!(result == [BOTH, BOTH, (result.of[2].0, true)], "a directory: {result:?}");
    Ok(())
}

pub(super) fn of_the_inode(bench: &Bench<'_>) -> Result<()> {
    let fs = &bench.fs;
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    let ino = node.ino();
    let set = |set: SetAttr| move || fs.setattr(&Caller::ROOT, ino, &set).map(|_| ());
    let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    assert_eq!(changed(bench, [ino], set(chmod))?, [CTIME], "chmod");
    if bench.limits.owners_and_modes {
        let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
        assert_eq!(changed(bench, [ino], set(chown))?, [CTIME], "chown");
    }
    let touch = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(changed(bench, [ino], set(touch))?, [CTIME], "atime");
    assert_eq!(changed(bench, [ino], set(SetAttr::default()))?, [NONE], "nothing");
    if bench.limits.xattr_bytes > 0 {
        let put = || fs.setxattr(&Caller::ROOT, ino, b"user.x", b"y", crate::XattrSet::Any);
        assert_eq!(changed(bench, [ino], put)?, [CTIME], "setxattr");
        let remove = || fs.removexattr(&Caller::ROOT, ino, b"user.x");
        assert_eq!(changed(bench, [ino], remove)?, [CTIME], "removexattr");
    }
    let stat = || fs.getattr(ino).map(|_| ());
    assert_eq!(changed(bench, [ino], stat)?, [NONE], "stat");
    Ok(())
}
