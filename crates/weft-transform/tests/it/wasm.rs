//! Guests: good ones, and those that want to do harm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_transform::exec::{RunOptions, run};
use weft_transform::store::{Limits, MemoryBase, open};
use weft_transform::wasm::{Guest, GuestKind};
use weft_transform::{Context, Error, Io, Need, Network, Registry, Result, Write};

const INCREMENT: &str = include_str!("../../guests/increment.wat");

/// What every guest has: a memory, and buffers in it.
const BUFFERS: &str = r#"
  (memory (export "memory") 10)
  (global $free (mut i32) (i32.const 65536))
  (func (export "weft_buffer") (param $bytes i32) (result i32)
    (global.get $free)
    (global.set $free (i32.add (global.get $free) (local.get $bytes))))"#;

/// A guest on bytes, whose function does this.
fn bytes(body: &str) -> String {
    format!(
        "(module {BUFFERS} (func (export \"weft_bytes\") (param $at i32) (param $len i32) \
         (param $offset i64) (result i32) {body}))"
    )
}

/// A guest that streams.
fn stream(body: &str) -> String {
    format!(
        "(module {BUFFERS} (global $state (mut i32) (i32.const 0)) (func (export \"weft_stream\") \
         (param $in i32) (param $len i32) (param $out i32) (param $room i32) (param $last i32) \
         (result i64) {body}))"
    )
}

fn load(text: &str) -> Result<Guest> {
    Guest::load(&wat::parse_str(text).expect("text of a module"), None)
}

fn network(guest: &str, text: &str) -> Result<Network> {
    let mut context = Context::default();
    context.modules.insert("g".to_owned(), Arc::new(load(guest)?));
    Registry::new(context).parse(text)
}

fn through(network: &Network, input: &[u8]) -> (Result<u64>, Vec<u8>) {
    let mut out = Vec::new();
    let io = Io::Read;
    (run(network, io, &mut &input[..], &mut out, RunOptions::default()), out)
}

/// The error of a guest that is asked for this much, which comes in bounded time.
fn fails(guest: &str, input: &[u8]) -> Error {
    let network = network(guest, "view: wasm module=g deadline=200 memory=4M").expect("a network");
    let began = Instant::now();
    let error = through(&network, input).0.expect_err(guest);
    assert!(began.elapsed() < Duration::from_secs(5), "{guest}");
    error
}

#[test]
fn a_guest_is_a_stage_like_any_other() {
    let guest = load(INCREMENT).expect("a guest");
    assert!(guest.kind() == GuestKind::Bytes && guest.is_invertible());
    let both = network(INCREMENT, "wasm module=g").expect("a network");
    both.check(&Need { exact_size: true, random_read: true, write: Write::InPlace }).expect("all");
    let input: Vec<u8> = (0..700_001_u32).map(|n| (n % 251) as u8).collect();
    let view = network(INCREMENT, "view: wasm module=g | decrement").expect("a network");
    assert!(through(&view, &input).1 == input, "the same as weft's own");
    // Written and read through a file, in the middle too.
    let base = MemoryBase::default();
    let mut file = open(Box::new(base), &both, &Limits::default()).expect("opens");
    file.write_at(0, &input).expect("written");
    file.write_at(300_001, b"middle").expect("written");
    let mut back = vec![0; input.len()];
    assert_eq!(file.read_at(0, &mut back).expect("read"), input.len());
    assert_eq!(&back[300_001..300_007], b"middle");
    back[300_001..300_007].copy_from_slice(&input[300_001..300_007]);
    assert!(back == input);
}

#[test]
fn a_guest_streams_and_keeps_its_state() {
    // Every byte twice: takes half of what it has room for, and at the end says how much that was
    // in one byte.
    let double = stream(
        "(local $i i32)
         (if (local.get $last) (then
           (if (i32.eqz (global.get $state)) (then (return (i64.const 0))))
           (global.set $state (i32.const 0))
           (i32.store8 (local.get $out) (i32.const 33))
           (return (i64.const 1))))
         (global.set $state (i32.const 1))
         (if (i32.gt_u (local.get $len) (i32.const 100000)) (then
           (local.set $len (i32.const 100000))))
         (block $end (loop $each
           (br_if $end (i32.ge_u (local.get $i) (local.get $len)))
           (i32.store16
             (i32.add (local.get $out) (i32.shl (local.get $i) (i32.const 1)))
             (i32.mul (i32.const 257) (i32.load8_u (i32.add (local.get $in) (local.get $i)))))
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br $each)))
         (i64.or
           (i64.shl (i64.extend_i32_u (local.get $len)) (i64.const 32))
           (i64.extend_i32_u (i32.shl (local.get $len) (i32.const 1))))",
    );
    let network = network(&double, "view: wasm module=g | upper").expect("a network");
    assert!(!network.can().exact_size && !network.can().random_read);
    let input = b"abc".repeat(150_000);
    let (ran, out) = through(&network, &input);
    ran.expect("runs");
    let mut want: Vec<u8> = input.iter().flat_map(|b| [b.to_ascii_uppercase(); 2]).collect();
    want.push(b'!');
    assert!(out == want);
}

