//! Records the calls that change a file system, or make its changes durable.
//!
//! One lock orders the calls that change something, so that their order in the recording is the
//! order in which they took effect. What the program has printed is read under the same lock before
//! each call is noted: a line that was printed before a call stands before it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use weft_vfs::memfs::MemFs;
use weft_vfs::{
    Attr, Caller, Entry, FallocateMode, FileKind, FileSystem, Handle, Ino, Layer, OpenFlags,
    Opened, RenameFlags, Result, SetAttr, XattrSet,
};

use crate::calls::{Action, Call, NewNode, NodeNr, Place, Process, Span};
use crate::effects::{ZEROES_MAX, zeroes};

/// A file system whose calls are recorded.
pub struct Recorder {
    below: Arc<dyn FileSystem>,
    state: Mutex<State>,
    started: Instant,
    /// The time of the first call, in nanoseconds.
    start_nanos: u64,
    number: Number,
}

/// The number of an inode in the recording; `None` if it is gone.
type Number = Box<dyn Fn(Ino) -> Option<u64> + Send + Sync>;

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.lock().calls.len()).finish_non_exhaustive()
    }
}

/// Reads what the program has printed since it was last asked. It must not wait.
type Printed = Box<dyn FnMut() -> Vec<u8> + Send>;

/// The recorder's view of the volume below it.
pub(crate) struct VolumeHook {
    /// The number of events on the volume until now.
    pub(crate) events: Box<dyn Fn() -> usize + Send + Sync>,
    /// Writes back some of what is in memory, as the file system does by age.
    pub(crate) write_back: Box<dyn Fn() + Send + Sync>,
    /// After so many calls.
    pub(crate) every: usize,
}

#[derive(Default)]
struct State {
    volume: Option<VolumeHook>,
    /// The number of events on the volume before each call.
    positions: Vec<usize>,
    calls: Vec<Call>,
    /// Bytes of data in `calls`.
    data_bytes: u64,
    printed: Option<Printed>,
    /// The beginning of a line whose end was not printed yet.
    line: Vec<u8>,
    /// Lines that contain this are promises.
    promise: Option<Pattern>,
    /// Nothing is recorded before the setup has ended.
    recording: bool,
    /// The program has ended: what is synced from now on is not by its doing.
    ended: bool,
    limit_bytes: u64,
    overflow: bool,
}

/// A pattern of lines: parts that must follow each other, `*` between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("*"))
    }
}

