//! The index is what a walk through the tree would find, under changes of several clients.

use std::collections::BTreeSet;
use std::time::Duration;

use weft_block::Rng;
use weft_ringer::{Bytes, TAGS_XATTR};
use weft_ringer_client::RingerFs;
use weft_ringer_net::{Answer, Ask, ask};
use weft_vfs::{
    Caller, DirCursor, FileKind, FileSystem, Handle, Ino, RenameFlags, Walker, XattrSet,
};

use super::Cell;

const WORDS: [&str; 6] = ["red", "green", "blue", "redder", "old", "new"];
const TAGS: [&str; 3] = ["un", "draft", "not done"];

pub fn found(cell: &Cell, query: &str) -> BTreeSet<String> {
    let query = Bytes(query.as_bytes().to_vec());
    let answer = ask(&cell.address(), None, &Ask::Search { query, limit: 9999 }).expect("found");
    let Answer::Found { hits, complete: true } = answer else { panic!("{answer:?}") };
    hits.into_iter().map(|hit| String::from_utf8(hit.path.0).expect("text")).collect()
}

/// A file as a walk finds it.
struct File {
    path: String,
    kind: FileKind,
    size_bytes: u64,
    tags: Vec<String>,
    project: Option<String>,
}

fn walk(fs: &RingerFs, dir: Ino, above: &str, into: &mut Vec<File>) {
    let mut names = Vec::new();
    fs.readdir(dir, DirCursor::START, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push((String::from_utf8(e.name.to_vec()).expect("text"), e.ino));
        }
        true
    })
    .expect("listed");
    for (name, ino) in names {
        let attr = fs.getattr(ino).expect("there");
        let value = |name: &[u8]| {
            let value = fs.getxattr(ino, name).ok();
            value.map(|v| String::from_utf8(v).expect("text"))
        };
        let tags = value(TAGS_XATTR).unwrap_or_default();
        let path = format!("{above}/{name}");
        if attr.kind == FileKind::Directory {
            walk(fs, ino, &path, into);
        }
        into.push(File {
            path,
            kind: attr.kind,
            size_bytes: attr.size_bytes,
            tags: tags.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect(),
            project: value(b"user.project"),
        });
    }
}

/// Makes one random change, which may be refused.
fn change(fs: &RingerFs, rng: &mut Rng) {
    let mut dirs = vec![fs.root()];
    let mut files = Vec::new();
    fs.readdir(fs.root(), DirCursor::START, &mut |e| {
        match e.kind {
            FileKind::Directory if e.name != b"." && e.name != b".." => dirs.push(e.ino),
            FileKind::Regular => files.push(e.ino),
            _ => {}
        }
        true
    })
    .expect("listed");
    let dir = dirs[rng.index(dirs.len())];
    let name = |rng: &mut Rng| {
        let words: Vec<&str> = (0..=rng.index(2)).map(|_| WORDS[rng.index(WORDS.len())]).collect();
        words.join(["-", " ", "."][rng.index(3)]).into_bytes()
    };
    let tags = |rng: &mut Rng| {
        let tags: Vec<&str> = TAGS.into_iter().filter(|_| rng.below(2) == 0).collect();
        tags.join(",").into_bytes()
    };
    let made = match rng.below(8) {
        0 | 1 => fs.mknod(&Caller::ROOT, dir, &name(rng), FileKind::Regular, 0o644, 0),
        2 => fs.mkdir(&Caller::ROOT, fs.root(), &name(rng), 0o755),
        3 => {
            let _ = fs.unlink(&Caller::ROOT, dir, &name(rng));
            let _ = fs.rmdir(&Caller::ROOT, fs.root(), &name(rng));
            return;
        }
        4 => {
            let to = dirs[rng.index(dirs.len())];
            let _ = fs.rename(&Caller::ROOT, dir, &name(rng), to, &name(rng), RenameFlags::empty());
            return;
        }
        5 if !files.is_empty() => {
            fs.link(&Caller::ROOT, files[rng.index(files.len())], dir, &name(rng))
        }
        6 if !files.is_empty() => {
            let len = rng.index(300);
            let _ = fs.write(
                &Caller::ROOT,
                files[rng.index(files.len())],
                Handle::NONE,
                0,
                &vec![1; len],
            );
            return;
        }
        _ => {
            let ino = files.first().copied().unwrap_or(dir);
            let _ = fs.setxattr(&Caller::ROOT, ino, TAGS_XATTR, &tags(rng), XattrSet::Any);
            let _ = fs.setxattr(
                &Caller::ROOT,
                dir,
                b"user.project",
                name(rng).as_slice(),
                XattrSet::Any,
            );
            if rng.below(4) == 0 {
                let _ = fs.removexattr(&Caller::ROOT, ino, TAGS_XATTR);
            }
            return;
        }
    };
    if let Ok(entry) = made {
        fs.forget(entry.attr.ino, 1);
    }
}

