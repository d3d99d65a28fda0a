//! A device that fails on purpose.
//!
//! Rules are added and removed while the device is in use. For each request the first rule that
//! matches and fires decides; a delay lets the later rules decide as well. A rule counts the
//! requests it matches, so "the third write to the inode table" is one rule.

use crate::change::joined;
use crate::{BlockDevice, Change, ChangeKind, Error, Filter, Result};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The kind of request that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Reading.
    Read,
    /// Writing, of zeroes too.
    Write,
    /// Flushing.
    Flush,
    /// Discarding.
    Discard,
    /// Any of them.
    Any,
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno and changes nothing.
    Errno(i32),
    /// The first so many bytes are transferred, then it fails with `EIO`.
    Short(u64),
    /// It takes so much longer.
    Delay(Duration),
}

impl Fault {
    /// The medium fails: `EIO`.
    pub const EIO: Self = Self::Errno(Errno::IO.raw_os_error());
    /// A thin device or the file system below an image is full: `ENOSPC`.
    pub const ENOSPC: Self = Self::Errno(Errno::NOSPC.raw_os_error());
}

/// A rule of fault injection: the requests that it matches, and the fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The requests it is about.
    pub on: Request,
    /// Only those that touch this range of bytes. Flushes touch every range.
    pub range: Option<Range<u64>>,
    /// The number of matching requests that pass before the rule fires.
    pub after: u64,
    /// The number of times that it fires; `None`: always.
    pub times: Option<u64>,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// Every request of a kind.
    #[must_use]
    pub fn every(on: Request, fault: Fault) -> Self {
        Self { on, range: None, after: 0, times: None, fault }
    }

    /// The `n`th request of a kind from now on, counted from 1, once.
    #[must_use]
    pub fn nth(on: Request, n: u64, fault: Fault) -> Self {
        Self { on, range: None, after: n.saturating_sub(1), times: Some(1), fault }
    }

    /// Narrows the rule to requests that touch `range`.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }
}

/// Names a rule of one [`FaultDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

#[derive(Debug)]
struct Active {
    id: RuleId,
    rule: Rule,
    matched: u64,
    fired: u64,
}

#[derive(Debug, Default)]
struct Rules {
    active: Vec<Active>,
    next_id: u64,
}

/// Another device with faults on top.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    rules: Mutex<Rules>,
}

/// The part of a request that is still carried out after all rules.
enum Verdict {
    Pass,
    Fail(Error),
    Short(u64, Error),
}

impl<D: BlockDevice> FaultDevice<D> {
    /// A device without any rule yet.
    pub fn new(inner: D) -> Self {
        Self { inner, rules: Mutex::default() }
    }

