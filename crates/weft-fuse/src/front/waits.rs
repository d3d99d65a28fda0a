//! The requests that can be interrupted, while they are under way.
//!
//! When the caller of a request gets a signal, the kernel sends one `INTERRUPT` that names the request,
//! maybe before the request was read. A wait for a lock ends with any signal. Of other calls programs do
//! not expect `EINTR` (a page fault would even be SIGBUS, and some programs get harmless signals all the
//! time), so they end only with their caller; a read(2) past the page cache also ends with the signals
//! by which users stop something ([`EndedBy`]). As there is no second `INTERRUPT`, a request whose
//! caller got another signal is looked at again until it is answered.
//!
//! To end a request is to raise its [`Interrupt`], at which waits in the file system look, and, if it
//! only reads, to answer it at once. The thread that processes it may go on for a while, in a device or
//! in a lock; its reply is dropped then, with [`Front::take_back`](super::Front::take_back).
//!
//! When the mount is to end, requests that have been waiting for [`PATIENCE`] end with `EIO`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_vfs::{Interrupt, interruptible};

use super::signals::EndedBy;
use crate::attempt::{argument, only_reads, opcode_of};
use crate::wire::{Header, Opcode, READ_LOCK_OWNER, errno, valid};

/// The most stored interrupts that arrived before their request.
const EARLY_MAX: usize = 64;

/// The interval at which a request whose caller got a signal is looked at again.
const LOOKS: Duration = Duration::from_millis(20);

/// The time that a request may still take when the mount is to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A function that answers a request with an error, from another thread than the one that processes
/// it; returns false if it cannot.
type Answer = Box<dyn FnOnce(i32) -> bool + Send>;

/// The requests of a mount that can be interrupted.
#[derive(Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    is_ending: AtomicBool,
}

#[derive(Default)]
struct State {
    requests: HashMap<u64, Request>,
    early: VecDeque<u64>,
    /// A thread looks at the requests again.
    watched: bool,
    /// The mount is to end.
    ending: bool,
    /// The mount has ended.
    ended: bool,
}

struct Request {
    interrupt: Arc<Interrupt>,
    ended_by: EndedBy,
    /// The thread of the caller.
    caller: u32,
    /// `None` for a request that must not be answered early.
    answer: Option<Answer>,
    answered: bool,
    /// The caller got a signal.
    signalled: bool,
    /// The time when this request was first seen after the mount was to end.
    seen: Option<Instant>,
}

impl Request {
    fn end(&mut self, errno: i32) {
        if self.interrupt.is_raised() {
            return;
        }
        self.interrupt.raise();
        self.answered = self.answer.take().is_some_and(|answer| answer(errno));
    }
}

impl State {
    /// Ends the requests that are to end; returns true if others may have to later.
    fn look(&mut self) -> bool {
        let mut may_later = self.ending;
        for request in self.requests.values_mut() {
            if request.signalled {
                if request.ended_by.is_met(request.caller) {
                    request.end(errno::EINTR);
                } else {
                    may_later = true;
                }
            }
            if self.ending {
                let seen = *request.seen.get_or_insert_with(Instant::now);
                if seen.elapsed() >= PATIENCE {
                    request.end(errno::EIO);
                }
            }
        }
        may_later && !self.ended
    }
}

/// Returns what ends a request, and whether it may be answered while it is processed; `None` if it
/// cannot be interrupted.
fn interruption(request: &[u8]) -> Option<(EndedBy, bool)> {
    match opcode_of(request)? {
        Opcode::SetLkW => Some((EndedBy::AnySignal, false)),
        // A long one can stop anywhere.
        Opcode::SetAttr if argument(request, 0)? & valid::SIZE != 0 => {
            Some((EndedBy::Death, false))
        }
        Opcode::Read if argument(request, 20)? & READ_LOCK_OWNER != 0 => {
            Some((EndedBy::StopSignal, true))
        }
        Opcode::Open | Opcode::LSeek => Some((EndedBy::Death, true)),
        _ => only_reads(request).then_some((EndedBy::Death, true)),
    }
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a request by `process`; if it can be interrupted, that is possible meanwhile. Returns
    /// `None` if it was answered meanwhile, by what `answer` returns.
    pub(crate) fn during<R, A>(
        self: &Arc<Self>,
        request: &[u8],
        answer: impl FnOnce() -> A,
        process: impl FnOnce() -> R,
    ) -> Option<R>
    where
        A: FnOnce(i32) -> bool + Send + 'static,
    {
        let head = Header::split(request).map(|(head, _)| head);
        let (Some(head), Some((ended_by, early))) = (head, interruption(request)) else {
            return Some(process());
        };
        let interrupt: Arc<Interrupt> = Arc::default();
        let answer = early.then(|| -> Answer { Box::new(answer()) });
        let mut state = self.lock();
        let signal = state.early.iter().position(|&early| early == head.unique);
        let signalled = signal.and_then(|at| state.early.remove(at)).is_some();
        if state.ended {
            interrupt.raise();
        }
        let request = Request {
            interrupt: Arc::clone(&interrupt),
            ended_by,
            caller: head.pid,
            answer,
            answered: false,
            signalled,
            seen: None,
        };
        state.requests.insert(head.unique, request);
        if signalled {
            self.look(state);
        } else {
            drop(state);
        }
        let result = interruptible(interrupt, process);
        let request = self.lock().requests.remove(&head.unique);
        request.is_none_or(|request| !request.answered).then_some(result)
    }

    /// Notes that the caller of a request got a signal.
    pub(super) fn interrupt(self: &Arc<Self>, unique: u64) {
        let mut state = self.lock();
        if let Some(request) = state.requests.get_mut(&unique) {
            request.signalled = true;
            return self.look(state);
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// Looks at the requests now, and again for as long as necessary.
    fn look(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if !state.look() || std::mem::replace(&mut state.watched, true) {
            return;
        }
        drop(state);
        let this = Arc::clone(self);
        let watch = move || {
            loop {
                std::thread::sleep(LOOKS);
                let mut state = this.lock();
                if !state.look() {
                    state.watched = false;
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weft-interrupts".into());
        if let Err(e) = thread.spawn(watch) {
            tracing::warn!("cannot start a thread: {e}");
            self.lock().watched = false;
        }
    }

    /// Ends from now on the requests that have been waiting for [`PATIENCE`], as the mount is to end.
    pub(crate) fn end_soon(self: &Arc<Self>) {
        self.is_ending.store(true, Ordering::Release);
        let mut state = self.lock();
        state.ending = true;
        self.look(state);
    }

    /// Returns true if the mount is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Interrupts all requests, as the mount has ended.
    pub(crate) fn end_all(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.requests.values().for_each(|request| request.interrupt.raise());
    }
}
