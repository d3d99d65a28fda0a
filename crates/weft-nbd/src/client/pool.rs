//! The connections of a device: made again when they break, and what was not durable written
//! again before anything else goes over them.
//!
//! Connections live in *generations*: when one breaks, all are closed, and the next generation
//! begins once the server is reached, is found to be the same, and has been sent everything that
//! it acknowledged and may have lost. Whoever waited for a reply then sends its request anew.
//!
//! # Invariants
//!
//! - A write counts as acknowledged only if its generation was still alive when that was noted
//!   down ([`Pool::commit`]); so each is either written again by the next generation, or made
//!   anew by whoever waits for it.
//! - A generation whose replay failed never carries a request.
//! - A server that came back different is never written to.
//!
//! What NBD cannot promise: a server that lives on after a connection broke may still be working
//! on a request of it, and do a write of the past after one of the present. Servers that finish or
//! drop what a closed connection asked for before long (all known do) make that window small.

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

/// Requests under way at once for one call.
pub(crate) const WINDOW: usize = 16;
/// The longest request that is made, in bytes, if the server allows it.
const PIECE_MAX_BYTES: u32 = 2 << 20;
/// The longest range that one request without a payload names, in bytes, where its length has 32
/// bits: a multiple of every block size.
const RANGE_MAX_BYTES: u64 = 1 << 30;
/// Pauses between attempts to connect: doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a call is begun anew while the server can be reached, and breaks each time.
const ATTEMPTS_MAX: u32 = 8;

/// One generation.
#[derive(Clone)]
pub(crate) struct Generation {
    pub number: u64,
    pub links: Arc<[Link]>,
}

enum Phase {
    Up(Arc<[Link]>),
    /// Somebody may be at work to change that.
    Down {
        why: String,
        connecting: bool,
    },
    /// For good.
    Refused(String),
}

struct State {
    generation: u64,
    phase: Phase,
    unflushed: Unflushed,
    /// Room for what is being written, in bytes.
    reserved_bytes: u64,
    /// A flush failed: the server may have dropped what it covers and forgotten that it did.
    suspect: bool,
}

/// The connections, and what is not durable.
pub(crate) struct Pool {
    options: Options,
    facts: Facts,
    state: Mutex<State>,
    changed: Condvar,
    /// One flush at a time.
    flushing: Mutex<()>,
    turn: AtomicUsize,
    pub reconnections: AtomicU64,
}

/// Why a call over a generation did not come to its end.
pub(crate) enum Interrupted {
    /// The generation ended: try the next one.
    Down(Down),
    /// It failed.
    Failed(Error),
}

