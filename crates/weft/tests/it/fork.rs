//! Handles in a child of `fork`: they belong to the parent, and the child changes nothing.
//!
//! `unsafe` for `fork` itself, which is for programs without threads only: the child calls nothing but weft, and
//! ends without going on with the test.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use weft::vfs::OpenFlags;
use weft::{Error, Options, Stack, Volume};

/// Runs `work` in a child of this process; returns whether it returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child ends by `_exit`, and takes no lock but those that `work` takes.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: it ends.
            unsafe { libc::_exit(i32::from(!matches!(done, Ok(true)))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is a number of this frame.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            status == 0
        }
    }
}

fn image(directory: &tempfile::TempDir, format: &str) -> String {
    let image = directory.path().join("v.img").to_str().expect("UTF-8").to_owned();
    weft::mkfs::make_named(&image, format, Some(64 << 20), "", false).expect("a volume");
    image
}

#[test]
fn a_child_is_refused_at_every_handle() {
    for format in ["ext2", "ext3", "hfs"] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = image(&directory, format);
        let volume = Volume::open(&image, &Options::default()).expect("it opens");
        volume.write_file(b"/before", b"content", 0o644).expect("written");
        let file = volume.open_file(b"/before", OpenFlags::WRITE, None).expect("a file");
        let group = volume.group().expect("a group");
        group.engage().expect("engaged");
        // A thread that holds locks when the process forks.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    volume.write_file(b"/busy", &[7; 20_000], 0o644).expect("written");
                    volume.sync().expect("durable");
                }
            });
            for _ in 0..20 {
                let refused = |result: weft::Result<()>| {
                    matches!(&result, Err(Error::OtherProcess(_)))
                        && result
                            .is_err_and(|e| e.errno() == rustix::io::Errno::BADF.raw_os_error())
                };
                let refuses_all = in_child(|| {
                    refused(volume.write_file(b"/child", b"x", 0o644))
                        && refused(volume.stat(b"/").map(drop))
                        && refused(volume.sync())
                        && refused(file.write_at(0, b"y"))
                        && refused(file.sync())
                        && refused(group.sync())
                        && refused(group.engage())
                        && refused(volume.group().map(drop))
                        && refused(volume.close())
                });
                assert!(refuses_all, "{format}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        group.disengage().expect("left");
        drop((file, group));
        volume.close().expect("closed");
        let found = weft::check::check(&image, &weft::check::Options::default()).expect("it reads");
        assert_eq!(found.problems(), [""; 0], "{format}");
        let volume = Volume::open(&image, &Options::read_only()).expect("it opens");
        assert_eq!(volume.read_file(b"/before").expect("it is there"), b"content");
        assert!(volume.stat(b"/child").is_err());
    }
}

#[test]
fn what_a_child_drops_stays_with_its_parent() {
    for format in ["ext2", "ext3", "hfs"] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = image(&directory, format);
        let volume = Volume::open(&image, &Options::default()).expect("it opens");
        volume.write_file(b"/before", b"content", 0o644).expect("written");
        let file = volume.open_file(b"/before", OpenFlags::WRITE, None).expect("a file");
        let group = volume.group().expect("a group");
        group.engage().expect("engaged");
        let mut held = Some((file, group, volume));
        let before = std::fs::read(&image).expect("the image");
        let quiet = in_child(|| {
            drop(held.take());
            true
        });
        assert!(quiet, "{format}");
        let (file, group, volume) = held.expect("the parent has all of it");
        file.write_at(0, b"CONTENT").expect("written");
        file.sync().expect("durable");
        group.disengage().expect("left");
        drop((file, group));
        volume.close().expect("closed");
        assert!(before.len() <= std::fs::read(&image).expect("the image").len());
        let volume = Volume::open(&image, &Options::read_only()).expect("it opens");
        assert_eq!(volume.read_file(b"/before").expect("it is there"), b"CONTENT");
    }
}

/// Those who use the parts below the handles are refused by the engine.
#[test]
fn a_stack_and_its_engine_belong_to_the_process_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(&directory, "ext3");
    let stack = Stack::open(&image, &Options::default()).expect("it opens");
    let walker = weft::vfs::Walker::new(stack.fs());
    walker.write_file(b"/before", b"content", 0o644).expect("written");
    stack.fs().sync().expect("durable");
    let mut held = Some(stack);
    let written = |path: &std::path::Path| std::fs::read(path).expect("the image");
    let before = written(image.as_ref());
    let refuses = in_child(|| {
        let Some(stack) = held.take() else { return false };
        let walker = weft::vfs::Walker::new(stack.fs());
        let errno = rustix::io::Errno::BADF.raw_os_error();
        let made = walker.write_file(b"/child", b"x", 0o644);
        let synced = stack.fs().sync();
        let engine = stack.engine().expect("an engine").sync();
        made.is_err_and(|e| e.errno() == errno)
            && synced.is_err_and(|e| e.errno() == errno)
            && engine.is_err_and(|e| e.errno() == errno)
            && matches!(stack.close(), Err(Error::OtherProcess(_)))
    });
    assert!(refuses);
    assert!(before == written(image.as_ref()), "the child has written");
    let stack = held.expect("the parent has it");
    stack.close().expect("closed");
}

/// A handle of the child's own is as good as any.
#[test]
fn a_child_opens_the_volume_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(&directory, "ext2");
    let volume = Volume::open(&image, &Options::default()).expect("it opens");
    volume.close().expect("closed");
    assert!(in_child(|| {
        let Ok(volume) = Volume::open(&image, &Options::default()) else { return false };
        volume.write_file(b"/child", b"x", 0o644).is_ok() && volume.close().is_ok()
    }));
    let volume = Volume::open(&image, &Options::read_only()).expect("it opens");
    assert_eq!(volume.read_file(b"/child").expect("it is there"), b"x");
}

/// The pages of a process of its own are cleared by the kernel, not by anything that this process calls.
#[test]
fn a_child_made_without_the_library_of_c_is_known_too() {
    let owner = weft::block::OwnerProcess::this();
    // SAFETY: as `fork`; both ends of the pipe are closed by their owners.
    let (read, write) = unsafe {
        let mut ends = [0; 2];
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: the child writes a byte and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        let said = [u8::from(owner.is_this())];
        let _ = rustix::io::write(write.as_fd(), &said);
        // SAFETY: it ends.
        unsafe { libc::_exit(0) }
    }
    assert!(child > 0);
    let mut said = [9];
    assert_eq!(rustix::io::read(&read, &mut said).expect("a byte"), 1);
    assert_eq!(said, [0], "the child took itself for its parent");
    // SAFETY: it is a child of this process.
    unsafe { libc::waitpid(i32::try_from(child).expect("a pid"), std::ptr::null_mut(), 0) };
    assert!(owner.is_this());
}
