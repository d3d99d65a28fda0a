//! Names of one file under rules, and directories that are empty for their users.

use std::sync::Arc;

use weft_testing::Rng;
use weft_transform::store::Limits;
use weft_transform::{
    CONVERT_ATTRIBUTE, Context, Key, KeyRing, NETWORK_ATTRIBUTE, Registry, Rules, TransformFs,
    TransformOptions,
};
use weft_vfs::{
    Caller, Error, FileSystem, MemFs, OpenFlags, RenameFlags, Result, Walker, XattrSet,
};

use crate::common::{noise, registry};

const RULES: &str = "/e/ aead key=work\n/a/ zstd\n/s/ aead key=work\n/z/ zstd\n";

fn mounted(below: Arc<dyn FileSystem>, registry: Registry) -> TransformFs {
    let options = TransformOptions {
        rules: Rules::parse(RULES.as_bytes()).expect("rules"),
        limits: Limits { dirty_bytes: 256 << 10, ..Limits::default() },
        ..TransformOptions::default()
    };
    TransformFs::new(below, registry, options).expect("a root")
}

fn tree(fs: &TransformFs) -> Walker<'_> {
    let walker = Walker::new(fs);
    for directory in [&b"/e"[..], b"/a", b"/s", b"/c", b"/z"] {
        walker.mkdir(directory, 0o755).expect("made");
    }
    walker
}

fn is_to_copy(moved: &Result<()>) -> bool {
    matches!(moved, Err(Error::CrossDevice))
}

#[test]
fn the_names_of_a_file_stay_under_rules_that_say_the_same() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = mounted(below.clone(), registry());
    let walker = tree(&fs);
    walker.write_file(b"/e/s", b"sealed", 0o644)?;
    walker.link(b"/e/s", b"/e/t")?;
    walker.link(b"/e/s", b"/s/u")?;
    let none = RenameFlags::empty();
    // Out of the rule, and under another: the network of one name would be that of the other.
    assert!(is_to_copy(&walker.rename(b"/e/t", b"/c/t", none)));
    assert!(is_to_copy(&walker.rename(b"/e/t", b"/a/t", none)));
    walker.write_file(b"/c/x", b"x", 0o644)?;
    assert!(is_to_copy(&walker.rename(b"/e/t", b"/c/x", RenameFlags::EXCHANGE)));
    // A file without network and with two names, under a rule.
    walker.write_file(b"/c/p", b"plain", 0o644)?;
    walker.link(b"/c/p", b"/c/q")?;
    assert!(is_to_copy(&walker.rename(b"/c/p", b"/a/p", none)));
    assert!(is_to_copy(&walker.rename(b"/c/p", b"/e/p", none)));
    // Where the rules say the same, names move.
    walker.rename(b"/e/t", b"/s/t", none)?;
    walker.rename(b"/c/p", b"/c/r", none)?;
    fs.unmount()?;
    for _ in 0..2 {
        let fs = mounted(below.clone(), registry());
        let walker = Walker::new(&fs);
        for name in [&b"/e/s"[..], b"/s/t", b"/s/u"] {
            assert_eq!(walker.read_file(name)?, b"sealed");
        }
        assert_eq!(walker.read_file(b"/c/r")?, b"plain");
        assert_eq!(walker.read_file(b"/c/q")?, b"plain");
    }
    Ok(())
}

/// Of files that take the names of each other, none is written anew: neither could be the first.
#[test]
fn files_of_different_networks_are_not_exchanged() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = mounted(below.clone(), registry());
    let walker = tree(&fs);
    for (name, content) in [(&b"/e/s"[..], &b"sealed"[..]), (b"/a/z", b"packed"), (b"/c/p", b"p")] {
        walker.write_file(name, content, 0o644)?;
    }
    for (one, other) in [(&b"/e/s"[..], &b"/a/z"[..]), (b"/c/p", b"/a/z"), (b"/a/z", b"/c/p")] {
        assert!(is_to_copy(&walker.rename(one, other, RenameFlags::EXCHANGE)));
    }
    // A rename that may not replace leaves the file as it is.
    let moved = walker.rename(b"/c/p", b"/e/s", RenameFlags::NO_REPLACE);
    assert!(matches!(moved, Err(Error::Exists)), "{moved:?}");
    fs.unmount()?;
    let stored = Walker::new(&*below);
    assert_eq!(stored.read_file(b"/c/p")?, b"p");
    assert!(stored.read_file(b"/e/s")?.starts_with(b"WEFTSEAL"));
    Ok(())
}

