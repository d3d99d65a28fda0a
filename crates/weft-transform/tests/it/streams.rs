//! Networks over streams: forward and back, in blocks of any size, alone and on a pool.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_testing::{LIMIT, Rng, ends};
use weft_transform::exec::{Chain, Fused, Pool, RunOptions, run};
use weft_transform::registry::StageInfo;
use weft_transform::stages::LogSink;
use weft_transform::{
    ByteMap, Context, Direction, Error, Io, Network, Registry, Result, Shape, Transform,
};

use crate::common::{lines, network, noise, registry};

const INVERTIBLE: &[&str] = &[
    "identity",
    "increment by=200 | rot13 | xor hex=0102030405",
    "decrement | ~increment by=9",
    "base64",
    "hex | rot13",
    "zstd level=1 frame=4K",
    "lz4 frame=4K",
    "xz frame=4K level=0",
    "gzip level=1",
    "rot13 | zstd | xor hex=ff | base64",
    "~increment | lz4 | gzip",
];

/// Passes `data` through in blocks of `step` bytes.
fn pass(network: &Network, io: Io, data: &[u8], step: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut emit = |block: &mut [u8]| {
        out.extend_from_slice(block);
        Ok(())
    };
    let mut chain = Chain::new(network, io)?;
    for block in data.chunks(step) {
        chain.push(&mut block.to_vec(), &mut emit)?;
    }
    chain.finish(&mut emit)?;
    Ok(out)
}

#[test]
fn inverse_undoes_forward() {
    let mut random = Rng::new(1);
    for text in INVERTIBLE {
        let network = network(text);
        for len in [0, 1, 2, 3, 4095, 4096, 4097, 70_000, 300_000] {
            let data = if len % 2 == 0 { lines(&mut random, len) } else { noise(&mut random, len) };
            let step = 1 + random.below(if len < 5000 { 700 } else { 100_000 }) as usize;
            let stored = pass(&network, Io::Write, &data, step).expect(text);
            for step in [len + 1, step] {
                let back = pass(&network, Io::Read, &stored, step).expect(text);
                assert!(back == data, "{text}: {len} bytes in steps of {step}");
            }
        }
    }
}

#[test]
fn a_pool_changes_nothing() {
    let pool = Pool::new(3).expect("threads");
    let data = lines(&mut Rng::new(2), 3_000_000);
    for text in INVERTIBLE {
        let network = network(text);
        let mut alone = Vec::new();
        run(&network, Io::Write, &mut &data[..], &mut alone, RunOptions::default()).expect(text);
        let options = RunOptions { pool: Some(&pool), deadline: Some(Duration::from_secs(60)) };
        let (mut pooled, mut back) = (Vec::new(), Vec::new());
        let written = run(&network, Io::Write, &mut &data[..], &mut pooled, options).expect(text);
        assert_eq!(written, pooled.len() as u64);
        assert!(alone == pooled, "{text}");
        run(&network, Io::Read, &mut &pooled[..], &mut back, options).expect(text);
        assert!(back == data, "{text}");
    }
}

#[test]
fn fused_is_the_same_in_one_piece_and_in_many() {
    let network = network("increment by=3 | xor hex=0a0b0c | rot13");
    let fused = Fused::new(network.layers(), Io::Write).expect("in place");
    let data = noise(&mut Rng::new(3), 5_000_000);
    let mut whole = data.clone();
    fused.apply(0, &mut whole).expect("no stage fails");
    let mut parallel = data.clone();
    fused.apply_parallel(0, &mut parallel, 4).expect("no stage fails");
    assert!(whole == parallel);
    let mut pieces = data;
    let mut offset = 0;
    for piece in pieces.chunks_mut(33_333) {
        fused.apply(offset, piece).expect("no stage fails");
        offset += piece.len() as u64;
    }
    assert!(whole == pieces);
}

#[test]
fn one_way_stages() {
    let view = |text: &str, data: &[u8]| {
        let network = network(text);
        let whole = pass(&network, Io::Read, data, data.len().max(1)).expect(text);
        assert_eq!(pass(&network, Io::Read, data, 1).expect(text), whole, "{text} byte by byte");
        String::from_utf8(whole).expect("UTF-8")
    };
    assert_eq!(view("view: upper", "grüße\n".as_bytes()), "GRüßE\n");
    assert_eq!(view("view: lower", b"LOUD 1"), "loud 1");
    assert_eq!(view("view: line-ends to=crlf", b"a\nb\r\nc\r"), "a\r\nb\r\nc\r");
    assert_eq!(view("view: line-ends to=lf", b"a\nb\r\nc\r\r\nd\r"), "a\nb\nc\r\nd\r");
    assert_eq!(view("view: lines contains=bb", b"abba\nab\nbb"), "abba\nbb");
    assert_eq!(view("view: lines lacks=b contains=a", b"ab\na\nc\n"), "a\n");
    assert_eq!(view("view: charset from=latin1", b"gr\xfc\xdfe"), "grüße");
    assert_eq!(view("view: charset from=utf-16le", b"a\0\xe4\0\x3d\xd8\0\xde"), "aä😀");
    assert_eq!(view("view: charset from=shift_jis", b"\x93\xfa\x96{"), "日本");
    let replaced =
        view("view: charset to=latin1 on-error=replace | charset from=latin1", "€ä→".as_bytes());
    assert_eq!(replaced, "€ä?", "the standard's latin1 is windows-1252");
    assert_eq!(view("view: ~base64", b"aGVs\nbG8=\n"), "hello");
}

