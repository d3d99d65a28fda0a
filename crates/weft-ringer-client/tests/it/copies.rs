//! Copies on several clients: made, waited for, and never dropped when they are the last.

use std::path::Path;
use std::time::{Duration, Instant};

use weft_ringer::POLICY_XATTR;
use weft_ringer_client::{HOLDERS_XATTR, PIN_XATTR, RingerFs, STORE_XATTR};
use weft_ringer_net::{Answer, Ask, ask};
use weft_vfs::{Caller, Error, FileSystem, Walker, XattrSet};

use super::{Cell, attribute, content, ino, set_policy, write};
use weft_testing::wait_until;

const EPOCH: Duration = Duration::from_secs(2);

fn join(cell: &Cell, name: &str, store_max_bytes: u64) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(50);
    options.scan_every = Duration::from_secs(1);
    options.store_max_bytes = store_max_bytes;
    options.cache_max_bytes = 0;
    RingerFs::join(options).expect("it joins")
}

/// How many clients have what the file is now.
fn current(fs: &RingerFs, name: &str) -> usize {
    let text = attribute(fs, name, HOLDERS_XATTR);
    text.lines().filter(|line| line.contains("\tcurrent\t")).count()
}

pub(super) fn files_below(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let count =
        entries.flatten().map(|e| if e.path().is_dir() { files_below(&e.path()) } else { 1 });
    count.sum()
}

#[test]
fn a_policy_is_checked_inherited_and_seen_by_all() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a", u64::MAX), join(&cell, "b", u64::MAX));
    let walker = Walker::new(&a);
    walker.mkdir(b"/d", 0o755).expect("made");
    walker.mkdir(b"/d/e", 0o755).expect("made");
    walker.write_file(b"/d/e/file", b"content", 0o644).expect("written");
    set_policy(&a, "", "copies=1");
    for (dir, policy) in [("d", "copies=3 fsync=2"), ("d/e", "")] {
        assert!(attribute(&b, "d/e/file", HOLDERS_XATTR).starts_with("policy\tcopies="));
        set_policy(&b, dir, policy);
    }
    assert!(attribute(&a, "d/e/file", HOLDERS_XATTR).starts_with("policy\tcopies=0 fsync=0"));
    b.removexattr(&Caller::ROOT, ino(&b, "d/e"), POLICY_XATTR).expect("there was one");
    assert!(attribute(&a, "d/e/file", HOLDERS_XATTR).starts_with("policy\tcopies=3 fsync=2"));
    for bad in ["copies=99", "fsync=1", "nonsense"] {
        let set =
            a.setxattr(&Caller::ROOT, ino(&a, "d"), POLICY_XATTR, bad.as_bytes(), XattrSet::Any);
        assert_eq!(set.expect_err("no policy").errno(), 22, "{bad}");
    }
    let on_file =
        a.setxattr(&Caller::ROOT, ino(&a, "d/e/file"), POLICY_XATTR, b"copies=1", XattrSet::Any);
    assert_eq!(on_file.expect_err("of directories").errno(), 22);
}

#[test]
fn fsync_waits_until_others_have_the_file() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a", u64::MAX), join(&cell, "b", u64::MAX));
    set_policy(&a, "", "copies=1 fsync=1");
    let bytes = content(1, 1_000_000);
    write(&a, "/file", &bytes);
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("on b");
    assert!(files_below(&cell.path("b").join("copy")) > 0);
    // The machine is gone at once, with its store.
    a.vanish();
    drop(a);
    std::fs::remove_dir_all(cell.path("a")).expect("gone");
    assert!(Walker::new(&b).read_file(b"/file").expect("it has it") == bytes);
}

#[test]
fn files_are_copied_after_they_are_written_and_kept_up_to_date() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a", u64::MAX);
    set_policy(&a, "", "copies=2");
    write(&a, "/file", &content(1, 300_000));
    a.sync().expect("with the server");
    // No other client is connected: nothing waits, and the file is reported as under-replicated.
    wait_until("a file is known to lack copies", || {
        attribute(&a, "", STORE_XATTR).contains("files_with_copies_to_make\t1\n")
    });
    let (b, c) = (join(&cell, "b", u64::MAX), join(&cell, "c", u64::MAX));
    wait_until("two copies and the writer's", || current(&a, "file") == 3);
    let second = content(2, 400_000);
    write(&a, "/file", &second);
    assert!(current(&a, "file") < 3, "old copies count no more");
    wait_until("all are up to date", || current(&a, "file") == 3);
    // Blocks that the file no longer has are deleted.
    let blocks = 400_000_usize.div_ceil(64 << 10);
    wait_until("old blocks go", || files_below(&cell.path("b").join("copy")) == blocks);
    drop((a, c));
    std::fs::remove_dir_all(cell.path("a")).expect("gone");
    std::fs::remove_dir_all(cell.path("c")).expect("gone");
    assert!(Walker::new(&b).read_file(b"/file").expect("it has it") == second);
}

