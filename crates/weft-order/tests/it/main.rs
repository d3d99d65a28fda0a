//! The layer over an ext2 volume in memory, with this process and its relatives as callers.

mod abort;
mod atomic_file;
mod listing;
mod open_file;

use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::os::unix::process::parent_id;
use std::sync::Arc;

use weft_block::MemoryDevice;
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_order::{Fsync, OrderedFs, commands};
use weft_patch::Options;
use weft_testing::yield_until;
use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, Ino};

struct Volume {
    ext2: Arc<Ext2>,
    fs: OrderedFs,
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EBADF: i32 = 9;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const EDEADLK: i32 = 35;

/// The value of an engagement of a process, and the bit that makes its fsyncs barriers.
const PROCESS: u32 = 1;
const BARRIER: u32 = 1 << 8;

impl Volume {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(96 << 20));
        mkfs(&*device, &MkfsOptions::ext2()).unwrap();
        let engine = Options { background: false, ..Options::default() };
        let ext2 = Ext2::open(device, OpenOptions { engine, ..OpenOptions::default() }).unwrap();
        let fs = OrderedFs::new(ext2.clone(), ext2.engine().patchgroups());
        Self { ext2, fs }
    }

    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    /// Executes a command. Returns the answer's errno, group and value.
    fn command(&self, pid: u32, request: u32, group: u32, value: u32) -> (i32, u32, u32) {
        let caller = Caller { pid, ..Caller::ROOT };
        let data = [group.to_ne_bytes(), value.to_ne_bytes()].concat();
        let root = self.fs().root();
        let answer = self.fs().command(&caller, root, Handle::NONE, request, &data).unwrap();
        let word = |at: usize| u32::from_ne_bytes(answer.data[at..at + 4].try_into().unwrap());
        (answer.errno, word(0), word(4))
    }

    fn create(&self) -> u32 {
        let (errno, group, _) = self.command(own(), commands::CREATE, 0, 0);
        assert_eq!(errno, 0);
        group
    }

    fn done(&self, request: u32, group: u32, value: u32) {
        assert_eq!(self.command(own(), request, group, value).0, 0, "{request:x} {group} {value}");
    }

    fn write(&self, pid: u32, name: &str) -> Ino {
        let caller = Caller { pid, ..Caller::ROOT };
        let (fs, root) = (self.fs(), self.fs().root());
        let entry = fs.mknod(&caller, root, name.as_bytes(), FileKind::Regular, 0o644, 0).unwrap();
        fs.write(&caller, entry.attr.ino, Handle::NONE, 0, b"content").unwrap();
        entry.attr.ino
    }

    fn is_durable(&self, group: u32) -> bool {
        let (errno, _, value) = self.command(own(), commands::IS_DURABLE, group, 0);
        assert_eq!(errno, 0);
        value == 1
    }

    fn flushes(&self) -> u64 {
        self.ext2.engine().counters().flushes
    }
}

fn own() -> u32 {
    std::process::id()
}

#[test]
fn changes_of_the_engaged_belong_to_the_group_and_no_others() {
    let volume = Volume::new();
    let group = volume.create();
    volume.done(commands::ENGAGE, group, PROCESS);
    volume.write(parent_id(), "of the parent");
    assert!(volume.is_durable(group), "the parent does not descend from this process");
    volume.write(0, "of nobody");
    assert!(volume.is_durable(group));
    volume.write(own(), "own");
    assert!(!volume.is_durable(group));
    volume.done(commands::SYNC, group, 0);
    assert!(volume.is_durable(group));
    // A process that this one has started.
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    volume.write(child.id(), "of the child");
    assert!(!volume.is_durable(group));
    child.kill().unwrap();
    child.wait().unwrap();
    volume.done(commands::SYNC, group, 0);
    volume.done(commands::DISENGAGE, group, PROCESS);
    volume.write(own(), "own again");
    assert!(volume.is_durable(group));
    // A thread alone.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            assert_eq!(volume.command(thread, commands::ENGAGE, group, 0).0, 0);
            volume.write(own(), "of another thread");
            assert!(volume.is_durable(group));
            volume.write(thread, "of the thread");
            assert!(!volume.is_durable(group));
        });
        thread.join().unwrap();
    });
    volume.done(commands::CLOSE, group, 0);
    assert_eq!(volume.command(own(), commands::SYNC, group, 0).0, ENOENT);
}

