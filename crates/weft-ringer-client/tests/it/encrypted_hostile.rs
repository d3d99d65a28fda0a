//! A hostile server and altered blocks: a client with the key reads what was written there or gets an
//! error, and writes no plaintext.

use std::time::Duration;

use weft_ringer::store::{Store, Transaction};
use weft_ringer::wire::{decode, encode};
use weft_ringer::{Block, BlockHash, BlockMap, Body, Bytes, ENCRYPTION_XATTR, KeyId, Rnode};
use weft_ringer_client::RingerFs;
use weft_ringer_server::store::SqliteStore;
use weft_vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, Walker};

use super::encrypted::{encrypted_dir, read};
use super::{Cell, encrypt, give_keys, ino, write};

const EPOCH: Duration = Duration::from_secs(2);
const BLOCK: usize = 64 << 10;
const EKEYREJECTED: i32 = 129;

/// Changes records of the server's, while it is away.
pub fn tamper(cell: &mut Cell, ino: Ino, change: impl FnOnce(&mut Rnode)) {
    cell.stop();
    let mut store = SqliteStore::open(&cell.path("cell")).expect("a store");
    let key = [&b"r"[..], &ino.0.to_be_bytes()].concat();
    let record = store.get(&key).expect("readable").expect("there");
    let mut rnode: Rnode = decode(&record.value).expect("an rnode");
    change(&mut rnode);
    let mut transaction = Transaction::default();
    transaction.put(key, encode(&rnode));
    store.commit(&transaction).expect("changed");
    drop(store);
    cell.start();
}

fn blocks(rnode: &mut Rnode) -> &mut BlockMap {
    match &mut rnode.body {
        Body::File { blocks, .. } => blocks,
        _ => panic!("a file"),
    }
}

/// Two encrypted files, each of three blocks, and a client that has them; another that has the key.
struct Attacked {
    cell: Cell,
    files: [Ino; 2],
    /// The first file as the server had it.
    true_rnode: Rnode,
}

fn content(seed: u8) -> Vec<u8> {
    (0..3 * BLOCK).map(|n| (n % 251) as u8 ^ seed ^ (n / BLOCK) as u8).collect()
}

impl Attacked {
    fn new() -> Self {
        let mut cell = Cell::new(EPOCH);
        let a = cell.join("a");
        encrypted_dir(&a);
        write(&a, "/d/one", &content(1));
        write(&a, "/d/two", &content(2));
        a.sync().expect("durable");
        let files = [ino(&a, "d/one"), ino(&a, "d/two")];
        let b = cell.join("b");
        give_keys(&cell, "a", &b);
        for fs in [&a, &b] {
            fs.unmount().expect("it ends");
        }
        drop((a, b));
        let mut true_rnode = None;
        tamper(&mut cell, files[0], |rnode| true_rnode = Some(rnode.clone()));
        Self { cell, files, true_rnode: true_rnode.expect("looked at") }
    }

    /// Reads the first file as a client with the key, given these attributes from the server.
    fn read_as(&mut self, change: impl FnOnce(&mut Rnode)) -> weft_vfs::Result<Vec<u8>> {
        let (ino, true_rnode) = (self.files[0], self.true_rnode.clone());
        tamper(&mut self.cell, ino, |rnode| {
            *rnode = true_rnode;
            change(rnode);
        });
        let (a, b) = (self.cell.join("a"), self.cell.join("b"));
        let got = read(&b, "/d/one");
        // The one that wrote it is not deceived either.
        let own = read(&a, "/d/one");
        assert_eq!(got.is_ok(), own.is_ok(), "{got:?}");
        for fs in [&a, &b] {
            fs.unmount().expect("it ends");
        }
        got
    }

    /// A block of the second file, put among those of the first.
    fn foreign(&mut self) -> Block {
        let mut found = None;
        tamper(&mut self.cell, self.files[1], |rnode| found = blocks(rnode).get(&1).copied());
        let block = found.expect("a block");
        let own = |ino: Ino| self.cell.path("a").join("own").join(format!("{:016x}", ino.0));
        let name = block.hash.to_string();
        std::fs::copy(own(self.files[1]).join(&name), own(self.files[0]).join(&name))
            .expect("copied");
        block
    }

