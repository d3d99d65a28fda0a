//! Texts that are found are what a walk through the files would find, under changes of several clients
//! and of policies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_block::Rng;
use weft_ringer::{POLICY_XATTR, Policy};
use weft_ringer_client::RingerFs;
use weft_vfs::{
    Caller, DirCursor, FileKind, FileSystem, Handle, Ino, RenameFlags, SetAttr, XattrSet,
};

use super::Cell;
use super::search::found;
use weft_testing::wait_for;

const WORDS: [&str; 5] = ["red", "green", "redder", "ÉTÉ", "blue"];
const DIRS: [&str; 4] = ["", "d", "d/deep", "other"];
const NAMES: [&str; 6] = ["a", "b", "c", "x", "y", "z"];

fn join(cell: &Cell, name: &str) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(20);
    options.scan_every = Duration::from_millis(300);
    RingerFs::join(options).expect("it joins")
}

/// A name of a file as a walk finds it.
struct Named {
    path: String,
    bytes: Vec<u8>,
    ino: Ino,
    dir: Ino,
    /// The maximum length of texts that the policy of this directory has indexed.
    text_bytes: u64,
}

/// The entries of a directory, without `.` and `..`.
pub(super) fn names_in(fs: &RingerFs, dir: Ino) -> Vec<(String, Ino, FileKind)> {
    let mut names = Vec::new();
    fs.readdir(dir, DirCursor::START, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push((String::from_utf8(e.name.to_vec()).expect("text"), e.ino, e.kind));
        }
        true
    })
    .expect("listed");
    names
}

fn walk(fs: &RingerFs, dir: Ino, above: &str, text_bytes: u64, into: &mut Vec<Named>) {
    let own = fs.getxattr(dir, POLICY_XATTR).ok();
    let own = own.map(|p| String::from_utf8(p).expect("text").parse::<Policy>().expect("one"));
    let text_bytes = own.map_or(text_bytes, |policy| policy.text_bytes);
    for (name, ino, kind) in names_in(fs, dir) {
        let path = format!("{above}/{name}");
        if kind == FileKind::Directory {
            walk(fs, ino, &path, text_bytes, into);
            continue;
        }
        let mut bytes = vec![0; 4000];
        let len = fs.read(ino, Handle::NONE, 0, &mut bytes).expect("read");
        bytes.truncate(len);
        into.push(Named { path, bytes, ino, dir, text_bytes });
    }
}

/// The words of what is a text, as they are compared.
fn words(bytes: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(bytes).ok().filter(|t| !t.contains('\0'))?;
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
    Some(words.map(|w| w.to_lowercase().replace('é', "e")).collect())
}

/// Whether these words are there one after the other.
fn has(bytes: &[u8], phrase: &[&str], begins: bool) -> bool {
    let Some(words) = words(bytes) else { return false };
    words.windows(phrase.len()).any(|at| {
        let last = phrase.len() - 1;
        let is_last =
            if begins { at[last].starts_with(phrase[last]) } else { at[last] == phrase[last] };
        is_last && at[..last] == phrase[..last]
    })
}

fn content(rng: &mut Rng) -> Vec<u8> {
    let count = rng.index(12);
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend(WORDS[rng.index(WORDS.len())].bytes());
        bytes.extend([" ", "\n", ", ", "-"][rng.index(4)].bytes());
    }
    match rng.below(12) {
        0 => bytes.push(0),
        1 => bytes.push(0xff),
        _ => {}
    }
    bytes
}

fn dir(fs: &RingerFs, rng: &mut Rng) -> Option<Ino> {
    let mut at = fs.root();
    for part in DIRS[rng.index(DIRS.len())].split('/').filter(|part| !part.is_empty()) {
        at = fs.lookup(at, part.as_bytes()).ok()?.attr.ino;
    }
    Some(at)
}

/// Makes one random change, which may be refused.
pub fn change(fs: &RingerFs, rng: &mut Rng) {
    let (Some(dir), Some(to)) = (dir(fs, rng), dir(fs, rng)) else { return };
    let name = |rng: &mut Rng| NAMES[rng.index(NAMES.len())].as_bytes();
    let (from, other) = (name(rng), name(rng));
    let file = fs.lookup(dir, from).ok().filter(|e| e.attr.kind == FileKind::Regular);
    let file = file.map(|e| e.attr.ino);
    match (rng.below(12), file) {
        (0..=3, None) => {
            let made = fs.mknod(&Caller::ROOT, dir, from, FileKind::Regular, 0o644, 0);
            if let Ok(made) = made {
                let _ = fs.write(&Caller::ROOT, made.attr.ino, Handle::NONE, 0, &content(rng));
            }
        }
        (0..=4, Some(file)) => {
            let at = rng.below(30);
            let _ = fs.write(&Caller::ROOT, file, Handle::NONE, at, &content(rng));
        }
        (5, Some(file)) => {
            let size_bytes = Some(rng.below(60));
            let _ = fs.setattr(&Caller::ROOT, file, &SetAttr { size_bytes, ..SetAttr::default() });
        }
        (6, Some(_)) => drop(fs.unlink(&Caller::ROOT, dir, from)),
        (7 | 8, Some(_)) => {
            drop(fs.rename(&Caller::ROOT, dir, from, to, other, RenameFlags::empty()));
        }
        (9, Some(file)) => drop(fs.link(&Caller::ROOT, file, to, other)),
        (10, _) => {
            // A directory goes elsewhere, or comes back.
            let (d, o) = (fs.lookup(fs.root(), b"d"), fs.lookup(fs.root(), b"other"));
            if let (Ok(d), Ok(o)) = (d, o) {
                let (d, o) = (d.attr.ino, o.attr.ino);
                let ends = if rng.below(2) == 0 { (d, o) } else { (o, d) };
                let _ = fs.rename(
                    &Caller::ROOT,
                    ends.0,
                    b"deep",
                    ends.1,
                    b"deep",
                    RenameFlags::empty(),
                );
            }
        }
        (11, _) => {
            let policy = ["text=none", "text=40", "text=1K", ""][rng.index(4)];
            if policy.is_empty() {
                let _ = fs.removexattr(&Caller::ROOT, dir, POLICY_XATTR);
            } else {
                let _ =
                    fs.setxattr(&Caller::ROOT, dir, POLICY_XATTR, policy.as_bytes(), XattrSet::Any);
            }
        }
        _ => {}
    }
}

