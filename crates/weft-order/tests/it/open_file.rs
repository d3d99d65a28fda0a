//! Engagements of single open files.

use super::*;
use weft_patch::PatchGroups;
use weft_vfs::{FallocateMode, FileFlags, OpenFlags, SetAttr};

const EOPNOTSUPP: i32 = 95;

/// The value of an engagement of the open file.
const OPEN_FILE: u32 = 2;

/// A file with two open files, of which each is an argument of commands.
struct Opened {
    volume: Volume,
    ino: Ino,
    first: Handle,
    second: Handle,
}

/// Makes a volume whose layer is told of open files.
fn with_open_files(make: impl FnOnce(Arc<dyn FileSystem>, PatchGroups) -> OrderedFs) -> Opened {
    let volume = Volume::new();
    let fs = make(volume.ext2.clone(), volume.ext2.engine().patchgroups()).with_open_files();
    let volume = Volume { fs, ..volume };
    let ino = volume.write(0, "file");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let open = || volume.fs().open(&Caller::ROOT, ino, flags).unwrap().handle;
    let (first, second) = (open(), open());
    volume.fs().sync().unwrap();
    Opened { ino, first, second, volume }
}

impl Opened {
    fn new() -> Self {
        with_open_files(OrderedFs::new)
    }

    fn fs(&self) -> &dyn FileSystem {
        self.volume.fs()
    }

    /// Executes a command by an open file. Returns the errno.
    fn command(&self, handle: Handle, request: u32, group: u32, value: u32) -> i32 {
        let caller = Caller { pid: own(), ..Caller::ROOT };
        let data = [group.to_ne_bytes(), value.to_ne_bytes()].concat();
        self.fs().command(&caller, self.ino, handle, request, &data).unwrap().errno
    }

    fn engage(&self, handle: Handle, group: u32, fsync: u32) {
        assert_eq!(self.command(handle, commands::ENGAGE, group, OPEN_FILE | fsync), 0);
    }

    fn write_by(&self, handle: Handle) {
        self.fs().write(&Caller::ROOT, self.ino, handle, 0, b"changed").unwrap();
    }

    /// Returns true if the group has changes that are not durable, and makes them so.
    fn took(&self, group: u32) -> bool {
        let took = !self.volume.is_durable(group);
        self.volume.done(commands::SYNC, group, 0);
        took
    }
}

#[test]
fn all_changes_by_the_open_file_belong_to_the_group_and_no_others() {
    let opened = Opened::new();
    let (fs, ino, group) = (opened.fs(), opened.ino, opened.volume.create());
    opened.engage(opened.first, group, 0);
    let by = Caller::ROOT.by(opened.first);
    let size_bytes = Some(3);
    let range = FallocateMode::Allocate { keep_size: false };
    opened.write_by(opened.first);
    assert!(opened.took(group), "whoever makes them");
    fs.setattr(&by, ino, &SetAttr { size_bytes, ..SetAttr::default() }).unwrap();
    assert!(opened.took(group), "ftruncate");
    fs.fallocate(&by, ino, range, 0, 1 << 20).unwrap_or_else(|_| opened.write_by(opened.first));
    assert!(opened.took(group), "fallocate");
    fs.copy_range(&by, ino, 0, ino, 1 << 16, 3).unwrap();
    assert!(opened.took(group), "copy_file_range");
    fs.set_file_flags(&by, ino, FileFlags::NODUMP).unwrap();
    assert!(opened.took(group), "an ioctl");
    // By another open file, by a name, and by the process that engaged it.
    opened.write_by(opened.second);
    opened.volume.write(own(), "other");
    fs.setattr(&Caller::ROOT, ino, &SetAttr { size_bytes, ..SetAttr::default() }).unwrap();
    assert!(!opened.took(group));
    assert_eq!(opened.command(opened.first, commands::DISENGAGE, group, OPEN_FILE), 0);
    opened.write_by(opened.first);
    assert!(!opened.took(group));
}

#[test]
fn the_file_goes_before_its_callers() {
    let opened = Opened::new();
    let (of_file, of_process) = (opened.volume.create(), opened.volume.create());
    opened.volume.done(commands::ENGAGE, of_process, PROCESS);
    opened.engage(opened.first, of_file, 0);
    let caller = Caller { pid: own(), ..Caller::ROOT };
    opened.fs().write(&caller, opened.ino, opened.first, 0, b"changed").unwrap();
    assert!(opened.took(of_file));
    opened.fs().write(&caller, opened.ino, opened.first, 0, b"Changed").unwrap();
    // In its block, the other group's changes come first or later: of this group there is none.
    assert!(!opened.took(of_process));
    opened.fs().write(&caller, opened.ino, opened.second, 0, b"changed").unwrap();
    assert!(opened.took(of_process));
}

#[test]
fn fsync_by_the_open_file_may_be_a_barrier() {
    let opened = Opened::new();
    let (fs, ino, group) = (opened.fs(), opened.ino, opened.volume.create());
    opened.engage(opened.first, group, BARRIER);
    let before = opened.volume.flushes();
    for _ in 0..10 {
        opened.write_by(opened.first);
        fs.fsync(&Caller::ROOT.by(opened.first), ino, false).unwrap();
    }
    assert_eq!(opened.volume.flushes(), before);
    fs.fsync(&Caller::ROOT.by(opened.second), ino, false).unwrap();
    assert!(opened.volume.flushes() > before, "by another open file it waits");
}

