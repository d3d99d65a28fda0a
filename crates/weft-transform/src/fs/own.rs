//! The counters of the mount: a directory `.weft` in the root, hidden from listings, with the
//! counters of networks as a table (`networks`) and in Prometheus format (`metrics`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, DirCursor, DirEntry, Entry, Error, FileKind, Handle, Ino, Opened, Result};

use super::base::locked;
use super::{Open, TransformFs};
use crate::Meters;
use weft_vfs::{FileSystem, OpenFlags, StaleHandle};

/// The name of the directory.
pub(super) const NAME: &[u8] = b".weft";

const DIRECTORY: Ino = Ino(u64::MAX - 32);
/// The inode number, the name, and the function that renders the content.
type OwnFile = (Ino, &'static [u8], fn(&Meters) -> String);

const FILES: [OwnFile; 2] = [
    (Ino(u64::MAX - 31), b"networks", Meters::table),
    (Ino(u64::MAX - 30), b"metrics", Meters::open_metrics),
];

/// The directory of a tree whose networks are counted.
pub(super) struct Own {
    pub(super) meters: Arc<Meters>,
    /// The content of open files, as of their opening.
    open: Mutex<HashMap<Handle, String>>,
}

impl Own {
    pub(super) fn new(meters: Arc<Meters>) -> Self {
        Self { meters, open: Mutex::default() }
    }
}

/// Returns true if an inode is that of the directory or of one of its files.
pub(super) fn is_own(ino: Ino) -> bool {
    ino == DIRECTORY || FILES.iter().any(|(own, ..)| *own == ino)
}

impl TransformFs {
    /// Looks up the directory in the root, where no file has its name, or a name in the directory.
    pub(super) fn own_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let file = FILES.iter().find(|(_, own, _)| *own == name);
        let ino = match (parent, file) {
            (DIRECTORY, _) if name == b"." => DIRECTORY,
            (DIRECTORY, _) if name == b".." => return self.lookup(self.root(), b"."),
            (DIRECTORY, Some((ino, ..))) => *ino,
            _ if self.own.is_some() && parent == self.root() && name == NAME => DIRECTORY,
            _ => return Err(Error::NotFound),
        };
        Ok(Entry { attr: self.own_attr(ino)?, generation: 0 })
    }

    /// Returns the attributes. Only the owner of the root may read: the texts of networks may be
    /// confidential.
    pub(super) fn own_attr(&self, ino: Ino) -> Result<Attr> {
        let root = self.ground.below.getattr(self.ground.below.root())?;
        let (kind, perm, nlink) = match ino {
            DIRECTORY => (FileKind::Directory, 0o500, 2),
            _ => (FileKind::Regular, 0o400, 1),
        };
        // The length is not known before it is read.
        Ok(Attr { ino, kind, perm, nlink, size_bytes: 0, blocks_512: 0, ..root })
    }

    pub(super) fn own_open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            return Err(Error::ReadOnly);
        }
        let own = self.own.as_ref().ok_or(Error::NotFound)?;
        let (_, _, render) =
            FILES.iter().find(|(own, ..)| *own == ino).ok_or(Error::IsADirectory)?;
        let handle =
            self.new_handle(Open { ino, flags, below: None, direct_io: true, past: false });
        locked(&own.open).insert(handle, render(&own.meters));
        Ok(Opened { handle, keep_cache: false, direct_io: true })
    }

    pub(super) fn own_read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let own = self.own.as_ref().ok_or(Error::NotFound)?;
        let open = locked(&own.open);
        let text = open.get(&handle).ok_or(StaleHandle)?.as_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let len = buf.len().min(text.len() - from);
        buf[..len].copy_from_slice(&text[from..from + len]);
        Ok(len)
    }

    pub(super) fn own_release(&self, handle: Handle) -> Result<()> {
        // As with the files of a tree, closing one of these twice is no error.
        let _ = locked(&self.handles).close(handle);
        if let Some(own) = &self.own {
            locked(&own.open).remove(&handle);
        }
        Ok(())
    }

    pub(super) fn own_list(
        &self,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dots = [(DIRECTORY, &b"."[..]), (self.root(), b"..")];
        let all = dots.into_iter().chain(FILES.iter().map(|(ino, name, _)| (*ino, *name)));
        for (nr, (ino, name)) in
            (1..).zip(all).skip(usize::try_from(cursor.0).unwrap_or(usize::MAX))
        {
            let kind = if nr <= 2 { FileKind::Directory } else { FileKind::Regular };
            if !each(DirEntry { ino, kind, name, next: DirCursor(nr) }) {
                break;
            }
        }
        Ok(())
    }
}
