//! Inodes that are dropped from memory and read again, while the kernel remembers them, are changed,
//! moved and removed: nobody can tell a mount that keeps hardly any from one that keeps all.

use crate::tools::have_e2fsprogs;
use crate::volumes::{KINDS, Kind, Mounted, empty};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weft_block::{Image, Rng};
use weft_ext2::{Atime, Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_testing::wait_until;
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Error, FileFlags, FileKind, FileSystem, Handle, Ino,
    OpenFlags, RenameFlags, SetAttr, SetTime, Time, XattrSet,
};

const CALLER: Caller = Caller::ROOT;
/// `FS_DIRSYNC_FL`.
const DIRSYNC: FileFlags = FileFlags::from_bits_retain(0x1_0000);
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"dd", b"a longer name, which takes more room"];

fn open(image: &Image, policy: Policy, inodes: usize) -> Mounted {
    // The test decides when something is written.
    let engine = Options { policy, background: false, ..Options::default() };
    Mounted::open_with(image, |options| OpenOptions {
        engine,
        inodes_in_memory: Some(inodes),
        // Writing them would come at other times in each mount.
        atime: Atime::Never,
        ..options
    })
}

/// The result of a call as text, without values that differ between two mounts: inode numbers, times.
type Told = Result<String, i32>;

fn told<T>(result: Result<T, Error>, show: impl FnOnce(T) -> String) -> Told {
    result.map(show).map_err(|e| e.errno())
}

/// Returns what two volumes have in common of an inode: the number of a removed one is used again when
/// its removal is durable, and what a sync makes durable besides what it must is open.
fn shown(attr: &Attr) -> String {
    let (ino, none) = (Ino(0), Time::default());
    format!("{:?}", Attr { ino, atime: none, mtime: none, ctime: none, btime: None, ..*attr })
}

#[derive(Debug, Clone)]
enum Step {
    Lookup(Ino, usize),
    Forget(Ino, u64),
    Make(Ino, usize, FileKind),
    MakeUnnamed(Ino),
    Link(Ino, Ino, usize),
    Unlink(Ino, usize),
    Rmdir(Ino, usize),
    Rename((Ino, usize), (Ino, usize), RenameFlags),
    Open(Ino),
    Release(usize),
    Write(Ino, Option<usize>, u64, usize, u8),
    Read(Ino, u64, usize),
    Getattr(Ino),
    Resize(Ino, u64),
    Chmod(Ino, u16),
    Flags(Ino, FileFlags),
    SetXattr(Ino, usize),
    Xattrs(Ino),
    List(Ino),
    ListPlus(Ino),
    Fsync(Ino),
    Sync,
    WriteBack,
}

impl Step {
    /// Returns the same step with other numbers of inodes.
    fn renumbered(&self, number: impl Fn(Ino) -> Ino) -> Self {
        let mut step = self.clone();
        match &mut step {
            Self::Link(ino, dir, _) => (*ino, *dir) = (number(*ino), number(*dir)),
            Self::Rename((from, _), (to, _), _) => (*from, *to) = (number(*from), number(*to)),
            Self::Lookup(ino, _)
            | Self::Forget(ino, _)
            | Self::Make(ino, ..)
            | Self::MakeUnnamed(ino)
            | Self::Unlink(ino, _)
            | Self::Rmdir(ino, _)
            | Self::Open(ino)
            | Self::Write(ino, ..)
            | Self::Read(ino, ..)
            | Self::Getattr(ino)
            | Self::Resize(ino, _)
            | Self::Chmod(ino, _)
            | Self::Flags(ino, _)
            | Self::SetXattr(ino, _)
            | Self::Xattrs(ino)
            | Self::List(ino)
            | Self::ListPlus(ino)
            | Self::Fsync(ino) => *ino = number(*ino),
            Self::Release(_) | Self::Sync | Self::WriteBack => {}
        }
        step
    }
}

/// One of the two mounts.
struct Side {
    mounted: Mounted,
    handles: Vec<(Ino, Handle)>,
}

