//! One connection in its transmission phase: many threads send requests, and one reader thread
//! receives the replies and wakes the threads that wait for them.
//!
//! # Invariants
//!
//! - The server is not trusted: a reply that answers no request, lies outside its range, has the
//!   same bytes twice or leaves some out breaks the link.
//! - Memory is allocated for the requested length, never for a length that the server announces.
//! - A broken link stays broken: every request on it has failed or fails at once.

use super::handshake::Facts;
use crate::wire::{
    Chunk, ChunkType, Command, CommandFlags, Descriptor, EXTENDED_HEADER_BYTES, NbdErrno,
    ReplyHeader, ReplyStyle, Request,
};
use crate::{Error, Result};
use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_net::{Channel, SendHalf, Socket, is_pause, write_all_vectored};

/// The most bytes that one read from a socket takes.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// The most pieces in which a read may arrive, while they are not adjacent.
const PIECES_MAX: usize = 4096;
/// The longest pause of a server within a reply.
const STALL_LIMIT: Duration = Duration::from_secs(60);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// The data of a read.
    pub data: Vec<u8>,
    /// The extents of a block status.
    pub extents: Vec<Descriptor>,
}

/// The reason why a link is broken.
#[derive(Debug, Clone)]
pub(crate) struct Down {
    pub why: String,
    /// The server violated the protocol: a retry is not likely to help.
    pub protocol: bool,
}

impl Down {
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), protocol: false }
    }
}

impl From<&Error> for Down {
    fn from(e: &Error) -> Self {
        Self { why: e.to_string(), protocol: matches!(e, Error::Protocol(_)) }
    }
}

/// The reason why a request has no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection is lost; it is unknown whether the request was executed.
    Down(Down),
    /// The server refused the request, or it failed there.
    Request(Error),
}

/// The header fields of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub command: Command,
    pub flags: CommandFlags,
    pub offset: u64,
    pub len_bytes: u64,
}

/// The slot for the outcome of one request.
#[derive(Default)]
struct Mailbox {
    outcome: Mutex<Option<Result<Reply, Failure>>>,
    arrived: Condvar,
}

impl Mailbox {
    fn put(&self, outcome: Result<Reply, Failure>) {
        *lock(&self.outcome) = Some(outcome);
        self.arrived.notify_all();
    }
}

/// A request in progress.
struct Slot {
    ask: Ask,
    mailbox: Arc<Mailbox>,
    /// The data of a read as it arrives.
    data: Vec<u8>,
    /// The parts of the data that have arrived, disjoint and sorted.
    come: Vec<Range<usize>>,
    extents: Vec<Descriptor>,
    error: Option<Error>,
}

/// All requests in progress on a link.
#[derive(Default)]
pub(crate) struct Table {
    slots: HashMap<u64, Slot>,
    next_handle: u64,
    broken: Option<Down>,
    /// The time of the last bytes from the server.
    heard: Option<Instant>,
}

/// A connection.
pub(crate) struct Link {
    socket: Arc<Socket>,
    writer: Mutex<Box<dyn SendHalf>>,
    table: Arc<Mutex<Table>>,
    reply_limit: Duration,
    extended: bool,
}

impl Link {
    /// Starts the reader thread on a connection.
    pub fn start(channel: Channel, facts: &Facts, reply_limit: Duration) -> Result<Self> {
        let table = Arc::new(Mutex::new(Table::default()));
        let link = Self {
            socket: Arc::clone(&channel.socket),
            writer: Mutex::new(channel.writer),
            table: Arc::clone(&table),
            reply_limit,
            extended: facts.extended,
        };
        channel.socket.set_read_timeout(STALL_LIMIT)?;
        let socket = channel.socket;
        let mut replies = Replies {
            reader: BufReader::with_capacity(READ_AHEAD_BYTES, channel.reader),
            style: facts.reply_style(),
            base_allocation: facts.base_allocation,
        };
        let work = move || {
            let why = loop {
                if let Err(e) = replies.take(&table) {
                    break e;
                }
            };
            socket.shutdown(Shutdown::Both);
            fail_all(&table, &Down::from(&why));
        };
        std::thread::Builder::new()
            .name("weft-nbd-replies".into())
            .spawn(work)
            .map_err(|e| Error::io("cannot set up the connection", e))?;
        Ok(link)
    }

