//! Several clients of one cell.

use std::sync::Arc;
use std::time::Duration;

use weft_ringer_client::{CONFLICTS_XATTR, RingerFs};
use weft_vfs::{
    Caller, DirCursor, Error, FileSystem, Handle, OpenFlags, RenameFlags, SetAttr, Walker, XattrSet,
};

use super::Cell;
use weft_testing::{LIMIT, ends, wait_until};

const LONG: Duration = Duration::from_secs(15);
/// A time that no test waits for.
const HOUR: Duration = Duration::from_secs(3600);

fn read(fs: &RingerFs, path: &[u8]) -> Vec<u8> {
    Walker::new(fs).read_file(path).expect("it is read")
}

fn write(fs: &RingerFs, path: &[u8], content: &[u8]) {
    Walker::new(fs).write_file(path, content, 0o644).expect("it is written");
}

#[test]
fn writes_are_visible_to_other_clients_at_once() {
    let cell = Cell::new(LONG);
    let (a, b) = (cell.join("a"), cell.join("b"));
    for round in 0..20_u8 {
        let (writer, reader) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let content = vec![round; 1000 + usize::from(round) * 20_000];
        write(writer, b"/file", &content);
        assert!(read(reader, b"/file") == content, "{round}");
    }
    // In the middle of a block, one after the other.
    let ino = a.lookup(a.root(), b"file").expect("there").attr.ino;
    assert_eq!(b.lookup(b.root(), b"file").expect("there").attr.ino, ino);
    for i in 0..30_u64 {
        let writer = if i % 2 == 0 { &a } else { &b };
        writer
            .write(&Caller::ROOT, ino, Handle::NONE, i * 10, &[i as u8 + 100; 10])
            .expect("written");
    }
    let content = read(&a, b"/file");
    assert!(content == read(&b, b"/file"));
    assert!((0..300).all(|at| u64::from(content[at]) == at as u64 / 10 + 100));
}

