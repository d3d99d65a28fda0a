//! Directory listings for the front end.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_ringer::client::{Call, Outcome};
use weft_ringer::op::Op;
use weft_ringer::wire::Entry;
use weft_ringer::{Body, RnodeId};
use weft_vfs::{DirCursor, DirEntry, Error, FileKind, Ino, Result};

use super::client_fs::ClientFs;
use super::mutex::locked;

/// The most listings that are kept.
const LISTINGS_MAX: usize = 16;

/// The names of directories that programs are reading, in the order of their first calls.
///
/// A program reads a long directory by many calls, and the kernel says of none which program it is
/// for. The first call fetches the names, and the later ones go on with what it, or the first call
/// of another program since, has fetched, until a program here changes the directory: readdir(3) need
/// not show what was made or removed meanwhile. With the lease for each call another client that
/// makes names in the directory would take turns with the reader, once for every few dozen names.
#[derive(Debug, Default)]
pub(super) struct Listings(VecDeque<(RnodeId, Arc<Vec<Entry>>)>);

/// The directories in which a change gives or takes names.
pub(super) fn changed_directories(op: &Op) -> [Option<RnodeId>; 2] {
    match op {
        Op::Create { parent, .. }
        | Op::Link { parent, .. }
        | Op::Unlink { parent, .. }
        | Op::Rmdir { parent, .. } => [Some(*parent), None],
        Op::Rename { parent, new_parent, .. } => [Some(*parent), Some(*new_parent)],
        _ => [None, None],
    }
}

impl Listings {
    fn get(&self, dir: RnodeId) -> Option<Arc<Vec<Entry>>> {
        self.0.iter().find(|(id, _)| *id == dir).map(|(_, names)| Arc::clone(names))
    }

    fn put(&mut self, dir: RnodeId, names: &Arc<Vec<Entry>>) {
        self.remove(dir);
        if self.0.len() >= LISTINGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((dir, Arc::clone(names)));
    }

    pub(super) fn remove(&mut self, dir: RnodeId) {
        self.0.retain(|(id, _)| *id != dir);
    }
}

impl ClientFs {
    pub(super) fn list(&self, dir: RnodeId) -> Result<Vec<Entry>> {
        match self.engine.call(Call::List { dir })?.0 {
            Outcome::Names(names) => Ok(names),
            Outcome::Refused(why) => Err(self.refused(dir, why)),
            _ => Err(Error::NotADirectory),
        }
    }

    /// Calls `each` with names from `cursor` on: 1 is after `.`, 2 after `..`, and the others after
    /// the entry with the cookie that is smaller by 2.
    pub(super) fn read_directory(
        &self,
        dir: RnodeId,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, RnodeId) -> bool,
    ) -> Result<()> {
        if cursor.0 <= 1 {
            let rnode = self.get(dir)?;
            let Body::Directory { parent, .. } = rnode.body else {
                return Err(Error::NotADirectory);
            };
            for (at, name, id) in [(0, &b"."[..], dir), (1, b"..", parent)] {
                let next = DirCursor(at + 1);
                let entry = DirEntry { ino: Ino(id.0), kind: FileKind::Directory, name, next };
                if cursor.0 <= at && !each(entry, id) {
                    return Ok(());
                }
            }
        }
        let begun = locked(&self.listings).get(dir).filter(|_| cursor.0 > 2);
        let names = match begun {
            Some(names) => names,
            None => {
                let names = Arc::new(self.list(dir)?);
                locked(&self.listings).put(dir, &names);
                names
            }
        };
        let begin = names.partition_point(|e| e.dirent.cookie.0 + 2 <= cursor.0);
        for Entry { name, dirent } in &names[begin..] {
            let entry = DirEntry {
                ino: Ino(dirent.id.0),
                kind: dirent.kind,
                name: name.bytes(),
                next: DirCursor(dirent.cookie.0 + 2),
            };
            if !each(entry, dirent.id) {
                return Ok(());
            }
        }
        // They stay: the kernel asks once more behind the last name.
        Ok(())
    }
}
