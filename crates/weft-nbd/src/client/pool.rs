//! The connections of a device: re-established when they break, and unflushed writes repeated
//! before any other request.
//!
//! Connections live in *generations*: when one breaks, all are closed, and the next generation
//! begins once the server is reached, is found to be the same, and has been sent all writes that it
//! acknowledged and may have lost. A thread that waited for a reply then sends its request again.
//!
//! # Invariants
//!
//! - A write counts as acknowledged only if its generation was still alive when it was recorded
//!   ([`Pool::commit`]); so each write is either repeated by the next generation, or sent again by
//!   the thread that waits for it.
//! - A generation whose replay failed never carries a request.
//! - A server with a changed export is never written to.
//!
//! A limit of NBD: a server that lives on after a connection broke may still be working on a
//! request of that connection, and execute an old write after a new one. Servers that soon finish
//! or drop the requests of a closed connection (all known do) make that window small.

use super::Options;
use super::handshake::Facts;
use super::link::{Ask, Down, Failure, Link, Reply, Ticket};
use super::unflushed::{Content, Unflushed, WRITE_OVERHEAD_BYTES};
use crate::wire::{Command, CommandFlags, TransmissionFlags};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The most requests in progress for one call.
pub(crate) const WINDOW: usize = 16;
/// The longest request that is sent, in bytes, if the server allows it.
const PIECE_MAX_BYTES: u32 = 2 << 20;
/// The longest range of one request without a payload, in bytes, if its length has 32 bits: a
/// multiple of every block size.
const RANGE_MAX_BYTES: u64 = 1 << 30;
/// Pauses between attempts to connect: doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The most attempts of a call while the server can be reached but the connection breaks each time.
const ATTEMPTS_MAX: u32 = 8;

/// One generation of connections.
#[derive(Clone)]
pub(crate) struct Generation {
    pub number: u64,
    pub links: Arc<[Link]>,
}

enum Phase {
    Up(Arc<[Link]>),
    /// No connection; if `connecting`, a thread is reconnecting.
    Down {
        why: String,
        connecting: bool,
    },
    /// The server was refused permanently.
    Refused(String),
}

struct State {
    generation: u64,
    phase: Phase,
    unflushed: Unflushed,
    /// Memory reserved for writes in progress, in bytes.
    reserved_bytes: u64,
    /// A flush failed: the server may have dropped the writes it covers, without reporting that
    /// again.
    suspect: bool,
}

/// The connections, and the writes that are not durable.
pub(crate) struct Pool {
    options: Options,
    facts: Facts,
    state: Mutex<State>,
    changed: Condvar,
    /// Serialises flushes.
    flushing: Mutex<()>,
    turn: AtomicUsize,
    pub reconnections: AtomicU64,
}

/// The reason why a call over a generation was interrupted.
pub(crate) enum Interrupted {
    /// The generation ended: the call is retried on the next one.
    Down(Down),
    /// The request failed.
    Failed(Error),
}

/// Memory reserved for a write in progress. Released when the write has been recorded, or has
/// failed.
pub(crate) struct Reserved<'a> {
    pool: &'a Pool,
    len_bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.pool.state().reserved_bytes -= self.len_bytes;
        self.pool.changed.notify_all();
    }
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Down(down) => Self::Down(down),
            Failure::Request(e) => Self::Failed(e),
        }
    }
}

