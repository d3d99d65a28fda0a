//! Stored files through networks, against plain bytes.

use weft_testing::Rng;
use weft_transform::store::{Limits, MemoryBase, open};
use weft_transform::{Context, Error, Key, KeyRing, Registry};

use crate::common::{campaign_end, lines, network, noise, open_base, read_all, try_open};

const WRITABLE: &[&str] = &[
    "identity",
    "increment | xor hex=010203",
    "guard block=4K",
    "aead key=work",
    "aead key=work cipher=aes256gcm block=8K",
    "rot13 | aead key=work | increment",
    "guard block=4K | aead key=work",
    "zstd frame=4K level=1",
    "lz4 frame=4K",
    "xz frame=8K level=0",
    "gzip level=1",
    "base64",
    "hex",
    "zstd frame=4K level=1 | aead key=work",
    "aead key=work | lz4 frame=4K",
    "increment | zstd frame=8K level=1 | xor hex=55 | guard block=4K",
];

/// Little memory for dirty data, so that it is written ahead and spilled.
fn limits() -> Limits {
    Limits { dirty_bytes: 24 << 10, ..Limits::default() }
}

fn random_operations(text: &str, seed: u64, operations: usize) {
    let network = network(text);
    let base = MemoryBase::default();
    // Or enough of it, so that frames are committed in place.
    let limits = if seed.is_multiple_of(2) { Limits::default() } else { limits() };
    let reopen = || open(Box::new(base.clone()), &network, &limits).expect(text);
    let mut random = Rng::new(seed);
    let mut store = reopen();
    let mut model: Vec<u8> = Vec::new();
    let mut committed = model.clone();
    for nr in 0..operations {
        let offset = match random.below(4) {
            0 => model.len() as u64,
            1 => random.below(model.len() as u64 + 1) / 4096 * 4096,
            2 if model.len() < 400_000 => model.len() as u64 + random.below(60_000),
            _ => random.below(model.len() as u64 + 3000),
        };
        let what = format!("{text}, seed {seed}, operation {nr}");
        match random.below(12) {
            0..=4 => {
                let len = [1, 100, 4096, 5000, 30_000][random.below(5) as usize];
                let data = lines(&mut random, len);
                store.write_at(offset, &data).expect(&what);
                let end = offset as usize + len;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&data);
            }
            5 => {
                let len = if model.len() > 200_000 { offset / 4 } else { offset };
                store.set_len(len).expect(&what);
                model.resize(len as usize, 0);
            }
            6..=9 => {
                let mut buf = vec![9; 1 + random.below(20_000) as usize];
                let got = store.read_at(offset, &mut buf).expect(&what);
                let want = &model[(offset as usize).min(model.len())..];
                let want = &want[..want.len().min(buf.len())];
                assert!(buf[..got] == *want, "{what}: read {} at {offset}", buf.len());
            }
            10 => {
                store.commit().expect(&what);
                assert!(!store.is_dirty(), "{what}");
                committed.clone_from(&model);
            }
            _ => {
                store.commit().expect(&what);
                drop(store);
                store = reopen();
                assert_eq!(
                    store.len_bytes().expect(&what),
                    Some(model.len() as u64),
                    "{what}: reopened"
                );
            }
        }
        assert_eq!(store.len_bytes().expect(&what), Some(model.len() as u64), "{what}");
    }
    assert!(read_all(&mut *store, 10_007).expect(text) == model, "{text}, seed {seed}: at the end");
    drop(store);
    assert_eq!(base.fresh_files(), 0, "{text}: what was made beside the file is gone");
}

