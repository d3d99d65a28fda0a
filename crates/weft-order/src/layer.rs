//! The layer that puts the calls of engaged threads and processes into their groups.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashSet;
use rustix::io::Errno;
use smallvec::SmallVec;
use weft_patch::{AtomicLimits, PatchGroups};
use weft_vfs::{
    Caller, CommandAnswer, Entry, Error, FallocateMode, FileFlags, FileKind, FileSystem, Handle,
    Ino, Invalidate, Layer, OpenFlags, Opened, RenameFlags, Result, SetAttr, XattrSet,
};

use crate::abort::Abortables;
use crate::atomic_file::{self, AtomicFiles};
use crate::background::Background;
use crate::commands::{self, Covered, Failed, Fsync, Kind, Refused, decode};
use crate::engagement::OrderedEngagement;
use crate::listing::{LISTED_BYTES, decode_label};
use crate::open_file::OpenFiles;
use crate::pipe::Pipes;
use crate::table::{Engagements, Table};

/// A file system whose callers may put their changes into groups; see the [crate] page.
///
/// While no process is engaged, a call reads one counter more.
pub struct OrderedFs {
    below: Arc<dyn FileSystem>,
    groups: PatchGroups,
    /// The engagement of all callers, if all have one.
    everyone: Option<Arc<OrderedEngagement>>,
    files: Arc<AtomicFiles>,
    abortables: Arc<Abortables>,
    pipes: Pipes,
    background: Background,
    table: Mutex<Table>,
    /// The open files, if this layer is told of them.
    open_files: Option<OpenFiles>,
    /// The number of engagements in the table.
    engaged: AtomicUsize,
    /// Files with pages of mappings that the kernel has written since their last fsync: it names no
    /// process for them.
    mapped: Mutex<HashSet<Ino>>,
}

