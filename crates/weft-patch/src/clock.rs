//! The time by which blocks and transactions grow old.
//!
//! A clock is handed in with the [`Options`](crate::Options), so that a test can let an hour pass at
//! once: what is written by age does not depend on how long a test takes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A clock that never goes back.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Creates a clock from the time that has passed since any fixed moment. The function must be
    /// monotonic, and is called with the engine's lock held: it may not call the engine.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from((self.0)().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Clock {
    /// The system's monotonic clock.
    fn default() -> Self {
        let origin = Instant::now();
        Self::new(move || origin.elapsed())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&(self.0)()).finish()
    }
}