/// References that a step gave.
type Given = Vec<(Ino, FileKind)>;

impl Side {
    fn fs(&self) -> &Ext2 {
        &self.mounted.fs
    }

    fn apply(&mut self, step: &Step, given: &mut Given) -> Told {
        let fs = Arc::clone(&self.mounted.fs);
        let entry = |entry: weft_vfs::Entry| {
            given.push((entry.attr.ino, entry.attr.kind));
            format!("{} {}", shown(&entry.attr), entry.attr.nlink)
        };
        match *step {
            Step::Lookup(dir, name) => told(fs.lookup(dir, NAMES[name]), entry),
            Step::Forget(ino, count) => {
                fs.forget(ino, count);
                Ok(String::new())
            }
            Step::Make(dir, name, kind) => {
                let name = NAMES[name];
                let made = match kind {
                    FileKind::Directory => fs.mkdir(&CALLER, dir, name, 0o755),
                    FileKind::Symlink => fs.symlink(&CALLER, dir, name, b"over there"),
                    kind => fs.mknod(&CALLER, dir, name, kind, 0o644, 0),
                };
                told(made, entry)
            }
            Step::MakeUnnamed(dir) => told(fs.create_unnamed(&CALLER, dir, 0o600), entry),
            Step::Link(ino, dir, name) => told(fs.link(&CALLER, ino, dir, NAMES[name]), entry),
            Step::Unlink(dir, name) => told(fs.unlink(&CALLER, dir, NAMES[name]), |()| "".into()),
            Step::Rmdir(dir, name) => told(fs.rmdir(&CALLER, dir, NAMES[name]), |()| "".into()),
            Step::Rename(from, to, flags) => {
                let (old, new) = (NAMES[from.1], NAMES[to.1]);
                told(fs.rename(&CALLER, from.0, old, to.0, new, flags), |()| "".into())
            }
            Step::Open(ino) => told(fs.open(&CALLER, ino, OpenFlags::READ), |opened| {
                self.handles.push((ino, opened.handle));
                String::new()
            }),
            Step::Release(at) => {
                let (ino, handle) = self.handles.swap_remove(at);
                told(fs.release(ino, handle), |()| "".into())
            }
            Step::Write(ino, at, offset, len, byte) => {
                let handle = at.map_or(Handle::NONE, |at| self.handles[at].1);
                let ino = at.map_or(ino, |at| self.handles[at].0);
                told(fs.write(&CALLER, ino, handle, offset, &vec![byte; len]), |n| n.to_string())
            }
            Step::Read(ino, offset, len) => {
                let mut content = vec![0; len];
                let read = fs.read(ino, Handle::NONE, offset, &mut content);
                told(read, |n| format!("{:?}", &content[..n]))
            }
            Step::Getattr(ino) => told(fs.getattr(ino), |attr| shown(&attr)),
            Step::Resize(ino, size) => {
                let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
                told(fs.setattr(&CALLER, ino, &set), |attr| shown(&attr))
            }
            Step::Chmod(ino, perm) => {
                let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                told(fs.setattr(&CALLER, ino, &set), |attr| shown(&attr))
            }
            Step::Flags(ino, flags) => {
                let set = fs.set_file_flags(&CALLER, ino, flags);
                told(set.and_then(|()| fs.file_flags(ino)), |flags| format!("{flags:?}"))
            }
            Step::SetXattr(ino, len) => {
                let set = fs.setxattr(&CALLER, ino, b"user.x", &vec![7; len], XattrSet::Any);
                told(set, |()| "".into())
            }
            Step::Xattrs(ino) => told(fs.getxattr(ino, b"user.x"), |value| value.len().to_string()),
            Step::List(dir) => {
                let mut names = Vec::new();
                let listed = fs.readdir(dir, DirCursor::START, &mut |entry| {
                    names.push((entry.name.to_vec(), entry.kind));
                    true
                });
                told(listed, |()| format!("{names:?}"))
            }
            Step::ListPlus(dir) => {
                let mut names = Vec::new();
                let listed = fs.readdir_plus(dir, DirCursor::START, &mut |entry, found| {
                    names.push((entry.name.to_vec(), shown(&found.attr)));
                    if entry.name != b"." && entry.name != b".." {
                        given.push((found.attr.ino, found.attr.kind));
                    }
                    true
                });
                told(listed, |()| format!("{names:?}"))
            }
            Step::Fsync(ino) => told(fs.fsync(&CALLER, ino, false), |()| "".into()),
            Step::Sync => told(fs.sync(), |()| "".into()),
            Step::WriteBack => {
                fs.engine().write_back().unwrap();
                Ok(String::new())
            }
        }
    }
}

