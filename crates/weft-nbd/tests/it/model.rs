//! Random requests through client and server have the same results as on a `Vec<u8>`.

use crate::bench::Bench;
use std::io::IoSlice;
use std::sync::Arc;
use weft_block::{BlockDevice, Error, ExtentKind, MemoryDevice, Rng};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::{Export, NbdDevice};

const LEN: usize = 6 << 20;

/// A range; most are short, some cross many requests.
fn range(rng: &mut Rng) -> (u64, usize) {
    let longest = *rng.pick(&[10, 600, 5000, 70_000, LEN]).expect("one");
    let len = rng.index(longest + 1);
    let align = *rng.pick(&[1, 1, 512, 4096]).expect("one");
    let offset = rng.index(LEN - len + 1) / align * align;
    (offset as u64, len)
}

fn step(rng: &mut Rng, device: &NbdDevice, model: &mut [u8]) {
    let (offset, len) = range(rng);
    let at = offset as usize..offset as usize + len;
    match rng.below(8) {
        0..=2 => {
            let mut got = vec![0xa5; len];
            device.read_at(&mut got, offset).expect("a read");
            assert!(got == model[at], "{len} bytes read at {offset}");
        }
        3 | 4 => {
            let mut data = vec![0; len];
            rng.fill(&mut data);
            if rng.chance(1, 2) {
                device.write_at(&data, offset).expect("a write");
            } else {
                let (a, b) = data.split_at(rng.index(len + 1));
                let parts = [IoSlice::new(a), IoSlice::new(b)];
                device.write_vectored_at(&parts, offset).expect("a vectored write");
            }
            model[at].copy_from_slice(&data);
        }
        5 => {
            device.write_zeroes(offset, len as u64).expect("zeroes");
            model[at].fill(0);
        }
        6 => device.flush().expect("a flush"),
        _ if len > 0 => {
            let extent = device.extent_at(offset, len as u64).expect("an extent");
            assert!((1..=len as u64).contains(&extent.len_bytes), "{extent:?}");
            let part = &model[at.start..at.start + extent.len_bytes as usize];
            assert!(extent.kind == ExtentKind::Data || part.iter().all(|b| *b == 0), "{extent:?}");
        }
        _ => {}
    }
}

#[test]
fn a_device_over_nbd_reads_as_it_was_written() {
    for (seed, block_bytes_min) in (0..).zip([1, 512, 4096, 65536, 1]) {
        println!("seed {seed}, blocks of {block_bytes_min} bytes");
        let bench = Bench::new();
        let mut export = Export::new("", Arc::new(MemoryDevice::new(LEN as u64)));
        export.block_bytes_min = block_bytes_min;
        // A pool of one thread must do as well, and so must memory for one request only.
        let mut options = ServerOptions::default();
        if seed % 2 == 1 {
            (options.threads, options.in_flight_max_bytes) = (1, 1);
        }
        let server = bench.serve_with(vec![export], options);
        let mut reach = bench.options();
        // Little enough that the device has to flush by itself.
        reach.unflushed_max_bytes = 300_000;
        reach.connections = 1 + seed as usize % 3;
        reach.extended_headers = seed < 3;
        let device = NbdDevice::connect(reach).expect("it connects");
        assert_eq!(device.geometry().len_bytes, LEN as u64);
        assert_eq!(device.facts().extended, seed < 3);
        let mut rng = Rng::new(seed);
        let mut model = vec![0; LEN];
        for _ in 0..250 {
            step(&mut rng, &device, &mut model);
        }
        let mut all = vec![0; LEN];
        device.read_at(&mut all, 0).expect("a read of everything");
        assert!(all == model, "seed {seed}");
        let past = device.write_at(&[0; 10], LEN as u64 - 9);
        assert!(matches!(past, Err(Error::OutOfRange { .. })), "{past:?}");
        drop(device);
        server.stop(weft_testing::LIMIT).expect("it stops");
    }
}

#[test]
fn neighbours_in_one_block_do_not_lose_each_others_writes() {
    let bench = Bench::new();
    let mut export = Export::new("", Arc::new(MemoryDevice::new(64 << 10)));
    export.block_bytes_min = 4096;
    let _server = bench.serve_with(vec![export], ServerOptions::default());
    let device = bench.connect();
    // Each thread owns every fourth run of 100 bytes; no run is a block.
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..5_u8 {
                    for run in 0..100 {
                        let offset = (run * 4 + u64::from(thread)) * 100;
                        device.write_at(&[thread * 10 + round; 100], offset).expect("a write");
                    }
                }
            });
        }
    });
    let mut all = vec![0; 40_000];
    device.read_at(&mut all, 0).expect("a read");
    for (run, bytes) in all.chunks(100).enumerate() {
        let want = (run % 4) as u8 * 10 + 4;
        assert!(bytes.iter().all(|b| *b == want), "run {run}");
    }
}

#[test]
fn threads_of_many_work_at_once() {
    let bench = Bench::new();
    let _server = bench.serve(Arc::new(MemoryDevice::new(32 << 20)));
    let device = bench.connect();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let device = &device;
            scope.spawn(move || {
                let mut rng = Rng::stream(7, thread);
                let base = thread * (4 << 20);
                let mut model = vec![0; 4 << 20];
                for _ in 0..60 {
                    let len = 1 + rng.index(300_000);
                    let at = rng.index(model.len() - len);
                    let mut data = vec![0; len];
                    rng.fill(&mut data);
                    device.write_at(&data, base + at as u64).expect("a write");
                    model[at..at + len].copy_from_slice(&data);
                    let at = rng.index(model.len() - len);
                    device.read_at(&mut data, base + at as u64).expect("a read");
                    assert!(data == model[at..at + len], "thread {thread}");
                    if rng.chance(1, 10) {
                        device.flush().expect("a flush");
                    }
                }
            });
        }
    });
}
