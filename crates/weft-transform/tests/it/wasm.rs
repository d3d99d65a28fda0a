//! Guests: good ones, and those that want to do harm.

use std::sync::Arc;

use weft_transform::exec::{RunOptions, run};
use weft_transform::store::{Limits, MemoryBase, open};
use weft_transform::wasm::{Guest, GuestKind};
use weft_transform::{
    Context, Error, Io, Need, Network, Registry, Result, Rules, TransformFs, TransformOptions,
    Write,
};
use weft_vfs::{FileSystem, Handle, MemFs, Walker};

use weft_testing::ends;

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

/// The error of a guest that is asked for this much: it does not hang.
fn fails(guest: &str, input: &[u8]) -> Error {
    let network = network(guest, "view: wasm module=g deadline=200 memory=4M").expect("a network");
    let input = input.to_vec();
    let (ran, _) = ends(guest, move || through(&network, &input));
    ran.expect_err(guest)
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
    assert!(says(&stream("(i64.const -1)")).contains("error -1"));
    let least = says(&stream("(i64.const 0x8000000000000000)"));
    assert_eq!(
        least,
        "stage wasm: the module failed at byte 0: it returned error -9223372036854775808"
    );
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
    assert_eq!(
        bad(nowhere),
        "stage wasm: the first of 2 calls weft_buffer(262144) returned 4294967287, and its memory \
         has 65536 bytes"
    );
    let one = |kind: &str| {
        format!(
            "(module (memory (export \"memory\") 6) (func (export \"weft_buffer\") (param i32) \
             (result i32) i32.const 64) {kind})"
        )
    };
    let streams =
        "(func (export \"weft_stream\") (param i32 i32 i32 i32 i32) (result i64) i64.const 0)";
    let overlap = bad(&one(streams));
    assert!(overlap.contains("64 and then 64: its buffers overlap"), "{overlap}");
    let in_place = "(func (export \"weft_bytes\") (param i32 i32 i64) (result i32) i32.const 0)";
    assert!(
        network(&one(in_place), "view: wasm module=g").is_ok(),
        "it has one buffer, and uses one"
    );
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

/// A guest that imports its memory and does this with the address of each byte.
fn guest_of_others(each: &str) -> String {
    format!(
        r#"(module (import "weft" "memory" (memory 1))
  (func $each (param $at i32) {each})
  (func $all (param $at i32) (param $len i32) (result i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    (block $done (loop $on
      (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
      (call $each (local.get $at))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $on)))
    (i32.const 0))
  (func (export "weft_bytes") (param i32 i32 i64) (result i32)
    (call $all (local.get 0) (local.get 1))))"#
    )
}

/// Adds what this says to a byte.
fn adds(what: &str) -> String {
    guest_of_others(&format!(
        "(i32.store8 (local.get $at) (i32.add (i32.load8_u (local.get $at)) {what}))"
    ))
}

fn with_modules(modules: &[(&str, &str)]) -> Registry {
    let mut context = Context::default();
    for (name, text) in modules {
        context.modules.insert((*name).to_owned(), Arc::new(load(text).expect(name)));
    }
    Registry::new(context)
}

#[test]
fn neighbours_that_import_their_memory_have_one() {
    let one = adds("(i32.const 1)");
    let leaves = guest_of_others("(i32.store8 (i32.const 100) (i32.const 42))");
    let finds = adds("(i32.load8_u (i32.const 100))");
    let own = include_str!("../../guests/increment.wat");
    let registry =
        with_modules(&[("one", &one), ("leaves", &leaves), ("finds", &finds), ("own", own)]);
    let input: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    for (text, adds) in [
        ("view: wasm module=one", 1),
        ("view: wasm module=one | wasm module=one | wasm module=one", 3),
        ("view: wasm module=one | wasm module=own | wasm module=one", 3),
        ("view: wasm module=leaves | wasm module=finds", 42),
        ("view: wasm module=leaves | wasm module=one | wasm module=finds", 43),
        // Apart from each other: by another stage, by their limits, by a memory of their own.
        ("view: wasm module=leaves | increment | wasm module=finds", 1),
        ("view: wasm module=leaves memory=2M | wasm module=finds memory=4M", 0),
        ("view: wasm module=leaves | wasm module=own | wasm module=finds", 1),
    ] {
        let network = registry.parse(text).expect(text);
        for _ in 0..2 {
            let (made, out) = through(&network, &input);
            assert_eq!(made.expect(text), input.len() as u64, "{text}");
            let wrong = out.iter().zip(&input).position(|(o, i)| *o != i.wrapping_add(adds));
            assert_eq!(wrong, None, "{text}");
        }
        // The same as a stored file that is seen through them.
        let base = Box::new(MemoryBase::new(input.clone()));
        let mut file = open(base, &network, &Limits::default()).expect(text);
        let mut piece = [0; 1000];
        assert_eq!(file.read_at(300_000, &mut piece).expect(text), 1000);
        assert_eq!(piece[7], input[300_007].wrapping_add(adds), "{text}");
    }
}

#[test]
fn files_are_written_through_guests_with_one_memory() {
    let text = adds("(i32.const 3)");
    let exports = text.find("(func (export").expect("there");
    // The inverse takes away what was added.
    let turned = text[text.find("(func $each").expect("there")..exports]
        .replace("$each", "$each_inverse")
        .replace("$all", "$all_inverse")
        .replace("(i32.const 3)", "(i32.const -3)");
    let inverse = "(func (export \"weft_bytes_inverse\") (param i32 i32 i64) (result i32) \
                   (call $all_inverse (local.get 0) (local.get 1)))";
    let text = format!("{}{turned}{inverse}{}", &text[..exports], &text[exports..]);
    let registry = with_modules(&[("three", &text)]);
    let network = registry.parse("wasm module=three | wasm module=three").expect("a network");
    assert_eq!(network.can().write, Write::InPlace);
    let base = MemoryBase::default();
    let mut file = open(Box::new(base.clone()), &network, &Limits::default()).expect("opens");
    file.write_at(0, b"some words").and_then(|()| file.write_at(5, b"W")).expect("written");
    let mut back = [0; 10];
    file.read_at(0, &mut back).expect("read");
    assert_eq!(&back, b"some Words");
    assert_eq!(base.content(), b"some Words".map(|byte| byte + 6));
}

#[test]
fn harm_among_guests_with_one_memory_is_stopped_and_gone() {
    let one = adds("(i32.const 1)");
    let loops = guest_of_others("(loop $on (br $on))");
    let traps = guest_of_others("unreachable");
    let outside = guest_of_others("(drop (i32.load8_u (i32.const 0x7FFFFFFF)))");
    let grows = guest_of_others("(drop (memory.grow (i32.const 1000)))");
    // Fails at a byte of 255, and leaves something in memory before that.
    let picky = guest_of_others(
        "(i32.store8 (i32.const 100) (i32.const 9))
         (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 255)) (then unreachable))",
    );
    let finds = adds("(i32.load8_u (i32.const 100))");
    let registry = with_modules(&[
        ("one", &one),
        ("loops", &loops),
        ("traps", &traps),
        ("outside", &outside),
        ("grows", &grows),
        ("picky", &picky),
        ("finds", &finds),
    ]);
    for (bad, says) in
        [("loops", "no answer within 200 ms"), ("traps", "trapped"), ("outside", "out of bounds")]
    {
        let text = format!("view: wasm module=one deadline=200 | wasm module={bad} deadline=200");
        let network = registry.parse(&text).expect(bad);
        let (ran, _) = ends(bad, move || through(&network, &[7; 100_000]));
        let error = ran.expect_err(bad).to_string();
        assert!(error.contains(says), "{error}");
    }
    // More memory than it may have it does not get, and goes on without.
    let network = registry.parse("view: wasm module=grows memory=2M | wasm module=one memory=2M");
    let (made, out) = through(&network.expect("a network"), &[1; 100]);
    assert_eq!((made.expect("runs"), &out[..]), (100, &[2; 100][..]));
    // What one that failed left behind nobody finds.
    let network = registry.parse("view: wasm module=finds | wasm module=picky").expect("a network");
    assert!(through(&network, &[255; 100]).0.is_err());
    let (_, out) = through(&network, &[1; 100]);
    assert_eq!(out, [1; 100]);
}