    /// Sends a request with its payload, and returns a ticket for its reply.
    pub fn send(&self, ask: Ask, payload: &[u8]) -> Result<Ticket<'_>, Failure> {
        let mailbox = Arc::new(Mailbox::default());
        let data =
            if ask.command == Command::READ { vec![0; ask.len_bytes as usize] } else { Vec::new() };
        let handle = {
            let mut table = lock(&self.table);
            if let Some(down) = &table.broken {
                return Err(Failure::Down(down.clone()));
            }
            let handle = table.next_handle;
            table.next_handle += 1;
            let slot = Slot {
                ask,
                mailbox: Arc::clone(&mailbox),
                data,
                come: Vec::new(),
                extents: Vec::new(),
                error: None,
            };
            table.slots.insert(handle, slot);
            handle
        };
        let Ask { command, mut flags, offset, len_bytes } = ask;
        flags.set(CommandFlags::PAYLOAD_LEN, self.extended && command == Command::WRITE);
        let request = Request { flags, command, handle, offset, len_bytes };
        let sent = {
            let mut writer = lock(&self.writer);
            write_all_vectored(&mut **writer, &[&request.encode(self.extended), payload])
        };
        if let Err(e) = sent {
            self.break_off(&Down::from(&e.into()));
        }
        Ok(Ticket { link: self, mailbox, sent: Instant::now() })
    }

    /// Ends the link: every request on it fails.
    pub fn break_off(&self, why: &Down) {
        // First, as the reader thread might set a reason of its own.
        fail_all(&self.table, why);
        self.socket.shutdown(Shutdown::Both);
    }

    /// Sends the server a disconnect request.
    pub fn disconnect(&self) {
        let request = Request {
            flags: CommandFlags::empty(),
            command: Command::DISC,
            handle: 0,
            offset: 0,
            len_bytes: 0,
        };
        if lock(&self.table).broken.is_none() {
            let _ = self.socket.set_write_timeout(Duration::from_secs(1));
            let mut writer = lock(&self.writer);
            let _ = write_all_vectored(&mut **writer, &[&request.encode(self.extended)]);
            writer.finish();
        }
        self.break_off(&Down::new("the device was closed"));
    }
}

fn fail_all(table: &Mutex<Table>, down: &Down) {
    let mut table = lock(table);
    if table.broken.is_none() {
        tracing::debug!(why = down.why, "a connection to an NBD server ended");
    }
    let down = table.broken.get_or_insert_with(|| down.clone()).clone();
    for (_, slot) in table.slots.drain() {
        slot.mailbox.put(Err(Failure::Down(down.clone())));
    }
}

/// A request that has been sent.
pub(crate) struct Ticket<'a> {
    link: &'a Link,
    mailbox: Arc<Mailbox>,
    sent: Instant,
}

impl Ticket<'_> {
    /// Waits for the reply. Breaks the link if the server sends nothing at all for too long.
    pub fn wait(self) -> Result<Reply, Failure> {
        let mut outcome = lock(&self.mailbox.outcome);
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            let limit = self.link.reply_limit;
            let waited = self.mailbox.arrived.wait_timeout(outcome, limit);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            outcome = guard;
            if timeout.timed_out() && outcome.is_none() {
                // Lock order: the table's lock before a mailbox's, so that the mailbox's is
                // released here.
                drop(outcome);
                let heard = lock(&self.link.table).heard;
                if heard.map_or(self.sent, |h| h.max(self.sent)).elapsed() >= limit {
                    self.link.break_off(&Down::new("the server does not answer"));
                }
                outcome = lock(&self.mailbox.outcome);
            }
        }
    }
}

/// Receives replies from a stream.
pub(crate) struct Replies<R> {
    pub reader: BufReader<R>,
    pub style: ReplyStyle,
    pub base_allocation: Option<u32>,
}

