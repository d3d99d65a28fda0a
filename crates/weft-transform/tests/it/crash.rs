//! Power cuts during commits of sealed files: every moment, and any part of what was written since
//! the last flush, in sectors of 512 bytes. The file is then old or new.
//!
//! Files of frames over sealed ones are written anew by some commits, and in place by others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weft_testing::Rng;
use weft_transform::Result;
use weft_transform::store::{Base, FreshId, MemoryBase, Store};

use crate::common::{campaign_end, lines, noise, open_base, read_all};

/// What reached the file below, in order.
#[derive(Debug, Clone)]
enum Event {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Flush,
    /// Another file took its place, with this content.
    Replace(Vec<u8>),
}

/// A file that records what happens to it.
#[derive(Debug, Clone, Default)]
struct Recorder {
    content: MemoryBase,
    events: Arc<Mutex<Vec<Event>>>,
    /// Files beside, and whether they have taken its place.
    fresh: Arc<Mutex<BTreeMap<u64, Arc<AtomicBool>>>>,
}

struct Recorded {
    store: Box<dyn Store>,
    events: Arc<Mutex<Vec<Event>>>,
    is_current: Arc<AtomicBool>,
}

impl Recorded {
    fn record(&self, event: Event) {
        if self.is_current.load(Ordering::Relaxed) {
            self.events.lock().expect("events").push(event);
        }
    }
}

impl Store for Recorded {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.store.len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.store.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.record(Event::Write(offset, data.to_vec()));
        self.store.write_at(offset, data)
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        self.record(Event::SetLen(len_bytes));
        self.store.set_len(len_bytes)
    }

    fn commit(&mut self) -> Result<()> {
        self.record(Event::Flush);
        self.store.commit()
    }

    fn is_dirty(&self) -> bool {
        self.store.is_dirty()
    }
}

impl Base for Recorder {
    fn current(&mut self) -> Result<Box<dyn Store>> {
        let store = self.content.current()?;
        let is_current = Arc::new(AtomicBool::new(true));
        Ok(Box::new(Recorded { store, events: self.events.clone(), is_current }))
    }

    fn fresh(&mut self) -> Result<(FreshId, Box<dyn Store>)> {
        let (id, store) = self.content.fresh()?;
        let is_current = Arc::new(AtomicBool::new(false));
        self.fresh.lock().expect("fresh").insert(id.0, is_current.clone());
        Ok((id, Box::new(Recorded { store, events: self.events.clone(), is_current })))
    }

    fn adopt(&mut self, fresh: FreshId) -> Result<()> {
        self.content.adopt(fresh)?;
        // It was durable before, and the renaming is when this returns.
        let mut events = self.events.lock().expect("events");
        events.extend([Event::Replace(self.content.content()), Event::Flush]);
        let is_current = self.fresh.lock().expect("fresh").remove(&fresh.0).expect("made here");
        is_current.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn discard(&mut self, fresh: FreshId) {
        self.content.discard(fresh);
    }
}

fn apply(file: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Write(at, data) => {
            let end = *at as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[*at as usize..end].copy_from_slice(data);
        }
        Event::SetLen(len) => file.resize(*len as usize, 0),
        Event::Flush => {}
        Event::Replace(content) => file.clone_from(content),
    }
}

/// Applies a part of an event: some of its sectors.
fn tear(file: &mut Vec<u8>, event: &Event, random: &mut Rng) {
    let Event::Write(at, data) = event else {
        if random.below(2) == 0 {
            apply(file, event);
        }
        return;
    };
    let mut from = 0;
    while from < data.len() {
        let to = data.len().min(from + 512 - (*at as usize + from) % 512);
        if random.below(2) == 0 {
            apply(file, &Event::Write(at + from as u64, data[from..to].to_vec()));
        }
        from = to;
    }
}

