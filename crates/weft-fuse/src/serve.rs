//! The threads that read requests and write answers.
//!
//! The leader of the pool answers what it reads. If the file system can tell, it only tries
//! (`attempt`): a request that would wait goes to a worker, and the next is read at once. Otherwise it
//! hands the leadership over before a request that is likely to take long, and loses it in one that
//! turns out to, and in a FORGET or RELEASE that does: those are not tried.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attempt::{
    self, argument, is_command, is_end, is_for_disk, only_reads, opcode_of, outcome, tried,
};
use crate::follow::Follow;
use crate::front::{Front, Outcome};
use crate::policy::{self, Policy};
use crate::thread_pool::{ThreadPool, Turn, WATCH_PERIOD, WATCH_PERIOD_RARE};
use crate::wire::{Header, Opcode, Reply, WRITE_OVERHEAD_BYTES, errno};
use crate::workers::Workers;

/// The least buffer size that the kernel demands.
const MIN_BUFFER_BYTES: usize = 8192;

/// A request that carries or requests this much data is handed to a worker of its own.
const LONG_BYTES: u32 = 64 << 10;

/// Requests up to this length are copied for a worker; with a longer one it gets the buffer.
const COPIED_MAX_BYTES: usize = 8192;

/// The most buffers that are kept for such requests.
const SPARE_BUFFERS: usize = 4;

/// The longest time that a command waits for FORGET and RELEASE requests before it.
const ENDS_PATIENCE: Duration = Duration::from_secs(10);

/// The state that the workers of one mount share.
pub(crate) struct Service {
    front: Arc<Front>,
    fd: OwnedFd,
    pool: ThreadPool,
    buffer_bytes: usize,
    /// Workers that were added while the others waited.
    added: Mutex<Vec<JoinHandle<()>>>,
    /// Requests can be tried.
    tries: bool,
    /// Sets the scheduling policy of the threads that read; `None` if this process may not.
    policy: Option<Policy>,
    /// The threads that answer those that would wait.
    waiting: Arc<Workers<Request>>,
    spare: Mutex<Vec<Vec<u8>>>,
    ends: Ends,
}

/// The number of FORGET and RELEASE requests that are being answered. The kernel does not wait for the
/// answer, so that a command could overtake them: it would find a file open that is closed, or not
/// find the space of one that was removed.
#[derive(Default)]
struct Ends {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Ends {
    /// To be called by the thread that reads requests, before another may read the next.
    fn begin(&self) -> End<'_> {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        End(self)
    }

    /// Waits until there is none, for [`ENDS_PATIENCE`] at most.
    fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let _none = self.fewer.wait_timeout_while(count, ENDS_PATIENCE, |count| *count > 0);
    }
}

/// One such request.
struct End<'a>(&'a Ends);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.fewer.notify_all();
    }
}

/// The thread that answers a request.
#[derive(Debug, Clone, Copy)]
enum Thread {
    /// One that also reads requests.
    Reader,
    /// One of [`Service::waiting`].
    Worker,
}

/// A request that a worker answers: so many bytes at the beginning of the buffer.
struct Request {
    buffer: Vec<u8>,
    len: usize,
}

impl Service {
    pub(crate) fn new(front: Arc<Front>, fd: OwnedFd, max_write_bytes: u32) -> Self {
        let room = (max_write_bytes as usize + WRITE_OVERHEAD_BYTES).next_multiple_of(4096);
        let buffer_bytes = room.max(MIN_BUFFER_BYTES);
        Self {
            // As with rings: requests that wait for locks would keep the workers from others.
            tries: attempt::is_possible(&*front.fs) && !front.locks,
            front,
            fd,
            pool: ThreadPool::new(),
            buffer_bytes,
            policy: policy::is_permitted().then(Policy::default),
            added: Mutex::default(),
            waiting: Arc::new(Workers::new()),
            spare: Mutex::default(),
            ends: Ends::default(),
        }
    }