#[test]
fn a_key_is_rotated_for_all_names_of_a_file() -> Result<()> {
    let keys = |numbers: &[u8]| {
        let mut ring = KeyRing::default();
        for number in numbers {
            ring.add("k", Key::new([*number; 32]));
        }
        Registry::new(Context { keys: ring, ..Context::default() })
    };
    let below = Arc::new(MemFs::new());
    let content = noise(&mut Rng::new(3), 700_001);
    let (attribute, network) = (CONVERT_ATTRIBUTE, b"aead key=k");
    let attach = |fs: &TransformFs, name: &[u8], network: &[u8]| {
        let node = Walker::new(fs).resolve(name)?;
        fs.setxattr(&Caller::ROOT, node.ino(), attribute, network, XattrSet::Any)
    };
    let fs = mounted(below.clone(), keys(&[1]));
    let walker = tree(&fs);
    walker.write_file(b"/c/f", &content, 0o644)?;
    attach(&fs, b"/c/f", network)?;
    walker.link(b"/c/f", b"/c/g")?;
    fs.unmount()?;
    let fs = mounted(below.clone(), keys(&[2, 1]));
    attach(&fs, b"/c/g", network)?;
    let other = attach(&fs, b"/c/g", b"zstd");
    assert!(matches!(other, Err(Error::TooManyLinks)), "{other:?}");
    assert!(Walker::new(&fs).read_file(b"/c/f")? == content);
    fs.unmount()?;
    // The old key is needed no longer.
    let fs = mounted(below.clone(), keys(&[2]));
    let walker = Walker::new(&fs);
    assert_eq!(walker.resolve(b"/c/f")?.stat()?.nlink, 2);
    for name in [&b"/c/f"[..], b"/c/g"] {
        assert!(walker.read_file(name)? == content);
    }
    let node = walker.resolve(b"/c/f")?;
    assert_eq!(fs.getxattr(node.ino(), NETWORK_ATTRIBUTE)?, network);
    Ok(())
}

#[test]
fn a_directory_without_names_is_removed_while_its_files_are_open() -> Result<()> {
    for directory in [&b"/z/d"[..], b"/a/d"] {
        let below = Arc::new(MemFs::new());
        let fs = mounted(below.clone(), registry());
        let walker = tree(&fs);
        walker.mkdir(directory, 0o755)?;
        let parent = walker.resolve(directory)?;
        let mut open = Vec::new();
        for name in [&b"one"[..], b"two"] {
            let (entry, opened) =
                fs.create(&Caller::ROOT, parent.ino(), name, 0o600, OpenFlags::WRITE)?;
            let ino = entry.attr.ino;
            // More than is held in memory: before the name goes, and after that.
            let data = noise(&mut Rng::new(1), 1 << 20);
            fs.write(&Caller::ROOT, ino, opened.handle, 0, &data)?;
            fs.unlink(&Caller::ROOT, parent.ino(), name)?;
            fs.write(&Caller::ROOT, ino, opened.handle, 1 << 20, &data)?;
            open.push((ino, opened.handle, data));
        }
        drop(parent);
        if directory == b"/z/d" {
            walker.remove(directory)?;
        } else {
            // As a directory that another replaces.
            walker.mkdir(b"/a/new", 0o755)?;
            walker.rename(b"/a/new", directory, RenameFlags::empty())?;
            walker.remove(directory)?;
        }
        // And the one above it.
        walker.remove(&directory[..2])?;
        for (ino, handle, data) in open {
            let mut read = vec![0; 1 << 20];
            for at in [0, 1 << 20] {
                assert_eq!(fs.read(ino, handle, at, &mut read)?, 1 << 20);
                assert!(read == data);
            }
            fs.fsync(&Caller::ROOT, ino, false)?;
            fs.release(ino, handle)?;
            fs.forget(ino, 1);
        }
        fs.unmount()?;
        let mut left = Vec::new();
        for found in Walker::new(&*below).tree(b"/")? {
            left.push(String::from_utf8_lossy(&found?.path).into_owned());
        }
        assert!(!left.iter().any(|path| path.contains("fresh")), "{left:?}");
    }
    Ok(())
}
