//! Attributes of inodes, and of the volume.

use super::life::CUT_META_BLOCKS;
use super::xattr::XATTR_BLOCKS;
use super::{Atime, Ext2, State, plain};
use crate::Result;
use std::sync::atomic::Ordering;
use weft_patch::Op;
use weft_vfs::{Attr, Error as FsError, FileKind, Ino, SetAttr, SetTime, StatFs, Time};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;
const DAY_SECS: i64 = 24 * 60 * 60;
/// Access times kept in memory, and how many are written when there are more.
const MAX_LAZY: usize = 4096;
const LAZY_BATCH: u32 = 32;

impl State {
    /// Changes everything but the length.
    fn set_fields(&mut self, op: &mut Op<'_>, ino: u32, set: &SetAttr) -> Result<()> {
        if let Some(perm) = set.perm {
            self.chmod_acl(op, ino, perm)?;
        }
        let node = self.node(ino)?;
        let inode = &mut node.inode;
        if set.kill_privileges {
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
        let now = inode.storable(Time::now());
        let pick = |inode: &crate::layout::Inode, time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => inode.storable(time),
        };
        if let Some(time) = set.atime {
            inode.atime = pick(inode, time);
        }
        if let Some(time) = set.mtime {
            inode.mtime = pick(inode, time);
        }
        inode.ctime = set.ctime.map_or(now, |time| inode.storable(time));
        self.write_node(op, ino, &[])?;
        Ok(())
    }
}

impl Ext2 {
    pub(super) fn do_getattr(&self, ino: Ino) -> Result<Attr> {
        let number = plain(ino)?;
        if let Some(node) = self.lock().nodes.get(&number) {
            return Ok(node.attr(self.block_bytes));
        }
        self.look(|st, op| Ok(st.load(op, number)?.attr(self.block_bytes)))
    }

    pub(super) fn do_setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let ino = plain(ino)?;
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
        let blocks = 2 + if set.perm.is_some() { XATTR_BLOCKS } else { 0 };
        let attr = self.change(blocks, |st, op| {
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

    pub(super) fn do_truncate(&self, ino: u32, size: u64) -> Result<()> {
        loop {
            let done = self.change(CUT_META_BLOCKS, |st, op| {
                match st.load(op, ino)?.kind {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(FsError::IsADirectory.into()),
                    _ => return Err(FsError::Invalid("not a regular file").into()),
                }
                st.check_mutable(ino, false)?;
                st.truncate_step(op, ino, size)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Notes that a file has been read, if its access time is kept.
    pub(super) fn note_access(&self, st: &mut State, ino: u32) {
        if self.atime == Atime::Never || self.is_read_only() {
            return;
        }
        let Ok(node) = st.node(ino) else { return };
        let inode = &mut node.inode;
        if inode.flags.contains(crate::layout::InodeFlags::NOATIME) {
            return;
        }
        let old = inode.atime;
        if old > inode.mtime && old > inode.ctime {
            let now = Time::now();
            if now.secs - old.secs < DAY_SECS {
                return;
            }
        }
        inode.atime = inode.storable(Time::now());
        node.lazy = true;
        st.lazy.insert(ino);
        if st.lazy.len() > MAX_LAZY {
            self.lazy_crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Writes some access times if there are many: where only reading happens nothing else does.
    pub(super) fn relieve_lazy(&self) -> Result<()> {
        if !self.lazy_crowded.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.change_inner(LAZY_BATCH, |st, op| st.write_lazy(op, LAZY_BATCH as usize))
    }

    pub(super) fn do_statfs(&self) -> StatFs {
        let st = self.lock();
        let geometry = &st.vol.geometry;
        // As the kernel counts: what metadata takes is not the volume's.
        let per_group = 2 + u64::from(geometry.inode_table_blocks());
        let overhead: u64 = u64::from(geometry.first_data_block)
            + (0..geometry.groups)
                .map(|group| geometry.group_overhead_blocks(group) + per_group)
                .sum::<u64>();
        let (inodes_going, blocks_going) = st.being_deleted();
        let free = (st.vol.free_blocks + blocks_going).min(geometry.blocks);
        StatFs {
            block_bytes: geometry.block_bytes,
            blocks: geometry.blocks.saturating_sub(overhead),
            blocks_free: free,
            blocks_available: free.saturating_sub(u64::from(st.vol.sb.reserved_blocks)),
            inodes: u64::from(geometry.inodes),
            inodes_free: st.vol.free_inodes + inodes_going,
            name_max_bytes: 255,
        }
    }
}
