//! Runs a workload on a recorded volume.

use crate::history::{History, Progress};
use crate::model::{
    Body, ModelNode, NodeId, OWNER_BASE, PERM, State, pattern, user_name, xattr_value,
};
use crate::observe::{Identities, observe};
use crate::target::{Mounted, Target, unsupported_write_back};
use crate::workload::{Op, Workload};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_block::{BlockDevice, Event, FaultDevice, Image, MemoryDevice, Recorder, Rule};
use weft_vfs::{
    Caller, FallocateMode, FileKind, FileSystem, Ino, RenameFlags, SetAttr, TrimRange, Walker,
    XattrSet,
};

/// A workload that was run: its initial volume, the writes to the device, and its promises.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The volume before the first recorded event: cleanly unmounted.
    pub base: Image,
    /// All events of the device, with marks of the operations' beginnings and ends.
    pub events: Vec<Event>,
    /// The states that the volume went through.
    pub history: History,
    /// The way in which the nodes are identified.
    pub ids: Identities,
    /// The progress of the workload before each event.
    progress: Vec<Progress>,
}

/// A volume on which a workload's setup has been run.
#[derive(Debug, Clone)]
pub struct Prepared {
    image: Image,
    state: State,
    ids: Identities,
}

const BEGIN: &str = "begin ";
const END: &str = "end ";

/// Creates a volume and runs a setup on it.
///
/// # Errors
/// If the setup is impossible or the file system refuses it.
pub fn prepare(target: &dyn Target, setup: &[Op]) -> Result<Prepared> {
    let device = Arc::new(MemoryDevice::from_image(target.fresh()?));
    let mounted = target.mount(Arc::clone(&device) as Arc<dyn BlockDevice>)?;
    // Numbered apart from the recorded operations, so that their data differ.
    let mut ids = Identities::of(target.tree());
    let write_back = || mounted.write_back();
    let on = On { fs: &*mounted.fs, write_back: &write_back };
    let state = run_from(900, on, setup, &mut ids)?;
    mounted.fs.unmount().map_err(Error::fs("unmounting after the setup"))?;
    drop(mounted);
    Ok(Prepared { image: device.snapshot(), state, ids })
}

/// Runs the operations of a workload on a prepared volume, then `sync` and an unmount, and records
/// the events of the device.
///
/// # Errors
/// [`Error::Model`] if an operation is impossible, [`Error::Fs`] if the file system refuses a
/// possible one.
pub fn record(target: &dyn Target, prepared: &Prepared, workload: &Workload) -> Result<Recording> {
    let mut run = Run::new(target, prepared)?;
    for op in workload.ops.iter().chain([&Op::Sync]) {
        run.step(op)?;
    }
    run.unmount()?;
    Ok(run.finish(&prepared.image))
}

/// Does as [`record`], on a device that fails by `rule` from the mount on. An operation may then
/// fail: a failed fsync guarantees nothing, any other failed operation ends the run. Two syncs
/// follow, so that the file system can recover from a transient fault. Also returns the number of
/// times that the rule fired.
///
/// # Errors
/// As [`record`], except for failed operations.
pub fn record_failing(
    target: &dyn Target,
    prepared: &Prepared,
    workload: &Workload,
    rule: Rule,
) -> Result<(Recording, u64)> {
    let mut run = Run::new(target, prepared)?;
    let rule = run.device.add(rule);
    for op in workload.ops.iter().chain([&Op::Sync, &Op::Sync]) {
        let number = run.ops.len();
        match run.step(op) {
            Ok(()) => {}
            Err(Error::Fs { .. }) => {
                run.failed.insert(number);
                run.device.inner().mark(format!("{END}{number}"))?;
                if !op.is_persist() && *op != Op::WriteBack {
                    break;
                }
            }
            Err(e) => return Err(e),
        }
    }
    let fired = run.device.fired(rule);
    // The unmount may fail; its writes are part of the recording.
    let _ = run.unmount();
    Ok((run.finish(&prepared.image), fired))
}

