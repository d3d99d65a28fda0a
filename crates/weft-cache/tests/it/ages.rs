//! The interval of commits is kept whatever an origin does: what was written longer ago than that
//! survives a power cut, though no flush followed it.

use crate::rig::{Rig, block, read, write};
use std::sync::{Arc, Condvar, Mutex};
use weft_block::{BlockDevice, Fault, Filter, Request, Rule};
use weft_cache::{AttachOptions, Cache, Mode, OpenOptions};
use weft_testing::wait_until;

/// An origin was written to past the cache, and its flushes fail: it is flushed again and again.
#[test]
fn an_origin_that_cannot_be_flushed_puts_no_commit_off() {
    for mode in [Mode::WriteBack, Mode::WriteOnly] {
        let rig = Rig::new(Mode::WriteThrough, 8 << 20, 32);
        let open = rig.open();
        write(&*open.device, 1, 1).unwrap();
        open.device.set_mode(mode).unwrap();
        rig.origin_disk.add(Rule::every(Request::Flush, Fault::EIO));
        rig.pass_ms(&open, 4 * rig.options.intent_idle_ms);
        write(&*open.device, 2, 1).unwrap();
        rig.pass_ms(&open, 4 * rig.options.commit_interval_ms);
        rig.cut(open);
        rig.origin_disk.clear();
        let open = rig.open();
        assert!(read(&*open.device, 2).unwrap() == block(2, 1), "{mode}: the write is lost");
    }
}

/// A disk whose flushes wait while a gate is closed, as the flushes of an unreachable server wait.
struct Gated<D> {
    inner: D,
    /// True while the gate is closed, and the number of flushes that wait.
    gate: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl<D: BlockDevice> Filter for Gated<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_flush(&self) -> weft_block::Result<()> {
        let mut gate = self.gate.lock().unwrap();
        gate.1 += 1;
        gate = self.changed.wait_while(gate, |gate| gate.0).unwrap();
        gate.1 -= 1;
        drop(gate);
        self.inner.flush()
    }
}

#[test]
fn an_origin_that_does_not_answer_puts_no_commit_off() {
    let rig = Rig::new(Mode::WriteThrough, 8 << 20, 32);
    let disk = Arc::new(Gated {
        inner: rig.origin_disk.clone(),
        gate: Mutex::default(),
        changed: Condvar::new(),
    });
    let options = OpenOptions {
        background: true,
        commit_interval_ms: 5,
        intent_idle_ms: 5,
        ..OpenOptions::default()
    };
    let cache = Cache::open(rig.cache_disk.clone(), options).unwrap();
    let attach = AttachOptions { mode: Mode::WriteThrough, ..AttachOptions::default() };
    let device = cache.attach(disk.clone(), &rig.id(), &attach).unwrap();
    disk.gate.lock().unwrap().0 = true;
    write(&*device, 1, 1).unwrap();
    wait_until("the cache flushes the origin", || disk.gate.lock().unwrap().1 > 0);
    device.set_mode(Mode::WriteBack).unwrap();
    write(&*device, 2, 1).unwrap();
    // The second commit from now on begins after the write. One that would be empty is not made.
    let before = cache.stats().commits;
    wait_until("the write is committed", || {
        write(&*device, 3, 1).unwrap();
        cache.stats().commits > before + 1
    });
    rig.cache_disk.inner().crash().unwrap();
    disk.gate.lock().unwrap().0 = false;
    disk.changed.notify_all();
    drop((device, cache));
    rig.cache_disk.inner().power_on();
    let open = rig.open();
    assert!(read(&*open.device, 2).unwrap() == block(2, 1), "the write is lost");
}
