//! The calls that wait for locks.
//!
//! A waiting request occupies a thread, and is ended by an `INTERRUPT` that names it. The kernel
//! sends that when the caller gets a signal, even before the request was read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_vfs::Interrupt;

/// The most stored interrupts that arrived before their request.
const EARLY_MAX: usize = 64;

/// The calls that wait for locks.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    waiting: HashMap<u64, Arc<Interrupt>>,
    early: VecDeque<u64>,
    ended: bool,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, request: u64) -> Arc<Interrupt> {
        let mut state = self.lock();
        let interrupt = Arc::new(Interrupt::default());
        let early = state.early.iter().position(|&early| early == request);
        if early.and_then(|at| state.early.remove(at)).is_some() || state.ended {
            interrupt.raise();
        }
        state.waiting.insert(request, Arc::clone(&interrupt));
        interrupt
    }

    pub(super) fn end(&self, request: u64) {
        self.lock().waiting.remove(&request);
    }

    pub(super) fn interrupt(&self, request: u64) {
        let mut state = self.lock();
        if let Some(interrupt) = state.waiting.get(&request).cloned() {
            drop(state);
            return interrupt.raise();
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(request);
    }

    /// Ends all waiting calls, as the mount has ended.
    pub(crate) fn end_all(&self) {
        let mut state = self.lock();
        state.ended = true;
        let waiting: Vec<_> = state.waiting.values().cloned().collect();
        drop(state);
        waiting.iter().for_each(|interrupt| interrupt.raise());
    }
}