/// Returns all paths of each inode, as lists of names.
fn paths(fs: &Ext2) -> BTreeMap<u64, Vec<Vec<Vec<u8>>>> {
    let mut found = BTreeMap::from([(fs.root().0, vec![vec![]])]);
    let mut todo = vec![(fs.root(), vec![])];
    while let Some((dir, path)) = todo.pop() {
        fs.readdir(dir, DirCursor::START, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                let mut path: Vec<Vec<u8>> = path.clone();
                path.push(entry.name.to_vec());
                if entry.kind == FileKind::Directory {
                    todo.push((entry.ino, path.clone()));
                }
                found.entry(entry.ino.0).or_default().push(path);
            }
            true
        })
        .unwrap();
    }
    found
}

/// Returns the names of a directory, with the inodes that they name. (A name that is durable may
/// precede its inode where nothing keeps an order.)
fn names(fs: &Ext2, dir: Ino) -> BTreeMap<Vec<u8>, Ino> {
    let mut names = BTreeMap::new();
    let each = &mut |entry: DirEntry<'_>| names.insert(entry.name.to_vec(), entry.ino).is_none();
    fs.readdir(dir, DirCursor::START, each).unwrap();
    names
}

fn resolve(fs: &Ext2, path: &[Vec<u8>]) -> Result<Ino, Error> {
    path.iter().try_fold(fs.root(), |dir, name| Ok(fs.lookup(dir, name)?.attr.ino))
}

/// Two mounts of one volume that must not differ.
struct Pair {
    few: Side,
    all: Side,
    /// References of each inode, and its kind.
    held: BTreeMap<u64, (u64, FileKind)>,
    /// The number in the mount of few of each inode, by that in the other one.
    in_few: BTreeMap<u64, Ino>,
    policy: Policy,
    done: Vec<Step>,
}

impl Pair {
    fn new(image: &Image, policy: Policy, inodes: usize) -> Self {
        let side = |inodes| Side { mounted: open(image, policy, inodes), handles: Vec::new() };
        let (few, all) = (side(inodes), side(100_000));
        let in_few = paths(all.fs()).into_keys().map(|ino| (ino, Ino(ino))).collect();
        Self { few, all, held: BTreeMap::new(), in_few, policy, done: Vec::new() }
    }

    fn apply(&mut self, step: &Step) -> Told {
        self.done.push(step.clone());
        let (mut given, mut expected) = (Vec::new(), Vec::new());
        let in_few = step.renumbered(|ino| self.in_few[&ino.0]);
        let got = self.few.apply(&in_few, &mut given);
        let want = self.all.apply(step, &mut expected);
        assert_eq!(got, want, "after {:?}", self.done);
        assert_eq!(given.len(), expected.len(), "after {:?}", self.done);
        let made = matches!(step, Step::Make(..) | Step::MakeUnnamed(_));
        for ((few, _), (all, _)) in given.iter().zip(&expected) {
            let before = self.in_few.insert(all.0, *few);
            assert!(made || before == Some(*few), "{all:?} after {:?}", self.done);
        }
        if let (Step::Forget(ino, count), true) = (step, got.is_ok())
            && let Some((refs, _)) = self.held.get_mut(&ino.0)
        {
            *refs -= count;
            if *refs == 0 {
                self.held.remove(&ino.0);
            }
        }
        for (ino, kind) in expected {
            self.held.entry(ino.0).or_insert((0, kind)).0 += 1;
        }
        got
    }