#[test]
fn modules_that_cannot_share_are_refused() {
    let import = r#"(import "weft" "memory" (memory 1))"#;
    let function = r#"(func (export "weft_bytes") (param i32 i32 i64) (result i32) (i32.const 0))"#;
    let stream =
        r#"(func (export "weft_stream") (param i32 i32 i32 i32 i32) (result i64) (i64.const 0))"#;
    for (module, says) in [
        (format!("(module {import} {function} (data (i32.const 8) \"x\"))"), "has no data"),
        (format!("(module {import} {stream})"), "memory of its own"),
        (format!("(module (import \"env\" \"memory\" (memory 1)) {function})"), "env.memory"),
        (format!("(module {import} (import \"weft\" \"time\" (func)) {function})"), "weft.time"),
    ] {
        let refused = load(&module).expect_err(&module).to_string();
        assert!(refused.contains(says), "{module}: {refused}");
    }
    let big = "(module (import \"weft\" \"memory\" (memory 100))".to_owned() + function + ")";
    let registry = with_modules(&[("big", &big)]);
    let refused = registry.parse("view: wasm module=big memory=1M").expect_err("too big");
    assert!(matches!(refused, Error::Parameter { .. }), "{refused}");
}

/// A guest that takes `pages` of memory and puts the number of blocks that it has served into each.
fn counter(pages: u32) -> String {
    let count = format!(
        "(if (i32.eqz (global.get $count)) (then (drop (memory.grow (i32.const {pages}))))) \
         (global.set $count (i32.add (global.get $count) (i32.const 1))) \
         (i32.store8 (local.get $at) (global.get $count)) (i32.const 0)"
    );
    bytes(&count).replace(
        "(func (export \"weft_bytes\")",
        "(global $count (mut i32) (i32.const 0)) (func (export \"weft_bytes\")",
    )
}

