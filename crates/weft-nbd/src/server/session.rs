//! The transmission phase of one connection, served by a pool of threads that read in turn.
//!
//! One thread reads at a time. A request that is expected to take no longer than waking another
//! thread is answered by the thread that read it, which then reads on; before any other request it
//! passes the reading to a waiting thread or a new one. So a stream of short requests costs no
//! thread switches, a slow request delays no other, and replies are sent in any order.
//!
//! # Invariants
//!
//! - There are never more than `threads_max` threads, and the requests in progress never hold more
//!   than `in_flight_max_bytes` of data (but one request is always allowed).
//! - Replies that wait to be sent together are sent before a thread waits for the next request.
//! - No action of a client makes another connection wait.

use super::negotiate::Agreement;
use super::perform::{Replies, is_refused, perform, refuse};
use super::{Counters, Options};
use crate::wire::{Command, EXTENDED_HEADER_BYTES, NbdErrno, PAYLOAD_UNTOLD_MAX_BYTES, Request};
use crate::{Error, Result};
use std::io::{self, IoSliceMut, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_net::{Channel, SendHalf, Socket, is_pause, write_all_vectored};

/// The interval at which a thread that waits for a request checks its time limits.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// The longest pause of a client within a message.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes that one read from a socket takes: many short requests.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// The same after a payload of at least `LONG_BYTES`: bytes read ahead are copied, and most of them
/// would be the next payload.
const READ_AHEAD_LITTLE_BYTES: usize = 4 << 10;
const LONG_BYTES: u64 = 16 << 10;
/// Replies up to this length are collected and sent together.
const GATHER_MAX_BYTES: usize = 16 << 10;
/// The length and the number at which collected replies are sent: a client with many requests in
/// progress should receive the first replies early.
const GATHERED_MAX_BYTES: usize = 128 << 10;
const GATHERED_MAX_REPLIES: u32 = 16;
/// Requests that take less than this are answered by the thread that read them.
const QUICK: Duration = Duration::from_micros(100);
/// The step in which memory for a payload is allocated as it arrives, in bytes.
const PAYLOAD_STEP_BYTES: usize = 1 << 20;
/// The most memory that a thread keeps from one request for the next.
const KEEP_BYTES: usize = 1 << 20;
/// The payload of a refused write is still read, up to this length; a longer one ends the session.
const SKIP_MAX_BYTES: u64 = PAYLOAD_UNTOLD_MAX_BYTES as u64;

/// One connection in its transmission phase.
pub(crate) struct Session {
    agreed: Agreement,
    socket: Arc<Socket>,
    incoming: Mutex<Incoming>,
    outgoing: Outgoing,
    pool: Mutex<ThreadPool>,
    budget: Budget,
    threads_max: usize,
    idle_limit: Option<Duration>,
    stopping: Arc<AtomicBool>,
    counters: Arc<Counters>,
    /// The recent mean duration of requests, in nanoseconds: reads, writes, all others.
    usual_nanos: [AtomicU64; 3],
}

/// The threads of a connection.
#[derive(Default)]
struct ThreadPool {
    threads: usize,
    waiting: usize,
    handles: Vec<std::thread::JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub fn new(
        channel: Channel,
        agreed: Agreement,
        options: &Options,
        stopping: Arc<AtomicBool>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            agreed,
            socket: channel.socket,
            incoming: Mutex::new(Incoming::new(channel.reader)),
            outgoing: Outgoing::new(channel.writer),
            pool: Mutex::default(),
            budget: Budget::new(options.in_flight_max_bytes),
            threads_max: options.threads.max(1),
            idle_limit: options.idle_limit,
            stopping,
            counters,
            usual_nanos: [const { AtomicU64::new(0) }; 3],
        })
    }

    /// Serves until the client disconnects, violates the protocol, or the server stops. All
    /// requests that were begun are answered when this returns.
    pub fn serve(self: &Arc<Self>) -> Result<()> {
        lock(&self.pool).threads = 1;
        let result = self.work();
        loop {
            let Some(handle) = lock(&self.pool).handles.pop() else { break };
            // The panic of a thread has been reported; the connection ends either way.
            let _ = handle.join();
        }
        let sent = self.outgoing.flush();
        self.outgoing.finish();
        self.socket.shutdown(Shutdown::Both);
        result.and(sent)
    }

    /// The loop of one thread of the pool.
    fn work(self: &Arc<Self>) -> Result<()> {
        let mut buf = Vec::new();
        loop {
            lock(&self.pool).waiting += 1;
            let mut incoming = lock(&self.incoming);
            lock(&self.pool).waiting -= 1;
            if incoming.ended {
                return Ok(());
            }
            let slow = self.answer_quick(&mut incoming, &mut buf);
            incoming.ended = !matches!(slow, Ok(Some(_)));
            drop(incoming);
            let Some(slow) = slow? else { return Ok(()) };
            self.relieve();
            let answered = self.answer(&slow, &mut buf).and_then(|()| self.outgoing.flush());
            if let Err(e) = answered {
                // The reading thread wakes, and ends.
                self.socket.shutdown(Shutdown::Both);
                return Err(e);
            }
        }
    }

    /// Reads and answers requests until a slow one arrives, before which another thread should
    /// read.
    fn answer_quick(&self, incoming: &mut Incoming, buf: &mut Vec<u8>) -> Result<Option<Taken>> {
        while let Some(taken) = self.receive(incoming, buf)? {
            if !self.is_quick(&taken.request) {
                return Ok(Some(taken));
            }
            self.answer(&taken, buf)?;
        }
        Ok(None)
    }

    /// Makes sure that another thread reads while this one works, unless the pool is full.
    fn relieve(self: &Arc<Self>) {
        let mut pool = lock(&self.pool);
        if pool.waiting > 0 || pool.threads >= self.threads_max {
            return;
        }
        let session = Arc::clone(self);
        let work = move || {
            if let Err(e) = session.work() {
                tracing::debug!(error = %e, "a connection failed");
            }
        };
        // Without a new thread this one continues to read when it is done.
        if let Ok(handle) = std::thread::Builder::new().name("weft-nbd".into()).spawn(work) {
            pool.threads += 1;
            pool.handles.push(handle);
        }
    }

    /// Reads a request, and the payload of a write into `buf`. Returns `None` at the end.
    fn receive(&self, incoming: &mut Incoming, buf: &mut Vec<u8>) -> Result<Option<Taken>> {
        loop {
            let extended = self.agreed.extended;
            if !incoming.has(Request::header_bytes(extended)) {
                self.outgoing.flush()?;
            }
            let asked = incoming.request(extended, self.idle_limit, &self.stopping)?;
            let Some(request) = asked else { return Ok(None) };
            if request.command == Command::DISC {
                return Ok(None);
            }
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            let payload = request.payload_bytes(extended);
            incoming.ahead_max =
                if payload < LONG_BYTES { READ_AHEAD_BYTES } else { READ_AHEAD_LITTLE_BYTES };
            if !incoming.has(usize::try_from(payload).unwrap_or(usize::MAX)) {
                self.outgoing.flush()?;
            }
            let stopping = self.stopping.load(Ordering::Acquire);
            if stopping || is_refused(&self.agreed, &request) {
                if payload > SKIP_MAX_BYTES {
                    return Err(Error::protocol(format!("a write of {payload} bytes")));
                }
                incoming.skip(payload)?;
                if !stopping {
                    return Ok(Some(Taken { request, held_bytes: 0 }));
                }
                let message = "the server is going down";
                refuse(&self.agreed, &request, NbdErrno::ESHUTDOWN, message, &self.outgoing)?;
                continue;
            }
            // An accepted request moves at most 64 MiB.
            let held_bytes = data_bytes(&request);
            self.budget.take(held_bytes);
            let (len, mut done) = (payload as usize, 0);
            while done < len {
                // Memory is allocated for bytes as they arrive, not for the announced length.
                let end = len.min(done + PAYLOAD_STEP_BYTES);
                if buf.len() < end {
                    buf.resize(end, 0);
                }
                incoming.fill(&mut buf[done..end])?;
                done = end;
            }
            return Ok(Some(Taken { request, held_bytes }));
        }
    }

    /// Executes a request and answers it.
    fn answer(&self, taken: &Taken, buf: &mut Vec<u8>) -> Result<()> {
        let request = &taken.request;
        let begun = Instant::now();
        let result = perform(&self.agreed, request, buf, &self.outgoing);
        self.budget.give(taken.held_bytes);
        let counter = match request.command {
            Command::READ => &self.counters.read_bytes,
            Command::WRITE => &self.counters.written_bytes,
            _ => &self.counters.others,
        };
        counter.fetch_add(taken.held_bytes.max(1), Ordering::Relaxed);
        if buf.len() > KEEP_BYTES {
            *buf = Vec::new();
        }
        // A running mean over about eight requests; races only blur it. After one slow request the
        // next is passed on, but however slow it was (perhaps because of the scheduler and not of
        // the device), one or two quick ones are enough to revert that.
        let usual = self.usual(request);
        let took = begun.elapsed().min(8 * QUICK);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = usual.load(Ordering::Relaxed);
        usual.store(before - before / 8 + took / 8, Ordering::Relaxed);
        result
    }

    fn usual(&self, request: &Request) -> &AtomicU64 {
        &self.usual_nanos[match request.command {
            Command::READ => 0,
            Command::WRITE => 1,
            _ => 2,
        }]
    }

    /// Returns true if the request is expected to take less time than waking another thread.
    fn is_quick(&self, request: &Request) -> bool {
        use crate::wire::CommandFlags;
        let flushes =
            request.command == Command::FLUSH || request.flags.contains(CommandFlags::FUA);
        !flushes && u128::from(self.usual(request).load(Ordering::Relaxed)) < QUICK.as_nanos()
    }
}

