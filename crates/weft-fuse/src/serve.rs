//! The threads that read requests and write answers.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;

use crate::crew::Crew;
use crate::front::{Front, Outcome};
use crate::wire::{Header, Opcode, Reply, WRITE_OVERHEAD_BYTES, errno};

/// The kernel demands room for at least this much.
const MIN_BUFFER_BYTES: usize = 8192;

/// A request that brings or asks for this much is handed to a worker of its own.
const LONG_BYTES: u32 = 64 << 10;

/// What the workers of one mount share.
pub(crate) struct Service {
    front: Arc<Front>,
    fd: OwnedFd,
    crew: Crew,
    polling: bool,
    buffer_bytes: usize,
}

impl Service {
    pub(crate) fn new(front: Arc<Front>, fd: OwnedFd, max_write_bytes: u32, polling: bool) -> Self {
        let room = (max_write_bytes as usize + WRITE_OVERHEAD_BYTES).next_multiple_of(4096);
        Self { front, fd, crew: Crew::new(), polling, buffer_bytes: room.max(MIN_BUFFER_BYTES) }
    }

    /// Watches over the workers until the mount ends.
    pub(crate) fn stand_by(&self) {
        self.crew.stand_by(self.polling);
    }

    /// Answers requests until the mount ends.
    pub(crate) fn work(&self) -> io::Result<()> {
        let mut worker =
            Worker { service: self, request: vec![0; self.buffer_bytes], reply: Reply::default() };
        let result = worker.run();
        self.crew.end();
        result
    }

    /// Reads the next request as the leader; 0 when the mount has ended.
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.fd, &mut *buf) {
                Ok(len) => return Ok(len),
                // NOENT: the request was interrupted before it was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(0),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// One thread: a buffer for requests and one for answers.
struct Worker<'a> {
    service: &'a Service,
    request: Vec<u8>,
    reply: Reply,
}

impl Worker<'_> {
    fn run(&mut self) -> io::Result<()> {
        let crew = &self.service.crew;
        while let Some(mut turn) = crew.lead() {
            loop {
                let len = self.service.receive(&mut self.request)?;
                if len == 0 {
                    return Ok(());
                }
                if takes_long(&self.request[..len]) {
                    crew.hand_over(turn);
                    self.answer(len);
                    break;
                }
                crew.begin();
                if !self.answer(len) {
                    return Ok(());
                }
                match crew.done(turn) {
                    Some(still) => turn = still,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// `false` when the kernel said goodbye.
    fn answer(&mut self, len: usize) -> bool {
        let outcome = self.outcome(len);
        if outcome != Outcome::Silent {
            match rustix::io::write(&self.service.fd, self.reply.finish()) {
                Ok(_) => {}
                // The caller was killed meanwhile.
                Err(Errno::NOENT) => {
                    self.service.front.take_back(&self.request[..len], &self.reply);
                }
                Err(Errno::NODEV | Errno::CONNABORTED) => return false,
                Err(e) => tracing::error!("the kernel did not take an answer: {e}"),
            }
        }
        outcome != Outcome::Goodbye
    }

    /// A panic in the file system costs that one request, not the mount.
    fn outcome(&mut self, len: usize) -> Outcome {
        let Self { service, request, reply } = self;
        let answer = AssertUnwindSafe(|| service.front.answer(&request[..len], reply));
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

/// Whether the request is likely to wait for the disk or to move many bytes.
fn takes_long(request: &[u8]) -> bool {
    let Some((header, mut body)) = Header::split(request) else { return false };
    match Opcode::from_number(header.opcode) {
        Some(
            Opcode::FSync
            | Opcode::FSyncDir
            | Opcode::Flush
            | Opcode::SyncFs
            | Opcode::FAllocate
            | Opcode::Ioctl
            | Opcode::CopyFileRange,
        ) => true,
        // Handle, offset, size: the same in both.
        Some(Opcode::Read | Opcode::Write) => {
            body.skip(16).and_then(|()| body.u32()).is_ok_and(|size| size >= LONG_BYTES)
        }
        _ => false,
    }
}