#[test]
fn strict_stages_refuse_what_they_could_not_undo() {
    for (text, data, offset) in [
        ("line-ends to=crlf strict=yes", &b"a\nb\r\n"[..], 4),
        ("line-ends to=lf strict=yes", b"a\r\nb\n", 4),
        ("charset to=latin1", "ab→".as_bytes(), 0),
        ("charset from=utf-8 to=latin1", b"ok \xff", 4),
    ] {
        match pass(&network(text), Io::Write, data, 100) {
            Err(Error::Input { offset: at, .. }) => assert_eq!(at, offset, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let text = "one\ntwo\n".repeat(1000);
    let network = network("line-ends to=crlf strict=yes | charset to=windows-1251");
    let stored = pass(&network, Io::Write, text.as_bytes(), 77).expect("LF only");
    assert_eq!(stored.len(), text.len() + 2000);
    assert_eq!(pass(&network, Io::Read, &stored, 91).expect("CR LF only"), text.as_bytes());
}

#[test]
fn sealed_files_are_no_streams() {
    let refused =
        Chain::new(&network("zstd | aead key=work"), Io::Write).expect_err("needs a file");
    assert!(refused.to_string().contains("\"zstd\" would do"), "{refused}");
}

#[test]
fn what_expands_much_needs_little_memory() {
    // 1 GiB of zeroes, twice compressed.
    let network = network("zstd frame=8M | zstd frame=8M");
    let mut chain = Chain::new(&network, Io::Write).expect("streams");
    let mut stored = Vec::new();
    let mut emit = |block: &mut [u8]| {
        stored.extend_from_slice(block);
        Ok(())
    };
    let mut zeroes = vec![0; 1 << 20];
    for _ in 0..256 {
        chain.push(&mut zeroes, &mut emit).expect("zeroes");
    }
    chain.finish(&mut emit).expect("zeroes");
    assert!(stored.len() < 10_000);
    let (mut total, mut largest) = (0, 0);
    let mut count = |block: &mut [u8]| {
        total += block.len();
        largest = largest.max(block.len());
        Ok(())
    };
    let mut back = Chain::new(&network, Io::Read).expect("streams");
    back.push(&mut stored, &mut count).expect("a bomb, but a sound one");
    back.finish(&mut count).expect("whole");
    assert_eq!(total, 256 << 20);
    assert!(largest <= 1 << 20, "blocks of {largest} bytes");
}

/// Does not answer a byte 1 while [`HELD`] is locked.
#[derive(Debug)]
struct Slow;

/// Locked by the test of deadlines, for as long as a stage has to be slow.
static HELD: Mutex<()> = Mutex::new(());

impl Transform for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }
}

impl ByteMap for Slow {
    fn apply(&self, _: Direction, _: u64, block: &mut [u8]) -> Result<()> {
        match block.first() {
            // An error: the test has failed meanwhile.
            Some(1) => drop(HELD.lock()),
            Some(2) => panic!("a stage that panics"),
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn deadlines_hold_and_name_the_stage() {
    let mut registry = registry();
    registry.add(StageInfo {
        name: "slow",
        summary: "waits",
        parameters: &[],
        make: |_, _| Ok(Arc::new(Slow)),
    });
    let network = Arc::new(registry.parse("view: identity | slow | rot13").expect("stages"));
    let pool = Arc::new(Pool::new(2).expect("threads"));
    // Held until the end of this test, so that waiting for it would be a hang.
    let _held = HELD.lock();
    // Enough for the blocks that are not slow.
    let deadline = Some(Duration::from_secs(2));
    let mut data = vec![0; 400_000];
    data[128 << 10] = 1;
    let parts = (Arc::clone(&network), Arc::clone(&pool), data.clone());
    let (ran, mut out) = ends("the slow stage is given up", move || {
        let (network, pool, data) = parts;
        let options = RunOptions { pool: Some(&pool), deadline };
        let mut out = Vec::new();
        (run(&network, Io::Read, &mut &data[..], &mut out, options), out)
    });
    match ran {
        Err(Error::Deadline { stage: "slow", millis: 2000 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(out.len(), 128 << 10, "the block before it came through");
    // The others go on.
    let options = RunOptions { pool: Some(&pool), deadline: Some(LIMIT) };
    data[128 << 10] = 0;
    run(&network, Io::Read, &mut &data[..], &mut out, options).expect("one thread is left");
    data[0] = 2;
    let panicked = run(&network, Io::Read, &mut &data[..], &mut out, options).expect_err("panics");
    assert!(panicked.to_string().contains("slow"), "{panicked}");
}

#[derive(Default)]
struct Memory(Mutex<Vec<(u64, Vec<u8>)>>);

impl LogSink for Memory {
    fn record(&self, offset: u64, block: &[u8]) -> Result<()> {
        self.0.lock().expect("log").push((offset, block.to_vec()));
        Ok(())
    }
}

#[test]
fn a_tee_sees_what_passes() {
    let log = Arc::new(Memory::default());
    let mut context = Context::default();
    context.logs.insert("audit".to_owned(), log.clone());
    let registry = Registry::new(context);
    let network = registry.parse("increment | tee (upper | log to=audit) | rot13").expect("stages");
    let stored = pass(&network, Io::Write, b"``", 10).expect("no stage fails");
    assert_eq!(stored, b"nn");
    assert_eq!(pass(&network, Io::Read, &stored, 10).expect("no stage fails"), b"``");
    assert_eq!(*log.0.lock().expect("log"), [(0, b"AA".to_vec()), (0, b"AA".to_vec())]);
}