/// Does as [`record`], on a volume with little free space: an operation refused for that reason has
/// changed nothing, unless it writes data, which ends the run. Operations that are impossible
/// without a refused one are left out. Also returns the number of refused operations.
///
/// # Errors
/// As [`record`], except for lack of space.
pub fn record_full(
    target: &dyn Target,
    prepared: &Prepared,
    workload: &Workload,
) -> Result<(Recording, usize)> {
    let mut run = Run::new(target, prepared)?;
    let mut refused = 0;
    for op in workload.ops.iter().chain([&Op::Sync]) {
        let number = run.ops.len();
        match run.step(op) {
            Ok(()) | Err(Error::Model { .. }) => {}
            Err(Error::Fs { source: weft_vfs::Error::NoSpace, .. }) => {
                refused += 1;
                if matches!(op, Op::Write(..) | Op::Append(..) | Op::Falloc(..)) {
                    run.failed.insert(number);
                    break;
                }
                run.ops.pop();
                run.states.pop();
            }
            Err(e) => return Err(e),
        }
    }
    run.unmount()?;
    Ok((run.finish(&prepared.image), refused))
}

/// A workload in progress.
struct Run {
    device: Arc<FaultDevice<Recorder<MemoryDevice>>>,
    mounted: Mounted,
    held: Vec<Ino>,
    states: Vec<State>,
    ops: Vec<Op>,
    failed: BTreeSet<usize>,
    ids: Identities,
}

impl Run {
    fn new(target: &dyn Target, prepared: &Prepared) -> Result<Self> {
        let recorder = Recorder::new(MemoryDevice::from_image(prepared.image.clone()));
        let device = Arc::new(FaultDevice::new(recorder));
        let mounted = target.mount(Arc::clone(&device) as Arc<dyn BlockDevice>)?;
        Ok(Self {
            device,
            mounted,
            held: Vec::new(),
            states: vec![prepared.state.clone()],
            ops: Vec::new(),
            failed: BTreeSet::new(),
            ids: prepared.ids.clone(),
        })
    }

    fn step(&mut self, op: &Op) -> Result<()> {
        let number = self.ops.len();
        let mut state = self.states.last().cloned().unwrap_or_default();
        let before = state.clone();
        state.apply(op, number).map_err(|problem| nonsense(number, op, problem))?;
        self.ops.push(op.clone());
        self.states.push(state);
        self.device.inner().mark(format!("{BEGIN}{number}"))?;
        let write_back = || self.mounted.write_back();
        let on = On { fs: &*self.mounted.fs, write_back: &write_back };
        act(on, &before, op, number, &mut self.held, &mut self.ids)?;
        Ok(self.device.inner().mark(format!("{END}{number}"))?)
    }

    fn unmount(&mut self) -> Result<()> {
        for ino in self.held.drain(..) {
            self.mounted.fs.forget(ino, 1);
        }
        self.mounted.fs.unmount().map_err(Error::fs("unmounting"))
    }

    fn finish(self, base: &Image) -> Recording {
        drop(self.mounted);
        let events = self.device.inner().events();
        let progress = progress(&events);
        let history = History { states: self.states, ops: self.ops, failed: self.failed };
        Recording { base: base.clone(), events, history, ids: self.ids, progress }
    }
}

fn nonsense(number: usize, op: &Op, problem: &str) -> Error {
    Error::Model { number: number + 1, op: op.to_string(), problem: problem.to_owned() }
}

/// Runs the operations of a workload on a mounted file system, and nothing else: their changes may
/// still be in memory.
///
/// # Errors
/// As [`record`].
pub fn run(fs: &dyn FileSystem, workload: &Workload) -> Result<()> {
    let on = On { fs, write_back: &unsupported_write_back };
    run_from(0, on, &workload.ops, &mut Identities::Owners).map(drop)
}

fn run_from(first: usize, on: On<'_>, ops: &[Op], ids: &mut Identities) -> Result<State> {
    let fs = on.fs;
    let mut state = found(fs, ids)?;
    let mut held = Vec::new();
    for (number, op) in (first..).zip(ops) {
        let before = state.clone();
        state.apply(op, number).map_err(|problem| nonsense(number - first, op, problem))?;
        act(on, &before, op, number, &mut held, ids)?;
    }
    held.into_iter().for_each(|ino| fs.forget(ino, 1));
    Ok(state)
}

/// Reads the present tree of the volume into a model: its names must not be lost either.
fn found(fs: &dyn FileSystem, ids: &Identities) -> Result<State> {
    let observed = observe(fs, ids)?;
    if let Some(trouble) = observed.unreadable.first() {
        return Err(Error::Target(format!("the volume cannot be read: {trouble}")));
    }
    let node = |id: &NodeId| {
        observed.nodes.get(id).map(|seen| {
            Arc::new(ModelNode {
                body: seen.body.clone(),
                xattrs: seen.xattrs.clone(),
                perm: seen.perm,
            })
        })
    };
    let mut state = State::default();
    for id in observed.nodes.keys() {
        state.nodes.extend(node(id).map(|n| (*id, n)));
    }
    Ok(state)
}