#[test]
fn an_fsync_that_is_a_barrier_does_not_wait() {
    let volume = Volume::new();
    let caller = Caller { pid: own(), ..Caller::ROOT };
    let group = volume.create();
    volume.done(commands::ENGAGE, group, PROCESS | BARRIER);
    let before = volume.flushes();
    let mut last = Ino(0);
    for number in 0..100 {
        last = volume.write(own(), &format!("file {number}"));
        volume.fs().fsync(&caller, last, false).unwrap();
        volume.fs().fsync_dir(&caller, volume.fs().root()).unwrap();
    }
    assert_eq!(volume.flushes(), before);
    // Of another process it waits, and of a file with pages that were written through a mapping.
    volume.fs().fsync(&Caller::ROOT, last, false).unwrap();
    assert!(volume.flushes() > before);
    let before = volume.flushes();
    volume.fs().write_cached(&Caller::ROOT, last, Handle::NONE, 0, b"mapped").unwrap();
    volume.fs().fsync(&caller, last, false).unwrap();
    let after = volume.flushes();
    assert!(after > before);
    // Once.
    volume.write(own(), "one more");
    volume.fs().fsync(&caller, last, false).unwrap();
    assert_eq!(volume.flushes(), after);
}

#[test]
fn an_fsync_that_is_promised_is_durable_in_time() {
    const WITHIN_20_MS: u32 = 20 << 16;
    let volume = Volume::new();
    let caller = Caller { pid: own(), ..Caller::ROOT };
    let group = volume.create();
    volume.done(commands::ENGAGE, group, PROCESS | BARRIER | WITHIN_20_MS);
    for number in 0..3 {
        let file = volume.write(own(), &format!("file {number}"));
        let before = volume.flushes();
        volume.fs().fsync(&caller, file, false).unwrap();
        assert_eq!(volume.flushes(), before, "it does not wait");
        yield_until("it is durable", || volume.is_durable(group));
        assert!(volume.flushes() > before);
    }
}

#[test]
fn a_mount_may_order_the_fsyncs_of_all() {
    let volume = Volume::new();
    let below: Arc<dyn FileSystem> = volume.ext2.clone();
    let groups = volume.ext2.engine().patchgroups();
    let volume = Volume { fs: OrderedFs::with_fsync(below, groups, Fsync::Barrier), ..volume };
    let before = volume.flushes();
    for pid in [0, own(), parent_id()] {
        let file = volume.write(pid, &format!("of {pid}"));
        volume.fs().fsync(&Caller { pid, ..Caller::ROOT }, file, false).unwrap();
    }
    assert_eq!(volume.flushes(), before);
    // One that wants to wait does.
    let group = volume.create();
    volume.done(commands::ENGAGE, group, PROCESS);
    let file = volume.write(own(), "waits");
    volume.fs().fsync(&Caller { pid: own(), ..Caller::ROOT }, file, false).unwrap();
    assert!(volume.flushes() > before);
}

#[test]
fn a_sync_of_a_group_among_many_dirty_files_writes_its_own() {
    let volume = Volume::new();
    let (fs, root) = (volume.fs(), volume.fs().root());
    let directory = fs.mkdir(&Caller::ROOT, root, b"own", 0o755).unwrap().attr.ino;
    fs.sync().unwrap();
    for number in 0..10_000 {
        volume.write(0, &format!("of nobody {number}"));
    }
    let group = volume.create();
    volume.done(commands::ENGAGE, group, PROCESS);
    let caller = Caller { pid: own(), ..Caller::ROOT };
    let file = fs.mknod(&caller, directory, b"file", FileKind::Regular, 0o644, 0).unwrap();
    fs.write(&caller, file.attr.ino, Handle::NONE, 0, b"content").unwrap();
    let before = volume.ext2.engine().counters();
    volume.done(commands::SYNC, group, 0);
    let after = volume.ext2.engine().counters();
    let written = after.blocks_written - before.blocks_written;
    // The data, the inode, its bitmaps, the name, and what others have changed in these blocks and depends
    // on blocks of theirs: 36 of more than 1000.
    assert!(written <= 40, "{written} blocks");
    assert!(after.dirty_blocks_now > 1000, "{after:?}");
}

