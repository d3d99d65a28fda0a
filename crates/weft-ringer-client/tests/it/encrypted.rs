//! Encrypted directories: a client with the key works in them as elsewhere, and no other learns what the
//! files say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_ringer::{CELL_MOUNT_XATTR, ENCRYPTION_XATTR, POLICY_XATTR};
use weft_ringer_client::{
    CONFLICTS_XATTR, DirectoryKey, HISTORY_XATTR, HOLDERS_XATTR, KEYS_XATTR, RESTORE_XATTR,
    RingerFs, SNAPSHOTS_XATTR,
};
use weft_vfs::{
    Caller, Error, FallocateMode, FileSystem, Handle, OpenFlags, RenameFlags, SeekFrom, SetAttr,
    Walker, XattrSet,
};

use super::cells::cell_mount_to;
use super::{Cell, attribute, encrypt, give_keys, ino, write};
use weft_testing::{ends, wait_until};

const EPOCH: Duration = Duration::from_secs(2);
const NEEDLE: &[u8] = b"the harvest is late this year";
const ENOKEY: i32 = 126;

pub fn read(fs: &RingerFs, path: &str) -> weft_vfs::Result<Vec<u8>> {
    Walker::new(fs).read_file(path.as_bytes())
}

fn set(fs: &RingerFs, path: &str, name: &[u8], value: &str) -> weft_vfs::Result<()> {
    fs.setxattr(&Caller::ROOT, ino(fs, path), name, value.as_bytes(), XattrSet::Any)
}

/// A directory `/d`, encrypted by a client that everybody else hears of it from.
pub fn encrypted_dir(fs: &RingerFs) {
    encrypted_dir_of(fs, "d");
}

fn encrypted_dir_of(fs: &RingerFs, name: &str) {
    Walker::new(fs).mkdir(format!("/{name}").as_bytes(), 0o755).expect("made");
    encrypt(fs, ino(fs, name));
}

fn join(cell: &Cell, name: &str) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(50);
    options.scan_every = Duration::from_secs(1);
    RingerFs::join(options).expect("it joins")
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    entries
        .flat_map(|e| match e.file_type().expect("there") {
            kind if kind.is_dir() => files_below(&e.path()),
            kind if kind.is_file() => vec![e.path()],
            _ => Vec::new(),
        })
        .collect()
}

/// The files below a directory that say this.
fn saying(dir: &Path, what: &[u8]) -> Vec<PathBuf> {
    let says = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(what.len()).any(|window| window == what)
    };
    files_below(dir).into_iter().filter(says).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    NEEDLE.iter().copied().cycle().take(len).collect()
}

