//! The thread pool that reads requests, on the leader/follower pattern.
//!
//! One worker, the *leader*, reads requests; the others rest. A leader answers short requests
//! itself and continues to read, so that a stream of them (an unpacking, a removal) wakes no thread
//! and stays in one cache. Before a request that is likely to take long it makes another worker the
//! leader; and if a short one turns out long (a directory that must come from the disk), the
//! *standby* thread notices and does so. Hence two rules: there is never more than one reader, and
//! a slow request delays others by at most two periods of the standby.
//!
//! If the file system can tell that a request would wait, the leader gives it away and goes on
//! (`serve`). It is then watched only in requests that are not tried, and in those that change
//! something: their first change may be followed by a wait.
//!
//! A request may wait for another request, in this mount or elsewhere: for a lock, or for a server
//! whose start waits for a `close` here. So a mount never stands still because all its workers
//! wait: if no worker has read requests for [`PATIENCE`], the standby adds a worker, up to
//! [`WORKERS_MAX`] that wait. Added workers leave when they have had nothing to do for [`LINGER`].

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the standby checks whether the leader is stuck.
pub(crate) const WATCH_PERIOD: Duration = Duration::from_micros(250);

/// The interval if the leader gives away requests that would wait: few are left that take long, and
/// each wake-up of the standby makes the scheduler move the leader away from its caller.
pub(crate) const WATCH_PERIOD_RARE: Duration = Duration::from_millis(10);

/// The number of periods in a row without a request after which the standby rests.
const QUIET_PERIODS: u32 = 40;

/// The time without a reader after which a worker is added.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most added workers, without those that are parked.
const WORKERS_MAX: usize = 128;

/// The most workers that wait for locks, or process a request that is answered already. Beyond that,
/// locks are refused, and requests not answered early.
const PARKED_MAX: usize = 1024;

/// The time that an added worker rests before it leaves.
const LINGER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    /// The current turn: a worker leads while its ticket has this number.
    turn: u64,
    /// There is no leader.
    vacant: bool,
    /// The leader is answering a request itself.
    answering: bool,
    /// Requests that leaders began to answer themselves.
    begun: u64,
    standby_rests: bool,
    /// Workers that rest.
    resting: usize,
    /// Workers that were added and have not left.
    added: usize,
    /// Workers that wait for a lock of another caller, or process a request that is answered already.
    parked: usize,
    /// A worker that waits for a lock was the last that could read requests.
    wants_worker: bool,
    ended: bool,
}

impl State {
    /// Returns true if no worker reads requests, and none rests that could.
    fn is_short(&self) -> bool {
        self.vacant && self.resting == 0
    }

    fn may_grow(&self) -> bool {
        self.added < WORKERS_MAX + self.parked
    }
}

/// The thread pool of one mount.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    state: Mutex<State>,
    /// Signals that a leader is needed, or that the mount has ended.
    call: Condvar,
    /// Wakes the standby.
    watch: Condvar,
}

/// The right to read requests, until it is handed over or taken away.
#[derive(Debug)]
pub(crate) struct Turn(u64);

