//! The layer that programs meet: it knows the paths of what they use, watches for the call at which
//! the power is to be cut, and lets no call through while it is.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileSystem, Handle,
    Ino, Layer, OpenFlags, Opened, RenameFlags, Result, SetAttr, XattrSet,
};

use super::callers::Callers;
use super::trigger::Trigger;
use crate::mutex::locked;

/// Called when the folder has been unmounted.
type AtEnd = Box<dyn Fn() -> Result<()> + Send + Sync>;
/// Called before each call of a program, which may add to a recording that is too long.
type BeforeCall = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Gate {
    below: Arc<dyn FileSystem>,
    state: Mutex<GateState>,
    /// Told when a trigger has fired.
    fired: Condvar,
    /// Held by each call that may change something, while it is made.
    calls: RwLock<()>,
    hooks: OnceLock<(BeforeCall, AtEnd)>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct GateState {
    /// The power is off: calls fail.
    is_off: bool,
    armed: Vec<Armed>,
    next_id: u64,
    callers: Callers,
    /// A name of each inode that the kernel knows: its directory and the name there.
    names: HashMap<Ino, (Ino, Vec<u8>)>,
}

struct Armed {
    id: u64,
    trigger: Trigger,
    /// The process that is not killed, nor its ancestors; `None` if no process is killed.
    kill_for: Option<u32>,
    fired: Option<Fired>,
}

/// A trigger that has fired: the power is off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fired {
    /// The call, in words.
    pub(crate) call: String,
    /// The processes that were killed.
    pub(crate) killed: Vec<u32>,
}

fn power_off() -> Error {
    Error::Io {
        errno: rustix::io::Errno::IO.raw_os_error(),
        message: "the power is cut (weft crash lose)".into(),
    }
}

impl Gate {
    pub(crate) fn new(below: Arc<dyn FileSystem>) -> Self {
        Self {
            below,
            state: Mutex::default(),
            fired: Condvar::new(),
            calls: RwLock::new(()),
            hooks: OnceLock::new(),
        }
    }

    /// Sets what is done before each call and at the end; once.
    pub(crate) fn set_hooks(&self, before_call: BeforeCall, at_end: AtEnd) {
        let _ = self.hooks.set((before_call, at_end));
    }

    /// Lets no call begin until the guard is dropped; none is being made.
    pub(crate) fn hold_calls(&self) -> RwLockWriteGuard<'_, ()> {
        self.calls.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power: when this returns no call is being made, and each fails until
    /// [`power_on`](Self::power_on). If another has cut it, waits until it is on again.
    pub(crate) fn power_off(&self) {
        let mut state = locked(&self.state);
        while state.is_off {
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
            state = locked(&self.state);
        }
        state.is_off = true;
        drop(state);
        self.wait_for_calls();
    }

    /// Waits until no call is being made.
    pub(crate) fn wait_for_calls(&self) {
        drop(self.hold_calls());
    }

    /// Lets calls through again.
    pub(crate) fn power_on(&self) {
        locked(&self.state).is_off = false;
    }

    /// Returns the inodes that the kernel knows, but for the root, and forgets them: soon all have
    /// other numbers.
    pub(crate) fn take_known(&self) -> Vec<Ino> {
        locked(&self.state).names.drain().map(|(ino, _)| ino).collect()
    }

    /// Kills the processes that have used the folder, but for `asker` and its ancestors.
    pub(crate) fn kill_callers(&self, asker: u32) -> Vec<u32> {
        locked(&self.state).callers.kill(asker)
    }

