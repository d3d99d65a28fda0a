//! What the tests share.

use weft_testing::Rng;
use weft_transform::store::{Base, Limits, Store, open};
use weft_transform::{Context, Key, KeyRing, Network, Registry};
use weft_vfs::{FileSystem, Walker};

/// Bytes that do not compress.
pub fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    rng.fill(&mut out);
    out
}

/// Lines that compress, with some bytes that do not.
pub fn lines(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        match rng.below(8) {
            0 => out.extend(noise(rng, 40)),
            n => out.extend(format!("line {n} of a log that repeats itself\n").bytes()),
        }
    }
    out.truncate(len);
    out
}

pub fn registry() -> Registry {
    let mut keys = KeyRing::default();
    keys.add("work", Key::new([7; 32]));
    keys.add("rotated", Key::new([8; 32]));
    keys.add("rotated", Key::new([7; 32]));
    Registry::new(Context { keys, ..Context::default() })
}

pub fn network(text: &str) -> Network {
    registry().parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

pub fn open_base(base: &(impl Base + Clone + 'static), text: &str) -> Box<dyn Store> {
    try_open(base, text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

pub fn try_open(
    base: &(impl Base + Clone + 'static),
    text: &str,
) -> weft_transform::Result<Box<dyn Store>> {
    open(Box::new(base.clone()), &network(text), &Limits::default())
}

/// All of a store, read in pieces of `step`.
pub fn read_all(store: &mut dyn Store, step: usize) -> weft_transform::Result<Vec<u8>> {
    let (mut all, mut buf) = (Vec::new(), vec![0; step]);
    loop {
        let got = store.read_at(all.len() as u64, &mut buf)?;
        all.extend_from_slice(&buf[..got]);
        if got < step {
            return Ok(all);
        }
    }
}

/// All that is read of a file, whatever its length is said to be.
pub fn read_path(fs: &dyn FileSystem, path: &[u8]) -> weft_vfs::Result<Vec<u8>> {
    let node = Walker::new(fs).resolve(path)?;
    let (mut all, mut block) = (Vec::new(), vec![0; 100_000]);
    loop {
        let got = node.read_at(all.len() as u64, &mut block)?;
        all.extend_from_slice(&block[..got]);
        if got < block.len() {
            return Ok(all);
        }
    }
}

/// When a long campaign ends that takes its share of `WEFT_LONG_SECONDS` (60 without it).
pub fn campaign_end(share: u64) -> std::time::Instant {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    std::time::Instant::now() + std::time::Duration::from_secs(seconds.unwrap_or(60) / share)
}
