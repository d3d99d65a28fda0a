//! Files that are decoded from something whose length is known only at its end: what a mount shows
//! is what a stream makes of the same network.

use weft_testing::Rng;
use weft_transform::exec::{RunOptions, run};
use weft_transform::stages::Program;
use weft_transform::store::{Limits, MemoryBase, Store, open};
use weft_transform::{
    Context, Direction, Io, Key, KeyRing, Network, Registry, Rules, Shape, TransformFs,
    TransformOptions,
};
use weft_vfs::{MemFs, Walker};

use crate::common::{lines, read_all, read_path};

/// Stages whose output has a length that is known once all was read, each with the parameters that
/// let most through.
const UNKNOWN: &[(&str, &str)] = &[
    ("lines", "lines lacks=QQQQQQ"),
    ("charset", "charset from=latin1 to=latin1"),
    ("line-ends", "line-ends to=lf"),
    ("json", "json"),
    ("exec", "exec program=cat"),
    ("gzip", "gzip"),
    ("zstd", "zstd"),
    ("lz4", "lz4"),
    ("xz", "xz level=0"),
    ("base64", "base64"),
    ("hex", "hex"),
];

const DECODERS: &[&str] = &["~gzip", "~zstd", "~lz4", "~xz", "~base64", "~hex"];

fn registry() -> Registry {
    let mut context = Context::default();
    context.programs.insert("cat".to_owned(), Program::new("cat"));
    context.keys = KeyRing::default();
    context.keys.add("work", Key::new([7; 32]));
    Registry::new(context)
}

