//! One life of a cache: from opening it to the moment at which the power goes.
//!
//! Every answer is held against the oracle at once. After every step the oracle is kept together
//! with the number of disk events so far, so that later the expectation at any event is at hand.

use super::oracle::{Oracle, pattern};
use super::script::{Config, Op};
use super::subject::Subject;
use super::world::{Disk, Failed, World};
use std::sync::Arc;
use weft_block::Rng;

/// A cache in use.
pub struct Life<'a, S> {
    config: &'a Config,
    pub world: Arc<World>,
    subject: Option<S>,
    pub oracle: Oracle,
    /// Origins that have lost something, of which their user has not been told: the next flush of
    /// theirs may fail, and must where nothing of it can be in the cache.
    untold: Vec<bool>,
    /// Origins whose next flush may tell of a loss and need not: their user was told by an operation
    /// that is more than a flush, or the disk had ignored all that the lost flush was for.
    told: Vec<bool>,
    /// The oracle after each step, with the number of events by then.
    steps: Vec<(usize, Oracle)>,
}

impl<'a, S: Subject> Life<'a, S> {
    /// Opens the cache on `disks` and attaches every origin.
    pub fn begin(config: &'a Config, disks: Vec<Disk>, oracle: Oracle) -> Result<Self, String> {
        let world = World::new(disks);
        let steps = vec![(0, oracle.clone())];
        let subject = S::open(config, &world).map_err(|e| format!("cannot open: {e}"))?;
        let untold = vec![false; config.origin_bytes.len()];
        let told = untold.clone();
        Ok(Self { config, world, subject: Some(subject), oracle, untold, told, steps })
    }

    /// Does one operation. The step is number `op` of its script, which makes its data unique.
    pub fn step(&mut self, op: u32, what: &Op) -> Result<(), String> {
        let failed = self.failed();
        let done = match *what {
            Op::Write { origin, offset, len } => {
                self.write(op, origin, offset, &pattern(op, origin, offset, len), false)
            }
            Op::Zero { origin, offset, len } => self.write(op, origin, offset, &vec![0; len], true),
            Op::Discard { origin, offset, len } => {
                self.oracle.begin_discard(origin, offset, len);
                self.keep();
                let device = self.subject().device(origin);
                let done = device.discard(offset, len as u64).map_err(|e| e.to_string());
                self.oracle.end_discard(origin, offset, len);
                done
            }
            Op::Read { origin, offset, len } => self.read(origin, offset, len),
            Op::Flush { origin } => {
                let done = self.subject().device(origin).flush().map_err(|e| e.to_string());
                self.flushed(origin, done)
            }
            Op::Restart => self.restart(),
            Op::Reattach { origin } => {
                let done = self.subject_mut().reattach(origin);
                if done.is_ok() {
                    self.oracle.reopened(origin);
                }
                self.flushed(origin, done)
            }
            Op::WriteBack { origin } => {
                let done = self.subject_mut().write_back(origin);
                self.flushed(origin, done)
            }
            Op::Mode { origin, mode } => self.subject_mut().set_mode(origin, mode),
            Op::Tick { ms } => self.subject_mut().tick(ms),
            Op::Checkpoint => self.subject_mut().checkpoint(),
            Op::Resize { percent } => self.subject_mut().resize(percent),
            Op::FailFlush { origin, how } => {
                self.world.fail_flush(origin + 1, Some(how));
                Ok(())
            }
            Op::Cut { .. } => Ok(()),
        };
        let done = self.judge_failures(what, &failed, done);
        self.keep();
        done.map_err(|e| format!("#{op} {what}: {e}"))?;
        self.subject().invariants();
        Ok(())
    }

    fn failed(&self) -> Vec<Failed> {
        (1..=self.config.origin_bytes.len()).map(|disk| self.world.failed(disk)).collect()
    }

    /// A user's flush of an origin has returned.
    fn flushed(&mut self, origin: usize, done: Result<(), String>) -> Result<(), String> {
        if done.is_ok() {
            if self.untold[origin] && !self.config.family.may_be_dirty() {
                return Err("a flush worked, and nobody was told of the one that failed".into());
            }
            self.oracle.flushed(origin);
        }
        done
    }

