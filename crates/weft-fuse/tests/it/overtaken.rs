//! Replies with attributes that a change overtakes: what the kernel shows afterwards is what the file
//! system has.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, DirCursor, DirEntry, Entry, FileSystem, Ino, Layer, MemFs, Result};

use crate::options;

/// A file system whose listings are answered late: when one is ready, it says so, and waits.
struct LateListings {
    below: MemFs,
    /// `None`: listings are answered at once.
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Layer for LateListings {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.below.readdir_plus(ino, cursor, each)?;
        let gate = self.gate.lock().unwrap().take();
        if let Some((ready, go_on)) = gate {
            ready.send(()).unwrap();
            go_on.recv().unwrap();
        }
        Ok(())
    }
}

fn attr_of(fs: &MemFs, path: &[&[u8]]) -> Attr {
    let mut attr = fs.getattr(fs.root()).unwrap();
    for name in path {
        let entry = fs.lookup(attr.ino, name).unwrap();
        fs.forget(entry.attr.ino, 1);
        attr = entry.attr;
    }
    attr
}

/// Demands that after `change`, which is answered while a listing of `listed` with older attributes
/// is under way, the kernel shows the attributes of `path` as they are.
fn check(listed: &str, path: &str, change: impl FnOnce(&Path)) {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let late = Arc::new(LateListings { below: crate::memory(), gate: Mutex::new(None) });
    let mut mount = weft_fuse::mount(late.clone(), dir.path(), &options()).unwrap();
    let top = dir.path();
    fs::create_dir_all(top.join("d/e")).unwrap();
    fs::create_dir_all(top.join("other")).unwrap();
    fs::write(top.join("d/file"), b"content").unwrap();
    // A second name: the kernel lets no name in a directory change while it is listed.
    fs::hard_link(top.join("d/file"), top.join("name")).unwrap();
    // The kernel knows all of them.
    for name in ["d", "d/e", "d/file", "name", "other"] {
        fs::metadata(top.join(name)).unwrap();
    }
    let (ready, is_ready) = channel();
    let (go_on, may_go_on) = channel();
    *late.gate.lock().unwrap() = Some((ready, may_go_on));
    let seen = std::thread::scope(|threads| {
        let lister = threads.spawn(|| fs::read_dir(top.join(listed)).unwrap().count());
        is_ready.recv().expect("the listing is ready to be answered");
        change(top);
        go_on.send(()).unwrap();
        assert!(lister.join().unwrap() > 0);
        fs::metadata(top.join(path)).unwrap()
    });
    let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
    let is = attr_of(&late.below, &names);
    assert_eq!(
        (seen.ctime(), seen.ctime_nsec()),
        (is.ctime.secs, i64::from(is.ctime.nanos)),
        "ctime"
    );
    assert_eq!(
        (seen.mtime(), seen.mtime_nsec()),
        (is.mtime.secs, i64::from(is.mtime.nanos)),
        "mtime"
    );
    assert_eq!(seen.nlink(), u64::from(is.nlink), "links");
    crate::unmount(&mut mount);
}

fn set_attribute(path: &Path) {
    rustix::fs::setxattr(path, "user.a", b"1", rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn an_attribute_is_set() {
    check("d", "d/file", |top| set_attribute(&top.join("d/file")));
}

#[test]
fn a_file_is_made() {
    check(".", "d", |top| fs::write(top.join("d/new"), b"").unwrap());
}

#[test]
fn a_directory_is_made() {
    check(".", "d", |top| fs::create_dir(top.join("d/new")).unwrap());
}

#[test]
fn a_name_is_linked() {
    check(".", "d", |top| fs::hard_link(top.join("d/file"), top.join("d/link")).unwrap());
}

#[test]
fn a_name_is_removed() {
    check(".", "d", |top| fs::remove_file(top.join("d/file")).unwrap());
    check(".", "d", |top| fs::remove_dir(top.join("d/e")).unwrap());
}

#[test]
fn a_file_is_renamed() {
    // Its directory, what it is renamed to, and itself.
    check(".", "d", |top| fs::rename(top.join("d/file"), top.join("other/file")).unwrap());
    check(".", "other", |top| fs::rename(top.join("d/file"), top.join("other/file")).unwrap());
    check(".", "other/file", |top| fs::rename(top.join("d/file"), top.join("other/file")).unwrap());
}

#[test]
fn room_is_reserved() {
    use rustix::fs::{FallocateFlags, fallocate};
    check("d", "d/file", |top| {
        let file = fs::File::options().write(true).open(top.join("d/file")).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 16).unwrap();
    });
}
