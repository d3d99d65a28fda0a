//! A rename that leaves a whiteout, as overlayfs asks for: the old name is a character device 0:0 from the
//! moment on at which the new one is there.

use crate::tools::{assert_clean, have_e2fsprogs};
use crate::volumes::{options, plain, store};
use std::sync::Arc;
use weft_block::{MemoryDevice, Recorder, replay};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{Options, Policy};
use weft_vfs::{Attr, Caller, Error, FileKind, FileSystem, RenameFlags, Result, Walker};

const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;

fn look(fs: &Ext2, name: &[u8]) -> Result<Attr> {
    fs.lookup(fs.root(), name).map(|entry| entry.attr)
}

fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == FileKind::CharDevice && attr.rdev == 0 && attr.nlink == 1
}

#[test]
fn the_old_name_becomes_a_whiteout() {
    if !have_e2fsprogs() {
        return;
    }
    for policy in [Policy::Soft, Policy::Async] {
        let mounted =
            crate::volumes::Mounted::open(plain(), Options { policy, ..Options::default() });
        let (fs, caller) = (&mounted.fs, Caller::ROOT);
        assert!(fs.has_whiteouts());
        let walker = Walker::new(&**fs);
        walker.write_file(b"/f", b"content", 0o644).unwrap();
        walker.write_file(b"/target", b"old", 0o644).unwrap();
        walker.mkdir(b"/d", 0o755).unwrap();
        walker.write_file(b"/d/x", b"below", 0o644).unwrap();
        let root = fs.root();
        fs.rename(&caller, root, b"f", root, b"g", WHITEOUT).unwrap();
        fs.rename(&caller, root, b"g", root, b"target", WHITEOUT).unwrap();
        fs.rename(&caller, root, b"d", root, b"e", WHITEOUT | RenameFlags::NO_REPLACE).unwrap();
        for old in [&b"f"[..], b"g", b"d"] {
            assert!(is_whiteout(&look(fs, old).unwrap()), "{old:?}");
        }
        assert_eq!(walker.read_file(b"/target").unwrap(), b"content");
        assert_eq!(walker.read_file(b"/e/x").unwrap(), b"below");
        // A whiteout is overwritten and removed as any other file.
        fs.rename(&caller, root, b"target", root, b"f", RenameFlags::empty()).unwrap();
        fs.unlink(&caller, root, b"g").unwrap();
        let refused = fs.rename(&caller, root, b"f", root, b"d", WHITEOUT | RenameFlags::EXCHANGE);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        drop(walker);
        mounted.check("whiteouts");
    }
}

#[test]
fn no_cut_finds_a_name_that_leads_nowhere() {
    if !have_e2fsprogs() {
        return;
    }
    let disk = Arc::new(Recorder::new(MemoryDevice::from_image(plain().clone())));
    let fs = Ext2::open(disk.clone(), options(Options::default())).unwrap();
    let walker = Walker::new(&*fs);
    for dir in [&b"/a"[..], b"/b", b"/a/d"] {
        walker.mkdir(dir, 0o755).unwrap();
    }
    walker.write_file(b"/a/f", b"content", 0o644).unwrap();
    walker.write_file(b"/b/f", b"old", 0o644).unwrap();
    fs.sync().unwrap();
    let before = disk.events().len();
    let ino = |path: &[u8]| walker.resolve(path).unwrap().attr().ino;
    let (a, b) = (ino(b"/a"), ino(b"/b"));
    fs.rename(&Caller::ROOT, a, b"f", b, b"f", WHITEOUT).unwrap();
    fs.rename(&Caller::ROOT, a, b"d", b, b"d", WHITEOUT).unwrap();
    fs.sync().unwrap();
    let events = disk.events();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("after.img");
    let mut moved = [0; 2];
    for end in before..=events.len() {
        let device = Arc::new(MemoryDevice::from_image(plain().clone()));
        replay(&events[..end], &*device).unwrap();
        let fs = Ext2::open(device.clone(), OpenOptions::default()).unwrap();
        let walker = Walker::new(&*fs);
        let old = *walker.resolve(b"/a/f").unwrap().attr();
        let new = walker.read_file(b"/b/f").unwrap();
        if is_whiteout(&old) {
            assert_eq!(new, b"content", "after {end} writes");
            moved[0] += 1;
        } else {
            assert_eq!(walker.read_file(b"/a/f").unwrap(), b"content");
            assert!(new == b"old" || new == b"content");
        }
        let old = *walker.resolve(b"/a/d").unwrap().attr();
        if is_whiteout(&old) {
            assert_eq!(walker.resolve(b"/b/d").unwrap().attr().kind, FileKind::Directory);
            moved[1] += 1;
        }
        fs.finish_healing();
        assert_eq!(fs.damage(), None);
        let both = old.kind == FileKind::Directory && walker.resolve(b"/b/d").is_ok();
        drop(walker);
        fs.unmount().unwrap();
        store(&device, &path);
        if !both {
            assert_clean(&path, &format!("after {end} of {} writes", events.len()));
        }
    }
    assert!(moved[0] > 0 && moved[1] > 0);
}