#[test]
fn plaintext_leaves_no_client_and_reaches_no_disk() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    let mut lazy = cell.options("c");
    // Changes are sent only on request, so they stay in the journal.
    (lazy.client.flush_micros, lazy.client.batch) = (u64::MAX / 2, usize::MAX);
    let c = RingerFs::join(lazy).expect("it joins");
    encrypted_dir(&a);
    give_keys(&cell, "a", &c);
    set(&a, "", POLICY_XATTR, "copies=2 versions=3 every=0 text=64K").expect("a policy");
    let content = pattern(300_000);
    write(&a, "/d/large", &content);
    write(&a, "/d/small", &pattern(500));
    write(&a, "/d/small", &pattern(400));
    // In the middle, by the other that has the key.
    let large = ino(&c, "d/large");
    c.write(&Caller::ROOT, large, Handle::NONE, 100_000, &NEEDLE[3..]).expect("written");
    let mut changed = content;
    changed[100_000..100_000 + NEEDLE.len() - 3].copy_from_slice(&NEEDLE[3..]);
    assert!(read(&a, "/d/large").expect("it has the key") == changed);
    a.sync().expect("durable");
    wait_until("copies of both on all three", || {
        ["d/large", "d/small"].iter().all(|file| {
            let text = attribute(&b, file, HOLDERS_XATTR);
            text.lines().filter(|line| line.contains("\tcurrent\t")).count() == 3
        })
    });
    // In the journal of one that has died, and in what its block was.
    c.write(&Caller::ROOT, large, Handle::NONE, 200_000, NEEDLE).expect("written");
    c.vanish();
    let secrets = std::fs::read_to_string(cell.path("a").join("keys")).expect("keys");
    let secret = secrets.split('.').nth(3).expect("a key").to_owned();
    let found = saying(cell.dir.path(), &NEEDLE[5..20]);
    assert!(found.is_empty(), "{found:?}");
    let found = saying(cell.dir.path(), secret.as_bytes());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(files_below(&cell.path("b")).iter().all(|f| f.file_name() != Some("keys".as_ref())));
    // A plain file is found so: what is looked for is what would be there.
    write(&a, "/plain", &pattern(500));
    a.sync().expect("durable");
    assert!(!saying(cell.dir.path(), &NEEDLE[5..20]).is_empty());

    // The content of the journal is recovered.
    drop(c);
    let c = join(&cell, "c");
    changed[200_000..200_000 + NEEDLE.len()].copy_from_slice(NEEDLE);
    assert!(read(&c, "/d/large").expect("it has the key") == changed);
    assert!(read(&a, "/d/large").expect("it has the key") == changed);
}

#[test]
fn without_the_key_names_are_listed_and_removable() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    encrypted_dir(&a);
    write(&a, "/d/file", &pattern(70_000));
    let file = ino(&b, "d/file");
    assert_eq!(b.getattr(file).expect("there").size_bytes, 70_000);
    let set_size = |bytes| SetAttr { size_bytes: Some(bytes), ..SetAttr::default() };
    let caller = Caller { uid: 0, gid: 0, ..Caller::ROOT };
    let dir = ino(&b, "d");
    for (what, error) in [
        ("open", b.open(&Caller::ROOT, file, OpenFlags::READ).expect_err("no key").errno()),
        (
            "cut",
            b.open(&Caller::ROOT, file, OpenFlags::WRITE | OpenFlags::TRUNCATE)
                .expect_err("no key")
                .errno(),
        ),
        ("read", b.read(file, Handle::NONE, 0, &mut [0; 10]).expect_err("no key").errno()),
        (
            "write",
            b.write(&Caller::ROOT, file, Handle::NONE, 0, b"words").expect_err("no key").errno(),
        ),
        ("shorten", b.setattr(&Caller::ROOT, file, &set_size(5)).expect_err("no key").errno()),
        (
            "punch",
            b.fallocate(&Caller::ROOT, file, FallocateMode::PunchHole, 0, 10)
                .expect_err("no key")
                .errno(),
        ),
        ("make", b.create(&caller, dir, b"new", 0o644, OpenFlags::WRITE).expect_err("no").errno()),
    ] {
        assert_eq!(error, ENOKEY, "{what}");
    }
    // Names, attributes and removal are the server's to know.
    let walker = Walker::new(&b);
    walker.mkdir(b"/d/e", 0o755).expect("made");
    walker.rename(b"/d/file", b"/d/e/other", RenameFlags::empty()).expect("moved");
    walker.link(b"/d/e/other", b"/d/link").expect("linked");
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    assert_eq!(b.setattr(&Caller::ROOT, file, &mode).expect("changed").perm, 0o600);
    assert!(read(&a, "/d/e/other").expect("it has the key") == pattern(70_000));
    write(&a, "/d/e/more", b"inherited");
    read(&b, "/d/e/more").expect_err("no key");
    walker.remove(b"/d/e/other").expect("removed");
    walker.remove(b"/d/link").expect("removed");
    assert!(!Walker::new(&a).exists(b"/d/link").expect("a look"));
    // With the key all is as for the first.
    give_keys(&cell, "a", &b);
    assert_eq!(read(&b, "/d/e/more").expect("it has the key"), b"inherited");
    write(&b, "/d/new", b"from b");
    assert_eq!(read(&a, "/d/new").expect("it has the key"), b"from b");
}