#[test]
fn attributes_change_no_copy() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a", u64::MAX), join(&cell, "b", u64::MAX));
    set_policy(&a, "", "copies=1 fsync=1");
    write(&a, "/file", &content(1, 100_000));
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("on b");
    let file = ino(&b, "file");
    b.setxattr(&Caller::ROOT, file, b"user.mark", b"1", XattrSet::Any).expect("set");
    let (root, set) = (b.root(), weft_vfs::SetAttr { perm: Some(0o600), ..Default::default() });
    b.setattr(&Caller::ROOT, file, &set).expect("set");
    b.link(&Caller::ROOT, file, root, b"other").expect("linked");
    b.rename(&Caller::ROOT, root, b"file", root, b"moved", weft_vfs::RenameFlags::empty())
        .expect("moved");
    assert_eq!(current(&a, "moved"), 2);
}

#[test]
fn last_copy_is_never_evicted() {
    let cell = Cell::new(EPOCH);
    // Room for one of the files, and nothing to read again.
    let a = join(&cell, "a", 300_000);
    let files: Vec<_> = (0..4_u8).map(|n| (format!("/{n}"), content(n, 250_000))).collect();
    for (path, bytes) in &files {
        Walker::new(&a).write_file(path.as_bytes(), bytes, 0o644).expect("room on the disk");
    }
    a.sync().expect("with the server");
    // Scans that might drop some: if there were none yet, a mistake is not found.
    std::thread::sleep(Duration::from_secs(3));
    for (path, bytes) in &files {
        assert!(&Walker::new(&a).read_file(path.as_bytes()).expect("still there") == bytes);
    }
    // Once another has them, most go; what is read again comes from there.
    let b = join(&cell, "b", u64::MAX);
    b.setxattr(&Caller::ROOT, b.root(), PIN_XATTR, b"1", XattrSet::Any).expect("pinned");
    let own = cell.path("a").join("own");
    wait_until("there is room", || files_below(&own) <= 300_000 / (64 << 10) + 1);
    for (path, bytes) in &files {
        assert!(&Walker::new(&a).read_file(path.as_bytes()).expect("from b") == bytes);
    }
    // Now b has the last copy of some, and may not drop those, pinned or not.
    b.removexattr(&Caller::ROOT, b.root(), PIN_XATTR).expect("it was pinned");
    drop(b);
    let b = join(&cell, "b", 0);
    // As above.
    std::thread::sleep(Duration::from_secs(3));
    for (path, bytes) in &files {
        assert!(&Walker::new(&a).read_file(path.as_bytes()).expect("from b") == bytes, "{path}");
    }
    drop(b);
}

#[test]
fn two_clients_do_not_evict_the_last_copies() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a", u64::MAX), join(&cell, "b", u64::MAX));
    set_policy(&a, "", "copies=1 fsync=1");
    let bytes = content(7, 500_000);
    write(&a, "/file", &bytes);
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("on b");
    set_policy(&a, "", "");
    drop((a, b));
    // Neither has room for it now, and both ask at the same time.
    let (a, b) = (join(&cell, "a", 0), join(&cell, "b", 0));
    wait_until("one lets it go", || current(&a, "file") == 1);
    // Time for the other to drop it, too: if it is too short, a mistake is not found.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(current(&b, "file"), 1);
    for fs in [&a, &b] {
        assert!(Walker::new(fs).read_file(b"/file").expect("one has it") == bytes);
    }
}

#[test]
fn a_peer_without_room_fails_fsync_and_not_the_write() {
    let cell = Cell::new(EPOCH);
    let mut options = cell.options("a");
    // Longer than the epoch of the client that has left.
    options.patience = Duration::from_secs(4);
    let a = RingerFs::join(options).expect("it joins");
    let b = join(&cell, "b", 1000);
    set_policy(&a, "", "copies=1 fsync=1");
    let bytes = content(1, 100_000);
    Walker::new(&a).write_file(b"/file", &bytes, 0o644).expect("the write is local");
    let begun = Instant::now();
    let error = a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect_err("b has no room");
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(4), "it waits for room as long as it may");
    assert!(Walker::new(&b).read_file(b"/file").expect("b reads it all the same") == bytes);
    // Without other clients the error is not about room.
    drop(b);
    Walker::new(&a).write_file(b"/other", &bytes, 0o644).expect("the write is local");
    let error = a.fsync(&Caller::ROOT, ino(&a, "other"), false).expect_err("no other client");
    assert!(error.to_string().contains("0 of 1 copies"), "{error}");
    // Without such a policy fsync needs no other client.
    set_policy(&a, "", "copies=1");
    a.fsync(&Caller::ROOT, ino(&a, "other"), false).expect("local");
}

