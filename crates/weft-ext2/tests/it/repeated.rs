//! Names that come, go and move again and again under soft updates, as mail servers, editors and
//! package managers do it: the number of flushes does not grow with the number of times. Counts, no
//! times.

use crate::volumes::options;
use std::sync::Arc;
use std::time::Duration;
use weft_block::{Image, MemoryDevice};
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::Options;
use weft_vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, RenameFlags};

const TIMES: usize = 200;

/// A mounted volume, and the calls as the kernel makes them: it forgets an inode after its last name.
struct Volume {
    fs: Arc<Ext2>,
    root: Ino,
}

impl Volume {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(1 << 30));
        mkfs(&*device, &MkfsOptions::ext2()).unwrap();
        let options = options(Options { background: false, ..Options::default() });
        let fs = Ext2::open(device, options).unwrap();
        let root = fs.root();
        Self { fs, root }
    }

    fn mkdir(&self, dir: Ino, name: &str) -> Ino {
        self.fs.mkdir(&Caller::ROOT, dir, name.as_bytes(), 0o755).unwrap().attr.ino
    }

    fn rmdir(&self, dir: Ino, name: &str, ino: Ino) {
        self.fs.rmdir(&Caller::ROOT, dir, name.as_bytes()).unwrap();
        self.fs.forget(ino, 1);
    }

    fn create(&self, dir: Ino, name: &str, len_bytes: usize) -> Ino {
        let flags = OpenFlags::WRITE;
        let (made, opened) =
            self.fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags).unwrap();
        let ino = made.attr.ino;
        if len_bytes > 0 {
            self.fs.write(&Caller::ROOT, ino, opened.handle, 0, &vec![7; len_bytes]).unwrap();
        }
        self.fs.release(ino, opened.handle).unwrap();
        ino
    }

    fn unlink(&self, dir: Ino, name: &str, ino: Ino) {
        self.fs.unlink(&Caller::ROOT, dir, name.as_bytes()).unwrap();
        self.fs.forget(ino, 1);
    }

    fn link(&self, ino: Ino, dir: Ino, name: &str) {
        self.fs.link(&Caller::ROOT, ino, dir, name.as_bytes()).unwrap();
        self.fs.forget(ino, 1);
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) {
        let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
        let flags = RenameFlags::empty();
        self.fs.rename(&Caller::ROOT, from.0, old, to.0, new, flags).unwrap();
    }

    fn links(&self, ino: Ino) -> u32 {
        self.fs.getattr(ino).unwrap().nlink
    }

    /// Makes all durable. Returns the number of flushes.
    fn sync(&self) -> u64 {
        let before = self.fs.engine().counters();
        self.fs.sync().unwrap();
        let flushes = self.fs.engine().counters().flushes - before.flushes;
        eprintln!("{flushes} flushes; {before:?}");
        flushes
    }
}

/// Does something again and again after `prepare`, of which everything is durable; then checks the
/// number of flushes of the sync, and the volume.
fn repeat<P>(
    flushes_max: u64,
    prepare: impl FnOnce(&Volume) -> P,
    each: impl Fn(&Volume, &mut P, usize),
) {
    let volume = Volume::new();
    let mut prepared = prepare(&volume);
    volume.sync();
    for i in 0..TIMES {
        each(&volume, &mut prepared, i);
    }
    let flushes = volume.sync();
    // Nothing has been put off.
    assert_eq!(volume.fs.engine().counters().patches_now, 0);
    volume.fs.unmount().unwrap();
    assert_eq!(volume.fs.damage(), None);
    assert!(flushes <= flushes_max, "{flushes} flushes");
}

#[test]
fn a_directory_is_made_and_removed() {
    repeat(
        8,
        |v| v.mkdir(v.root, "d"),
        |v, dir, _| {
            let made = v.mkdir(*dir, "s");
            assert_eq!(v.links(*dir), 3);
            v.rmdir(*dir, "s", made);
            assert_eq!(v.links(*dir), 2);
        },
    );
}