#[test]
fn moves_between_keys_are_refused() {
    let cell = Cell::new(EPOCH);
    let a = cell.join("a");
    let walker = Walker::new(&a);
    encrypted_dir(&a);
    walker.mkdir(b"/d/same", 0o755).expect("made");
    walker.mkdir(b"/d/nested", 0o755).expect("made");
    encrypt(&a, ino(&a, "d/nested"));
    let of = |path| attribute(&a, path, ENCRYPTION_XATTR);
    assert_eq!(of("d"), of("d/same"));
    assert_ne!(of("d"), of("d/nested"));
    for path in ["/plain", "/d/file", "/d/nested/file"] {
        write(&a, path, path.as_bytes());
    }
    let ids: Vec<String> = ["d/file", "d/nested/file"].iter().map(|file| of(file)).collect();
    assert!(ids[0].starts_with(&of("d")) && ids[1].starts_with(&of("d/nested")), "{ids:?}");
    walker.mkdir(b"/dir", 0o755).expect("made");
    for (from, to) in [
        ("/plain", "/d/plain"),
        ("/d/file", "/file"),
        ("/d/file", "/d/nested/moved"),
        ("/d/nested/file", "/d/moved"),
        ("/dir", "/d/dir"),
        ("/d/same", "/same"),
        ("/d/file", "/plain"),
    ] {
        let moved = walker.rename(from.as_bytes(), to.as_bytes(), RenameFlags::empty());
        assert_eq!(moved.expect_err(to).errno(), 18, "{from} {to}");
    }
    let swapped = walker.rename(b"/plain", b"/d/file", RenameFlags::EXCHANGE);
    assert_eq!(swapped.expect_err("two keys").errno(), 18);
    for (from, to) in [("/plain", "/d/l"), ("/d/file", "/l"), ("/d/file", "/d/nested/l")] {
        let linked = walker.link(from.as_bytes(), to.as_bytes());
        assert_eq!(linked.expect_err(to).errno(), 18, "{from} {to}");
    }
    // Within one, and the directory itself.
    walker.rename(b"/d/file", b"/d/same/file", RenameFlags::empty()).expect("moved");
    walker.link(b"/d/same/file", b"/d/again").expect("linked");
    walker.rename(b"/d", b"/dir/moved", RenameFlags::empty()).expect("moved");
    assert_eq!(read(&a, "/dir/moved/again").expect("read"), b"/d/file");
    assert_eq!(read(&a, "/dir/moved/nested/file").expect("read"), b"/d/nested/file");

    let dir = ino(&a, "dir/moved");
    let again = a.setxattr(&Caller::ROOT, dir, ENCRYPTION_XATTR, b"new", XattrSet::Any);
    assert_eq!(again.expect_err("it is not empty").errno(), 39);
    let file = ino(&a, "dir/moved/again");
    for (ino, value) in [(dir, &b"v1 00"[..]), (dir, b""), (file, ids[1].as_bytes())] {
        let set = a.setxattr(&Caller::ROOT, ino, ENCRYPTION_XATTR, value, XattrSet::Any);
        assert_eq!(set.expect_err("not so").errno(), 1);
        assert_eq!(
            a.removexattr(&Caller::ROOT, ino, ENCRYPTION_XATTR).expect_err("not so").errno(),
            1
        );
    }
    let on_file = a.setxattr(&Caller::ROOT, file, ENCRYPTION_XATTR, b"new", XattrSet::Any);
    assert_eq!(on_file.expect_err("of directories").errno(), 20);
    // The attribute would be copied with a file.
    assert!(a.listxattr(dir).expect("a list").is_empty());
    assert!(a.listxattr(file).expect("a list").is_empty());
    // Another cell is not encrypted by this one.
    let (inner, there) = (Cell::new(EPOCH), walker.mkdir(b"/there", 0o755).expect("made").ino());
    let cell_mount = cell_mount_to(&inner);
    let below = walker.mkdir(b"/dir/moved/cell", 0o755).expect("made").ino();
    let set_cell_mount = |dir| {
        a.setxattr(&Caller::ROOT, dir, CELL_MOUNT_XATTR, cell_mount.as_bytes(), XattrSet::Any)
    };
    assert_eq!(set_cell_mount(below).expect_err("it is encrypted").errno(), 22);
    set_cell_mount(there).expect("a cell mount");
    let both = a.setxattr(&Caller::ROOT, there, ENCRYPTION_XATTR, b"new", XattrSet::Any);
    assert_eq!(both.expect_err("it is a cell mount").errno(), 22);
    let made = a.create(&Caller::ROOT, there, b"file", 0o644, OpenFlags::WRITE);
    assert_eq!(made.expect_err("it is a cell mount").errno(), 16);
    let twice = Walker::new(&a).mkdir(b"/e", 0o755).expect("made").ino();
    encrypt(&a, twice);
    let twice = a.setxattr(&Caller::ROOT, twice, ENCRYPTION_XATTR, b"new", XattrSet::Any);
    assert!(matches!(twice, Err(Error::Exists)), "{twice:?}");
}

