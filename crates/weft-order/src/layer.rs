//! The layer that puts the calls of engaged threads and processes into their groups.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashSet;
use smallvec::SmallVec;
use weft_patch::PatchGroups;
use weft_vfs::{
    Caller, CommandAnswer, Entry, Error, FallocateMode, FileFlags, FileKind, FileSystem, Handle,
    Ino, Layer, OpenFlags, Opened, RenameFlags, Result, SetAttr, XattrSet,
};

use crate::commands::{self, Fsync, decode};
use crate::table::{Engagements, Refused, Table};

/// A file system whose callers may put their changes into groups; see the [crate] page.
///
/// While no process is engaged, a call reads one counter more.
pub struct OrderedFs {
    below: Arc<dyn FileSystem>,
    groups: PatchGroups,
    table: Mutex<Table>,
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
        Self {
            below,
            groups,
            table: Mutex::default(),
            engaged: AtomicUsize::new(0),
            mapped: Mutex::default(),
        }
    }

    fn engagements_of(&self, caller: &Caller) -> Engagements {
        if self.engaged.load(Ordering::Relaxed) == 0 {
            return Engagements::new();
        }
        let mut table = locked(&self.table);
        let found = table.of_thread(caller.pid);
        // The table has dropped the engagements of processes that have ended.
        self.engaged.store(table.engagements(), Ordering::Relaxed);
        found
    }

    /// Runs a call that changes something in the groups of its caller.
    fn change<R>(&self, caller: &Caller, call: impl FnOnce(&dyn FileSystem) -> R) -> R {
        let engaged = self.engagements_of(caller);
        let _entered: SmallVec<[_; 1]> = engaged.iter().map(|e| e.engagement.enter()).collect();
        call(&*self.below)
    }

    /// Handles an fsync: where it is a barrier to the caller, it orders and does not wait.
    fn fsync_or_order(
        &self,
        caller: &Caller,
        ino: Ino,
        fsync: impl FnOnce(&dyn FileSystem) -> Result<()>,
    ) -> Result<()> {
        let engaged = self.engagements_of(caller);
        let ordered = !engaged.is_empty() && engaged.iter().all(|e| e.fsync == Fsync::Barrier);
        let mapped = || locked(&self.mapped).contains(&ino);
        if ordered && !mapped() {
            engaged.iter().for_each(|e| e.patchgroup.barrier());
            return Ok(());
        }
        fsync(&*self.below)?;
        let mut files = locked(&self.mapped);
        if !files.is_empty() {
            files.remove(&ino);
        }
        Ok(())
    }

    /// Executes a command on a group. Returns the value of the answer.
    fn execute(&self, caller: &Caller, request: u32, group: &mut u32, value: u32) -> Done<u32> {
        let thread = caller.pid;
        let find = |number| locked(&self.table).group(thread, number);
        match request {
            commands::CREATE => *group = locked(&self.table).add(thread, self.groups.create())?,
            commands::DEPEND => {
                let (after, before) = (find(*group)?, find(value)?);
                after.depend(&before)?;
            }
            commands::RELEASE => find(*group)?.release(),
            commands::ENGAGE => {
                let how = decode(value).ok_or(Refused::Meaningless)?;
                let engagement = find(*group)?.engage()?;
                self.in_table(|table| table.engage(thread, *group, how, engagement))?;
            }
            commands::DISENGAGE => {
                let (scope, _) = decode(value).ok_or(Refused::Meaningless)?;
                self.in_table(|table| table.disengage(thread, *group, scope))?;
            }
            commands::BARRIER => find(*group)?.barrier(),
            commands::SYNC => find(*group)?.sync()?,
            commands::IS_DURABLE => return Ok(u32::from(find(*group)?.is_durable())),
            _ => self.in_table(|table| table.close(thread, *group))?,
        }
        Ok(value)
    }

    fn in_table(&self, change: impl FnOnce(&mut Table) -> Done<(), Refused>) -> Done<(), Refused> {
        let mut table = locked(&self.table);
        let result = change(&mut table);
        self.engaged.store(table.engagements(), Ordering::Relaxed);
        if table.engagements() == 0 {
            locked(&self.mapped).clear();
        }
        result
    }
}

/// The result of a command.
type Done<T, E = Failed> = std::result::Result<T, E>;

/// The errno of a command that failed, or that it would wait.
enum Failed {
    Errno(i32),
    WouldWait,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        use rustix::io::Errno;
        let errno = match refused {
            Refused::NoSuchGroup => Errno::NOENT,
            Refused::NotOwner => Errno::PERM,
            Refused::NoSuchProcess => Errno::SRCH,
            Refused::TooMany => Errno::MFILE,
            Refused::Meaningless => Errno::INVAL,
        };
        Self::Errno(errno.raw_os_error())
    }
}

impl From<weft_patch::Error> for Failed {
    fn from(e: weft_patch::Error) -> Self {
        if matches!(e, weft_patch::Error::WouldWait) {
            return Self::WouldWait;
        }
        Self::Errno(e.errno())
    }
}

impl From<weft_patch::PatchGroupError> for Failed {
    fn from(e: weft_patch::PatchGroupError) -> Self {
        Self::Errno(e.errno())
    }
}

impl Layer for OrderedFs {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
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
        if !(commands::CREATE..=commands::CLOSE).contains(&request) {
            return self.change(caller, |fs| fs.command(caller, ino, handle, request, data));
        }
        let Some((group, value)) = data.split_first_chunk::<4>() else {
            return Err(Error::Invalid("the argument of a command on a group"));
        };
        let Ok(value) = <[u8; 4]>::try_from(value) else {
            return Err(Error::Invalid("the argument of a command on a group"));
        };
        let (mut group, value) = (u32::from_ne_bytes(*group), u32::from_ne_bytes(value));
        let (errno, value) = match self.execute(caller, request, &mut group, value) {
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
        if self.engaged.load(Ordering::Relaxed) > 0 {
            locked(&self.mapped).insert(ino);
        }
        self.below.write_cached(caller, ino, handle, offset, data)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<weft_vfs::Attr> {
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
        self.change(caller, |fs| fs.open(caller, ino, flags))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.change(caller, |fs| fs.create(caller, parent, name, perm, flags))
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.change(caller, |fs| fs.write(caller, ino, handle, offset, data))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
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
}