/// The name is given and taken in the block of the root, whose inode is in that of the directory.
#[test]
fn a_directory_in_the_root_is_made_and_removed() {
    repeat(
        8,
        |_| (),
        |v, (), _| {
            let made = v.mkdir(v.root, "s");
            v.rmdir(v.root, "s", made);
        },
    );
}

#[test]
fn a_directory_and_a_file_in_it_are_made_and_removed() {
    repeat(
        12,
        |v| v.mkdir(v.root, "d"),
        |v, dir, _| {
            let made = v.mkdir(*dir, "s");
            let file = v.create(made, "f", 100);
            v.unlink(made, "f", file);
            v.rmdir(*dir, "s", made);
        },
    );
}

fn to_and_fro(flushes_max: u64, names: [&str; 2], two_directories: bool, is_dir: bool) {
    let prepare = |v: &Volume| {
        let from = v.mkdir(v.root, "from");
        let to = if two_directories { v.mkdir(v.root, "to") } else { from };
        let moved = if is_dir { v.mkdir(from, names[0]) } else { v.create(from, names[0], 100) };
        (from, to, moved)
    };
    repeat(flushes_max, prepare, |v, &mut (from, to, moved), _| {
        v.rename((from, names[0]), (to, names[1]));
        v.rename((to, names[1]), (from, names[0]));
        assert_eq!(v.links(moved), if is_dir { 2 } else { 1 });
    });
}

#[test]
fn a_file_is_moved_to_and_fro_in_a_directory() {
    to_and_fro(8, ["a", "b"], false, false);
}

/// Each name fills a sector of its own.
#[test]
fn a_file_with_long_names_is_moved_to_and_fro() {
    let names = ["a".repeat(250), "b".repeat(250)];
    to_and_fro(20, [&names[0], &names[1]], false, false);
}

#[test]
fn a_file_is_moved_to_and_fro_between_directories() {
    to_and_fro(12, ["a", "a"], true, false);
}

#[test]
fn a_directory_is_moved_to_and_fro() {
    to_and_fro(12, ["a", "b"], false, true);
    to_and_fro(16, ["a", "a"], true, true);
}

/// An odd number of moves leaves the file elsewhere.
#[test]
fn a_file_goes_round_in_a_circle() {
    repeat(
        20,
        |v| {
            let dirs = ["a", "b", "c"].map(|name| v.mkdir(v.root, name));
            v.create(dirs[0], "f", 100);
            dirs
        },
        |v, dirs, i| v.rename((dirs[i % 3], "f"), (dirs[(i + 1) % 3], "f")),
    );
}

#[test]
fn mail_is_delivered_read_and_removed() {
    repeat(
        12,
        |v| ["tmp", "new", "cur"].map(|name| v.mkdir(v.root, name)),
        |v, dirs, i| {
            let [tmp, new, cur] = *dirs;
            let name = format!("{i}.host");
            let ino = v.create(tmp, &name, 3000);
            v.rename((tmp, &name), (new, &name));
            let seen = format!("{name}:2,S");
            v.rename((new, &name), (cur, &seen));
            v.unlink(cur, &seen, ino);
        },
    );
}

#[test]
fn mail_is_delivered_and_stays() {
    repeat(
        12,
        |v| ["tmp", "new", "cur"].map(|name| v.mkdir(v.root, name)),
        |v, dirs, i| {
            let [tmp, new, cur] = *dirs;
            let name = format!("{i}.host");
            let ino = v.create(tmp, &name, 3000);
            v.link(ino, new, &name);
            v.unlink(tmp, &name, ino);
            v.fs.lookup(new, name.as_bytes()).unwrap();
            v.rename((new, &name), (cur, &format!("{name}:2,S")));
            v.fs.forget(ino, 1);
        },
    );
}