#[test]
fn a_file_made_while_its_directory_is_encrypted_is_encrypted_or_not_there() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    for round in 0..15 {
        let path = format!("/d{round}");
        Walker::new(&a).mkdir(path.as_bytes(), 0o755).expect("made");
        let (of_a, of_b) = (ino(&a, &path), ino(&b, &path));
        let (encrypted, made) = std::thread::scope(|scope| {
            let encrypts = scope
                .spawn(|| a.setxattr(&Caller::ROOT, of_a, ENCRYPTION_XATTR, b"new", XattrSet::Any));
            let caller = Caller::ROOT;
            let made = b.create(&caller, of_b, b"file", 0o644, OpenFlags::WRITE);
            (encrypts.join().expect("no panic"), made)
        });
        match (encrypted, made) {
            (Ok(()), Err(e)) => assert_eq!(e.errno(), ENOKEY),
            (Err(e), Ok(_)) => assert_eq!(e.errno(), 39),
            both => panic!("{both:?}"),
        }
    }
}

/// The command died between the key and the mark.
#[test]
fn key_of_an_interrupted_encryption_is_reused() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    let dir = Walker::new(&a).mkdir(b"/d", 0o755).expect("made").ino();
    encrypted_dir_of(&b, "e");
    let text = std::fs::read_to_string(cell.path("b").join("keys")).expect("a key");
    let key: DirectoryKey = text.parse().expect("a key");
    let mut fields: Vec<String> = text.trim().split('.').map(str::to_owned).collect();
    fields[2] = format!("{:016x}", dir.0);
    let said = fields[..4].join(".");
    let sum = blake3::hash(said.as_bytes()).to_hex();
    set(&a, "", KEYS_XATTR, &format!("{said}.{}", &sum[..16])).expect("a key of that directory");
    // Plain is not what it was to be.
    let made = a.create(&Caller::ROOT, dir, b"file", 0o644, OpenFlags::WRITE);
    assert_eq!(made.expect_err("not yet").errno(), 129);
    encrypt(&a, dir);
    assert!(attribute(&a, "d", ENCRYPTION_XATTR).ends_with(&key.id().to_string()));
    write(&a, "/d/file", b"words");
    assert_eq!(read(&b, "/d/file").expect("it is b's key, too"), b"words");
}