impl Recording {
    /// Returns the progress of the workload before an event.
    #[must_use]
    pub fn progress_at(&self, event: usize) -> Progress {
        let end = self.history.at_end();
        self.progress.get(event).copied().unwrap_or(end)
    }

    /// Returns the moments after `first` and up to `last` at which an operation that makes
    /// something durable had just ended.
    pub fn promises_between(&self, first: usize, last: usize) -> impl Iterator<Item = usize> {
        let marks = self.events.iter().enumerate().take(last).skip(first);
        marks.filter_map(|(i, event)| {
            let Event::Mark(text) = event else { return None };
            let number: usize = text.strip_prefix(END)?.parse().ok()?;
            self.history.ops.get(number)?.is_persist().then_some(i + 1)
        })
    }

    /// Returns true if an operation renames a directory.
    #[must_use]
    pub fn renames_dirs(&self) -> bool {
        self.history.ops.iter().zip(&self.history.states).any(|(op, before)| {
            let dir = |p: &str| before.resolve(p).is_ok_and(|id| before.names(id).is_some());
            match op {
                Op::Rename(p, _) => dir(p),
                Op::Exchange(p, q) => dir(p) || dir(q),
                _ => false,
            }
        })
    }
}

fn progress(events: &[Event]) -> Vec<Progress> {
    let mut now = Progress { begun: 0, ended: 0 };
    let mut all = Vec::with_capacity(events.len());
    for event in events {
        all.push(now);
        if let Event::Mark(text) = event {
            let number = |prefix| text.strip_prefix(prefix).and_then(|n: &str| n.parse().ok());
            now.begun = number(BEGIN).map_or(now.begun, |n: usize| n + 1);
            now.ended = number(END).map_or(now.ended, |n: usize| n + 1);
        }
    }
    all
}

/// The object of the operations: a file system and its write-back.
#[derive(Clone, Copy)]
struct On<'a> {
    fs: &'a dyn FileSystem,
    write_back: &'a dyn Fn() -> Result<()>,
}

/// Executes one operation. `held` gets a reference to each file that is kept open.
fn act(
    on: On<'_>,
    before: &State,
    op: &Op,
    number: usize,
    held: &mut Vec<Ino>,
    ids: &mut Identities,
) -> Result<()> {
    match op {
        Op::WriteBack => (on.write_back)(),
        op => call(on.fs, before, op, number, held, ids).map_err(Error::fs(op.to_string())),
    }
}

