//! A hill climber: moves a parameter in the direction in which the hit ratio rises.
//!
//! G. Einziger, O. Eytan, R. Friedman, B. Manes: "Adaptive Software Cache Management", Middleware
//! 2018; the numbers are those of the Caffeine library. The hit ratio of one sample is compared
//! with that of the sample before: if it fell, the direction turns. The step shrinks from sample to
//! sample, so that the search settles, and starts anew when the hit ratio jumps, which is taken for
//! another workload.

/// A sample in uses, as a multiple of the slots.
const SAMPLE: u64 = 10;
/// The first step, as a fraction of the slots.
const STEP: f64 = 0.0625;
const STEP_DECAY: f64 = 0.98;
/// A change of the hit ratio that restarts the search.
const RESTART: f64 = 0.05;

/// Watches hits and misses, and says how to change the size of the window.
#[derive(Debug)]
pub(super) struct Climber {
    slots: u32,
    hits: u64,
    misses: u64,
    previous: f64,
    grow: bool,
    step: f64,
}

impl Climber {
    pub(super) fn new(slots: u32) -> Climber {
        Climber {
            slots,
            hits: 0,
            misses: 0,
            previous: 0.0,
            grow: false,
            step: f64::from(slots) * STEP,
        }
    }

    /// Counts a use. At the end of a sample, by how many slots to change the window.
    pub(super) fn count(&mut self, hit: bool) -> Option<f64> {
        if hit {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        let uses = self.hits + self.misses;
        if uses < (u64::from(self.slots) * SAMPLE).max(1) {
            return None;
        }
        let ratio = self.hits as f64 / uses as f64;
        if ratio < self.previous {
            self.grow = !self.grow;
        }
        if (ratio - self.previous).abs() >= RESTART {
            self.step = f64::from(self.slots) * STEP;
        }
        let change = if self.grow { self.step } else { -self.step };
        self.step *= STEP_DECAY;
        self.previous = ratio;
        self.hits = 0;
        self.misses = 0;
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(climber: &mut Climber, hits: u32) -> f64 {
        let change = (0..1_000).filter_map(|use_| climber.count(use_ < hits)).last();
        change.expect("a sample is ten uses a slot")
    }

    #[test]
    fn it_turns_when_the_hit_ratio_falls_and_restarts_when_it_jumps() {
        let mut climber = Climber::new(100);
        assert_eq!(sample(&mut climber, 500), -6.25);
        let smaller = sample(&mut climber, 520);
        assert!(smaller < 0.0 && smaller > -6.25);
        assert!(sample(&mut climber, 510) > 0.0);
        assert_eq!(sample(&mut climber, 900), 6.25);
    }
}