impl Pattern {
    /// Reads a pattern. `*` stands for any text; a pattern may begin and end anywhere in a line.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.split('*').map(str::to_owned).collect())
    }

    /// Returns true if the line contains the parts, in their order.
    #[must_use]
    pub fn matches(&self, line: &str) -> bool {
        let mut rest = line;
        self.0.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

impl Recorder {
    /// Records the calls to `below`. It holds at most `limit_bytes` of written data; after that it
    /// records no more, and says so.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>, limit_bytes: u64) -> Self {
        let state = State { limit_bytes, ..State::default() };
        Self {
            below,
            state: Mutex::new(state),
            started: Instant::now(),
            start_nanos: 0,
            number: Box::new(|ino| Some(ino.0)),
        }
    }

    /// Gives inodes other numbers in the recording.
    pub(crate) fn numbered(
        self,
        number: impl Fn(Ino) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self { number: Box::new(number), ..self }
    }

    /// Records calls without end, of a file system in memory whose trees may be replaced. The times of
    /// calls count from 1970.
    pub(crate) fn unbounded(fs: Arc<MemFs>) -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let start = since.map_or(0, |since| since.as_nanos());
        let numbered = Arc::clone(&fs);
        let recorder = Self {
            start_nanos: u64::try_from(start).unwrap_or(0),
            number: Box::new(move |ino| numbered.number(ino).ok()),
            ..Self::new(fs, u64::MAX)
        };
        recorder.start(None, None);
        recorder
    }

    /// Begins to record. `printed` returns what the program has printed since it was last called;
    /// lines that match `promise` are promises.
    pub fn start(&self, printed: Option<Printed>, promise: Option<Pattern>) {
        let mut state = self.lock();
        state.printed = printed;
        state.promise = promise;
        state.recording = true;
    }

    /// Notes where the calls stand among the events of a volume.
    pub(crate) fn watch_volume(&self, hook: VolumeHook) {
        self.lock().volume = Some(hook);
    }

    /// Says that the program has ended. What it wrote through mappings may still come, and is
    /// recorded; what makes it come is not.
    pub fn end_of_program(&self) {
        let mut state = self.lock();
        self.read_printed(&mut state);
        state.ended = true;
    }

    /// Ends the recording and returns the calls, or `None` if the program wrote more than can be
    /// recorded.
    #[must_use]
    pub fn stop(&self) -> Option<Vec<Call>> {
        self.stop_with_positions().map(|(calls, _)| calls)
    }

    /// Ends the recording as [`stop`](Self::stop) does. Returns with the calls, for each, the number
    /// of events on a volume before it.
    pub(crate) fn stop_with_positions(&self) -> Option<(Vec<Call>, Vec<usize>)> {
        let mut state = self.lock();
        self.read_printed(&mut state);
        if !state.line.is_empty() {
            state.line.push(b'\n');
            self.read_printed(&mut state);
        }
        self.push(&mut state, Action::End, Process::default(), Bytes::new());
        state.recording = false;
        state.printed = None;
        state.volume = None;
        let positions = std::mem::take(&mut state.positions);
        (!state.overflow).then(|| (std::mem::take(&mut state.calls), positions))
    }

    /// The number of calls that were recorded until now.
    #[must_use]
    pub fn recorded(&self) -> usize {
        self.lock().calls.len()
    }

    /// The calls that are recorded until now.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// The bytes of data in the calls that are recorded until now.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.lock().data_bytes
    }

    /// Drops the first calls of the recording.
    pub(crate) fn drop_first(&self, calls: usize) {
        let mut state = self.lock();
        let calls = calls.min(state.calls.len());
        let dropped: u64 = state.calls.drain(..calls).map(|call| call.data.len() as u64).sum();
        state.data_bytes = state.data_bytes.saturating_sub(dropped);
    }

    /// The number of an inode that exists.
    fn nr(&self, ino: Ino) -> NodeNr {
        NodeNr((self.number)(ino).unwrap_or(0))
    }

    fn place(&self, dir: Ino, name: &[u8]) -> Place {
        Place { dir: self.nr(dir), name: name.to_vec() }
    }

    fn resize(&self, ino: Ino, size_before: u64, size_after: u64) -> Action {
        let node = self.nr(ino);
        Action::Resize(Span { node, offset: 0, len_bytes: 0, size_before, size_after })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic within a call leaves the list as it was before the call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, state: &mut State, caller: &Caller, action: Action, data: &[u8]) {
        let is_late = state.ended && action.is_sync();
        if !state.recording || state.overflow || is_late || action == Action::Nothing {
            return;
        }
        state.data_bytes += match &action {
            Action::Zero(span) if zeroes(span).len_bytes > ZEROES_MAX => u64::MAX / 2,
            _ => data.len() as u64,
        };
        if state.data_bytes > state.limit_bytes {
            state.overflow = true;
            state.calls = Vec::new();
            return;
        }
        self.push(state, action, process(caller), Bytes::copy_from_slice(data));
    }

    fn push(&self, state: &mut State, action: Action, process: Process, data: Bytes) {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let at_nanos = self.start_nanos.saturating_add(elapsed);
        state.calls.push(Call { action, process, at_nanos, data });
        let count = state.calls.len();
        if let Some(VolumeHook { events, write_back, every }) = &state.volume {
            let position = events();
            if count.is_multiple_of(*every) {
                write_back();
            }
            state.positions.push(position);
        }
    }

    /// Notes the promises among the lines that were printed until now.
    fn read_printed(&self, state: &mut State) {
        let Some(printed) = &mut state.printed else { return };
        let bytes = printed();
        state.line.extend_from_slice(&bytes);
        while let Some(end) = state.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = state.line.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            if state.promise.as_ref().is_some_and(|pattern| pattern.matches(&line)) {
                self.push(state, Action::Promise { line }, Process::default(), Bytes::new());
            }
        }
    }

    /// Makes a call that changes something, and notes what it has done.
    fn change<T>(
        &self,
        caller: &Caller,
        data: &[u8],
        call: impl FnOnce() -> Result<(T, Action)>,
    ) -> Result<T> {
        let mut state = self.lock();
        self.read_printed(&mut state);
        let (result, action) = call()?;
        let written = match &action {
            Action::Write(span) => usize::try_from(span.len_bytes).unwrap_or(usize::MAX),
            _ => data.len(),
        };
        self.note(&mut state, caller, action, &data[..written.min(data.len())]);
        Ok(result)
    }

    fn new_node(&self, attr: &Attr, target: &[u8]) -> NewNode {
        NewNode {
            node: self.nr(attr.ino),
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            target: target.to_vec(),
        }
    }

    /// Makes a new inode, and notes it with the attributes that it inherited.
    fn make(
        &self,
        caller: &Caller,
        at: Option<(Ino, &[u8])>,
        target: &[u8],
        call: impl FnOnce() -> Result<Entry>,
    ) -> Result<Entry> {
        self.change(caller, &[], || {
            let entry = call()?;
            let at = at.map(|(dir, name)| self.place(dir, name));
            let action = Action::Create { new: self.new_node(&entry.attr, target), at };
            Ok((entry, action))
        })
    }

    /// Returns the inode that has a name, if there is one. It takes no reference.
    fn find(&self, dir: Ino, name: &[u8]) -> Option<Attr> {
        let entry = self.below.lookup(dir, name).ok()?;
        self.below.forget(entry.attr.ino, 1);
        Some(entry.attr)
    }

    fn size(&self, ino: Ino) -> Result<u64> {
        Ok(self.below.getattr(ino)?.size_bytes)
    }

    fn remove(&self, caller: &Caller, dir: Ino, name: &[u8], is_dir: bool) -> Result<()> {
        self.change(caller, &[], || {
            let node = self.find(dir, name).map_or(NodeNr(0), |attr| self.nr(attr.ino));
            if is_dir {
                self.below.rmdir(caller, dir, name)
            } else {
                self.below.unlink(caller, dir, name)
            }?;
            Ok(((), Action::Remove { at: self.place(dir, name), node, is_dir }))
        })
    }
}

