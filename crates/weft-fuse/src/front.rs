//! Conversion of requests to calls of a [`FileSystem`], and back.
//!
//! The front end is stateless unless the file system needs to know of open files: neither files nor
//! directories are opened (the kernel learns that from the first `open` and never sends it again),
//! so that a file costs no round trip to open and none to close. An inode stays alive by the
//! references that lookups took; open files hold theirs in the kernel. Directories are not opened
//! in either case.
//!
//! With the writeback cache the kernel keeps size, mtime and ctime of regular files, determines the
//! offset of appends, and sends times with `setattr`.

mod attribute_replies;
mod commands;
mod content;
mod holes;
mod locks;
mod open_file_locks;
mod overtaken;
mod privileges;
mod ranges;
mod signals;
mod waits;
mod xattrs;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use weft_vfs::{
    Caller, DirCursor, Entry, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Opened,
    RenameFlags, SetAttr, SetTime, Time, keeping_access_times,
};

use self::attribute_replies::AttributeReplies;
use self::content::keeps_access_time;
use self::open_file_locks::OpenFileLocks;
pub(crate) use self::waits::Waits;
use crate::handshake::Agreed;
use crate::passthrough::{Mixed, Passthrough};
use crate::wire::{
    Body, FSYNC_DATA_ONLY, Header, Lifetimes, Listing, Malformed, O_APPEND, O_DIRECT, O_EXCL,
    O_NOATIME, O_TRUNC, Opcode, ROOT_ID, Reply, errno, put_listed, put_listed_plus, put_name_plus,
    valid,
};

/// The next step after a request was processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Send the reply.
    Answer,
    /// The request would wait, in a call of [`FileSystem::without_waiting`], and has changed
    /// nothing; the reply says so to a caller who takes that for an answer.
    WouldWait,
    /// The kernel expects no reply.
    Silent,
    /// The kernel ends the connection: send the reply and stop.
    Goodbye,
}

/// The reason for an error reply.
enum Refusal {
    FileSystem(Error),
    /// An errno of the protocol.
    Protocol(i32),
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Self {
        Self::FileSystem(e)
    }
}

impl From<Malformed> for Refusal {
    fn from(Malformed: Malformed) -> Self {
        Self::Protocol(errno::EINVAL)
    }
}

type Answered = Result<(), Refusal>;

/// Returns true for requests to which "would block" is an answer: the lock is taken.
fn is_lock(opcode: Option<Opcode>) -> bool {
    matches!(opcode, Some(Opcode::SetLk | Opcode::SetLkW))
}

/// Converts inode numbers: the kernel calls the root 1; if the file system gives it another number,
/// the two are swapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nodes {
    root: Ino,
}

impl Nodes {
    pub(crate) fn node(self, ino: Ino) -> u64 {
        match ino {
            _ if ino == self.root => ROOT_ID,
            Ino(ROOT_ID) => self.root.0,
            Ino(other) => other,
        }
    }

    fn ino(self, node: u64) -> Ino {
        // Swapping is its own inverse.
        Ino(self.node(Ino(node)))
    }
}

/// One file system as the kernel sees it.
pub(crate) struct Front {
    pub(crate) fs: Arc<dyn FileSystem>,
    nodes: Nodes,
    lifetimes: Lifetimes,
    xattrs: bool,
    /// Files are opened and closed.
    stateful: bool,
    /// The file system determines the offset of appends, as the kernel's value of a file's length
    /// may be out of date.
    appends: bool,
    /// An fsync of the root is one of the whole file system.
    sync_by_root: bool,
    /// The passthrough state.
    passthrough: Option<Passthrough>,
    agreed: Agreed,
    /// Notifies the kernel of attributes that changed as a side effect of a request.
    notifier: OnceLock<Notifier>,
    /// The file system has locks of its own.
    pub(crate) locks: bool,
    open_file_locks: OpenFileLocks,
    pub(crate) waits: Arc<Waits>,
    pub(crate) attribute_replies: AttributeReplies,
    /// Requests by opcode.
    counts: [AtomicU64; COUNTED_OPCODES],
}

/// Opcodes below this are counted.
const COUNTED_OPCODES: usize = 64;

