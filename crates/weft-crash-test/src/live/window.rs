//! The calls that may still be lost, and the tree before them.
//!
//! A mount lives for days, and keeps only what it needs to know what a power cut could leave: the
//! calls from the first one on of which something is not durable. When there are many, those before
//! it go into the base; if too much data is held, the oldest are written back whether the program has
//! asked for it or not, as a kernel does with too many dirty pages.

use weft_vfs::memfs::Snapshot;

use crate::calls::{Call, CallNr};
use crate::effects::{Change, PAGE_BYTES};
use crate::image::{Images, apply_until};
use crate::recorder::Recorder;
use crate::states::{Epoch, State};
use crate::subject::Subject;
use crate::words::Paths;
use crate::{Model, Result};

/// Below this many calls nothing is dropped.
const CALLS_MIN: usize = 10_000;

/// The tree before the calls that a recorder holds.
#[derive(Debug)]
pub(crate) struct Window {
    model: Model,
    base: Snapshot,
    /// The calls before these: numbers of calls go on counting.
    dropped: u64,
    /// The number of calls from which on it is worth looking again.
    look_at: usize,
    limit_bytes: u64,
    /// Calls that were written back because too much was held.
    written_back: u64,
}

/// The moment now: what is pending, and the trees that could be left.
pub(crate) struct Moment {
    pub(crate) subject: Subject,
    pub(crate) epoch: Epoch,
    /// The number of the first call.
    pub(crate) first: u64,
}

impl Moment {
    /// The tree of a state.
    pub(crate) fn tree(&self, state: &State) -> Result<Snapshot> {
        let Subject { base, calls, units, .. } = &self.subject;
        Images::new(base, units, calls).epoch(&self.epoch)?.tree(state)
    }

    /// The number of calls until now, of all.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.subject.calls.len() as u64
    }

    /// The file and the first byte of a page that is written by a pending unit.
    pub(crate) fn page_of(&self, place: usize) -> Option<(String, u64)> {
        let Subject { base, calls, units, .. } = &self.subject;
        let paths = Paths::at(base, calls, self.epoch.end);
        units.changes(*self.epoch.pending.get(place)?).find_map(|change| match change {
            Change::Page { node, bytes } => Some((paths.of(*node), bytes.page * PAGE_BYTES)),
            _ => None,
        })
    }

    /// The tree of what is durable.
    pub(crate) fn durable(&self) -> Result<Snapshot> {
        self.tree(&self.epoch.keep(|_| false))
    }
}

impl Window {
    pub(crate) fn new(model: Model, base: Snapshot, limit_bytes: u64) -> Self {
        Self { model, base, dropped: 0, look_at: CALLS_MIN, limit_bytes, written_back: 0 }
    }

    pub(crate) fn model(&self) -> Model {
        self.model
    }

    /// The number of calls that were written back because too much was held.
    pub(crate) fn written_back(&self) -> u64 {
        self.written_back
    }

    /// The number of calls until now, of all.
    pub(crate) fn end(&self, recorder: &Recorder) -> u64 {
        self.dropped + recorder.recorded() as u64
    }

    pub(crate) fn moment(&self, recorder: &Recorder) -> Moment {
        self.moment_of(recorder.calls())
    }

    fn moment_of(&self, calls: Vec<Call>) -> Moment {
        let subject = Subject::of_calls(self.base.clone(), calls, self.model);
        let epoch = Epoch::at_end(&subject.units, &subject.calls);
        Moment { subject, epoch, first: self.dropped }
    }

    /// Returns true if [`shorten`](Self::shorten) should be called.
    pub(crate) fn is_long(&self, recorder: &Recorder) -> bool {
        recorder.recorded() >= self.look_at || recorder.data_bytes() > self.limit_bytes
    }