fn process(caller: &Caller) -> Process {
    let pid = caller.pid;
    let command = match pid {
        0 => String::new(),
        _ => std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default(),
    };
    Process { pid, command: command.trim_end().to_owned() }
}

impl Recorder {
    /// Records a write, which `write` makes.
    fn write_by(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
        write: impl FnOnce(&dyn FileSystem) -> Result<usize>,
    ) -> Result<usize> {
        self.change(caller, data, || {
            let size_before = self.size(ino)?;
            let len = write(&*self.below)?;
            let size_after = self.size(ino)?;
            // An append goes where the file ends, whatever the offset says.
            let appended = size_after > size_before && offset + len as u64 != size_after;
            let offset = if appended { size_after - len as u64 } else { offset };
            let (node, len_bytes) = (self.nr(ino), len as u64);
            Ok((len, Action::Write(Span { node, offset, len_bytes, size_before, size_after })))
        })
    }
}

impl Layer for Recorder {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    /// The kernel must announce when a file is closed, since some file systems write it then.
    fn is_stateful(&self) -> bool {
        true
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        self.make(caller, Some((parent, name)), &[], || {
            self.below.mknod(caller, parent, name, kind, perm, rdev)
        })
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.make(caller, Some((parent, name)), &[], || {
            self.below.mkdir(caller, parent, name, perm)
        })
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(caller, Some((parent, name)), target, || {
            self.below.symlink(caller, parent, name, target)
        })
    }

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        self.make(caller, None, &[], || self.below.create_unnamed(caller, parent, perm))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let mut state = self.lock();
        self.read_printed(&mut state);
        let existed = self.find(parent, name);
        let (entry, opened) = self.below.create(caller, parent, name, perm, flags)?;
        match existed {
            None => {
                let new = NewNode { perm: entry.attr.perm, ..self.new_node(&entry.attr, &[]) };
                let action = Action::Create { new, at: Some(self.place(parent, name)) };
                self.note(&mut state, caller, action, &[]);
            }
            Some(before) if before.size_bytes != entry.attr.size_bytes => {
                let (before, after) = (before.size_bytes, entry.attr.size_bytes);
                let action = self.resize(entry.attr.ino, before, after);
                self.note(&mut state, caller, action, &[]);
            }
            Some(_) => {}
        }
        Ok((entry, opened))
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return self.below.open(caller, ino, flags);
        }
        let mut state = self.lock();
        self.read_printed(&mut state);
        let before = self.size(ino)?;
        let opened = self.below.open(caller, ino, flags)?;
        let after = self.size(ino)?;
        self.note(&mut state, caller, self.resize(ino, before, after), &[]);
        Ok(opened)
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        let mut state = self.lock();
        self.read_printed(&mut state);
        let node = (self.number)(ino).map(NodeNr);
        let result = self.below.release(ino, handle);
        if let Some(node) = node {
            self.note(&mut state, &Caller::ROOT, Action::Close { node }, &[]);
        }
        result
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.change(caller, &[], || {
            let entry = self.below.link(caller, ino, new_parent, new_name)?;
            let action = Action::Link { node: self.nr(ino), at: self.place(new_parent, new_name) };
            Ok((entry, action))
        })
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(caller, parent, name, false)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(caller, parent, name, true)
    }

    fn has_whiteouts(&self) -> bool {
        // Not recorded.
        false
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.change(caller, &[], || {
            let (from, to) = (self.find(parent, name), self.find(new_parent, new_name));
            let nr = |attr: &Option<Attr>| attr.as_ref().map(|attr| self.nr(attr.ino));
            let (node, replaced) = (nr(&from).unwrap_or(NodeNr(0)), nr(&to));
            // Between two names of one inode it does nothing (POSIX, rename).
            let is_same = replaced == Some(node);
            self.below.rename(caller, parent, name, new_parent, new_name, flags)?;
            let is_dir = |attr: &Option<Attr>| {
                attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory)
            };
            let action = Action::Rename {
                from: self.place(parent, name),
                to: self.place(new_parent, new_name),
                node,
                replaced,
                exchange: flags.contains(RenameFlags::EXCHANGE),
                is_dir: is_dir(&from) || is_dir(&to),
            };
            Ok(((), if is_same { Action::Nothing } else { action }))
        })
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let write = |fs: &dyn FileSystem| fs.write(caller, ino, handle, offset, data);
        self.write_by(caller, ino, offset, data, write)
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let write = |fs: &dyn FileSystem| fs.write_cached(caller, ino, handle, offset, data);
        self.write_by(caller, ino, offset, data, write)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.change(caller, &[], || {
            let size_before = self.size(ino)?;
            self.below.fallocate(caller, ino, mode, offset, len_bytes)?;
            let size_after = self.size(ino)?;
            let span = Span { node: self.nr(ino), offset, len_bytes, size_before, size_after };
            let zeroes = !matches!(mode, FallocateMode::Allocate { .. });
            Ok(((), if zeroes { Action::Zero(span) } else { Action::Resize(span) }))
        })
    }

    /// The kernel copies by reading and writing, so that every byte is recorded.
    fn copy_range(&self, _: &Caller, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        Err(weft_vfs::Error::Unsupported("copies within a recorded file system"))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut state = self.lock();
        self.read_printed(&mut state);
        let before = self.below.getattr(ino)?;
        let after = self.below.setattr(caller, ino, set)?;
        if set.size_bytes.is_some() {
            let action = self.resize(ino, before.size_bytes, after.size_bytes);
            self.note(&mut state, caller, action, &[]);
        }
        let rights = |attr: &Attr| (attr.perm, attr.uid, attr.gid);
        if set.size_bytes.is_none() || rights(&before) != rights(&after) {
            let (perm, uid, gid) = rights(&after);
            let action = Action::Attributes { node: self.nr(ino), perm, uid, gid };
            self.note(&mut state, caller, action, &[]);
        }
        Ok(after)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.change(caller, value, || {
            self.below.setxattr(caller, ino, name, value, how)?;
            Ok(((), Action::Xattr { node: self.nr(ino), name: name.to_vec(), removed: false }))
        })
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(caller, &[], || {
            self.below.removexattr(caller, ino, name)?;
            Ok(((), Action::Xattr { node: self.nr(ino), name: name.to_vec(), removed: true }))
        })
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.change(caller, &[], || {
            self.below.fsync(caller, ino, data_only)?;
            Ok(((), Action::Fsync { node: self.nr(ino), data_only }))
        })
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.change(caller, &[], || {
            self.below.fsync_dir(caller, ino)?;
            Ok(((), Action::FsyncDir { dir: self.nr(ino) }))
        })
    }

    fn sync(&self) -> Result<()> {
        self.change(&Caller::ROOT, &[], || {
            self.below.sync()?;
            Ok(((), Action::Sync))
        })
    }
}
