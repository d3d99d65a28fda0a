//! A snapshot is what the directory was, and stays so.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_block::Rng;
use weft_ringer_client::{RingerFs, SNAPSHOTS_XATTR};
use weft_ringer_net::{Answer, Ask, ask};
use weft_vfs::{
    Caller, FileKind, FileSystem, Handle, Ino, OpenFlags, RenameFlags, Result, SetAttr, Walker,
    XattrSet,
};

use super::Cell;
use super::copies::files_below;
use super::text::{change, names_in};
use weft_testing::wait_until;

const EPOCH: Duration = Duration::from_secs(2);

fn join(cell: &Cell, name: &str) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(20);
    options.scan_every = Duration::from_millis(200);
    // Evicted blocks are fetched again from their holders.
    options.cache_max_bytes = 0;
    RingerFs::join(options).expect("it joins")
}

fn ino(fs: &RingerFs, path: &str) -> Ino {
    let (mut at, mut found) = (fs.root(), Vec::new());
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = fs.lookup(at, part.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}")).attr.ino;
        found.push(at);
    }
    // Releases the references, so that removed files can be reaped; virtual folders live as long as they
    // are known.
    found.into_iter().filter(|ino| ino.0 >> 63 == 0).for_each(|ino| fs.forget(ino, 1));
    at
}

fn tell(fs: &RingerFs, dir: &str, what: &str) -> Result<()> {
    fs.setxattr(&Caller::ROOT, ino(fs, dir), SNAPSHOTS_XATTR, what.as_bytes(), XattrSet::Any)
}

/// The content of a tree by path.
type Tree = BTreeMap<String, (FileKind, u16, i64, Vec<u8>)>;

fn walk(fs: &RingerFs, dir: Ino, above: &str, into: &mut Tree) {
    for (name, ino, kind) in names_in(fs, dir) {
        let path = format!("{above}/{name}");
        let attr = fs.getattr(ino).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut bytes = Vec::new();
        match kind {
            FileKind::Directory => walk(fs, ino, &path, into),
            FileKind::Symlink => bytes = fs.readlink(ino).expect("a link"),
            _ => {
                bytes = vec![0; 100_000];
                let len = fs.read(ino, Handle::NONE, 0, &mut bytes);
                bytes.truncate(len.unwrap_or_else(|e| panic!("{path}: {e}")));
            }
        }
        into.insert(path, (kind, attr.perm, attr.mtime.secs, bytes));
    }
}

fn tree(fs: &RingerFs, path: &str) -> Tree {
    let mut tree = Tree::new();
    walk(fs, ino(fs, path), "", &mut tree);
    tree
}

/// Rnodes that the server has, and that all is well with them.
fn checked(cell: &Cell) -> u64 {
    let answer = ask(&cell.address(), None, &Ask::Check {}).expect("looked at");
    let Answer::Checked { rnodes, problems, problem_count, .. } = answer else { panic!() };
    assert_eq!(problem_count, 0, "{problems:?}");
    rnodes
}

#[test]
fn snapshot_is_consistent_and_immutable() {
    for seed in 1..=3 {
        let mut cell = Cell::new(Duration::from_secs(15));
        let mut rng = Rng::new(seed);
        let clients = [join(&cell, "a"), join(&cell, "b")];
        let root = clients[0].root();
        let d = clients[0].mkdir(&Caller::ROOT, root, b"d", 0o755).expect("made").attr.ino;
        for (at, name) in [(d, &b"deep"[..]), (root, b"other")] {
            clients[0].mkdir(&Caller::ROOT, at, name, 0o755).expect("made");
        }
        let mut made: Vec<(&str, String, Tree)> = Vec::new();
        for round in 0..6 {
            for _ in 0..40 {
                change(&clients[rng.index(2)], &mut rng);
            }
            let (by, dir) = (&clients[rng.index(2)], ["", "d"][rng.index(2)]);
            // Without a sync: the snapshot contains unsent changes as well.
            tell(by, dir, &format!("create s{round}")).expect("a snapshot");
            let path = format!("{dir}/.snapshots/s{round}");
            made.push((dir, path, tree(&clients[rng.index(2)], dir)));
            if round == 3 {
                cell.stop();
                cell.start();
            }
            for (_, path, was) in &made {
                let is = tree(&clients[rng.index(2)], path);
                assert_eq!(&is, was, "replay with seed {seed}, round {round}: {path}");
            }
        }
        clients.iter().for_each(|fs| fs.sync().expect("durable"));
        checked(&cell);
        // Time to remove more than what is of no use: if it is too short, a mistake is not found.
        // Another client has nothing of its own.
        std::thread::sleep(Duration::from_secs(1));
        let c = join(&cell, "c");
        for (_, path, was) in &made {
            assert_eq!(&tree(&c, path), was, "replay with seed {seed}: {path}");
        }
        for (n, (dir, path, _)) in made.iter().enumerate() {
            tell(&c, dir, &format!("remove s{n}")).expect("removed");
            let name = path.rsplit('/').next().expect("a name").as_bytes();
            let folder = ino(&c, &format!("{dir}/.snapshots"));
            assert_eq!(c.lookup(folder, name).expect_err("gone").errno(), 2);
            if n == 2 {
                // In the middle of clearing it away.
                cell.stop();
                cell.start();
            }
        }
        let live = tree(&c, "").len() as u64 + 1;
        // Hard links share an inode, so there are at most as many inodes as names.
        clients.iter().for_each(|fs| fs.unmount().expect("all is told"));
        wait_until("all of them goes", || checked(&cell) <= live);
    }
}

