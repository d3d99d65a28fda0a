//! Promises of age, change by change, on a simulated clock: whatever the load, a change is durable in
//! time. (weft-crash judges the same by what crashes leave of volumes.)

use crate::log::make_log;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weft_block::MemoryDevice;
use weft_patch::jbd2::Features;
use weft_patch::{
    AtomicLimits, BlockNr, Clock, Engagement, Engine, Error, JournalMode, Options, Owner, Pace,
    PatchGroup, PatchId, Policy, without_waiting,
};

const BLOCK: usize = 1024;
const BLOCKS: usize = 8192;
const LOG: usize = 2048;
/// Directory, inodes, data.
const DIR: BlockNr = BlockNr(0);
const INODES: u64 = 64;
const DATA_FROM: u64 = 1024;
const DATA: u64 = 2048;

const POLICIES: [Policy; 5] = [
    Policy::Soft,
    Policy::Async,
    Policy::Journal(JournalMode::Metadata),
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
];

/// An engine without a thread, whose steps the test makes on a clock of its own.
struct Run {
    now_ms: Arc<AtomicU64>,
    engine: Arc<Engine>,
    pace: Pace,
    next_step_ms: u64,
    /// The changes that may not be durable, with the time at which each was made.
    made: VecDeque<(u64, PatchId)>,
    oldest_ms: u64,
}

impl Run {
    fn new(policy: Policy) -> Self {
        let now_ms = Arc::new(AtomicU64::new(0));
        let time = Arc::clone(&now_ms);
        let clock = Clock::new(move || Duration::from_millis(time.load(Ordering::SeqCst)));
        let device = Arc::new(MemoryDevice::new((BLOCK * BLOCKS) as u64));
        let options = Options { policy, background: false, clock, ..Options::default() };
        let engine = if matches!(policy, Policy::Journal(_)) {
            let log = make_log(device.clone(), BLOCK, BLOCKS - LOG..BLOCKS, Features::revoke());
            Engine::with_journal(device, BLOCK as u32, options, log)
        } else {
            Engine::new(device, BLOCK as u32, options)
        };
        let engine = engine.unwrap();
        let (pace, made) = (Pace::default(), VecDeque::new());
        Self { now_ms, engine, pace, next_step_ms: 0, made, oldest_ms: 0 }
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    /// Lets the time pass, with the steps that are due, and notes how old a change got.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms.fetch_add(1, Ordering::SeqCst);
            if self.now_ms() < self.next_step_ms {
                continue;
            }
            let wait = self.engine.write_back_step(&mut self.pace, false).unwrap();
            self.next_step_ms = self.now_ms() + u64::try_from(wait.as_millis()).unwrap().max(1);
            let op = self.engine.begin(0).unwrap();
            while self.made.front().is_some_and(|(_, patch)| op.is_durable(*patch)) {
                self.made.pop_front();
            }
            if let Some((made_ms, _)) = self.made.front() {
                self.oldest_ms = self.oldest_ms.max(self.now_ms() - made_ms);
            }
        }
    }

    /// Makes an inode, with or without a block of data, and a name of it in the directory, which all
    /// others are in, too.
    fn create(&mut self, number: u64, data: bool) -> Result<(), Error> {
        let mut op = self.engine.begin(3)?;
        let mut befores = Vec::new();
        if data {
            let nr = BlockNr(DATA_FROM + number % DATA);
            befores.push(op.write_data(nr, Owner(number), 0, &[7; BLOCK], true, &[])?);
        }
        let inode = BlockNr(1 + number % INODES);
        let at = number as usize / INODES as usize * 8 % BLOCK;
        let inode = op.write(inode, at, &number.to_le_bytes(), &befores)?;
        let name = op.write(DIR, number as usize * 8 % BLOCK, &number.to_le_bytes(), &[inode])?;
        drop(op);
        self.made.push_back((self.now_ms(), name));
        Ok(())
    }
}

/// The age that no change may reach: five seconds under a journal, ten where changes do not pause
/// under soft updates and async, and the ticks between two looks.
fn promised_ms(policy: Policy) -> u64 {
    if matches!(policy, Policy::Journal(_)) { 5500 } else { 11_000 }
}

#[test]
fn no_change_of_a_steady_load_gets_older_than_promised() {
    for policy in POLICIES {
        for (every_ms, data) in
            [(2, true), (20, true), (20, false), (99, true), (700, true), (3000, false)]
        {
            let mut run = Run::new(policy);
            let mut number = 0;
            while run.now_ms() < 25_000 {
                run.create(number, data).unwrap();
                number += 1;
                run.pass(every_ms);
            }
            let oldest = run.oldest_ms;
            assert!(oldest <= promised_ms(policy), "{policy:?}, each {every_ms} ms: {oldest} ms");
            // Not by writing at once; the log has room for few of those that come fast.
            assert!(oldest >= 3000 || every_ms < 99, "{policy:?}, each {every_ms} ms: {oldest} ms");
        }
    }
}

/// A chain of changes, each after the one before, of which each flush makes only the first ready.
#[test]
fn a_long_chain_is_written_when_its_time_has_come() {
    let mut run = Run::new(Policy::Soft);
    let mut last = PatchId::DURABLE;
    for nr in 0..200 {
        let mut op = run.engine.begin(1).unwrap();
        last = op.write(BlockNr(nr), 0, &[1], &[last]).unwrap();
    }
    run.made.push_back((run.now_ms(), last));
    run.pass(12_000);
    assert!(run.made.is_empty());
    assert!(run.oldest_ms <= 5000, "{} ms", run.oldest_ms);
}

/// Groups that overlap, so that at every moment one holds the transaction open.
#[test]
fn atomic_groups_one_after_the_other_do_not_put_off_a_commit() {
    let open_max = Duration::from_secs(1);
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let mut run = Run::new(Policy::Journal(mode));
        let limits = AtomicLimits { max_blocks: 64, open_max };
        let mut open: Option<(PatchGroup, Engagement)> = None;
        let mut number = 0;
        let mut refused = 0;
        while run.now_ms() < 40_000 {
            number += 1;
            let group = run.engine.patchgroups().create_atomic(limits).unwrap();
            let engaged = group.engage().unwrap();
            // One that would have to wait for the commit gives up, as nobody else makes it here.
            let made = without_waiting(|| engaged.enter_for(|| run.create(number, true)));
            let previous = match made {
                Ok(()) => open.replace((group, engaged)),
                Err(Error::WouldWait) => {
                    refused += 1;
                    open.take()
                }
                Err(e) => panic!("{e}"),
            };
            if let Some((group, engaged)) = previous {
                drop(engaged);
                group.commit().unwrap();
            }
            run.pass(300);
        }
        let oldest = run.oldest_ms;
        assert!(oldest <= 5500 + 1500, "{mode:?}: {oldest} ms");
        assert!(number > 100 && refused > 0 && refused < 40, "{mode:?}: {refused} of {number}");
    }
}