impl<R: Read> Replies<R> {
    /// Receives one reply, or one chunk of one.
    pub fn take(&mut self, table: &Mutex<Table>) -> Result<()> {
        let mut head = [0; EXTENDED_HEADER_BYTES];
        self.begin(&mut head[..4])?;
        let magic = [head[0], head[1], head[2], head[3]];
        let len = ReplyHeader::len_bytes(magic, self.style)?;
        self.fill(&mut head[4..len])?;
        lock(table).heard = Some(Instant::now());
        let header = ReplyHeader::parse(&head[..len])?;
        let (ReplyHeader::Simple { handle, .. } | ReplyHeader::Chunk { handle, .. }) = header;
        // The slot is out of the table, so that no lock is held while data arrives.
        let mut slot = take_slot(table, handle)?;
        let taken = match header {
            ReplyHeader::Simple { error, .. } => self.simple(&mut slot, error).map(|()| true),
            ReplyHeader::Chunk { kind, done, len_bytes, .. } => {
                self.chunk(&mut slot, kind, done, len_bytes).map(|()| done)
            }
        };
        match taken.and_then(|done| if done { slot.finish().map(|()| true) } else { Ok(false) }) {
            Ok(true) => Ok(()),
            Ok(false) => {
                put_back(table, handle, slot);
                Ok(())
            }
            Err(e) => {
                // The waiting thread receives the reason when the link breaks.
                put_back(table, handle, slot);
                Err(e)
            }
        }
    }