    /// Adds a rule, which counts requests from now on.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.next_id += 1;
        let id = RuleId(rules.next_id);
        rules.active.push(Active { id, rule, matched: 0, fired: 0 });
        id
    }

    /// Removes a rule.
    pub fn remove(&self, id: RuleId) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.active.retain(|a| a.id != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).active.clear();
    }

    /// Returns the number of times that a rule has fired; 0 once it is removed.
    pub fn fired(&self, id: RuleId) -> u64 {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.active.iter().find(|a| a.id == id).map_or(0, |a| a.fired)
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn judge(&self, kind: Request, op: &'static str, offset: u64, len_bytes: u64) -> Verdict {
        let mut pause = Duration::ZERO;
        let mut verdict = Verdict::Pass;
        {
            let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            for active in &mut rules.active {
                let rule = &active.rule;
                let kind_fits = rule.on == Request::Any || rule.on == kind;
                let range_fits = rule.range.as_ref().is_none_or(|r| {
                    kind == Request::Flush
                        || (offset < r.end && offset.saturating_add(len_bytes) > r.start)
                });
                if !kind_fits || !range_fits {
                    continue;
                }
                active.matched += 1;
                let worn_out = rule.times.is_some_and(|times| active.fired >= times);
                if active.matched <= rule.after || worn_out {
                    continue;
                }
                active.fired += 1;
                let fail =
                    |errno| Error::io(op, offset, len_bytes, io::Error::from_raw_os_error(errno));
                match rule.fault {
                    Fault::Delay(time) => {
                        pause += time;
                        continue;
                    }
                    Fault::Errno(errno) => verdict = Verdict::Fail(fail(errno)),
                    Fault::Short(n) => {
                        verdict = Verdict::Short(n.min(len_bytes), fail(Errno::IO.raw_os_error()));
                    }
                }
                break;
            }
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        verdict
    }
}

impl<D: BlockDevice> Filter for FaultDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.judge(Request::Read, "read", offset, buf.len() as u64) {
            Verdict::Pass => self.inner.read_at(buf, offset),
            Verdict::Fail(e) => Err(e),
            Verdict::Short(n, e) => {
                self.inner.read_at(&mut buf[..n as usize], offset)?;
                Err(e)
            }
        }
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        let kind = match change.kind {
            ChangeKind::Discard => Request::Discard,
            _ => Request::Write,
        };
        let (n, e) = match self.judge(kind, change.op(), change.offset, change.len_bytes) {
            Verdict::Pass => return change.apply(&self.inner),
            Verdict::Fail(e) => return Err(e),
            Verdict::Short(n, e) => (n, e),
        };
        match change.kind {
            ChangeKind::Write(bufs) => {
                self.inner.write_at(&joined(bufs)[..n as usize], change.offset)?;
            }
            _ => Change { len_bytes: n, ..change }.apply(&self.inner)?,
        }
        Err(e)
    }

    fn filter_flush(&self) -> Result<()> {
        match self.judge(Request::Flush, "flush", 0, self.inner.geometry().len_bytes) {
            Verdict::Pass => self.inner.flush(),
            Verdict::Fail(e) | Verdict::Short(_, e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::io::IoSlice;

    fn errno(result: Result<()>) -> Option<i32> {
        result.err().map(|e| e.errno())
    }

    #[test]
    fn the_nth_write_to_a_range_fails_once() {
        let device = FaultDevice::new(MemoryDevice::new(1 << 16));
        let id = device.add(Rule::nth(Request::Write, 2, Fault::EIO).within(4096..8192));
        let write = |at| device.write_at(&[1; 1024], at);
        assert_eq!(errno(write(0)), None);
        assert_eq!(errno(write(3584)), None, "first that touches the range");
        assert_eq!(errno(write(8192)), None, "just behind the range");
        assert_eq!(errno(write(7168)), Some(5));
        assert_eq!(errno(write(7168)), None);
        assert_eq!(device.fired(id), 1);
    }

    #[test]
    fn a_full_device_fails_until_the_rule_goes_and_a_short_write_leaves_its_part() {
        let device = FaultDevice::new(MemoryDevice::new(1 << 16));
        let full = device.add(Rule::every(Request::Write, Fault::ENOSPC));
        assert_eq!(errno(device.write_at(&[1; 512], 0)), Some(28));
        assert_eq!(errno(device.write_zeroes(0, 512)), Some(28));
        assert_eq!(errno(device.flush()), None);
        device.remove(full);
        device.add(Rule::nth(Request::Write, 1, Fault::Short(700)));
        let halves = [IoSlice::new(&[7; 500]), IoSlice::new(&[8; 500])];
        assert_eq!(errno(device.write_vectored_at(&halves, 0)), Some(5));
        let mut got = [0; 1000];
        device.read_at(&mut got, 0).unwrap();
        assert!(got[..500] == [7; 500] && got[500..700] == [8; 200] && got[700..] == [0; 300]);
    }

    #[test]
    fn flushes_can_fail_and_a_delay_does_not_hide_a_later_rule() {
        let device = FaultDevice::new(MemoryDevice::new(1 << 16));
        device.add(Rule::every(Request::Any, Fault::Delay(Duration::from_millis(5))));
        device.add(Rule::every(Request::Flush, Fault::EIO).within(0..1));
        let start = std::time::Instant::now();
        assert_eq!(errno(device.flush()), Some(5));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(errno(device.read_at(&mut [0; 1], 0)), None);
        device.clear();
        assert_eq!(errno(device.flush()), None);
    }
}