impl Front {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, lifetimes: Lifetimes, xattrs: bool) -> Self {
        let nodes = Nodes { root: fs.root() };
        let stateful = fs.is_stateful();
        let locks = stateful && fs.has_locks();
        Self {
            fs,
            nodes,
            stateful,
            appends: false,
            sync_by_root: true,
            passthrough: None,
            agreed: Agreed::default(),
            notifier: OnceLock::new(),
            locks,
            open_file_locks: OpenFileLocks::default(),
            waits: Arc::default(),
            attribute_replies: AttributeReplies::default(),
            lifetimes,
            xattrs,
            counts: [const { AtomicU64::new(0) }; COUNTED_OPCODES],
        }
    }

    /// Sets that the file system determines the offset of appends, as other clients change files,
    /// too.
    pub(crate) fn placing_appends(self) -> Self {
        Self { appends: self.stateful, ..self }
    }

    /// Sets whether an fsync of the root is one of the whole file system.
    pub(crate) fn syncing_by_root(self, sync_by_root: bool) -> Self {
        Self { sync_by_root, ..self }
    }

    /// Sets the passthrough state.
    pub(crate) fn with_passthrough(self, passthrough: Option<Passthrough>) -> Self {
        Self { passthrough: passthrough.filter(|_| self.stateful), ..self }
    }

    /// Sets the features that the kernel has agreed to.
    pub(crate) fn agreed(self, agreed: Agreed) -> Self {
        Self { agreed, ..self }
    }

    /// Sets the notifier to the kernel.
    pub(crate) fn notify_by(&self, notifier: Notifier) {
        // Only the first call has an effect, and there is only one.
        let _ = self.notifier.set(notifier);
    }

    /// Returns the number of requests of each kind, without kinds that have not occurred.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let counts = self.counts.iter().enumerate().map(|(number, count)| {
            // Below 64.
            let opcode = Opcode::from_number(number as u32);
            let name = opcode.map_or_else(|| format!("Unknown{number}"), |o| format!("{o:?}"));
            (name, count.load(Ordering::Relaxed))
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn nodes(&self) -> Nodes {
        self.nodes
    }

    fn node(&self, ino: Ino) -> u64 {
        self.nodes.node(ino)
    }

    fn ino(&self, node: u64) -> Ino {
        self.nodes.ino(node)
    }

    /// Answers one request.
    pub(crate) fn answer(&self, request: &[u8], reply: &mut Reply) -> Outcome {
        let Some((header, body)) = Header::split(request) else {
            tracing::error!(len = request.len(), "the kernel sent a request without a header");
            return Outcome::Silent;
        };
        reply.begin(header.unique);
        self.count(&header, 1);
        let opcode = Opcode::from_number(header.opcode);
        match opcode {
            Some(Opcode::Forget | Opcode::BatchForget) => {
                let _ = self.forget(&header, body);
                return Outcome::Silent;
            }
            Some(Opcode::Destroy) => return Outcome::Goodbye,
            Some(Opcode::Interrupt) => {
                let _ = self.interrupt(body);
                return Outcome::Silent;
            }
            _ => {}
        }
        let answered = match opcode {
            Some(opcode) => self
                .call(opcode, &header, body, reply)
                .inspect(|()| self.announce_overtaken(opcode, &header, body)),
            None => Err(Refusal::Protocol(errno::ENOSYS)),
        };
        match answered {
            Ok(()) => {}
            Err(Refusal::Protocol(errno)) => reply.fail(errno),
            Err(Refusal::FileSystem(Error::WouldBlock)) if !is_lock(opcode) => {
                self.count(&header, -1);
                reply.fail(errno::EAGAIN);
                return Outcome::WouldWait;
            }
            // A program that is interrupted may try again, which would keep the mount from its end.
            Err(Refusal::FileSystem(Error::Interrupted)) if self.waits.is_ending() => {
                reply.fail(errno::EIO);
            }
            Err(Refusal::FileSystem(e)) => {
                // A file system may say with more words that something is in use.
                let in_use = e.errno() == errno::EBUSY;
                if matches!(e, Error::Corrupt(_) | Error::Io { .. }) && !in_use {
                    tracing::error!(?opcode, node = header.node, "{e}");
                }
                reply.fail(e.errno());
            }
        }
        Outcome::Answer
    }

    fn count(&self, header: &Header, by: i64) {
        if let Some(count) = self.counts.get(header.opcode as usize) {
            count.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
        }
    }

    fn call(&self, opcode: Opcode, head: &Header, body: Body<'_>, reply: &mut Reply) -> Answered {
        let ino = self.ino(head.node);
        match opcode {
            Opcode::Lookup => self.lookup(ino, body, reply),
            Opcode::GetAttr => {
                let lifetimes = self.lifetimes_from_now(ino);
                reply.attr(&self.fs.getattr(ino)?, lifetimes);
                Ok(())
            }
            Opcode::StatX => {
                let lifetimes = self.lifetimes_from_now(ino);
                reply.statx(&self.fs.getattr(ino)?, lifetimes);
                Ok(())
            }
            Opcode::SetAttr => self.setattr(head, ino, body, reply),
            Opcode::ReadLink => {
                reply.put(&self.fs.readlink(ino)?);
                Ok(())
            }
            Opcode::Symlink => self.symlink(head, ino, body, reply),
            Opcode::MkNod => self.mknod(head, ino, body, reply),
            Opcode::MkDir => self.mkdir(head, ino, body, reply),
            Opcode::Unlink => {
                self.named(body, |name| self.fs.unlink(&Self::caller(head), ino, name))
            }
            Opcode::RmDir => self.named(body, |name| self.fs.rmdir(&Self::caller(head), ino, name)),
            Opcode::Rename => self.rename(head, ino, body, false),
            Opcode::Rename2 => self.rename(head, ino, body, true),
            Opcode::Link => self.link(head, ino, body, reply),
            Opcode::Read => self.read(ino, body, reply),
            Opcode::Write => self.write(head, ino, body, reply),
            Opcode::StatFs => {
                reply.statfs(&self.fs.statfs()?);
                Ok(())
            }
            Opcode::FSync | Opcode::FSyncDir => self.fsync(opcode, head, ino, body),
            Opcode::SyncFs => Ok(self.fs.sync()?),
            Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr
                if !self.xattrs =>
            {
                Err(Refusal::Protocol(errno::ENOSYS))
            }
            Opcode::SetXattr => self.setxattr(head, ino, body),
            Opcode::GetXattr => self.getxattr(head, ino, body, reply),
            Opcode::ListXattr => self.listxattr(head, ino, body, reply),
            Opcode::RemoveXattr => self.removexattr(head, ino, body),
            Opcode::ReadDir => self.readdir(ino, body, reply, false),
            Opcode::ReadDirPlus => self.readdir(ino, body, reply, true),
            Opcode::FAllocate => self.fallocate(head, ino, body),
            Opcode::LSeek => self.lseek(ino, body, reply),
            Opcode::CopyFileRange => self.copy_file_range(head, ino, body, reply),
            Opcode::Ioctl => self.ioctl(head, ino, body, reply),
            Opcode::Open if self.stateful => self.open(head, ino, body, reply),
            Opcode::Create if self.stateful => self.create(head, ino, body, reply),
            Opcode::TmpFile => self.create_unnamed(head, ino, body, reply),
            Opcode::Flush if self.stateful => self.flush(ino, body),
            Opcode::Release if self.stateful => self.release(ino, body),
            Opcode::SetLk | Opcode::SetLkW if self.locks => self.set_lock(opcode, ino, body),
            Opcode::GetLk if self.locks => self.get_lock(ino, body, reply),
            Opcode::Release | Opcode::ReleaseDir => Ok(()),
            // After one reply "unknown" the kernel never sends these again: opening and closing
            // cost nothing from then on, creating is `mknod`.
            Opcode::Open
            | Opcode::OpenDir
            | Opcode::Create
            | Opcode::Flush
            | Opcode::GetLk
            | Opcode::SetLk
            | Opcode::SetLkW => Err(Refusal::Protocol(errno::ENOSYS)),
            Opcode::Interrupt | Opcode::Forget | Opcode::BatchForget | Opcode::Destroy => Ok(()),
        }
    }

    fn named(
        &self,
        mut body: Body<'_>,
        call: impl FnOnce(&[u8]) -> weft_vfs::Result<()>,
    ) -> Answered {
        Ok(call(body.name()?)?)
    }

    fn put_entry(&self, entry: &Entry, reply: &mut Reply) -> Answered {
        let lifetimes = self.lifetimes_of(entry.attr.ino);
        reply.entry(self.node(entry.attr.ino), entry, lifetimes);
        Ok(())
    }

    /// Returns the lifetimes for attributes that are read after this call.
    fn lifetimes_from_now(&self, ino: Ino) -> Lifetimes {
        let max = if self.stateful { self.fs.attr_lifetime(ino) } else { None };
        let attr = max.map_or(self.lifetimes.attr, |max| max.min(self.lifetimes.attr));
        Lifetimes { attr, ..self.lifetimes }
    }

    /// Returns the lifetimes for attributes that have been read already: those with a limit may be
    /// too old.
    fn lifetimes_of(&self, ino: Ino) -> Lifetimes {
        if !self.stateful {
            return self.lifetimes;
        }
        let entry = self.fs.name_lifetime(ino);
        let entry = entry.map_or(self.lifetimes.entry, |max| max.min(self.lifetimes.entry));
        let attr = self.fs.attr_lifetime(ino).map_or(self.lifetimes.attr, |_| Duration::ZERO);
        Lifetimes { entry, attr, ..self.lifetimes }
    }

    fn lookup(&self, parent: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        match self.fs.lookup(parent, body.name()?) {
            Ok(entry) => self.put_entry(&entry, reply),
            Err(Error::NotFound) => {
                reply.no_entry(self.lifetimes.absent);
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    fn forget(&self, head: &Header, mut body: Body<'_>) -> Result<(), Malformed> {
        if head.opcode == Opcode::Forget as u32 {
            self.fs.forget(self.ino(head.node), body.u64()?);
            return Ok(());
        }
        let count = body.u32()?;
        body.skip(4)?;
        let mut references = Vec::new();
        for _ in 0..count {
            references.push((self.ino(body.u64()?), body.u64()?));
        }
        self.fs.forget_many(&references);
        Ok(())
    }

    fn setattr(&self, head: &Header, ino: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let bits = body.u32()?;
        body.skip(4)?;
        let handle = Handle(body.u64()?);
        let size = body.u64()?;
        body.skip(8)?;
        let secs = [body.i64()?, body.i64()?, body.i64()?];
        let nanos = [body.u32()?, body.u32()?, body.u32()?];
        let mode = body.u32()?;
        body.skip(4)?;
        let (uid, gid) = (body.u32()?, body.u32()?);
        let has = |bit| bits & bit != 0;
        let at = |which: usize| Time { secs: secs[which], nanos: nanos[which] };
        let time = |which: usize, bit, now| {
            has(bit).then(|| if has(now) { SetTime::Now } else { SetTime::At(at(which)) })
        };
        let set = SetAttr {
            perm: has(valid::MODE).then_some((mode & 0o7777) as u16),
            uid: has(valid::UID).then_some(uid),
            gid: has(valid::GID).then_some(gid),
            size_bytes: has(valid::SIZE).then_some(size),
            atime: time(0, valid::ATIME, valid::ATIME_NOW),
            mtime: time(1, valid::MTIME, valid::MTIME_NOW),
            ctime: has(valid::CTIME).then(|| at(2)),
            // Nothing at all comes from `chown(2)` with -1 for both, which clears setuid, too.
            kill_privileges: has(valid::KILL_SUIDGID | valid::UID | valid::GID)
                || bits & !valid::FH == 0,
        };
        if set.kill_privileges || set.size_bytes.is_some() {
            self.drop_capabilities(head, ino)?;
        }
        let handle = if has(valid::FH) { handle } else { Handle::NONE };
        let attr = self.fs.setattr(&Self::caller_by(head, handle), ino, &set)?;
        reply.attr(&attr, self.lifetimes_of(ino));
        Ok(())
    }

    fn caller(head: &Header) -> Caller {
        Caller { uid: head.uid, gid: head.gid, pid: head.pid, ..Caller::ROOT }
    }

    /// Returns the caller of a request by an open file.
    fn caller_by(head: &Header, handle: Handle) -> Caller {
        Self::caller(head).by(handle)
    }

    /// Returns the caller of a request that creates a file. The kernel sends the umask in any case;
    /// it has applied it already unless it has agreed to leave that to this process.
    fn maker(&self, head: &Header, umask: u32) -> Caller {
        let umask = if self.agreed.umask() { (umask & 0o777) as u16 } else { 0 };
        Caller { umask, ..Self::caller(head) }
    }

    /// Tells the kernel to drop the cached attributes of an inode.
    fn announce_attributes(&self, node: u64) {
        if let Some(notifier) = self.notifier.get()
            && let Err(e) = notifier.inval_inode(INodeNo(node), -1, 0)
        {
            tracing::debug!("the kernel did not take a notice: {e}");
        }
    }

    fn mknod(&self, head: &Header, parent: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let (mode, rdev, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        let name = body.name()?;
        let kind = FileKind::from_mode(mode).unwrap_or(FileKind::Regular);
        let perm = (mode & 0o7777) as u16;
        let entry = self.fs.mknod(&self.maker(head, umask), parent, name, kind, perm, rdev)?;
        self.put_entry(&entry, reply)
    }

    fn mkdir(&self, head: &Header, parent: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let (mode, umask) = (body.u32()?, body.u32()?);
        let perm = (mode & 0o7777) as u16;
        let entry = self.fs.mkdir(&self.maker(head, umask), parent, body.name()?, perm)?;
        self.put_entry(&entry, reply)
    }

    fn symlink(
        &self,
        head: &Header,
        parent: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let (name, target) = (body.name()?, body.name()?);
        let entry = self.fs.symlink(&Self::caller(head), parent, name, target)?;
        self.put_entry(&entry, reply)
    }

    fn link(&self, head: &Header, parent: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let ino = self.ino(body.u64()?);
        let entry = self.fs.link(&Self::caller(head), ino, parent, body.name()?)?;
        self.put_entry(&entry, reply)
    }

    fn rename(&self, head: &Header, parent: Ino, mut body: Body<'_>, with_flags: bool) -> Answered {
        let new_parent = self.ino(body.u64()?);
        let bits = if with_flags {
            let bits = body.u32()?;
            body.skip(4)?;
            bits
        } else {
            0
        };
        let flags = RenameFlags::from_bits(bits)
            .filter(|flags| !flags.contains(RenameFlags::WHITEOUT) || self.fs.has_whiteouts())
            .ok_or(Refusal::Protocol(errno::EINVAL))?;
        let (name, new_name) = (body.name()?, body.name()?);
        Ok(self.fs.rename(&Self::caller(head), parent, name, new_parent, new_name, flags)?)
    }

    /// The kernel determines the offset of appends unless its file length may be out of date, and
    /// synchronous writes are made durable here: so other flags than reading and writing are not
    /// passed on.
    fn open_flags(&self, bits: u32) -> OpenFlags {
        let mut flags = match bits & 3 {
            0 => OpenFlags::READ,
            1 => OpenFlags::WRITE,
            _ => OpenFlags::READ | OpenFlags::WRITE,
        };
        flags.set(OpenFlags::APPEND, self.appends && bits & O_APPEND != 0);
        flags.set(OpenFlags::DIRECT, bits & O_DIRECT != 0);
        flags.set(OpenFlags::NOATIME, bits & O_NOATIME != 0);
        flags
    }

    fn open(&self, head: &Header, ino: Ino, mut body: Body<'_>, reply: &mut Reply) -> Answered {
        let flags = self.open_flags(body.u32()?);
        let opened = self.fs.open(&Self::caller(head), ino, flags)?;
        let passthrough = self.way(ino, &opened)?;
        reply.opened(&opened, self.may_lose(flags), passthrough);
        Ok(())
    }

    /// Decides on passthrough for an opened file; a file that is incompatible is closed again.
    fn way(&self, ino: Ino, opened: &Opened) -> Result<Option<u32>, Refusal> {
        let Some(passthrough) = &self.passthrough else { return Ok(None) };
        let backing = || self.fs.backing(ino, opened.handle);
        passthrough.opened(self.node(ino), opened, backing).map_err(|Mixed| {
            let _ = self.fs.release(ino, opened.handle);
            Refusal::Protocol(errno::EBUSY)
        })
    }

    fn release_handle(&self, ino: Ino, handle: Handle) -> Answered {
        if let Some(passthrough) = &self.passthrough {
            passthrough.released(handle.0);
        }
        Ok(self.fs.release(ino, handle)?)
    }

    fn create(
        &self,
        head: &Header,
        parent: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let (bits, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        let mut flags = self.open_flags(bits);
        flags.set(OpenFlags::EXCLUSIVE, bits & O_EXCL != 0);
        flags.set(OpenFlags::TRUNCATE, bits & O_TRUNC != 0);
        let perm = (mode & 0o7777) as u16;
        let (entry, opened) =
            self.fs.create(&self.maker(head, umask), parent, body.name()?, perm, flags)?;
        let passthrough = self.way(entry.attr.ino, &opened).inspect_err(|_| {
            self.fs.forget(entry.attr.ino, 1);
        })?;
        self.put_entry(&entry, reply)?;
        reply.opened(&opened, self.may_lose(flags), passthrough);
        Ok(())
    }

    /// Creates a file without a name, which the kernel takes for an open one.
    fn create_unnamed(
        &self,
        head: &Header,
        parent: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let (bits, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
        let perm = (mode & 0o7777) as u16;
        let entry = self.fs.create_unnamed(&self.maker(head, umask), parent, perm)?;
        let mut opened = Opened { handle: Handle::NONE, keep_cache: true, direct_io: false };
        let flags = self.open_flags(bits);
        let mut passthrough = None;
        if self.stateful {
            let ino = entry.attr.ino;
            let open = || -> Result<_, Refusal> {
                let opened = self.fs.open(&Self::caller(head), ino, flags)?;
                Ok((opened, self.way(ino, &opened)?))
            };
            (opened, passthrough) = open().inspect_err(|_| self.fs.forget(ino, 1))?;
        }
        self.put_entry(&entry, reply)?;
        reply.opened(&opened, self.stateful && self.may_lose(flags), passthrough);
        Ok(())
    }

    /// Returns true if closing such a file may return an error or release locks.
    fn may_lose(&self, flags: OpenFlags) -> bool {
        self.locks || flags.contains(OpenFlags::WRITE)
    }

    /// Undoes what no other request will undo, as the kernel did not get this reply, or accept it: the
    /// caller was killed or interrupted meanwhile. An open file is closed, and references are given up.
    pub(crate) fn take_back(&self, request: &[u8], answer: &Reply) {
        let Some((header, body)) = Header::split(request) else { return };
        let opcode = Opcode::from_number(header.opcode);
        if self.locks && matches!(opcode, Some(Opcode::SetLk | Opcode::SetLkW)) {
            return self.take_lock_back(self.ino(header.node), body);
        }
        if let Some(opcode) = opcode {
            answer.for_each_reference(opcode, |node| self.fs.forget(self.ino(node), 1));
        }
        let is_new = matches!(opcode, Some(Opcode::Create | Opcode::TmpFile));
        if !(is_new || opcode == Some(Opcode::Open) && self.stateful) {
            return;
        }
        let (node, handle) = match (is_new, answer.opened_node()) {
            (true, Some((node, handle))) => (node, handle),
            (_, Some((_, handle))) => (header.node, handle),
            // The reply was an error.
            (_, None) => return,
        };
        if self.stateful {
            let _ = self.release_handle(self.ino(node), Handle(handle));
        }
        if is_new {
            self.fs.forget(self.ino(node), 1);
        }
    }

    fn fsync(&self, opcode: Opcode, head: &Header, ino: Ino, mut body: Body<'_>) -> Answered {
        let handle = Handle(body.u64()?);
        let data_only = body.u32()? & FSYNC_DATA_ONLY != 0;
        match opcode {
            Opcode::FSyncDir if self.sync_by_root && ino == self.fs.root() => self.fs.sync()?,
            Opcode::FSyncDir => self.fs.fsync_dir(&Self::caller(head), ino)?,
            _ => self.fs.fsync(&Self::caller_by(head, handle), ino, data_only)?,
        }
        Ok(())
    }

    fn readdir(&self, ino: Ino, mut body: Body<'_>, reply: &mut Reply, plus: bool) -> Answered {
        body.skip(8)?;
        let cursor = DirCursor(body.u64()?);
        let listing = Listing { room_bytes: body.u32()? as usize };
        let quiet = keeps_access_time(&mut body)?;
        keeping_access_times(quiet, || self.list(ino, cursor, listing, reply, plus))
    }

    fn list(
        &self,
        ino: Ino,
        cursor: DirCursor,
        listing: Listing,
        reply: &mut Reply,
        plus: bool,
    ) -> Answered {
        if !plus {
            return Ok(self.fs.readdir(ino, cursor, &mut |d| put_listed(reply, listing, &d))?);
        }
        let listed = self.fs.readdir_plus(ino, cursor, &mut |d, entry| {
            let dots = d.name == b"." || d.name == b"..";
            let node = if dots { 0 } else { self.node(d.ino) };
            put_listed_plus(reply, listing, &d, node, &entry, self.lifetimes_of(entry.attr.ino))
        });
        match listed {
            Err(Error::WouldBlock) if reply.body_bytes() == 0 => Err(Error::WouldBlock.into()),
            // The kernel gets the references to the entries before the error, and requests the rest
            // next.
            Err(_) if reply.body_bytes() > 0 => Ok(()),
            // A file whose look-up fails must not hide the names beside it: they are listed without
            // attributes, and the kernel looks a name up when a program needs it.
            Err(_) => {
                Ok(self.fs.readdir(ino, cursor, &mut |d| put_name_plus(reply, listing, &d))?)
            }
            Ok(()) => Ok(()),
        }
    }
}
