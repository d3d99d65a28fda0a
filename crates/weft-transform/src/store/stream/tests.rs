//! Tests of random reads of gzip files, against the plain bytes and by the bytes read of the file.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_testing::Rng;

use super::*;
use crate::store::MemoryStore;
use crate::store::checked::Checked;
use crate::{Context, Registry};

/// Compressible lines, with some incompressible bytes, and zeroes.
pub(in crate::store) fn lines(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 4096);
    while out.len() < len {
        match rng.below(12) {
            0 => out.extend((0..40).map(|_| rng.below(256) as u8)),
            1 if rng.below(200) == 0 => out.resize(out.len() + rng.index(100_000), 0),
            n => out.extend(format!("{} line {n} of a log\n", rng.below(1 << 20)).bytes()),
        }
    }
    out.truncate(len);
    out
}

pub(in crate::store) fn member(plain: &[u8], level: u32) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    to.write_all(plain).expect("in memory");
    to.finish().expect("in memory")
}

/// A file that counts the bytes read of it.
pub(in crate::store) struct Counted(
    pub(in crate::store) MemoryStore,
    pub(in crate::store) Arc<AtomicU64>,
);

impl Store for Counted {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.0.len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let got = self.0.read_at(offset, buf)?;
        self.1.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// Opens a gzip file as one with long frames, and returns the counter of the bytes read of it.
fn opened(stored: MemoryStore) -> (StreamFile, Arc<AtomicU64>) {
    opened_by(&Registry::new(Context::default()), stored)
}

fn opened_by(registry: &Registry, stored: MemoryStore) -> (StreamFile, Arc<AtomicU64>) {
    let network = registry.parse("gzip").expect("a network");
    let count = Arc::new(AtomicU64::new(0));
    let below = Box::new(Counted(stored, count.clone()));
    let layer = network.layers()[0].clone();
    (StreamFile::proven(below, layer, Limits::default()), count)
}

fn checked(file: &StreamFile) -> &Checked {
    match &file.trust {
        Trust::Proven(at_random) => at_random.checked(),
        _ => panic!("not proven"),
    }
}

#[track_caller]
pub(in crate::store) fn check_read(file: &mut dyn Store, plain: &[u8], at: usize, len: usize) {
    let mut buf = vec![0xAA; len];
    let got = file.read_at(at as u64, &mut buf).unwrap_or_else(|e| panic!("at {at}: {e}"));
    let wanted = &plain[at.min(plain.len())..(at + len).min(plain.len())];
    // A continued pass returns whole pieces only, and reaches the end of the requested range.
    assert!(buf[..got] == *wanted, "at {at}: {got} bytes that are not those");
}

#[test]
fn reads_at_random_are_the_plain_bytes() {
    let mut random = Rng::new(1);
    for level in [0, 1, 6, 9] {
        for lens in [&[1][..], &[40_000], &[3_000_000], &[0, 70_000, 0, 900_000, 5, 1_100_000, 0]] {
            let members: Vec<Vec<u8>> = lens.iter().map(|len| lines(&mut random, *len)).collect();
            let stored = members.iter().flat_map(|plain| member(plain, level)).collect();
            let plain = members.concat();
            let (mut file, _) = opened(MemoryStore::new(stored));
            file.places.0 = 10_000;
            for _ in 0..200 {
                let (at, len) = (random.index(plain.len() + 10), 1 + random.index(20_000));
                check_read(&mut file, &plain, at, len);
            }
            check_read(&mut file, &plain, 0, plain.len());
            assert_eq!(file.len_bytes().expect("asked"), Some(plain.len() as u64));
            // A stored block is at most 64 KiB long, one of a text somewhat longer.
            let places = checked(&file).places.len();
            assert!(places >= plain.len() / 300_000, "level {level}, {lens:?}: {places} places");
        }
    }
}

#[test]
fn a_read_at_random_decodes_one_interval() {
    let mut random = Rng::new(2);
    let plain = lines(&mut random, 24 << 20);
    let stored = member(&plain, 6);
    // The stored length of each MiB is much the same.
    let of_mib = stored.len() as u64 / 24;
    let (mut file, count) = opened(MemoryStore::new(stored));
    check_read(&mut file, &plain, 0, 1);
    count.store(0, Ordering::Relaxed);
    check_read(&mut file, &plain, plain.len() - 5000, 4096);
    let last = count.swap(0, Ordering::Relaxed);
    assert!(last <= of_mib * 2, "{last} bytes were read, of {of_mib} for each MiB");
    for _ in 0..50 {
        let at = random.index(plain.len() - 4096);
        check_read(&mut file, &plain, at, 4096);
        let read = count.swap(0, Ordering::Relaxed);
        assert!(read <= of_mib * 3, "at {at}: {read} bytes were read, of {of_mib} for each MiB");
    }
    // A sequential reader reads nothing twice, and does not begin again.
    check_read(&mut file, &plain, 0, 1);
    count.store(0, Ordering::Relaxed);
    for at in (0..plain.len()).step_by(100_000) {
        check_read(&mut file, &plain, at, 100_000);
    }
    assert!(count.load(Ordering::Relaxed) <= of_mib * 24 + 24);
}

/// Stages are counted on every mount.
#[test]
fn a_stage_that_is_counted_is_read_at_random_too() {
    let mut random = Rng::new(6);
    let plain = lines(&mut random, 24 << 20);
    let stored = member(&plain, 6);
    let of_mib = stored.len() as u64 / 24;
    let counting = Registry::new(Context::default()).counting(Arc::default());
    let (mut file, count) = opened_by(&counting, MemoryStore::new(stored));
    check_read(&mut file, &plain, 0, 1);
    for _ in 0..20 {
        count.store(0, Ordering::Relaxed);
        let at = random.index(plain.len() - 4096);
        check_read(&mut file, &plain, at, 4096);
        let read = count.load(Ordering::Relaxed);
        assert!(read <= of_mib * 3, "at {at}: {read} bytes were read, of {of_mib} for each MiB");
    }
}

#[test]
fn places_take_no_more_than_they_may() {
    let mut random = Rng::new(3);
    let plain = lines(&mut random, 6_000_000);
    let (mut file, _) = opened(MemoryStore::new(member(&plain, 1)));
    file.places = (10_000, 300_000);
    check_read(&mut file, &plain, 0, 1);
    let (held, places) = (checked(&file).held_bytes, checked(&file).places.len());
    assert!(held <= 300_000 && places >= 8, "{places} places of {held} bytes");
    let apart: Vec<u64> =
        checked(&file).places.windows(2).map(|two| two[1].output - two[0].output).collect();
    assert!(apart.iter().all(|&bytes| bytes < 1_500_000), "far apart: {apart:?}");
    for _ in 0..100 {
        let (at, len) = (random.index(plain.len()), 1 + random.index(50_000));
        check_read(&mut file, &plain, at, len);
    }
}

#[test]
fn damage_is_noticed_before_anything_is_shown() {
    let mut random = Rng::new(4);
    let (one, two) = (lines(&mut random, 400_000), lines(&mut random, 500_000));
    let good = [member(&one, 6), member(&two, 6)].concat();
    let first = member(&one, 6).len();
    let flipped = |at: usize| {
        let mut stored = good.clone();
        stored[at] ^= 0x10;
        stored
    };
    let end = good.len();
    let damaged = [
        ("a wrong CRC", flipped(end - 6)),
        ("a wrong length", flipped(end - 3)),
        ("a wrong CRC of the first member", flipped(first - 6)),
        ("a wrong byte", flipped(end - 1000)),
        ("cut in a tail", good[..end - 1].to_vec()),
        ("cut in a body", good[..end - 3000].to_vec()),
        ("cut in a head", good[..first + 5].to_vec()),
        ("more behind the end", [&good[..], b"more"].concat()),
        ("more behind zeroes", [&good[..], &[0; 600], b"more"].concat()),
    ];
    for (what, stored) in damaged {
        let (mut file, _) = opened(MemoryStore::new(stored));
        file.places.0 = 10_000;
        for at in [0, 890_000, 0] {
            let read = file.read_at(at, &mut [0; 100]);
            assert!(matches!(read, Err(Error::Corrupt { .. })), "{what}, at {at}: {read:?}");
        }
    }
}

#[test]
fn what_changes_after_it_was_checked_is_not_shown() {
    let mut random = Rng::new(5);
    let (one, two) = (lines(&mut random, 2_000_000), lines(&mut random, 2_000_000));
    let plain = [&one[..], &two].concat();
    let good = [member(&one, 6), member(&two, 6)].concat();
    let half = member(&one, 6).len() as u64;
    let mut refused = 0;
    for round in 0..40 {
        let mut stored = MemoryStore::new(good.clone());
        let (mut file, _) = opened(stored.clone());
        file.places.0 = 100_000;
        check_read(&mut file, &plain, 3_900_000, 10);
        match round {
            // Without the second member, the rest is a valid gzip file too.
            0 => stored.set_len(half).expect("in memory"),
            1 => stored.set_len(half * 3 / 2).expect("in memory"),
            _ => {
                let at = random.index(good.len());
                stored.write_at(at as u64, &[good[at] ^ 4]).expect("in memory");
            }
        }
        for at in (0..plain.len()).step_by(190_000).rev() {
            let mut buf = vec![0; 5000];
            match file.read_at(at as u64, &mut buf) {
                Ok(got) => {
                    let wanted = &plain[at..(at + 5000).min(plain.len())];
                    assert!(buf[..got] == *wanted, "round {round}, at {at}: wrong bytes");
                }
                Err(e) => {
                    assert!(matches!(e, Error::Corrupt { .. }), "round {round}, at {at}: {e}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 40, "{refused} reads refused");
}

/// A stage that holds something as long as a pass of it runs.
#[derive(Debug)]
struct Holding(Arc<()>);

struct Pass(#[expect(dead_code, reason = "held")] Arc<()>);

impl crate::Transform for Holding {
    fn name(&self) -> &'static str {
        "holding"
    }

    fn shape(&self) -> crate::Shape<'_> {
        crate::Shape::Stream(self)
    }
}

impl crate::StreamCodec for Holding {
    fn start(&self, _: crate::Direction) -> Result<Box<dyn crate::Stream>> {
        Ok(Box::new(Pass(self.0.clone())))
    }
}

impl crate::Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        out.extend_from_slice(input);
        Ok(input.len())
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<bool> {
        Ok(true)
    }
}

/// A pass may hold a process, or much memory, and a file is remembered long after it was read.
#[test]
fn what_a_pass_holds_is_released_at_the_end_and_when_nobody_reads() {
    let held = Arc::new(());
    let stage = Arc::new(Holding(held.clone()));
    let layer = Layer { stage, on_read: crate::Direction::Forward };
    let plain = lines(&mut Rng::new(9), 2 << 20);
    let below = || Box::new(MemoryStore::new(plain.clone()));
    let mut file = StreamFile::new(below(), layer.clone(), Limits::default());
    let idle = Arc::strong_count(&held);
    check_read(&mut file, &plain, 0, 1000);
    assert_eq!(Arc::strong_count(&held), idle + 1, "a pass");
    file.release_buffers();
    assert_eq!(Arc::strong_count(&held), idle, "nobody reads");
    check_read(&mut file, &plain, 1000, plain.len());
    assert_eq!(Arc::strong_count(&held), idle, "it has ended");
    // What is in the window is there without another pass, and the length stays known.
    check_read(&mut file, &plain, plain.len() - 1000, 2000);
    assert_eq!(Arc::strong_count(&held), idle);
    file.release_buffers();
    assert_eq!(file.len_bytes().expect("known"), Some(plain.len() as u64));
    check_read(&mut file, &plain, 5, 100);
}
