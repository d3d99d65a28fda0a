//! The [`FileSystem`] of a client.
//!
//! The kernel may trust no name and no attribute (their lifetime is zero). It drops the pages that it
//! keeps of a file when length or mtime have changed, and at `open`, unless nothing has changed since
//! the last one.

use std::sync::{Arc, Mutex, Weak};

use weft_ringer::op::{Change, Make, Op};
use weft_ringer::{Body, Bytes, OwnerKind, Refusal, RnodeId};
use weft_ringer_net::{Denial, wall};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FallocateMode, FileKind, FileLock, FileSystem,
    Handle, Ino, Interrupt, Invalidate, LockStyle, OpenFlags, Opened, RenameFlags, Result,
    SeekFrom, SetAttr, SetTime, StatFs, XattrSet,
};

use super::arguments::{SNAPSHOTS_NAME, changeable, id, name, new_name};
use super::client_fs::{ClientFs, OpenFile, Scrubbing};
use super::encryption::Encrypted;
use super::engine::Engine;
use super::errors::io_error;
use super::folder_table::{Folders, TOP_NAME, is_of_folders};
use super::invalidation;
use super::lost_leases::Sink;
use super::mutex::locked;
use super::options::RingerFsOptions;
use super::owners::Owners;
use super::peers::Held;

/// A cell, as this client has it: a file system that other clients use at the same time.
///
/// Operations on each file and each name are linearizable over all clients (see the [crate's front
/// page](crate)). A front end must not use its cache without asking again: names and attributes
/// have a lifetime of zero; cached content may stay while the attributes do.
#[derive(Debug)]
pub struct RingerFs {
    pub(super) client: Arc<ClientFs>,
}

impl RingerFs {
    /// Returns the rnode with this inode number, which may not exist.
    fn known(&self, ino: Ino) -> Result<RnodeId> {
        if is_of_folders(ino) {
            self.client.attr_of_folders(ino)?;
        }
        id(ino)
    }

    /// Joins a cell, and waits until its server answers.
    ///
    /// # Errors
    /// [`Error`](weft_ringer_net::Error) says what is missing.
    pub fn join(options: RingerFsOptions) -> weft_ringer_net::Result<Self> {
        let sizes = weft_ringer::BLOCK_MIN_BYTES..=weft_ringer::BLOCK_MAX_BYTES;
        if !options.block_bytes.is_power_of_two() || !sizes.contains(&options.block_bytes) {
            let why = "the block size must be a power of two from 64 KiB to 4 MiB";
            return Err(weft_ringer_net::Error::Refused(why.into()));
        }
        let engine = Engine::open(options.clone())?;
        let started = Self::start(&engine);
        let (why, refusal, kind) = match &started {
            Err(weft_ringer_net::Error::OlderCell(why)) if options.accept_older_cell => {
                (why.clone(), Refusal::OlderCell, "older-cell")
            }
            Err(weft_ringer_net::Error::Denied(denial @ Denial::Copied)) if options.adopt_store => {
                (denial.to_string(), Refusal::CopiedStore, "copied-store")
            }
            _ => return started,
        };
        // Before anything is set aside: a crash in between leaves them twice, and never not at all.
        let given_up = engine.give_up_unsent(refusal)?;
        // The store is locked while an engine has it.
        drop(engine);
        super::set_aside::set_aside(&options.directory, kind, &why)?;
        let engine = Engine::open(options)?;
        if given_up > 0 {
            engine.note(format!(
                "{given_up} changes that the server never had are kept as conflicts: `weft ringer \
                conflicts` lists them"
            ));
        }
        Self::start(&engine)
    }

