//! Attributes of inodes, and of the volume.

use crate::Result;
use crate::attributes::ATTRIBUTE_BLOCKS;
use crate::format::Format;
use crate::front::{Atime, UnixFs};
use crate::needs::Need;
use crate::state::{LAZY_BATCH, State};
use std::sync::atomic::Ordering;
use weft_patch::{Op, about_to_wait};
use weft_vfs::{
    Attr, FileFlags, FileKind, Ino, SetAttr, SetTime, StatFs, Time, keeps_access_times,
};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;
const DAY_SECS: i64 = 24 * 60 * 60;
/// Access times kept in memory; some are written when there are more.
const MAX_LAZY: usize = 4096;

impl<F: Format> State<F> {
    /// Changes everything but the length.
    fn set_fields(&mut self, op: &mut Op<'_>, ino: Ino, set: &SetAttr) -> Result<()> {
        if let Some(perm) = set.perm {
            self.chmod_acl(op, ino, perm)?;
        }
        let (format, node) = self.with_node(ino)?;
        let now = format.storable(node, Time::now());
        let pick = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => format.storable(node, time),
        };
        let (atime, mtime) = (set.atime.map(pick), set.mtime.map(pick));
        let ctime = set.ctime.map_or(now, |time| format.storable(node, time));
        // Of a directory, setgid is no privilege: what is made in it gets its group.
        let kill = set.kill_privileges && node.kind != FileKind::Directory;
        let inode = &mut node.inode;
        if kill {
            inode.mode &= !SETUID;
            if inode.mode & GROUP_EXEC != 0 {
                inode.mode &= !SETGID;
            }
        }
        if let Some(perm) = set.perm {
            inode.mode = (inode.mode & !0o7777) | (perm & 0o7777);
        }
        if let Some(uid) = set.uid {
            inode.uid = uid;
        }
        if let Some(gid) = set.gid {
            inode.gid = gid;
        }
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = ctime;
        self.write_node(op, ino, &[])?;
        Ok(())
    }
}

impl<F: Format> UnixFs<F> {
    pub(crate) fn do_getattr(&self, ino: Ino) -> Result<Attr> {
        let mut st = self.lock();
        if st.nodes.touch(ino) {
            return Ok(st.node(ino)?.attr(self.block_bytes));
        }
        drop(st);
        self.look(|st, op| Ok(st.load(op, ino)?.attr(self.block_bytes)))
    }

    pub(crate) fn do_setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if *set != SetAttr::default() {
            self.look(|st, op| {
                st.load(op, ino)?;
                st.check_settable(ino, set)
            })?;
        }
        if let Some(size) = set.size_bytes {
            self.do_truncate(ino, size)?;
        }
        // An ACL changes with the mode.
        let blocks = 2 + if set.perm.is_some() { ATTRIBUTE_BLOCKS } else { 0 };
        let attr = self.change(blocks, &[Need::Inode(ino)], |st, op| {
            st.load(op, ino)?;
            if *set != SetAttr::default() {
                // A truncation has set both times; explicit ones win over it.
                let mut set = *set;
                if set.size_bytes.is_some() && set.ctime.is_none() && set.mtime.is_none() {
                    set.ctime = Some(st.node(ino)?.inode.ctime);
                }
                st.set_fields(op, ino, &set)?;
            }
            Ok(st.node(ino)?.attr(self.block_bytes))
        })?;
        self.sync_if_flagged(ino)?;
        Ok(attr)
    }

    /// Notes that a file has been read, if its access time is kept.
    pub(crate) fn note_access(&self, st: &mut State<F>, ino: Ino) {
        if self.atime == Atime::Never || self.is_read_only() || keeps_access_times() {
            return;
        }
        let Ok((format, node)) = st.with_node(ino) else { return };
        if node.inode.flags.contains(FileFlags::NOATIME) {
            return;
        }
        let old = node.inode.atime;
        if old > node.inode.mtime && old > node.inode.ctime {
            let now = Time::now();
            if now.secs - old.secs < DAY_SECS {
                return;
            }
        }
        node.inode.atime = format.storable(node, Time::now());
        node.lazy = true;
        st.lazy.insert(ino);
        if st.lazy.len() > MAX_LAZY {
            self.lazy_crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Writes some access times if there are many: in a mount that is only read, no other call
    /// does.
    pub(crate) fn relieve_lazy(&self) -> Result<()> {
        if !self.lazy_crowded.load(Ordering::Relaxed) {
            return Ok(());
        }
        about_to_wait()?;
        if !self.lazy_crowded.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.change_only(LAZY_BATCH as u32, &[Need::Lazy], State::write_lazy)
    }

    pub(crate) fn do_statfs(&self) -> StatFs {
        let st = self.lock();
        let (inodes_going, blocks_going) = st.being_deleted();
        let (limits, space) = (st.format.limits(), st.format.space());
        let free = (space.blocks_free + blocks_going).min(space.blocks);
        StatFs {
            block_bytes: limits.block_bytes,
            blocks: space.blocks,
            blocks_free: free,
            blocks_available: free.saturating_sub(space.blocks_reserved),
            inodes: space.inodes,
            inodes_free: space.inodes_free + inodes_going,
            name_max_bytes: limits.name_max_bytes,
        }
    }
}