fn content(file: Vec<u8>, text: &str) -> Vec<u8> {
    let base = MemoryBase::new(file);
    let mut store = open_base(&base, text);
    let content = read_all(&mut *store, 4096).unwrap_or_else(|e| panic!("{text}: {e}"));
    // What opening repaired stays repaired, and the file can be written on.
    store.write_at(0, b"!").expect("write");
    store.commit().expect("commit");
    drop(store);
    let mut again = open_base(&base, text);
    let rest = read_all(&mut *again, 4096).expect("after another commit");
    assert!(rest[1..] == content[1.min(content.len())..]);
    content
}

const COMMITS: usize = 8;

/// Commits of random writes; each prefix of what went down, and parts of what was not flushed.
/// How many commits replaced the file.
fn cut_everywhere(text: &str, seed: u64) -> usize {
    let mut random = Rng::new(seed);
    let recorder = Recorder::default();
    let mut store = open_base(&recorder, text);
    let mut model: Vec<u8> = Vec::new();
    // The content as of each commit, with the number of events before and after it.
    let mut commits = vec![(0, 0, model.clone())];
    for _ in 0..COMMITS {
        for _ in 0..=random.below(4) {
            // Behind the end begins a hole, which takes up to 16 blocks.
            let behind = if random.below(5) == 0 { 65_000 } else { 2000 };
            let at = random.below(model.len() as u64 + behind);
            if random.below(6) == 0 {
                store.set_len(at).expect("set_len");
                model.resize(at as usize, 0);
            } else {
                let len = 1 + random.below(9000) as usize;
                let compresses = random.below(2) == 0;
                let data =
                    if compresses { lines(&mut random, len) } else { noise(&mut random, len) };
                store.write_at(at, &data).expect("write");
                let end = at as usize + data.len();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&data);
            }
        }
        let before = recorder.events.lock().expect("events").len();
        store.commit().expect("commit");
        let after = recorder.events.lock().expect("events").len();
        commits.push((before, after, model.clone()));
    }
    let events = recorder.events.lock().expect("events").clone();
    for cut in 0..=events.len() {
        let flushed =
            events[..cut].iter().rposition(|e| matches!(e, Event::Flush)).map_or(0, |f| f + 1);
        let mut safe = Vec::new();
        events[..flushed].iter().for_each(|e| apply(&mut safe, e));
        // Old: the last commit that was over; new: the one under way, if any.
        let old = commits.iter().rposition(|(_, after, _)| *after <= cut).unwrap_or(0);
        for variant in 0..6 {
            let mut file = safe.clone();
            for event in &events[flushed..cut] {
                match variant {
                    0 => apply(&mut file, event),
                    1 => {}
                    _ => tear(&mut file, event, &mut random),
                }
            }
            let got = content(file, text);
            let new = commits.get(old + 1).filter(|(before, _, _)| *before < cut);
            let fits = got == commits[old].2 || new.is_some_and(|(_, _, new)| got == *new);
            assert!(
                fits,
                "{text}, seed {seed}, cut after event {cut} of {}, variant {variant}: neither old nor new",
                events.len()
            );
        }
    }
    events.iter().filter(|event| matches!(event, Event::Replace(_))).count()
}

#[test]
fn a_sealed_file_is_old_or_new() {
    let (mut frames, mut replaced) = (0, 0);
    for seed in 1..=6 {
        cut_everywhere("aead key=work", seed);
        cut_everywhere("guard block=4K", seed + 100);
        replaced += cut_everywhere("zstd frame=4K | aead key=work", seed + 200);
        replaced += cut_everywhere("lz4 frame=8K | xor hex=55 | guard block=4K", seed + 300);
        frames += 2 * COMMITS;
    }
    let in_place = frames - replaced;
    assert!(replaced > 10 && in_place > 10, "both kinds of commit: {replaced}, {in_place}");
}

#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS"]
fn a_sealed_file_is_old_or_new_for_long() {
    let end = campaign_end(16);
    let mut seed = 1000;
    while std::time::Instant::now() < end {
        cut_everywhere("aead key=work", seed);
        cut_everywhere("guard block=4K | aead key=work", seed);
        cut_everywhere("zstd frame=4K | aead key=work", seed);
        cut_everywhere("zstd frame=4K level=1 | guard block=4K | aead key=work", seed);
        seed += 1;
    }
}
