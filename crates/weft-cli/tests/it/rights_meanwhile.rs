//! While a copy is made, no user has a right on any item that the complete item does not give: a layer
//! below the copy notes the rights on each new inode after every call, as a power cut or another reader
//! of the volume would find them.

use crate::exact_copies::{can_make, make_tree, volume};
use crate::run::Bench;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use weft::transfer::{HostSource, Ownership, VolumeSink};
use weft::vfs::acl::{self, Acl};
use weft::vfs::path::Node;
use weft::vfs::{
    Caller, Entry, FileKind, FileSystem, Handle, Ino, Layer, RenameFlags, Result, SetAttr, Walker,
    XattrSet,
};
use weft_testing::Rng;

/// Users with their groups: named in lists, members of owning groups, strangers.
const USERS: [(u32, &[u32]); 7] =
    [(99, &[]), (100, &[60]), (50, &[61]), (7, &[120]), (99, &[60, 120]), (7, &[0]), (8, &[])];

/// What decides who may do what with an inode.
#[derive(Debug, Clone)]
struct Rights {
    uid: u32,
    gid: u32,
    perm: u16,
    list: Option<String>,
}

impl Rights {
    fn of(fs: &dyn FileSystem, ino: Ino) -> Option<Self> {
        let attr = fs.getattr(ino).ok()?;
        let list = fs.getxattr(ino, acl::ACCESS).ok();
        let list = list.and_then(|list| Acl::parse(&list).expect("a valid list"));
        let list = list.map(|list| list.to_text());
        Some(Self { uid: attr.uid, gid: attr.gid, perm: attr.perm, list })
    }

    /// The rights of a user, as acl(5) decides.
    fn granted(&self, user: u32, groups: &[u32]) -> u16 {
        if user == self.uid {
            return self.perm >> 6 & 7;
        }
        let Some(list) = &self.list else {
            let class = if groups.contains(&self.gid) { 3 } else { 0 };
            return self.perm >> class & 7;
        };
        let mut all: Vec<(&str, &str, u16)> = Vec::new();
        for entry in list.split(',') {
            let [tag, name, perm] = entry.split(':').collect::<Vec<_>>()[..] else {
                panic!("{entry}")
            };
            let bit = |(letter, bit): (char, u16)| if perm.contains(letter) { bit } else { 0 };
            all.push((tag, name, [('r', 4), ('w', 2), ('x', 1)].map(bit).iter().sum()));
        }
        let mask = all.iter().find(|e| e.0 == "mask").map_or(7, |e| e.2);
        if let Some(named) = all.iter().find(|e| e.0 == "user" && e.1 == user.to_string()) {
            return named.2 & mask;
        }
        let of_group = |e: &&(&str, &str, u16)| {
            let group = if e.1.is_empty() { Some(self.gid) } else { e.1.parse().ok() };
            e.0 == "group" && group.is_some_and(|group| groups.contains(&group))
        };
        let groups: Vec<u16> = all.iter().filter(of_group).map(|e| e.2).collect();
        if groups.is_empty() {
            return all.iter().find(|e| e.0 == "other").map_or(0, |e| e.2);
        }
        groups.iter().fold(0, |all, bits| all | bits) & mask
    }
}

/// Notes the rights on each inode that was made, whenever they may have changed.
struct Noting<'a> {
    below: &'a dyn FileSystem,
    made: Mutex<BTreeSet<Ino>>,
    seen: Mutex<BTreeMap<Ino, Vec<(&'static str, Rights)>>>,
}

impl Noting<'_> {
    fn note(&self, call: &'static str, ino: Ino) {
        if self.made.lock().unwrap().contains(&ino)
            && let Some(rights) = Rights::of(self.below, ino)
        {
            self.seen.lock().unwrap().entry(ino).or_default().push((call, rights));
        }
    }

    fn noted<T>(&self, call: &'static str, ino: Ino, done: Result<T>) -> Result<T> {
        self.note(call, ino);
        done
    }

    fn made(&self, call: &'static str, entry: Result<Entry>) -> Result<Entry> {
        if let Ok(entry) = &entry {
            self.made.lock().unwrap().insert(entry.attr.ino);
            self.note(call, entry.attr.ino);
        }
        entry
    }
}

impl Layer for Noting<'_> {
    fn below(&self) -> &dyn FileSystem {
        self.below
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<weft::vfs::Attr> {
        self.noted("setattr", ino, self.below.setattr(caller, ino, set))
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        self.made("mknod", self.below.mknod(caller, parent, name, kind, perm, rdev))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.made("mkdir", self.below.mkdir(caller, parent, name, perm))
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.noted("write", ino, self.below.write(caller, ino, handle, offset, data))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.noted("setxattr", ino, self.below.setxattr(caller, ino, name, value, how))
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.noted("removexattr", ino, self.below.removexattr(caller, ino, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let renamed = self.below.rename(caller, parent, name, new_parent, new_name, flags);
        let made: Vec<Ino> = self.made.lock().unwrap().iter().copied().collect();
        made.into_iter().for_each(|ino| self.note("rename", ino));
        renamed
    }
}

#[test]
fn no_user_has_more_rights_while_a_copy_is_made() {
    if !can_make() {
        return;
    }
    let mut compared = 0;
    for seed in 100..106 {
        let rng = &mut Rng::new(seed);
        let bench = Bench::new();
        let source = bench.path("source");
        make_tree(&source, rng);
        volume(&bench, "v.img", rng);
        let image = bench.path("v.img");
        let options = weft::Options::default();
        let stack = weft::Stack::open(image.to_str().unwrap(), &options).unwrap();
        // Into a setgid directory with a default list, and once more over what is there.
        for _ in 0..2 {
            let fs = Noting { below: stack.fs(), made: Mutex::default(), seen: Mutex::default() };
            let top: Node<'_> = Walker::new(&fs).resolve(b"/to").unwrap();
            let mut sink = VolumeSink::new(&fs, top, Some(b"copy"), b"/to", Ownership::Keep);
            HostSource::new(&source).send(&mut sink).unwrap();
            drop(sink);
            for (ino, seen) in &*fs.seen.lock().unwrap() {
                let Some(last) = Rights::of(stack.fs(), *ino) else { continue };
                for (call, rights) in seen {
                    for (user, groups) in USERS {
                        let (had, has) = (rights.granted(user, groups), last.granted(user, groups));
                        assert!(
                            had & !has == 0,
                            "seed {seed}: after {call} user {user} of {groups:?} has {had:o} by \
                             {rights:?}, which becomes {has:o} by {last:?}"
                        );
                        compared += 1;
                    }
                }
            }
        }
        stack.close().unwrap();
    }
    assert!(compared > 6_000, "{compared} rights compared");
}
