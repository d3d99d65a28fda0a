//! Skips items that the destination refuses.
//!
//! A name that is too long, has letters that the volume lacks, or differs from another one only in
//! case costs its own file, or the directory with its content; the rest of the tree is transferred.
//! So does a file in place of a directory that is not empty, an item below a file, and a hard link to
//! a file that is not there.

use super::{Content, Item, ItemKind, Sink, split_last};
use crate::{Error, Result};
use std::collections::HashSet;
use weft_vfs::Error as FsError;

/// A sink that passes items to another one, which may refuse names.
pub struct PastNames<'a> {
    sink: &'a mut dyn Sink,
    /// The paths that were refused.
    refused: HashSet<Vec<u8>>,
    /// The messages of the refusals; the content of a refused directory is counted in `below`.
    told: Vec<String>,
    below: u64,
    /// Whether the top may be refused, too.
    several: bool,
    /// Whether one was refused for its name.
    for_names: bool,
}

impl std::fmt::Debug for PastNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PastNames").field("told", &self.told).finish_non_exhaustive()
    }
}

impl<'a> PastNames<'a> {
    /// Skips names that `sink` refuses.
    pub fn new(sink: &'a mut dyn Sink) -> Self {
        let (refused, told) = (HashSet::new(), Vec::new());
        Self { sink, refused, told, below: 0, several: false, for_names: false }
    }

    /// Sets that there are other sources, which are transferred even if the top of this one is
    /// refused.
    #[must_use]
    pub fn one_of_several(self, yes: bool) -> Self {
        Self { several: yes, ..self }
    }

    /// Returns true if the top was refused.
    #[must_use]
    pub fn is_top_refused(&self) -> bool {
        self.refused.contains(&b""[..])
    }

    /// Whether an item was refused because of its name: then another name may help.
    #[must_use]
    pub fn refused_for_names(&self) -> bool {
        self.for_names
    }

    /// The refused items, with the reasons.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.told
    }

    /// The number of items left out with a refused directory, or as another name of a refused file.
    #[must_use]
    pub fn left_out_with_them(&self) -> u64 {
        self.below
    }

    /// Returns true if a path, or a directory above it, was refused.
    fn is_refused(&self, path: &[u8]) -> bool {
        if self.refused.is_empty() {
            return false;
        }
        let mut at = path;
        while !at.is_empty() {
            if self.refused.contains(at) {
                return true;
            }
            // An AppleDouble would be that of the item which has the name.
            let (above, name) = split_last(at);
            if let Some(base) = name.strip_prefix(b"._")
                && self.refused.contains(&super::join(above, base))
            {
                return true;
            }
            at = above;
        }
        self.is_top_refused()
    }
}

/// Returns true if an error concerns only the name.
fn is_about_the_name(e: &Error) -> bool {
    let Error::File { action, source, .. } = e else { return false };
    matches!(*action, "make" | "make directory")
        && matches!(source, FsError::NameTooLong | FsError::Invalid(_))
}

/// Returns true if an error concerns only the place of one item: what is there, or is not.
fn is_about_the_place(e: &Error) -> bool {
    let Error::File { action, source, .. } = e else { return false };
    match *action {
        "make" | "make directory" | "replace" => matches!(
            source,
            FsError::NotADirectory
                | FsError::IsADirectory
                | FsError::NotEmpty
                | FsError::SymlinkLoop
                | FsError::TooManyLinks
        ),
        "link to" => {
            matches!(source, FsError::NotFound | FsError::NotADirectory | FsError::SymlinkLoop)
        }
        _ => false,
    }
}

impl Sink for PastNames<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        let linked = matches!(item.kind, ItemKind::HardLink(first) if self.is_refused(first));
        if linked || self.is_refused(item.path) {
            self.below += 1;
            self.refused.insert(item.path.to_vec());
            return Ok(());
        }
        match self.sink.put(item, content) {
            // The top was requested explicitly, so its error is returned.
            Err(e)
                if (self.several || !item.path.is_empty())
                    && (is_about_the_name(&e) || is_about_the_place(&e)) =>
            {
                self.for_names |= is_about_the_name(&e);
                self.refused.insert(item.path.to_vec());
                self.told.push(e.to_string());
                Ok(())
            }
            other => other,
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.sink.finish()
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}
