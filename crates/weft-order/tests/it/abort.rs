//! Atomic groups that are aborted: the volume is as it was before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use weft_block::MemoryDevice;
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_order::{OrderedFs, commands};
use weft_patch::{JournalMode, Options, Policy};
use weft_testing::yield_until;
use weft_vfs::{
    Caller, DirCursor, Error, FallocateMode, FileFlags, FileKind, FileSystem, Handle, Ino,
    Invalidate, OpenFlags, RenameFlags, Result, SetAttr, Time, XattrSet,
};

const EPERM: i32 = 1;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const EOPNOTSUPP: i32 = 95;
const PROCESS: u32 = 1;
/// The kind of group.
const ABORTABLE: u32 = 3;

struct Volume {
    device: Arc<MemoryDevice>,
    ext2: Arc<Ext2>,
    fs: OrderedFs,
}

/// A process that is not this one, and in no group.
const OTHER: Caller = Caller::ROOT;

fn caller(pid: u32) -> Caller {
    Caller { pid, ..Caller::ROOT }
}

fn own() -> Caller {
    caller(std::process::id())
}

/// All that a user can see of a file, but the times of access and of change of the inode.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    ino: Ino,
    kind: FileKind,
    perm: u16,
    owner: (u32, u32),
    nlink: u32,
    mtime: Time,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: Option<FileFlags>,
}

type Tree = BTreeMap<Vec<u8>, Seen>;

fn content(fs: &dyn FileSystem, ino: Ino, len_bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(len_bytes).unwrap()];
    assert_eq!(fs.read(ino, Handle::NONE, 0, &mut content).unwrap(), content.len());
    content
}

