//! Skips items that the destination refuses, or that cannot be read.
//!
//! A name that is too long, has letters that the volume lacks, or differs from another one only in
//! case costs its own file, or the directory with its content; the rest of the tree is transferred.
//! So does a file in place of a directory that is not empty, an item below a file, a hard link to a
//! file that is not there, and a file that is longer than the destination allows.

use super::{Content, Item, ItemKind, Sink, split_last};
use crate::{Error, Result};
use rustix::io::Errno;
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

    /// Whether a volume refused an item because of its name: then another name may help.
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
    match e {
        Error::File { action: "make" | "make directory", source, .. } => {
            matches!(source, FsError::NameTooLong | FsError::Invalid(_))
        }
        Error::Host { action: "make", source, .. } => {
            matches!(errno(source), Some(Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL))
        }
        _ => false,
    }
}

fn errno(e: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(e)
}

/// Returns true if an error of the host concerns only the place of one item, or its kind: many file
/// systems have no links and no device nodes.
fn is_about_the_place_on_the_host(action: &str, source: &std::io::Error, is_file: bool) -> bool {
    match (action, errno(source)) {
        (
            "make" | "replace",
            Some(
                Errno::NOTDIR
                | Errno::ISDIR
                | Errno::EXIST
                | Errno::NOTEMPTY
                | Errno::LOOP
                | Errno::MLINK,
            ),
        ) => true,
        ("make", Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV)) => !is_file,
        ("write", Some(Errno::FBIG)) => true,
        _ => false,
    }
}

/// Returns true if an error of a sink concerns only one item, its name or its place.
pub(super) fn is_about_one_item(e: &Error, is_file: bool) -> bool {
    is_about_the_name(e) || is_about_the_place(e, is_file)
}

/// Returns true if an error concerns only the place of one item: what is there, or is not, or how
/// much may be there.
fn is_about_the_place(e: &Error, is_file: bool) -> bool {
    let (action, source) = match e {
        Error::File { action, source, .. } => (action, source),
        Error::Host { action, source, .. } => {
            return is_about_the_place_on_the_host(action, source, is_file);
        }
        _ => return false,
    };
    match *action {
        "write" => matches!(source, FsError::TooLarge),
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
        let is_file = matches!(item.kind, ItemKind::File { .. } | ItemKind::Directory);
        match self.sink.put(item, content) {
            // The top was requested explicitly, so its error is returned.
            Err(e) if (self.several || !item.path.is_empty()) && is_about_one_item(&e, is_file) => {
                self.for_names |= matches!(e, Error::File { .. }) && is_about_the_name(&e);
                self.refused.insert(item.path.to_vec());
                self.told.push(e.to_string());
                Ok(())
            }
            other => other,
        }
    }

    fn unreadable(&mut self, path: &[u8], e: Error) -> Result<()> {
        if path.is_empty() && !self.several {
            return Err(e);
        }
        self.refused.insert(path.to_vec());
        self.told.push(e.to_string());
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.sink.finish()
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}
