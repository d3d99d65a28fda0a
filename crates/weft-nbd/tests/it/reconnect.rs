//! The server goes away, comes back, comes back without what it had not flushed, comes back as
//! somebody else.

use crate::bench::Bench;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, CrashDevice, Fault, FaultDevice, MemoryDevice, Request, Rng, Rule};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::{Export, NbdDevice};

const THREADS: u64 = 3;
const SHARE: u64 = 1 << 20;

/// Writes, reads and flushes its share of the device until told to stop; returns what it must hold.
fn load(device: &NbdDevice, seed: u64, thread: u64, stop: &AtomicBool) -> Vec<u8> {
    let mut rng = Rng::stream(seed, thread);
    let base = thread * SHARE;
    let mut model = vec![0; SHARE as usize];
    while !stop.load(Ordering::Relaxed) {
        let len = 512 * (1 + rng.index(64));
        let at = rng.index(model.len() / 512 - len / 512) * 512;
        let range = at..at + len;
        match rng.below(8) {
            0..=3 => {
                rng.fill(&mut model[range.clone()]);
                device.write_at(&model[range], base + at as u64).expect("a write");
            }
            4 => {
                device.write_zeroes(base + at as u64, len as u64).expect("zeroes");
                model[range].fill(0);
            }
            5 => device.flush().expect("a flush"),
            _ => {
                let mut got = vec![0; len];
                device.read_at(&mut got, base + at as u64).expect("a read");
                assert!(got == model[range], "seed {seed}, thread {thread}: {len} bytes at {at}");
            }
        }
    }
    model
}

#[test]
fn nothing_is_lost_when_the_server_crashes_under_load() {
    for seed in 0..3 {
        let bench = Bench::new();
        let disk = Arc::new(CrashDevice::new(MemoryDevice::new(THREADS * SHARE), seed));
        let mut server = bench.serve(Arc::clone(&disk) as _);
        let device = bench.connect();
        let stop = AtomicBool::new(false);
        let (models, server): (Vec<Vec<u8>>, _) = std::thread::scope(|scope| {
            let (device, stop) = (&device, &stop);
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || load(device, seed, thread, stop)))
                .collect();
            for crash in 0..6 {
                std::thread::sleep(Duration::from_millis(40 + 13 * crash));
                // Cuts every connection, whatever is under way, and then the power.
                drop(server);
                disk.crash().expect("the plug is pulled");
                disk.power_on();
                std::thread::sleep(Duration::from_millis(20 * (crash % 3)));
                server = bench.serve(Arc::clone(&disk) as _);
            }
            std::thread::sleep(Duration::from_millis(60));
            stop.store(true, Ordering::Relaxed);
            (workers.into_iter().map(|w| w.join().expect("a worker")).collect(), server)
        });
        assert!(device.reconnections() >= 3, "seed {seed}: {}", device.reconnections());
        // A flush that returns means it, also for what was written before a crash.
        device.flush().expect("the last flush");
        drop((device, server));
        disk.crash().expect("the plug is pulled");
        disk.power_on();
        for (thread, model) in (0..).zip(&models) {
            let mut kept = vec![0; SHARE as usize];
            disk.read_at(&mut kept, thread * SHARE).expect("a read");
            assert!(&kept == model, "seed {seed}: thread {thread} lost something");
        }
    }
}

#[test]
fn a_failed_flush_is_not_forgotten() {
    // The server says once that a flush failed, and has dropped what it should have written.
    let bench = Bench::new();
    let crash = Arc::new(CrashDevice::new(MemoryDevice::new(1 << 20), 1));
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&crash)));
    let _server = bench.serve(Arc::clone(&faulty) as _);
    let device = bench.connect();
    device.write_at(&[7; 8192], 4096).expect("a write");
    faulty.add(Rule::nth(Request::Flush, 1, Fault::EIO));
    assert!(device.flush().is_err());
    // As a kernel does that marks pages clean after a failed write-back.
    crash.inner().write_at(&[0; 8192], 4096).expect("the medium is as before");
    crash.crash().expect("the cache is lost");
    crash.power_on();
    device.flush().expect("the second flush");
    let mut got = vec![0; 8192];
    crash.inner().read_at(&mut got, 4096).expect("a read");
    assert!(got == vec![7; 8192], "a flush that returned did not mean it");
}

#[test]
fn a_server_that_stays_away_is_given_up_in_time() {
    let bench = Bench::new();
    let server = bench.serve(Arc::new(MemoryDevice::new(1 << 20)));
    let mut options = bench.options();
    options.reconnect_limit = Duration::from_millis(300);
    let device = NbdDevice::connect(options).expect("it connects");
    drop(server);
    let begun = Instant::now();
    let error = device.read_at(&mut [0; 512], 0).expect_err("nobody is there");
    assert!(begun.elapsed() >= Duration::from_millis(250), "it waited");
    assert!(begun.elapsed() < Duration::from_secs(8), "but not for ever");
    assert!(error.to_string().contains("could not be reached"), "{error}");
    // And it is there again when the server is.
    let _server = bench.serve(Arc::new(MemoryDevice::new(1 << 20)));
    device.read_at(&mut [0; 512], 0).expect("a read");
}

#[test]
fn another_export_of_the_same_name_is_refused() {
    fn export(len_bytes: u64) -> Export {
        Export::new("", Arc::new(MemoryDevice::new(len_bytes)))
    }
    let changes: [fn() -> Export; 3] = [
        || export(2 << 20),
        || Export { description: "another disk".into(), ..export(1 << 20) },
        || Export { read_only: true, ..export(1 << 20) },
    ];
    for change in changes {
        let bench = Bench::new();
        let server = bench.serve_with(vec![export(1 << 20)], ServerOptions::default());
        let device = bench.connect();
        device.write_at(&[1; 512], 0).expect("a write");
        drop(server);
        let changed = change();
        let disk = Arc::clone(&changed.device);
        let server = bench.serve_with(vec![changed], ServerOptions::default());
        let error = device.write_at(&[2; 512], 0).expect_err("it is not the same");
        assert!(error.to_string().contains("has changed"), "{error}");
        let error = device.flush().expect_err("for good");
        assert!(error.to_string().contains("has changed"), "{error}");
        let mut now = [9; 512];
        disk.read_at(&mut now, 0).expect("a read");
        assert_eq!(now, [0; 512], "nothing was written to the other disk");
        drop(server);
    }
}

#[test]
fn a_server_that_is_told_to_stop_finishes_what_it_has_begun() {
    let bench = Bench::new();
    let slow = Arc::new(FaultDevice::new(MemoryDevice::new(1 << 20)));
    slow.add(Rule::every(Request::Write, Fault::Delay(Duration::from_millis(200))));
    let server = bench.serve(Arc::clone(&slow) as _);
    let mut options = bench.options();
    // A reconnection would hide what is looked at.
    options.reconnect_limit = Duration::ZERO;
    let device = NbdDevice::connect(options).expect("it connects");
    let counters = server.counters();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| device.write_at(&[5; 4096], 0));
        crate::bench::eventually("the write came", || {
            counters.requests.load(Ordering::Relaxed) > 0
        });
        server.stop(Duration::from_secs(5)).expect("it stops");
        write.join().expect("the writer").expect("the write was answered");
    });
    assert!(!bench.socket().exists(), "the socket is removed");
}
