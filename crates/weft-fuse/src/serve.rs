//! The threads that read requests and write answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;

use crate::front::{Front, Outcome};
use crate::wire::{Reply, WRITE_OVERHEAD_BYTES, errno};

/// The kernel demands room for at least this much.
const MIN_BUFFER_BYTES: usize = 8192;

/// One thread's way to the kernel: a descriptor, a buffer for requests and one for answers.
pub(crate) struct Worker {
    front: Arc<Front>,
    fd: Arc<OwnedFd>,
    request: Vec<u8>,
    reply: Reply,
}

impl Worker {
    pub(crate) fn new(front: Arc<Front>, fd: Arc<OwnedFd>, max_write_bytes: u32) -> Self {
        let room = (max_write_bytes as usize + WRITE_OVERHEAD_BYTES).next_multiple_of(4096);
        let request = vec![0; room.max(MIN_BUFFER_BYTES)];
        Self { front, fd, request, reply: Reply::default() }
    }

    /// Answers requests until the mount ends.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let fd = Arc::clone(&self.fd);
        while self.one(fd.as_fd())? {}
        Ok(())
    }

    /// Waits for one request and answers it; `false` when the mount has ended.
    fn one(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        let len = match rustix::io::read(fd, &mut self.request[..]) {
            Ok(len) => len,
            // NOENT: the request was interrupted before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => return Ok(true),
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        let outcome = self.answer(len);
        if outcome != Outcome::Silent {
            match rustix::io::write(fd, self.reply.finish()) {
                // NOENT: the caller was killed meanwhile.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(false),
                Err(e) => tracing::error!("the kernel did not take an answer: {e}"),
            }
        }
        Ok(outcome != Outcome::Goodbye)
    }

    /// A panic in the file system costs that one request, not the mount.
    fn answer(&mut self, len: usize) -> Outcome {
        let Self { front, request, reply, .. } = self;
        let answer = AssertUnwindSafe(|| front.answer(&request[..len], reply));
        catch_unwind(answer).unwrap_or_else(|_| {
            tracing::error!("a request made the file system panic");
            // Something may be half put; without a header there is nobody to answer.
            if self.reply.is_begun() {
                self.reply.fail(errno::EIO);
                return Outcome::Answer;
            }
            Outcome::Silent
        })
    }
}