#[test]
fn agree_with_plain_bytes() {
    for text in WRITABLE {
        for seed in 1..=3 {
            random_operations(text, seed, 150);
        }
    }
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn agree_with_plain_bytes_for_long() {
    let end = campaign_end(16);
    let mut seed = 1000;
    while std::time::Instant::now() < end {
        for text in WRITABLE {
            random_operations(text, seed, 400);
        }
        seed += 1;
    }
}

#[test]
fn writing_through_reads_like_the_stream() {
    // What a store makes is what a stream makes, so either reads the other's.
    let data = lines(&mut Rng::new(4), 100_000);
    for text in ["zstd frame=4K", "lz4 frame=8K", "gzip", "base64", "hex", "increment"] {
        let network = network(text);
        let base = MemoryBase::default();
        let mut store = open_base(&base, text);
        for (at, piece) in data.chunks(777).enumerate() {
            store.write_at(at as u64 * 777, piece).expect(text);
        }
        store.commit().expect(text);
        let mut streamed = Vec::new();
        let options = weft_transform::exec::RunOptions::default();
        weft_transform::exec::run(
            &network,
            weft_transform::Io::Write,
            &mut &data[..],
            &mut streamed,
            options,
        )
        .expect(text);
        assert!(base.content() == streamed, "{text}");
    }
}

#[test]
fn a_sequential_view_is_read_from_anywhere() {
    let text = lines(&mut Rng::new(5), 3_000_000);
    let base = MemoryBase::new(text.clone());
    let mut store = open_base(&base, "view: lines contains=line | rot13");
    let want: Vec<u8> = text
        .split_inclusive(|&b| b == b'\n')
        .filter(|line| line.windows(4).any(|w| w == b"line"))
        .flatten()
        .map(|b| match b {
            b'a'..=b'z' => (b - b'a' + 13) % 26 + b'a',
            b'A'..=b'Z' => (b - b'A' + 13) % 26 + b'A',
            other => *other,
        })
        .collect();
    assert_eq!(store.len_bytes().expect("view"), None, "unknown, and not guessed");
    let mut random = Rng::new(6);
    for _ in 0..40 {
        let at = random.below(want.len() as u64 + 100) as usize;
        let mut buf = vec![0; 1 + random.below(50_000) as usize];
        let got = store.read_at(at as u64, &mut buf).expect("view");
        let rest = &want[at.min(want.len())..];
        assert!(buf[..got] == rest[..rest.len().min(buf.len())], "at {at}");
    }
    assert!(read_all(&mut *store, 65_536).expect("view") == want);
    assert_eq!(store.len_bytes().expect("view"), Some(want.len() as u64), "known at the end");
    let refused = store.write_at(0, b"x").expect_err("a view");
    assert!(matches!(refused, Error::Below(weft_vfs::Error::Unsupported(_))), "{refused}");
}

#[test]
fn keys_are_rotated() {
    let base = MemoryBase::default();
    let mut old = open_base(&base, "aead key=work");
    old.write_at(0, b"sealed with the old key").expect("write");
    old.commit().expect("commit");
    let mut both = open_base(&base, "aead key=rotated");
    assert_eq!(
        read_all(&mut *both, 100).expect("the old key is among them"),
        b"sealed with the old key"
    );
    let fresh = MemoryBase::default();
    let mut new = open_base(&fresh, "aead key=rotated");
    new.write_at(0, b"new").expect("write");
    new.commit().expect("commit");
    match try_open(&fresh, "aead key=work").err() {
        Some(Error::WrongKey { key, found, .. }) => {
            assert_eq!(key, "work");
            assert_eq!(found, hex(&Key::new([8; 32]).id()));
        }
        other => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn nothing_of_the_plain_text_is_stored() {
    let base = MemoryBase::default();
    let mut store = open_base(&base, "aead key=work");
    let secret = b"a secret that is easy to find";
    store.write_at(0, &secret.repeat(1000)).expect("write");
    store.commit().expect("commit");
    let stored = base.content();
    assert!(!stored.windows(8).any(|w| w == &secret[2..10]));
    // The same again gives other bytes: nonces are random.
    store.write_at(0, &secret.repeat(1000)).expect("write");
    store.commit().expect("commit");
    let again = base.content();
    assert_eq!(stored.len(), again.len());
    assert!(stored[512..4600] != again[512..4600]);
}

#[test]
fn keys_as_people_keep_them() {
    let hex = "0707070707070707070707070707070707070707070707070707070707070707";
    for content in [hex.as_bytes(), format!(" {hex}\n").as_bytes(), &[7; 32][..]] {
        assert_eq!(Key::from_file_content(content).expect("a key").id(), Key::new([7; 32]).id());
    }
    for content in [&b""[..], b"short", &[7; 33], &hex.as_bytes()[..62]] {
        assert!(Key::from_file_content(content).is_none());
    }
    assert!(!format!("{:?}", Key::new([7; 32])).contains('7'), "keys are not printed");
}

/// The blocks that nobody wrote are not stored, also after others in between are written.
#[test]
fn sealed_files_are_sparse() {
    const LEN: u64 = 4 << 30;
    for text in ["guard block=4K", "aead key=work"] {
        let base = MemoryBase::default();
        let mut store = open_base(&base, text);
        store.set_len(LEN).expect(text);
        store.commit().expect(text);
        assert!(base.content().len() < 1000, "{text}: {} bytes", base.content().len());
        drop(store);
        let mut store = open_base(&base, text);
        assert_eq!(store.len_bytes().expect(text), Some(LEN));
        let mut random = Rng::new(9);
        for _ in 0..50 {
            let mut buf = vec![9; 100_000];
            let at = random.below(LEN - 100_000);
            assert_eq!(store.read_at(at, &mut buf).expect(text), buf.len());
            assert!(buf.iter().all(|b| *b == 0), "{text} at {at}");
        }
        store.write_at(300_000, b"in the middle").expect(text);
        store.commit().expect(text);
        assert!(base.content().len() < 700_000, "{text}: {} bytes", base.content().len());
        let mut buf = [9; 30];
        assert_eq!(open_base(&base, text).read_at(299_990, &mut buf).expect(text), 30);
        assert_eq!(&buf, b"\0\0\0\0\0\0\0\0\0\0in the middle\0\0\0\0\0\0\0");
    }
}

/// More holes than a header has room for: the smallest are filled.
#[test]
fn a_sealed_file_with_many_holes_is_whole() {
    const BLOCK: usize = 4096;
    let base = MemoryBase::default();
    let mut store = open_base(&base, "guard block=4K");
    let mut model = vec![0; 400 * BLOCK];
    store.set_len(model.len() as u64).expect("a hole");
    let mut random = Rng::new(10);
    for round in 0..300 {
        let at = random.index(model.len() - 10);
        store.write_at(at as u64, b"some bytes").expect("written");
        model[at..at + 10].copy_from_slice(b"some bytes");
        if random.below(20) == 0 {
            let len = random.index(model.len());
            store.set_len(len as u64).expect("cut");
            store.set_len(400 * BLOCK as u64).expect("extended");
            model[len..].fill(0);
        }
        if random.below(10) == 0 {
            store.commit().expect("commit");
            drop(store);
            store = open_base(&base, "guard block=4K");
        }
        if round % 50 == 0 {
            assert!(read_all(&mut *store, 100_000).expect("read") == model, "round {round}");
        }
    }
    assert!(read_all(&mut *store, 100_000).expect("read") == model);
}

/// A hole is what the header says. Zeroes in the stored file are damage, and so is a header of another
/// file, or one that was changed.
#[test]
fn nobody_else_makes_a_hole() {
    let text = "aead key=work";
    let store_with = |data: &[u8], len: u64| {
        let base = MemoryBase::default();
        let mut store = open_base(&base, text);
        store.write_at(0, data).expect("written");
        store.set_len(len).expect("a hole");
        store.commit().expect("commit");
        base.content()
    };
    let data = noise(&mut Rng::new(11), 1_000_000);
    let (full, holed) = (store_with(&data, 1_000_000), store_with(b"", 1_000_000));
    let read = |stored: Vec<u8>| {
        try_open(&MemoryBase::new(stored), text).and_then(|mut store| read_all(&mut *store, 70_000))
    };
    assert!(read(full.clone()).expect("as written") == data);
    assert!(read(holed.clone()).expect("as written") == vec![0; 1_000_000]);
    let mut zeroes = full.clone();
    zeroes[512..].fill(0);
    assert!(matches!(read(zeroes), Err(Error::Corrupt { .. })));
    assert!(matches!(read(full[..512].to_vec()), Err(Error::Corrupt { .. })), "cut");
    let mut others = full.clone();
    others[..512].copy_from_slice(&holed[..512]);
    // The header of the other file belongs to its blocks: it says that there are none.
    assert!(read(others).expect("the other file") == vec![0; 1_000_000]);
    let mut forged = full;
    forged[8] = 2;
    forged[11] = 1;
    forged[72..80].copy_from_slice(&1_u64.to_le_bytes());
    assert!(matches!(read(forged), Err(Error::Corrupt { .. })), "a hole without a tag");
}

#[test]
fn bombs_are_refused() {
    let base = MemoryBase::default();
    let mut store = open_base(&base, "zstd frame=8M");
    store.set_len(64 << 20).expect("zeroes");
    store.commit().expect("commit");
    assert!(base.content().len() < 10_000);
    let open_with = |limits: Limits| {
        let registry = Registry::new(Context { keys: KeyRing::default(), ..Context::default() });
        open(Box::new(base.clone()), &registry.parse("zstd").expect("zstd"), &limits).err()
    };
    assert!(open_with(Limits::default()).is_none());
    for limits in [
        Limits { file_bytes: 32 << 20, ..Limits::default() },
        Limits { ratio: 100, ..Limits::default() },
    ] {
        assert!(
            matches!(open_with(limits), Some(Error::Limit { stage: "zstd", .. })),
            "{limits:?}"
        );
    }
    // Frames that are too long to be held are decoded from the beginning on, bit by bit.
    let limits = Limits { frame_bytes: 1 << 20, ..Limits::default() };
    let network = network("zstd");
    let mut long = open(Box::new(base), &network, &limits).expect("to be read");
    assert_eq!(long.len_bytes().expect("no error"), None, "not known yet");
    assert!(read_all(&mut *long, 1 << 20).expect("zeroes").iter().all(|&b| b == 0));
    assert_eq!(long.len_bytes().expect("no error"), Some(64 << 20));
    assert!(long.write_at(0, b"x").is_err());
}