    /// Checks that what an fsync promised is found after a cut: the file, by a name, as it is.
    fn check_durable(&self, ino: Ino) {
        let paths = paths(self.all.fs());
        let Some(paths) = paths.get(&ino.0) else { return };
        let in_few = self.in_few[&ino.0];
        let image = self.few.mounted.device.snapshot();
        let after = open(&image, self.policy, 1000).fs;
        let found = paths.iter().any(|path| resolve(&after, path).ok() == Some(in_few));
        let lost = || format!("inode {} is lost after {:?}", ino.0, self.done);
        assert!(found, "{}", lost());
        let (got, want) = (after.getattr(in_few).unwrap(), self.all.fs().getattr(ino).unwrap());
        assert_eq!((got.size_bytes, got.perm), (want.size_bytes, want.perm), "{}", lost());
    }

    fn check_durable_names(&self, dir: Ino) {
        let paths = paths(self.all.fs());
        let Some(path) = paths.get(&dir.0).map(|paths| &paths[0]) else { return };
        let in_few = self.in_few[&dir.0];
        let image = self.few.mounted.device.snapshot();
        let after = open(&image, self.policy, 1000).fs;
        let lost = || format!("names of directory {} are lost after {:?}", dir.0, self.done);
        assert_eq!(resolve(&after, path).ok(), Some(in_few), "{}", lost());
        let mut expected = names(self.all.fs(), dir);
        expected.values_mut().for_each(|ino| *ino = self.in_few[&ino.0]);
        assert_eq!(names(&after, in_few), expected, "{}", lost());
    }