#[test]
fn search_agrees_with_a_tree_walk() {
    for seed in 1..=4 {
        let mut cell = Cell::new(Duration::from_secs(15));
        let mut rng = Rng::new(seed);
        let clients = [cell.join("a"), cell.join("b")];
        for round in 0..5 {
            for _ in 0..40 {
                change(&clients[rng.index(2)], &mut rng);
            }
            clients.iter().for_each(|fs| fs.sync().expect("durable"));
            if round == 2 {
                cell.stop();
                cell.start();
                clients.iter().for_each(|fs| fs.sync().expect("durable"));
            }
            let mut files = Vec::new();
            walk(&clients[0], clients[0].root(), "", &mut files);
            let want = |test: &dyn Fn(&File) -> bool| -> BTreeSet<String> {
                files.iter().filter(|f| test(f)).map(|f| f.path.clone()).collect()
            };
            let has_word = |f: &File, begins: &str| {
                let name = f.path.rsplit('/').next().unwrap_or_default();
                name.split(['-', ' ', '.']).any(|word| word.starts_with(begins))
            };
            let told = format!("replay with seed {seed}, round {round}");
            for word in WORDS {
                assert_eq!(found(&cell, word), want(&|f| has_word(f, word)), "{word}; {told}");
            }
            for tag in TAGS {
                let tagged = |f: &File| f.tags.iter().any(|t| t == tag);
                assert_eq!(found(&cell, &format!("tag:\"{tag}\"")), want(&tagged), "{tag}; {told}");
                let query = format!("re -tag:\"{tag}\" kind:file size>100");
                let fits = |f: &File| {
                    has_word(f, "re")
                        && !tagged(f)
                        && f.size_bytes > 100
                        && f.kind == FileKind::Regular
                };
                assert_eq!(found(&cell, &query), want(&fits), "{query}; {told}");
            }
            let of = |f: &File| f.project.as_deref() == Some("red");
            assert_eq!(found(&cell, "project:red"), want(&of), "{told}");
            let all = found(&cell, "size<1000000");
            assert_eq!(all, want(&|_| true), "{told}");
        }
    }
}

#[test]
fn invalid_queries_are_refused() {
    let cell = Cell::new(Duration::from_secs(15));
    let a = cell.join("a");
    Walker::new(&a).write_file(b"/a \"b\" '; DROP TABLE name; --", b"", 0o644).expect("made");
    a.sync().expect("durable");
    for query in ["", "size>x", "text:--", "\"open", &"x ".repeat(100), &"y".repeat(5000)] {
        let query = Bytes(query.as_bytes().to_vec());
        assert!(ask(&cell.address(), None, &Ask::Search { query, limit: 10 }).is_err());
    }
    let texts = ["text:\u{0}x", "text:AND", "text:'x)--", "text:x**", "text:a\u{301}"];
    for query in ["DROP", "* ' OR", "AND", "NEAR(a", "^", "\u{0}x"].into_iter().chain(texts) {
        let query = Bytes(query.as_bytes().to_vec());
        let answer = ask(&cell.address(), None, &Ask::Search { query, limit: 10 });
        assert!(matches!(answer, Ok(Answer::Found { .. })), "{answer:?}");
    }
    assert_eq!(found(&cell, "drop table").len(), 1);
}
