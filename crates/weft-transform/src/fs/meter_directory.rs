//! The counters of the mount: a directory `.weft` in the root, hidden from listings, with the
//! counters of networks as a table (`networks`) and in Prometheus format (`metrics`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use weft_vfs::{Attr, DirCursor, DirEntry, Error, FileKind, Handle, Ino, Result, StaleHandle};

use super::locks::locked;
use crate::Meters;

/// The name of the directory.
const NAME: &[u8] = b".weft";

/// The inode number of the directory.
pub(super) const METER_DIRECTORY: Ino = Ino(u64::MAX - 32);

/// The inode number, the name, and the function that renders the content.
type MeterFile = (Ino, &'static [u8], fn(&Meters) -> String);

const FILES: [MeterFile; 2] = [
    (Ino(u64::MAX - 31), b"networks", Meters::table),
    (Ino(u64::MAX - 30), b"metrics", Meters::open_metrics),
];

/// The directory of a tree whose networks are counted.
pub(super) struct MeterDirectory {
    pub(super) meters: Arc<Meters>,
    /// The content of open files, as of their opening.
    open: Mutex<HashMap<Handle, String>>,
}

/// Returns true if an inode is that of the directory or of one of its files.
pub(super) fn is_meter_inode(ino: Ino) -> bool {
    ino == METER_DIRECTORY || FILES.iter().any(|(file, ..)| *file == ino)
}

/// Returns the attributes of the directory or of one of its files. Only the owner of the root may
/// read: the texts of networks may be confidential.
pub(super) fn meter_attr(ino: Ino, root: &Attr) -> Attr {
    let (kind, perm, nlink) = match ino {
        METER_DIRECTORY => (FileKind::Directory, 0o500, 2),
        _ => (FileKind::Regular, 0o400, 1),
    };
    // The length is not known before it is read.
    Attr { ino, kind, perm, nlink, size_bytes: 0, blocks_512: 0, ..*root }
}

impl MeterDirectory {
    pub(super) fn new(meters: Arc<Meters>) -> Self {
        Self { meters, open: Mutex::default() }
    }

    /// Looks up a name in the root, where no file has it, or in the directory.
    pub(super) fn lookup(&self, parent: Ino, name: &[u8], root: Ino) -> Option<Ino> {
        match parent {
            METER_DIRECTORY if name == b"." => Some(METER_DIRECTORY),
            METER_DIRECTORY => Some(FILES.iter().find(|(_, file, _)| *file == name)?.0),
            _ => (parent == root && name == NAME).then_some(METER_DIRECTORY),
        }
    }

    /// Returns the content of a file.
    pub(super) fn render(&self, ino: Ino) -> Result<String> {
        let file = FILES.iter().find(|(file, ..)| *file == ino);
        file.map(|(_, _, render)| render(&self.meters)).ok_or(Error::IsADirectory)
    }

    pub(super) fn opened(&self, handle: Handle, content: String) {
        locked(&self.open).insert(handle, content);
    }

    pub(super) fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = locked(&self.open);
        let text = open.get(&handle).ok_or(StaleHandle)?.as_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let len = buf.len().min(text.len() - from);
        buf[..len].copy_from_slice(&text[from..from + len]);
        Ok(len)
    }

    pub(super) fn released(&self, handle: Handle) {
        locked(&self.open).remove(&handle);
    }
}

/// Lists the directory.
pub(super) fn list_meters(
    cursor: DirCursor,
    root: Ino,
    each: &mut dyn FnMut(DirEntry<'_>) -> bool,
) {
    let dots = [(METER_DIRECTORY, &b"."[..]), (root, b"..")];
    let all = dots.into_iter().chain(FILES.iter().map(|(ino, name, _)| (*ino, *name)));
    for (nr, (ino, name)) in (1..).zip(all).skip(usize::try_from(cursor.0).unwrap_or(usize::MAX)) {
        let kind = if nr <= 2 { FileKind::Directory } else { FileKind::Regular };
        if !each(DirEntry { ino, kind, name, next: DirCursor(nr) }) {
            break;
        }
    }
}