    /// An operation may fail if a flush below it failed, or if it is a flush and has to tell of
    /// one that failed before. `before`: how many had failed when it began.
    fn judge_failures(
        &mut self,
        what: &Op,
        before: &[Failed],
        done: Result<(), String>,
    ) -> Result<(), String> {
        let flushes = match *what {
            Op::Flush { origin } | Op::WriteBack { origin } | Op::Reattach { origin } => {
                Some(origin)
            }
            _ => None,
        };
        let mut excused = false;
        for (origin, (after, before)) in self.failed().iter().zip(before).enumerate() {
            excused |= after.all != before.all;
            if after.losing != before.losing {
                let hidden = self.config.hides_losses();
                self.untold[origin] |= self.oracle.flush_failed(origin, hidden);
            } else if after.all != before.all {
                self.told[origin] |= self.oracle.has_unflushed(origin);
            }
        }
        if done.is_err()
            && let Some(origin) = flushes
        {
            let untold = std::mem::take(&mut self.untold[origin]);
            let told = std::mem::take(&mut self.told[origin]);
            excused |= untold || told;
            self.told[origin] = untold && !matches!(what, Op::Flush { .. });
        }
        if excused { Ok(()) } else { done }
    }

    fn write(
        &mut self,
        op: u32,
        origin: usize,
        offset: u64,
        data: &[u8],
        zeroes: bool,
    ) -> Result<(), String> {
        if !self.oracle.edges_known(origin, offset, data.len()) {
            let start = offset / 512 * 512;
            let end = (offset + data.len() as u64).next_multiple_of(512);
            self.read(origin, start, (end - start) as usize)?;
        }
        self.oracle.begin_write(op, origin, offset, data);
        self.keep();
        let device = self.subject().device(origin);
        let done = if zeroes {
            device.write_zeroes(offset, data.len() as u64)
        } else {
            device.write_at(data, offset)
        };
        match done {
            Ok(()) => self.oracle.end_write(origin, offset, data.len()),
            Err(_) => self.oracle.fail_write(origin, offset, data.len()),
        }
        done.map_err(|e| e.to_string())
    }

    fn read(&mut self, origin: usize, offset: u64, len: usize) -> Result<(), String> {
        let mut got = vec![0xee; len];
        self.subject().device(origin).read_at(&mut got, offset).map_err(|e| e.to_string())?;
        self.oracle.observe(origin, offset, &got)
    }

    /// Reads everything in pieces of random sizes and in no order.
    pub fn read_all(&mut self, rng: &mut Rng) -> Result<(), String> {
        for origin in 0..self.config.origin_bytes.len() {
            let len = self.config.origin_bytes[origin];
            let piece = *rng.pick(&[4096, 12288, 65536, 1 << 20]).expect("some");
            let pieces = len.div_ceil(piece);
            let first = rng.below(pieces);
            for i in 0..pieces {
                let at = (i + first) % pieces * piece;
                self.read(origin, at, piece.min(len - at) as usize)
                    .map_err(|e| format!("reading all: {e}"))?;
            }
        }
        self.keep();
        Ok(())
    }

    /// Closes the cache in good order and opens it again.
    pub fn restart(&mut self) -> Result<(), String> {
        // Whoever closes a cache without a flush is told nothing.
        self.untold.fill(false);
        for origin in 0..self.config.origin_bytes.len() {
            self.world.fail_flush(origin + 1, None);
        }
        if let Some(subject) = self.subject.take() {
            subject.close().map_err(|e| format!("closing: {e}"))?;
        }
        for origin in 0..self.config.origin_bytes.len() {
            self.oracle.flushed(origin);
            self.world.reopen(origin + 1);
            self.oracle.reopened(origin);
        }
        self.keep();
        let subject = S::open(self.config, &self.world);
        self.subject = Some(subject.map_err(|e| format!("cannot open again: {e}"))?);
        Ok(())
    }

    /// Detaches everything in good order. From here on the origins stand alone: what a bare
    /// origin's medium holds is held against the oracle.
    pub fn detach_all(&mut self) -> Result<(), String> {
        if let Some(mut subject) = self.subject.take() {
            subject.detach_all().map_err(|e| format!("detaching: {e}"))?;
        }
        for (origin, len) in self.config.origin_bytes.iter().enumerate() {
            self.oracle.flushed(origin);
            let mut bytes = vec![0; *len as usize];
            let disks = self.world.at(self.world.events());
            disks[origin + 1].medium().read(&mut bytes, 0).expect("in range");
            let seen = self.oracle.observe(origin, 0, &bytes);
            seen.map_err(|e| format!("the bare origin after everything was detached: {e}"))?;
        }
        Ok(())
    }

    /// What a cut after `events` events may leave.
    pub fn at(&self, events: usize) -> (Vec<Disk>, Oracle) {
        let step = self.steps.partition_point(|step| step.0 <= events);
        let oracle = self.steps[step.saturating_sub(1)].1.clone();
        (self.world.at(events), oracle)
    }

    pub fn config(&self) -> &'a Config {
        self.config
    }

    pub fn subject(&self) -> &S {
        self.subject.as_ref().expect("open")
    }

    fn subject_mut(&mut self) -> &mut S {
        self.subject.as_mut().expect("open")
    }

    fn keep(&mut self) {
        self.steps.push((self.world.events(), self.oracle.clone()));
    }
}