#[test]
fn a_peer_that_vanishes_while_it_copies_is_replaced() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a", u64::MAX);
    set_policy(&a, "", "copies=1 fsync=1");
    let bytes = content(3, 8_000_000);
    write(&a, "/file", &bytes);
    a.sync().expect("with the server");
    let b = join(&cell, "b", u64::MAX);
    let copies = cell.path("b").join("copy");
    wait_until("b has begun", || files_below(&copies) > 0);
    b.vanish();
    drop(b);
    let done = files_below(&copies);
    let c = join(&cell, "c", u64::MAX);
    if done < 8_000_000_usize.div_ceil(64 << 10) {
        // The copy of b does not count.
        a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("on c");
        assert!(files_below(&cell.path("c").join("copy")) >= 123);
    }
    wait_until("a copy", || current(&a, "file") >= 2);
    drop(c);
}

#[test]
fn pinned_files_are_complete_locally() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a", u64::MAX);
    let walker = Walker::new(&a);
    walker.mkdir(b"/d", 0o755).expect("made");
    walker.mkdir(b"/d/deep", 0o755).expect("made");
    walker.write_file(b"/d/one", &content(1, 200_000), 0o644).expect("written");
    walker.write_file(b"/d/deep/two", &content(2, 200_000), 0o644).expect("written");
    walker.write_file(b"/other", &content(3, 200_000), 0o644).expect("written");
    let b = join(&cell, "b", u64::MAX);
    b.setxattr(&Caller::ROOT, ino(&b, "d"), PIN_XATTR, b"1", XattrSet::Any).expect("pinned");
    assert_eq!(attribute(&b, "d", PIN_XATTR), "1");
    wait_until("both are here", || current(&a, "d/one") + current(&a, "d/deep/two") == 2);
    // Also what comes later, and over a restart.
    drop(b);
    walker.write_file(b"/d/deep/three", &content(4, 200_000), 0o644).expect("written");
    let b = join(&cell, "b", u64::MAX);
    wait_until("the third is here", || current(&a, "d/deep/three") == 1);
    a.unmount().expect("it ends");
    drop(a);
    let walker = Walker::new(&b);
    for (path, seed) in [(&b"/d/one"[..], 1), (b"/d/deep/two", 2), (b"/d/deep/three", 4)] {
        assert!(walker.read_file(path).expect("here") == content(seed, 200_000));
    }
    walker.read_file(b"/other").expect_err("it was not pinned");
    b.removexattr(&Caller::ROOT, ino(&b, "d"), PIN_XATTR).expect("it was pinned");
    b.getxattr(ino(&b, "d"), PIN_XATTR).expect_err("it is not any more");
    b.removexattr(&Caller::ROOT, ino(&b, "d"), PIN_XATTR).expect_err("it is not any more");
}

#[test]
fn blocks_of_files_removed_by_others_are_deleted() {
    let cell = Cell::new(EPOCH);
    let a = join(&cell, "a", u64::MAX);
    write(&a, "/file", &content(1, 200_000));
    write(&a, "/stays", &content(2, 70_000));
    a.unmount().expect("it ends");
    drop(a);
    let b = join(&cell, "b", u64::MAX);
    Walker::new(&b).remove(b"/file").expect("removed");
    b.sync().expect("with the server");
    b.unmount().expect("it ends");
    drop(b);
    let a = join(&cell, "a", u64::MAX);
    wait_until("its blocks are gone", || files_below(&cell.path("a").join("own")) == 2);
    assert!(Walker::new(&a).read_file(b"/stays").expect("there") == content(2, 70_000));
}

#[test]
fn copies_of_a_dropped_client_are_replaced() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a", u64::MAX), join(&cell, "b", u64::MAX));
    set_policy(&a, "", "copies=1 fsync=1");
    write(&a, "/file", &content(1, 100_000));
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("on b");
    let text = attribute(&b, "", STORE_XATTR);
    let client = text.lines().find_map(|line| line.strip_prefix("client\t")).expect("a number");
    let client = weft_ringer::ClientId(client.parse().expect("a number"));
    let forget = || ask(&cell.address(), None, &Ask::Forget { client });
    forget().expect_err("it is here");
    b.vanish();
    drop(b);
    let c = join(&cell, "c", u64::MAX);
    // Time to replace it, which would be wrong: if it is too short, a mistake is not found.
    std::thread::sleep(EPOCH * 2);
    assert_eq!(current(&a, "file"), 2, "it is only away");
    let Ok(Answer::Forgotten { files: 1 }) = forget() else { panic!("one file") };
    assert!(files_below(&cell.path("c").join("copy")) == 0);
    wait_until("another copy", || current(&a, "file") == 2);
    assert_eq!(files_below(&cell.path("c").join("copy")), 2);
    drop(c);
}