    fn random_step(&self, rng: &mut Rng) -> Step {
        let root = self.all.fs().root();
        let held: Vec<(Ino, FileKind)> =
            self.held.iter().map(|(ino, (_, kind))| (Ino(*ino), *kind)).collect();
        let of = |rng: &mut Rng, dirs: bool| {
            let is = |kind: FileKind| (kind == FileKind::Directory) == dirs;
            let some: Vec<Ino> = held.iter().filter(|(_, k)| is(*k)).map(|(ino, _)| *ino).collect();
            rng.pick(&some).copied()
        };
        let dir = if rng.chance(1, 3) { root } else { of(rng, true).unwrap_or(root) };
        let other = of(rng, true).unwrap_or(root);
        let any = rng.pick(&held).map_or(root, |(ino, _)| *ino);
        let file = of(rng, false).unwrap_or(any);
        let either = if rng.chance(1, 3) { dir } else { file };
        let (name, second) = (rng.index(NAMES.len()), rng.index(NAMES.len()));
        let handles = self.few.handles.len();
        match rng.below(46) {
            0..4 => Step::Lookup(dir, name),
            4..9 => match rng.pick(&held) {
                Some((ino, _)) => {
                    let refs = self.held[&ino.0].0;
                    Step::Forget(*ino, if rng.chance(1, 2) { refs } else { 1 })
                }
                None => Step::Getattr(any),
            },
            9..13 => Step::Make(dir, name, FileKind::Regular),
            13..15 => Step::Make(dir, name, FileKind::Directory),
            15 => Step::Make(dir, name, FileKind::Symlink),
            16 => Step::MakeUnnamed(dir),
            17..19 => Step::Link(file, dir, name),
            19..21 => Step::Unlink(dir, name),
            21 => Step::Rmdir(dir, name),
            22..25 => {
                let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE][rng.index(2)];
                Step::Rename((dir, name), (other, second), flags)
            }
            25 => Step::Open(either),
            26 if handles > 0 => Step::Release(rng.index(handles)),
            27..30 => {
                let at = (handles > 0 && rng.chance(1, 3)).then(|| rng.index(handles));
                let offset = [0, 3000, 4096, 20_000, 70_000][rng.index(5)];
                Step::Write(file, at, offset, 1 + rng.index(6000), name as u8)
            }
            30 => Step::Read(file, [0, 4096, 70_000][rng.index(3)], 9000),
            31..34 => Step::Getattr(any),
            34 => Step::Resize(file, [0, 1, 5000, 70_000][rng.index(4)]),
            35 => Step::Chmod(either, [0o600, 0o755, 0o4711][rng.index(3)]),
            36 => {
                let flags = [FileFlags::empty(), FileFlags::SYNC, DIRSYNC, FileFlags::APPEND];
                Step::Flags(either, flags[rng.index(if either == dir { 3 } else { 4 })])
            }
            37 => Step::SetXattr(either, [1, 100, 900][rng.index(3)]),
            38 => Step::Xattrs(either),
            39 => Step::List(dir),
            40 => Step::ListPlus(dir),
            41..43 => Step::Fsync(either),
            43 => Step::Sync,
            _ => Step::WriteBack,
        }
    }

    /// Takes a step, and checks what it promised to be durable.
    fn step(&mut self, rng: &mut Rng) {
        let step = self.random_step(rng);
        if self.apply(&step).is_err() {
            return;
        }
        let asks = |ino: Ino, flags: FileFlags| {
            self.all.fs().file_flags(ino).is_ok_and(|set| set.intersects(flags))
        };
        match step {
            Step::Fsync(ino) => self.check_durable(ino),
            Step::Write(ino, None, ..) | Step::Resize(ino, _) | Step::Chmod(ino, _)
                if asks(ino, FileFlags::SYNC) =>
            {
                self.check_durable(ino);
            }
            Step::Make(dir, ..)
            | Step::Link(_, dir, _)
            | Step::Unlink(dir, _)
            | Step::Rmdir(dir, _)
                if asks(dir, FileFlags::SYNC | DIRSYNC) =>
            {
                self.check_durable_names(dir);
            }
            _ => {}
        }
    }

    /// Gives all references back, and lets e2fsck look at both volumes.
    fn end(mut self, what: &str) {
        for (ino, (refs, _)) in std::mem::take(&mut self.held) {
            let step = Step::Forget(Ino(ino), refs);
            self.held.insert(ino, (refs, FileKind::Regular));
            let _ = self.apply(&step);
        }
        while !self.few.handles.is_empty() {
            let _ = self.apply(&Step::Release(0));
        }
        let _ = self.apply(&Step::Sync);
        let (few, all) = (self.few.fs().statfs().unwrap(), self.all.fs().statfs().unwrap());
        assert_eq!((few.inodes_free, few.blocks_free), (all.inodes_free, all.blocks_free));
        let (few, all) = (paths(self.few.fs()), paths(self.all.fs()));
        for (ino, paths) in &all {
            assert_eq!(few.get(&self.in_few[ino].0), Some(paths), "{what}");
        }
        assert_eq!(few.len(), all.len(), "{what}");
        self.few.mounted.check(what);
        self.all.mounted.check(what);
    }
}

fn hardly_any_and_all(kind: &Kind, policy: Policy, seeds: std::ops::Range<u64>) {
    if !have_e2fsprogs() {
        return;
    }
    let image = empty(kind);
    let seeds = match std::env::var("WEFT_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(&image, policy, 1 + rng.index(8));
        for _ in 0..400 {
            pair.step(&mut rng);
        }
        pair.end(&format!("{}, {policy:?}, seed {seed}", kind.name));
    }
}

#[test]
fn random_steps_with_soft_updates() {
    hardly_any_and_all(&KINDS[0], Policy::Soft, 0..30);
    hardly_any_and_all(&KINDS[1], Policy::Soft, 30..60);
}

#[test]
fn random_steps_without_order() {
    hardly_any_and_all(&KINDS[1], Policy::Async, 0..20);
}

#[test]
fn random_steps_with_a_journal() {
    hardly_any_and_all(&KINDS[3], Policy::Journal(JournalMode::Ordered), 0..20);
    hardly_any_and_all(&KINDS[3], Policy::Journal(JournalMode::Full), 20..30);
}

