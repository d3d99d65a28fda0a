//! Local stores that were copied, or restored from an older copy; and what one mount leaves to the
//! next in its store.

use std::path::Path;
use std::time::Duration;

use weft_ringer_client::{CONFLICTS_XATTR, RingerFs, STORE_XATTR};
use weft_ringer_net::{Denial, Error};
use weft_testing::wait_for;
use weft_vfs::{Caller, FileSystem, Walker};

use super::{Cell, attribute, content, ino, write};

const EPOCH: Duration = Duration::from_secs(2);

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("room");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let (kind, to) = (entry.file_type().expect("a type"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

fn end(fs: RingerFs) {
    fs.unmount().expect("with the server");
    drop(fs);
}

fn is_copied<T: std::fmt::Debug>(joined: Result<T, Error>) {
    let error = joined.expect_err("another mount has used it since");
    assert!(matches!(error, Error::Denied(Denial::Copied)), "{error}");
    let text = error.to_string();
    assert!(text.contains("copy") && text.contains("--adopt-store"), "{text}");
}

#[test]
fn second_of_two_copies_of_a_store_is_refused() {
    let cell = Cell::new(EPOCH);
    let a = cell.join("a");
    write(&a, "/file", &content(1, 100_000));
    end(a);
    copy(&cell.path("a"), &cell.path("b"));
    // The copy is used first, and then the other.
    let b = cell.join("b");
    write(&b, "/of-b", &content(2, 100_000));
    is_copied(RingerFs::join(cell.options("a")));
    write(&b, "/goes-on", b"content");
    b.sync().expect("with the server");
    end(b);
    is_copied(RingerFs::join(cell.options("a")));
    // It becomes another client, and both are there.
    let mut options = cell.options("a");
    options.adopt_store = true;
    let a = RingerFs::join(options).expect("another client");
    assert!(cell.path("a").join("copied-store-1").join("identity").exists());
    let b = cell.join("b");
    for (fs, path) in [(&a, "/new-of-a"), (&b, "/new-of-b")] {
        write(fs, path, &content(3, 100_000));
    }
    for fs in [&a, &b] {
        for (path, seed) in [("/file", 1), ("/of-b", 2), ("/new-of-a", 3), ("/new-of-b", 3)] {
            let read = Walker::new(fs).read_file(path.as_bytes()).expect(path);
            assert!(read == content(seed, 100_000), "{path}");
        }
    }
    end(a);
    end(b);
    // From then on both are what they are.
    end(cell.join("a"));
    end(cell.join("b"));
}

#[test]
fn mount_whose_store_was_copied_is_told_so_and_loses_nothing() {
    let mut cell = Cell::new(EPOCH);
    let a = cell.join("a");
    write(&a, "/file", b"before");
    a.sync().expect("with the server");
    // Copied while it is mounted; it has a change that it has not sent.
    cell.stop();
    write(&a, "/file", b"unsent");
    copy(&cell.path("a"), &cell.path("b"));
    std::fs::remove_file(cell.path("b").join("journal")).expect("there");
    cell.start();
    let b = wait_for("the copy is the first to be there, or the second", || {
        RingerFs::join(cell.options("b"))
    });
    let error = wait_for("the other is told", || {
        let written = Walker::new(&a).write_file(b"/again", b"unsent", 0o644);
        match written.map(drop).and_then(|()| a.sync()) {
            Err(e) if e.errno() == 13 => Ok(e),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(error.to_string().contains("--adopt-store"), "{error}");
    a.vanish();
    drop(a);
    let mut options = cell.options("a");
    options.adopt_store = true;
    let a = RingerFs::join(options).expect("another client");
    let conflicts = attribute(&a, "", CONFLICTS_XATTR);
    let is_kept = conflicts.contains("in a copy of a local store");
    let was_sent = Walker::new(&b).read_file(b"/file").expect("there") == b"unsent";
    assert!(was_sent || is_kept, "{conflicts}");
    end(a);
    end(b);
}

#[test]
fn store_restored_from_an_older_copy_is_noticed() {
    let cell = Cell::new(EPOCH);
    end(cell.join("a"));
    copy(&cell.path("a"), &cell.path("backup"));
    let a = cell.join("a");
    write(&a, "/later", b"content");
    end(a);
    std::fs::remove_dir_all(cell.path("a")).expect("lost");
    std::fs::rename(cell.path("backup"), cell.path("a")).expect("restored");
    is_copied(RingerFs::join(cell.options("a")));
}

/// However a client ends, and whether or not a server is there, its own store is no copy.
#[test]
fn a_store_that_is_used_in_its_own_place_is_no_copy() {
    let mut cell = Cell::new(EPOCH);
    for round in 0..8 {
        if round % 3 == 1 {
            cell.stop();
            let mut options = cell.options("a");
            options.patience = Duration::from_millis(200);
            for _ in 0..2 {
                RingerFs::join(options.clone()).expect_err("no server");
            }
            cell.start();
        }
        let a = cell.join("a");
        write(&a, "/file", &[round]);
        if round % 2 == 0 {
            a.vanish();
            drop(a);
        } else {
            cell.stop();
            cell.start();
            a.sync().expect("with the server");
            end(a);
        }
    }
}

/// Nothing counts as durable in a directory that is no longer where it was.
#[test]
fn store_that_was_moved_or_replaced_syncs_nothing() {
    let cell = Cell::new(EPOCH);
    let a = cell.join("a");
    write(&a, "/file", b"content");
    a.sync().expect("with the server");
    std::fs::rename(cell.path("a"), cell.path("away")).expect("renamed");
    for is_replaced in [false, true] {
        if is_replaced {
            copy(&cell.path("away"), &cell.path("a"));
        }
        let error = a.sync().expect_err("it is elsewhere").to_string();
        assert!(error.contains("moved or replaced"), "{error}");
        let synced = a.fsync(&Caller::ROOT, ino(&a, "file"), false);
        assert!(synced.is_err(), "{synced:?}");
    }
    std::fs::remove_dir_all(cell.path("a")).expect("removed");
    std::fs::rename(cell.path("away"), cell.path("a")).expect("renamed");
    a.sync().expect("it is back");
    end(a);
}

fn staying_bytes(fs: &RingerFs) -> u64 {
    let text = attribute(fs, "", STORE_XATTR);
    let figure = text.lines().find_map(|line| line.strip_prefix("staying_bytes\t"));
    figure.expect("a figure").parse().expect("a number")
}

/// Blocks that were replaced go without a scan of the whole store, which these mounts never make.
#[test]
fn garbage_is_found_again_without_a_scan() {
    let cell = Cell::new(EPOCH);
    let join = |name: &str| {
        let mut options = cell.options(name);
        options.scan_every = Duration::from_secs(1_000_000);
        RingerFs::join(options).expect("it joins")
    };
    let (a, b, c) = (join("a"), join("b"), join("c"));
    let len = 64 << 10;
    for seed in 0..20 {
        write(&a, "/file", &content(seed, len));
        a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("synced");
    }
    // The lease goes to the other at once.
    write(&b, "/file", &content(50, len));
    b.sync().expect("with the server");
    let is_clean = |fs: &RingerFs, most: u64| {
        let bytes = staying_bytes(fs);
        if bytes <= most { Ok(()) } else { Err(bytes) }
    };
    wait_for("the replaced blocks of the first are gone", || is_clean(&a, len as u64));
    // What is left at an unmount is found by the next mount.
    for seed in 0..20 {
        write(&c, "/another", &content(seed, len));
        c.fsync(&Caller::ROOT, ino(&c, "another"), false).expect("synced");
    }
    end(c);
    let c = join("c");
    wait_for("only the present block is there", || is_clean(&c, len as u64));
    assert_eq!(staying_bytes(&c), len as u64);
    assert!(Walker::new(&c).read_file(b"/another").expect("there") == content(19, len));
}