    /// Watches for a call from now on. `kill_for`: kill all who use the folder then, but for this
    /// process and its ancestors.
    pub(crate) fn arm(&self, trigger: Trigger, kill_for: Option<u32>) -> u64 {
        let mut state = locked(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.armed.push(Armed { id, trigger, kill_for, fired: None });
        id
    }

    /// Waits at most this long for the call. After `Some` the power is off, and the trigger is gone.
    pub(crate) fn wait_for(&self, id: u64, limit: Duration) -> Option<Fired> {
        let state = locked(&self.state);
        let is_waiting = |state: &mut GateState| {
            !state.armed.iter().any(|armed| armed.id == id && armed.fired.is_some())
        };
        let (mut state, _) = self.fired.wait_timeout_while(state, limit, is_waiting).ok()?;
        let place = state.armed.iter().position(|armed| armed.id == id)?;
        let fired = state.armed[place].fired.clone()?;
        state.armed.remove(place);
        Some(fired)
    }

    /// Watches no more. Returns true if the call had been made: the power is off.
    pub(crate) fn disarm(&self, id: u64) -> bool {
        let mut state = locked(&self.state);
        let Some(place) = state.armed.iter().position(|armed| armed.id == id) else { return false };
        state.armed.remove(place).fired.is_some()
    }

    /// The number of calls that are watched for.
    pub(crate) fn armed(&self) -> usize {
        locked(&self.state).armed.len()
    }

    /// Makes a call, unless the power is off or is cut by it.
    fn pass<T>(
        &self,
        caller: &Caller,
        call: &str,
        at: &[Target<'_>],
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Some((before_call, _)) = self.hooks.get() {
            before_call();
        }
        let _made = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = locked(&self.state);
            if state.is_off {
                return Err(power_off());
            }
            state.callers.note(caller.pid);
            if self.fires(&mut state, call, at, false) {
                return Err(power_off());
            }
        }
        let result = make();
        let mut state = locked(&self.state);
        if !state.is_off && self.fires(&mut state, call, at, true) {
            return Err(power_off());
        }
        result
    }

    /// Counts a call, and cuts the power if it is the one.
    fn fires(&self, state: &mut GateState, call: &str, at: &[Target<'_>], after: bool) -> bool {
        if state.armed.is_empty() {
            return false;
        }
        let names = &state.names;
        let paths =
            || at.iter().map(|target| target.path(names, self.below.root())).collect::<Vec<_>>();
        // Each counts; of several that come to their end here, one fires now, the others at the next
        // such call.
        let mut first = None;
        for (place, armed) in state.armed.iter_mut().enumerate() {
            let waits = armed.fired.is_none() && armed.trigger.after == after;
            if !waits || !armed.trigger.counts(call, &paths) {
                continue;
            }
            match first {
                None => first = Some(place),
                Some(_) => armed.trigger.count_once_more(),
            }
        }
        let Some(armed) = first.map(|place| &mut state.armed[place]) else { return false };
        let quoted: Vec<String> = paths().iter().map(|path| format!("{path:?}")).collect();
        let killed = armed.kill_for.map(|asker| state.callers.kill(asker)).unwrap_or_default();
        armed.fired = Some(Fired { call: format!("{call}({})", quoted.join(", ")), killed });
        state.is_off = true;
        self.fired.notify_all();
        true
    }

    fn knows(&self, ino: Ino, parent: Ino, name: &[u8]) {
        if name != b"." && name != b".." {
            locked(&self.state).names.insert(ino, (parent, name.to_vec()));
        }
    }

    fn entry(&self, parent: Ino, name: &[u8], entry: Result<Entry>) -> Result<Entry> {
        let entry = entry?;
        self.knows(entry.attr.ino, parent, name);
        Ok(entry)
    }
}

/// An inode or a name that a call uses.
enum Target<'a> {
    Inode(Ino),
    Name(Ino, &'a [u8]),
}

impl Target<'_> {
    /// The path without the mount; `.` for the root.
    fn path(&self, names: &HashMap<Ino, (Ino, Vec<u8>)>, root: Ino) -> String {
        let (mut at, mut parts) = match self {
            Self::Inode(ino) => (*ino, Vec::new()),
            Self::Name(dir, name) => (*dir, vec![String::from_utf8_lossy(name).into_owned()]),
        };
        while at != root && parts.len() < 256 {
            let Some((dir, name)) = names.get(&at) else { break };
            parts.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        parts.reverse();
        if parts.is_empty() { ".".into() } else { parts.join("/") }
    }
}

impl Layer for Gate {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(parent, name, self.below.lookup(parent, name))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.below.readdir_plus(ino, cursor, &mut |found, entry| {
            let (name, number) = (found.name.to_vec(), entry.attr.ino);
            let taken = each(found, entry);
            if taken {
                self.knows(number, ino, &name);
            }
            taken
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.below.forget(ino, count);
        if self.below.getattr(ino).is_err() {
            locked(&self.state).names.remove(&ino);
        }
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        references.iter().for_each(|(ino, count)| Layer::forget(self, *ino, *count));
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
        let call = if kind == FileKind::Regular { "creat" } else { "mknod" };
        let made = self.pass(caller, call, &[Target::Name(parent, name)], || {
            self.below.mknod(caller, parent, name, kind, perm, rdev)
        });
        self.entry(parent, name, made)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let made = self.pass(caller, "mkdir", &[Target::Name(parent, name)], || {
            self.below.mkdir(caller, parent, name, perm)
        });
        self.entry(parent, name, made)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let made = self.pass(caller, "symlink", &[Target::Name(parent, name)], || {
            self.below.symlink(caller, parent, name, target)
        });
        self.entry(parent, name, made)
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let at = [Target::Inode(ino), Target::Name(new_parent, new_name)];
        let made =
            self.pass(caller, "link", &at, || self.below.link(caller, ino, new_parent, new_name));
        self.entry(new_parent, new_name, made)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.pass(caller, "unlink", &[Target::Name(parent, name)], || {
            self.below.unlink(caller, parent, name)
        })
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.pass(caller, "rmdir", &[Target::Name(parent, name)], || {
            self.below.rmdir(caller, parent, name)
        })
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
        let at = [Target::Name(parent, name), Target::Name(new_parent, new_name)];
        self.pass(caller, "rename", &at, || {
            let moved = self.below.lookup(parent, name)?.attr.ino;
            let replaced = self.below.lookup(new_parent, new_name).map(|entry| entry.attr.ino);
            let renamed = self.below.rename(caller, parent, name, new_parent, new_name, flags);
            if renamed.is_ok() {
                self.knows(moved, new_parent, new_name);
                if let (Ok(replaced), true) = (&replaced, flags.contains(RenameFlags::EXCHANGE)) {
                    self.knows(*replaced, parent, name);
                }
            }
            self.below.forget(moved, 1);
            if let Ok(replaced) = replaced {
                self.below.forget(replaced, 1);
            }
            renamed
        })
    }

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        self.pass(caller, "creat", &[Target::Inode(parent)], || {
            self.below.create_unnamed(caller, parent, perm)
        })
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let call = if flags.contains(OpenFlags::TRUNCATE) { "truncate" } else { "open" };
        self.pass(caller, call, &[Target::Inode(ino)], || self.below.open(caller, ino, flags))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let (entry, opened) = self.pass(caller, "creat", &[Target::Name(parent, name)], || {
            self.below.create(caller, parent, name, perm, flags)
        })?;
        self.knows(entry.attr.ino, parent, name);
        Ok((entry, opened))
    }

    /// The kernel closes what a process had open, whether the power is on or not.
    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        match self.pass(&Caller::ROOT, "close", &[Target::Inode(ino)], || Ok(())) {
            Ok(()) => self.below.release(ino, handle),
            Err(_) => Ok(()),
        }
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pass(&Caller::ROOT, "read", &[Target::Inode(ino)], || {
            self.below.read(ino, handle, offset, buf)
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
        self.pass(caller, "write", &[Target::Inode(ino)], || {
            self.below.write(caller, ino, handle, offset, data)
        })
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.pass(caller, "write", &[Target::Inode(ino)], || {
            self.below.write_cached(caller, ino, handle, offset, data)
        })
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.pass(caller, "fallocate", &[Target::Inode(ino)], || {
            self.below.fallocate(caller, ino, mode, offset, len_bytes)
        })
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let call = if set.size_bytes.is_some() { "truncate" } else { "chmod" };
        self.pass(caller, call, &[Target::Inode(ino)], || self.below.setattr(caller, ino, set))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.pass(caller, "setxattr", &[Target::Inode(ino)], || {
            self.below.setxattr(caller, ino, name, value, how)
        })
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.pass(caller, "removexattr", &[Target::Inode(ino)], || {
            self.below.removexattr(caller, ino, name)
        })
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let call = if data_only { "fdatasync" } else { "fsync" };
        self.pass(caller, call, &[Target::Inode(ino)], || self.below.fsync(caller, ino, data_only))
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.pass(caller, "fsync", &[Target::Inode(ino)], || self.below.fsync_dir(caller, ino))
    }

    /// Writes everything to the directory: a clean unmount loses nothing.
    fn unmount(&self) -> Result<()> {
        self.hooks.get().map_or(Ok(()), |(_, at_end)| at_end())
    }
}