    fn simple(&mut self, slot: &mut Slot, error: NbdErrno) -> Result<()> {
        if error != NbdErrno::OK {
            slot.error = Some(Error::Request { error, message: String::new() });
        } else if slot.ask.command == Command::BLOCK_STATUS {
            return Err(Error::protocol("a block status without extents"));
        } else if slot.ask.command == Command::READ {
            if self.style != ReplyStyle::Simple {
                return Err(Error::protocol("a simple reply to a read, where chunks were agreed"));
            }
            let all = 0..slot.data.len();
            self.fill_slot(slot, all)?;
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        slot: &mut Slot,
        kind: ChunkType,
        done: bool,
        len_bytes: u64,
    ) -> Result<()> {
        let reads = slot.ask.command == Command::READ;
        if kind == ChunkType::OFFSET_DATA {
            if !reads || len_bytes < 9 {
                return Err(Error::protocol("the server sent data that no request asked for"));
            }
            let mut offset = [0; 8];
            self.fill(&mut offset)?;
            let range = slot.range(u64::from_be_bytes(offset), len_bytes - 8)?;
            return self.fill_slot(slot, range);
        }
        if len_bytes > Chunk::MAX_BYTES.into() {
            return Err(Error::protocol(format!("a chunk {kind:?} of {len_bytes} bytes")));
        }
        if kind == ChunkType::BLOCK_STATUS_EXT && self.style != ReplyStyle::Extended {
            return Err(Error::protocol("64-bit extents, which were not agreed on"));
        }
        let mut payload = vec![0; len_bytes as usize];
        self.fill(&mut payload)?;
        match Chunk::parse(kind, done, &payload)? {
            Chunk::None => {}
            Chunk::Hole { offset, len_bytes } if reads => {
                let range = slot.range(offset, len_bytes.into())?;
                slot.arrive(range)?;
            }
            Chunk::Hole { .. } => {
                return Err(Error::protocol("the server sent a hole that no request asked for"));
            }
            Chunk::BlockStatus { context, extents } => {
                let asked = slot.ask.command == Command::BLOCK_STATUS
                    && Some(context) == self.base_allocation
                    && slot.extents.is_empty();
                if !asked {
                    return Err(Error::protocol(
                        "the server sent a block status that no request asked for",
                    ));
                }
                slot.extents = extents;
            }
            Chunk::Error { error, message, .. } => {
                slot.error.get_or_insert(Error::Request { error, message });
            }
        }
        Ok(())
    }

    /// Fills a part of a read with the next bytes.
    fn fill_slot(&mut self, slot: &mut Slot, range: Range<usize>) -> Result<()> {
        slot.arrive(range.clone())?;
        self.fill(&mut slot.data[range])
    }

    /// Reads the first bytes of a reply, which may take long to arrive.
    fn begin(&mut self, buf: &mut [u8]) -> Result<()> {
        let n = loop {
            match self.reader.read(buf) {
                Ok(0) => {
                    let eof = io::ErrorKind::UnexpectedEof.into();
                    return Err(Error::io("the server closed the connection", eof));
                }
                Ok(n) => break n,
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        };
        self.fill(&mut buf[n..])
    }

    fn fill(&mut self, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            match self.reader.read(buf) {
                Ok(0) => {
                    let eof = io::ErrorKind::UnexpectedEof.into();
                    return Err(Error::io("the server closed the connection within a reply", eof));
                }
                Ok(n) => buf = &mut buf[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_pause(&e) => {
                    return Err(Error::timed_out("timed out within a reply of the server"));
                }
                Err(e) => return Err(Error::io("cannot receive", e)),
            }
        }
        Ok(())
    }
}

fn take_slot(table: &Mutex<Table>, handle: u64) -> Result<Slot> {
    let slot = lock(table).slots.remove(&handle);
    slot.ok_or_else(|| Error::protocol(format!("a reply to no request (handle {handle})")))
}

fn put_back(table: &Mutex<Table>, handle: u64, slot: Slot) {
    let mut table = lock(table);
    match &table.broken {
        None => drop(table.slots.insert(handle, slot)),
        // The slot was not in the table when the link broke, and has not been notified.
        Some(down) => slot.mailbox.put(Err(Failure::Down(down.clone()))),
    }
}

impl Slot {
    /// Returns a part of the request's range as a range of its data.
    fn range(&self, offset: u64, len_bytes: u64) -> Result<Range<usize>> {
        let start = offset.checked_sub(self.ask.offset);
        let range = start.and_then(|start| Some(start..start.checked_add(len_bytes)?));
        match range {
            Some(range) if range.end <= self.ask.len_bytes => {
                // The length of a read is at most some MiB.
                Ok(range.start as usize..range.end as usize)
            }
            _ => Err(Error::protocol("a chunk outside the range of its request")),
        }
    }

    /// Records that a part has arrived.
    fn arrive(&mut self, range: Range<usize>) -> Result<()> {
        let at = self.come.partition_point(|r| r.end <= range.start);
        if self.come.get(at).is_some_and(|next| next.start < range.end) {
            return Err(Error::protocol("two chunks with the same bytes"));
        }
        if range.is_empty() {
            return Ok(());
        }
        if at > 0 && self.come[at - 1].end == range.start {
            self.come[at - 1].end = range.end;
        } else if self.come.len() < PIECES_MAX {
            self.come.insert(at, range);
        } else {
            return Err(Error::protocol("a read in too many pieces"));
        }
        Ok(())
    }

    /// Completes the request after the last part of its reply.
    fn finish(&mut self) -> Result<()> {
        let outcome = match self.error.take() {
            Some(Error::Request { error: NbdErrno::ESHUTDOWN, .. }) => {
                Err(Failure::Down(Down::new("the server is going down")))
            }
            Some(e) => Err(Failure::Request(e)),
            None => {
                let whole = match self.ask.command {
                    Command::READ => {
                        let len: usize = self.come.iter().map(|r| r.end - r.start).sum();
                        len == self.ask.len_bytes as usize
                    }
                    Command::BLOCK_STATUS => !self.extents.is_empty(),
                    _ => true,
                };
                if !whole {
                    return Err(Error::protocol(
                        "incomplete reply: part of the requested range is missing",
                    ));
                }
                Ok(Reply {
                    data: std::mem::take(&mut self.data),
                    extents: std::mem::take(&mut self.extents),
                })
            }
        };
        self.mailbox.put(outcome);
        Ok(())
    }
}

impl Drop for Slot {
    /// Reports a failure, so that a waiting thread does not wait for ever.
    fn drop(&mut self) {
        let mut outcome = lock(&self.mailbox.outcome);
        if outcome.is_none() && Arc::strong_count(&self.mailbox) > 1 {
            *outcome = Some(Err(Failure::Down(Down::new("the connection broke"))));
            drop(outcome);
            self.mailbox.arrived.notify_all();
        }
    }
}

/// Receives replies from `data`, as if two reads and a block status had been requested.
pub(crate) fn fuzz(data: &[u8]) {
    let table = Mutex::new(Table::default());
    for (handle, command) in [(0, Command::READ), (1, Command::READ), (2, Command::BLOCK_STATUS)] {
        let ask = Ask { command, flags: CommandFlags::empty(), offset: 4096, len_bytes: 8192 };
        let slot = Slot {
            ask,
            mailbox: Arc::default(),
            data: vec![0; 8192],
            come: Vec::new(),
            extents: Vec::new(),
            error: None,
        };
        lock(&table).slots.insert(handle, slot);
    }
    let style = match data.first().map_or(0, |b| b % 3) {
        0 => ReplyStyle::Structured,
        1 => ReplyStyle::Simple,
        _ => ReplyStyle::Extended,
    };
    let mut replies = Replies {
        reader: BufReader::new(data.get(1..).unwrap_or_default()),
        style,
        base_allocation: Some(1),
    };
    while replies.take(&table).is_ok() {}
    fail_all(&table, &Down::new("the end"));
}
