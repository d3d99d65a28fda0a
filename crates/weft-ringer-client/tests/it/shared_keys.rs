//! Keys that members hand to each other through the cell, and a server that would like to have a hand in
//! it.

use std::path::Path;
use std::time::Duration;

use weft_ringer::{Bytes, ENCRYPTION_XATTR, Rnode, SHARES_XATTR};
use weft_ringer_client::{
    KEYS_XATTR, MEMBER_XATTR, MemberId, RingerFs, SHARED_KEYS_XATTR, Shares, TRUSTED_XATTR,
};
use weft_vfs::{Caller, Error, FileSystem, Ino, RenameFlags, Result, Walker, XattrSet};

use super::encrypted::{encrypted_dir, read};
use super::encrypted_hostile::tamper;
use super::{Cell, encrypt, give_keys, ino, write};

const EPOCH: Duration = Duration::from_secs(2);
const ENOKEY: i32 = 126;
const EKEYREJECTED: i32 = 129;

pub fn id(fs: &RingerFs) -> MemberId {
    let text = fs.getxattr(fs.root(), MEMBER_XATTR).expect("an id");
    String::from_utf8(text).expect("text").parse().expect("an id")
}

pub fn share(fs: &RingerFs, dir: Ino, with: &[MemberId]) -> Result<()> {
    let ids: String = with.iter().map(|id| format!(" {id}")).collect();
    fs.setxattr(&Caller::ROOT, dir, SHARES_XATTR, format!("share{ids}").as_bytes(), XattrSet::Any)
}

pub fn trust(fs: &RingerFs, whom: &MemberId) {
    let text = format!("{whom}\n");
    fs.setxattr(&Caller::ROOT, fs.root(), TRUSTED_XATTR, text.as_bytes(), XattrSet::Any)
        .expect("trusted");
}

fn told(fs: &RingerFs, ino: Ino, name: &[u8]) -> String {
    String::from_utf8(fs.getxattr(ino, name).expect("a value")).expect("text")
}

fn errno<T: std::fmt::Debug>(got: Result<T>) -> i32 {
    got.expect_err("refused").errno()
}

fn secret_in(keys: &Path) -> String {
    let text = std::fs::read_to_string(keys).expect("keys");
    text.split('.').nth(3).expect("a key").to_owned()
}

#[test]
fn trusted_members_receive_shared_keys() {
    let cell = Cell::new(EPOCH);
    let (a, b, c) = (cell.join("a"), cell.join("b"), cell.join("c"));
    encrypted_dir(&a);
    Walker::new(&a).mkdir(b"/d/deep", 0o755).expect("made");
    write(&a, "/d/deep/file", b"for two");
    let dir = ino(&a, "d");
    assert_eq!(told(&a, dir, SHARES_XATTR), "");
    share(&a, dir, &[id(&b)]).expect("shared");
    share(&a, dir, &[id(&b)]).expect("it is already");
    let deep = share(&a, ino(&a, "d/deep"), &[id(&c)]).expect_err("not the one that was encrypted");
    assert!(matches!(deep, Error::Invalid(_)), "{deep}");
    assert_eq!(errno(share(&b, dir, &[id(&c)])), ENOKEY);

    // The server can make ids too: whom it is from counts.
    assert_eq!(errno(read(&b, "/d/deep/file")), ENOKEY);
    let (of_b, of_a) = (id(&b).fingerprint(), id(&a).fingerprint());
    assert!(told(&b, dir, SHARES_XATTR).contains(&format!("-\t{of_b}\t{of_a}\town\n")));
    trust(&b, &id(&c));
    assert_eq!(errno(read(&b, "/d/deep/file")), ENOKEY);
    trust(&b, &id(&a));
    assert_eq!(read(&b, "/d/deep/file").expect("it has the key"), b"for two");
    write(&b, "/d/deep/new", b"by the other");
    assert_eq!(read(&a, "/d/deep/new").expect("read"), b"by the other");
    assert_eq!(errno(read(&c, "/d/deep/file")), ENOKEY);

    // For good: without server and shares.
    assert_eq!(told(&b, b.root(), KEYS_XATTR).lines().count(), 2);
    b.vanish();
    drop(b);
    let b = cell.join("b");
    assert_eq!(read(&b, "/d/deep/file").expect("it has the key"), b"for two");
    // Shared further by a member who received it; the first owner is among the members.
    share(&b, dir, &[id(&c)]).expect("shared");
    trust(&c, &id(&b));
    write(&c, "/d/by c", b"words");
    let members = told(&a, dir, SHARES_XATTR);
    let line = |to: &RingerFs, from: &RingerFs, whose: &str| {
        let to = id(to);
        format!("{to}\t{}\t{}\t{whose}\n", to.fingerprint(), id(from).fingerprint())
    };
    for line in [line(&a, &a, "own"), line(&b, &a, ""), line(&c, &b, "")] {
        assert!(members.contains(&line), "{members} lacks {line}");
    }
    let listed = told(&c, c.root(), SHARED_KEYS_XATTR);
    assert!([&a, &b, &c].iter().all(|fs| listed.contains(&id(fs).to_string())), "{listed}");

    // The shares in the cell reveal no key, and are not copied with the directory.
    assert!(!a.listxattr(dir).expect("listed").contains(&SHARES_XATTR.to_vec()));
    assert_eq!(errno(a.removexattr(&Caller::ROOT, dir, SHARES_XATTR)), 1);
    let secret = secret_in(&cell.path("a").join("keys"));
    let bytes = from_hex(&secret);
    drop((a, b, c));
    for name in ["cell", "cell-wal"] {
        let stored = std::fs::read(cell.path(name)).unwrap_or_default();
        assert!(!stored.windows(32).any(|window| window == bytes), "{name} has the key");
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16);
    digits.map(|pair| byte(pair).expect("hex")).collect()
}

