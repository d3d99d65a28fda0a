//! Every byte of a stored file changed in turn, and the file cut at every length: an error at the
//! right offset or the right bytes, never wrong ones.

use weft_testing::Rng;
use weft_transform::Error;
use weft_transform::store::{Base, Limits, MemoryBase, Store, open};

use crate::common::{lines, network, noise, open_base, read_all, try_open};

fn stored(text: &str, data: &[u8]) -> Vec<u8> {
    let base = MemoryBase::default();
    let mut store = open_base(&base, text);
    store.write_at(0, data).expect(text);
    store.commit().expect(text);
    base.content()
}

/// Reads block by block: what is right so far, and the error that ended it.
fn readable(store: &mut dyn Store, step: usize) -> (Vec<u8>, Option<Error>) {
    let (mut all, mut buf) = (Vec::new(), vec![0; step]);
    loop {
        match store.read_at(all.len() as u64, &mut buf) {
            Ok(got) => {
                all.extend_from_slice(&buf[..got]);
                if got < step {
                    return (all, None);
                }
            }
            Err(e) => return (all, Some(e)),
        }
    }
}

fn check(text: &str, data: &[u8], damaged: Vec<u8>, what: &str) -> bool {
    let strict = GUARDED.iter().any(|(guarded, strict)| *guarded == text && *strict);
    let block = if text.starts_with("gzip") { 0xFF00 } else { 4096 };
    let mut store = match try_open(&MemoryBase::new(damaged), text) {
        Ok(store) => store,
        Err(Error::Corrupt { .. } | Error::Limit { .. } | Error::WrongKey { .. }) => return true,
        Err(e) => panic!("{text}: {what}: {e}"),
    };
    let (got, error) = readable(&mut *store, block);
    assert!(data.starts_with(&got), "{text}: {what}: wrong bytes");
    match &error {
        Some(Error::Corrupt { offset, .. }) => {
            assert_eq!(*offset, got.len() as u64, "{text}: {what}: {error:?}");
        }
        Some(e) => panic!("{text}: {what}: {e}"),
        // A file of frames that was cut between two of them is a shorter file of its format.
        None if what.starts_with("cut") && !strict && got.len().is_multiple_of(block) => {}
        None => assert!(got == data, "{text}: {what}: a short file"),
    }
    // What lies behind the damage can still be read, where blocks are read by themselves.
    for at in (0..data.len()).step_by(block) {
        let mut buf = vec![0; block];
        if let Ok(len) = store.read_at(at as u64, &mut buf) {
            assert!(data[at..].starts_with(&buf[..len]), "{text}: {what}: at {at}");
        }
    }
    error.is_some()
}

/// Networks that notice every change, and those for which some bytes mean nothing.
const GUARDED: &[(&str, bool)] = &[
    ("aead key=work", true),
    ("aead key=work cipher=aes256gcm", true),
    ("guard block=4K", true),
    ("zstd frame=4K level=1", false),
    ("lz4 frame=4K", false),
    ("gzip level=1", false),
    ("xz frame=4K level=0", false),
    ("zstd frame=4K | aead key=work", true),
];

#[test]
fn every_byte_changed() {
    let data = lines(&mut Rng::new(7), 9000);
    for (text, strict) in GUARDED {
        let good = stored(text, &data);
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1 << (at % 8);
            let noticed = check(text, &data, damaged, &format!("byte {at} changed"));
            assert!(noticed || !strict, "{text}: byte {at} changed, and nobody noticed");
        }
    }
}

#[test]
fn cut_at_every_length() {
    let data = lines(&mut Rng::new(8), 9000);
    for (text, _) in GUARDED {
        let good = stored(text, &data);
        for len in 1..good.len() {
            let cut = good[..len].to_vec();
            check(text, &data, cut, &format!("cut to {len} of {}", good.len()));
        }
        // Longer than its index says.
        for extra in [1, 100, 600, 5000] {
            let mut long = good.clone();
            long.extend(noise(&mut Rng::new(9), extra));
            check(text, &data, long, &format!("{extra} bytes more"));
        }
    }
}