#[test]
fn concurrent_encryption_makes_one_key() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    for round in 0..10 {
        let path = format!("/d{round}");
        let dir = Walker::new(&a).mkdir(path.as_bytes(), 0o755).expect("made").ino();
        assert_eq!(ino(&b, &path), dir);
        let new = |fs: &RingerFs| {
            fs.setxattr(&Caller::ROOT, dir, ENCRYPTION_XATTR, b"new", XattrSet::Any)
        };
        let done = std::thread::scope(|scope| {
            let other = scope.spawn(|| new(&b));
            [new(&a), other.join().expect("no panic")]
        });
        let by_a = done[0].is_ok();
        assert_ne!(by_a, done[1].is_ok(), "{done:?}");
        let (has, has_not) = if by_a { (&a, &b) } else { (&b, &a) };
        write(has, &format!("{path}/file"), b"words");
        assert_eq!(read(has_not, &format!("{path}/file")).expect_err("no key").errno(), ENOKEY);
    }
}

#[test]
fn holes_stay_holes_and_blocks_of_all_sizes_are_cut() {
    for block_bytes in [64 << 10, 256 << 10, 4 << 20_u32] {
        let cell = Cell::new(EPOCH);
        let mut options = cell.options("a");
        options.block_bytes = block_bytes;
        let a = RingerFs::join(options).expect("it joins");
        let b = cell.join("b");
        encrypted_dir(&a);
        give_keys(&cell, "a", &b);
        let block = u64::from(block_bytes);
        write(&a, "/d/file", b"");
        let file = ino(&a, "d/file");
        // A whole block, and the first bytes of one three blocks on.
        let whole = pattern(block_bytes as usize);
        a.write(&Caller::ROOT, file, Handle::NONE, 0, &whole).expect("written");
        a.write(&Caller::ROOT, file, Handle::NONE, 3 * block, NEEDLE).expect("written");
        let end = 3 * block + NEEDLE.len() as u64;
        let mut model = whole;
        model.resize(3 * block as usize, 0);
        model.extend_from_slice(NEEDLE);
        assert!(read(&b, "/d/file").expect("read") == model);
        assert_eq!(b.seek(file, SeekFrom::Hole(5)).expect("one"), block);
        assert_eq!(b.seek(file, SeekFrom::Data(block)).expect("some"), 3 * block);
        // Cut in the middle of a block, and grown again: what was cut is zeroes.
        for size in [end - 7, end + 9, block / 2 + 1, end] {
            let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            b.setattr(&Caller::ROOT, file, &set).expect("cut");
            model.resize(size as usize, 0);
            assert!(read(&a, "/d/file").expect("read") == model, "{block_bytes}: {size}");
        }
        a.write(&Caller::ROOT, file, Handle::NONE, block / 2 - 3, NEEDLE).expect("written");
        let at = (block / 2 - 3) as usize;
        model[at..at + NEEDLE.len()].copy_from_slice(NEEDLE);
        assert!(read(&b, "/d/file").expect("read") == model);
        a.sync().expect("durable");
        // Each stored block is longer by the same overhead.
        let dir = cell.path("a").join("own").join(format!("{:016x}", file.0));
        // An unneeded version is removed meanwhile.
        let lens = files_below(&dir).into_iter().filter_map(|f| std::fs::metadata(f).ok());
        let longest = lens.map(|file| file.len()).max();
        assert!(longest.is_some_and(|len| len <= block + 76), "{block_bytes}");
    }
}