#[test]
fn shares_survive_moves_and_are_bounded() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    encrypted_dir(&a);
    write(&a, "/d/file", b"words");
    let dir = ino(&a, "d");
    trust(&b, &id(&a));
    Walker::new(&a).mkdir(b"/elsewhere", 0o755).expect("made");
    assert!(share(&a, ino(&a, "elsewhere"), &[id(&b)]).is_err(), "it is not encrypted");
    share(&a, dir, &[id(&b)]).expect("shared");
    Walker::new(&a).rename(b"/d", b"/elsewhere/e", RenameFlags::empty()).expect("moved");
    assert_eq!(read(&b, "/elsewhere/e/file").expect("it has the key"), b"words");
    let own = id(&a).to_string();
    let many: Vec<MemberId> = (0..63_u8)
        .map(|n| cell.path(&format!("m{n}")))
        .map(|store| {
            let fs = RingerFs::join(super::options(cell.address(), &store)).expect("it joins");
            let id = id(&fs);
            fs.unmount().expect("it ends");
            id
        })
        .collect();
    assert_eq!(errno(share(&a, dir, &many)), 28, "with a and b they are 65");
    share(&a, dir, &many[..62]).expect("64");
    let members = told(&a, dir, SHARES_XATTR);
    assert_eq!(members.lines().count(), 64);
    assert!(members.contains(&own));
    for bad in ["", "share weftid1.00.00", "unknown", "share\u{0}"] {
        let set = a.setxattr(&Caller::ROOT, dir, SHARES_XATTR, bad.as_bytes(), XattrSet::Any);
        assert_eq!(errno(set), 22, "{bad:?}");
    }
    for bad in ["weftid1", "-x", &own[..40]] {
        let set = a.setxattr(&Caller::ROOT, a.root(), TRUSTED_XATTR, bad.as_bytes(), XattrSet::Any);
        assert_eq!(errno(set), 22, "{bad:?}");
    }
}

#[test]
fn nested_key_is_shared_alone() {
    let cell = Cell::new(EPOCH);
    let (a, b) = (cell.join("a"), cell.join("b"));
    encrypted_dir(&a);
    Walker::new(&a).mkdir(b"/d/nested", 0o755).expect("made");
    encrypt(&a, ino(&a, "d/nested"));
    write(&a, "/d/file", b"for one");
    write(&a, "/d/nested/file", b"for both");
    trust(&b, &id(&a));
    share(&a, ino(&a, "d/nested"), &[id(&b)]).expect("shared");
    assert_eq!(read(&b, "/d/nested/file").expect("it has the key"), b"for both");
    assert_eq!(errno(read(&b, "/d/file")), ENOKEY);
    share(&a, ino(&a, "d"), &[id(&b)]).expect("shared");
    assert_eq!(read(&b, "/d/file").expect("it has the key"), b"for one");
}