    /// The same bytes with a change, as a block of the first file.
    fn altered(&mut self, change: impl FnOnce(&mut Vec<u8>)) -> BlockHash {
        let name = self.true_rnode.clone();
        let mut name = name;
        let hash = blocks(&mut name).get(&1).expect("a block").hash;
        let own = self.cell.path("a").join("own").join(format!("{:016x}", self.files[0].0));
        let mut bytes = std::fs::read(own.join(hash.to_string())).expect("a block");
        change(&mut bytes);
        let altered = BlockHash(*blake3::hash(&bytes).as_bytes());
        std::fs::write(own.join(altered.to_string()), bytes).expect("room");
        altered
    }
}

fn rejected(got: weft_vfs::Result<Vec<u8>>, says: &str) {
    let error = got.expect_err(says);
    assert!(error.errno() == EKEYREJECTED && error.to_string().contains(says), "{error}");
}

#[test]
fn misplaced_and_altered_blocks_are_rejected() {
    let mut attacked = Attacked::new();
    assert!(attacked.read_as(|_| ()).expect("as it was written") == content(1));
    let swapped = attacked.read_as(|rnode| {
        let blocks = blocks(rnode);
        let (first, second) = (blocks.get(&0).copied(), blocks.get(&1).copied());
        blocks.set(0, second);
        blocks.set(1, first);
    });
    rejected(swapped, "block 0: authentication failed");
    let foreign = attacked.foreign();
    let got = attacked.read_as(|rnode| blocks(rnode).set(1, Some(foreign)));
    rejected(got, "block 1: encrypted for another file");
    for (says, change) in [
        (
            "block 1: authentication failed",
            Box::new(|b: &mut Vec<u8>| b.truncate(1000)) as Box<dyn FnOnce(&mut Vec<u8>)>,
        ),
        ("block 1: not encrypted", Box::new(|b: &mut Vec<u8>| b.truncate(75))),
        ("block 1: not encrypted", Box::new(|b: &mut Vec<u8>| b.clear())),
        ("block 1: not encrypted", Box::new(|b: &mut Vec<u8>| b.fill(7))),
        ("block 1: authentication failed", Box::new(|b: &mut Vec<u8>| b[40] ^= 1)),
        ("block 1: authentication failed", Box::new(|b: &mut Vec<u8>| b[70] ^= 1)),
        ("block 1: encrypted for another file", Box::new(|b: &mut Vec<u8>| b[30] ^= 1)),
    ] {
        let hash = attacked.altered(change);
        let got = attacked.read_as(|rnode| {
            let blocks = blocks(rnode);
            let there = *blocks.get(&1).expect("a block");
            blocks.set(1, Some(Block { hash, ..there }));
        });
        rejected(got, says);
    }
    // Longer than what was written there.
    write_short(&mut attacked);
}

/// A block that has fewer bytes than the server says of it.
fn write_short(attacked: &mut Attacked) {
    let a = attacked.cell.join("a");
    write(&a, "/d/short", b"a few bytes");
    a.sync().expect("durable");
    let short = ino(&a, "d/short");
    a.unmount().expect("it ends");
    drop(a);
    tamper(&mut attacked.cell, short, |rnode| {
        let there = *blocks(rnode).get(&0).expect("a block");
        blocks(rnode).set(0, Some(Block { len_bytes: 1000, ..there }));
        if let Body::File { size_bytes, .. } = &mut rnode.body {
            *size_bytes = 1000;
        }
    });
    let a = attacked.cell.join("a");
    rejected(read(&a, "/d/short"), "block 0: wrong length: 11 bytes, expected 1000");
}

fn name() -> Bytes {
    Bytes(ENCRYPTION_XATTR.to_vec())
}

/// Checks that no plaintext is written, whatever attributes the server returns.
fn writes_nothing(fs: &RingerFs, path: &str) {
    let error = Walker::new(fs).write_file(path.as_bytes(), b"plain words", 0o644);
    let error = error.expect_err("it should be encrypted");
    assert_eq!(error.errno(), EKEYREJECTED, "{error}");
}

