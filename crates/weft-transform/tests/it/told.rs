//! What names that are made from a file say of it before anybody was asked for permission to read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_testing::Rng;
use weft_transform::stages::Program;
use weft_transform::{
    Context, Key, KeyRing, Registry, TransformFs, TransformOptions, link_content,
};
use weft_vfs::{
    Attr, Caller, Error, FileKind, FileSystem, Ino, MemFs, OpenFlags, SetAttr, SetTime, Time,
    Walker, XattrSet,
};

use crate::common::{network, noise, read_path};
use crate::hooked::Hooked;

/// Every stage that a name can say, and its inverse.
const STAGES: &[&str] = &[
    "identity",
    "increment by=3",
    "decrement",
    "~increment",
    "rot13",
    "upper",
    "lower",
    "xor hex=5d",
    "lines contains=token",
    "lines lacks=token",
    "charset from=utf-16 to=utf-8",
    "line-ends to=crlf",
    "line-ends to=lf strict=yes",
    "json",
    "exec program=cat",
    "exec program=cat mode=blocks",
    "base64",
    "~base64",
    "hex",
    "~hex",
    "gzip",
    "~gzip",
    "zstd",
    "~zstd",
    "lz4",
    "~lz4",
    "xz",
    "~xz",
    "guard",
    "~guard",
    "aead key=work",
    "~aead key=work",
];

fn registry() -> Registry {
    let mut context = Context { keys: KeyRing::default(), ..Context::default() };
    context.keys.add("work", Key::new([7; 32]));
    context.programs.insert("cat".to_owned(), Program::new("cat"));
    Registry::new(context)
}

fn over(below: Arc<dyn FileSystem>) -> TransformFs {
    TransformFs::new(below, registry(), TransformOptions::default()).expect("a root")
}

/// `tree`, every stage, every pair of them, and these with a tree behind.
fn names() -> Vec<String> {
    let singles = STAGES.iter().map(|stage| (*stage).to_owned());
    let pairs = STAGES
        .iter()
        .flat_map(|first| STAGES.iter().map(move |second| format!("{first}+{second}")));
    let views: Vec<String> = singles.chain(pairs).collect();
    let trees = views.iter().map(|view| format!("{view}+tree"));
    let after = STAGES.iter().map(|stage| format!("~hex@{stage}"));
    let names = views.iter().cloned().chain(trees).chain(after);
    names.chain(["tree".to_owned()]).collect()
}

fn stored(text: &str, plain: &[u8]) -> Vec<u8> {
    use weft_transform::Io;
    let mut out = Vec::new();
    let options = weft_transform::exec::RunOptions::default();
    weft_transform::exec::run(&network(text), Io::Write, &mut &plain[..], &mut out, options)
        .expect(text);
    out
}

fn tarred() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o644);
    tar.append_data(&mut header, "a", &b"inner"[..]).expect("added");
    tar.into_inner().expect("a tar")
}

/// Pairs of one length that stages tell apart.
fn pairs() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut random = Rng::new(4);
    let plain = b"user=root\ntoken: Zx81-abcd.q\nuser=x\n".to_vec();
    let mut pairs = vec![
        (plain.clone(), b"user=root\nother: Zx81-abcd.q\nuser=x\n".to_vec()),
        (b"QUJD".to_vec(), b"QUI=".to_vec()),
        (b"5151".to_vec(), b"515\n".to_vec()),
    ];
    for text in ["gzip", "zstd", "lz4", "xz level=0", "zstd | gzip"] {
        let whole = stored(text, &tarred());
        pairs.push((whole.clone(), noise(&mut random, whole.len())));
    }
    pairs.push((tarred(), noise(&mut random, tarred().len())));
    let link = link_content("b", &network("view: upper")).into_bytes();
    pairs.push((link.clone(), noise(&mut random, link.len())));
    pairs
}

/// All that a name says, to anybody.
fn told(fs: &TransformFs, name: &str) -> String {
    let entry = match fs.lookup(fs.root(), name.as_bytes()) {
        Ok(entry) => entry,
        Err(e) => return format!("errno {}", e.errno()),
    };
    let ino = entry.attr.ino;
    // Numbers are counted as names come, and the time at which a file was made cannot be set.
    let plain = |attr: Attr| Attr { ino: Ino(0), btime: None, ..attr };
    let said = format!(
        "{:?} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        plain(entry.attr),
        entry.generation,
        fs.getattr(ino).map(plain),
        fs.attr_lifetime(ino),
        fs.name_lifetime(ino),
        fs.listxattr(ino).map_err(|e| e.errno()),
        fs.getxattr(ino, b"system.posix_acl_access").map_err(|e| e.errno()),
        (entry.attr.kind == FileKind::Symlink).then(|| fs.readlink(ino).map_err(|e| e.errno())),
        fs.getattr(ino).map(|attr| attr.ino == ino),
    );
    fs.forget(ino, 1);
    said
}

