//! The threads that read requests and write answers.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::front::{Front, Outcome};
use crate::thread_pool::{ThreadPool, Turn};
use crate::wire::{Header, O_DSYNC, Opcode, Reply, WRITE_OVERHEAD_BYTES, errno};

/// The least buffer size that the kernel demands.
const MIN_BUFFER_BYTES: usize = 8192;

/// A request that carries or requests this much data is handed to a worker of its own.
const LONG_BYTES: u32 = 64 << 10;

/// The state that the workers of one mount share.
pub(crate) struct Service {
    front: Arc<Front>,
    fd: OwnedFd,
    pool: ThreadPool,
    buffer_bytes: usize,
    /// Workers that were added while the others waited.
    added: Mutex<Vec<JoinHandle<()>>>,
}

impl Service {
    pub(crate) fn new(front: Arc<Front>, fd: OwnedFd, max_write_bytes: u32) -> Self {
        let room = (max_write_bytes as usize + WRITE_OVERHEAD_BYTES).next_multiple_of(4096);
        let buffer_bytes = room.max(MIN_BUFFER_BYTES);
        Self { front, fd, pool: ThreadPool::new(), buffer_bytes, added: Mutex::default() }
    }

    /// Watches the workers until the mount and all added workers have ended.
    pub(crate) fn stand_by(self: &Arc<Self>) {
        self.pool.stand_by(|| self.add_worker());
        self.front.waits.end_all();
        for worker in std::mem::take(&mut *self.added()) {
            let _ = worker.join();
        }
    }

