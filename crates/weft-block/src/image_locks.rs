//! The locks by which QEMU and its tools share disk images.
//!
//! A virtual machine would overwrite what weft writes to its disk, and the other way round. QEMU takes no
//! `flock(2)`: it locks bytes of the image, each of which stands for a permission, and a program that locks
//! them too is refused before it opens the image. So weft does the same, for images and block special files.
//!
//! | bytes | locked by those who |
//! |---|---|
//! | 100 + n | use the permission n |
//! | 200 + n | do not share the permission n with others |
//!
//! Each takes shared locks of its open file, and then looks whether another has one that excludes it. The
//! permissions are: 0, consistent reading; 1, writing; 2, writing what is there already; 3, resizing.
//!
//! Source: QEMU manual, "Disk image file locking"; the numbers are those of its `block/file-posix.c`.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK};

use crate::range_lock::lock_of;
use crate::{Error, Result};

const USED: i64 = 100;
const UNSHARED: i64 = 200;

const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// The permissions that a user of a whole image denies to all others, as they change its content.
const NOT_SHARED: [i64; 2] = [WRITE, RESIZE];

/// The attempts, and the pause between two: a program that was killed releases its locks in a moment.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// Takes the locks of a user of an image, which `writes` to it or only reads; one who uses only a part
/// `shares` the image with other writers. They end with its open file.
///
/// # Errors
/// [`Error::InUse`] if another user excludes this one. File systems without such locks exclude nobody.
pub(crate) fn take(fd: impl AsFd, path: &Path, writes: bool, shares: bool) -> Result<()> {
    let fd = fd.as_fd();
    let not_shared: &[i64] = if shares { &[] } else { &NOT_SHARED };
    let used: &[i64] = if writes { &[CONSISTENT_READ, WRITE] } else { &[CONSISTENT_READ] };
    for at in used.iter().map(|n| USED + n).chain(not_shared.iter().map(|n| UNSHARED + n)) {
        if let Err(e) = fcntl(fd, FcntlArg::F_OFD_SETLK(&lock_of(F_RDLCK, at, 1))) {
            tracing::debug!("no locks as QEMU's on {}: {e}", path.display());
            return Ok(());
        }
    }
    let mut excluding: Vec<Vec<i64>> = used
        .iter()
        .map(|n| UNSHARED + n)
        .chain(not_shared.iter().map(|n| USED + n))
        .map(|at| vec![at])
        .collect();
    if shares {
        // One who writes to the whole image: to a part alone, they would share it.
        excluding.push(vec![USED + WRITE, UNSHARED + WRITE]);
    }
    for bytes in excluding {
        let mut tries = 0;
        while bytes.iter().all(|&at| is_locked_by_another(fd, at)) {
            if tries == TRIES {
                return Err(Error::InUse {
                    path: path.to_owned(),
                    by: "another program locks it as virtual machines do".into(),
                    remedy: "end that first".into(),
                });
            }
            tries += 1;
            sleep(PAUSE);
        }
    }
    Ok(())
}

/// Returns true if another open file has a lock of the byte.
fn is_locked_by_another(fd: impl AsFd, at: i64) -> bool {
    // A lock that no other one allows: what keeps it from being taken is returned in its place.
    let mut lock = lock_of(F_WRLCK, at, 1);
    fcntl(fd, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok() && i32::from(lock.l_type) != F_UNLCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    fn open(path: &Path) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let (one, two) = (open(&path), open(&path));
        take(&one, &path, false, false).unwrap();
        take(&two, &path, false, false).unwrap();
        let error = take(open(&path), &path, true, false).unwrap_err().to_string();
        assert!(error.contains("image is in use: another program"), "{error}");
        drop(one);
        drop(two);
        let writer = open(&path);
        take(&writer, &path, true, false).unwrap();
        take(&writer, &path, true, false).expect("its own locks do not exclude it");
        take(open(&path), &path, true, false).unwrap_err();
        take(open(&path), &path, false, false).unwrap_err();
    }

    #[test]
    fn writers_of_parts_share_with_each_other_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let (one, two) = (open(&path), open(&path));
        take(&one, &path, true, true).unwrap();
        take(&two, &path, true, true).unwrap();
        take(open(&path), &path, false, true).unwrap();
        take(open(&path), &path, false, false).unwrap_err();
        take(open(&path), &path, true, false).unwrap_err();
        drop((one, two));
        let reader = open(&path);
        take(&reader, &path, false, false).unwrap();
        take(open(&path), &path, false, true).unwrap();
    }

    /// The bytes that a virtual machine with a raw disk locks.
    #[test]
    fn a_virtual_machine_excludes_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let machine = open(&path);
        for at in [100, 101, 201, 203] {
            fcntl(&machine, FcntlArg::F_OFD_SETLK(&lock_of(F_RDLCK, at, 1))).unwrap();
        }
        for writes in [false, true] {
            take(open(&path), &path, writes, false).unwrap_err();
            take(open(&path), &path, writes, true).unwrap_err();
        }
        drop(machine);
        take(open(&path), &path, true, false).unwrap();
    }
}
