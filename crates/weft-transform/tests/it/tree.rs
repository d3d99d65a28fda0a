//! `TransformFs`: whole trees through networks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_testing::Rng;
use weft_transform::store::Limits as StoreLimits;
use weft_transform::{
    NETWORK_ATTRIBUTE, RULES_NAME, Rules, STORED_ATTRIBUTE, TransformFs, TransformOptions, Trust,
};
use weft_vfs::conformance::{self, Limits};
use weft_vfs::{
    Caller, DirCursor, Error, FileSystem, Handle, MemFs, MemLimits, OpenFlags, RenameFlags, Result,
    SetAttr, Walker, XattrSet,
};

use crate::common::{lines, noise, registry};
use crate::hooked::Hooked;

fn over(below: Arc<dyn FileSystem>, rules: &str) -> TransformFs {
    trusting(Trust::default(), below, rules)
}

fn trusting(trust: Trust, below: Arc<dyn FileSystem>, rules: &str) -> TransformFs {
    let options = TransformOptions {
        trust,
        rules: Rules::parse(rules.as_bytes()).expect("rules"),
        limits: StoreLimits { dirty_bytes: 256 << 10, ..StoreLimits::default() },
        ..TransformOptions::default()
    };
    TransformFs::new(below, registry(), options).expect("a root")
}

/// The suite over a network for every file.
fn conforms(network: &str, limits: &Limits) {
    let small = MemLimits { links: 200, ..MemLimits::default() };
    let make = || -> Arc<dyn FileSystem> {
        let options = TransformOptions {
            rules: Rules::parse(format!("* {network}").as_bytes()).expect("rules"),
            // The model has no such attribute.
            pin: false,
            ..TransformOptions::default()
        };
        let below = Arc::new(MemFs::with_limits(small));
        Arc::new(TransformFs::new(below, registry(), options).expect("a root"))
    };
    conformance::run(make, limits);
}

fn limits() -> Limits {
    Limits {
        links: Some(200),
        directory_links: Some(200),
        xattr_bytes: 64 << 10,
        names: 300,
        random_runs: 4,
        ..Limits::default()
    }
}

/// Those of sealed files: even an empty one has a header, in a block of the model.
fn sealed() -> Limits {
    let (file_bytes, empty_blocks_512) = (8 << 20, 8);
    Limits { holes: false, allocate: false, file_bytes, empty_blocks_512, ..limits() }
}

#[test]
fn conforms_without_a_network() {
    conforms("none", &limits());
}

#[test]
fn conforms_with_identity() {
    conforms("identity", &Limits { holes: false, allocate: false, ..limits() });
}

#[test]
fn conforms_with_aead() {
    conforms("aead key=work", &sealed());
}

#[test]
fn conforms_with_two_networks_in_place() {
    conforms("rot13 | guard block=4K | increment", &sealed());
}

#[test]
fn a_tree_through_rules() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(below.clone(), "*.log zstd\nsecret/ zstd | aead key=work\n*.b64 view: ~base64");
    let walker = Walker::new(&fs);
    let text = lines(&mut Rng::new(1), 300_000);
    walker.mkdir_all(b"/secret/deep", 0o755)?;
    for path in [&b"/plain"[..], b"/x.log", b"/secret/deep/x.log", b"/a.b64"] {
        walker.write_file(path, &text, 0o640)?;
        assert!(walker.read_file(path)? == text);
        let node = walker.resolve(path)?;
        assert_eq!(node.stat()?.size_bytes, 300_000, "exact");
        assert_eq!(node.stat()?.perm, 0o640);
    }
    fs.sync()?;
    let stored = Walker::new(&*below);
    let log = stored.read_file(b"/x.log")?;
    assert!(log.len() < 150_000 && log.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    assert_eq!(stored.read_file(b"/plain")?, text);
    assert_eq!(stored.read_file(b"/a.b64")?.len(), 400_000);
    assert!(stored.read_file(b"/secret/deep/x.log")?.starts_with(b"WEFTSEAL"));
    let pinned = below.getxattr(stored.resolve(b"/secret/deep/x.log")?.ino(), NETWORK_ATTRIBUTE)?;
    assert_eq!(pinned, b"zstd | aead key=work");
    // Another mount without the rules reads by the attribute.
    let again = over(below.clone(), "");
    assert!(Walker::new(&again).read_file(b"/secret/deep/x.log")? == text);
    assert_eq!(
        stored.resolve(b"/x.log")?.stat()?.perm,
        0o640,
        "a file written anew keeps its mode"
    );
    Ok(())
}