#[test]
fn a_file_is_made_and_removed() {
    repeat(
        8,
        |v| v.mkdir(v.root, "d"),
        |v, dir, _| {
            let ino = v.create(*dir, "f", 100);
            v.unlink(*dir, "f", ino);
        },
    );
}

/// As `ln -f`, and lock files of old.
#[test]
fn a_second_name_is_given_and_taken() {
    repeat(
        8,
        |v| (v.mkdir(v.root, "d"), v.create(v.root, "f", 100)),
        |v, &mut (dir, file), _| {
            v.fs.lookup(v.root, b"f").unwrap();
            v.link(file, dir, "lock");
            assert_eq!(v.links(file), 2);
            v.fs.unlink(&Caller::ROOT, dir, b"lock").unwrap();
            v.fs.forget(file, 1);
            assert_eq!(v.links(file), 1);
        },
    );
}

#[test]
fn a_file_is_replaced() {
    let prepare = |v: &Volume| {
        let dir = v.mkdir(v.root, "d");
        (dir, v.create(dir, "f", 100))
    };
    repeat(20, prepare, |v, (dir, old), _| {
        let new = v.create(*dir, "f.tmp", 100);
        v.rename((*dir, "f.tmp"), (*dir, "f"));
        v.fs.forget(*old, 1);
        *old = new;
    });
}

/// What waits is not lost by write-back in between, and has an end.
#[test]
fn write_back_in_between() {
    let volume = Volume::new();
    let dir = volume.mkdir(volume.root, "d");
    let file = volume.create(volume.root, "f", 100);
    for _ in 0..TIMES {
        let made = volume.mkdir(dir, "s");
        volume.fs.engine().write_back().unwrap();
        volume.rename((volume.root, "f"), (made, "f"));
        volume.fs.engine().write_back().unwrap();
        volume.rename((made, "f"), (volume.root, "f"));
        volume.rmdir(dir, "s", made);
    }
    let flushes = volume.sync();
    assert_eq!((volume.links(dir), volume.links(file)), (2, 1));
    assert!(flushes <= 20, "{flushes} flushes");
    volume.fs.fsync(&Caller::ROOT, file, false).unwrap();
    assert_eq!(volume.fs.engine().counters().patches_now, 0);
    volume.fs.unmount().unwrap();
}

/// Some writes of a file between: its handle is the same.
#[test]
fn a_file_is_written_and_moved() {
    let prepare = |v: &Volume| (v.mkdir(v.root, "d"), v.create(v.root, "f", 100));
    repeat(12, prepare, |v, &mut (dir, file), i| {
        v.fs.write(&Caller::ROOT, file, Handle::NONE, 100 * i as u64, &[7; 100]).unwrap();
        v.rename((v.root, "f"), (dir, "g"));
        v.fs.write(&Caller::ROOT, file, Handle::NONE, 100 * i as u64 + 50, &[8; 100]).unwrap();
        v.rename((dir, "g"), (v.root, "f"));
    });
}

/// A link count that was raised for a move is lowered without a sync, when there is nothing else to do.
#[test]
fn a_count_is_lowered_in_the_end() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs(&*device, &MkfsOptions::ext2()).unwrap();
    let engine = Options { max_age: Duration::from_millis(10), ..Options::default() };
    let fs = Ext2::open(device.clone(), options(engine)).unwrap();
    let root = fs.root();
    let volume = Volume { fs, root };
    let ino = volume.create(root, "old", 100);
    volume.sync();
    volume.rename((root, "old"), (root, "new"));
    weft_testing::wait_until("the count is lowered", || {
        let copy = MemoryDevice::from_image(Image::copy_of(&*device).unwrap());
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let Ok(seen) = Ext2::open(Arc::new(copy), read_only) else { return false };
        let entry = seen.lookup(root, b"new");
        entry.is_ok_and(|e| (e.attr.ino, e.attr.nlink) == (ino, 1))
            && seen.lookup(root, b"old").is_err()
    });
    volume.fs.unmount().unwrap();
}
