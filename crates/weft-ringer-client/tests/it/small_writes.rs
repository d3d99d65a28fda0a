//! Small writes: what is there after the end of a client and after power cuts, what others see, and
//! how many bytes they cost.

use std::fs;
use std::path::Path;
use std::time::Duration;

use weft_block::Rng;
use weft_ringer_client::{RingerFs, RingerFsOptions};
use weft_vfs::{Caller, FallocateMode, FileSystem, Handle, Ino, SetAttr, Walker};

use super::{Cell, encrypt, give_keys};

const LONG: Duration = Duration::from_secs(15);
const BLOCK: u64 = 64 << 10;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// A change of a file, drawn.
enum Change {
    Write(u64, Vec<u8>),
    Cut(u64),
    Punch(u64, u64),
}

impl Change {
    fn draw(rng: &mut Rng, most_bytes: u64) -> Self {
        let at = rng.below(most_bytes);
        match rng.below(20) {
            0 => Self::Cut(at),
            1 => Self::Punch(at, 1 + rng.below(BLOCK)),
            n => {
                let len = match n {
                    2 => 1 + rng.below(3 * BLOCK),
                    3 => BLOCK,
                    4..=8 => 8192,
                    _ => 1 + rng.below(9000),
                };
                let at = if n == 3 { at / BLOCK * BLOCK } else { at };
                let mut data = vec![0; len as usize];
                rng.fill(&mut data);
                Self::Write(at, data)
            }
        }
    }

    fn make(&self, fs: &RingerFs, ino: Ino) -> weft_vfs::Result<()> {
        match self {
            Self::Write(at, data) => fs
                .write(&Caller::ROOT, ino, Handle::NONE, *at, data)
                .map(|n| assert_eq!(n, data.len())),
            Self::Cut(size) => {
                let set = SetAttr { size_bytes: Some(*size), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, ino, &set).map(drop)
            }
            Self::Punch(at, len) => {
                fs.fallocate(&Caller::ROOT, ino, FallocateMode::PunchHole, *at, *len)
            }
        }
    }

    fn model(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let (at, end) = (*at as usize, *at as usize + data.len());
                content.resize(content.len().max(end), 0);
                content[at..end].copy_from_slice(data);
            }
            Self::Cut(size) => content.resize(*size as usize, 0),
            Self::Punch(at, len) => {
                let end = content.len().min((*at + *len) as usize);
                let at = end.min(*at as usize);
                content[at..end].fill(0);
            }
        }
    }
}

fn whole(fs: &RingerFs, ino: Ino) -> Vec<u8> {
    let size = fs.getattr(ino).expect("there").size_bytes as usize;
    let mut content = vec![0xee; size + 10];
    let read = fs.read(ino, Handle::NONE, 0, &mut content).expect("it is read");
    assert_eq!(read, size);
    content.truncate(size);
    content
}

fn find(fs: &RingerFs) -> Ino {
    fs.lookup(fs.root(), b"file").expect("there").attr.ino
}

/// Random changes here and on another client, looked at from both; and the end of this one, after
/// which everything is there that was acknowledged.
fn random_work(seed: u64, steps: u64, is_encrypted: bool) {
    let mut rng = Rng::new(seed);
    let cell = Cell::new(LONG);
    let mut a = cell.join("a");
    let b = cell.join("b");
    if is_encrypted {
        encrypt(&a, a.root());
        give_keys(&cell, "a", &b);
    }
    Walker::new(&a).write_file(b"/file", b"", 0o644).expect("made");
    let ino = find(&a);
    assert_eq!(find(&b), ino);
    let mut model = Vec::new();
    for step in 0..steps {
        let what = format!("WEFT_SMALL_WRITES_SEED={seed}, step {step}");
        match rng.below(60) {
            0 => {
                // As after SIGKILL.
                a.vanish();
                drop(a);
                a = cell.join("a");
                assert_eq!(find(&a), ino);
                assert!(whole(&a, ino) == model, "{what}: after its end");
            }
            1 => a.sync().expect("durable"),
            2..=4 => assert!(whole(&b, ino) == model, "{what}: the other reads"),
            5 => {
                let change = Change::draw(&mut rng, 6 * BLOCK);
                change.make(&b, ino).expect("the other changes it");
                change.model(&mut model);
            }
            6..=12 => {
                let at = rng.below(6 * BLOCK) as usize;
                let mut buf = vec![0xee; 1 + rng.index(2 * BLOCK as usize)];
                let n = a.read(ino, Handle::NONE, at as u64, &mut buf).expect("read");
                let expected = model.get(at..).unwrap_or(&[]);
                let expected = &expected[..expected.len().min(buf.len())];
                assert!(buf[..n] == *expected, "{what}: a part");
            }
            _ => {
                let change = Change::draw(&mut rng, 6 * BLOCK);
                change.make(&a, ino).expect("changed");
                change.model(&mut model);
            }
        }
        assert_eq!(a.getattr(ino).expect("there").size_bytes, model.len() as u64, "{what}");
    }
    assert!(whole(&a, ino) == model && whole(&b, ino) == model, "WEFT_SMALL_WRITES_SEED={seed}");
}

#[test]
fn small_writes_are_shared_and_survive_a_crash() {
    match number("WEFT_SMALL_WRITES_SEED", 0) {
        0 => (1..=4).for_each(|seed| random_work(seed, 400, false)),
        seed => random_work(seed, 400, false),
    }
}