impl std::fmt::Debug for OrderedFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderedFs").field("engaged", &self.engaged).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OrderedFs {
    /// Makes the layer over the file system of a volume, whose engine makes the groups.
    pub fn new(below: Arc<dyn FileSystem>, groups: PatchGroups) -> Self {
        let files = Arc::new(AtomicFiles::new(Arc::clone(&below), groups.clone()));
        let abortables = Arc::new(Abortables::new(Arc::clone(&below)));
        Self {
            below,
            groups,
            everyone: None,
            background: Background::new(Arc::clone(&files), Arc::clone(&abortables)),
            files,
            abortables,
            pipes: Pipes::default(),
            table: Mutex::default(),
            open_files: None,
            engaged: AtomicUsize::new(0),
            mapped: Mutex::default(),
        }
    }

    /// Makes the layer where fsync has this meaning to all callers: they share one group.
    pub fn with_fsync(below: Arc<dyn FileSystem>, groups: PatchGroups, fsync: Fsync) -> Self {
        let mut layer = Self::new(below, groups);
        if fsync.is_barrier() {
            let engagement = OrderedEngagement::new(layer.groups.create(), fsync);
            layer.everyone = engagement.ok().map(Arc::new);
        }
        layer
    }

    /// Makes callers tell of files being opened and closed, which costs them a request each: single open
    /// files can be engaged then.
    #[must_use]
    pub fn with_open_files(self) -> Self {
        Self { open_files: Some(OpenFiles::new()), ..self }
    }

    /// Returns the engagements of the caller: those of the open file go before its own.
    fn engagements_of(&self, caller: &Caller) -> Engagements {
        let of_file = self.open_files.as_ref().map(|files| files.of_file(caller.handle));
        let mut found = of_file.unwrap_or_default();
        if found.is_empty() && self.engaged.load(Ordering::Relaxed) > 0 {
            let mut table = locked(&self.table);
            found = table.of_thread(caller.pid);
            // The table has dropped the engagements of processes that have ended.
            self.engaged.store(table.engagements(), Ordering::Relaxed);
        }
        found.extend(self.everyone.clone());
        found
    }

    /// Runs a call that changes something in the groups of its caller.
    fn change<R>(
        &self,
        caller: &Caller,
        call: impl FnOnce(&dyn FileSystem) -> Result<R>,
    ) -> Result<R> {
        self.change_in(&self.engagements_of(caller), call)
    }

    /// Runs a call that changes something in the groups of these engagements.
    fn change_in<R>(
        &self,
        engaged: &Engagements,
        call: impl FnOnce(&dyn FileSystem) -> Result<R>,
    ) -> Result<R> {
        let _entered: SmallVec<[_; 1]> = engaged.iter().map(|e| e.enter()).collect();
        self.abortables.run(engaged.iter().filter_map(|e| e.abortable.as_deref()), call)
    }

    /// Handles an fsync: where it is a barrier to the caller, it orders and does not wait.
    fn fsync_or_order(
        &self,
        caller: &Caller,
        ino: Ino,
        fsync: impl FnOnce(&dyn FileSystem) -> Result<()>,
    ) -> Result<()> {
        let engaged = self.engagements_of(caller);
        if self.files.has(ino) {
            return Err(Error::Busy);
        }
        let ordered = !engaged.is_empty() && engaged.iter().all(|e| e.orders());
        // Pages of mappings are in the groups of open files, and of nobody else.
        let by_file = self.everyone.is_none() && self.is_engaged_itself(caller.handle);
        let mapped = || !by_file && locked(&self.mapped).contains(&ino);
        if ordered && !mapped() {
            engaged.iter().for_each(|e| e.order(&self.background));
            return Ok(());
        }
        fsync(&*self.below)?;
        engaged.iter().for_each(|e| e.has_waited());
        let mut files = locked(&self.mapped);
        if !files.is_empty() {
            files.remove(&ino);
        }
        Ok(())
    }

    /// Returns true if an open file is engaged, not only the caller.
    fn is_engaged_itself(&self, handle: Handle) -> bool {
        self.open_files.as_ref().is_some_and(|files| !files.of_file(handle).is_empty())
    }

    /// Executes a command on a group, by an open file. Returns the value of the answer.
    fn execute(
        &self,
        caller: &Caller,
        file: (Ino, Handle),
        request: u32,
        group: &mut u32,
        value: u32,
    ) -> Done<u32> {
        let thread = caller.pid;
        let open_files = || self.open_files.as_ref().ok_or(Refused::NoOpenFiles);
        let find = |number| locked(&self.table).group(thread, number);
        match request {
            commands::CREATE => {
                let kind = Kind::decode(value).ok_or(Refused::Meaningless)?;
                let made = match kind {
                    Kind::Ordinary => self.groups.create(),
                    Kind::Linear => self.groups.create_linear(),
                    Kind::Atomic | Kind::Abortable if !may_hold_others_up(caller) => {
                        return Err(Refused::NotOwner.into());
                    }
                    Kind::Atomic => self.groups.create_atomic(AtomicLimits::default())?,
                    Kind::Abortable => {
                        *group = self.create_abortable(thread)?;
                        return Ok(value);
                    }
                };
                *group = locked(&self.table).add(thread, made, kind)?;
            }
            commands::DEPEND => {
                let (after, before) = (find(*group)?, find(value)?);
                self.end_abortable(value)?;
                after.depend(&before)?;
                locked(&self.table).depends(*group, value);
            }
            commands::RELEASE => {
                find(*group)?.release();
                locked(&self.table).released(*group);
            }
            commands::ENGAGE => {
                let (covered, fsync) = decode(value).ok_or(Refused::Meaningless)?;
                let mut engagement = OrderedEngagement::new(find(*group)?, fsync)?;
                engagement.abortable = self.abortables.get(*group);
                locked(&self.table).released(*group);
                self.in_table(|table| match covered {
                    Covered::Scope(scope) => table.engage(thread, *group, scope, engagement),
                    Covered::OpenFile => {
                        table.group(thread, *group)?;
                        open_files()?.engage(file, *group, engagement)
                    }
                })?;
            }
            commands::DISENGAGE => {
                let (covered, _) = decode(value).ok_or(Refused::Meaningless)?;
                self.in_table(|table| match covered {
                    Covered::Scope(scope) => table.disengage(thread, *group, scope),
                    Covered::OpenFile => {
                        table.group(thread, *group)?;
                        open_files()?.disengage(file, *group)
                    }
                })?;
            }
            commands::BARRIER => find(*group)?.barrier(),
            commands::SYNC | commands::COMMIT => {
                let found = find(*group)?;
                if request == commands::SYNC {
                    weft_patch::about_to_wait()?;
                }
                self.end_abortable(*group)?;
                if request == commands::SYNC { found.sync()? } else { found.commit()? }
            }
            commands::TELL => self.pipes.tell(&find(*group)?, *group, (thread, value))?,
            commands::ABORT => {
                find(*group)?;
                self.abort(*group)?;
            }
            commands::BLOCKS_LEFT => return Ok(find(*group)?.atomic_blocks_left().unwrap_or(0)),
            commands::IS_DURABLE => return Ok(u32::from(find(*group)?.is_durable())),
            _ => {
                find(*group)?;
                self.in_table(|table| table.close(thread, *group))?;
                self.abortables.keep(*group);
                self.open_files.as_ref().inspect(|files| files.close_group(*group));
            }
        }
        Ok(value)
    }

    /// Makes an atomic group that can be aborted. Returns its number.
    fn create_abortable(&self, thread: u32) -> Done<u32> {
        let made = self.abortables.make(&self.groups)?;
        let (number, owner) = {
            let mut table = locked(&self.table);
            (table.add(thread, made.clone(), Kind::Abortable)?, table.process_of(thread)?)
        };
        let mut added = self.abortables.add(number, made, Some(owner)).map(drop);
        if added.is_ok() && !self.background.watch_processes() {
            self.abortables.keep(number);
            added = Err(Errno::AGAIN.into());
        }
        if added.is_err() {
            self.in_table(|table| table.close(thread, number))?;
        }
        added.map(|()| number)
    }

    /// Keeps the changes of a group that could be aborted until now, if it was one.
    fn end_abortable(&self, number: u32) -> Done<()> {
        if self.abortables.get(number).is_none() {
            return Ok(());
        }
        let by_file = self.open_files.as_ref().is_some_and(|files| files.has_group(number));
        if by_file || locked(&self.table).is_engaged(number) {
            return Err(Errno::BUSY.into());
        }
        self.abortables.keep(number);
        Ok(())
    }

    /// Undoes the changes of a group, and ends it.
    fn abort(&self, number: u32) -> Done<()> {
        let undone = self.abortables.abort(number)?;
        self.in_table(|table| {
            table.disengage_all(number);
            Ok(())
        })?;
        self.open_files.as_ref().inspect(|files| files.close_group(number));
        self.abortables.announce(undone);
        Ok(())
    }

    /// Labels a group. Returns its argument.
    fn label(&self, caller: &Caller, data: &[u8]) -> Done<Vec<u8>> {
        let (group, label) = decode_label(data).ok_or(Refused::Meaningless)?;
        locked(&self.table).label(caller.pid, group, label)?;
        Ok(data.to_vec())
    }

    /// Returns the next group that a caller may see.
    fn next(&self, caller: &Caller, data: &[u8]) -> Done<Vec<u8>> {
        let last = data.first_chunk().filter(|_| data.len() == LISTED_BYTES);
        let last = u32::from_ne_bytes(*last.ok_or(Refused::Meaningless)?);
        let sees_all = may_hold_others_up(caller);
        let (mut listed, group) = locked(&self.table).next(caller.pid, sees_all, last)?;
        let by_file = self.open_files.as_ref().is_some_and(|files| files.has_group(listed.number));
        listed.is_engaged |= by_file;
        listed.is_durable = group.is_durable();
        Ok(listed.encode().to_vec())
    }

    /// Executes a command of atomic writes of a file. Returns the errno and the data of the answer.
    fn write_atomically(&self, caller: &Caller, ino: Ino, request: u32) -> Result<CommandAnswer> {
        if !may_hold_others_up(caller) {
            return Err(Error::UnknownCommand);
        }
        let answer = |errno, data| Ok(CommandAnswer { errno, data });
        if request == atomic_file::GET_FEATURES {
            let supported = self.files.is_supported();
            let features = if supported { atomic_file::FEATURE_ATOMIC_WRITE } else { 0 };
            return answer(0, features.to_ne_bytes().to_vec());
        }
        let Ok(owner) = locked(&self.table).process_of(caller.pid) else {
            return answer(Errno::SRCH.raw_os_error(), Vec::new());
        };
        let errno = match request {
            atomic_file::START => {
                let started = self.files.start(ino, &owner);
                if started.is_ok() && !self.background.watch_processes() {
                    self.files.abort(ino, &owner)?;
                    return answer(Errno::AGAIN.raw_os_error(), Vec::new());
                }
                started.err().map_or(0, Errno::raw_os_error)
            }
            atomic_file::COMMIT => match self.files.commit(ino, &owner) {
                Ok(()) => 0,
                Err(weft_patch::Error::WouldWait) => return Err(Error::WouldBlock),
                Err(e) => e.errno(),
            },
            _ => {
                self.files.abort(ino, &owner)?;
                0
            }
        };
        answer(errno, Vec::new())
    }

    /// Fails for a change of a file that its atomic writes could not undo.
    fn not_in_atomic_writes(&self, ino: Ino) -> Result<()> {
        if self.files.has(ino) { Err(Error::Busy) } else { Ok(()) }
    }

    fn in_table(&self, change: impl FnOnce(&mut Table) -> Done<(), Refused>) -> Done<(), Refused> {
        let mut table = locked(&self.table);
        let result = change(&mut table);
        self.engaged.store(table.engagements(), Ordering::Relaxed);
        if table.engagements() == 0 && self.everyone.is_none() {
            locked(&self.mapped).clear();
        }
        result
    }
}