#[test]
fn snapshot_keeps_its_blocks_until_removed() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    let walker = Walker::new(&a);
    walker.mkdir(b"/d", 0o755).expect("made");
    let content = |seed: u8| -> Vec<u8> {
        (0..300_000_u32).map(|n| (n % 251) as u8 ^ seed ^ (n >> 16) as u8).collect()
    };
    let blocks = 300_000_usize.div_ceil(64 << 10);
    walker.write_file(b"/d/file", &content(1), 0o644).expect("written");
    walker.write_file(b"/d/gone", &content(2), 0o644).expect("written");
    tell(&b, "d", "create first").expect("a snapshot");
    walker.write_file(b"/d/file", &content(3), 0o644).expect("written");
    walker.remove(b"/d/gone").expect("removed");
    a.sync().expect("durable");
    // More than one look through; if there was none yet, a mistake is not found.
    std::thread::sleep(Duration::from_secs(1));
    let kept = |name: &str| files_below(&cell.path(name).join("own"));
    assert_eq!(kept("a"), 3 * blocks);
    let b_walker = Walker::new(&b);
    for (path, seed) in [("file", 1), ("gone", 2)] {
        let path = format!("/d/.snapshots/first/{path}");
        assert!(b_walker.read_file(path.as_bytes()).expect("from a") == content(seed), "{path}");
    }
    // A removed file is restored by copying it from the snapshot.
    let back = b_walker.read_file(b"/d/.snapshots/first/gone").expect("read");
    b_walker.write_file(b"/d/back", &back, 0o644).expect("written");
    assert!(walker.read_file(b"/d/back").expect("read") == content(2));
    walker.remove(b"/d/back").expect("removed");
    tell(&a, "d", "remove first").expect("removed");
    wait_until("old blocks go", || kept("a") == blocks && kept("b") == 0);
    assert!(walker.read_file(b"/d/file").expect("read") == content(3));
    // With its directory.
    tell(&a, "d", "create second").expect("a snapshot");
    walker.remove_tree(b"/d", &mut |_| {}).expect("removed");
    a.sync().expect("durable");
    wait_until("all goes", || checked(&cell) == 1 && kept("a") == 0);
}

#[test]
fn snapshots_are_read_only_and_unlisted() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a");
    let walker = Walker::new(&a);
    walker.mkdir_all(b"/d/e", 0o755).expect("made");
    walker.write_file(b"/d/file", b"content", 0o644).expect("written");
    walker.symlink(b"/d/link", b"file").expect("made");
    for bad in ["create", "create ", "create a/b", "create ..", "remove", "make x", ""] {
        assert_eq!(tell(&a, "d", bad).expect_err(bad).errno(), 22, "{bad}");
    }
    tell(&a, "d", "create one").expect("a snapshot");
    assert_eq!(tell(&a, "d", "create one").expect_err("there is one").errno(), 17);
    assert_eq!(tell(&a, "d", "remove two").expect_err("there is none").errno(), 2);
    assert_eq!(tell(&a, "d/file", "create x").expect_err("a file").errno(), 20);
    let listed = a.getxattr(ino(&a, "d"), SNAPSHOTS_XATTR).expect("a list");
    assert!(String::from_utf8(listed).expect("text").ends_with("\t3\tone\n"));
    assert_eq!(tree(&a, "d").keys().collect::<Vec<_>>(), ["/e", "/file", "/link"]);
    assert_eq!(tree(&a, "d/.snapshots/one"), tree(&a, "d"));

    let (top, dir) = (ino(&a, "d/.snapshots"), ino(&a, "d/.snapshots/one"));
    let (file, caller) = (ino(&a, "d/.snapshots/one/file"), Caller::ROOT);
    let live = ino(&a, "d");
    assert_eq!(a.lookup(dir, b"..").expect("there").attr.ino, live);
    assert_eq!(a.lookup(top, b"..").expect("there").attr.ino, live);
    assert!(a.lookup(dir, b".snapshots").is_err());
    let size = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    let none = RenameFlags::empty();
    for (what, done) in [
        ("write", a.write(&Caller::ROOT, file, Handle::NONE, 0, b"x").map(drop)),
        ("open", a.open(&Caller::ROOT, file, OpenFlags::READ | OpenFlags::WRITE).map(drop)),
        ("truncate", a.open(&Caller::ROOT, file, OpenFlags::READ | OpenFlags::TRUNCATE).map(drop)),
        ("setattr", a.setattr(&Caller::ROOT, file, &size).map(drop)),
        ("mkdir", a.mkdir(&caller, dir, b"new", 0o755).map(drop)),
        ("mkdir in the folder", a.mkdir(&caller, top, b"new", 0o755).map(drop)),
        ("link to it", a.link(&Caller::ROOT, file, live, b"new").map(drop)),
        ("unlink", a.unlink(&Caller::ROOT, dir, b"file")),
        ("rmdir", a.rmdir(&Caller::ROOT, dir, b"e")),
        ("remove it", a.rmdir(&Caller::ROOT, top, b"one")),
        ("rename in it", a.rename(&Caller::ROOT, dir, b"file", dir, b"new", none)),
        ("rename out of it", a.rename(&Caller::ROOT, dir, b"file", live, b"new", none)),
        ("setxattr", a.setxattr(&Caller::ROOT, file, b"user.x", b"1", XattrSet::Any)),
        (
            "snapshot of it",
            a.setxattr(&Caller::ROOT, dir, SNAPSHOTS_XATTR, b"create x", XattrSet::Any),
        ),
        ("pin", a.setxattr(&Caller::ROOT, file, b"user.weft.pin", b"1", XattrSet::Any)),
    ] {
        assert_eq!(done.expect_err(what).errno(), 30, "{what}");
    }
    assert_eq!(a.mkdir(&caller, live, b".snapshots", 0o755).expect_err("taken").errno(), 17);
    assert_eq!(tree(&a, "d/.snapshots/one"), tree(&a, "d"));
    checked(&cell);
}