impl Pool {
    pub fn connect(options: Options) -> Result<Self> {
        let limit = options.reconnect_limit.max(Duration::from_secs(1));
        let (channel, facts) = options.dial(limit)?;
        let first = Link::start(channel, &facts, options.reply_limit)?;
        let mut unflushed = Unflushed::default();
        // Another client may have made writes that are not durable yet.
        unflushed.touch();
        let pool = Self {
            options,
            facts,
            state: Mutex::new(State {
                generation: 0,
                phase: Phase::Refused(String::new()),
                unflushed,
                reserved_bytes: 0,
                suspect: false,
            }),
            changed: Condvar::new(),
            flushing: Mutex::new(()),
            turn: AtomicUsize::new(0),
            reconnections: AtomicU64::new(0),
        };
        let links = pool.complete(first, limit)?;
        pool.state().phase = Phase::Up(links);
        Ok(pool)
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the longest request, in bytes: a multiple of the minimum block size.
    pub fn piece_bytes(&self) -> u32 {
        let sizes = self.facts.sizes;
        let max = sizes.max.min(PIECE_MAX_BYTES);
        (max - max % sizes.min).max(sizes.min)
    }

    /// Returns the longest request for zeroes, in bytes: servers without extended headers limit it
    /// to the maximum block size.
    pub fn zeroes_bytes(&self) -> u64 {
        let sizes = self.facts.sizes;
        let max = if self.facts.extended { u64::MAX } else { sizes.max.into() };
        let max = max.min(self.effect_bytes());
        max - max % u64::from(sizes.min)
    }

    /// Returns the longest request without a payload, in bytes: a multiple of the minimum block
    /// size.
    pub fn effect_bytes(&self) -> u64 {
        let sizes = self.facts.sizes;
        let max = if self.facts.extended { 1 << 62 } else { RANGE_MAX_BYTES };
        max - max % u64::from(sizes.min)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the further connections, if the server can serve one client on several.
    fn complete(&self, first: Link, limit: Duration) -> Result<Arc<[Link]>> {
        let multi = self.facts.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
        let count = if multi { self.options.connections.max(1) } else { 1 };
        let mut links = vec![first];
        while links.len() < count {
            // A server that is full serves with fewer connections.
            let (channel, facts) = match self.options.dial(limit) {
                Ok(more) => more,
                Err(e) => {
                    tracing::info!(error = %e, connections = links.len(), "fewer connections");
                    break;
                }
            };
            self.check_same(&facts)?;
            links.push(Link::start(channel, &self.facts, self.options.reply_limit)?);
        }
        Ok(links.into())
    }

    /// Refuses a server that is not the one this device was opened on.
    fn check_same(&self, now: &Facts) -> Result<()> {
        use TransmissionFlags as F;
        let then = &self.facts;
        let matter = F::READ_ONLY
            | F::SEND_FLUSH
            | F::SEND_FUA
            | F::SEND_TRIM
            | F::SEND_WRITE_ZEROES
            | F::CAN_MULTI_CONN;
        let changed = if now.len_bytes > then.len_bytes {
            // It may be another disk: writes that were not flushed are not repeated on it.
            let (was, is) = (then.len_bytes, now.len_bytes);
            format!("it has grown from {was} to {is} bytes; end this process and open it anew")
        } else if now.len_bytes != then.len_bytes {
            format!("it had {} bytes and has {}", then.len_bytes, now.len_bytes)
        } else if now.name != then.name {
            format!("it was {:?} and is {:?}", then.name, now.name)
        } else if now.description != then.description {
            format!("it was described {:?} and is {:?}", then.description, now.description)
        } else if now.flags & matter != then.flags & matter {
            format!("it could {:?} and can {:?}", then.flags & matter, now.flags & matter)
        } else if now.sizes.min > then.sizes.min || now.sizes.max < then.sizes.max {
            format!("its block sizes were {:?} and are {:?}", then.sizes, now.sizes)
        } else if (now.reply_style(), now.base_allocation)
            != (then.reply_style(), then.base_allocation)
        {
            "its replies have another structure".into()
        } else {
            return Ok(());
        };
        Err(Error::Changed(changed))
    }

    /// Runs a call on successive generations until it completes. Returns the number of the last
    /// generation, too.
    pub fn call<T>(
        &self,
        mut attempt: impl FnMut(&Generation) -> Result<T, Interrupted>,
    ) -> Result<(T, u64)> {
        let mut attempts = 0;
        loop {
            let generation = self.wait_up()?;
            let down = match attempt(&generation) {
                Ok(value) => return Ok((value, generation.number)),
                Err(Interrupted::Failed(e)) => return Err(e),
                Err(Interrupted::Down(down)) => down,
            };
            self.end(generation.number, &down);
            attempts += 1;
            if down.protocol {
                return Err(Error::Protocol(down.why));
            }
            if attempts == ATTEMPTS_MAX {
                let what = format!("the connection broke {attempts} times in a row: {}", down.why);
                return Err(Error::io(what, std::io::ErrorKind::ConnectionAborted.into()));
            }
        }
    }

    /// Records an acknowledged write of a generation. Returns false if the generation has ended:
    /// the write must be repeated.
    pub fn commit(&self, generation: u64, note: impl FnOnce(&mut Unflushed)) -> bool {
        let mut state = self.state();
        let alive = state.generation == generation;
        if alive {
            note(&mut state.unflushed);
        }
        alive
    }

    /// Sends requests with their payloads, a window of them at a time, over all links, and passes
    /// each reply to `done`. All are answered when this returns, unless a link broke.
    pub fn run<'a>(
        &self,
        links: &[Link],
        asks: impl IntoIterator<Item = (Ask, &'a [u8])>,
        mut done: impl FnMut(&Ask, Reply) -> Result<()>,
    ) -> Result<(), Interrupted> {
        let mut under_way: VecDeque<(Ask, Ticket<'_>)> = VecDeque::new();
        let mut failed: Option<Error> = None;
        let mut settle = |(ask, ticket): (Ask, Ticket<'_>)| match ticket.wait() {
            Ok(reply) => {
                if let Err(e) = done(&ask, reply) {
                    failed.get_or_insert(e);
                }
                Ok(())
            }
            Err(Failure::Request(e)) => {
                failed.get_or_insert(e);
                Ok(())
            }
            Err(Failure::Down(down)) => Err(Interrupted::Down(down)),
        };
        for (ask, payload) in asks {
            if under_way.len() >= WINDOW
                && let Some(first) = under_way.pop_front()
            {
                settle(first)?;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            under_way.push_back((ask, links[turn % links.len()].send(ask, payload)?));
        }
        for last in under_way {
            settle(last)?;
        }
        failed.map_or(Ok(()), |e| Err(Interrupted::Failed(e)))
    }

    /// Repeats the writes that are not durable. No other thread may write meanwhile.
    fn replay(&self, links: &[Link], writes: &[(u64, Content)]) -> Result<(), Interrupted> {
        let data_max = u64::from(self.piece_bytes());
        let zeroes_max = self.zeroes_bytes();
        let asks = writes.iter().flat_map(|(offset, content)| {
            let len_bytes = content.len_bytes();
            let piece = match content {
                Content::Data(_) => data_max,
                Content::Zeroes(_) => zeroes_max,
            };
            (0..len_bytes.div_ceil(piece)).map(move |nr| {
                let from = nr * piece;
                let to = (from + piece).min(len_bytes);
                let (command, payload) = match content {
                    Content::Data(data) => (Command::WRITE, &data[from as usize..to as usize]),
                    Content::Zeroes(_) => (Command::WRITE_ZEROES, &[][..]),
                };
                let flags = CommandFlags::empty();
                let (offset, len_bytes) = (offset + from, to - from);
                (Ask { command, flags, offset, len_bytes }, payload)
            })
        });
        self.run(links, asks, |_, _| Ok(()))
    }

    /// Makes all acknowledged writes durable.
    ///
    /// All writers hold `writers`: after a failed flush, the writes that it should have made
    /// durable are repeated first, as the server may have dropped them, and other writes are
    /// excluded meanwhile.
    pub fn flush(&self, writers: &RwLock<()>) -> Result<()> {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.facts.flags.contains(TransmissionFlags::SEND_FLUSH) {
            // The server has no cache, or none that it can be told to write.
            return Ok(());
        }
        {
            let state = self.state();
            if !state.unflushed.is_dirty() && !state.suspect {
                return Ok(());
            }
        }
        let flushed = self.call(|generation| {
            if self.state().suspect {
                let _alone = writers.write().unwrap_or_else(PoisonError::into_inner);
                let writes = self.state().unflushed.all();
                self.replay(&generation.links, &writes)?;
            }
            let mark = self.state().unflushed.mark();
            let flush = Ask {
                command: Command::FLUSH,
                flags: CommandFlags::empty(),
                offset: 0,
                len_bytes: 0,
            };
            self.run(&generation.links[..1], [(flush, &[][..])], |_, _| Ok(()))?;
            let mut state = self.state();
            state.unflushed.flushed(mark);
            state.suspect = false;
            Ok(())
        });
        flushed.map(|_| ()).inspect_err(|_| {
            let mut state = self.state();
            state.suspect = true;
            state.unflushed.touch();
        })
    }

    /// Reserves memory for a write, if there is enough. A write that is larger than the limit gets
    /// the memory alone.
    fn try_reserve(&self, len_bytes: u64) -> Option<Reserved<'_>> {
        let len_bytes = len_bytes + WRITE_OVERHEAD_BYTES;
        let mut state = self.state();
        let used = state.unflushed.memory_bytes() + state.reserved_bytes;
        if used > 0 && used + len_bytes > self.options.unflushed_max_bytes {
            return None;
        }
        state.reserved_bytes += len_bytes;
        Some(Reserved { pool: self, len_bytes })
    }

    /// Reserves memory for a write; flushes if there is not enough. `None`: writes are not kept.
    pub fn reserve(&self, len_bytes: u64, writers: &RwLock<()>) -> Result<Option<Reserved<'_>>> {
        if !self.keeps_unflushed() {
            return Ok(None);
        }
        loop {
            if let Some(reserved) = self.try_reserve(len_bytes) {
                return Ok(Some(reserved));
            }
            self.flush(writers)?;
            // The remaining memory is reserved by other writes: some of them are acknowledged soon.
            let state = self.state();
            if state.reserved_bytes > 0 {
                let pause = Duration::from_millis(5);
                drop(self.changed.wait_timeout(state, pause));
            }
        }
    }

    /// Returns the bytes of memory that hold acknowledged writes that are not durable.
    pub fn unflushed_bytes(&self) -> u64 {
        self.state().unflushed.memory_bytes()
    }

    /// Returns the range of the acknowledged writes that are not durable.
    pub fn unflushed_range(&self) -> Option<std::ops::Range<u64>> {
        self.state().unflushed.range()
    }

    /// Returns true if acknowledged writes are kept until they are durable.
    pub fn keeps_unflushed(&self) -> bool {
        self.facts.flags.contains(TransmissionFlags::SEND_FLUSH)
    }

    /// Sends the server a disconnect request on each connection.
    pub fn disconnect(&self) {
        if let Phase::Up(links) = &self.state().phase {
            for link in links.iter() {
                link.disconnect();
            }
        }
    }

    /// Waits for a generation with connections, and starts one if no other thread does.
    fn wait_up(&self) -> Result<Generation> {
        let deadline = Instant::now() + self.options.reconnect_limit;
        let mut state = self.state();
        loop {
            let number = state.generation;
            match &mut state.phase {
                Phase::Up(links) => return Ok(Generation { number, links: Arc::clone(links) }),
                Phase::Refused(why) => return Err(Error::Changed(why.clone())),
                Phase::Down { connecting, .. } if !*connecting => {
                    *connecting = true;
                    drop(state);
                    self.reconnect(deadline)?;
                    state = self.state();
                }
                Phase::Down { why, .. } => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(self.gave_up(why));
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn gave_up(&self, why: &str) -> Error {
        let limit = self.options.reconnect_limit.as_secs_f32();
        let address = &self.options.address;
        Error::timed_out(format!("{address} could not be reached for {limit} s: {why}"))
    }

    /// Ends a generation, if it is the current one.
    fn end(&self, generation: u64, down: &Down) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let why = down.why.clone();
        let phase = Phase::Down { why, connecting: false };
        if let Phase::Up(links) = std::mem::replace(&mut state.phase, phase) {
            let address = &self.options.address;
            tracing::info!(why = down.why, %address, "the NBD server is unreachable");
            state.generation += 1;
            for link in links.iter() {
                link.break_off(down);
            }
        }
        self.changed.notify_all();
    }

    /// Tries to start the next generation until `deadline`.
    fn reconnect(&self, deadline: Instant) -> Result<()> {
        let mut pause = PAUSE_MIN;
        let result = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next_generation(left) {
                Ok(links) => {
                    self.reconnections.fetch_add(1, Ordering::Relaxed);
                    let address = &self.options.address;
                    tracing::info!(%address, "reconnected to the NBD server");
                    self.state().phase = Phase::Up(links);
                    break Ok(());
                }
                Err(Error::Changed(why)) => {
                    tracing::error!(why, "the export changed while the NBD server was unreachable");
                    self.state().phase = Phase::Refused(why.clone());
                    break Err(Error::Changed(why));
                }
                Err(e) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let why = e.to_string();
                        self.state().phase = Phase::Down { why: why.clone(), connecting: false };
                        break Err(self.gave_up(&why));
                    }
                    tracing::debug!(error = %e, "cannot reconnect yet");
                    std::thread::sleep(pause.min(left));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        };
        self.changed.notify_all();
        result
    }

    /// Connects, and repeats the writes that may be lost.
    fn next_generation(&self, limit: Duration) -> Result<Arc<[Link]>> {
        let (channel, facts) = self.options.dial(limit)?;
        self.check_same(&facts)?;
        let first = Link::start(channel, &self.facts, self.options.reply_limit)?;
        let writes = self.state().unflushed.all();
        if !writes.is_empty() {
            tracing::info!(count = writes.len(), "repeating unflushed writes");
            match self.replay(std::slice::from_ref(&first), &writes) {
                Ok(()) => {}
                Err(Interrupted::Failed(e)) => return Err(e),
                Err(Interrupted::Down(down)) => {
                    let broken = std::io::ErrorKind::ConnectionAborted.into();
                    return Err(Error::io(down.why, broken));
                }
            }
        }
        self.complete(first, limit)
    }
}