    /// Drops calls of which everything is durable, from the first on. Calls are recorded meanwhile.
    pub(crate) fn shorten(&mut self, recorder: &Recorder) -> Result<()> {
        let calls = recorder.calls();
        let all = calls.len();
        let Moment { subject, epoch, .. } = self.moment_of(calls);
        let first_pending =
            epoch.pending.first().map(|unit| subject.units.units[unit.index()].call);
        let mut end = first_pending.unwrap_or(CallNr(all as u32));
        let held = |from: CallNr| {
            subject.calls[from.index()..].iter().map(|call| call.data.len() as u64).sum::<u64>()
        };
        if held(end) > self.limit_bytes {
            let mut left = held(end);
            while left > self.limit_bytes / 2 {
                left -= subject.calls[end.index()].data.len() as u64;
                end = CallNr(end.0 + 1);
                self.written_back += 1;
            }
        }
        apply_until(&mut self.base, &subject.units, &subject.calls, end)?;
        recorder.drop_first(end.index());
        self.dropped += u64::from(end.0);
        self.look_at = CALLS_MIN.max(2 * (all - end.index()));
        Ok(())
    }

    /// Begins again with a tree: no call is held.
    pub(crate) fn restart(&mut self, base: Snapshot, recorder: &Recorder) {
        let calls = recorder.recorded();
        recorder.drop_first(calls);
        self.dropped += calls as u64;
        self.base = base;
        self.look_at = CALLS_MIN;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_block::Rng;
    use weft_vfs::{FileSystem, MemFs};

    use super::*;
    use crate::live::workload::change;

    #[test]
    fn a_window_that_was_shortened_knows_the_same() {
        let mut shortened = 0;
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let model = Model::ALL[seed as usize % 4];
            let memory = Arc::new(MemFs::new());
            // Two recorders over another: one window is shortened, the other is not.
            let inner = Arc::new(Recorder::unbounded(Arc::clone(&memory)));
            let outer = Recorder::new(Arc::clone(&inner) as Arc<dyn FileSystem>, u64::MAX);
            outer.start(None, None);
            let base = memory.snapshot();
            let mut short = Window::new(model, base.clone(), u64::MAX);
            let long = Window::new(model, base, u64::MAX);
            for _ in 0..6 {
                change(&outer, &mut rng);
                short.shorten(&inner).unwrap();
                let (short, long) = (short.moment(&inner), long.moment(&outer));
                assert_eq!(short.end(), long.end(), "{model}, seed {seed}");
                shortened += short.first;
                let trees = [&short, &long].map(|moment| moment.durable().unwrap().mended().hash());
                // Calls that are dropped are as a commit of the whole tree to btrfs: an inode that
                // was new is old then, and its fsync logs less.
                if model != Model::BtrfsLike {
                    assert_eq!(trees[0], trees[1], "durable under {model}, seed {seed}");
                }
                let trees = [&short, &long]
                    .map(|moment| moment.tree(&moment.epoch.full()).unwrap().mended().hash());
                assert_eq!(trees[0], trees[1], "everything under {model}, seed {seed}");
            }
            assert_eq!(
                long.moment(&outer)
                    .tree(&long.moment(&outer).epoch.full())
                    .unwrap()
                    .mended()
                    .hash(),
                memory.snapshot().mended().hash(),
                "what is in memory, seed {seed}"
            );
        }
        assert!(shortened > 1000, "{shortened}");
    }

    #[test]
    fn too_much_data_is_written_back_from_the_oldest_on() {
        let memory = Arc::new(MemFs::new());
        let recorder = Recorder::unbounded(Arc::clone(&memory));
        let mut window = Window::new(Model::Posix, memory.snapshot(), 100_000);
        let walker = weft_vfs::Walker::new(&recorder);
        for nr in 0..50 {
            walker.write_file(format!("/{nr}").as_bytes(), &[1; 5000], 0o644).unwrap();
            if window.is_long(&recorder) {
                window.shorten(&recorder).unwrap();
            }
            assert!(recorder.data_bytes() <= 105_000, "{}", recorder.data_bytes());
        }
        assert!(window.written_back() > 0);
        let durable = window.moment(&recorder).durable().unwrap();
        assert!(durable.node(Snapshot::ROOT).unwrap().entry(b"0").is_some());
        assert!(durable.node(Snapshot::ROOT).unwrap().entry(b"49").is_none());
    }
}
