//! Requests over io_uring. Where the kernel's switch is off each test says so and passes; `make test`
//! runs all tests of this crate once more with the switch on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{CpuSet, sched_setaffinity};
use weft_fuse::{Error, IoUring, Mount, MountOptions};
use weft_vfs::{FileSystem, Layer, MemFs, MemLimits};

use super::slow::{Slow, use_quick_files, while_held};
use super::waits::check_data_of_every_length;
use super::{options, unmount};

/// Mounts over io_uring, or says why not.
fn mounted(fs: Arc<dyn FileSystem>, dir: &Path) -> Option<Mount> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return None;
    }
    crate::give_root_away(&*fs);
    let options = MountOptions { io_uring: IoUring::On, ..options() };
    match weft_fuse::mount(fs, dir, &options) {
        Ok(mount) => Some(mount),
        Err(Error::IoUring(why)) => {
            eprintln!("not here: {why}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Makes this thread run on the first CPU only, so that its requests are in one queue.
fn on_one_cpu() {
    let mut first = CpuSet::new();
    first.set(0);
    let _ = sched_setaffinity(None, &first);
}

#[test]
fn requests_that_wait_hold_up_no_others_of_their_cpu() {
    const READERS: usize = 20;
    let dir = tempfile::tempdir().expect("directory");
    let slow = Arc::new(Slow::default());
    let Some(mut mount) = mounted(slow.clone(), dir.path()) else { return };
    while_held(&slow, dir.path(), READERS, on_one_cpu, || {
        let others = || {
            on_one_cpu();
            use_quick_files(dir.path());
        };
        std::thread::scope(|scope| scope.spawn(others).join().expect("the others"));
    });
    unmount(&mut mount);
}

#[test]
fn data_of_every_length_goes_through() {
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut mount) = mounted(Arc::new(crate::memory()), dir.path()) else { return };
    check_data_of_every_length(dir.path());
    unmount(&mut mount);
}

#[test]
fn a_volume_is_not_full_when_a_file_was_removed_before() {
    let dir = tempfile::tempdir().expect("directory");
    let limits = MemLimits { capacity_bytes: 1 << 20, ..MemLimits::default() };
    let fs = Arc::new(MemFs::with_limits(limits));
    let Some(mut mount) = mounted(fs, dir.path()) else { return };
    // By a program of its own: what another test starts has the files of this process until its
    // exec, and keeps removed ones in use.
    let script = "for i in $(seq 100); do
        head -c 900K /dev/zero >file$i || exit 1
        rm file$i
    done
    head -c 900K /dev/zero >last || exit 2
    ! head -c 900K /dev/zero >'too much' || exit 3";
    let ran = Command::new("sh").args(["-c", script]).current_dir(dir.path()).output();
    let ran = ran.expect("sh");
    assert!(ran.status.success(), "{ran:?}");
    unmount(&mut mount);
}

#[test]
fn many_threads_on_all_cpus() {
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut mount) = mounted(Arc::new(crate::memory()), dir.path()) else { return };
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let mine = dir.path().join(format!("dir{thread}"));
            scope.spawn(move || {
                fs::create_dir(&mine).expect("mkdir");
                for nr in 0..200 {
                    let (path, renamed) =
                        (mine.join(format!("a{nr}")), mine.join(format!("b{nr}")));
                    fs::write(&path, format!("{thread} {nr}")).expect("write");
                    fs::rename(&path, &renamed).expect("rename");
                    let text = fs::read_to_string(&renamed).expect("read");
                    assert_eq!(text, format!("{thread} {nr}"));
                }
                assert_eq!(fs::read_dir(&mine).expect("list").count(), 200);
            });
        }
    });
    assert_eq!(fs::metadata(dir.path()).expect("root").nlink(), 18);
    unmount(&mut mount);
}

#[test]
fn a_file_system_that_may_wait_anywhere_is_refused() {
    /// As a file system that has no way to say that it would wait.
    struct Anywhere(MemFs);

    impl Layer for Anywhere {
        fn below(&self) -> &dyn FileSystem {
            &self.0
        }
    }

    let dir = tempfile::tempdir().expect("directory");
    let options = MountOptions { io_uring: IoUring::On, ..options() };
    let refused = weft_fuse::mount(Arc::new(Anywhere(crate::memory())), dir.path(), &options);
    assert!(matches!(refused, Err(Error::IoUring(_))), "{refused:?}");
}