    fn added(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an additional worker.
    fn add_worker(self: &Arc<Self>) -> bool {
        let service = Arc::clone(self);
        let work = move || {
            if let Err(e) = service.work_until(ThreadPool::lead_for_now) {
                tracing::error!("cannot read requests: {e}");
                service.pool.end();
            }
        };
        let mut added = self.added();
        added.retain(|worker| !worker.is_finished());
        match std::thread::Builder::new().name("weft-fuse-more".into()).spawn(work) {
            Ok(worker) => added.push(worker),
            Err(e) => {
                tracing::warn!("cannot start a thread: {e}");
                return false;
            }
        }
        true
    }

    /// Answers requests until the mount ends.
    pub(crate) fn work(&self) -> io::Result<()> {
        let result = self.work_until(ThreadPool::lead);
        self.pool.end();
        result
    }

    /// Answers what comes beside rings, which is nothing that waits, until the mount ends. `busy` is
    /// set before something is taken from the kernel, until it is answered.
    pub(crate) fn work_beside_rings(&self, busy: &AtomicBool) -> io::Result<()> {
        let request = vec![0; self.buffer_bytes];
        let mut worker = Worker { service: self, request, reply: Reply::default() };
        // The kernel may take back what it had announced; this thread must not wait for the next.
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
        loop {
            let mut device = [PollFd::new(&self.fd, PollFlags::IN)];
            match rustix::event::poll(&mut device, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            busy.store(true, Ordering::SeqCst);
            match rustix::io::read(&self.fd, &mut *worker.request) {
                Ok(len) => {
                    if !worker.answer(len) {
                        return Ok(());
                    }
                }
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
            busy.store(false, Ordering::SeqCst);
        }
    }

    fn work_until(&self, lead: fn(&ThreadPool) -> Option<Turn>) -> io::Result<()> {
        let request = vec![0; self.buffer_bytes];
        let mut worker = Worker { service: self, request, reply: Reply::default() };
        worker.run(lead)
    }

    /// Reads the next request as the leader; returns 0 when the mount has ended.
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

/// One worker: a buffer for requests and one for replies.
struct Worker<'a> {
    service: &'a Service,
    request: Vec<u8>,
    reply: Reply<'static>,
}

impl Worker<'_> {
    fn run(&mut self, lead: fn(&ThreadPool) -> Option<Turn>) -> io::Result<()> {
        let pool = &self.service.pool;
        while let Some(mut turn) = lead(pool) {
            loop {
                let len = self.service.receive(&mut self.request)?;
                if len == 0 {
                    pool.end();
                    return Ok(());
                }
                if waits_for_lock(&self.request[..len]) {
                    pool.hand_over(turn);
                    if pool.park() {
                        self.answer(len);
                        pool.unpark();
                    } else {
                        self.refuse(len);
                    }
                    break;
                }
                if takes_long(&self.request[..len], self.service.front.locks) {
                    pool.hand_over(turn);
                    self.answer(len);
                    break;
                }
                pool.begin();
                if !self.answer(len) {
                    pool.end();
                    return Ok(());
                }
                match pool.done(turn) {
                    Some(still) => turn = still,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Answers a request. Returns false after the kernel's last one (`DESTROY`).
    fn answer(&mut self, len: usize) -> bool {
        let service = self.service;
        // Until the reply is written.
        let _counted = service.front.attribute_replies.begin(&self.request[..len]);
        let outcome = outcome(&service.front, &self.request[..len], &mut self.reply);
        // A file system waits here as long as it likes: "would wait" is no outcome.
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

    /// Refuses a lock request, as too many wait already.
    fn refuse(&mut self, len: usize) {
        let Some((header, _)) = Header::split(&self.request[..len]) else { return };
        self.reply.begin(header.unique);
        self.reply.fail(errno::ENOLCK);
        if let Err(e) = rustix::io::write(&self.service.fd, self.reply.finish()) {
            tracing::debug!("the kernel did not take an answer: {e}");
        }
    }
}

/// Answers a request. A panic in the file system fails that one request, not the mount.
pub(crate) fn outcome(front: &Front, request: &[u8], reply: &mut Reply) -> Outcome {
    let answer = AssertUnwindSafe(|| front.answer(request, reply));
    catch_unwind(answer).unwrap_or_else(|_| {
        tracing::error!("a request made the file system panic");
        // The reply may be half-built; without a header there is no request to answer.
        if reply.is_begun() {
            reply.fail(errno::EIO);
            return Outcome::Answer;
        }
        Outcome::Silent
    })
}

/// Returns true if the request may wait for another caller's lock.
fn waits_for_lock(request: &[u8]) -> bool {
    let header = Header::split(request).map(|(header, _)| header);
    header.is_some_and(|h| Opcode::from_number(h.opcode) == Some(Opcode::SetLkW))
}

/// Returns true if the request is likely to wait for the disk or to move many bytes. With `locks`
/// of its own a file system receives a request for every closing, mostly without work.
fn takes_long(request: &[u8], locks: bool) -> bool {
    let Some((header, mut body)) = Header::split(request) else { return false };
    match Opcode::from_number(header.opcode) {
        Some(Opcode::Flush) => !locks,
        // Handle, offset, size: the same in both.
        Some(Opcode::Read | Opcode::Write)
            if body.skip(16).and_then(|()| body.u32()).is_ok_and(|size| size >= LONG_BYTES) =>
        {
            true
        }
        _ => is_for_disk(request),
    }
}

/// Returns true if the request is a command of `ioctl(2)`.
pub(crate) fn is_command(request: &[u8]) -> bool {
    let header = Header::split(request).map(|(header, _)| header);
    header.is_some_and(|h| Opcode::from_number(h.opcode) == Some(Opcode::Ioctl))
}

/// Returns true if the request is made to wait for the disk, or does the work of many.
pub(crate) fn is_for_disk(request: &[u8]) -> bool {
    let Some((header, mut body)) = Header::split(request) else { return false };
    match Opcode::from_number(header.opcode) {
        Some(
            Opcode::FSync
            | Opcode::FSyncDir
            | Opcode::SyncFs
            | Opcode::FAllocate
            | Opcode::Ioctl
            | Opcode::CopyFileRange,
        ) => true,
        // The flags with which the file was opened.
        Some(Opcode::Write) => {
            body.skip(32).and_then(|()| body.u32()).is_ok_and(|flags| flags & O_DSYNC != 0)
        }
        _ => false,
    }
}