#[test]
fn concurrent_appends_do_not_overlap() {
    let cell = Cell::new(LONG);
    let all: Vec<_> = ["a", "b", "c"].iter().map(|name| Arc::new(cell.join(name))).collect();
    write(&all[0], b"/log", b"");
    let threads: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(n, fs)| {
            let fs = Arc::clone(fs);
            std::thread::spawn(move || {
                let ino = fs.lookup(fs.root(), b"log").expect("there").attr.ino;
                let flags = OpenFlags::WRITE | OpenFlags::APPEND;
                let opened = fs.open(&Caller::ROOT, ino, flags).expect("opened");
                for i in 0..20 {
                    let line = format!("{n} {i:02}\n");
                    assert_eq!(
                        fs.write(&Caller::ROOT, ino, opened.handle, 0, line.as_bytes())
                            .expect("written"),
                        5
                    );
                }
                fs.release(ino, opened.handle).expect("closed");
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
    let text = String::from_utf8(read(&all[1], b"/log")).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 60);
    for n in 0..3 {
        let own: Vec<&&str> = lines.iter().filter(|l| l.starts_with(&n.to_string())).collect();
        assert!(own.is_sorted(), "each in its order");
    }
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 60);
}

#[test]
fn renames_are_visible_to_other_clients_at_once() {
    let cell = Cell::new(LONG);
    let (a, b) = (cell.join("a"), cell.join("b"));
    Walker::new(&a).mkdir_all(b"/d/e", 0o755).expect("made");
    write(&a, b"/d/e/f", b"content");
    assert_eq!(read(&b, b"/d/e/f"), b"content");
    let d = b.lookup(b.root(), b"d").expect("there").attr.ino;
    b.rename(&Caller::ROOT, d, b"e", b.root(), b"moved", RenameFlags::empty()).expect("moved");
    assert_eq!(read(&a, b"/moved/f"), b"content");
    assert!(matches!(a.lookup(d, b"e"), Err(Error::NotFound)));
    // Only the server can decide this: a directory does not move into itself.
    let moved = a.lookup(a.root(), b"moved").expect("there").attr.ino;
    assert!(matches!(
        a.rename(&Caller::ROOT, a.root(), b"moved", moved, b"x", RenameFlags::empty()),
        Err(Error::Invalid(_))
    ));
    a.unlink(&Caller::ROOT, moved, b"f").expect("removed");
    assert!(matches!(b.lookup(moved, b"f"), Err(Error::NotFound)));
}

#[test]
fn an_open_file_outlives_its_name() {
    let cell = Cell::new(LONG);
    let (a, b) = (cell.join("a"), cell.join("b"));
    write(&a, b"/file", &[7; 200_000]);
    let entry = b.lookup(b.root(), b"file").expect("there");
    let ino = entry.attr.ino;
    a.unlink(&Caller::ROOT, a.root(), b"file").expect("removed");
    assert!(matches!(b.lookup(b.root(), b"file"), Err(Error::NotFound)));
    assert_eq!(b.getattr(ino).expect("open still").nlink, 0);
    let mut buf = vec![0; 200_000];
    assert_eq!(b.read(ino, Handle::NONE, 0, &mut buf).expect("read"), 200_000);
    assert!(buf == [7; 200_000]);
    b.forget(ino, 1);
    // Then its blocks go, on both sides.
    let left = |name: &str| {
        let own = std::fs::read_dir(cell.path(name).join("own")).expect("a directory");
        let cache = std::fs::read_dir(cell.path(name).join("cache")).expect("a directory");
        own.count() + cache.count()
    };
    wait_until("no blocks are left on either side", || left("a") + left("b") == 0);
}

#[test]
fn overwritten_blocks_are_deleted() {
    let cell = Cell::new(LONG);
    let a = cell.join("a");
    write(&a, b"/file", &[0; 64 << 10]);
    let ino = a.lookup(a.root(), b"file").expect("there").attr.ino;
    for i in 1..100_u8 {
        a.write(&Caller::ROOT, ino, Handle::NONE, u64::from(i), &[i]).expect("written");
    }
    a.fsync(&Caller::ROOT, ino, false).expect("durable");
    let dir = std::fs::read_dir(cell.path("a").join("own")).expect("blocks");
    let dir = dir.map(|e| e.expect("an entry").path()).next().expect("one file's");
    let count = || std::fs::read_dir(&dir).expect("blocks").count();
    wait_until("one block is left", || count() <= 1);
    let content = read(&a, b"/file");
    assert!((1..100).all(|i| content[i] == i as u8) && content.len() == 64 << 10);
}

#[test]
fn server_restart_loses_no_data_and_no_client() {
    let mut cell = Cell::new(LONG);
    let (a, b) = (cell.join("a"), cell.join("b"));
    Walker::new(&a).mkdir(b"/d", 0o755).expect("made");
    write(&a, b"/d/synced", b"one");
    a.sync().expect("durable");
    write(&a, b"/d/not synced", b"two");
    cell.stop();
    // Under its leases a client goes on alone.
    write(&a, b"/d/meanwhile", b"three");
    assert_eq!(read(&a, b"/d/not synced"), b"two");
    cell.start();
    for (path, content) in
        [(&b"/d/synced"[..], &b"one"[..]), (b"/d/not synced", b"two"), (b"/d/meanwhile", b"three")]
    {
        assert_eq!(read(&b, path), content);
    }
}

#[test]
fn leases_of_a_vanished_client_end_with_its_epoch() {
    let cell = Cell::new(Duration::from_secs(2));
    let mut patient = cell.options("b");
    patient.patience = LIMIT;
    let (a, b) = (cell.join("a"), RingerFs::join(patient).expect("it joins"));
    write(&b, b"/file", b"b's");
    b.sync().expect("durable");
    write(&a, b"/file", b"a's, and on its way");
    a.vanish();
    let b = ends("the lease of the dead has run out", move || {
        // Changes that did not reach the server are missing.
        assert_eq!(read(&b, b"/file"), b"b's");
        write(&b, b"/other", b"new");
        b
    });
    drop(a);
    // It reconnects, and its change still applies: no client changed that file.
    let a = cell.join("a");
    assert_eq!(read(&a, b"/other"), b"new");
    a.sync().expect("durable");
    assert_eq!(read(&b, b"/file"), b"a's, and on its way");
}

#[test]
fn leases_of_a_vanished_client_are_respected() {
    let cell = Cell::new(HOUR);
    let a = cell.join("a");
    write(&a, b"/file", b"a's, and on its way");
    let mut options = cell.options("b");
    options.patience = Duration::from_secs(5);
    let b = RingerFs::join(options).expect("it joins");
    a.vanish();
    // The lease outlasts the patience, however slow this machine is.
    let error = ends("the call is given up", move || {
        Walker::new(&b).read_file(b"/file").expect_err("the lease lasts")
    });
    assert_eq!(error.errno(), 110, "{error}");
}

#[test]
fn late_change_is_kept_as_a_conflict() {
    let cell = Cell::new(Duration::from_secs(2));
    let (a, b) = (cell.join("a"), cell.join("b"));
    write(&b, b"/file", b"first");
    b.sync().expect("durable");
    write(&a, b"/file", b"a's");
    a.vanish();
    drop(a);
    write(&b, b"/file", b"b's");
    b.sync().expect("durable");
    let a = cell.join("a");
    assert_eq!(read(&a, b"/file"), b"b's");
    // It is listed, also after a restart, until it is settled.
    a.unmount().expect("it ends");
    drop(a);
    let a = cell.join("a");
    let list = |fs: &RingerFs| {
        let text = fs.getxattr(fs.root(), CONFLICTS_XATTR).expect("a list");
        let text = String::from_utf8(text).expect("text");
        text.lines().filter_map(|l| l.split('\t').next()?.parse().ok()).collect::<Vec<u64>>()
    };
    let settle = |fs: &RingerFs, how: &str| {
        fs.setxattr(&Caller::ROOT, fs.root(), CONFLICTS_XATTR, how.as_bytes(), XattrSet::Any)
    };
    let [number] = list(&a)[..] else { panic!("one conflict: {:?}", list(&a)) };
    for nonsense in ["", "mine", "mine x", "ours 1", &format!("both {number}"), "theirs 999"] {
        settle(&a, nonsense).expect_err(nonsense);
    }
    settle(&a, &format!("both {number} /file.a")).expect("settled");
    assert_eq!(list(&a), [0; 0]);
    assert_eq!((read(&b, b"/file"), read(&b, b"/file.a")), (b"b's".to_vec(), b"a's".to_vec()));
    assert!(std::fs::read_dir(cell.path("a").join("kept")).expect("a directory").next().is_none());
    settle(&a, &format!("theirs {number}")).expect_err("it is settled");
}

#[test]
fn conflicts_are_resolved_for_either_side() {
    let cell = Cell::new(Duration::from_secs(2));
    let b = cell.join("b");
    for (how, left) in [("mine", &b"a's"[..]), ("theirs", b"b's")] {
        write(&b, b"/file", b"first");
        b.sync().expect("durable");
        let a = cell.join("a");
        write(&a, b"/file", b"a's");
        a.vanish();
        drop(a);
        write(&b, b"/file", b"b's");
        b.sync().expect("durable");
        let a = cell.join("a");
        assert_eq!(read(&a, b"/file"), b"b's");
        let text = a.getxattr(a.root(), CONFLICTS_XATTR).expect("a list");
        let number = String::from_utf8(text).expect("text");
        let number = number.split('\t').next().expect("a number").to_owned();
        let set = format!("{how} {number}");
        a.setxattr(&Caller::ROOT, a.root(), CONFLICTS_XATTR, set.as_bytes(), XattrSet::Any)
            .expect("settled");
        assert_eq!(read(&b, b"/file"), left, "{how}");
        a.unmount().expect("it ends");
    }
}

#[test]
fn offline_changes_are_merged() {
    let cell = Cell::new(Duration::from_secs(2));
    let (a, b) = (cell.join("a"), cell.join("b"));
    Walker::new(&b).mkdir(b"/d", 0o755).expect("made");
    b.sync().expect("durable");
    // Made by a and not sent; meanwhile b makes others in the same directories.
    write(&a, b"/d/of a", b"a's");
    write(&a, b"/d/same", b"a's");
    Walker::new(&a).mkdir(b"/d/dir", 0o755).expect("made");
    write(&a, b"/d/dir/below", b"deep");
    a.vanish();
    drop(a);
    write(&b, b"/d/of b", b"b's");
    write(&b, b"/d/same", b"b's");
    b.sync().expect("durable");
    let a = cell.join("a");
    a.sync().ok();
    for (path, content) in [
        (&b"/d/of a"[..], &b"a's"[..]),
        (b"/d/of b", b"b's"),
        (b"/d/same", b"b's"),
        (b"/d/dir/below", b"deep"),
    ] {
        assert_eq!(read(&b, path), content, "{}", String::from_utf8_lossy(path));
    }
    // Only what had no place is a conflict.
    let text = a.getxattr(a.root(), CONFLICTS_XATTR).expect("a list");
    assert_eq!(String::from_utf8(text).expect("text").lines().count(), 1);
}

#[test]
fn unreachable_server_is_an_error() {
    let mut cell = Cell::new(Duration::from_secs(2));
    let mut options = cell.options("a");
    options.patience = Duration::from_secs(3);
    let a = RingerFs::join(options).expect("it joins");
    write(&a, b"/file", b"content");
    cell.stop();
    // Certainly longer than the epoch.
    std::thread::sleep(Duration::from_millis(2500));
    let (a, error) = ends("the call is given up", move || {
        let error = Walker::new(&a).read_file(b"/file").expect_err("the epoch is over");
        (a, error)
    });
    assert_eq!(error.errno(), 110, "{error}");
    cell.start();
    assert_eq!(read(&a, b"/file"), b"content");
}

#[test]
fn a_store_has_one_user_and_one_cell() {
    let cell = Cell::new(LONG);
    let a = cell.join("a");
    let error = RingerFs::join(cell.options("a")).expect_err("it is in use");
    assert!(error.to_string().contains("in use"), "{error}");
    a.unmount().expect("it ends");
    drop(a);
    let other = Cell::new(LONG);
    let error = RingerFs::join(super::options(other.address(), &cell.path("a")));
    assert!(error.expect_err("another cell").to_string().contains("another cell"));
}

#[test]
fn leaving_client_releases_its_leases() {
    // Waiting for the end of a lease would be a hang: also of its patience.
    let cell = Cell::new(HOUR);
    let a = cell.join("a");
    write(&a, b"/file", b"content");
    a.unmount().expect("it ends");
    let mut options = cell.options("b");
    options.patience = HOUR;
    let b = RingerFs::join(options).expect("it joins");
    let b = ends("it does not wait for the client that has left", move || {
        let entry = b.lookup(b.root(), b"file").expect("there");
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        b.setattr(&Caller::ROOT, entry.attr.ino, &set).expect("changed");
        b.mkdir(&Caller::ROOT, b.root(), b"d", 0o755).expect("made");
        b
    });
    b.unmount().expect("it ends");
    drop(b);
    // Only the client that has left has the blocks: the error says so.
    let b = cell.join("b");
    let error = Walker::new(&b).read_file(b"/file").expect_err("no client has it");
    assert!(error.to_string().contains("is unavailable"), "{error}");
}

/// A client that makes names takes the directory's lease from a reader at each turn: a listing of many
/// calls went on only when it had it back, for each call.
#[test]
fn a_long_listing_needs_the_lease_of_the_directory_once() {
    let mut cell = Cell::new(HOUR);
    let (a, b) = (cell.join("a"), cell.join("b"));
    let all: Vec<Vec<u8>> = (0..300).map(|n| format!("{n:03}").into_bytes()).collect();
    for name in &all {
        write(&a, &[b"/", &name[..]].concat(), b"");
    }
    let (mut names, mut cursor) = (Vec::new(), DirCursor(0));
    let mut read_on = |count: usize| {
        let begun = names.len();
        b.readdir(b.root(), cursor, &mut |entry| {
            if names.len() - begun == count {
                return false;
            }
            cursor = entry.next;
            names.push(entry.name.to_vec());
            true
        })
        .expect("listed");
        names.len() - begun
    };
    assert_eq!(read_on(10), 10);
    // It has the only lease from here on, and no server gives it away.
    write(&a, b"/later", b"");
    cell.stop();
    while read_on(50) > 0 {}
    names.sort_unstable();
    let mut wanted = [vec![b".".to_vec(), b"..".to_vec()], all].concat();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}
