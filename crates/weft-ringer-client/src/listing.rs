//! Directory listings for the front end.

use weft_ringer::client::{Call, Outcome};
use weft_ringer::wire::Entry;
use weft_ringer::{Body, RnodeId};
use weft_vfs::{DirCursor, DirEntry, Error, FileKind, Ino, Result};

use super::client_fs::ClientFs;

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
        let rnode = self.get(dir)?;
        let Body::Directory { parent, .. } = rnode.body else { return Err(Error::NotADirectory) };
        for (at, name, id) in [(0, &b"."[..], dir), (1, b"..", parent)] {
            let next = DirCursor(at + 1);
            let entry = DirEntry { ino: Ino(id.0), kind: FileKind::Directory, name, next };
            if cursor.0 <= at && !each(entry, id) {
                return Ok(());
            }
        }
        let names = self.list(dir)?;
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
        Ok(())
    }
}