#[test]
fn pages_of_mappings_belong_to_the_groups_of_all_engaged_files_of_the_inode() {
    let opened = Opened::new();
    let (fs, ino) = (opened.fs(), opened.ino);
    let (first, second) = (opened.volume.create(), opened.volume.create());
    let mapped = |handle| fs.write_cached(&Caller::ROOT, ino, handle, 0, b"mapped!").unwrap();
    mapped(opened.first);
    opened.engage(opened.first, first, BARRIER);
    mapped(opened.first);
    assert!(opened.took(first));
    // The kernel picks the handle.
    mapped(opened.second);
    assert!(opened.took(first));
    opened.engage(opened.second, second, 0);
    mapped(opened.second);
    assert!(!opened.volume.is_durable(first) && !opened.volume.is_durable(second));
    assert!(opened.took(first) | opened.took(second));
    // So msync need not wait, unless others count on it who are engaged and do not have the page.
    let before = opened.volume.flushes();
    mapped(opened.first);
    fs.fsync(&Caller::ROOT.by(opened.first), ino, false).unwrap();
    assert_eq!(opened.volume.flushes(), before);
    let process = opened.volume.create();
    opened.volume.done(commands::ENGAGE, process, PROCESS | BARRIER);
    mapped(opened.first);
    fs.fsync(&Caller { pid: own(), ..Caller::ROOT }, ino, false).unwrap();
    assert!(opened.volume.flushes() > before);
    // Another inode's pages do not belong to them.
    opened.volume.done(commands::SYNC, first, 0);
    let other = opened.volume.write(0, "other");
    fs.write_cached(&Caller::ROOT, other, Handle::NONE, 0, b"mapped").unwrap();
    assert!(!opened.took(first));
}

#[test]
fn an_engagement_ends_with_the_open_file_and_with_the_group() {
    let opened = Opened::new();
    let (first, second) = (opened.volume.create(), opened.volume.create());
    opened.engage(opened.first, first, 0);
    opened.engage(opened.first, first, 0);
    assert_eq!(opened.volume.command(own(), commands::DEPEND, second, first).0, EBUSY);
    opened.fs().release(opened.ino, opened.first).unwrap();
    opened.volume.done(commands::DEPEND, second, first);
    assert_eq!(opened.command(opened.second, commands::ENGAGE, first, OPEN_FILE), EBUSY);
    opened.engage(opened.second, second, BARRIER);
    opened.volume.done(commands::CLOSE, second, 0);
    let before = opened.volume.flushes();
    opened.fs().fsync(&Caller::ROOT.by(opened.second), opened.ino, false).unwrap();
    opened.write_by(opened.second);
    opened.fs().fsync(&Caller::ROOT.by(opened.second), opened.ino, false).unwrap();
    assert!(opened.volume.flushes() > before, "it waits again");
}

#[test]
fn what_is_no_open_file_is_refused() {
    let opened = Opened::new();
    let group = opened.volume.create();
    let engage = |handle| opened.command(handle, commands::ENGAGE, group, OPEN_FILE);
    let root = opened.volume.command(own(), commands::ENGAGE, group, OPEN_FILE).0;
    assert_eq!(root, EINVAL, "a directory");
    assert_eq!([Handle::NONE, Handle(99)].map(engage), [EINVAL; 2]);
    let other = opened.volume.write(0, "other");
    let of_other = opened.fs().open(&Caller::ROOT, other, OpenFlags::READ).unwrap().handle;
    assert_eq!(engage(of_other), EINVAL, "an open file of another inode");
    opened.fs().release(opened.ino, opened.first).unwrap();
    assert_eq!(engage(opened.first), EINVAL, "closed");
    assert_eq!(opened.command(opened.first, commands::DISENGAGE, group, OPEN_FILE), EINVAL);
    // Of others.
    let data = [group.to_ne_bytes(), OPEN_FILE.to_ne_bytes()].concat();
    let parent = Caller { pid: parent_id(), ..Caller::ROOT };
    let answer =
        opened.fs().command(&parent, opened.ino, opened.second, commands::ENGAGE, &data).unwrap();
    assert_eq!(answer.errno, EPERM);
    // A mount that is not told of open files.
    let volume = Volume::new();
    assert!(!volume.fs().is_stateful() && opened.fs().is_stateful());
    let group = volume.create();
    for request in [commands::ENGAGE, commands::DISENGAGE] {
        assert_eq!(volume.command(own(), request, group, OPEN_FILE).0, EOPNOTSUPP);
    }
}

/// Where all fsyncs of a mount are barriers, pages of mappings are waited for, whoever else is engaged.
#[test]
fn a_mount_whose_fsyncs_are_barriers_waits_for_pages_of_mappings() {
    let barriers = |below, groups| OrderedFs::with_fsync(below, groups, Fsync::Barrier);
    let opened = with_open_files(barriers);
    let (fs, ino) = (opened.fs(), opened.ino);
    let waits = |by: Handle| {
        let before = opened.volume.flushes();
        fs.fsync(&Caller::ROOT.by(by), ino, false).unwrap();
        opened.volume.flushes() > before
    };
    fs.write_cached(&Caller::ROOT, ino, Handle::NONE, 0, b"mapped").unwrap();
    let group = opened.volume.create();
    opened.volume.done(commands::ENGAGE, group, PROCESS);
    opened.volume.done(commands::DISENGAGE, group, PROCESS);
    assert!(waits(Handle::NONE), "after somebody else was engaged");
    assert!(!waits(Handle::NONE));
    opened.engage(opened.first, group, BARRIER);
    fs.write_cached(&Caller::ROOT, ino, Handle::NONE, 0, b"Mapped").unwrap();
    assert!(waits(opened.first), "the page is not in the group of all");
}