    fn start(engine: &Arc<Engine>) -> weft_ringer_net::Result<Self> {
        let client = Arc::new(ClientFs {
            engine: Arc::clone(engine),
            references: Mutex::default(),
            above: Mutex::default(),
            handles: Mutex::default(),
            writers: std::array::from_fn(|_| Mutex::default()),
            changing: Mutex::default(),
            seen: Mutex::default(),
            maybe_dead: Mutex::default(),
            folders: Folders::default(),
            encrypted: Encrypted::default(),
            skipped_texts: Mutex::default(),
            scrubbing: Scrubbing::default(),
            shared_memory: Mutex::default(),
            listings: Mutex::default(),
            owners: Owners::default(),
            sink: Sink::default(),
        });
        let collector = Arc::downgrade(&client);
        let holder = Weak::clone(&collector);
        engine.start(Arc::new(move |id, go_on: &mut dyn FnMut() -> bool| {
            let ended = || Held::No { full: false, why: "the mount has ended".into() };
            holder.upgrade().map_or_else(ended, |client| client.hold(id, go_on))
        }))?;
        let weak = Weak::clone(&collector);
        engine.spawn("ringer-invalidate", move |engine| invalidation::run(engine, &weak))?;
        let replicator = Weak::clone(&collector);
        engine.spawn("ringer-collector", move |engine| {
            super::garbage_collector::run(engine, &collector);
        })?;
        engine
            .spawn("ringer-copies", move |engine| super::replication::run(engine, &replicator))?;
        Ok(Self { client })
    }

    /// What the user should hear when the mount begins: damage that was found in the local store,
    /// and changes that were given up.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        locked(&self.client.engine.notes).clone()
    }

    /// Ends without notice, as if the machine had lost its power: for tests.
    pub fn vanish(&self) {
        self.client.engine.vanish();
    }
}

impl Drop for RingerFs {
    fn drop(&mut self) {
        self.client.engine.end();
    }
}

impl FileSystem for RingerFs {
    fn root(&self) -> Ino {
        Ino(RnodeId::ROOT.0)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if is_of_folders(parent) {
            return self.client.find_in_folder(parent, name);
        }
        let parent = id(parent)?;
        if parent == RnodeId::ROOT && name == TOP_NAME {
            return Ok(self.client.enter_top());
        }
        if name == SNAPSHOTS_NAME && !parent.is_of_snapshot() {
            return self.client.enter_snapshots(parent);
        }
        loop {
            let found = self.client.find(parent, name)?;
            self.client.note_name(parent, name, found);
            match self.client.entry_in(parent, found) {
                // Removed since it was found: the name may mean something else by now.
                Err(Error::Stale(_)) if found != parent => {}
                done => return done,
            }
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        match id(ino) {
            Ok(id) => self.client.drop_references(id, count),
            Err(_) => self.client.forget_of_folders(ino, count),
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if is_of_folders(ino) {
            return self.client.attr_of_folders(ino);
        }
        self.client.get(id(ino)?).and_then(|rnode| self.client.attr(&rnode))
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.known(ino)?;
        let id = changeable(ino)?;
        let before = self.client.get(id)?;
        if *set == SetAttr::default() {
            return self.client.attr(&before);
        }
        let now = wall();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let change = Change {
            perm: set.perm,
            uid: self.client.chosen(OwnerKind::User, set.uid)?,
            gid: self.client.chosen(OwnerKind::Group, set.gid)?,
            size_bytes: set.size_bytes,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            ctime: set.ctime,
            // A mode that is set at the same time is meant as it is.
            kill_privileges: set.kill_privileges && set.perm.is_none() && !before.is_dir(),
        };
        if set.size_bytes.is_some() {
            if matches!(before.body, Body::File { .. }) {
                self.client.cipher(&before)?;
            }
            self.client.before_change(id)?;
        }
        let (_, seq) = self.client.apply(Op::SetAttr { id, change }, id)?;
        if let Some(size_bytes) = set.size_bytes {
            self.client.was_cut(&before, size_bytes, seq);
        }
        self.getattr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_of_folders(ino) {
            return self.client.read_link_of_folders(ino);
        }
        match self.client.get(id(ino)?)?.body {
            Body::Symlink { target } => Ok(target.0),
            _ => Err(Error::Invalid("not a symbolic link")),
        }
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
        let make = match kind {
            // Or the kind of file that its directory requires.
            FileKind::Regular => Make::File { block_bytes: self.client.engine.options.block_bytes },
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::Invalid("mknod makes no directory and no symbolic link"));
            }
            FileKind::BlockDevice | FileKind::CharDevice => Make::Special { kind, rdev },
            FileKind::Fifo | FileKind::Socket => Make::Special { kind, rdev: 0 },
        };
        self.client.make(caller, parent, name, perm, &make)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.client.make(caller, parent, name, perm, &Make::Directory {})
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let target = Bytes(target.to_vec());
        self.client.make(caller, parent, name, 0o777, &Make::Symlink { target })
    }