/// Calls the file system for one operation.
fn call(
    fs: &dyn FileSystem,
    before: &State,
    op: &Op,
    number: usize,
    held: &mut Vec<Ino>,
    ids: &mut Identities,
) -> weft_vfs::Result<()> {
    let caller = Caller { uid: OWNER_BASE.wrapping_add(before.next_id().0), ..Caller::ROOT };
    let walker = Walker::owned_by(fs, caller.clone());
    let find = |path: &str| walker.resolve_link(format!("/{path}").as_bytes());
    let place = |path: &str| walker.place(format!("/{path}").as_bytes());
    let id = |path: &str| before.resolve(path).unwrap_or(NodeId::ROOT);
    let write = |path: &str, at: u64, len: u64| {
        find(path)?.write_at(&Caller::ROOT, at, &pattern(id(path), number, at, len as usize))
    };
    match op {
        Op::Creat(p) => {
            let at = place(p)?;
            ids.note(at.dir.create(&caller, &at.name, PERM)?.ino(), before.next_id());
            Ok(())
        }
        Op::Tmpfile(p) => {
            let at = place(p)?;
            let ino = fs.create_unnamed(&caller, at.dir.ino(), PERM)?.attr.ino;
            let linked = fs.link(&Caller::ROOT, ino, at.dir.ino(), &at.name);
            fs.forget(ino, 1 + u64::from(linked.is_ok()));
            linked.map(|_| ids.note(ino, before.next_id()))
        }
        Op::Mkdir(p) => {
            let at = place(p)?;
            ids.note(at.dir.mkdir(&caller, &at.name, PERM)?.ino(), before.next_id());
            Ok(())
        }
        Op::Mkfifo(p) => {
            let at = place(p)?;
            at.dir.mknod(&caller, &at.name, FileKind::Fifo, PERM, 0).map(drop)
        }
        Op::Symlink(target, p) => {
            let at = place(p)?;
            at.dir.symlink(&caller, &at.name, target.as_bytes()).map(drop)
        }
        Op::Write(p, at, len) => write(p, *at, *len),
        Op::Append(p, len) => {
            let Some(Body::File(content)) = before.node(id(p)).map(|n| &n.body) else {
                return Err(weft_vfs::Error::Invalid("not a regular file"));
            };
            write(p, content.len() as u64, *len)
        }
        Op::Falloc(p, at, len, keep) => fs.fallocate(
            &Caller::ROOT,
            find(p)?.ino(),
            FallocateMode::Allocate { keep_size: *keep },
            *at,
            *len,
        ),
        Op::Punch(p, at, len) => {
            fs.fallocate(&Caller::ROOT, find(p)?.ino(), FallocateMode::PunchHole, *at, *len)
        }
        Op::Truncate(p, size) => {
            let set = SetAttr { size_bytes: Some(*size), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, find(p)?.ino(), &set).map(drop)
        }
        Op::Chmod(p, perm) => {
            let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, find(p)?.ino(), &set).map(drop)
        }
        Op::Link(p, new) => {
            let at = place(new)?;
            find(p)?.link_as(&Caller::ROOT, &at.dir, &at.name)
        }
        Op::Unlink(p) => {
            let at = place(p)?;
            fs.unlink(&Caller::ROOT, at.dir.ino(), &at.name)
        }
        Op::Rmdir(p) => {
            let at = place(p)?;
            fs.rmdir(&Caller::ROOT, at.dir.ino(), &at.name)
        }
        Op::Remove(p) => {
            let at = place(p)?;
            at.dir.remove(&Caller::ROOT, &at.name)
        }
        Op::Rename(p, new) => rename(fs, &place(p)?, &place(new)?, RenameFlags::empty()),
        Op::Exchange(p, q) => rename(fs, &place(p)?, &place(q)?, RenameFlags::EXCHANGE),
        Op::Setxattr(p, name, len) => {
            let value = xattr_value(number, *len as usize);
            fs.setxattr(&Caller::ROOT, find(p)?.ino(), &user_name(name), &value, XattrSet::Any)
        }
        Op::Removexattr(p, name) => fs.removexattr(&Caller::ROOT, find(p)?.ino(), &user_name(name)),
        Op::Hold(p) => {
            let at = place(p)?;
            held.push(fs.lookup(at.dir.ino(), &at.name)?.attr.ino);
            Ok(())
        }
        Op::Fsync(p) if p.split('/').all(str::is_empty) => fs.fsync_dir(&Caller::ROOT, fs.root()),
        Op::Fsync(p) => {
            let node = find(p)?;
            if node.is_dir() {
                fs.fsync_dir(&Caller::ROOT, node.ino())
            } else {
                fs.fsync(&Caller::ROOT, node.ino(), false)
            }
        }
        Op::Fdatasync(p) => fs.fsync(&Caller::ROOT, find(p)?.ino(), true),
        Op::Sync => fs.sync(),
        // This is no call of the file system: the caller has done it.
        Op::WriteBack => Ok(()),
        Op::Trim => {
            let all = TrimRange { start: 0, len_bytes: u64::MAX, min_len_bytes: 0 };
            fs.trim(&all).map(drop)
        }
    }
}

fn rename(
    fs: &dyn FileSystem,
    from: &weft_vfs::path::Place<'_>,
    to: &weft_vfs::path::Place<'_>,
    flags: RenameFlags,
) -> weft_vfs::Result<()> {
    fs.rename(&Caller::ROOT, from.dir.ino(), &from.name, to.dir.ino(), &to.name, flags)
}

/// Returns the names of a state by path, for messages and tests.
#[must_use]
pub fn paths(state: &State) -> BTreeMap<String, NodeId> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(String::new(), NodeId::ROOT)];
    while let Some((path, dir)) = todo.pop() {
        for (name, id) in state.names(dir).into_iter().flatten() {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            todo.push((path.clone(), *id));
            all.insert(path, *id);
        }
    }
    all
}