#[test]
fn history_snapshots_and_restore_work_encrypted() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    encrypted_dir(&a);
    set(&a, "d", POLICY_XATTR, "versions=5 every=0").expect("a policy");
    for n in 1..=3 {
        write(&a, "/d/file", &pattern(60_000 * n));
    }
    write(&a, "/d/gone", &pattern(100_000));
    set(&a, "d", SNAPSHOTS_XATTR, "create monday").expect("made");
    Walker::new(&a).remove(b"/d/gone").expect("removed");
    write(&a, "/d/file", b"new");
    // A client without the key restores a version: the encrypted blocks are reused.
    let history = attribute(&b, "d/file", HISTORY_XATTR);
    let number = history.lines().find(|l| l.ends_with("\t120000")).expect("kept");
    set(&b, "d/file", RESTORE_XATTR, number.split('\t').nth(1).expect("a number")).expect("made");
    assert!(read(&a, "/d/file").expect("read") == pattern(120_000));
    assert!(read(&a, "/d/.snapshots/monday/file").expect("read") == pattern(180_000));
    assert!(read(&a, "/d/.snapshots/monday/gone").expect("read") == pattern(100_000));
    let no_key = read(&b, "/d/.snapshots/monday/file").expect_err("no key");
    assert_eq!(no_key.errno(), ENOKEY);
    // As a new file: in the encrypted directory, and not in an unencrypted one.
    let removed = attribute(&a, "d", HISTORY_XATTR);
    let gone = removed.split('\t').nth(1).expect("a number").to_owned();
    let file = ino(&a, "d/file").0;
    let version = number.split('\t').nth(1).expect("a number");
    for text in [format!("{gone} 0 back"), format!("{file} {version} back")] {
        let plain = set(&a, "", RESTORE_XATTR, &text).expect_err("it would be plain");
        assert_eq!(plain.errno(), 18, "{text}");
        assert!(!Walker::new(&a).exists(b"/back").expect("a look"));
        assert_eq!(set(&b, "d", RESTORE_XATTR, &text).expect_err("no key").errno(), ENOKEY);
        set(&a, "d", RESTORE_XATTR, &text).expect("restored");
        let size = if text.starts_with(&gone) { 100_000 } else { 120_000 };
        assert!(read(&a, "/d/back").expect("read") == pattern(size));
        Walker::new(&a).remove(b"/d/back").expect("removed");
    }
}

#[test]
fn conflict_resolution_keeps_both_sides_encrypted() {
    let cell = Cell::new(EPOCH);
    let b = cell.join("b");
    encrypted_dir(&b);
    for how in ["mine", "both", "gone"] {
        write(&b, "/d/file", &pattern(70_000));
        b.sync().expect("durable");
        let a = cell.join("a");
        give_keys(&cell, "b", &a);
        let file = ino(&a, "d/file");
        a.write(&Caller::ROOT, file, Handle::NONE, 66_000, b"a's words").expect("written");
        a.vanish();
        drop(a);
        b.write(&Caller::ROOT, file, Handle::NONE, 0, b"b's words").expect("written");
        if how == "gone" {
            Walker::new(&b).remove(b"/d/file").expect("removed");
        }
        b.sync().expect("durable");
        let a = cell.join("a");
        wait_until("a conflict", || !attribute(&a, "", CONFLICTS_XATTR).is_empty());
        let number = attribute(&a, "", CONFLICTS_XATTR);
        let number = number.split('\t').next().expect("a number").to_owned();
        let mut mine = pattern(70_000);
        mine[..9].copy_from_slice(b"b's words");
        mine[66_000..66_009].copy_from_slice(b"a's words");
        match how {
            "mine" => {
                set(&a, "", CONFLICTS_XATTR, &format!("mine {number}")).expect("settled");
                assert!(read(&b, "/d/file").expect("read") == mine);
            }
            _ => {
                let plain = set(&a, "", CONFLICTS_XATTR, &format!("both {number} /copy"));
                assert_eq!(plain.expect_err("it would be plain").errno(), 18);
                assert!(!Walker::new(&a).exists(b"/copy").expect("a look"));
                let text = format!("both {number} /d/{how}");
                set(&a, "", CONFLICTS_XATTR, &text).expect("settled");
                let copy = read(&b, &format!("/d/{how}")).expect("read");
                if how == "both" {
                    assert!(copy == mine);
                } else {
                    // Of a removed file only the changed blocks are left.
                    assert!(copy[66_000..66_009] == *b"a's words");
                }
            }
        }
        a.unmount().expect("it ends");
    }
}

