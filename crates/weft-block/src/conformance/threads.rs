//! Requests of many threads at once.

use super::{Bench, assert_same, content, pattern};
use crate::Rng;

const THREADS: u64 = 4;
const REQUESTS: usize = 60;

pub(super) fn reads_together(bench: &Bench<'_>) {
    if bench.is_writable() {
        let bytes = pattern(1, bench.len_bytes() as usize);
        bench.device.write_at(&bytes, 0).expect("a write of the whole device");
    }
    let (whole, device, seed) = (&content(bench.device), bench.device, bench.limits.seed);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut rng = Rng::stream(seed, thread);
                for _ in 0..REQUESTS {
                    let at = rng.index(whole.len());
                    let len = rng.index(whole.len() - at).min(1 << rng.below(18));
                    let mut part = vec![0xaa; len];
                    device.read_at(&mut part, at as u64).expect("a read");
                    assert_same(&part, &whole[at..at + len], &format!("{len} bytes at {at}"));
                }
            });
        }
    });
}

/// Threads that share no byte, and blocks only where their ranges meet.
pub(super) fn ranges_of_their_own(bench: &Bench<'_>) {
    if !bench.is_writable() {
        return;
    }
    let share = bench.len_bytes() / THREADS - 77;
    let (device, seed) = (bench.device, bench.limits.seed);
    let work = |thread: u64| {
        let start = thread * share;
        let mut rng = Rng::stream(seed, thread);
        let mut model = pattern(thread, share as usize);
        device.write_at(&model, start).expect("a write");
        for request in 0..REQUESTS {
            let at = rng.index(model.len());
            let len = rng.index(model.len() - at).min(1 << rng.below(16));
            let offset = start + at as u64;
            let part = &mut model[at..at + len];
            match rng.below(5) {
                0 => device.flush().expect("a flush"),
                1 => {
                    part.fill(0);
                    device.write_zeroes(offset, len as u64).expect("zeroes");
                }
                2 => {
                    let mut found = vec![0xaa; len];
                    device.read_at(&mut found, offset).expect("a read");
                    assert_same(&found, part, &format!("{len} bytes at {offset}"));
                }
                _ => {
                    part.copy_from_slice(&pattern(request as u64, len));
                    device.write_at(part, offset).expect("a write");
                }
            }
        }
        model
    };
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().map(|t| t.join().expect("a thread of this case")).collect()
    });
    let wanted = models.concat();
    assert_same(&content(bench.device)[..wanted.len()], &wanted, "what the threads wrote");
}
