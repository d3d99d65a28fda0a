//! Random changes of a small tree, for tests.

use weft_block::Rng;
use weft_vfs::{Caller, FileKind, FileSystem, Handle, RenameFlags, SetAttr, Walker};

/// Makes up to 30 changes, or calls that make some durable. Many of them fail.
pub(crate) fn change(fs: &dyn FileSystem, rng: &mut Rng) {
    let walker = Walker::new(fs);
    let dirs = ["/", "/a/", "/b/", "/a/c/"];
    let name = |rng: &mut Rng| {
        let dir = dirs[rng.below(4) as usize];
        format!("{dir}{}", rng.below(4)).into_bytes()
    };
    for _ in 0..rng.below(30) {
        let (from, to) = (name(rng), name(rng));
        let content = vec![rng.below(256) as u8; rng.below(20_000) as usize];
        let dir = dirs[rng.below(4) as usize].trim_end_matches('/').as_bytes();
        let _ = match rng.below(12) {
            0 | 1 => walker.write_file(&from, &content, 0o640).map(|_| ()),
            2 => walker.remove(&from),
            3 | 4 => walker.rename(&from, &to, RenameFlags::empty()),
            5 => walker.link(&from, &to),
            6 => walker.symlink(b"target", &from).map(|_| ()),
            7 => walker.mkdir(dir, 0o755).map(|_| ()),
            8 => walker.resolve(&from).and_then(|node| {
                let is_file = node.kind() == FileKind::Regular;
                let size_bytes = is_file.then(|| rng.below(9000));
                let set = SetAttr { perm: Some(0o600), size_bytes, ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, node.ino(), &set).map(|_| ())
            }),
            9 => walker.resolve(&from).and_then(|node| {
                fs.write(&Caller::ROOT, node.ino(), Handle::NONE, rng.below(9000), &content)
                    .map(|_| ())
            }),
            10 => walker
                .resolve(&from)
                .and_then(|node| fs.fsync(&Caller::ROOT, node.ino(), rng.below(2) == 0)),
            _ => walker.resolve(dir).and_then(|dir| fs.fsync_dir(&Caller::ROOT, dir.ino())),
        };
    }
}
