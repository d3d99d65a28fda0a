//! HFS Plus volumes that xorriso makes, and that 7-Zip reads, are read the same here; alone, in
//! Apple's partition map, and in an HFS wrapper.

use crate::tools::{have, run, tool};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weft_block::container::{self, Options};
use weft_block::{BlockDevice, Image, MemoryDevice, Rng};
use weft_hfs::hfsplus::{HfsPlus, OpenOptions, find};
use weft_vfs::{Caller, Error, FileKind, FileSystem, Walker};

type Content = BTreeMap<String, Vec<u8>>;

/// A tree with all features of the format, and its content by path.
fn make_tree(dir: &Path) -> Content {
    let mut content = Content::new();
    let mut add = |path: &str, bytes: Vec<u8>| {
        let at = dir.join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, &bytes).unwrap();
        content.insert(path.to_owned(), bytes);
    };
    let mut rng = Rng::new(1);
    let mut large = vec![0; 300_001];
    rng.fill(&mut large);
    add("hello.txt", b"hello\n".to_vec());
    add("empty", Vec::new());
    add("folder/large", large);
    add("folder/één ∞ 日本.txt", b"names".to_vec());
    // Enough for a tree of several levels.
    for i in 0..600 {
        let name = format!("folder/deep/down/a file whose name takes some room {i}");
        add(&name, vec![(i % 251) as u8; i]);
    }
    std::os::unix::fs::symlink("../hello.txt", dir.join("folder/link")).unwrap();
    content
}

fn device(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    let mut image = Image::new(bytes.len() as u64);
    image.write(bytes, 0).unwrap();
    Arc::new(MemoryDevice::from_image(image))
}

/// The volume alone, as xorriso made it.
fn made(dir: &Path) -> Option<(Content, Vec<u8>)> {
    if !have(&["xorriso"]) {
        return None;
    }
    let content = make_tree(&dir.join("tree"));
    // It takes names for ASCII where the environment has no language.
    run(tool(dir, "xorriso")
        .env("LC_ALL", "C.UTF-8")
        .args(["-as", "mkisofs", "-quiet", "-hfsplus", "-V", "Plus", "-o", "disc", "tree"]));
    let disc = std::fs::read(dir.join("disc")).unwrap();
    let opened = container::open(device(&disc), &Options::default()).unwrap();
    assert_eq!(opened.layers.len(), 1, "{:?}", opened.layers);
    let mut volume = vec![0; opened.device.geometry().len_bytes as usize];
    opened.device.read_at(&mut volume, 0).unwrap();
    Some((content, volume))
}

#[track_caller]
fn assert_content(fs: &HfsPlus, content: &Content) {
    let walker = Walker::new(fs);
    for (path, bytes) in content {
        let found = walker.read_file(format!("/{path}").as_bytes());
        assert!(found.unwrap_or_else(|e| panic!("{path}: {e}")) == *bytes, "{path}");
    }
    let mut files = 0;
    for found in walker.tree(b"/").unwrap() {
        let node = found.unwrap().node;
        files += usize::from(node.kind() == FileKind::Regular);
    }
    assert_eq!(files, content.len());
    let link = walker.resolve_link(b"/folder/link").unwrap();
    assert_eq!(link.readlink().unwrap(), b"../hello.txt");
    assert_eq!(walker.read_file(b"/folder/link").unwrap(), b"hello\n");
}

#[test]
fn volumes_of_xorriso_are_read_alone_and_wrapped() {
    let dir = tempfile::tempdir().unwrap();
    let Some((content, volume)) = made(dir.path()) else { return };
    let alone = device(&volume);
    assert!(!find(&*alone).unwrap().unwrap().wrapped);
    let fs = HfsPlus::open(alone, OpenOptions::default()).unwrap();
    assert_content(&fs, &content);
    assert_eq!(fs.lookup(fs.root(), b"absent").unwrap_err().errno(), 2);
    // Decomposed names are found too.
    let walker = Walker::new(&*fs);
    assert!(walker.exists("/folder/e\u{301}e\u{301}n ∞ 日本.txt".as_bytes()).unwrap());
    let refused = fs.mkdir(&Caller::ROOT, fs.root(), b"new", 0o755);
    assert!(matches!(refused, Err(Error::ReadOnly)));

    // An HFS volume with an extent of 4,096-byte blocks at 7, behind the block where they begin.
    let blocks = volume.len().div_ceil(4096);
    let mut wrapper = vec![0; 20 * 512 + (7 + blocks) * 4096 + 1024];
    wrapper[1024..1026].copy_from_slice(b"BD");
    wrapper[1024 + 0x14..1024 + 0x18].copy_from_slice(&4096_u32.to_be_bytes());
    wrapper[1024 + 0x1c..1024 + 0x1e].copy_from_slice(&20_u16.to_be_bytes());
    wrapper[1024 + 0x7c..1024 + 0x7e].copy_from_slice(b"H+");
    wrapper[1024 + 0x7e..1024 + 0x80].copy_from_slice(&7_u16.to_be_bytes());
    wrapper[1024 + 0x80..1024 + 0x82].copy_from_slice(&(blocks as u16).to_be_bytes());
    wrapper[20 * 512 + 7 * 4096..][..volume.len()].copy_from_slice(&volume);
    let place = find(&*device(&wrapper)).unwrap().unwrap();
    assert!(place.wrapped && place.start_bytes == 20 * 512 + 7 * 4096);
    let fs = HfsPlus::open(device(&wrapper), OpenOptions::default()).unwrap();
    assert_content(&fs, &content);
}