    /// Watches the workers until the mount and all added workers have ended.
    pub(crate) fn stand_by(self: &Arc<Self>) {
        let period = if self.tries { WATCH_PERIOD_RARE } else { WATCH_PERIOD };
        self.pool.stand_by(period, || self.add_worker());
        self.front.waits.end_all();
        for worker in std::mem::take(&mut *self.added()) {
            let _ = worker.join();
        }
        self.waiting.end();
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

    /// Sets the scheduling policies of the threads that read, until the mount ends.
    pub(crate) fn watch(&self) {
        self.policy.iter().for_each(Policy::watch);
    }

    /// Answers requests until the mount ends.
    pub(crate) fn work(self: &Arc<Self>) -> io::Result<()> {
        // The thread is to notice that it is about to sleep.
        self.read_without_waiting()?;
        let result = self.work_until(ThreadPool::lead);
        self.pool.end();
        self.front.waits.end_all();
        self.policy.iter().for_each(Policy::end);
        // What this thread gave to others is answered, too.
        self.waiting.end();
        result
    }

    /// Answers what comes beside rings, which is nothing that waits, until the mount ends. `busy` is
    /// set before something is taken from the kernel, until it is answered.
    pub(crate) fn work_beside_rings(self: &Arc<Self>, busy: &AtomicBool) -> io::Result<()> {
        let mut worker = Worker::new(self);
        // The kernel may take back what it had announced; this thread must not wait for the next.
        self.read_without_waiting()?;
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

    fn read_without_waiting(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        Ok(rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?)
    }

    fn work_until(self: &Arc<Self>, lead: fn(&ThreadPool) -> Option<Turn>) -> io::Result<()> {
        Worker::new(self).run(lead)
    }

    /// Answers a request, and waits as long as the file system likes, unless it is interrupted: "would
    /// wait" is no outcome. Returns false after the kernel's last one (`DESTROY`).
    fn answer(self: &Arc<Self>, by: Thread, request: &[u8], reply: &mut Reply<'_>) -> bool {
        if is_command(request) {
            self.ends.wait();
        }
        // Until the reply is written.
        let _counted = self.front.attribute_replies.begin(request);
        let early = || self.early_answer(by, request);
        let process = || outcome(&self.front, request, reply);
        if let Some(outcome) = self.front.waits.during(request, early, process) {
            return self.send(outcome, request, reply);
        }
        self.front.take_back(request, reply);
        match by {
            Thread::Reader => self.pool.unpark(),
            Thread::Worker => self.waiting.is_back(),
        }
        true
    }

    /// Returns the function that answers a request with an error while a thread still processes it.
    /// Another thread may take the place of that one.
    fn early_answer(
        self: &Arc<Self>,
        by: Thread,
        request: &[u8],
    ) -> impl FnOnce(i32) -> bool + Send + 'static {
        let service = Arc::clone(self);
        let unique = Header::split(request).map_or(0, |(head, _)| head.unique);
        move |errno| {
            let may = match by {
                Thread::Reader => service.pool.park(),
                Thread::Worker => service.waiting.excuse(|| service.worker()),
            };
            if may {
                service.refuse(unique, errno, &mut Reply::default());
            }
            may
        }
    }

    /// Answers a request with an error.
    fn refuse(&self, unique: u64, errno: i32, reply: &mut Reply<'_>) {
        reply.begin(unique);
        reply.fail(errno);
        if let Err(e) = rustix::io::write(&self.fd, reply.finish()) {
            tracing::debug!("the kernel did not take an answer: {e}");
        }
    }

    /// Answers a request as [`answer`](Self::answer) does, if that needs no wait.
    fn try_answer(&self, request: &[u8], reply: &mut Reply<'_>) -> Option<bool> {
        let _counted = self.front.attribute_replies.begin(request);
        match tried(&self.front, request, reply) {
            Outcome::WouldWait => None,
            outcome => Some(self.send(outcome, request, reply)),
        }
    }

    fn send(&self, outcome: Outcome, request: &[u8], reply: &mut Reply<'_>) -> bool {
        if outcome != Outcome::Silent {
            match rustix::io::write(&self.fd, reply.finish()) {
                Ok(_) => {}
                // The caller was killed meanwhile.
                Err(Errno::NOENT) => self.front.take_back(request, reply),
                Err(Errno::NODEV | Errno::CONNABORTED) => return false,
                Err(e) => tracing::error!("the kernel did not take an answer: {e}"),
            }
        }
        outcome != Outcome::Goodbye
    }

    /// Gives a request to a worker. Returns it if there is none.
    fn give_away(self: &Arc<Self>, request: Request) -> Option<Request> {
        self.waiting.run(request, || self.worker())
    }

    /// Returns the work of a worker.
    fn worker(self: &Arc<Self>) -> impl FnMut(Request) + Send + 'static {
        let service = Arc::clone(self);
        let mut reply = Reply::default();
        move |request: Request| {
            service.answer(Thread::Worker, &request.buffer[..request.len], &mut reply);
            service.keep(request.buffer);
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a buffer for another request, if it has the full length.
    fn keep(&self, buffer: Vec<u8>) {
        let mut spare = self.spare();
        if buffer.len() == self.buffer_bytes && spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Reads the next request as the leader; returns 0 when the mount has ended.
    fn receive(&self, buf: &mut [u8], follow: &mut Option<Follow<'_>>) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.fd, &mut *buf) {
                Ok(len) => return Ok(len),
                // NOENT: the request was interrupted before it was read.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    follow.iter_mut().for_each(Follow::sleep);
                    let mut device = [PollFd::new(&self.fd, PollFlags::IN)];
                    match rustix::event::poll(&mut device, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(0),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// One worker: a buffer for requests and one for replies.
struct Worker<'a> {
    service: &'a Arc<Service>,
    request: Vec<u8>,
    reply: Reply<'static>,
}

impl<'a> Worker<'a> {
    fn new(service: &'a Arc<Service>) -> Self {
        Self { service, request: vec![0; service.buffer_bytes], reply: Reply::default() }
    }

    fn run(&mut self, lead: fn(&ThreadPool) -> Option<Turn>) -> io::Result<()> {
        let (service, pool) = (self.service, &self.service.pool);
        let mut follow = service.policy.as_ref().map(Follow::new);
        while let Some(mut turn) = lead(pool) {
            loop {
                if service.tries {
                    service.waiting.wait_for_room();
                }
                let len = service.receive(&mut self.request, &mut follow)?;
                if len == 0 {
                    pool.end();
                    return Ok(());
                }
                if let (Some(follow), Some((header, _))) =
                    (&mut follow, Header::split(&self.request[..len]))
                {
                    follow.request(header.pid, opcode_of(&self.request[..len]));
                }
                if !service.tries && waits_for_lock(&self.request[..len]) {
                    pool.hand_over(turn);
                    if pool.park() {
                        self.answer(len);
                        pool.unpark();
                    } else {
                        self.refuse(len);
                    }
                    break;
                }
                if !service.tries && takes_long(&self.request[..len], service.front.locks) {
                    pool.hand_over(turn);
                    self.answer(len);
                    break;
                }
                let _end = is_end(&self.request[..len]).then(|| service.ends.begin());
                if !service.tries || !only_reads(&self.request[..len]) {
                    pool.begin();
                }
                let goes_on = if service.tries { self.try_answer(len) } else { self.answer(len) };
                if !goes_on {
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

    fn answer(&mut self, len: usize) -> bool {
        self.service.answer(Thread::Reader, &self.request[..len], &mut self.reply)
    }

    /// Answers a request if that needs no wait; else a worker does. Returns false as
    /// [`Service::answer`] does.
    fn try_answer(&mut self, len: usize) -> bool {
        let request = &self.request[..len];
        if is_end(request) {
            return self.answer(len);
        }
        if let Some(goes_on) = self.service.try_answer(request, &mut self.reply) {
            return goes_on;
        }
        let request = self.take(len);
        match self.service.give_away(request) {
            None => true,
            Some(Request { buffer, len }) => {
                self.service.answer(Thread::Reader, &buffer[..len], &mut self.reply)
            }
        }
    }

    /// Takes the request that was read for a worker.
    fn take(&mut self, len: usize) -> Request {
        if len <= COPIED_MAX_BYTES {
            return Request { buffer: self.request[..len].to_vec(), len };
        }
        let spare = self.service.spare().pop();
        let spare = spare.unwrap_or_else(|| vec![0; self.service.buffer_bytes]);
        Request { buffer: std::mem::replace(&mut self.request, spare), len }
    }

    /// Refuses a lock request, as too many wait already.
    fn refuse(&mut self, len: usize) {
        let Some((header, _)) = Header::split(&self.request[..len]) else { return };
        self.service.refuse(header.unique, errno::ENOLCK, &mut self.reply);
    }
}

/// Returns true if the request may wait for another caller's lock.
fn waits_for_lock(request: &[u8]) -> bool {
    opcode_of(request) == Some(Opcode::SetLkW)
}

/// Returns true if the request is likely to wait for the disk or to move many bytes. With `locks`
/// of its own a file system receives a request for every closing, mostly without work.
fn takes_long(request: &[u8], locks: bool) -> bool {
    let closes = !locks && opcode_of(request) == Some(Opcode::Flush);
    closes || is_long(request) || is_for_disk(request)
}

/// Returns true if the request moves many bytes.
fn is_long(request: &[u8]) -> bool {
    // Handle, offset, size: the same in both.
    matches!(opcode_of(request), Some(Opcode::Read | Opcode::Write))
        && argument(request, 16).is_some_and(|size| size >= LONG_BYTES)
}