fn shares_name() -> Bytes {
    Bytes(SHARES_XATTR.to_vec())
}

fn mark_name() -> Bytes {
    Bytes(ENCRYPTION_XATTR.to_vec())
}

fn shares(rnode: &Rnode) -> Shares {
    Shares::parse(&rnode.xattrs.get(&shares_name()).expect("shares").0).expect("readable")
}

/// Directories `d`, which `a` shared with `b`, and `e`, which `e` did: whom the server runs.
struct Attacked {
    cell: Cell,
    dirs: [Ino; 2],
    rnodes: [Rnode; 2],
    attempts: u32,
}

impl Attacked {
    fn new() -> Self {
        let mut cell = Cell::new(EPOCH);
        let (a, b, e) = (cell.join("a"), cell.join("b"), cell.join("e"));
        encrypted_dir(&a);
        Walker::new(&e).mkdir(b"/e", 0o755).expect("made");
        encrypt(&e, ino(&e, "e"));
        write(&a, "/d/file", b"words");
        write(&e, "/e/file", b"bait");
        let dirs = [ino(&a, "d"), ino(&e, "e")];
        share(&a, dirs[0], &[id(&b)]).expect("shared");
        share(&e, dirs[1], &[id(&b)]).expect("shared");
        trust(&b, &id(&a));
        for fs in [&a, &b, &e] {
            fs.unmount().expect("it ends");
        }
        drop((a, b, e));
        let rnodes = dirs.map(|dir| {
            let mut found = None;
            tamper(&mut cell, dir, |rnode| found = Some(rnode.clone()));
            found.expect("looked at")
        });
        Self { cell, dirs, rnodes, attempts: 0 }
    }

    /// The results of `b`, which has no key, when it uses `d` with an rnode that the server has altered.
    fn comes(&mut self, change: impl FnOnce(&mut Rnode)) -> (Result<Vec<u8>>, Result<()>) {
        let _ = std::fs::remove_file(self.cell.path("b").join("keys"));
        let (dir, before) = (self.dirs[0], self.rnodes[0].clone());
        tamper(&mut self.cell, dir, |rnode| {
            rnode.xattrs = before.xattrs;
            change(rnode);
        });
        let (a, b) = (self.cell.join("a"), self.cell.join("b"));
        self.attempts += 1;
        let name = format!("/d/new {}", self.attempts);
        let wrote = Walker::new(&b).write_file(name.as_bytes(), b"secret words", 0o644);
        let got = (read(&b, "/d/file"), wrote.map(|_| ()));
        for fs in [&a, &b] {
            fs.unmount().expect("it ends");
        }
        got
    }
}

#[test]
fn forged_shares_of_a_server_are_rejected() {
    let mut attacked = Attacked::new();
    let ([d, e], [_, of_e]) = (attacked.rnodes.clone(), attacked.dirs);
    let (got, wrote) = attacked.comes(|_| ());
    assert_eq!(got.expect("as it was"), b"words");
    wrote.expect("as it was");
    // A key of the server, wrapped for the victim under an unknown id.
    let (got, wrote) = attacked.comes(|rnode| rnode.xattrs.clone_from(&e.xattrs));
    assert_eq!((errno(got), errno(wrote)), (EKEYREJECTED, ENOKEY));
    // The same in the name of a trusted member.
    let giver = shares(&d).shares[0].from;
    let (got, wrote) = attacked.comes(|rnode| {
        rnode.xattrs.clone_from(&e.xattrs);
        let mut forged = shares(rnode);
        forged.shares.iter_mut().for_each(|share| share.from = giver);
        rnode.xattrs.insert(shares_name(), Bytes(forged.to_bytes()));
    });
    assert_eq!((errno(got), errno(wrote)), (EKEYREJECTED, EKEYREJECTED));
    // The true shares with another mark, the true mark with other shares.
    for names in [shares_name(), mark_name()] {
        let (got, wrote) = attacked.comes(|rnode| {
            rnode.xattrs.insert(names.clone(), e.xattrs.get(&names).expect("a value").clone());
        });
        assert!([ENOKEY, EKEYREJECTED].contains(&errno(got)) && wrote.is_err());
    }
    // Even if its directory is one that the victim takes from: not for another directory.
    let e_id = {
        let e = attacked.cell.join("e");
        let e_id = id(&e);
        e.unmount().expect("it ends");
        e_id
    };
    {
        let b = attacked.cell.join("b");
        trust(&b, &e_id);
        b.unmount().expect("it ends");
    }
    let (got, wrote) = attacked.comes(|rnode| rnode.xattrs.clone_from(&e.xattrs));
    assert_eq!((errno(got), errno(wrote)), (EKEYREJECTED, EKEYREJECTED));
    let b = attacked.cell.join("b");
    let e = attacked.cell.join("e");
    assert_eq!(read(&b, "/e/file").expect("where it belongs"), b"bait");
    assert_eq!(ino(&e, "e"), of_e);
}