/// The paths of the names that fit, of those whose text is to be searched or of all.
fn want(names: &[Named], by_policy: bool, fits: impl Fn(&[u8]) -> bool) -> BTreeSet<String> {
    // For a file with several names the directory with the smallest number decides.
    let mut of_file: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for n in names {
        let here = (n.dir.0, n.text_bytes);
        of_file.entry(n.ino.0).and_modify(|least| *least = here.min(*least)).or_insert(here);
    }
    let is_searched = |n: &Named| n.bytes.len() as u64 <= of_file[&n.ino.0].1;
    let those = names.iter().filter(|n| !by_policy || is_searched(n)).filter(|n| fits(&n.bytes));
    those.map(|n| n.path.clone()).collect()
}

fn eventually(cell: &Cell, query: &str, want: &BTreeSet<String>, told: &str) {
    wait_for(&format!("{query} finds {want:?}; {told}"), || {
        let found = found(cell, query);
        if found == *want { Ok(()) } else { Err(found) }
    });
}

#[test]
fn text_search_agrees_with_a_tree_walk() {
    for seed in 1..=3 {
        let mut cell = Cell::new(Duration::from_secs(15));
        let mut rng = Rng::new(seed);
        let clients = [join(&cell, "a"), join(&cell, "b")];
        let root = clients[0].root();
        let d = clients[0].mkdir(&Caller::ROOT, root, b"d", 0o755).expect("made").attr.ino;
        for (at, name) in [(d, &b"deep"[..]), (root, b"other")] {
            clients[0].mkdir(&Caller::ROOT, at, name, 0o755).expect("made");
        }
        clients[0]
            .setxattr(&Caller::ROOT, d, POLICY_XATTR, b"text=1K", XattrSet::Any)
            .expect("a policy");
        for round in 0..5 {
            for _ in 0..60 {
                change(&clients[rng.index(2)], &mut rng);
            }
            clients.iter().for_each(|fs| fs.sync().expect("durable"));
            if round == 2 {
                cell.stop();
                cell.start();
                clients.iter().for_each(|fs| fs.sync().expect("durable"));
            }
            let told = format!("replay with seed {seed}, round {round}");
            let mut names = Vec::new();
            walk(&clients[0], root, "", 0, &mut names);
            let phrases: [(&str, &[&str], bool); 5] = [
                ("text:red", &["red"], false),
                ("text:re*", &["re"], true),
                ("text:\"red green\"", &["red", "green"], false),
                ("text:\"blue, re*\"", &["blue", "re"], true),
                ("text:été", &["ete"], false),
            ];
            for (query, phrase, begins) in phrases {
                let fits = |bytes: &[u8]| has(bytes, phrase, begins);
                // Never what a file does not say now.
                let found = found(&cell, query);
                let says = want(&names, false, fits);
                assert!(found.is_subset(&says), "{query}; {told}: {found:?}, of {says:?}");
                eventually(&cell, query, &want(&names, true, fits), &told);
            }
            let both = |b: &[u8]| has(b, &["red"], false) && !has(b, &["blue"], false);
            let query = "text:red & -text:blue kind:file";
            eventually(&cell, query, &want(&names, true, both), &told);
        }
    }
}

#[test]
fn texts_are_sent_on_sync_and_after_a_crash() {
    let cell = Cell::new(Duration::from_secs(2));
    let quick = |name: &str| {
        let mut options = cell.options(name);
        // Texts are sent by a sync and by scans only.
        options.settle = Duration::from_secs(600);
        options.scan_every = Duration::from_secs(2);
        RingerFs::join(options).expect("it joins")
    };
    let a = quick("a");
    a.setxattr(&Caller::ROOT, a.root(), POLICY_XATTR, b"text=64K", XattrSet::Any)
        .expect("a policy");
    let walker = weft_vfs::Walker::new(&a);
    walker.write_file(b"/file", b"some words", 0o644).expect("written");
    a.sync().expect("durable");
    let file: BTreeSet<String> = ["/file".to_owned()].into();
    assert_eq!(found(&cell, "text:words"), file);
    walker.write_file(b"/later", b"words again", 0o644).expect("written");
    a.fsync(&Caller::ROOT, walker.resolve(b"/later").expect("there").ino(), false)
        .expect("durable");
    a.vanish();
    drop(a);
    assert_eq!(found(&cell, "text:words"), file, "what is not told is not found");
    let _a = quick("a");
    let both = ["/file".to_owned(), "/later".to_owned()].into();
    eventually(&cell, "text:words", &both, "after a crash");
}