#[test]
fn harmful_guests_are_stopped_in_time() {
    let input = vec![7; 300_000];
    let says = |guest: &str| fails(guest, &input).to_string();
    let forever = bytes("(loop $on (br $on)) (i32.const 0)");
    assert!(matches!(fails(&forever, &input), Error::Deadline { stage: "wasm", millis: 200 }));
    assert!(says(&bytes("unreachable")).contains("trapped"));
    assert!(says(&bytes("(i32.load (i32.const -4)) drop (i32.const 0)")).contains("out of bounds"));
    assert!(
        says(&bytes("(i32.store (i32.const 16000000) (i32.const 1)) (i32.const 0)"))
            .contains("out of bounds")
    );
    assert!(says(&bytes("(i32.const 5)")).contains("error 5"));
    assert!(says(&bytes("(i32.div_u (i32.const 1) (i32.const 0))")).contains("trapped"));
    // Grows until it may not, says so, and is told no each time.
    let grows = bytes(
        "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) memory.size",
    );
    assert!(says(&grows).contains("error 58"), "{}", says(&grows));
    let deep = format!(
        "(module {BUFFERS} (func $down (param i32) (result i32) (i32.add (i32.const 1) \
         (call $down (i32.add (local.get 0) (i32.const 1))))) \
         (func (export \"weft_bytes\") (param i32 i32 i64) (result i32) (call $down (i32.const 0))))"
    );
    assert!(says(&deep).contains("trapped"));
    // Streams that answer nonsense.
    assert!(says(&stream("(i64.const -1)")).contains("error 1"));
    assert!(says(&stream("(i64.const 0)")).contains("no progress"));
    assert!(says(&stream("(i64.const 0x7FFFFFFF_00000000)")).contains("more than there was room"));
    assert!(says(&stream("(i64.const 0x00000000_7FFFFFFF)")).contains("more than there was room"));
    assert!(says(&stream("(loop $on (br $on)) (i64.const 0)")).contains("200 ms"));
}

#[test]
fn others_go_on_while_a_guest_is_stopped() {
    // Fails on blocks that begin with an x, and works on all others.
    let picky = bytes(
        "(if (i32.eq (i32.load8_u (local.get $at)) (i32.const 120)) (then
           (loop $on (br $on))))
         (i32.store8 (local.get $at) (i32.const 89)) (i32.const 0)",
    );
    let network = network(&picky, "view: wasm module=g deadline=300").expect("a network");
    std::thread::scope(|scope| {
        let bad = scope.spawn(|| through(&network, b"xx").0);
        for _ in 0..200 {
            let (ran, out) = through(&network, b"good");
            assert!(ran.is_ok() && out == b"Yood");
        }
        assert!(matches!(bad.join().expect("no panic"), Err(Error::Deadline { .. })));
    });
    assert_eq!(through(&network, b"good").1, b"Yood");
}

#[test]
fn modules_that_do_not_fit_are_refused_when_they_are_loaded() {
    let no = |text: &str| load(text).expect_err(text).to_string();
    assert!(no("(module)").contains("exports not one of"));
    let wants = format!("(module (import \"wasi\" \"fd_read\" (func)) {BUFFERS})");
    assert!(no(&wants).contains("wasi.fd_read"));
    assert!(Guest::load(b"\0asm garbage", None).is_err());
    assert!(Guest::load(&vec![0; 17 << 20], None).is_err());
    // The rest is found when a network names it, before anything is read.
    let bad =
        |text: &str| network(text, "view: wasm module=g deadline=300").expect_err(text).to_string();
    let no_memory =
        "(module (func (export \"weft_bytes\") (param i32 i32 i64) (result i32) i32.const 0))";
    assert!(bad(no_memory).contains("no memory"));
    let nowhere = "(module (memory (export \"memory\") 1) (func (export \"weft_buffer\") (param i32) \
                   (result i32) i32.const -9) (func (export \"weft_bytes\") (param i32 i32 i64) \
                   (result i32) i32.const 0))";
    assert!(bad(nowhere).contains("no room for its buffers"));
    let starts = format!(
        "(module {BUFFERS} (func $s (loop $on (br $on))) (start $s) \
        (func (export \"weft_bytes\") (param i32 i32 i64) (result i32) i32.const 0))"
    );
    assert!(bad(&starts).contains("300 ms"));
    let large = "(module (memory (export \"memory\") 30000) (func (export \"weft_bytes\") \
                 (param i32 i32 i64) (result i32) i32.const 0))";
    assert!(bad(large).contains("memory"), "{}", bad(large));
    assert!(network(INCREMENT, "wasm module=g argument=x").is_err(), "it takes none");
    assert!(network(INCREMENT, "wasm module=other").is_err());
    assert!(
        network(&bytes("(i32.const 0)"), "wasm module=g")
            .is_ok_and(|n| n.can().write == Write::None)
    );
}

#[test]
fn compiled_modules_are_kept_and_damage_to_them_is_noticed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let cache = dir.path().join("cache");
    let module = wat::parse_str(INCREMENT).expect("text of a module");
    let load = || Guest::load(&module, Some(&cache)).expect("a guest");
    load();
    let kept = || -> Vec<_> {
        let files = std::fs::read_dir(&cache).expect("the cache");
        files.map(|file| file.expect("a file").path()).collect()
    };
    let files = kept();
    assert!(files.len() == 1 && files[0].extension().is_some_and(|e| e == "cwasm"), "{files:?}");
    let whole = std::fs::read(&files[0]).expect("read");
    load();
    for at in (0..whole.len()).step_by(whole.len() / 50) {
        let mut bad = whole.clone();
        bad[at] ^= 0x40;
        std::fs::write(&files[0], &bad).expect("written");
        load();
        assert!(std::fs::read(&files[0]).expect("read") == whole, "written anew, byte {at}");
    }
    // A directory that others can write is not used.
    std::fs::remove_file(&files[0]).expect("removed");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).expect("set");
    load();
    assert!(kept().is_empty());
}
