//! Requests that wait, over `/dev/fuse`, on a file system that can tell that they would.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_fuse::{IoUring, Mount, MountOptions};
use weft_testing::wait_until;
use weft_vfs::{FileFlags, FileSystem, Handle, Ino, Layer, MemFs};

use super::slow::{Slow, use_quick_files, while_held};
use super::{options, unmount};

/// Mounts over `/dev/fuse` with one thread that reads requests, or says why not.
fn mounted(fs: Arc<dyn FileSystem>, dir: &Path) -> Option<Mount> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return None;
    }
    crate::give_root_away(&*fs);
    let options = MountOptions { io_uring: IoUring::Off, threads: 1, ..options() };
    Some(weft_fuse::mount(fs, dir, &options).expect("mount"))
}

/// The thread that reads requests is in none of those that wait.
#[test]
fn each_request_that_waits_has_a_worker() {
    const READERS: usize = 20;
    let dir = tempfile::tempdir().expect("directory");
    let slow = Arc::new(Slow::default());
    let Some(mut mount) = mounted(slow.clone(), dir.path()) else { return };
    while_held(&slow, dir.path(), READERS, || {}, || use_quick_files(dir.path()));
    assert_eq!(slow.held(), ["weft-fuse-worker"; READERS]);
    unmount(&mut mount);
}

/// An inode without a name is deleted with its last reference, which may take a wait; a call that
/// must not wait would leave it.
#[test]
fn inodes_are_forgotten_in_calls_that_may_wait() {
    let dir = tempfile::tempdir().expect("directory");
    let slow = Arc::new(Slow::default());
    let Some(mut mount) = mounted(slow.clone(), dir.path()) else { return };
    let path = dir.path().join("file");
    fs::write(&path, "soon gone").expect("write");
    fs::remove_file(&path).expect("remove");
    wait_until("the inode is forgotten", || slow.forgotten() != (0, 0));
    assert_eq!(slow.forgotten().1, 0);
    unmount(&mut mount);
}

/// Demands that files of all kinds of lengths have what was written.
pub(crate) fn check_data_of_every_length(dir: &Path) {
    for len in [0, 1, 4095, 4096, 4097, 100_000, (1 << 20) - 1, 1 << 20, (3 << 20) + 5] {
        let content: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
        let path = dir.join(format!("file{len}"));
        fs::write(&path, &content).expect("write");
        assert!(fs::read(&path).expect("read") == content, "{len} bytes");
    }
    let long = "n".repeat(255);
    fs::create_dir(dir.join(&long)).expect("the longest name");
    std::os::unix::fs::symlink("t".repeat(4095), dir.join("link")).expect("link");
    let target = fs::read_link(dir.join("link")).expect("the longest target");
    assert_eq!(target.as_os_str().len(), 4095);
    assert_eq!(fs::read_dir(dir).expect("list").count(), 11);
}

#[test]
fn data_of_every_length_goes_through() {
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut mount) = mounted(Arc::new(crate::memory()), dir.path()) else { return };
    check_data_of_every_length(dir.path());
    unmount(&mut mount);
}

/// The buffers of long requests go from one thread to another and back.
#[test]
fn long_writes_at_a_time_do_not_mix() {
    const WRITERS: u8 = 16;
    const LEN: usize = 5 << 20;
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut mount) = mounted(Arc::new(crate::memory()), dir.path()) else { return };
    std::thread::scope(|scope| {
        for nr in 0..WRITERS {
            let path = dir.path().join(format!("file{nr}"));
            scope.spawn(move || fs::write(path, vec![nr; LEN]).expect("write"));
        }
    });
    for nr in 0..WRITERS {
        let content = fs::read(dir.path().join(format!("file{nr}"))).expect("read");
        assert!(content == vec![nr; LEN], "file {nr}");
    }
    unmount(&mut mount);
}

/// A file system that is told of each closing, which takes it a while.
#[derive(Default)]
struct Closing {
    below: MemFs,
    log: Mutex<Vec<&'static str>>,
}

impl Layer for Closing {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn release(&self, ino: Ino, handle: Handle) -> weft_vfs::Result<()> {
        std::thread::sleep(Duration::from_millis(100));
        self.log.lock().expect("lock").push("closed");
        self.below.release(ino, handle)
    }

    fn file_flags(&self, _ino: Ino) -> weft_vfs::Result<FileFlags> {
        self.log.lock().expect("lock").push("command");
        Ok(FileFlags::empty())
    }
}

/// The kernel does not wait for the answer to a closing; what a command finds must be after it.
#[test]
fn a_command_does_not_overtake_a_closing() {
    let dir = tempfile::tempdir().expect("directory");
    let fs = Arc::new(Closing::default());
    let Some(mut mount) = mounted(fs.clone(), dir.path()) else { return };
    let path = dir.path().join("file");
    fs::write(&path, "").expect("write");
    let open = || fs::File::open(&path).expect("open");
    wait_until("the writer is closed", || !fs.log.lock().expect("lock").is_empty());
    fs.log.lock().expect("lock").clear();
    let stays = open();
    for _ in 0..3 {
        drop(open());
        let flags = rustix::fs::ioctl_getflags(&stays).expect("flags");
        assert!(flags.is_empty());
    }
    // The kernel opens a file for each such command, and closes it after that.
    let log = fs.log.lock().expect("lock").clone();
    let expected = "closed command closed closed command closed closed command";
    assert_eq!(log[..8].join(" "), expected);
    drop(stays);
    unmount(&mut mount);
}