fn tree(fs: &dyn FileSystem) -> Tree {
    fn look(fs: &dyn FileSystem, dir: Ino, path: &[u8], tree: &mut Tree) {
        let mut names = Vec::new();
        fs.readdir(dir, DirCursor::START, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        for name in names.into_iter().filter(|name| name != b"..") {
            let attr = fs.lookup(dir, &name).unwrap().attr;
            let path = [path, b"/", &name].concat();
            let content = match attr.kind {
                FileKind::Regular => content(fs, attr.ino, attr.size_bytes),
                FileKind::Symlink => fs.readlink(attr.ino).unwrap(),
                _ => Vec::new(),
            };
            let attributes = fs.listxattr(attr.ino).unwrap();
            let value = |name: Vec<u8>| (name.clone(), fs.getxattr(attr.ino, &name).unwrap());
            let seen = Seen {
                ino: attr.ino,
                kind: attr.kind,
                perm: attr.perm,
                owner: (attr.uid, attr.gid),
                nlink: attr.nlink,
                mtime: attr.mtime,
                content,
                xattrs: attributes.into_iter().map(value).collect(),
                flags: fs.file_flags(attr.ino).ok(),
            };
            tree.insert(path.clone(), seen);
            if attr.kind == FileKind::Directory && name != b"." {
                look(fs, attr.ino, &path, tree);
            }
            fs.forget(attr.ino, 1);
        }
    }
    let mut found = Tree::new();
    look(fs, fs.root(), b"", &mut found);
    found
}

impl Volume {
    fn new(policy: Policy) -> Self {
        let device = Arc::new(MemoryDevice::new(34 << 20));
        mkfs(&*device, &MkfsOptions { block_bytes: Some(1024), ..MkfsOptions::ext3() }).unwrap();
        let ext2 = Self::open(device.clone(), policy);
        let fs = OrderedFs::new(ext2.clone(), ext2.engine().patchgroups());
        Self { device, ext2, fs }
    }

    fn ordered() -> Self {
        Self::new(Policy::Journal(JournalMode::Ordered))
    }

    fn open(device: Arc<MemoryDevice>, policy: Policy) -> Arc<Ext2> {
        let engine = Options { policy, background: false, ..Options::default() };
        Ext2::open(device, OpenOptions { engine, ..OpenOptions::default() }).unwrap()
    }

    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    /// Executes a command. Returns its errno, and the group.
    fn command(&self, caller: &Caller, request: u32, group: u32, value: u32) -> (i32, u32) {
        let data = [group.to_ne_bytes(), value.to_ne_bytes()].concat();
        let answer = self.fs().command(caller, self.fs().root(), Handle::NONE, request, &data);
        let answer = answer.unwrap();
        (answer.errno, u32::from_ne_bytes(answer.data[..4].try_into().unwrap()))
    }

    fn done(&self, request: u32, group: u32, value: u32) {
        assert_eq!(self.command(&own(), request, group, value).0, 0, "{request:x}");
    }

    /// Begins a group of this process.
    fn begin(&self) -> u32 {
        let (errno, group) = self.command(&own(), commands::CREATE, 0, ABORTABLE);
        assert_eq!(errno, 0);
        self.done(commands::ENGAGE, group, PROCESS);
        group
    }

    fn abort(&self, group: u32) {
        self.done(commands::ABORT, group, 0);
    }

    fn commit(&self, group: u32) {
        self.done(commands::DISENGAGE, group, PROCESS);
        self.done(commands::COMMIT, group, 0);
    }

    /// Returns the tree after a power cut now.
    fn after_power_cut(&self) -> Tree {
        let copy = Arc::new(MemoryDevice::from_image(self.device.snapshot()));
        tree(&*Self::open(copy, self.ext2.engine().policy()))
    }

    fn file(&self, caller: &Caller, dir: Ino, name: &str, content: &[u8]) -> Ino {
        let (fs, name) = (self.fs(), name.as_bytes());
        let made = fs.mknod(caller, dir, name, FileKind::Regular, 0o644, 0).unwrap();
        fs.write(caller, made.attr.ino, Handle::NONE, 0, content).unwrap();
        made.attr.ino
    }

    /// Fails if a check finds anything.
    fn check(&self) {
        self.fs().sync().unwrap();
        let copy = Arc::new(MemoryDevice::from_image(self.device.snapshot()));
        // Replays the journal.
        Self::open(copy.clone(), self.ext2.engine().policy()).unmount().unwrap();
        let report = weft_ext2::fsck::check(&*copy, &weft_ext2::fsck::Options::default()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn resize(size_bytes: u64) -> SetAttr {
    SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() }
}

#[test]
fn all_kinds_of_changes_are_undone() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let volume = Volume::new(Policy::Journal(mode));
        let (fs, root, own) = (volume.fs(), volume.fs().root(), own());
        let dir = fs.mkdir(&own, root, b"dir", 0o750).unwrap().attr.ino;
        let inner = fs.mkdir(&own, dir, b"inner", 0o700).unwrap().attr.ino;
        let [written, cut, removed, replaced, moved, linked, protected] =
            ["written", "cut", "removed", "replaced", "moved", "linked", "protected"]
                .map(|name| volume.file(&own, dir, name, name.repeat(2000).as_bytes()));
        fs.link(&own, linked, root, b"other name").unwrap();
        fs.symlink(&own, inner, b"symlink", b"target").unwrap();
        fs.setxattr(&own, written, b"user.kept", b"old", XattrSet::Any).unwrap();
        for ino in [inner, removed, replaced] {
            // As the kernel when nobody uses them.
            fs.forget(ino, 1);
        }
        fs.sync().unwrap();
        // The times of the group's changes are others.
        std::thread::sleep(std::time::Duration::from_millis(10));
        let before = tree(fs);
        let space = fs.statfs().unwrap();

        let group = volume.begin();
        fs.write(&own, written, Handle::NONE, 5000, &[1; 20_000]).unwrap();
        fs.setxattr(&own, written, b"user.kept", b"new", XattrSet::Any).unwrap();
        fs.setxattr(&own, written, b"user.more", b"new", XattrSet::Any).unwrap();
        fs.setattr(&own, cut, &resize(1000)).unwrap();
        fs.setattr(&own, cut, &resize(100_000)).unwrap();
        fs.unlink(&own, dir, b"removed").unwrap();
        volume.file(&own, dir, "removed", b"another");
        fs.rename(&own, dir, b"moved", dir, b"replaced", RenameFlags::empty()).unwrap();
        fs.unlink(&own, root, b"other name").unwrap();
        fs.unlink(&own, dir, b"linked").unwrap();
        fs.unlink(&own, inner, b"symlink").unwrap();
        fs.rmdir(&own, dir, b"inner").unwrap();
        fs.set_file_flags(&own, protected, FileFlags::IMMUTABLE).unwrap();
        let set = SetAttr { perm: Some(0), uid: Some(7), gid: Some(8), ..SetAttr::default() };
        fs.setattr(&own, moved, &set).unwrap();
        fs.fallocate(&own, written, FallocateMode::PunchHole, 0, 8192).unwrap();
        let keep_size = FallocateMode::Allocate { keep_size: true };
        fs.fallocate(&own, moved, keep_size, 0, 1 << 20).unwrap();
        let made = fs.mkdir(&own, dir, b"made", 0o755).unwrap().attr.ino;
        let inside = volume.file(&own, made, "inside", b"content");
        fs.rename(&own, made, b"inside", root, b"outside", RenameFlags::empty()).unwrap();
        fs.rename(&own, dir, b"cut", dir, b"made", RenameFlags::EXCHANGE).unwrap();
        fs.unlink(&own, root, b"outside").unwrap();
        fs.write(&own, inside, Handle::NONE, 0, b"of a file without a name").unwrap();
        volume.ext2.engine().write_back().unwrap();
        assert_ne!(tree(fs), before);
        assert_eq!(volume.after_power_cut(), before, "{mode:?}: nothing of it is durable");
        volume.abort(group);
        assert_eq!(tree(fs), before, "{mode:?}");
        fs.forget(inside, 1);
        fs.forget(made, 1);
        let after = fs.statfs().unwrap();
        assert_eq!((after.blocks_free, after.inodes_free), (space.blocks_free, space.inodes_free));
        fs.sync().unwrap();
        assert_eq!(volume.after_power_cut(), before, "{mode:?}");
        volume.check();
        assert_eq!(volume.command(&own, commands::ABORT, group, 0).0, EINVAL, "it has ended");
    }
}

#[test]
fn what_is_committed_stays_and_nothing_is_kept() {
    let volume = Volume::ordered();
    let (fs, root, own) = (volume.fs(), volume.fs().root(), own());
    let ino = volume.file(&own, root, "file", &[1; 10_000]);
    fs.forget(ino, 1);
    let space = fs.statfs().unwrap();
    let group = volume.begin();
    fs.unlink(&own, root, b"file").unwrap();
    assert_eq!(volume.command(&own, commands::COMMIT, group, 0).0, EBUSY, "it is engaged");
    volume.commit(group);
    assert_eq!(volume.command(&own, commands::ABORT, group, 0).0, EINVAL);
    assert!(fs.statfs().unwrap().inodes_free > space.inodes_free, "its inode is free");
    fs.sync().unwrap();
    assert_eq!(volume.after_power_cut().len(), tree(fs).len());
    volume.check();
}

#[test]
fn the_changes_of_a_process_that_ends_are_undone() {
    let volume = Volume::ordered();
    let (fs, root) = (volume.fs(), volume.fs().root());
    volume.file(&OTHER, root, "kept", b"old");
    let before = tree(fs);
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let theirs = caller(child.id());
    let (errno, group) = volume.command(&theirs, commands::CREATE, 0, ABORTABLE);
    assert_eq!(errno, 0);
    assert_eq!(volume.command(&theirs, commands::ENGAGE, group, PROCESS).0, 0);
    volume.file(&theirs, root, "new", b"content");
    fs.unlink(&theirs, root, b"kept").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    yield_until("they are undone", || fs.lookup(root, b"new").is_err());
    yield_until("all of them", || tree(fs) == before);
    volume.check();
}

#[test]
fn what_others_have_changed_too_is_not_undone() {
    type Share = fn(&Volume, Ino, Ino) -> Result<()>;
    let shares: [(&str, Share); 5] = [
        ("content", |v, file, _| v.fs().write(&OTHER, file, Handle::NONE, 9, b"x").map(drop)),
        ("length", |v, file, _| v.fs().setattr(&OTHER, file, &resize(1)).map(drop)),
        ("a name that was removed", |v, _, _| {
            v.file(&OTHER, v.fs().root(), "removed", b"another");
            Ok(())
        }),
        ("a name in what was made", |v, _, made| {
            v.file(&OTHER, made, "inside", b"");
            Ok(())
        }),
        ("the name of what was made", |v, _, _| {
            let root = v.fs().root();
            v.fs().rename(&OTHER, root, b"made", root, b"moved", RenameFlags::empty())
        }),
    ];
    for (what, share) in shares {
        let volume = Volume::ordered();
        let (fs, root, own) = (volume.fs(), volume.fs().root(), own());
        let file = volume.file(&own, root, "file", b"content of the file");
        volume.file(&own, root, "removed", b"content");
        let group = volume.begin();
        fs.write(&own, file, Handle::NONE, 0, b"CONTENT").unwrap();
        fs.unlink(&own, root, b"removed").unwrap();
        let made = fs.mkdir(&own, root, b"made", 0o755).unwrap().attr.ino;
        // Others in the same directory are no harm.
        volume.file(&OTHER, root, "beside it", b"");
        share(&volume, file, made).unwrap();
        let now = tree(fs);
        assert_eq!(volume.command(&own, commands::ABORT, group, 0).0, EBUSY, "{what}");
        assert_eq!(tree(fs), now, "{what}");
        volume.commit(group);
        assert_eq!(tree(fs), now, "{what}");
        volume.check();
    }
}

/// The number of announcements, and whether all of them have been waited for.
#[derive(Default)]
struct Caches(Mutex<(usize, bool)>);

impl Invalidate for Caches {
    fn inode(&self, _: Ino, _: bool) {
        let mut told = self.0.lock().unwrap();
        *told = (told.0 + 1, false);
    }

    fn entry(&self, parent: Ino, _: &[u8]) {
        self.inode(parent, true);
    }

    fn settle(&self) {
        self.0.lock().unwrap().1 = true;
    }
}

#[test]
fn caches_know_of_it_when_an_abort_returns() {
    let volume = Volume::ordered();
    let caches = Arc::new(Caches::default());
    volume.fs().set_invalidate(caches.clone());
    let group = volume.begin();
    volume.file(&own(), volume.fs().root(), "made", b"content");
    volume.abort(group);
    let (told, settled) = *caches.0.lock().unwrap();
    assert!(told > 0 && settled, "{told} announcements, settled: {settled}");
}

#[test]
fn an_aborted_group_takes_no_more_and_others_go_on() {
    let volume = Volume::ordered();
    let (fs, root, own) = (volume.fs(), volume.fs().root(), own());
    let group = volume.begin();
    volume.file(&own, root, "made", b"content");
    volume.file(&OTHER, root, "of another", b"content");
    volume.abort(group);
    assert!(matches!(fs.lookup(root, b"made"), Err(Error::NotFound)));
    fs.lookup(root, b"of another").unwrap();
    // No longer engaged.
    volume.file(&own, root, "made later", b"content");
    fs.sync().unwrap();
    assert!(volume.after_power_cut().contains_key(&b"/made later"[..]));
    assert_eq!(volume.command(&own, commands::ENGAGE, group, PROCESS).0, EBUSY);
    volume.check();
}

#[test]
fn more_than_can_be_undone_is_refused() {
    let volume = Volume::ordered();
    let (fs, root, own) = (volume.fs(), volume.fs().root(), own());
    let file = volume.file(&own, root, "file", &[]);
    fs.write(&own, file, Handle::NONE, 70 << 20, b"behind a hole").unwrap();
    let group = volume.begin();
    let now = tree(fs);
    let refused = fs.setattr(&own, file, &resize(0));
    assert_eq!(refused.unwrap_err().errno(), EFBIG);
    let refused = fs.open(&own, file, OpenFlags::WRITE | OpenFlags::TRUNCATE);
    assert_eq!(refused.unwrap_err().errno(), EFBIG);
    assert_eq!(tree(fs), now);
    // As many as the group may change can be undone.
    let made = |number: u32| {
        let name = format!("dir {number}");
        fs.mkdir(&own, root, name.as_bytes(), 0o755).map(drop)
    };
    let refused = (0..100_000).find_map(|number| made(number).err()).expect("a limit");
    assert_eq!(refused.errno(), EFBIG);
    volume.abort(group);
    assert_eq!(tree(fs), now);
    volume.check();
}

#[test]
fn without_a_journal_there_are_none() {
    let volume = Volume::new(Policy::Soft);
    assert_eq!(volume.command(&own(), commands::CREATE, 0, ABORTABLE).0, EOPNOTSUPP);
    let stranger = Caller { uid: 1234, ..own() };
    let volume = Volume::ordered();
    assert_eq!(volume.command(&stranger, commands::CREATE, 0, ABORTABLE).0, EPERM);
}

/// A change of a small tree: of one of a few names in one of a few directories.
#[derive(Debug, Clone, Copy)]
enum Change {
    Make { at: u8 },
    MakeDir { at: u8 },
    MakeLink { at: u8, of: u8 },
    Remove { at: u8 },
    Rename { from: u8, to: u8, exchange: bool },
    Write { at: u8, offset: u16, value: u8 },
    Cut { at: u8, len_bytes: u16 },
    Punch { at: u8, offset: u16 },
    Perm { at: u8, perm: u16 },
    Attribute { at: u8, value: Option<u8> },
    Protect { at: u8, protect: bool },
    Open { at: u8 },
}

fn change() -> impl Strategy<Value = Change> {
    let at = || 0_u8..12;
    let names = prop_oneof![
        at().prop_map(|at| Change::Make { at }),
        at().prop_map(|at| Change::MakeDir { at }),
        (at(), at()).prop_map(|(at, of)| Change::MakeLink { at, of }),
        at().prop_map(|at| Change::Remove { at }),
        (at(), at(), any::<bool>()).prop_map(|(from, to, exchange)| Change::Rename {
            from,
            to,
            exchange
        }),
        at().prop_map(|at| Change::Open { at }),
    ];
    let inodes = prop_oneof![
        (at(), any::<u16>(), any::<u8>()).prop_map(|(at, offset, value)| Change::Write {
            at,
            offset,
            value
        }),
        (at(), any::<u16>()).prop_map(|(at, len_bytes)| Change::Cut { at, len_bytes }),
        (at(), any::<u16>()).prop_map(|(at, offset)| Change::Punch { at, offset }),
        (at(), 0_u16..0o1000).prop_map(|(at, perm)| Change::Perm { at, perm }),
        (at(), any::<Option<u8>>()).prop_map(|(at, value)| Change::Attribute { at, value }),
        (at(), any::<bool>()).prop_map(|(at, protect)| Change::Protect { at, protect }),
    ];
    prop_oneof![names, inodes]
}

/// Returns the directory and name of a place: in the root, or in one of its directories, if it is one.
fn place(fs: &dyn FileSystem, at: u8) -> Option<(Ino, [u8; 1])> {
    let name = [b'a' + at % 4];
    match at / 4 {
        0 => Some((fs.root(), name)),
        dir => {
            let found = fs.lookup(fs.root(), &[b'a' + dir]).ok()?.attr;
            fs.forget(found.ino, 1);
            (found.kind == FileKind::Directory).then_some((found.ino, name))
        }
    }
}

impl Change {
    /// Makes it, as far as it can be made.
    fn make(self, fs: &dyn FileSystem) -> Option<()> {
        let own = &own();
        let inode = |at| {
            let (dir, name) = place(fs, at)?;
            let found = fs.lookup(dir, &name).ok()?.attr;
            fs.forget(found.ino, 1);
            Some(found.ino)
        };
        let made =
            |entry: Result<weft_vfs::Entry>| entry.ok().map(|entry| fs.forget(entry.attr.ino, 1));
        match self {
            Self::Make { at } => {
                let (dir, name) = place(fs, at)?;
                made(fs.mknod(own, dir, &name, FileKind::Regular, 0o644, 0))
            }
            Self::MakeDir { at } => {
                let (dir, name) = place(fs, at)?;
                made(fs.mkdir(own, dir, &name, 0o755))
            }
            Self::MakeLink { at, of } => {
                let (dir, name) = place(fs, at)?;
                made(fs.link(own, inode(of)?, dir, &name))
            }
            Self::Remove { at } => {
                let (dir, name) = place(fs, at)?;
                fs.unlink(own, dir, &name).or_else(|_| fs.rmdir(own, dir, &name)).ok()
            }
            Self::Rename { from, to, exchange } => {
                let ((dir, name), (to_dir, to_name)) = (place(fs, from)?, place(fs, to)?);
                let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                fs.rename(own, dir, &name, to_dir, &to_name, flags).ok()
            }
            Self::Write { at, offset, value } => {
                let data = [value; 5000];
                fs.write(own, inode(at)?, Handle::NONE, offset.into(), &data).ok().map(drop)
            }
            Self::Cut { at, len_bytes } => {
                fs.setattr(own, inode(at)?, &resize(len_bytes.into())).ok().map(drop)
            }
            Self::Punch { at, offset } => {
                fs.fallocate(own, inode(at)?, FallocateMode::PunchHole, offset.into(), 9000).ok()
            }
            Self::Perm { at, perm } => {
                let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                fs.setattr(own, inode(at)?, &set).ok().map(drop)
            }
            Self::Attribute { at, value } => match value {
                Some(value) => {
                    fs.setxattr(own, inode(at)?, b"user.a", &[value; 9], XattrSet::Any).ok()
                }
                None => fs.removexattr(own, inode(at)?, b"user.a").ok(),
            },
            Self::Protect { at, protect } => {
                let flags = if protect { FileFlags::IMMUTABLE } else { FileFlags::empty() };
                fs.set_file_flags(own, inode(at)?, flags).ok()
            }
            Self::Open { at } => {
                let (dir, name) = place(fs, at)?;
                let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
                let (entry, opened) = fs.create(own, dir, &name, 0o644, flags).ok()?;
                fs.release(entry.attr.ino, opened.handle).ok()?;
                fs.forget(entry.attr.ino, 1);
                Some(())
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever was changed comes back, and a power cut at any time leaves the state before the group, or
    /// the one after its commit.
    #[test]
    fn what_is_aborted_never_was(
        before in proptest::collection::vec(change(), 0..40),
        aborted in proptest::collection::vec(change(), 1..40),
        committed in proptest::collection::vec(change(), 0..10),
    ) {
        let volume = Volume::ordered();
        let fs = volume.fs();
        for change in before {
            change.make(fs);
        }
        fs.sync().unwrap();
        let old = tree(fs);
        let group = volume.begin();
        for (number, change) in aborted.into_iter().enumerate() {
            change.make(fs);
            if number % 16 == 7 {
                volume.ext2.engine().write_back().unwrap();
                prop_assert_eq!(&volume.after_power_cut(), &old);
            }
        }
        volume.abort(group);
        prop_assert_eq!(&tree(fs), &old);
        fs.sync().unwrap();
        prop_assert_eq!(&volume.after_power_cut(), &old);
        let group = volume.begin();
        for change in committed {
            change.make(fs);
        }
        volume.commit(group);
        let new = tree(fs);
        fs.sync().unwrap();
        prop_assert_eq!(&volume.after_power_cut(), &new);
        volume.check();
    }
}