impl ThreadPool {
    pub(crate) fn new() -> Self {
        let state = State { vacant: true, ..State::default() };
        Self { state: Mutex::new(state), call: Condvar::new(), watch: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rests until this worker becomes the leader; `None` at the end.
    pub(crate) fn lead(&self) -> Option<Turn> {
        self.take_turn(None)
    }

    /// As [`lead`](Self::lead), for an added worker; `None` also when it is no longer needed.
    pub(crate) fn lead_for_now(&self) -> Option<Turn> {
        let turn = self.take_turn(Some(LINGER));
        if turn.is_none() {
            self.lock().added -= 1;
        }
        turn
    }

    fn take_turn(&self, limit: Option<Duration>) -> Option<Turn> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if state.vacant {
                state.vacant = false;
                state.answering = false;
                state.turn += 1;
                return Some(Turn(state.turn));
            }
            state.resting += 1;
            let mut is_late = false;
            state = match limit {
                None => self.call.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let woken = self.call.wait_timeout(state, limit);
                    let (state, waited) = woken.unwrap_or_else(PoisonError::into_inner);
                    is_late = waited.timed_out();
                    state
                }
            };
            state.resting -= 1;
            if is_late && !state.vacant {
                return None;
            }
        }
    }

    /// Makes another worker the leader.
    pub(crate) fn hand_over(&self, Turn(mine): Turn) {
        let mut state = self.lock();
        if state.turn == mine {
            state.vacant = true;
            let wake = state.is_short() && std::mem::take(&mut state.standby_rests);
            drop(state);
            self.call.notify_one();
            if wake {
                self.watch.notify_one();
            }
        }
    }

    /// Registers a worker that waits for a lock, or whose request is answered already. Returns false if too many do.
    pub(crate) fn park(&self) -> bool {
        let mut state = self.lock();
        let may = state.parked < PARKED_MAX;
        state.parked += usize::from(may);
        if may && state.is_short() {
            state.wants_worker = true;
            state.standby_rests = false;
            drop(state);
            self.watch.notify_one();
        }
        may
    }

    /// Removes such a worker that is free again.
    pub(crate) fn unpark(&self) {
        self.lock().parked -= 1;
    }

    /// Records that the leader starts to answer a request itself.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        state.answering = true;
        state.begun += 1;
        if state.standby_rests {
            state.standby_rests = false;
            drop(state);
            self.watch.notify_one();
        }
    }

    /// Records that the leader has answered; returns the turn unless it was taken away meanwhile.
    pub(crate) fn done(&self, turn: Turn) -> Option<Turn> {
        let mut state = self.lock();
        if state.turn != turn.0 || state.vacant {
            return None;
        }
        state.answering = false;
        Some(turn)
    }

    /// Ends the pool: no worker becomes the leader any more.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.call.notify_all();
        self.watch.notify_all();
    }

    /// Watches the leaders until the end, at intervals of `period`. `add` starts one more worker, and returns false if it
    /// cannot.
    pub(crate) fn stand_by(&self, period: Duration, mut add: impl FnMut() -> bool) {
        let (mut seen, mut quiet) = (0, 0);
        let mut short_since: Option<Instant> = None;
        let mut state = self.lock();
        while !state.ended {
            let begun = state.begun - seen;
            seen = state.begun;
            if begun > 0 {
                quiet = 0;
            } else if state.answering && !state.vacant {
                // The leader was in the same request for a whole period: another worker takes over.
                state.vacant = true;
                self.call.notify_one();
            } else if state.is_short() && state.may_grow() {
                let long = short_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE;
                if long || state.wants_worker {
                    (short_since, state.wants_worker) = (None, false);
                    state.added += 1;
                    drop(state);
                    let is_there = add();
                    state = self.lock();
                    state.added -= usize::from(!is_there);
                }
            } else {
                short_since = None;
                quiet += 1;
            }
            state.standby_rests = quiet >= QUIET_PERIODS;
            if state.standby_rests {
                quiet = 0;
                let rests = |state: &mut State| state.standby_rests && !state.ended;
                let woken = self.watch.wait_while(state, rests);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            std::thread::sleep(period);
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_leader_at_a_time() {
        let pool = ThreadPool::new();
        let turn = pool.lead().expect("first");
        pool.begin();
        let turn = pool.done(turn).expect("kept");
        pool.hand_over(turn);
        let second = pool.lead().expect("second");
        pool.end();
        assert!(pool.lead().is_none());
        pool.hand_over(second);
        assert!(pool.lead().is_none());
    }

    #[test]
    fn standby_replaces_a_stuck_leader() {
        let pool = ThreadPool::new();
        std::thread::scope(|scope| {
            scope.spawn(|| pool.stand_by(WATCH_PERIOD, || false));
            let stuck = pool.lead().expect("first");
            pool.begin();
            // Blocks until the standby has noticed that the first worker is stuck.
            let other = pool.lead().expect("second");
            assert!(pool.done(stuck).is_none(), "the first one has lost its turn");
            pool.begin();
            let other = pool.done(other).expect("kept");
            // A stale turn has no effect.
            pool.hand_over(Turn(1));
            pool.begin();
            assert!(pool.done(other).is_some());
            pool.end();
        });
    }

    #[test]
    fn a_worker_is_added_when_all_wait_and_none_when_one_rests() {
        let pool = ThreadPool::new();
        let added = std::sync::atomic::AtomicUsize::new(0);
        let count = || {
            added.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            true
        };
        std::thread::scope(|scope| {
            scope.spawn(|| pool.stand_by(WATCH_PERIOD, count));
            let stuck = pool.lead().expect("first");
            pool.begin();
            // Only an added worker can take over: there is no other.
            while added.load(std::sync::atomic::Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let second = pool.lead_for_now().expect("the one that was added");
            assert!(pool.done(stuck).is_none());
            // A request that is known to take long is covered as well, also when the standby rests.
            std::thread::sleep(WATCH_PERIOD * (QUIET_PERIODS + 20));
            let before = added.load(std::sync::atomic::Ordering::Acquire);
            assert_eq!(before, 1, "the one that was added reads requests");
            pool.hand_over(second);
            while added.load(std::sync::atomic::Ordering::Acquire) == before {
                std::thread::yield_now();
            }
            pool.end();
        });
    }

    #[test]
    fn a_leader_that_waits_for_requests_is_not_stuck() {
        let pool = ThreadPool::new();
        std::thread::scope(|scope| {
            scope.spawn(|| pool.stand_by(WATCH_PERIOD, || false));
            let turn = pool.lead().expect("first");
            pool.begin();
            let turn = pool.done(turn).expect("kept");
            // Long enough for the standby to rest, too.
            std::thread::sleep(WATCH_PERIOD * (QUIET_PERIODS + 20));
            pool.begin();
            assert!(pool.done(turn).is_some());
            pool.end();
        });
    }
}