#[test]
fn removing_the_attribute_yields_no_plaintext() {
    let mut attacked = Attacked::new();
    let got = attacked.read_as(|rnode| drop(rnode.xattrs.remove(&name())));
    rejected(got, "not encrypted with the key of its directory");
    {
        let b = attacked.cell.join("b");
        writes_nothing(&b, "/d/one");
    }
    // An attribute of an unknown format.
    let got = attacked.read_as(|rnode| drop(rnode.xattrs.insert(name(), Bytes(b"v9".to_vec()))));
    rejected(got, "in an unknown format");
    attacked.read_as(|_| ()).expect("as it was");

    let a = attacked.cell.join("a");
    Walker::new(&a).mkdir(b"/d/below", 0o755).expect("made");
    let (dir, below) = (ino(&a, "d"), ino(&a, "d/below"));
    a.unmount().expect("it ends");
    drop(a);
    for mark in [None, Some(Bytes(b"v9 x".to_vec())), Some(KeyId([7; 16]).mark())] {
        // Both, or the lower alone.
        for dirs in [&[below][..], &[dir, below]] {
            let mut before = Vec::new();
            for ino in dirs {
                tamper(&mut attacked.cell, *ino, |rnode| {
                    before.push((*ino, rnode.xattrs.remove(&name()).expect("a mark")));
                    rnode.xattrs.extend(mark.clone().map(|mark| (name(), mark)));
                });
            }
            let b = attacked.cell.join("b");
            let made = b.create(&Caller::ROOT, below, b"new", 0o644, OpenFlags::WRITE);
            let errno = made.expect_err("it should be encrypted").errno();
            let is_unknown_key = mark == Some(KeyId([7; 16]).mark()) && dirs.len() == 1;
            assert_eq!(errno, if is_unknown_key { 126 } else { EKEYREJECTED }, "{mark:?}");
            drop(b);
            for (ino, mark) in before {
                tamper(&mut attacked.cell, ino, |rnode| drop(rnode.xattrs.insert(name(), mark)));
            }
        }
    }
    let b = attacked.cell.join("b");
    write(&b, "/d/below/new", b"as it should be");
}

#[test]
fn open_file_keeps_its_encryption() {
    let mut attacked = Attacked::new();
    let (a, b) = (attacked.cell.join("a"), attacked.cell.join("b"));
    let one = ino(&b, "d/one");
    let opened = b.open(&Caller::ROOT, one, OpenFlags::WRITE).expect("opened");
    b.write(&Caller::ROOT, one, opened.handle, 0, b"words").expect("written");
    b.sync().expect("durable");
    tamper(&mut attacked.cell, one, |rnode| drop(rnode.xattrs.remove(&name())));
    // Its lease was claimed again; another client takes it, and it is told anew.
    a.setattr(&Caller::ROOT, one, &weft_vfs::SetAttr { perm: Some(0o600), ..Default::default() })
        .expect("set");
    let error =
        b.write(&Caller::ROOT, one, opened.handle, 0, b"plain").expect_err("it was encrypted");
    assert!(
        error.errno() == EKEYREJECTED && error.to_string().contains("encryption mark was changed"),
        "{error}"
    );
}

#[test]
fn encrypted_file_in_a_plain_directory_is_rejected() {
    let mut attacked = Attacked::new();
    let a = attacked.cell.join("a");
    Walker::new(&a).mkdir(b"/plain", 0o755).expect("made");
    write(&a, "/plain/file", b"plain");
    let plain = ino(&a, "plain/file");
    a.unmount().expect("it ends");
    drop(a);
    let encrypted = attacked.true_rnode.clone();
    tamper(&mut attacked.cell, plain, |rnode| {
        rnode.xattrs = encrypted.xattrs;
        rnode.body = encrypted.body;
    });
    let (_a, b) = (attacked.cell.join("a"), attacked.cell.join("b"));
    rejected(read(&b, "/plain/file"), "not encrypted with the key of its directory");
    // An older state of a whole file is one that was written, and is not told from the present one.
    let handle = Handle::NONE;
    let mut buf = [0; 10];
    let read = b.read(attacked.files[0], handle, 0, &mut buf).expect("encryption mark was changed");
    assert_eq!(buf[..read], content(1)[..read]);
}

#[test]
fn nested_directories_have_separate_keys() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    encrypted_dir(&a);
    give_keys(&cell, "a", &b);
    Walker::new(&a).mkdir(b"/d/nested", 0o755).expect("made");
    encrypt(&a, ino(&a, "d/nested"));
    write(&a, "/d/file", b"for both");
    write(&a, "/d/nested/file", b"for one");
    assert_eq!(read(&b, "/d/file").expect("it has that key"), b"for both");
    assert_eq!(read(&b, "/d/nested/file").expect_err("not that one").errno(), 126);
    give_keys(&cell, "a", &b);
    assert_eq!(read(&b, "/d/nested/file").expect("it has the key"), b"for one");
}