    fn link(&self, _: &Caller, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        let (id, parent) = (changeable(ino)?, changeable(new_parent)?);
        let name = self::new_name(parent, new_name)?;
        self.client.get(id)?;
        self.client.apply(Op::Link { id, parent, name }, id)?;
        self.client.has_changed(id);
        self.client.entry_in(parent, id)
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        if name == b"." || name == b".." {
            return Err(Error::IsADirectory);
        }
        let (parent, name) = (changeable(parent)?, self::name(name)?);
        let (gone, _) = self.client.apply(Op::Unlink { parent, name }, parent)?;
        gone.into_iter().for_each(|id| self.client.is_perhaps_dead(id));
        Ok(())
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::Invalid("'.' cannot be removed")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let (parent, name) = (changeable(parent)?, self::name(name)?);
        let (gone, _) = self.client.apply(Op::Rmdir { parent, name }, parent)?;
        gone.into_iter().for_each(|id| self.client.is_perhaps_dead(id));
        Ok(())
    }

    fn rename(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let dots = |name: &[u8]| name == b"." || name == b"..";
        if dots(name) || dots(new_name) {
            return Err(Error::Busy);
        }
        let (parent, name) = (changeable(parent)?, self::name(name)?);
        let new_parent = changeable(new_parent)?;
        let new_name = self::new_name(new_parent, new_name)?;
        let replaced = self.client.find(new_parent, new_name.bytes()).ok();
        let op = Op::Rename { parent, name, new_parent, new_name, flags: flags.bits() };
        let (moved, _) = self.client.apply(op, parent)?;
        if let Some(id) = moved {
            self.client.was_moved(id, new_parent);
        }
        replaced.into_iter().for_each(|id| self.client.is_perhaps_dead(id));
        Ok(())
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if is_of_folders(ino) {
            // A folder: links are not opened.
            return Ok(Opened { handle: Handle(0), keep_cache: false, direct_io: false });
        }
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        self.client.open(if changes { changeable(ino)? } else { id(ino)? }, flags)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        loop {
            let made = match self.mknod(caller, parent, name, FileKind::Regular, perm, 0) {
                Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                    match self.lookup(parent, name) {
                        // Removed meanwhile.
                        Err(Error::NotFound) => continue,
                        found => found?,
                    }
                }
                made => made?,
            };
            match self.open(caller, made.attr.ino, flags) {
                Ok(opened) => {
                    // Opening may have truncated it.
                    let attr = self.getattr(made.attr.ino)?;
                    return Ok((Entry { attr, ..made }, opened));
                }
                Err(e) => {
                    self.forget(made.attr.ino, 1);
                    return Err(e);
                }
            }
        }
    }

    fn release(&self, ino: Ino, handle: Handle) -> Result<()> {
        if is_of_folders(ino) {
            return Ok(());
        }
        let opened = locked(&self.client.handles).close_if(handle, |open| open.id.0 == ino.0);
        let OpenFile { id, flags, .. } = opened?;
        if flags.contains(OpenFlags::WRITE) {
            self.client.is_left(id);
        }
        self.client.drop_references(id, 1);
        Ok(())
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.client.check_locks(handle)?;
        self.client.read(self.known(ino)?, offset, buf)
    }

    fn write(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.client.check_locks(handle)?;
        let flags = locked(&self.client.handles).get(handle).map(|open| open.flags);
        let append = flags.is_some_and(|f| f.contains(OpenFlags::APPEND));
        self.known(ino)?;
        self.client.write(changeable(ino)?, (!append).then_some(offset), data)
    }

    fn write_cached(
        &self,
        _: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.client.check_locks(handle)?;
        self.known(ino)?;
        self.client.write(changeable(ino)?, Some(offset), data)
    }

    fn has_locks(&self) -> bool {
        true
    }

    fn lock(
        &self,
        ino: Ino,
        handle: Handle,
        lock: &FileLock,
        wait: Option<&Interrupt>,
    ) -> Result<()> {
        self.client.lock(id(ino)?, handle, lock, wait)
    }

    fn unlock(
        &self,
        ino: Ino,
        handle: Handle,
        style: LockStyle,
        owner: u64,
        first: u64,
        last: u64,
    ) {
        if let Ok(id) = id(ino) {
            self.client.unlock(id, handle, style, owner, (first, last));
        }
    }

    fn find_lock(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>> {
        self.client.find_lock(id(ino)?, lock)
    }

    fn fsync(&self, _: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        let id = id(ino)?;
        let rnode = self.client.get(id)?;
        self.client.engine.sync()?;
        self.client.is_left(id);
        if id == RnodeId::ROOT {
            self.client.tell_texts();
        }
        if matches!(rnode.body, Body::File { .. }) {
            self.client.wait_for_copies(id)
        } else {
            Ok(())
        }
    }

    fn sync(&self) -> Result<()> {
        self.client.engine.sync()?;
        self.client.tell_texts();
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_of_folders(ino) {
            return self.client.read_folder(ino, cursor, each);
        }
        self.client.read_directory(id(ino)?, cursor, &mut |entry, _| each(entry))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        if is_of_folders(ino) {
            self.client.read_folder(
                ino,
                cursor,
                &mut |dirent| match self.lookup(ino, dirent.name) {
                    Ok(entry) => {
                        let more = each(dirent, entry);
                        if !more || dirent.name == b"." || dirent.name == b".." {
                            self.forget(entry.attr.ino, 1);
                        }
                        more
                    }
                    // It no longer matches the query.
                    Err(Error::NotFound) => true,
                    Err(e) => {
                        failed = Some(e);
                        false
                    }
                },
            )?;
            return failed.map_or(Ok(()), Err);
        }
        self.client.read_directory(id(ino)?, cursor, &mut |dirent, id| {
            match self.client.entry(id) {
                Ok(entry) => {
                    let more = each(dirent, entry);
                    if !more || dirent.name == b"." || dirent.name == b".." {
                        self.client.drop_references(id, 1);
                    }
                    more
                }
                // Removed since it was listed.
                Err(Error::Stale(_)) => true,
                Err(e) => {
                    failed = Some(e);
                    false
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn statfs(&self) -> Result<StatFs> {
        // Writes are stored here first: so the space here counts.
        let space = self.client.engine.blocks.space().map_err(|e| io_error(&e))?;
        Ok(StatFs {
            block_bytes: u32::try_from(space.f_frsize).unwrap_or(4096),
            blocks: space.f_blocks,
            blocks_free: space.f_bfree,
            blocks_available: space.f_bavail,
            inodes: space.f_files,
            inodes_free: space.f_ffree,
            name_max_bytes: weft_vfs::NAME_MAX_BYTES as u32,
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if is_of_folders(ino) {
            return self.client.told_of_folder(ino, name);
        }
        if let Some(value) = self.told(ino, name) {
            return value;
        }
        let mut rnode = self.client.get(id(ino)?)?;
        rnode.xattrs.remove(&Bytes(name.to_vec())).map(|v| v.0).ok_or(Error::NoAttribute)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if is_of_folders(ino) {
            return Ok(Vec::new());
        }
        self.client.list_attributes(id(ino)?)
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<()> {
        changeable(ino)?;
        if let Some(done) = self.tell(ino, name, value) {
            return done;
        }
        self.client.set_attribute(id(ino)?, name, value, how)
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.client.remove_attribute(changeable(ino)?, name)
    }

    fn is_for_owner(&self, user: u32, ino: Ino, name: &[u8], value: Option<&[u8]>) -> bool {
        !is_of_folders(ino) && self.is_of_owner(user, ino, name, value)
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.client.fallocate(changeable(ino)?, mode, offset, len_bytes)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.client.seek(id(ino)?, from)
    }

    fn set_invalidate(&self, sink: Arc<dyn Invalidate>) {
        self.client.sink.set(sink);
    }

    fn unmount(&self) -> Result<()> {
        self.client.leave()
    }
}