#[test]
fn blocks_cannot_be_moved() {
    let data = noise(&mut Rng::new(10), 3 * 4096);
    for text in ["aead key=work", "guard block=4K"] {
        let good = stored(text, &data);
        let sealed = (good.len() - 512) / 3;
        let mut swapped = good.clone();
        swapped[512..512 + sealed].copy_from_slice(&good[512 + sealed..512 + 2 * sealed]);
        assert!(check(text, &data, swapped, "block 1 in the place of block 0"));
        // Nor to another file with the same key.
        let other = stored(text, &data);
        let mut foreign = good.clone();
        foreign[512..512 + sealed].copy_from_slice(&other[512..512 + sealed]);
        assert!(check(text, &data, foreign, "block 0 of another file"));
    }
}

#[test]
fn damage_under_a_write_does_not_matter() {
    let data = noise(&mut Rng::new(11), 3 * 4096);
    let mut good = stored("aead key=work", &data);
    good[600] ^= 1;
    let base = MemoryBase::new(good);
    let mut store = open_base(&base, "aead key=work");
    assert!(store.write_at(5, b"x").is_err(), "what is left of the block cannot be had");
    store.write_at(0, &data[..4096]).expect("nothing of it is left");
    store.commit().expect("commit");
    assert!(read_all(&mut *store, 1000).expect("whole again") == data);
}

/// A frame too long to be held in memory, here of more than a MiB.
fn long_frame(base: &MemoryBase) -> weft_transform::Result<Box<dyn Store>> {
    let limits = Limits { frame_bytes: 1 << 20, ..Limits::default() };
    open(Box::new(base.clone()), &network("zstd"), &limits)
}

#[test]
fn a_long_frame_shows_nothing_before_it_was_checked() {
    let data = lines(&mut Rng::new(11), 3_300_000);
    let good = stored("zstd frame=8M level=1", &data);
    let base = MemoryBase::new(good.clone());
    let mut store = long_frame(&base).expect("opens");
    assert_eq!(store.len_bytes().expect("asked"), None, "not known before it was read");
    let mut buf = vec![0; 4096];
    for at in [0, 2_000_000, 1_000_000, 3_299_000, 5] {
        let got = store.read_at(at as u64, &mut buf).expect("read");
        assert!(data[at..].starts_with(&buf[..got]) && got > 900, "at {at}");
    }
    assert_eq!(store.len_bytes().expect("asked"), Some(data.len() as u64));
    assert!(read_all(&mut *store, 100_000).expect("read") == data);

    // The checksum is the last thing in the frame: a change at its end denies its beginning.
    let mut noticed = 0;
    for at in (8..good.len()).step_by(good.len() / 60) {
        let mut damaged = good.clone();
        damaged[at] ^= 4;
        let Ok(mut store) = long_frame(&MemoryBase::new(damaged)) else { continue };
        for _ in 0..2 {
            match store.read_at(0, &mut buf) {
                Ok(got) => assert!(data.starts_with(&buf[..got]), "byte {at}: wrong bytes"),
                Err(e) => {
                    assert!(matches!(e, Error::Corrupt { .. }), "byte {at}: {e}");
                    noticed += 1;
                }
            }
        }
    }
    assert!(noticed > 80, "{noticed} of 120 reads noticed");

    // What changes after that is noticed before it is shown.
    let mut medium = base.clone();
    let mut below = medium.current().expect("the stored file");
    let at = (good.len() / 2) as u64;
    below.write_at(at, &[good[at as usize] ^ 1]).expect("changed");
    let mut again = vec![0; data.len()];
    for from in [0, data.len() - 5000] {
        if let Ok(got) = store.read_at(from as u64, &mut again) {
            assert!(data[from..].starts_with(&again[..got]), "from {from}: wrong bytes");
        }
    }
}
