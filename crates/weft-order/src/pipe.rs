//! The end of a pipe of another process, by which it is told that a group is durable.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags, open, readlink};
use rustix::io::{Errno, write};
use weft_patch::PatchGroup;

/// The most pipes of a mount at a time: each takes a descriptor of the mount's process.
const PIPES_MAX: usize = 512;

/// The pipes of a mount.
#[derive(Debug, Default)]
pub(crate) struct Pipes(Arc<AtomicUsize>);

/// A pipe that is open. The other end reads its end when it is dropped.
struct Pipe {
    end: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pipes {
    /// Has the number of a group written to a pipe, of which a thread has the end for writing as this
    /// descriptor, once the group is durable.
    ///
    /// # Errors
    /// `EMFILE` for too many pipes; `EBADF`, `EINVAL` for a descriptor that is none, or not of a pipe;
    /// `EACCES` for a process at whose descriptors the mount's process may not look.
    pub fn tell(
        &self,
        patchgroup: &PatchGroup,
        number: u32,
        (thread, descriptor): (u32, u32),
    ) -> Result<(), Errno> {
        let end = open_end(thread, descriptor)?;
        if self.0.fetch_add(1, Ordering::Relaxed) >= PIPES_MAX {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::MFILE);
        }
        let pipe = Pipe { end, count: Arc::clone(&self.0) };
        patchgroup.when_durable(move || {
            // A pipe that is full, or that nobody reads, is not waited for.
            let _ = write(&pipe.end, &number.to_ne_bytes());
        });
        Ok(())
    }
}

fn open_end(thread: u32, descriptor: u32) -> Result<OwnedFd, Errno> {
    let no_descriptor = |e| if e == Errno::NOENT { Errno::BADF } else { e };
    // Looked at before it is opened: the file could be one of this mount, which would wait for itself.
    let path = format!("/proc/{thread}/fd/{descriptor}");
    let found =
        open(&*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(no_descriptor)?;
    let own = format!("/proc/self/fd/{}", found.as_raw_fd());
    if !readlink(&*own, Vec::new())?.to_bytes().starts_with(b"pipe:[") {
        return Err(Errno::INVAL);
    }
    open(&*own, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}