#[test]
fn seven_zip_reads_the_same() {
    if !have(&["7zz"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some((content, volume)) = made(dir.path()) else { return };
    std::fs::write(dir.path().join("volume.hfs"), &volume).unwrap();
    // It refuses to make links that lead up.
    run(tool(dir.path(), "7zz").args(["x", "-thfs", "-oout", "-xr!link", "volume.hfs"]));
    let fs = HfsPlus::open(device(&volume), OpenOptions::default()).unwrap();
    let out = std::fs::read_dir(dir.path().join("out")).unwrap().map(|e| e.unwrap().path());
    // Everything is in one folder of the volume's name, or not.
    let root = out.filter(|p| p.is_dir()).find(|p| p.join("hello.txt").exists());
    let root = root.unwrap_or_else(|| dir.path().join("out"));
    let walker = Walker::new(&*fs);
    for path in content.keys().filter(|path| path.is_ascii()) {
        let theirs = std::fs::read(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(walker.read_file(format!("/{path}").as_bytes()).unwrap() == theirs, "{path}");
    }
}

#[test]
fn damaged_volumes_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let Some((_, volume)) = made(dir.path()) else { return };
    let mut image = Image::new(volume.len() as u64);
    image.write(&volume, 0).unwrap();
    // Where the catalog begins, from the header.
    let be32 = |at: usize| u64::from(u32::from_be_bytes(volume[at..at + 4].try_into().unwrap()));
    let catalog = be32(1024 + 272 + 16) * be32(1024 + 40);
    let (mut opened, mut failed) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut hurt = image.clone();
        for _ in 0..1 + rng.index(10) {
            let at = match rng.below(3) {
                0 => 1024 + rng.below(512),
                1 => catalog + rng.below(256),
                _ => catalog + rng.below(60_000),
            };
            hurt.write(&rng.next_u64().to_le_bytes()[..1 + rng.index(4)], at).unwrap();
        }
        let Ok(fs) =
            HfsPlus::open(Arc::new(MemoryDevice::from_image(hurt)), OpenOptions::default())
        else {
            failed += 1;
            continue;
        };
        opened += 1;
        let mut buffer = vec![0; 5000];
        let Ok(tree) = Walker::new(&*fs).tree(b"/") else { continue };
        for found in tree.take(60) {
            let Ok(found) = found else { continue };
            let _ = found.node.read_at(100, &mut buffer);
            let _ = fs.listxattr(found.node.ino());
        }
    }
    assert!(opened > 10 && failed > 10, "{opened} opened, {failed} failed");
}

/// A journal that a crash has left is said: weft does not replay it.
#[test]
fn a_journal_that_was_not_replayed_is_told() {
    use weft_hfs::streams::MacVolume;
    let dir = tempfile::tempdir().unwrap();
    let Some((_, volume)) = made(dir.path()) else { return };
    let be32 = |v: &[u8], at: usize| u32::from_be_bytes(v[at..at + 4].try_into().unwrap());
    let unit = be32(&volume, 1024 + 40) as usize;
    let blocks = volume.len() / unit;
    let told = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut volume = volume.clone();
        // Journaled, with the info block behind the volume, and the journal in the block behind
        // that.
        volume.resize((blocks + 2) * unit.max(512), 0);
        let attributes = be32(&volume, 1024 + 4) | 1 << 13;
        volume[1028..1032].copy_from_slice(&attributes.to_be_bytes());
        volume[1036..1040].copy_from_slice(&(blocks as u32).to_be_bytes());
        let info = blocks * unit;
        volume[info..info + 4].copy_from_slice(&1_u32.to_be_bytes());
        let journal = (blocks + 1) * unit;
        volume[info + 36..info + 44].copy_from_slice(&(journal as u64).to_be_bytes());
        volume[journal..journal + 4].copy_from_slice(b"xLNJ");
        volume[journal + 8..journal + 16].copy_from_slice(&512_u64.to_le_bytes());
        volume[journal + 16..journal + 24].copy_from_slice(&512_u64.to_le_bytes());
        change(&mut volume);
        HfsPlus::open(device(&volume), OpenOptions::default()).unwrap().cautions()
    };
    let journal = (blocks + 1) * unit;
    assert!(told(&|_| {}).is_empty(), "an empty journal");
    let said = told(&|v| v[journal + 17] = 9);
    assert!(said.len() == 1 && said[0].contains("journal"), "{said:?}");
    // As a Mac of the other byte order writes it.
    assert!(told(&|v| v[journal..journal + 4].copy_from_slice(b"JNLx")).is_empty());
    let plain = HfsPlus::open(device(&volume), OpenOptions::default()).unwrap();
    assert!(plain.cautions().is_empty(), "no journal at all");
}
