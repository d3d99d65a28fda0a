//! The time for which the kernel may keep the attributes of views.

use std::time::{Duration, Instant};

/// The lifetime of a view's attributes in the kernel.
const GRANTED_FOR: Duration = Duration::from_millis(10);

/// The time after which the kernel has certainly dropped them. It is longer than the lifetime, which the
/// kernel counts from the arrival of the reply.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(40);

/// The time after a change in which no lifetime is granted, so that a program that changes a file and
/// reads its views in turn need not wait.
const QUIET: Duration = Duration::from_secs(1);

/// The lifetimes granted for the views of one file. A change of the file waits until the last one is
/// over. Without a lifetime the kernel would ask for the attributes of a view before each read.
#[derive(Debug, Default)]
pub(super) struct AttrLifetime {
    until: Option<Instant>,
    changed: Option<Instant>,
}

impl AttrLifetime {
    /// Returns the lifetime of attributes that are looked up after `now`.
    pub(super) fn grant(&mut self, now: Instant) -> Duration {
        if self.changed.is_some_and(|changed| now.saturating_duration_since(changed) < QUIET) {
            return Duration::ZERO;
        }
        self.until = Some(now + FORGOTTEN_AFTER);
        GRANTED_FOR
    }

    /// The file is about to change. Returns how long that has to wait.
    pub(super) fn change(&mut self, now: Instant) -> Duration {
        self.changed = Some(now);
        self.until.take().map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_waits_for_the_lifetime_that_was_granted() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut lifetime = AttrLifetime::default();
        assert_eq!(lifetime.change(start), Duration::ZERO);
        assert_eq!(lifetime.grant(at(999)), Duration::ZERO);
        assert_eq!(lifetime.grant(at(1000)), GRANTED_FOR);
        assert_eq!(lifetime.grant(at(1010)), GRANTED_FOR);
        assert_eq!(lifetime.change(at(1015)), FORGOTTEN_AFTER - Duration::from_millis(5));
        assert_eq!(lifetime.change(at(1016)), Duration::ZERO);
        assert_eq!(lifetime.grant(at(1016)), Duration::ZERO);
        assert_eq!(lifetime.grant(at(2016)), GRANTED_FOR);
        assert_eq!(lifetime.change(at(3000)), Duration::ZERO);
    }
}
