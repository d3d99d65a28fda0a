//! The server goes away, comes back, comes back without what it had not flushed, comes back as
//! somebody else.

use crate::bench::Bench;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::time::{Duration, Instant};
use weft_block::{
    BlockDevice, Change, CrashDevice, Fault, FaultDevice, Filter, MemoryDevice, Request, Rng, Rule,
};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::{Export, NbdDevice};
use weft_testing::{LIMIT, ends, wait_until};

const THREADS: u64 = 3;
const SHARE: u64 = 1 << 20;
/// `ESHUTDOWN` of Linux.
const ESHUTDOWN: i32 = 108;

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

/// A disk with a volatile cache, whose server is killed at a certain request.
struct Doomed {
    disk: CrashDevice<MemoryDevice>,
    /// Requests until then.
    left: AtomicI64,
    killed: Mutex<mpsc::Sender<()>>,
    /// Requests of the dead server wait for this to be dropped, so that its end finds them under
    /// way. By then their connections are cut, or are not yet: an answer says that the server ends.
    grave: RwLock<()>,
}

impl Doomed {
    fn live(&self) -> weft_block::Result<()> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if !(-1_000_000..=1).contains(&left) {
            return Ok(());
        }
        if left == 1 {
            self.disk.crash()?;
            let _ = self.killed.lock().expect("no panic").send(());
        }
        drop(self.grave.read());
        let ends = std::io::Error::from_raw_os_error(ESHUTDOWN);
        Err(weft_block::Error::io("any", 0, 0, ends))
    }
}

impl Filter for Doomed {
    type Below = CrashDevice<MemoryDevice>;

    fn below(&self) -> &Self::Below {
        &self.disk
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        self.live().and_then(|()| self.disk.read_at(buf, offset))
    }

    fn filter_change(&self, change: Change<'_>) -> weft_block::Result<()> {
        self.live().and_then(|()| change.apply(&self.disk))
    }

    fn filter_flush(&self) -> weft_block::Result<()> {
        self.live().and_then(|()| self.disk.flush())
    }
}

/// Writes, overwrites, zeroes and flushes; returns what a flush covers at the end.
fn short_work(device: &NbdDevice) -> Vec<u8> {
    let mut model = vec![0; 64 << 10];
    let mut write = |byte: u8, at: usize, len: usize| {
        device.write_at(&vec![byte; len], at as u64).expect("a write");
        model[at..at + len].fill(byte);
    };
    write(1, 0, 8192);
    write(2, 20_480, 12_288);
    device.flush().expect("a flush");
    write(3, 4096, 4096);
    write(4, 24_576, 4096);
    write(5, 40_960, 8192);
    device.write_zeroes(20_480, 2048).expect("zeroes");
    model[20_480..22_528].fill(0);
    device.flush().expect("a flush");
    model
}

/// The server is killed in the middle of each request, also of those by which the client makes
/// good what the last one lost, and what its disk had not flushed is gone.
#[test]
fn a_server_killed_at_any_request_loses_nothing() {
    for nth in 1..=20 {
        let bench = Bench::new();
        let (killed, kill) = mpsc::channel();
        let disk = Arc::new(Doomed {
            disk: CrashDevice::new(MemoryDevice::new(64 << 10), nth),
            left: AtomicI64::new(nth as i64),
            killed: Mutex::new(killed),
            grave: RwLock::new(()),
        });
        let mut grave = Some(disk.grave.write().expect("no panic"));
        let mut server = Some(bench.serve(Arc::clone(&disk) as _));
        let device = bench.connect();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| short_work(&device));
            // A second time, five requests into the life of the next server.
            let mut again = true;
            while !work.is_finished() {
                if kill.recv_timeout(Duration::from_millis(5)).is_err() {
                    continue;
                }
                let dead = server.take();
                let stop = scope.spawn(move || drop(dead));
                std::thread::sleep(Duration::from_millis(20));
                drop(grave.take());
                stop.join().expect("it stops");
                grave = Some(disk.grave.write().expect("no panic"));
                disk.disk.power_on();
                disk.left.store(if again { 5 } else { i64::MIN / 2 }, Ordering::SeqCst);
                again = false;
                server = Some(bench.serve(Arc::clone(&disk) as _));
            }
            let model = work.join().expect("the work");
            disk.disk.crash().expect("the plug is pulled");
            disk.disk.power_on();
            let mut kept = vec![1; model.len()];
            disk.disk.read_at(&mut kept, 0).expect("a read");
            assert!(kept == model, "killed at request {nth}: something flushed is lost");
        });
        assert!(nth > 8 || device.reconnections() > 0, "the server was killed");
        drop(grave);
    }
}