/// Files `a` and `b` that only root may read, made at one time.
fn private(below: &MemFs, contents: (&[u8], &[u8])) -> [Ino; 2] {
    let raw = Walker::new(below);
    [("/a", contents.0), ("/b", contents.1)].map(|(path, content)| {
        let node = raw.write_file(path.as_bytes(), content, 0o600).expect("written");
        let at = Time { secs: 1_000_000_000, nanos: 0 };
        let time = Some(SetTime::At(at));
        let set = SetAttr { atime: time, mtime: time, ctime: Some(at), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, node.ino(), &set).expect("times");
        node.ino()
    })
}

#[test]
fn what_is_told_of_a_private_file_does_not_depend_on_its_content() {
    let names = names();
    for (nr, (one, other)) in pairs().into_iter().enumerate() {
        assert_eq!(one.len(), other.len());
        let below = Arc::new(Hooked::default());
        let reads = Arc::new(AtomicU64::new(0));
        let files = private(&below.fs, (&one, &other));
        let count = reads.clone();
        below.before_read(move |_, ino| {
            count.fetch_add(u64::from(files.contains(&ino)), Ordering::Relaxed);
        });
        let fs = over(below);
        // All pairs of stages for the first, which says most; the others by a part of them in turn.
        for name in names.iter().enumerate().filter(|(at, _)| nr == 0 || at % 7 == nr % 7) {
            let name = name.1;
            let (a, b) = (told(&fs, &format!("a@{name}")), told(&fs, &format!("b@{name}")));
            assert_eq!(a, b, "pair {nr}, {name}");
        }
        assert_eq!(reads.load(Ordering::Relaxed), 0, "a private file was read for its names");
    }
}

#[test]
fn what_is_told_is_the_same_once_a_reader_has_looked() {
    let whole = stored("gzip", &tarred());
    let below = Arc::new(MemFs::new());
    private(&below, (&whole, &noise(&mut Rng::new(9), whole.len())));
    let fs = over(below);
    let walker = Walker::new(&fs);
    let names = ["tree", "~gzip+tree", "~gzip", "gzip", "lines contains=x", "upper"];
    let before = names.map(|name| told(&fs, &format!("a@{name}")));
    // What readers have, others still have not.
    assert_eq!(walker.read_file(b"/a@tree/a").expect("inner"), b"inner");
    assert_eq!(walker.read_file(b"/a@~gzip+tree/a").expect("inner"), b"inner");
    assert!(read_path(&fs, b"/a@~gzip").expect("unpacked") == tarred());
    assert!(read_path(&fs, b"/a@~gzip@upper").expect("unpacked") == tarred().to_ascii_uppercase());
    let held = walker.resolve(b"/a@~gzip").expect("a view");
    let opened = fs.open(&Caller::ROOT, held.ino(), OpenFlags::READ).expect("opened");
    assert!(opened.direct_io, "a kernel asks for what it has no length of");
    assert!(read_path(&fs, b"/a@~gzip").expect("unpacked") == tarred());
    let in_tree = walker.resolve(b"/a@tree/a").expect("inner");
    for (name, before) in names.iter().zip(&before) {
        assert_eq!(told(&fs, &format!("a@{name}")), *before, "{name}");
        assert_eq!(told(&fs, &format!("b@{name}")), *before, "{name}");
    }
    assert_eq!(in_tree.read_all().expect("inner"), b"inner");
    fs.release(held.ino(), opened.handle).expect("closed");
    // What is no archive is one to nobody, and says so to its readers.
    let root = walker.resolve(b"/b@tree").expect("a directory as any other");
    assert!(matches!(root.list(), Err(Error::NotADirectory)));
    assert!(matches!(walker.read_file(b"/b@tree/a"), Err(Error::NotADirectory)));
    assert_eq!(root.lookup(b"..").expect("its directory").ino(), fs.root());
}

/// Attributes are those of before where all may read the base, and where there is one user.
#[test]
fn lengths_are_told_where_all_may_read() {
    let whole = stored("gzip", &tarred());
    for (perm, one_user) in [(0o644, false), (0o600, true), (0o400, true)] {
        let below = Arc::new(MemFs::new());
        let raw = Walker::new(&*below);
        raw.write_file(b"/a", &whole, perm).expect("written");
        raw.write_file(b"/no-archive", b"text", perm).expect("written");
        let fs = over(below.clone());
        if one_user {
            fs.serve_one_user();
        }
        let walker = Walker::new(&fs);
        let view = walker.resolve(b"/a@~gzip").expect("a view");
        assert_eq!(view.attr().size_bytes, tarred().len() as u64);
        assert!(matches!(walker.resolve(b"/no-archive@tree"), Err(Error::NotFound)));
        // And no more once that ends.
        let below_ino = raw.resolve(b"/a").expect("there").ino();
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, below_ino, &set).expect("its owner's");
        let told = walker.resolve(b"/a@~gzip").expect("a view").attr().size_bytes;
        assert_eq!(told > 0, one_user, "{told}");
    }
    // An access list may deny what the mode allows.
    let below = Arc::new(MemFs::new());
    let node = Walker::new(&*below).write_file(b"/a", &whole, 0o644).expect("written");
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1_u16, 6_u16, u32::MAX),
        (2, 0, 77),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        list.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    if below
        .setxattr(&Caller::ROOT, node.ino(), b"system.posix_acl_access", &list, XattrSet::Any)
        .is_ok()
    {
        let fs = over(below.clone());
        let view = Walker::new(&fs).resolve(b"/a@~gzip").expect("a view");
        assert_eq!(view.attr().size_bytes, 0);
    }
}