/// A durable file in a directory of which the one above was renamed since, not durably. Both were
/// dropped from memory: an fsync of the file nevertheless makes its new path durable.
#[test]
fn an_fsync_of_a_file_reaches_the_directories_above_it() {
    if !have_e2fsprogs() {
        return;
    }
    for remembered in [true, false] {
        let mounted = open(&empty(&KINDS[0]), Policy::Soft, 1);
        let fs = &mounted.fs;
        let above = fs.mkdir(&CALLER, fs.root(), b"above", 0o755).unwrap().attr.ino;
        let dir = fs.mkdir(&CALLER, above, b"dir", 0o755).unwrap().attr.ino;
        let file = fs.mknod(&CALLER, dir, b"file", FileKind::Regular, 0o644, 0).unwrap().attr.ino;
        fs.sync().unwrap();
        if !remembered {
            fs.forget(dir, 1);
            fs.forget(above, 1);
        }
        fs.rename(&CALLER, fs.root(), b"above", fs.root(), b"moved", RenameFlags::empty()).unwrap();
        // The others are not durable in memory, and these are not in memory at all.
        assert_eq!(fs.getattr(fs.root()).unwrap().nlink, 4);
        fs.write(&CALLER, file, Handle::NONE, 0, b"content").unwrap();
        fs.fsync(&CALLER, file, false).unwrap();
        let after = open(&mounted.device.snapshot(), Policy::Soft, 1).fs;
        let path = [b"moved".to_vec(), b"dir".to_vec(), b"file".to_vec()];
        assert_eq!(resolve(&after, &path).ok(), Some(file), "remembered: {remembered}");
    }
}

/// The access time of an inode waits in memory to be written, and is not lost with it.
#[test]
fn an_access_time_is_not_dropped() {
    if !have_e2fsprogs() {
        return;
    }
    let engine = Options { background: false, ..Options::default() };
    let mounted = Mounted::open_with(&empty(&KINDS[0]), |options| OpenOptions {
        engine,
        inodes_in_memory: Some(1),
        ..options
    });
    let fs = &mounted.fs;
    let make = |name: &[u8]| {
        fs.mknod(&CALLER, fs.root(), name, FileKind::Regular, 0o644, 0).unwrap().attr.ino
    };
    let (read, other) = (make(b"read"), make(b"other"));
    fs.write(&CALLER, read, Handle::NONE, 0, b"content").unwrap();
    let old = SetTime::At(Time { secs: 1_000_000, nanos: 0 });
    let set = SetAttr { atime: Some(old), ..SetAttr::default() };
    fs.setattr(&CALLER, read, &set).unwrap();
    fs.sync().unwrap();
    fs.read(read, Handle::NONE, 0, &mut [0; 7]).unwrap();
    let atime = fs.getattr(read).unwrap().atime;
    assert!(atime.secs > 1_000_000, "it was read");
    for again in 0..20 {
        fs.getattr(other).unwrap();
        fs.lookup(fs.root(), b"other").unwrap();
        if again == 10 {
            assert_eq!(fs.getattr(read).unwrap().atime, atime, "in memory");
            fs.sync().unwrap();
        }
    }
    assert_eq!(fs.getattr(read).unwrap().atime, atime, "read again");
    mounted.check("access times");
}

/// The engine's thread drops inodes as soon as nothing is written: also without another call.
#[test]
fn an_idle_mount_drops_inodes() {
    if !have_e2fsprogs() {
        return;
    }
    let engine = Options { max_age: Duration::from_millis(10), ..Options::default() };
    let mounted = Mounted::open_with(&empty(&KINDS[0]), |options| OpenOptions {
        engine,
        inodes_in_memory: Some(10),
        ..options
    });
    let fs = &mounted.fs;
    for number in 0..1000 {
        let name = format!("file {number}");
        fs.mknod(&CALLER, fs.root(), name.as_bytes(), FileKind::Regular, 0o644, 0).unwrap();
    }
    wait_until("inodes are dropped", || fs.inodes_in_memory() <= 10);
    mounted.check("an idle mount");
}
