//! What small writes cost, counted: frames decoded and encoded, bytes and flushes that go below.

use std::sync::{Arc, Mutex};

use weft_testing::Rng;
use weft_transform::store::{Base, FramedFile, FreshId, Home, Limits, MemoryBase, Store};
use weft_transform::{Frame, FrameCodec, Result, Shape, Stream, Transform};

use crate::common::{campaign_end, lines, network, read_all};

const FRAME_BYTES: u64 = 128 << 10;
const WRITE_BYTES: usize = 4 << 10;

/// What was done since the counts were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    decoded: u64,
    encoded: u64,
    bytes_below: u64,
    flushes_below: u64,
    replaced: u64,
    /// After so many more writes and flushes below, all fail.
    failing_after: Option<u64>,
}

type Shared = Arc<Mutex<Counts>>;

fn count(counts: &Shared, what: impl FnOnce(&mut Counts)) {
    what(&mut counts.lock().expect("counts"));
}

/// Counts a write or flush below, if it is not to fail.
fn count_below(counts: &Shared, what: impl FnOnce(&mut Counts)) -> Result<()> {
    let mut counts = counts.lock().expect("counts");
    if let Some(left) = &mut counts.failing_after {
        *left = left.checked_sub(1).ok_or(weft_vfs::Error::NoSpace)?;
    }
    what(&mut counts);
    Ok(())
}

/// A stage of frames that counts.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Transform>,
    counts: Shared,
}

impl Counted {
    fn inner(&self) -> &dyn FrameCodec {
        match self.inner.shape() {
            Shape::Framed(codec) => codec,
            _ => panic!("a stage of frames"),
        }
    }
}

impl Transform for Counted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

impl FrameCodec for Counted {
    fn stage(&self) -> &'static str {
        self.inner().stage()
    }

    fn frame_bytes(&self) -> usize {
        self.inner().frame_bytes()
    }

    fn guards(&self) -> bool {
        self.inner().guards()
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        count(&self.counts, |c| c.encoded += 1);
        self.inner().encode(plain, out)
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        count(&self.counts, |c| c.decoded += 1);
        self.inner().decode(stored, out)
    }

    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>) {
        self.inner().finish(frames, out);
    }

    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        self.inner().pad(stored_bytes)
    }

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        self.inner().index(file)
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        self.inner().decoder()
    }
}

/// A base that counts.
#[derive(Debug, Clone)]
struct CountedBase {
    content: MemoryBase,
    counts: Shared,
}

struct CountedStore {
    store: Box<dyn Store>,
    counts: Shared,
}

impl CountedBase {
    fn over(&self, store: Box<dyn Store>) -> Box<dyn Store> {
        Box::new(CountedStore { store, counts: self.counts.clone() })
    }
}

impl Base for CountedBase {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        let store = self.content.current()?;
        Ok(self.over(store))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let (id, store) = self.content.fresh()?;
        Ok((id, self.over(store)))
    }

    fn adopt(&mut self, fresh: FreshId) -> Result<()> {
        count(&self.counts, |c| c.replaced += 1);
        self.content.adopt(fresh)
    }

    fn discard(&mut self, fresh: FreshId) {
        self.content.discard(fresh);
    }
}

impl Store for CountedStore {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.store.len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.store.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        count_below(&self.counts, |c| c.bytes_below += data.len() as u64)?;
        self.store.write_at(offset, data)
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        self.store.set_len(len_bytes)
    }

    fn commit(&mut self) -> Result<()> {
        count_below(&self.counts, |c| c.flushes_below += 1)?;
        self.store.commit()
    }
}

/// A file through a network whose last stage is of frames and counted, with what it holds.
struct Bench {
    store: FramedFile,
    base: CountedBase,
    text: &'static str,
    model: Vec<u8>,
    random: Rng,
}