/// A file system whose files are seen through a guest, with the guest.
fn files(guest: &str, count: usize) -> (Arc<Guest>, TransformFs) {
    let guest = Arc::new(load(guest).expect("a guest"));
    let mut context = Context::default();
    context.modules.insert("g".to_owned(), guest.clone());
    let below = Arc::new(MemFs::new());
    let walker = Walker::new(&*below);
    for nr in 0..count {
        walker.write_file(format!("/f{nr}").as_bytes(), b"0 words", 0o644).expect("a file");
    }
    let rules = Rules::parse(b"*@g view: wasm module=g\n*@other view: wasm module=g memory=32M\n");
    let rules = rules.expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    let fs = TransformFs::new(below, Registry::new(context), options).expect("a root");
    (guest, fs)
}

/// The kernel remembers files for as long as it likes: what an instance takes is no matter of one of
/// them.
#[test]
fn an_instance_serves_one_file_after_the_other() {
    const FILES: usize = 40;
    const PAGES: u32 = 320;
    let (guest, fs) = files(&counter(PAGES), FILES);
    for nr in 0..FILES {
        for (view, served) in [("g", nr + 1), ("other", nr + 1)] {
            let name = format!("f{nr}@{view}");
            // One reference is never given up.
            let ino = fs.lookup(fs.root(), name.as_bytes()).expect("a view").attr.ino;
            let mut content = [0; 100];
            let got = fs.read(ino, Handle::NONE, 0, &mut content).expect("read");
            assert_eq!(got, 7, "{name}");
            assert_eq!(usize::from(content[0]), served, "{name}: by the same instance");
        }
    }
    let kept = guest.kept();
    assert_eq!(kept.instances, 2, "one for each of the limits");
    // The own memory of a guest, and what it has grown by.
    assert_eq!(kept.bytes, 2 * (PAGES as usize + 10) * 65536);
}

/// Many threads at a time have many instances; when they have gone, few are left.
#[test]
fn idle_instances_are_few() {
    const THREADS: usize = 40;
    let slow = "(local $n i32) (loop $again (local.set $n (i32.add (local.get $n) (i32.const 1))) \
        (br_if $again (i32.lt_u (local.get $n) (i32.const 3000000)))) (i32.const 0)";
    let (guest, fs) = files(&bytes(slow), THREADS);
    std::thread::scope(|scope| {
        for nr in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let name = format!("f{nr}@g");
                let ino = fs.lookup(fs.root(), name.as_bytes()).expect("a view").attr.ino;
                let got = fs.read(ino, Handle::NONE, 0, &mut [0; 100]).expect("read");
                assert_eq!(got, 7);
            });
        }
    });
    let kept = guest.kept();
    assert!((1..=16).contains(&kept.instances), "{kept:?}");
}