/// Makes a link of user 1000 in that user's directory, and returns the result of attaching it.
fn linked(fs: &TransformFs, base: &str) -> String {
    let content = link_content(base, &network("view: upper"));
    let link = Walker::new(fs).write_file(b"/own/l", content.as_bytes(), 0o644).expect("written");
    let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, link.ino(), &owner).expect("given away");
    let set = fs.setxattr(&Caller::ROOT, link.ino(), b"user.weft.network", b"link", XattrSet::Any);
    let told = fs.getattr(link.ino()).expect("there").size_bytes;
    assert!(set.is_ok() || told == content.len() as u64, "{base}: {told}");
    let own = Walker::new(fs).resolve(b"/own").expect("there");
    fs.unlink(&Caller::ROOT, own.ino(), b"l").expect("removed");
    format!("{set:?}")
}

/// Errors of links tell their owner of nothing that the owner may not see.
#[test]
fn a_link_tells_its_owner_nothing_of_what_is_private() {
    let below = Arc::new(MemFs::new());
    private(&below, (b"token: Zx81\n", &tarred()));
    let raw = Walker::new(&*below);
    raw.mkdir(b"/own", 0o755).expect("made");
    raw.mkdir(b"/priv", 0o700).expect("made");
    raw.mkdir(b"/priv/d", 0o755).expect("made");
    raw.write_file(b"/priv/x", b"private", 0o644).expect("written");
    raw.write_file(b"/open", b"for all", 0o644).expect("written");
    let fs = over(below);
    let denied = linked(&fs, "../priv/x");
    assert!(denied.starts_with("Err(Io { errno: 13,"), "{denied}");
    for base in [
        "../priv/nosuch",
        "../priv/d",
        "../priv/x/y",
        "../a@lines contains=\"Zx\"+~hex+tree/q",
        "../a@lines contains=\"Qx\"+~hex+tree/q",
        "../b@tree/a",
        "../b@tree/none",
        "../a@~gzip+tree/q",
        "../open",
    ] {
        assert_eq!(linked(&fs, base), denied, "{base}");
    }
    // Links of one's own files are made, and on a mount of one user all others.
    raw_own(&fs);
    assert!(linked(&fs, "mine").starts_with("Ok"));
    fs.serve_one_user();
    assert!(linked(&fs, "mine").starts_with("Ok"));
}

/// A file `own/mine` of user 1000.
fn raw_own(fs: &TransformFs) {
    let mine = Walker::new(fs).write_file(b"/own/mine", b"mine", 0o600).expect("written");
    let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, mine.ino(), &owner).expect("given away");
}

/// A link that others may write would show what they choose with the permissions of its owner.
#[test]
fn a_link_that_others_may_write_shows_nothing() {
    let below = Arc::new(MemFs::new());
    private(&below, (b"secret", b"secret"));
    let fs = over(below);
    let content = link_content("a", &network("view: upper"));
    let link = Walker::new(&fs).write_file(b"/l", content.as_bytes(), 0o666).expect("written");
    let set = |ino| fs.setxattr(&Caller::ROOT, ino, b"user.weft.network", b"link", XattrSet::Any);
    assert!(matches!(set(link.ino()), Err(Error::Io { errno: 13, .. })));
    fs.setattr(&Caller::ROOT, link.ino(), &SetAttr { perm: Some(0o644), ..SetAttr::default() })
        .expect("set");
    set(link.ino()).expect("a link of root's");
}

/// A kernel that makes a name has asked nobody whether the caller may read what has it by now.
#[test]
fn making_a_name_opens_nothing_that_is_made_from_another_file() {
    let below = Arc::new(MemFs::new());
    private(&below, (b"secret", b"secret"));
    let fs = over(below);
    for name in ["a@upper", "a@tree", "a@~gzip+tree"] {
        let made = fs.create(&Caller::ROOT, fs.root(), name.as_bytes(), 0o600, OpenFlags::READ);
        assert!(matches!(made, Err(Error::Stale(_))), "{name}: {made:?}");
    }
}