/// Room for a write that is on its way. Given back when that has been noted down, or has failed.
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
        // Somebody before this device may have written what is not durable yet.
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

    /// The longest request, in bytes: a multiple of the minimum block size.
    pub fn piece_bytes(&self) -> u32 {
        let sizes = self.facts.sizes;
        let max = sizes.max.min(PIECE_MAX_BYTES);
        (max - max % sizes.min).max(sizes.min)
    }

    /// The longest request for zeroes, in bytes: servers without extended headers hold it to the
    /// maximum block size.
    pub fn zeroes_bytes(&self) -> u64 {
        let sizes = self.facts.sizes;
        let max = if self.facts.extended { u64::MAX } else { sizes.max.into() };
        let max = max.min(self.effect_bytes());
        max - max % u64::from(sizes.min)
    }

    /// The longest request without a payload, in bytes: a multiple of the minimum block size.
    pub fn effect_bytes(&self) -> u64 {
        let sizes = self.facts.sizes;
        let max = if self.facts.extended { 1 << 62 } else { RANGE_MAX_BYTES };
        max - max % u64::from(sizes.min)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The other connections beside the first, if the server can serve one client on several.
    fn complete(&self, first: Link, limit: Duration) -> Result<Arc<[Link]>> {
        let multi = self.facts.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
        let count = if multi { self.options.connections.max(1) } else { 1 };
        let mut links = vec![first];
        while links.len() < count {
            // A server that is full serves with fewer.
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
        let changed = if now.len_bytes != then.len_bytes {
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
            "it answers in another way".into()
        } else {
            return Ok(());
        };
        Err(Error::Changed(changed))
    }

    /// Runs a call over one generation after the other until it comes to its end. Returns the
    /// number of that generation too.
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

    /// Notes down an acknowledged write of a generation. `false`: the generation has ended, and
    /// the write must be made anew.
    pub fn commit(&self, generation: u64, note: impl FnOnce(&mut Unflushed)) -> bool {
        let mut state = self.state();
        let alive = state.generation == generation;
        if alive {
            note(&mut state.unflushed);
        }
        alive
    }

    /// Sends requests with their payloads, a window of them at a time, over all links; `done` gets
    /// each reply. All are answered when this returns, unless a link broke.
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

    /// Writes what is not durable again. Nobody else may be writing.
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

    /// Makes every write that was acknowledged durable.
    ///
    /// `writers` is held by whoever writes: after a flush that failed, the writes that it should
    /// have made durable are made again first, as the server may have dropped them, and nobody
    /// may write meanwhile.
    pub fn flush(&self, writers: &RwLock<()>) -> Result<()> {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.facts.flags.contains(TransmissionFlags::SEND_FLUSH) {
            // The server has no cache, or none it could be told to write.
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

    /// Takes room for a write in the memory for what is not durable, if there is some. A write
    /// that is larger than all of it gets it alone.
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

    /// Takes room for a write, and flushes if there is none. `None`: nothing is kept.
    pub fn reserve(&self, len_bytes: u64, writers: &RwLock<()>) -> Result<Option<Reserved<'_>>> {
        if !self.keeps_unflushed() {
            return Ok(None);
        }
        loop {
            if let Some(reserved) = self.try_reserve(len_bytes) {
                return Ok(Some(reserved));
            }
            self.flush(writers)?;
            // What is left is being written by others: some of it becomes acknowledged soon.
            let state = self.state();
            if state.reserved_bytes > 0 {
                let pause = Duration::from_millis(5);
                drop(self.changed.wait_timeout(state, pause));
            }
        }
    }

    /// Memory that holds what is acknowledged and not durable, in bytes.
    pub fn unflushed_bytes(&self) -> u64 {
        self.state().unflushed.memory_bytes()
    }

    /// Where what is acknowledged and not durable lies.
    pub fn unflushed_range(&self) -> Option<std::ops::Range<u64>> {
        self.state().unflushed.range()
    }

    /// Whether what is acknowledged is to be kept until it is durable.
    pub fn keeps_unflushed(&self) -> bool {
        self.facts.flags.contains(TransmissionFlags::SEND_FLUSH)
    }

    /// Takes leave of the server.
    pub fn disconnect(&self) {
        if let Phase::Up(links) = &self.state().phase {
            for link in links.iter() {
                link.disconnect();
            }
        }
    }

    /// Waits for a generation to be up, and makes one if nobody else does.
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

    /// Ends a generation, if it is the one there is.
    fn end(&self, generation: u64, down: &Down) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let why = down.why.clone();
        let phase = Phase::Down { why, connecting: false };
        if let Phase::Up(links) = std::mem::replace(&mut state.phase, phase) {
            tracing::info!(why = down.why, address = %self.options.address, "the NBD server is away");
            state.generation += 1;
            for link in links.iter() {
                link.break_off(down);
            }
        }
        self.changed.notify_all();
    }

    /// Tries to begin the next generation until `deadline`.
    fn reconnect(&self, deadline: Instant) -> Result<()> {
        let mut pause = PAUSE_MIN;
        let result = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next_generation(left) {
                Ok(links) => {
                    self.reconnections.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(address = %self.options.address, "the NBD server is back");
                    self.state().phase = Phase::Up(links);
                    break Ok(());
                }
                Err(Error::Changed(why)) => {
                    tracing::error!(why, "the NBD server came back different");
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

    /// Connects, and writes again what may be lost.
    fn next_generation(&self, limit: Duration) -> Result<Arc<[Link]>> {
        let (channel, facts) = self.options.dial(limit)?;
        self.check_same(&facts)?;
        let first = Link::start(channel, &self.facts, self.options.reply_limit)?;
        let writes = self.state().unflushed.all();
        if !writes.is_empty() {
            tracing::info!(count = writes.len(), "writing again what was not flushed");
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