/// A request that was read, and its share of the budget until it is answered.
struct Taken {
    request: Request,
    held_bytes: u64,
}

/// Returns the data that a request moves and holds in memory, in bytes.
fn data_bytes(request: &Request) -> u64 {
    match request.command {
        Command::READ | Command::WRITE => request.len_bytes,
        _ => 0,
    }
}

/// The receiving side of the connection.
struct Incoming {
    reader: Box<dyn Read + Send>,
    /// A buffer; the bytes read ahead are from `start` to `end`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// The most bytes that one read takes ahead.
    ahead_max: usize,
    /// No more requests are read.
    ended: bool,
}

impl Incoming {
    fn new(reader: Box<dyn Read + Send>) -> Self {
        let ahead = vec![0; READ_AHEAD_BYTES].into();
        Self { reader, ahead, start: 0, end: 0, ahead_max: READ_AHEAD_BYTES, ended: false }
    }

    /// Returns true if `len` bytes are available without waiting.
    fn has(&self, len: usize) -> bool {
        self.end - self.start >= len
    }

    /// Returns the next request; `None` if the client disconnected between two.
    fn request(
        &mut self,
        extended: bool,
        idle_limit: Option<Duration>,
        stopping: &AtomicBool,
    ) -> Result<Option<Request>> {
        let begun = Instant::now();
        while self.start == self.end {
            match self.reader.read(&mut self.ahead[..self.ahead_max]) {
                Ok(0) => return Ok(None),
                Ok(n) => (self.start, self.end) = (0, n),
                Err(e) if is_pause(&e) => {
                    if stopping.load(Ordering::Acquire) {
                        return Ok(None);
                    }
                    if idle_limit.is_some_and(|limit| begun.elapsed() >= limit) {
                        return Err(Error::timed_out("idle timeout: the client sent no request"));
                    }
                }
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
        let mut head = [0; EXTENDED_HEADER_BYTES];
        let head = &mut head[..Request::header_bytes(extended)];
        self.fill(head)?;
        Ok(Some(Request::parse(head, extended)?))
    }

    /// Fills a buffer; the client may be slow as long as bytes arrive.
    fn fill(&mut self, mut buf: &mut [u8]) -> Result<()> {
        let mut last = None;
        loop {
            let n = buf.len().min(self.end - self.start);
            buf[..n].copy_from_slice(&self.ahead[self.start..self.start + n]);
            self.start += n;
            buf = &mut buf[n..];
            if buf.is_empty() {
                return Ok(());
            }
            // Reads directly into `buf`, and the bytes after it into the free part of the buffer.
            let len = buf.len();
            let ahead = IoSliceMut::new(&mut self.ahead[..self.ahead_max]);
            match self.reader.read_vectored(&mut [IoSliceMut::new(buf), ahead]) {
                Ok(0) => {
                    let eof = io::ErrorKind::UnexpectedEof.into();
                    return Err(Error::io(
                        "the client closed the connection within a message",
                        eof,
                    ));
                }
                Ok(n) => {
                    buf = &mut buf[n.min(len)..];
                    (self.start, self.end) = (0, n.saturating_sub(len));
                    last = None;
                }
                Err(e) if is_pause(&e) => {
                    if last.get_or_insert_with(Instant::now).elapsed() >= STALL_LIMIT {
                        return Err(Error::timed_out("timed out within a message of the client"));
                    }
                }
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
    }

    fn skip(&mut self, len_bytes: u64) -> Result<()> {
        let mut scratch = [0; 4096];
        let mut left = len_bytes as usize;
        while left > 0 {
            let n = left.min(scratch.len());
            self.fill(&mut scratch[..n])?;
            left -= n;
        }
        Ok(())
    }
}

/// The sending side of the connection.
struct Outgoing {
    inner: Mutex<Gathered>,
    /// Collected replies wait to be sent.
    waiting: AtomicBool,
}

struct Gathered {
    writer: Box<dyn SendHalf>,
    bytes: Vec<u8>,
    replies: u32,
    /// A send failed half-way: later bytes would be out of sync.
    broken: bool,
}

impl Outgoing {
    fn new(writer: Box<dyn SendHalf>) -> Self {
        let inner = Mutex::new(Gathered { writer, bytes: Vec::new(), replies: 0, broken: false });
        Self { inner, waiting: AtomicBool::new(false) }
    }

    /// Announces the end of the stream.
    fn finish(&self) {
        let mut gathered = lock(&self.inner);
        if !gathered.broken {
            gathered.writer.finish();
        }
    }

    /// Sends the collected replies.
    fn flush(&self) -> Result<()> {
        if !self.waiting.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut gathered = lock(&self.inner);
        self.waiting.store(false, Ordering::Release);
        gathered.send(&[])
    }
}

impl Gathered {
    /// Sends the collected replies, then `parts`.
    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        if self.broken {
            return Err(Error::io("cannot send", io::ErrorKind::BrokenPipe.into()));
        }
        let part = |nr: usize| parts.get(nr).copied().unwrap_or_default();
        let all = [&self.bytes[..], part(0), part(1)];
        let result = write_all_vectored(&mut *self.writer, &all)
            .map_err(Error::from)
            .and_then(|()| self.writer.flush().map_err(|e| Error::io("cannot send", e)));
        self.bytes.clear();
        self.replies = 0;
        self.broken = result.is_err();
        result
    }
}

impl Replies for Outgoing {
    fn send(&self, head: &[u8], data: &[u8]) -> Result<()> {
        let mut gathered = lock(&self.inner);
        let full =
            gathered.replies >= GATHERED_MAX_REPLIES || gathered.bytes.len() >= GATHERED_MAX_BYTES;
        if data.len() <= GATHER_MAX_BYTES && !full {
            gathered.replies += 1;
            gathered.bytes.extend_from_slice(head);
            gathered.bytes.extend_from_slice(data);
            self.waiting.store(true, Ordering::Release);
            return Ok(());
        }
        self.waiting.store(false, Ordering::Release);
        gathered.send(&[head, data])
    }
}

/// The memory that the requests in progress may hold.
struct Budget {
    used: Mutex<u64>,
    freed: Condvar,
    max_bytes: u64,
}

impl Budget {
    fn new(max_bytes: u64) -> Self {
        Self { used: Mutex::new(0), freed: Condvar::new(), max_bytes }
    }

    /// Waits until `len_bytes` are available. A length above the limit gets the memory alone.
    fn take(&self, len_bytes: u64) {
        let mut used = lock(&self.used);
        while *used > 0 && *used + len_bytes > self.max_bytes {
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += len_bytes;
    }

    fn give(&self, len_bytes: u64) {
        *lock(&self.used) -= len_bytes;
        self.freed.notify_all();
    }
}