#[test]
fn rules_files_and_renames() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = trusting(Trust::Tree, below.clone(), "*.log zstd");
    let walker = Walker::new(&fs);
    walker.mkdir(b"/vault", 0o755)?;
    let rules = [b"/vault/", RULES_NAME].concat();
    walker.write_file(&rules, b"* aead key=work\n*.txt none\n", 0o644)?;
    walker.write_file(b"/vault/x.log", b"nearest wins", 0o644)?;
    walker.write_file(b"/vault/open.txt", b"not for this one", 0o644)?;
    fs.sync()?;
    let stored = Walker::new(&*below);
    assert!(stored.read_file(b"/vault/x.log")?.starts_with(b"WEFTSEAL"));
    assert_eq!(stored.read_file(b"/vault/open.txt")?, b"not for this one");
    assert!(stored.read_file(&rules)?.starts_with(b"* aead"), "rules are never transformed");

    // An editor that saves by renaming: what was plain is sealed where the rule says so.
    walker.write_file(b"/tmp~1", b"saved by an editor", 0o600)?;
    let opened = walker.resolve(b"/tmp~1")?;
    walker.rename(b"/tmp~1", b"/vault/letter", RenameFlags::empty())?;
    assert_eq!(walker.read_file(b"/vault/letter")?, b"saved by an editor");
    assert_eq!(opened.stat()?.size_bytes, 18, "by the old inode number too");
    drop(opened);
    fs.sync()?;
    let sealed = stored.read_file(b"/vault/letter")?;
    assert!(sealed.starts_with(b"WEFTSEAL") && !sealed.windows(6).any(|w| w == b"editor"));
    // And what leaves stays sealed, and readable.
    walker.rename(b"/vault/letter", b"/letter", RenameFlags::empty())?;
    assert_eq!(walker.read_file(b"/letter")?, b"saved by an editor");
    assert!(stored.read_file(b"/letter")?.starts_with(b"WEFTSEAL"));

    // A rule that cannot be used keeps files from being written in the clear.
    walker.write_file(&rules, b"* aead key=nobody\n", 0o644)?;
    let refused = walker.write_file(b"/vault/new", b"x", 0o644).map(drop).expect_err("no such key");
    assert_eq!(refused.errno(), 126, "ENOKEY");
    let refused = refused.to_string();
    assert!(refused.contains("line 1 of .weftattributes in /vault"), "{refused}");
    assert!(!refused.contains("nobody"), "rules are not quoted: {refused}");
    walker.write_file(&rules, b"* frobnicate |\n", 0o644)?;
    assert!(walker.write_file(b"/vault/newer", b"x", 0o644).is_err());
    // Where the mount has the last word, this is about files that its rules say nothing of.
    let fs = over(below.clone(), "*.log zstd");
    let walker = Walker::new(&fs);
    walker.write_file(b"/vault/other.log", b"of the mount", 0o644)?;
    assert!(walker.write_file(b"/vault/newest", b"x", 0o644).is_err());
    fs.sync()?;
    assert!(stored.read_file(b"/vault/other.log")?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    Ok(())
}

