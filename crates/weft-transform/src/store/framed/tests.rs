//! Tests of gzip files of any mix of members, by the bytes read of them.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_testing::Rng;

use super::*;
use crate::store::stream::tests::{Counted, check_read, lines, member};
use crate::store::{Limits, MemoryStore, stack};
use crate::{Context, Registry};

/// Maximum bytes that a read of 4 KiB takes of a stored file: the maximum distance of two restart
/// points, three times where the read crosses one, and the granularity of fetches.
const BOUND: u64 = 3 * (1 << 20) + (128 << 10);

/// Opens a gzip file as any network does, and returns the counter of the bytes read of it.
fn opened(stored: MemoryStore, limits: Limits) -> Result<(Box<dyn Store>, Arc<AtomicU64>)> {
    let network = Registry::new(Context::default()).parse("gzip").expect("a network");
    let count = Arc::new(AtomicU64::new(0));
    let below = Box::new(Counted(stored, count.clone()));
    let file = stack::frames(&network.layers()[0], Home::read_only(below, limits), &limits)?;
    Ok((file, count))
}

/// Returns incompressible bytes, so that stored and plain lengths are equal.
fn noise(random: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// Returns a member that is one deflate block, whose stored and plain lengths are equal.
fn one_block(plain: &[u8]) -> Vec<u8> {
    let mut stored = vec![0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF];
    let (mut bits, mut count) = (0b011_u64, 3);
    let mut put = |code: u64, len: u32, stored: &mut Vec<u8>| {
        bits |= (code.reverse_bits() >> (64 - len)) << count;
        count += len;
        while count >= 8 {
            stored.push(bits as u8);
            (bits, count) = (bits >> 8, count - 8);
        }
    };
    for byte in plain {
        put(0x30 + u64::from(*byte), 8, &mut stored);
    }
    // The end of the block, and the padding of the last byte.
    put(0, 7, &mut stored);
    put(0, 7, &mut stored);
    stored.truncate(10 + (3 + 8 * plain.len() + 7).div_ceil(8));
    stored.extend(crc32fast::hash(plain).to_le_bytes());
    stored.extend((plain.len() as u32).to_le_bytes());
    stored
}

/// Returns a member with `blocks` empty blocks before its content.
fn with_empty_blocks(plain: &[u8], blocks: usize) -> Vec<u8> {
    let mut stored = member(plain, 6);
    let body = stored.split_off(10);
    stored.extend([0, 0, 0, 0xFF, 0xFF].repeat(blocks));
    stored.extend(body);
    stored
}

#[test]
fn a_read_at_random_takes_a_bounded_part_of_any_mix_of_members() {
    let mut random = Rng::new(11);
    let mib = 1 << 20;
    let mut mix = |lens: &[usize]| -> (Vec<u8>, Vec<u8>) {
        let plain: Vec<Vec<u8>> = lens.iter().map(|len| noise(&mut random, *len)).collect();
        (plain.iter().flat_map(|plain| member(plain, 1)).collect(), plain.concat())
    };
    let some = mix(&[2 * mib, 200_000, 5 * mib, 70, 0, mib]);
    let small = mix(&vec![60_000; 130]);
    let large = mix(&[8 * mib]);
    let mut long_block = lines(&mut Rng::new(12), 8 * mib);
    long_block.iter_mut().for_each(|byte| *byte &= 0x7F);
    let empty = [member(b"", 6).repeat(mib / 4), member(&small.1, 1)].concat();
    let blocks = with_empty_blocks(&small.1, mib);
    let cases = [
        ("members of some MiB", some.0, &some.1),
        ("small members", small.0, &small.1),
        ("one member", large.0, &large.1),
        ("one block", one_block(&long_block), &long_block),
        ("empty members", empty, &small.1),
        ("empty blocks", blocks, &small.1),
    ];
    for (what, stored, plain) in cases {
        // The file is held in memory as a whole, or not.
        for frame_bytes in [64 << 20, 1 << 20] {
            let limits = Limits { frame_bytes, ..Limits::default() };
            let (mut file, count) = opened(MemoryStore::new(stored.clone()), limits).expect(what);
            check_read(&mut *file, plain, 0, 1);
            let opening = count.swap(0, Ordering::Relaxed);
            let once = stored.len() as u64 + BOUND;
            assert!(opening <= once, "{what}: {opening} bytes to open {}", stored.len());
            for _ in 0..30 {
                let at = random.index(plain.len() - 4096);
                check_read(&mut *file, plain, at, 4096);
                let read = count.swap(0, Ordering::Relaxed);
                assert!(read <= BOUND, "{what}, at {at}: {read} bytes were read");
            }
            assert_eq!(file.len_bytes().expect("asked"), Some(plain.len() as u64), "{what}");
        }
    }
}

#[test]
fn readers_in_different_places_do_not_disturb_each_other() {
    let mut random = Rng::new(13);
    let plain = noise(&mut random, 12 << 20);
    let step = 64 << 10;
    for (what, stored) in [
        ("one member", member(&plain, 1)),
        ("members of 3 MiB", plain.chunks(3 << 20).flat_map(|part| member(part, 1)).collect()),
    ] {
        for frame_bytes in [64 << 20, 2 << 20] {
            let limits = Limits { frame_bytes, ..Limits::default() };
            let (mut file, count) = opened(MemoryStore::new(stored.clone()), limits).expect(what);
            check_read(&mut *file, &plain, 0, 1);
            count.store(0, Ordering::Relaxed);
            for at in (0..5 << 19).step_by(step) {
                for reader in 0..4 {
                    check_read(&mut *file, &plain, ((reader * 6) << 19) + at, step);
                }
            }
            // Each reader reads 2.5 MiB, beginning a restart point too early and ending one too
            // late.
            let read = count.load(Ordering::Relaxed);
            assert!(read <= 4 * (9 << 19), "{what}: {read} bytes were read, of 10 MiB");
        }
    }
}

#[test]
fn what_changes_in_a_long_member_after_it_was_opened_is_not_shown() {
    let mut random = Rng::new(14);
    let plain = lines(&mut random, 5_000_000);
    let good: Vec<u8> = plain.chunks(1_700_000).flat_map(|part| member(part, 6)).collect();
    let mut refused = 0;
    for round in 0..15 {
        let mut stored = MemoryStore::new(good.clone());
        let (mut file, _) = opened(stored.clone(), Limits::default()).expect("a file");
        check_read(&mut *file, &plain, 4_900_000, 10);
        let at = random.index(good.len());
        match round {
            0 => stored.set_len(good.len() as u64 / 2).expect("in memory"),
            _ => stored.write_at(at as u64, &[good[at] ^ 4]).expect("in memory"),
        }
        for at in (0..plain.len()).step_by(190_000).rev() {
            let mut buf = vec![0; 5000];
            let wanted = &plain[at..(at + 5000).min(plain.len())];
            match file.read_at(at as u64, &mut buf) {
                Ok(got) => assert!(buf[..got] == *wanted, "round {round}, at {at}: wrong bytes"),
                Err(e) => {
                    assert!(matches!(e, Error::Corrupt { .. }), "round {round}, at {at}: {e}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 15, "{refused} reads refused");
}

#[test]
fn damage_in_one_of_several_members_is_an_error() {
    let mut random = Rng::new(15);
    let parts = [lines(&mut random, 600_000), lines(&mut random, 100), lines(&mut random, 900_000)];
    let good: Vec<u8> = parts.iter().flat_map(|part| member(part, 6)).collect();
    let plain = parts.concat();
    for round in 0..60 {
        let mut stored = good.clone();
        match round % 3 {
            0 => stored.truncate(1 + random.index(good.len() - 1)),
            _ => {
                let at = random.index(good.len());
                stored[at] ^= 1 << random.index(8);
            }
        }
        let whole =
            opened(MemoryStore::new(stored), Limits::default()).and_then(|(mut file, _)| {
                let mut buf = vec![0; plain.len() + 1];
                let got = file.read_at(0, &mut buf)?;
                Ok(buf[..got].to_vec())
            });
        match whole {
            // A file cut between two members is a valid gzip file, and not every byte of a header
            // matters.
            Ok(read) => assert!(plain.starts_with(&read), "round {round}: wrong bytes"),
            Err(Error::Corrupt { .. }) => {}
            Err(e) => panic!("round {round}: {e}"),
        }
    }
}

#[test]
fn long_members_can_be_written_to() {
    let mut random = Rng::new(16);
    let mut plain = lines(&mut random, 5_000_000);
    let good: Vec<u8> = plain.chunks(1_300_000).flat_map(|part| member(part, 6)).collect();
    let base = crate::store::MemoryBase::new(good);
    let network = Registry::new(Context::default()).parse("gzip").expect("a network");
    let limits = Limits { dirty_bytes: 1 << 20, ..Limits::default() };
    let mut file = stack::open(Box::new(base.clone()), &network, &limits).expect("a file");
    for round in 0..30 {
        let (at, len) = (random.index(plain.len()), random.index(100_000));
        match round % 10 {
            7 => {
                plain.truncate(at);
                file.set_len(at as u64).expect("in memory");
            }
            9 => file.commit().expect("in memory"),
            _ => {
                let data = lines(&mut random, len);
                plain.resize(plain.len().max(at + len), 0);
                plain[at..at + len].copy_from_slice(&data);
                file.write_at(at as u64, &data).expect("in memory");
            }
        }
        let at = random.index(plain.len());
        check_read(&mut *file, &plain, at, 300_000);
    }
    check_read(&mut *file, &plain, 0, plain.len() + 1);
    file.commit().expect("in memory");
    let mut read = Vec::new();
    let stored = base.content();
    let mut decoder = flate2::bufread::MultiGzDecoder::new(&stored[..]);
    std::io::Read::read_to_end(&mut decoder, &mut read).expect("a gzip file");
    assert!(read == plain);
    // A member that records its length records the correct one.
    let mut at = 0;
    while at < stored.len() {
        let head = &stored[at..];
        if head.get(3) != Some(&4) {
            break;
        }
        at += usize::from(u16::from_le_bytes([head[16], head[17]])) + 1;
        assert!(at == stored.len() || stored[at..].starts_with(&[0x1F, 0x8B]), "at {at}");
    }
}

#[test]
fn a_packed_file_whose_length_is_not_known_yet_is_not_taken_for_an_empty_one() {
    let plain = lines(&mut Rng::new(17), 300_000);
    let inner = member(&plain, 6);
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(0));
    to.write_all(&inner).expect("in memory");
    let stored = to.finish().expect("in memory");
    let network = Registry::new(Context::default()).parse("view: ~gzip | ~gzip");
    let network = network.expect("a network");
    let limits = Limits { frame_bytes: 10_000, ..Limits::default() };
    let base = crate::store::MemoryBase::new(stored);
    let mut file = stack::open(Box::new(base), &network, &limits).expect("a file");
    check_read(&mut *file, &plain, 0, plain.len());
}