#[test]
fn altered_shares_are_rejected() {
    let mut attacked = Attacked::new();
    let d = attacked.rnodes[0].clone();
    let (got, _) = attacked.comes(|rnode| drop(rnode.xattrs.remove(&shares_name())));
    assert_eq!(errno(got), ENOKEY);
    // In the head, in one share, in the other, and in what is sealed.
    for at in [0, 5, 22, 30, 40, 41, 50, 60, 80, 120, 42 + 112 + 50, 42 + 224 + 3, 42 + 224 + 80] {
        let (got, _) = attacked.comes(|rnode| {
            let mut bytes = d.xattrs[&shares_name()].0.clone();
            bytes[at] ^= 1;
            rnode.xattrs.insert(shares_name(), Bytes(bytes));
        });
        assert!([ENOKEY, EKEYREJECTED].contains(&errno(got)), "{at}");
    }
    // One member is removed, and another is inserted without a share.
    let (dir, cell) = (attacked.dirs[0], &mut attacked.cell);
    for change in [
        |shares: &mut Shares| shares.shares.truncate(1),
        |shares: &mut Shares| shares.shares[1].to.0[0] ^= 1,
        |shares: &mut Shares| shares.shares.push(shares.shares[0].clone()),
    ] {
        tamper(cell, dir, |rnode| {
            let mut changed = shares(&d);
            change(&mut changed);
            rnode.xattrs.insert(shares_name(), Bytes(changed.to_bytes()));
        });
        let a = cell.join("a");
        assert_eq!(errno(a.getxattr(dir, SHARES_XATTR)), EKEYREJECTED);
        assert_eq!(errno(share(&a, dir, &[id(&a)])), EKEYREJECTED);
        assert_eq!(read(&a, "/d/file").expect("it has the key"), b"words");
        a.unmount().expect("it ends");
    }
}

#[test]
fn shares_of_another_cell_are_rejected() {
    let (mut one, mut two) = (Cell::new(EPOCH), Cell::new(EPOCH));
    let (a, x) = (one.join("a"), two.join("a"));
    let b = one.join("b");
    encrypted_dir(&a);
    encrypted_dir(&x);
    write(&a, "/d/file", b"words");
    write(&x, "/d/file", b"words");
    let dir = ino(&a, "d");
    assert_eq!(dir, ino(&x, "d"), "the same inode in both");
    share(&a, dir, &[id(&b)]).expect("shared");
    give_keys(&one, "a", &b);
    let (of_a, of_b) = (id(&a), id(&b));
    for fs in [&a, &b, &x] {
        fs.unmount().expect("it ends");
    }
    drop((a, b, x));
    // The same member in the other cell: its pair was carried there by hand.
    std::fs::create_dir(two.path("b")).expect("a store");
    std::fs::copy(one.path("b").join("member"), two.path("b").join("member")).expect("copied");
    let mut true_rnode = None;
    tamper(&mut one, dir, |rnode| true_rnode = Some(rnode.clone()));
    let true_rnode = true_rnode.expect("looked at");
    tamper(&mut two, dir, |rnode| rnode.xattrs = true_rnode.xattrs);
    let b = two.join("b");
    assert_eq!(id(&b), of_b);
    trust(&b, &of_a);
    let wrote = Walker::new(&b).write_file(b"/d/new", b"words", 0o644);
    assert_eq!(errno(wrote.map(|_| ())), EKEYREJECTED);
}