#[test]
fn attributes_attach_and_detach() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(below.clone(), "");
    let walker = Walker::new(&fs);
    let node = walker.write_file(b"/f", b"Uryyb", 0o644)?;
    let set =
        |text: &[u8]| fs.setxattr(&Caller::ROOT, node.ino(), STORED_ATTRIBUTE, text, XattrSet::Any);
    set(b"rot13|identity")?;
    assert_eq!(fs.getxattr(node.ino(), NETWORK_ATTRIBUTE)?, b"rot13 | identity", "canonical");
    assert_eq!(node.read_all()?, b"Hello");
    node.write_at(&Caller::ROOT, 0, b"J")?;
    assert_eq!(Walker::new(&*below).read_file(b"/f")?, b"Wryyb");
    for (text, errno) in [(&b"zsdt"[..], 22), (b"aead key=nobody", 126), (b"zstd", 5), (b"|", 22)] {
        let refused = set(text).expect_err("refused");
        assert_eq!(refused.errno(), errno, "{refused}");
        assert_eq!(node.read_all()?, b"Jello", "and nothing changed");
    }
    set(b"view: upper")?;
    assert_eq!(node.read_all()?, b"WRYYB");
    assert_eq!(node.write_at(&Caller::ROOT, 0, b"x").expect_err("no inverse").errno(), 95);
    let writing = fs.open(&Caller::ROOT, node.ino(), OpenFlags::WRITE);
    assert_eq!(writing.expect_err("no inverse").errno(), 95);
    fs.removexattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE)?;
    assert_eq!(node.read_all()?, b"Wryyb");
    Ok(())
}

/// Programs that copy a file copy its attributes with it, after its content (cp, rsync) or before
/// (tar): the copy has the content and the network.
#[test]
fn a_copy_that_gets_the_attribute_keeps_its_content() -> Result<()> {
    for network in ["zstd", "aead key=work", "rot13", "zstd | aead key=work"] {
        let below = Arc::new(MemFs::new());
        let fs = over(below.clone(), "");
        let walker = Walker::new(&fs);
        let text = lines(&mut Rng::new(5), 30_000);
        let set = |path: &[u8], text: &str| -> Result<()> {
            let node = walker.resolve(path)?;
            let text = text.as_bytes();
            fs.setxattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE, text, XattrSet::Any)
        };
        let parent = fs.root();
        let flags = OpenFlags::WRITE | OpenFlags::READ;
        for (name, first) in [(&b"after"[..], false), (b"before", true)] {
            let (entry, opened) = fs.create(&Caller::ROOT, parent, name, 0o600, flags)?;
            let (ino, path) = (entry.attr.ino, [b"/", name].concat());
            if first {
                set(&path, network)?;
            }
            fs.write(&Caller::ROOT, ino, opened.handle, 0, &text[..20_000])?;
            if !first {
                set(&path, network)?;
            }
            // The writer goes on.
            fs.write(&Caller::ROOT, ino, opened.handle, 20_000, &text[20_000..])?;
            fs.flush(ino, opened.handle)?;
            fs.release(ino, opened.handle)?;
            fs.forget(ino, 1);
            assert!(walker.read_file(&path)? == text, "{network}");
            let node = walker.resolve(&path)?;
            assert_eq!(fs.getxattr(node.ino(), NETWORK_ATTRIBUTE)?, network.as_bytes());
        }
        // Another network, the same again, and none.
        for next in ["lz4", "lz4", "rot13", ""] {
            set(b"/after", next)?;
            assert!(walker.read_file(b"/after")? == text, "{network}, {next}");
        }
        let node = walker.resolve(b"/before")?;
        fs.removexattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE)?;
        drop(node);
        assert!(walker.read_file(b"/before")? == text, "{network}");
        fs.unmount()?;
        for name in [&b"/after"[..], b"/before"] {
            assert!(Walker::new(&*below).read_file(name)? == text, "{network}: plain again");
        }
    }
    Ok(())
}

#[test]
fn unknown_sizes_are_not_guessed() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(below, "*.err view: lines contains=error\n");
    let walker = Walker::new(&fs);
    let plain = walker.write_file(b"/log", b"fine\nerror 1\nfine\nerror 2\n", 0o644)?;
    drop(plain);
    fs.setxattr(
        &Caller::ROOT,
        walker.resolve(b"/log")?.ino(),
        NETWORK_ATTRIBUTE,
        b"view: lines contains=error",
        XattrSet::Any,
    )?;
    let node = walker.resolve(b"/log")?;
    let opened = fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    assert!(opened.direct_io && !opened.keep_cache);
    assert_eq!(node.stat()?.size_bytes, 0, "whoever has it open reads it");
    let mut buf = [0; 100];
    let got = fs.read(node.ino(), opened.handle, 0, &mut buf)?;
    assert_eq!(&buf[..got], b"error 1\nerror 2\n");
    fs.release(node.ino(), opened.handle)?;
    assert_eq!(node.stat()?.size_bytes, 16, "known once it was read");
    // A file that nobody has open is read for its length: it would be copied as an empty one.
    drop(walker.write_file(b"/other", b"error 3\nfine\n", 0o644)?);
    let other = walker.resolve(b"/other")?;
    let view = b"view: lines contains=error";
    fs.setxattr(&Caller::ROOT, other.ino(), NETWORK_ATTRIBUTE, view, XattrSet::Any)?;
    assert_eq!(other.stat()?.size_bytes, 8, "measured");
    Ok(())
}