impl Bench {
    fn new(text: &'static str, len: usize, limits: Limits) -> Self {
        let base = CountedBase { content: MemoryBase::default(), counts: Shared::default() };
        let mut random = Rng::new(71);
        let model = lines(&mut random, len);
        let mut store = Self::open(text, &base, limits);
        for (at, piece) in model.chunks(1 << 20).enumerate() {
            store.write_at((at as u64) << 20, piece).expect("write");
        }
        store.commit().expect("commit");
        let bench = Self { store, base, text, model, random };
        bench.take();
        bench
    }

    fn open(text: &str, base: &CountedBase, limits: Limits) -> FramedFile {
        let network = network(text);
        let (framed, below) = network.layers().split_last().expect("stages");
        let counts = base.counts.clone();
        let stage = Arc::new(Counted { inner: framed.stage.clone(), counts });
        let home = Home::new(Box::new(base.clone()), below.to_vec(), limits).expect("home");
        FramedFile::open(stage, home).expect("open")
    }

    fn take(&self) -> Counts {
        std::mem::take(&mut *self.base.counts.lock().expect("counts"))
    }

    /// Writes 4 KiB somewhere; the frame that was.
    fn write_somewhere(&mut self) -> u64 {
        let page = self.random.below((self.model.len() / WRITE_BYTES) as u64);
        self.write_page(page);
        page * WRITE_BYTES as u64 / FRAME_BYTES
    }

    fn write_page(&mut self, page: u64) {
        let data = lines(&mut self.random, WRITE_BYTES);
        let at = page * WRITE_BYTES as u64;
        self.store.write_at(at, &data).expect("write");
        self.model[at as usize..at as usize + WRITE_BYTES].copy_from_slice(&data);
    }

    /// The file is what was written, now and after it was opened anew.
    fn check(mut self) {
        self.store.commit().expect("commit");
        assert!(read_all(&mut self.store, 1 << 20).expect("read") == self.model, "{}", self.text);
        let Self { store, base, text, model, .. } = self;
        drop(store);
        assert_eq!(base.content.fresh_files(), 0, "{text}");
        let mut store = Self::open(text, &base, Limits::default());
        assert!(read_all(&mut store, 1 << 20).expect("read") == model, "{text}: opened anew");
    }
}

const SEALED: &str = "zstd | aead key=work";

#[test]
fn frames_leave_memory_oldest_first_and_no_more_than_must() {
    // Room for 8 frames of 32.
    let limits = Limits { dirty_bytes: 8 * FRAME_BYTES, ..Limits::default() };
    let mut bench = Bench::new(SEALED, 32 * FRAME_BYTES as usize, limits);
    let pages = FRAME_BYTES / WRITE_BYTES as u64;
    let mut kept: Vec<u64> = Vec::new();
    let mut missed = 0;
    for _ in 0..600 {
        let frame = bench.random.below(6) + if bench.random.below(8) == 0 { 20 } else { 0 };
        let page = frame * pages + bench.random.below(pages);
        bench.write_page(page);
        match kept.iter().position(|at| *at == frame) {
            Some(at) => drop(kept.remove(at)),
            None => missed += 1,
        }
        kept.push(frame);
        if kept.len() > 8 {
            kept.remove(0);
        }
    }
    let counts = bench.take();
    assert_eq!(counts.decoded, missed, "a frame that is in memory is not decoded again");
    assert!(counts.encoded < missed, "only what leaves memory is encoded: {counts:?}");
    bench.store.commit().expect("commit");
    assert!(bench.take().encoded <= 8, "a commit encodes what is in memory, and nothing twice");
    bench.check();
}

#[test]
fn a_frame_that_was_just_read_or_committed_is_not_decoded_again() {
    let mut bench = Bench::new(SEALED, 8 * FRAME_BYTES as usize, Limits::default());
    let mut buf = [0; 100];
    bench.store.read_at(5000, &mut buf).expect("read");
    bench.write_page(1);
    bench.store.commit().expect("commit");
    bench.write_page(7);
    bench.store.commit().expect("commit");
    assert_eq!(bench.take().decoded, 1);
    // Nor is one that is written as a whole.
    let data = lines(&mut bench.random, FRAME_BYTES as usize);
    bench.store.write_at(3 * FRAME_BYTES, &data).expect("write");
    bench.model[3 * FRAME_BYTES as usize..][..data.len()].copy_from_slice(&data);
    assert_eq!(bench.take(), Counts::default());
    bench.check();
}