#[test]
fn what_the_life_of_a_group_forbids_is_refused_and_changes_nothing() {
    let volume = Volume::new();
    let (a, b, c) = (volume.create(), volume.create(), volume.create());
    let errno = |request, group, value| volume.command(own(), request, group, value).0;
    assert_eq!(errno(commands::DEPEND, a, a), EDEADLK);
    assert_eq!(errno(commands::DEPEND, a, 99), ENOENT);
    volume.done(commands::DEPEND, b, a);
    assert_eq!(errno(commands::ENGAGE, a, PROCESS), EBUSY, "b depends on it");
    assert_eq!(errno(commands::DEPEND, a, b), EBUSY, "a cycle");
    volume.done(commands::RELEASE, b, 0);
    assert_eq!(errno(commands::DEPEND, b, c), EBUSY, "released");
    volume.done(commands::ENGAGE, b, PROCESS);
    assert_eq!(errno(commands::DEPEND, c, b), EBUSY, "engaged");
    assert_eq!(errno(commands::ENGAGE, b, 77), EINVAL);
    assert_eq!(errno(commands::DISENGAGE, b, 77), EINVAL);
    volume.done(commands::DISENGAGE, b, PROCESS);
    volume.done(commands::DISENGAGE, b, PROCESS);
    volume.done(commands::DEPEND, c, b);
    volume.done(commands::BARRIER, c, 0);
    // Of this process' parent, which does not descend from it; and of a process that does not exist.
    assert_eq!(volume.command(parent_id(), commands::SYNC, c, 0).0, EPERM);
    assert_eq!(volume.command(0, commands::CREATE, 0, 0).0, ESRCH);
    assert_eq!(volume.command(0, commands::SYNC, c, 0).0, EPERM);
    let root = volume.fs().root();
    for data in [&[][..], &[1; 4], &[1; 12]] {
        let wrong = volume.fs().command(&Caller::ROOT, root, Handle::NONE, commands::SYNC, data);
        assert!(matches!(wrong, Err(Error::Invalid(_))), "{wrong:?}");
    }
    let unknown =
        volume.fs().command(&Caller::ROOT, root, Handle::NONE, commands::CREATE + 0x20, &[]);
    assert!(matches!(unknown, Err(Error::UnknownCommand)), "{unknown:?}");
}

#[test]
fn groups_are_bounded_and_those_of_dead_processes_are_dropped() {
    let volume = Volume::new();
    let mut made = 0;
    let refused = loop {
        match volume.command(own(), commands::CREATE, 0, 0) {
            (0, ..) => made += 1,
            (errno, ..) => break errno,
        }
        assert!(made < 100_000);
    };
    assert_eq!((made, refused), (16_384, EMFILE));
    // One that ends leaves nothing.
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let (errno, group, _) = volume.command(child.id(), commands::CREATE, 0, 0);
    assert_eq!(errno, 0);
    assert_eq!(volume.command(child.id(), commands::ENGAGE, group, PROCESS).0, 0);
    child.kill().unwrap();
    child.wait().unwrap();
    yield_until("the groups of the dead are dropped", || {
        volume.command(own(), commands::CREATE, 0, 0);
        volume.command(own(), commands::SYNC, group, 0).0 == ENOENT
    });
}

/// Makes a pipe. Returns its ends: for reading, and for writing.
fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

#[test]
fn a_pipe_tells_that_a_group_is_durable() {
    let volume = Volume::new();
    let group = volume.create();
    let tell = |descriptor: &dyn AsRawFd| {
        let value = u32::try_from(descriptor.as_raw_fd()).unwrap();
        volume.command(own(), commands::TELL, group, value).0
    };
    let said = |mut reader: std::io::PipeReader| {
        let mut said = Vec::new();
        reader.read_to_end(&mut said).unwrap();
        said
    };
    // One without changes is durable.
    let (reader, writer) = pipe();
    assert_eq!(tell(&writer), 0);
    drop(writer);
    assert_eq!(said(reader), group.to_ne_bytes());
    // Not before it is durable.
    volume.done(commands::ENGAGE, group, PROCESS);
    volume.write(own(), "file");
    let (reader, writer) = pipe();
    assert_eq!(tell(&writer), 0);
    drop(writer);
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let mut reader = reader;
    assert_eq!(reader.read(&mut [0; 4]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    volume.fs().sync().unwrap();
    assert_eq!(said(reader), group.to_ne_bytes());
    // The volume ends before that.
    volume.write(own(), "another file");
    let (reader, writer) = pipe();
    assert_eq!(tell(&writer), 0);
    // Descriptors that are no pipe.
    let file = std::fs::File::open("/proc/self/status").unwrap();
    assert_eq!(tell(&file), EINVAL);
    assert_eq!(volume.command(own(), commands::TELL, group, 1 << 20).0, EBADF);
    assert_eq!(volume.command(own(), commands::TELL, group + 1, 0).0, ENOENT);
    let mut open = 1;
    let refused = loop {
        match tell(&writer) {
            0 => open += 1,
            errno => break errno,
        }
        assert!(open < 10_000);
    };
    assert_eq!((open, refused), (512, EMFILE));
    drop(writer);
    volume.fs().sync().unwrap();
    assert_eq!(said(reader), group.to_ne_bytes().repeat(512));
    volume.write(own(), "a third file");
    let (reader, writer) = pipe();
    assert_eq!(tell(&writer), 0);
    drop(writer);
    drop(volume);
    assert_eq!(said(reader), []);
}