#[test]
fn damage_is_an_error_at_its_offset() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let text = noise(&mut Rng::new(2), 20_000);
    {
        let fs = over(below.clone(), "* aead key=work");
        Walker::new(&fs).write_file(b"/f", &text, 0o644)?;
        fs.unmount()?;
    }
    let stored = Walker::new(&*below).resolve(b"/f")?;
    let at = 512 + 2 * (4096 + 40) + 1000;
    stored.write_at(&Caller::ROOT, at, b"damage")?;
    drop(stored);
    let fs = over(below, "* aead key=work");
    let node = Walker::new(&fs).resolve(b"/f")?;
    assert_eq!(node.stat()?.size_bytes, 20_000);
    let mut buf = vec![0; 8192];
    assert_eq!(node.read_at(0, &mut buf)?, 8192);
    assert!(buf[..] == text[..8192]);
    let error = node.read_at(8192, &mut buf).expect_err("damaged");
    assert_eq!(error.errno(), 5);
    assert!(error.to_string().contains("aead") && error.to_string().contains("8192"), "{error}");
    assert_eq!(node.read_at(12_288, &mut buf)?, 20_000 - 12_288);
    // A header that is damaged: reading is tried and fails, the file is not empty.
    Ok(())
}

#[test]
fn close_and_fsync_commit_and_unlinked_files_live_on() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(below.clone(), "* zstd frame=4K");
    let caller = Caller::ROOT;
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let (entry, opened) = fs.create(&caller, fs.root(), b"f", 0o644, rw)?;
    let ino = entry.attr.ino;
    let stored = || Walker::new(&*below).read_file(b"/f");
    fs.write(&Caller::ROOT, ino, opened.handle, 0, b"first")?;
    assert_eq!(stored()?, b"", "not before");
    fs.fsync(&Caller::ROOT, ino, true)?;
    let first = stored()?;
    assert!(!first.is_empty());
    fs.write(&Caller::ROOT, ino, opened.handle, 0, b"again")?;
    assert_eq!(stored()?, first, "not before");
    fs.release(ino, opened.handle)?;
    assert_ne!(stored()?, first, "closing commits");
    assert_eq!(
        fs.link(&Caller::ROOT, ino, fs.root(), b"g").expect_err("is written anew").errno(),
        31
    );

    // Without a name, much is written and read, and nothing is left in the end.
    let opened = fs.open(&Caller::ROOT, ino, rw)?;
    fs.unlink(&Caller::ROOT, fs.root(), b"f")?;
    let data = noise(&mut Rng::new(3), 900_000);
    fs.write(&Caller::ROOT, ino, opened.handle, 100, &data)?;
    fs.fsync(&Caller::ROOT, ino, false)?;
    let mut back = vec![0; data.len()];
    assert_eq!(fs.read(ino, opened.handle, 100, &mut back)?, data.len());
    assert!(back == data);
    fs.forget(ino, 1);
    fs.release(ino, opened.handle)?;
    fs.sync()?;
    let mut names = Vec::new();
    below.readdir(below.root(), DirCursor::START, &mut |d| {
        names.push(d.name.to_vec());
        true
    })?;
    assert_eq!(names, [b".".to_vec(), b"..".to_vec()]);
    Ok(())
}