#[test]
fn a_commit_of_one_page_costs_a_frame_and_not_the_file() {
    for text in [
        SEALED,
        "zstd | guard",
        "lz4 frame=128K | aead key=work",
        "zstd | xor hex=55 | aead key=work | increment",
    ] {
        let mut bench = Bench::new(text, 64 * FRAME_BYTES as usize, Limits::default());
        let stored = bench.base.content.content().len() as u64;
        let mut counts = Counts::default();
        let commits = 100;
        for _ in 0..commits {
            bench.write_somewhere();
            bench.store.commit().expect("commit");
            let now = bench.take();
            assert!(now.decoded <= 1, "{text}: {now:?}");
            assert!(now.encoded == 1, "{text}: {now:?}");
            assert!(now.replaced == 1 || now.flushes_below <= 3, "{text}: {now:?}");
            counts.bytes_below += now.bytes_below;
            counts.replaced += now.replaced;
        }
        // A frame that no longer fits makes the file be written anew, with room between its frames.
        assert!(counts.replaced <= 3, "{text}: {counts:?}");
        let of_frames = counts.bytes_below.saturating_sub(counts.replaced * 2 * stored) / commits;
        assert!(of_frames < 3 * FRAME_BYTES, "{text}: {of_frames} bytes for each commit");
        bench.check();
    }
}

#[test]
fn a_commit_in_place_that_fails_anywhere_leaves_old_or_new_and_is_made_good() {
    let mut failures = 0;
    for after in 0.. {
        let mut bench = Bench::new(SEALED, 8 * FRAME_BYTES as usize, Limits::default());
        // Makes room, so that the next one is in place.
        for page in [0, 40, 80, 120] {
            bench.write_page(page);
            bench.store.commit().expect("commit");
        }
        let old = bench.model.clone();
        bench.write_page(3);
        bench.write_page(100);
        bench.take();
        count(&bench.base.counts, |c| c.failing_after = Some(after));
        let outcome = bench.store.commit();
        assert_eq!(bench.take().replaced, 0, "in place");
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        let crashed = MemoryBase::new(bench.base.content.content());
        let crashed = CountedBase { content: crashed, counts: Shared::default() };
        let mut crashed = Bench::open(SEALED, &crashed, Limits::default());
        let found = read_all(&mut crashed, 1 << 20).expect("read");
        assert!(found == old || found == bench.model, "after {after} writes and flushes");
        assert!(read_all(&mut bench.store, 1 << 20).expect("read") == bench.model, "{after}");
        bench.write_page(150);
        bench.store.commit().expect("commit");
        assert_eq!(bench.take().replaced, 1, "not over what the failed commit left");
        bench.check();
    }
    assert!(failures >= 4, "the log, its flush, the places, their flush: {failures}");
}

#[test]
#[ignore = "prints figures: WEFT_LONG_SECONDS bounds it"]
fn what_random_writes_cost() {
    for (name, every, writes) in [("one fsync at the end", u64::MAX, 4096), ("fsync each", 1, 512)]
    {
        let mut bench = Bench::new(SEALED, 64 << 20, Limits::default());
        let (began, end) = (std::time::Instant::now(), campaign_end(2));
        let mut frames = std::collections::BTreeSet::new();
        let mut done = 0;
        while done < writes && std::time::Instant::now() < end {
            frames.insert(bench.write_somewhere());
            done += 1;
            if done % every == 0 {
                bench.store.commit().expect("commit");
            }
        }
        bench.store.commit().expect("commit");
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{name}: {done} writes to {} frames, {:.0} a second; {:?}",
            frames.len(),
            done as f64 / seconds,
            bench.take()
        );
        bench.check();
    }
}