#[test]
fn evicted_blocks_are_fetched_from_clients_without_the_key() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (join(&cell, "a"), join(&cell, "b"));
    let mut options = cell.options("c");
    options.cache_max_bytes = 0;
    let c = RingerFs::join(options).expect("it joins");
    encrypted_dir(&a);
    give_keys(&cell, "a", &c);
    set(&a, "d", POLICY_XATTR, "copies=1").expect("a policy");
    c.unmount().expect("it ends");
    drop(c);
    write(&a, "/d/file", &pattern(400_000));
    a.sync().expect("durable");
    wait_until("b has a copy", || {
        let text = attribute(&b, "d/file", HOLDERS_XATTR);
        text.lines().filter(|line| line.contains("\tcurrent\t")).count() == 2
    });
    a.unmount().expect("it ends");
    drop(a);
    std::fs::remove_dir_all(cell.path("a").join("own")).expect("lost");
    let c = RingerFs::join(cell.options("c")).expect("it joins, with its key");
    for _ in 0..2 {
        assert!(read(&c, "/d/file").expect("from b") == pattern(400_000));
        assert_eq!(read(&b, "/d/file").expect_err("it has no key").errno(), ENOKEY);
    }
    let a = join(&cell, "a");
    assert!(read(&a, "/d/file").expect("from the others") == pattern(400_000));
}

#[test]
fn keys_are_exported_as_text_and_checked() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    encrypted_dir(&a);
    write(&a, "/d/file", b"words");
    let text = std::fs::read_to_string(cell.path("a").join("keys")).expect("a key");
    let key: DirectoryKey = text.parse().expect("a key");
    let listed = attribute(&a, "d", KEYS_XATTR);
    let store = format!("store\t{}\n", cell.path("a").display());
    assert_eq!(listed, format!("{store}key\t{}\t{}\n", key.id(), ino(&a, "d").0));
    let import = |text: &str| set(&b, "", KEYS_XATTR, text);
    let other_cell = Cell::new(EPOCH);
    let c = other_cell.join("c");
    let elsewhere = set(&c, "", KEYS_XATTR, &text).expect_err("of another cell");
    for (error, says) in [
        (import("").expect_err("nothing"), "not a key"),
        (import(&text[..80]).expect_err("cut"), "checksum"),
        (import(&text.replace("weftkey1", "weftkey9")).expect_err("later"), "version 9"),
        (elsewhere, "of cell"),
    ] {
        assert!(error.errno() == 129 && error.to_string().contains(says), "{error}");
    }
    assert_eq!(read(&b, "/d/file").expect_err("no key").errno(), ENOKEY);
    import(&text).expect("taken");
    import(&text).expect("it has it");
    assert_eq!(read(&b, "/d/file").expect("it has the key"), b"words");
    // And for good.
    b.vanish();
    drop(b);
    assert_eq!(read(&cell.join("b"), "/d/file").expect("it has the key"), b"words");
}

#[test]
fn losing_the_keys_loses_no_encrypted_data() {
    let cell = Cell::new(EPOCH);
    let mut options = cell.options("a");
    (options.client.flush_micros, options.client.batch) = (u64::MAX / 2, usize::MAX);
    let a = RingerFs::join(options).expect("it joins");
    encrypted_dir(&a);
    write(&a, "/d/file", b"");
    a.write(&Caller::ROOT, ino(&a, "d/file"), Handle::NONE, 0, b"words").expect("written");
    a.vanish();
    drop(a);
    let (keys, aside) = (cell.path("a").join("keys"), cell.path("a").join("keys.aside"));
    std::fs::rename(&keys, &aside).expect("taken away");
    let error = RingerFs::join(cell.options("a")).expect_err("its journal needs them");
    assert!(error.to_string().contains("the key"), "{error}");
    std::fs::rename(&aside, &keys).expect("put back");
    let options = cell.options("a");
    ends("the file is read", move || {
        let a = RingerFs::join(options).expect("it joins");
        assert_eq!(read(&a, "/d/file").expect("read"), b"words");
    });
}