#[test]
fn encrypted_small_writes_are_shared_and_survive_a_crash() {
    match number("WEFT_SMALL_WRITES_SEED", 0) {
        0 => (11..=14).for_each(|seed| random_work(seed, 400, true)),
        seed => random_work(seed, 400, true),
    }
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn long_small_writes() {
    let seconds = number("WEFT_LONG_SECONDS", 60) / 8 + 1;
    let begun = std::time::Instant::now();
    let seeds = (1000..).take_while(|_| begun.elapsed() < Duration::from_secs(seconds));
    seeds.for_each(|seed| random_work(seed, 1000, seed % 2 == 1));
}

/// Options of a client that sends changes only on request.
fn silent(cell: &Cell, name: &str, block_bytes: u32) -> RingerFsOptions {
    let mut options = cell.options(name);
    (options.client.flush_micros, options.client.batch) = (u64::MAX / 2, usize::MAX);
    options.block_bytes = block_bytes;
    options
}

#[test]
fn power_cut_leaves_a_prefix_of_writes() {
    // Each seed with a plain file and with an encrypted one.
    for (seed, is_encrypted) in (1..=8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut rng = Rng::new(seed);
        let cell = Cell::new(LONG);
        let a = RingerFs::join(silent(&cell, "a", BLOCK as u32)).expect("it joins");
        if is_encrypted {
            encrypt(&a, a.root());
        }
        Walker::new(&a).write_file(b"/file", &[7; 100_000], 0o644).expect("made");
        let ino = find(&a);
        a.fsync(&Caller::ROOT, ino, false).expect("durable");
        let journal = cell.path("a").join("journal");
        let durable = fs::metadata(&journal).expect("a journal").len();
        let mut model = vec![7; 100_000];
        let mut moments = vec![model.clone()];
        for _ in 0..40 {
            let change = Change::draw(&mut rng, 3 * BLOCK);
            change.make(&a, ino).expect("changed");
            change.model(&mut model);
            moments.push(model.clone());
        }
        a.vanish();
        drop(a);
        // Any prefix of the journal may be left that includes its durable part; the base of an open
        // block may have lost its second name.
        let mut bytes = fs::read(&journal).expect("a journal");
        let cut = durable + rng.below(bytes.len() as u64 - durable + 1);
        if rng.below(3) > 0 {
            bytes.truncate(cut as usize);
        } else if let Some(byte) = bytes.get_mut(cut as usize) {
            *byte ^= 4;
        }
        fs::write(&journal, bytes).expect("cut");
        if rng.below(2) == 0 {
            for base in fs::read_dir(cell.path("a").join("open")).expect("a directory") {
                fs::remove_file(base.expect("an entry").path()).expect("removed");
            }
        }
        let a = cell.join("a");
        let left = whole(&a, ino);
        assert!(moments.contains(&left), "seed {seed}: it was never so");
        // Other clients read the same.
        let b = cell.join("b");
        if is_encrypted {
            give_keys(&cell, "a", &b);
        }
        assert!(whole(&b, ino) == left, "seed {seed}");
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    files
        .map(|file| {
            let meta = file.metadata().expect("there");
            if meta.is_dir() { bytes_in(&file.path()) } else { meta.len() }
        })
        .sum()
}

#[test]
fn small_write_costs_its_length() {
    const WRITE: usize = 8192;
    for block_bytes in [64 << 10, 256 << 10, 4 << 20] {
        let cell = Cell::new(LONG);
        let a = RingerFs::join(silent(&cell, "a", block_bytes)).expect("it joins");
        Walker::new(&a).write_file(b"/file", b"", 0o644).expect("made");
        let (ino, store) = (find(&a), cell.path("a"));
        let written = || {
            let journal = fs::metadata(store.join("journal")).expect("a journal").len();
            (journal, bytes_in(&store.join("own")))
        };
        let total = 4 << 20;
        let (before, _) = written();
        for at in (0..total).step_by(WRITE) {
            a.write(&Caller::ROOT, ino, Handle::NONE, at, &at.to_le_bytes().repeat(WRITE / 8))
                .expect("written");
        }
        let (after, stored) = written();
        assert_eq!(stored, 0, "blocks of {block_bytes} are stored when they are sealed");
        assert!(after - before < total * 21 / 20, "{} bytes for {total}", after - before);
        a.sync().expect("durable");
        assert_eq!(written().1, total, "each block once");
        // Over and over into one block.
        let (before, _) = written();
        let rounds: u64 = 200;
        for round in 0..rounds {
            let at = (round % 5) * 3 * WRITE as u64 / 2;
            a.write(&Caller::ROOT, ino, Handle::NONE, at, &[!(round as u8); WRITE])
                .expect("written");
        }
        let (after, stored) = written();
        let long = rounds * WRITE as u64;
        assert!(stored == total && after - before < long * 21 / 20, "{}", after - before);
        a.sync().expect("durable");
        let touched = (6 * WRITE + WRITE).div_ceil(block_bytes as usize) as u64;
        assert!(written().1 <= total + touched * u64::from(block_bytes), "one more of each");
    }
}

#[test]
fn journal_is_bounded() {
    let cell = Cell::new(LONG);
    let a = RingerFs::join(silent(&cell, "a", 256 << 10)).expect("it joins");
    Walker::new(&a).write_file(b"/file", b"", 0o644).expect("made");
    let (ino, journal) = (find(&a), cell.path("a").join("journal"));
    let mut longest = 0;
    // A file that is never left alone.
    for at in (0..160 << 20).step_by(100_000) {
        a.write(&Caller::ROOT, ino, Handle::NONE, at % (2 << 20), &[(at / 1000) as u8; 100_000])
            .expect("written");
        longest = longest.max(fs::metadata(&journal).expect("a journal").len());
    }
    assert!(longest < 100 << 20, "{longest} bytes");
    let last = whole(&a, ino);
    a.vanish();
    drop(a);
    let a = cell.join("a");
    assert!(whole(&a, ino) == last);
}