#[test]
fn another_disk_behind_the_same_export_gets_what_was_not_flushed() {
    let bench = Bench::new();
    let server = bench.serve(Arc::new(MemoryDevice::new(1 << 20)));
    let device = bench.connect();
    device.write_at(&[1; 4096], 8192).expect("a write");
    drop(server);
    let other = Arc::new(MemoryDevice::new(1 << 20));
    other.write_at(&[9; 1 << 20], 0).expect("a write");
    let _server = bench.serve(Arc::clone(&other) as _);
    device.flush().expect("a flush");
    let mut got = [0; 12_288];
    other.read_at(&mut got, 4096).expect("a read");
    assert!(got[..4096] == [9; 4096] && got[4096..8192] == [1; 4096] && got[8192..] == [9; 4096]);
}

#[test]
fn memory_for_what_is_not_durable_is_bounded() {
    const MAX: u64 = 256 << 10;
    let bench = Bench::new();
    let disk = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
    let flushes = disk.add(Rule::every(Request::Flush, Fault::Delay(Duration::ZERO)));
    let server = bench.serve(Arc::clone(&disk) as _);
    let mut options = bench.options();
    options.unflushed_max_bytes = MAX;
    let device = NbdDevice::connect(options).expect("it connects");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let device = &device;
            scope.spawn(move || {
                for nr in 0..64 {
                    let at = (thread * 64 + nr) * (32 << 10);
                    device.write_at(&[thread as u8; 32 << 10], at).expect("a write");
                    let kept = device.unflushed_bytes();
                    assert!(kept <= MAX, "{kept} bytes are kept");
                }
            });
        }
    });
    let flushed = disk.fired(flushes);
    assert!((24..=200).contains(&flushed), "8 MiB in portions of 256 KiB: {flushed} flushes");
    // A write that is larger than all of it goes alone.
    device.write_at(&vec![7; 1 << 20], 0).expect("a write");
    assert!(device.unflushed_bytes() < (1 << 20) + MAX);
    device.flush().expect("a flush");
    assert_eq!(device.unflushed_bytes(), 0);
    drop(server);
}

#[test]
fn the_first_flush_covers_what_others_wrote_before() {
    let bench = Bench::new();
    let disk = Arc::new(CrashDevice::new(MemoryDevice::new(1 << 20), 3));
    disk.write_at(&[3; 4096], 0).expect("a write");
    let _server = bench.serve(Arc::clone(&disk) as _);
    bench.connect().flush().expect("a flush");
    let mut got = [0; 4096];
    disk.inner().read_at(&mut got, 0).expect("a read");
    assert_eq!(got, [3; 4096], "it did not reach the disk");
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
    let (device, error) = ends("the server is given up", move || {
        let error = device.read_at(&mut [0; 512], 0).expect_err("nobody is there");
        (device, error)
    });
    assert!(begun.elapsed() >= Duration::from_millis(300), "it waited");
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
    let changes: [fn() -> Export; 4] = [
        || export(2 << 20),
        || export(512 << 10),
        || Export { description: "another disk".into(), ..export(1 << 20) },
        || Export { read_only: true, ..export(1 << 20) },
    ];
    for change in changes {
        let bench = Bench::new();
        let server = bench.serve_with(vec![export(1 << 20)], ServerOptions::default());
        let device = bench.connect();
        device.write_at(&[1; 512], 4096).expect("a write");
        device.write_at(&[1; 512], 8192).expect("a write");
        drop(server);
        let changed = change();
        let disk = Arc::clone(&changed.device);
        let server = bench.serve_with(vec![changed], ServerOptions::default());
        let error = device.write_at(&[2; 512], 0).expect_err("it is not the same");
        assert!(error.to_string().contains("has changed"), "{error}");
        for _ in 0..2 {
            let error = device.flush().expect_err("for good");
            assert!(error.to_string().contains("has changed"), "{error}");
            let lost = matches!(
                error,
                weft_block::Error::Io { op: "flush", offset: 4096, len_bytes: 4608, .. }
            );
            assert!(lost, "it names what is lost: {error:?}");
        }
        let mut now = [9; 16384];
        disk.read_at(&mut now, 0).expect("a read");
        assert_eq!(now, [0; 16384], "nothing was written to the other disk");
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
        wait_until("the write came", || counters.requests.load(Ordering::Relaxed) > 0);
        server.stop(LIMIT).expect("it stops");
        write.join().expect("the writer").expect("the write was answered");
    });
    assert!(!bench.socket().exists(), "the socket is removed");
}