#[test]
fn leftovers_of_a_crash_are_hidden_and_removed() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let raw = Walker::new(&*below);
    raw.mkdir(b"/d", 0o755)?;
    raw.write_file(b"/d/.weft-fresh-0123456789abcdef-1-1", b"half of a file", 0o600)?;
    let fs = over(below.clone(), "* zstd");
    let walker = Walker::new(&fs);
    assert!(matches!(walker.resolve(b"/d/.weft-fresh-0123456789abcdef-1-1"), Err(Error::NotFound)));
    assert!(matches!(walker.write_file(b"/d/.weft-fresh-x", b"", 0o644), Err(Error::NotPermitted)));
    assert!(walker.resolve(b"/d")?.list()?.is_empty());
    assert!(raw.resolve(b"/d/.weft-fresh-0123456789abcdef-1-1").is_err(), "removed");
    raw.write_file(b"/d/.weft-fresh-0123456789abcdef-1-2", b"another", 0o600)?;
    walker.remove(b"/d")
}

/// HFS, the shortest of all, has 31 bytes for a name.
#[test]
fn files_written_beside_have_names_that_fit_any_file_system() -> Result<()> {
    for network in ["zstd", "zstd | aead key=work"] {
        let below = Arc::new(Hooked::default());
        let longest = Arc::new(AtomicUsize::new(0));
        let seen = longest.clone();
        below.before_getattr(move |fs, _| {
            let _ = fs.readdir(fs.root(), DirCursor::START, &mut |entry| {
                seen.fetch_max(entry.name.len(), Ordering::Relaxed);
                true
            });
        });
        let fs = over(below, &format!("* {network}"));
        let walker = Walker::new(&fs);
        for round in 0..40 {
            let content = noise(&mut Rng::new(round), 5000);
            walker.write_file(b"/f", &content, 0o644)?;
            fs.sync()?;
            assert!(walker.read_file(b"/f")? == content);
        }
        let longest = longest.load(Ordering::Relaxed);
        assert!((2..=31).contains(&longest), "{network}: {longest}");
    }
    Ok(())
}

/// Random writes, cuts, reads and commits of one file through a tree, against plain bytes.
fn model(network: &str, seed: u64) -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(below, &format!("* {network}"));
    let walker = Walker::new(&fs);
    let mut node = walker.create_file(b"/f", 0o644)?;
    let mut random = Rng::new(seed);
    let mut model: Vec<u8> = Vec::new();
    for nr in 0..120 {
        let what = format!("{network}, seed {seed}, operation {nr}");
        let at = random.below(model.len() as u64 + 5000);
        match random.below(8) {
            0..=3 => {
                let len = 1 + random.below(30_000) as usize;
                let data = lines(&mut random, len);
                node.write_at(&Caller::ROOT, at, &data)?;
                model.resize(model.len().max(at as usize + len), 0);
                model[at as usize..at as usize + len].copy_from_slice(&data);
            }
            4 => {
                let set = SetAttr { size_bytes: Some(at), ..SetAttr::default() };
                assert_eq!(fs.setattr(&Caller::ROOT, node.ino(), &set)?.size_bytes, at, "{what}");
                model.resize(at as usize, 0);
            }
            5 => fs.fsync(&Caller::ROOT, node.ino(), false)?,
            6 => {
                // The last reference goes, and the file is looked up again.
                drop(node);
                node = walker.resolve(b"/f")?;
            }
            _ => {
                let mut buf = vec![0; 20_000];
                let got = fs.read(node.ino(), Handle::NONE, at, &mut buf)?;
                let want = &model[(at as usize).min(model.len())..];
                assert!(buf[..got] == want[..want.len().min(20_000)], "{what}");
            }
        }
        assert_eq!(node.stat()?.size_bytes, model.len() as u64, "{what}");
    }
    assert!(node.read_all()? == model, "{network}, seed {seed}: at the end");
    Ok(())
}

#[test]
fn files_agree_with_plain_bytes() -> Result<()> {
    for network in [
        "increment",
        "aead key=work",
        "zstd frame=4K",
        "lz4 frame=4K | aead key=work",
        "gzip level=1",
    ] {
        for seed in 1..=4 {
            model(network, seed)?;
        }
    }
    Ok(())
}
