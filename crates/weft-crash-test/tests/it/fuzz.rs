//! Replays the fuzz target of recordings and logs on seeded inputs.

use weft_block::Rng;

#[allow(dead_code, reason = "shared with cargo-fuzz")]
#[path = "../../../../fuzz/recordings.rs"]
mod target;

#[test]
fn damaged_recordings_are_refused_or_searched() {
    target::recordings(b"");
    for seed in 0..1500 {
        target::recordings(&changes(seed));
    }
}

#[test]
fn damaged_logs_are_refused_or_searched() {
    target::logs(b"");
    for seed in 0..400 {
        target::logs(&changes(seed));
    }
}

fn changes(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut changes = vec![0; 3 * (1 + rng.index(4))];
    rng.fill(&mut changes);
    // Half of the changes write a digit: numbers that are others, in texts that can be read.
    if seed.is_multiple_of(2) {
        changes.chunks_exact_mut(3).for_each(|change| change[2] = b'0' + change[2] % 10);
    }
    changes
}
