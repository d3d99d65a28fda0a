//! Corrections of what a crash left of names and counts, while the volume is in use.
//!
//! A check has found them in a frozen view. Since then names may have come and gone, so each correction
//! looks first whether it still applies.

use crate::attributes::ATTRIBUTE_BLOCKS;
use crate::format::Format;
use crate::front::UnixFs;
use crate::name_changes::Position;
use crate::names::{NAME_BLOCKS, What};
use crate::node::Patches;
use crate::state::State;
use crate::{Error, Result};
use weft_patch::{Op, PatchId};
use weft_vfs::{Caller, Error as FsError, FileKind, Ino};

/// Entries that are read at once in a search for an inode's name.
const LISTED: usize = 256;

impl<F: Format> State<F> {
    /// Lowers the count of an inode that is too high by `by`. If it has lost its last name meanwhile,
    /// its end was held up by the wrong count, and follows.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn lower_excess(&mut self, op: &mut Op<'_>, ino: Ino, by: u32) -> Result<()> {
        let node = self.load(op, ino)?;
        // A directory counts its `.`, too.
        let least = if node.kind == FileKind::Directory { 2 } else { 1 };
        if node.links() >= by.saturating_add(least) {
            node.inode.links -= by;
            return self.write_node(op, ino, &[]).map(drop);
        }
        let removals = node.end_links(op);
        self.deferred.remove(&ino);
        let unlinked = if removals.is_empty() { PatchId::DURABLE } else { op.join(&removals)? };
        self.node(ino)?.unlinked = unlinked;
        self.lost_last_name(op, ino).map(drop)
    }

    /// Makes the `..` of directory `ino`, which named `old`, name `parent`, if it still is `old` and
    /// `parent` still has a name of the directory. Returns whether it did.
    ///
    /// # Errors
    /// [`Error::Corrupt`], and those of the engine.
    pub fn correct_parent(
        &mut self,
        op: &mut Op<'_>,
        ino: Ino,
        old: Ino,
        parent: Ino,
    ) -> Result<bool> {
        let applies = match self.parent_of(op, ino) {
            Ok(now) => now == old && self.has_name_of(op, parent, ino)?,
            Err(e) => gone(e)?,
        };
        if applies {
            let (format, node) = self.with_node(ino)?;
            format.set_parent(op, node, parent, &[])?;
        }
        Ok(applies)
    }

    /// Reports whether directory `dir`, if it is there, has a name of `ino`.
    fn has_name_of(&mut self, op: &mut Op<'_>, dir: Ino, ino: Ino) -> Result<bool> {
        if let Err(e) = self.load_dir(op, dir) {
            return gone(e);
        }
        let (format, node) = self.with_node(dir)?;
        format.load_dir(op, node)?;
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let listing = format.list(op, node, from, LISTED)?;
            let is_name = |range: &std::ops::Range<usize>| {
                !matches!(listing.names.get(range.clone()), None | Some(b"." | b".."))
            };
            if listing.entries.iter().any(|entry| entry.ino == ino && is_name(&entry.name)) {
                return Ok(true);
            }
            cursor = listing.next;
        }
        Ok(false)
    }

    /// Returns the directory lost+found, which is made if there is none.
    fn lost_and_found(&mut self, op: &mut Op<'_>) -> Result<Ino> {
        let (root, name) = (self.root, b"lost+found");
        match self.find(op, root, name) {
            Err(Error::Vfs(FsError::NotFound)) => {
                self.create(op, &Caller::ROOT, root, name, 0o700, &What::Directory)
            }
            other => other,
        }
    }

    /// Gives a directory that has no name one in directory `home`, by its number.
    fn adopt(&mut self, op: &mut Op<'_>, ino: Ino, home: Ino) -> Result<()> {
        self.load_dir(op, home)?;
        self.load_dir(op, ino)?;
        if self.node(home)?.links() >= self.format.limits().links_max {
            return Err(FsError::TooManyLinks.into());
        }
        let (format, dir) = self.with_node(home)?;
        let mut name = format!("#{}", ino.0);
        let mut n = 0;
        while format.find(op, dir, name.as_bytes())?.is_some() {
            n += 1;
            name = format!("#{}-{n}", ino.0);
        }
        let reserved = format.reserve(op, dir, name.as_bytes(), FileKind::Directory)?;
        let position = Position::new(home, format.position(format.place(&reserved)));
        dir.modified(format);
        dir.epoch += 1;
        // As in a rename: the count goes up before the name is there, and `..` follows the name.
        let mut befores = Patches::new();
        self.gain_subdir(op, home, &mut befores)?;
        let (format, dir) = self.with_node(home)?;
        let named = format.fill(op, dir, reserved, ino, &befores)?;
        self.gave_name(op, ino, position, named)?;
        let (format, node) = self.with_node(ino)?;
        format.set_parent(op, node, home, &[named])?;
        Ok(())
    }
}

/// Takes the error of an inode that is not there (any more) for "it does not apply".
fn gone(error: Error) -> Result<bool> {
    match error {
        Error::Vfs(FsError::Stale(_) | FsError::NotFound | FsError::NotADirectory) => Ok(false),
        other => Err(other),
    }
}

impl<F: Format> UnixFs<F> {
    /// Moves a directory that no directory names to lost+found, which is made if there is none.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooManyLinks`]; [`FsError::NotADirectory`] if lost+found is
    /// something else.
    pub fn adopt(&self, ino: Ino) -> Result<()> {
        let home = self.change(NAME_BLOCKS + ATTRIBUTE_BLOCKS, &[], State::lost_and_found)?;
        self.change(NAME_BLOCKS, &[], |st, op| st.adopt(op, ino, home))
    }
}