/// Returns true for callers who may make the syncs of others wait: root, and the user who runs the
/// mount.
fn may_hold_others_up(caller: &Caller) -> bool {
    caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
}

/// The result of a command.
type Done<T, E = Failed> = std::result::Result<T, E>;

impl Layer for OrderedFs {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        self.files.set_invalidate(Arc::clone(&sink));
        self.abortables.set_invalidate(Arc::clone(&sink));
        self.below.set_invalidate(sink);
    }

    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        self.below.without_waiting(call)
    }

    fn command(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        request: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        if atomic_file::COMMANDS.contains(&request) {
            return self.write_atomically(caller, ino, request);
        }
        let done = match request {
            commands::LABEL => Some(self.label(caller, data)),
            commands::NEXT => Some(self.next(caller, data)),
            _ => None,
        };
        if let Some(done) = done {
            return match done {
                Ok(data) => Ok(CommandAnswer { errno: 0, data }),
                Err(Failed::Errno(errno)) => Ok(CommandAnswer { errno, data: data.to_vec() }),
                Err(Failed::WouldWait) => Err(Error::WouldBlock),
            };
        }
        if !(commands::CREATE..=commands::TELL).contains(&request) {
            return self.change(caller, |fs| fs.command(caller, ino, handle, request, data));
        }
        let Some((group, value)) = data.split_first_chunk::<4>() else {
            return Err(Error::Invalid("the argument of a command on a group"));
        };
        let Ok(value) = <[u8; 4]>::try_from(value) else {
            return Err(Error::Invalid("the argument of a command on a group"));
        };
        let (mut group, value) = (u32::from_ne_bytes(*group), u32::from_ne_bytes(value));
        let (errno, value) = match self.execute(caller, (ino, handle), request, &mut group, value) {
            Ok(value) => (0, value),
            Err(Failed::WouldWait) => return Err(Error::WouldBlock),
            Err(Failed::Errno(errno)) => (errno, value),
        };
        let data = [group.to_ne_bytes(), value.to_ne_bytes()].concat();
        Ok(CommandAnswer { errno, data })
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.fsync_or_order(caller, ino, |fs| fs.fsync(caller, ino, data_only))
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.fsync_or_order(caller, ino, |fs| fs.fsync_dir(caller, ino))
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        if self.engaged.load(Ordering::Relaxed) > 0 || self.everyone.is_some() {
            locked(&self.mapped).insert(ino);
        }
        let engaged = self.open_files.as_ref().map(|files| files.of_inode(ino));
        let engaged = engaged.unwrap_or_default();
        self.change_in(&engaged, |fs| fs.write_cached(caller, ino, handle, offset, data))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<weft_vfs::Attr> {
        if set.size_bytes.is_some() {
            self.not_in_atomic_writes(ino)?;
        }
        self.change(caller, |fs| fs.setattr(caller, ino, set))
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
        self.change(caller, |fs| fs.mknod(caller, parent, name, kind, perm, rdev))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.change(caller, |fs| fs.mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.change(caller, |fs| fs.symlink(caller, parent, name, target))
    }

    fn link(&self, caller: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.change(caller, |fs| fs.link(caller, ino, new_parent, new_name))
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(caller, |fs| fs.unlink(caller, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(caller, |fs| fs.rmdir(caller, parent, name))
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
        self.change(caller, |fs| fs.rename(caller, parent, name, new_parent, new_name, flags))
    }

    fn create_unnamed(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Entry> {
        self.change(caller, |fs| fs.create_unnamed(caller, parent, perm))
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        let opened = self.change(caller, |fs| fs.open(caller, ino, flags))?;
        self.open_files.as_ref().inspect(|files| files.opened(opened.handle, ino));
        Ok(opened)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let made = self.change(caller, |fs| fs.create(caller, parent, name, perm, flags))?;
        let (entry, opened) = &made;
        self.open_files.as_ref().inspect(|files| files.opened(opened.handle, entry.attr.ino));
        Ok(made)
    }

    fn is_stateful(&self) -> bool {
        self.open_files.is_some() || self.below.is_stateful()
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.open_files.as_ref().inspect(|files| files.released(handle));
        self.below.release(ino, handle)
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        // A caller that names no open file else names it here.
        let by_file = (caller.handle == Handle::NONE).then(|| caller.by(handle));
        let caller = by_file.as_ref().unwrap_or(caller);
        self.files.write(ino, offset, data.len() as u64, || {
            self.change(caller, |fs| fs.write(caller, ino, handle, offset, data))
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
        self.not_in_atomic_writes(ino)?;
        self.change(caller, |fs| fs.fallocate(caller, ino, mode, offset, len_bytes))
    }

    fn copy_range(
        &self,
        caller: &Caller,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        self.not_in_atomic_writes(to)?;
        self.change(caller, |fs| fs.copy_range(caller, from, from_offset, to, to_offset, len_bytes))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        self.change(caller, |fs| fs.setxattr(caller, ino, name, value, how))
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(caller, |fs| fs.removexattr(caller, ino, name))
    }

    fn set_file_flags(&self, caller: &Caller, ino: Ino, flags: FileFlags) -> Result<()> {
        self.change(caller, |fs| fs.set_file_flags(caller, ino, flags))
    }

    fn unmount(&self) -> Result<()> {
        // Whoever could commit them can no longer.
        self.files.undo_all();
        self.abortables.undo_all();
        self.open_files.as_ref().inspect(|files| files.clear());
        self.below.unmount()
    }
}