fn parsed(text: &str) -> Network {
    registry().parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn base_of(stored: &[u8]) -> MemoryBase {
    MemoryBase::new(stored.to_vec())
}

fn through(stored: &[u8], network: &Network) -> weft_transform::Result<Box<dyn Store>> {
    open(Box::new(base_of(stored)), network, &Limits::default())
}

fn streamed(stored: &[u8], text: &str) -> weft_transform::Result<Vec<u8>> {
    let mut out = Vec::new();
    run(&parsed(text), Io::Read, &mut &stored[..], &mut out, RunOptions::default())?;
    Ok(out)
}

/// What is decoded here: text, what each decoder's stage made of it, that twice, that damaged, nothing.
fn inputs() -> Vec<(String, Vec<u8>)> {
    let plain = lines(&mut Rng::new(5), 300_000);
    let mut inputs = vec![("nothing".to_owned(), Vec::new()), ("text".to_owned(), plain.clone())];
    for decoder in DECODERS {
        let encoder = decoder.trim_start_matches('~');
        let stored = streamed(&plain, &format!("view: {encoder}")).expect("encoded");
        let mut cut = stored.clone();
        cut.truncate(stored.len() * 2 / 3);
        let mut flipped = stored.clone();
        flipped[stored.len() / 2] ^= 0x40;
        inputs.push((format!("{encoder} twice"), [&stored[..], &stored].concat()));
        inputs.push((format!("{encoder} cut"), cut));
        inputs.push((format!("{encoder} damaged"), flipped));
        inputs.push((encoder.to_owned(), stored));
    }
    inputs
}

#[test]
fn all_stages_of_unknown_length_are_among_those_tested() {
    let registry = registry();
    for info in registry.stages() {
        let is_tested = UNKNOWN.iter().any(|(name, _)| *name == info.name);
        let made = registry.parse(&format!("view: {}", info.name));
        let Ok(network) = made else {
            // Those that take more than their name: a key, a module, a branch.
            let takes_more = ["aead", "wasm", "merge", "log", "xor"].contains(&info.name);
            assert!(takes_more || is_tested, "{} is not among those tested", info.name);
            continue;
        };
        let Some(layer) = network.layers().first() else { continue };
        let is_unknown = !layer.stage.declares(Direction::Forward).size.is_exact();
        let is_sealed = matches!(layer.stage.shape(), Shape::Sealed(_));
        assert!(is_tested || is_sealed || !is_unknown, "{} is not among those tested", info.name);
        if matches!(layer.stage.shape(), Shape::Framed(_)) {
            let decoder = format!("~{}", info.name);
            assert!(DECODERS.contains(&&decoder[..]), "{decoder} is not among those tested");
        }
    }
}

#[test]
fn what_is_decoded_behind_an_unknown_length_is_what_a_stream_makes() {
    let inputs = inputs();
    let (mut right, mut refused) = (0, 0);
    for (_, stage) in UNKNOWN {
        for decoder in DECODERS {
            for (what, stored) in &inputs {
                let text = format!("view: {stage} | {decoder}");
                let case = format!("{text} of {what}");
                let made = through(stored, &parsed(&text));
                let read = made.and_then(|mut store| read_all(&mut *store, 50_000));
                match (streamed(stored, &text), read) {
                    (Ok(want), Ok(read)) => {
                        assert!(want == read, "{case}: {} bytes, not {}", read.len(), want.len());
                        right += 1;
                    }
                    (Err(_), Err(_)) => refused += 1,
                    (want, read) => panic!(
                        "{case}: a stream makes {:?}, a file {:?}",
                        want.map(|bytes| bytes.len()),
                        read.map(|bytes| bytes.len())
                    ),
                }
            }
        }
    }
    assert!(right >= 60 && refused >= 60, "{right} {refused}");
}

#[test]
fn what_is_decoded_behind_an_unknown_length_is_read_anywhere() {
    let plain = lines(&mut Rng::new(6), 3_000_000);
    let mut random = Rng::new(7);
    for decoder in DECODERS {
        let encoder = decoder.trim_start_matches('~');
        let stored = streamed(&plain, &format!("view: {encoder}")).expect("encoded");
        let network = parsed(&format!("view: exec program=cat | {decoder}"));
        let mut store = through(&stored, &network).expect(decoder);
        for _ in 0..12 {
            let at = random.below(plain.len() as u64);
            let len = random.below(200_000) as usize;
            let mut buf = vec![0; len];
            let got = store.read_at(at, &mut buf).expect(decoder);
            let want = &plain[at as usize..plain.len().min(at as usize + len)];
            assert!(buf[..got] == *want, "{decoder} at {at}");
        }
        let got = store.read_at(plain.len() as u64, &mut [0; 9]).expect(decoder);
        assert_eq!(got, 0, "{decoder}: behind the end");
        assert_eq!(store.len_bytes().expect("known"), Some(plain.len() as u64), "{decoder}");
    }
}

/// Sealed blocks are opened with their seals, whatever stands below them.
#[test]
fn sealed_blocks_behind_an_unknown_length_are_opened() {
    for seal in ["guard", "aead key=work"] {
        for len in [0, 1, 5000, 300_000] {
            let plain = lines(&mut Rng::new(8), len);
            let base = base_of(b"");
            let mut file =
                open(Box::new(base.clone()), &parsed(seal), &Limits::default()).expect(seal);
            file.begin().expect(seal);
            file.write_at(0, &plain).expect(seal);
            file.commit().expect(seal);
            let mut stored = base.content();
            let network = parsed(&format!("view: exec program=cat | ~{seal}"));
            let mut store = through(&stored, &network).expect(seal);
            assert!(read_all(&mut *store, 70_000).expect(seal) == plain, "{seal}: {len} bytes");
            // Nothing is no sealed file.
            assert!(through(b"", &network).is_err(), "{seal}");
            if len > 0 {
                stored.truncate(stored.len() - 1);
                let cut = through(&stored, &network);
                let read = cut.and_then(|mut store| read_all(&mut *store, 70_000));
                assert!(read.is_err(), "{seal}: {len} bytes, cut");
            }
        }
    }
}

#[test]
fn an_archive_behind_an_unknown_length_is_a_directory() {
    let below = std::sync::Arc::new(MemFs::new());
    let options = TransformOptions { rules: Rules::default(), ..TransformOptions::default() };
    let fs = TransformFs::new(below, registry(), options).expect("a root");
    let walker = Walker::new(&fs);
    let data = lines(&mut Rng::new(9), 400_000);
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in [("a", &data[..]), ("d/b", b"inner")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, data).expect("added");
    }
    let tar = tar.into_inner().expect("a tar");
    walker.write_file(b"/x.tar", &tar, 0o644).expect("written");
    for (name, encoder) in [("gz", "gzip"), ("zst", "zstd"), ("xz", "xz"), ("lz4", "lz4")] {
        let stored = streamed(&tar, &format!("view: {encoder}")).expect("packed");
        let path = format!("/x.{name}");
        walker.write_file(path.as_bytes(), &stored, 0o644).expect("written");
        let inner = format!("{path}@exec program=cat+~{encoder}+tree/d/b");
        assert_eq!(walker.read_file(inner.as_bytes()).expect(encoder), b"inner");
        let long = format!("{path}@exec program=cat+~{encoder}+tree/a");
        assert!(walker.read_file(long.as_bytes()).expect(encoder) == data, "{encoder}");
    }
    let inner = walker.read_file(b"/x.tar@exec program=cat+tree/d/b");
    assert_eq!(inner.expect("a plain tar"), b"inner");
    // A view of a view: the length of its base is known once that was read.
    let stored = streamed(&data, "view: gzip").expect("packed");
    walker.write_file(b"/y.gz", &stored, 0o644).expect("written");
    let whole = read_path(&fs, b"/y.gz@exec program=cat@~gzip").expect("a view of a view");
    assert!(whole == data);
}
