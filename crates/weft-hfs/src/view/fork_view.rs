//! The view: the companions of a file, and reading them.

use super::draft;
use super::forks::Forks;
use super::held::Companions;
use super::layout::Layout;
use super::names::Part;
use crate::interchange::{Meta, extension};
use crate::macroman;
use crate::streams::MacVolume;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_vfs::{Attr, Error, FileKind, Ino, Result};

/// A volume with companions of its files, or with neither those nor attributes. See the
/// [module](super)'s page.
pub struct ForkView {
    pub(super) inner: Arc<dyn MacVolume>,
    pub(super) forks: Forks,
    /// Whether a file that is removed or replaced leaves its AppleDouble.
    pub(super) leaves_doubles: bool,
    pub(super) is_read_only: bool,
    pub(super) companions: Mutex<Companions>,
    /// The files with the name of a companion that were made by their other spelling: none of them
    /// is taken for an AppleDouble that waits for its file.
    pub(super) own: Mutex<HashSet<Ino>>,
}

impl fmt::Debug for ForkView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkView").field("forks", &self.forks).finish_non_exhaustive()
    }
}

/// Reports whether a file has more than its data fork, its dates, and the type and creator that
/// follow from its name.
///
/// `name` is its name in Unix.
#[must_use]
pub fn has_more(meta: &Meta, name: &[u8]) -> bool {
    let mut plain = [0; 32];
    if let Ok(mac) = macroman::name_from_unix(name)
        && let (file_type, creator) = extension::guess(&mac)
        && (file_type, creator) != extension::UNKNOWN
    {
        plain[..4].copy_from_slice(&file_type);
        plain[4..8].copy_from_slice(&creator);
    }
    let unknown = {
        let (file_type, creator) = extension::UNKNOWN;
        meta.finder_info[..8] == [file_type, creator].concat() && is_zero(&meta.finder_info[8..])
    };
    let said = is_zero(&meta.finder_info) || unknown || meta.finder_info == plain;
    meta.resource_bytes > 0 || meta.locked || !said
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

impl ForkView {
    /// Makes a view of the volume `inner` that presents forks as `forks` says.
    #[must_use]
    pub fn new(inner: Arc<dyn MacVolume>, forks: Forks) -> Self {
        Self {
            inner,
            forks,
            leaves_doubles: false,
            is_read_only: false,
            companions: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// Sets whether a file that is removed, or replaced by another, leaves its AppleDouble, as on
    /// other file systems, where the two are two files: so a program that knows of the file alone
    /// (`mv` to another file system, an editor) destroys no resource fork.
    #[must_use]
    pub fn leaving_doubles(self, yes: bool) -> Self {
        Self { leaves_doubles: yes && self.forks == Forks::AppleDouble, ..self }
    }

    /// Sets that nothing can be written.
    #[must_use]
    pub fn read_only(self, yes: bool) -> Self {
        Self { is_read_only: yes, ..self }
    }

    pub(super) fn companions(&self) -> MutexGuard<'_, Companions> {
        // A panic elsewhere leaves drafts that are whole or begun, as always.
        self.companions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn own(&self) -> MutexGuard<'_, HashSet<Ino>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the attributes of a companion, if it exists, of a file with these attributes.
    pub(super) fn companion_of(
        &self,
        attr: &Attr,
        name: &[u8],
        part: Part,
    ) -> Result<Option<Attr>> {
        let base = attr.ino;
        if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
            return Ok(None);
        }
        let meta = self.inner.meta(base)?;
        let there = match part {
            Part::Double => self.companions().draft(base).is_some() || has_more(&meta, name),
            Part::Resource => attr.kind == FileKind::Regular && meta.resource_bytes > 0,
            Part::Info => !is_zero(&meta.finder_info),
        };
        there.then(|| self.companion_attr(attr, &meta, part)).transpose()
    }

    pub(super) fn companion_attr(&self, base: &Attr, meta: &Meta, part: Part) -> Result<Attr> {
        let size_bytes = match part {
            Part::Double => {
                let companions = self.companions();
                match companions.draft(base.ino) {
                    Some(draft) => draft.bytes().len() as u64,
                    None => companions.layout(base.ino, meta)?.len_bytes(meta.resource_bytes),
                }
            }
            Part::Resource => meta.resource_bytes,
            Part::Info => 32,
        };
        Ok(Attr {
            ino: part.ino(base.ino),
            kind: FileKind::Regular,
            perm: base.perm & 0o666,
            nlink: 1,
            size_bytes,
            blocks_512: size_bytes.div_ceil(512),
            ..*base
        })
    }

    pub(super) fn attr_of(&self, base: Ino, part: Part) -> Result<Attr> {
        let attr = self.inner.getattr(base)?;
        let meta = self.inner.meta(base)?;
        self.companion_attr(&attr, &meta, part)
    }

    pub(super) fn read_part(
        &self,
        base: Ino,
        part: Part,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        match part {
            Part::Resource => self.inner.read_resource(base, offset, buf),
            Part::Info => {
                let info = self.inner.meta(base)?.finder_info;
                Ok(draft::copy_from(&info, offset, buf))
            }
            Part::Double => {
                if let Some(draft) = self.companions().draft(base) {
                    return Ok(draft::copy_from(draft.bytes(), offset, buf));
                }
                let meta = self.inner.meta(base)?;
                let layout = self.companions().layout(base, &meta)?;
                self.read_double(base, &layout, meta.resource_bytes, offset, buf)
            }
        }
    }

    /// Reads an AppleDouble of this layout.
    fn read_double(
        &self,
        base: Ino,
        layout: &Layout,
        fork_bytes: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let mut done = draft::copy_from(&layout.before, offset, buf);
        let at = |done: usize| (offset + done as u64).saturating_sub(layout.before.len() as u64);
        while done < buf.len() && at(done) < fork_bytes {
            let want = usize::try_from(fork_bytes - at(done)).unwrap_or(usize::MAX);
            let end = buf.len().min(done.saturating_add(want));
            match self.inner.read_resource(base, at(done), &mut buf[done..end])? {
                0 => return Ok(done),
                got => done += got,
            }
        }
        let behind = at(done).saturating_sub(fork_bytes);
        done += draft::copy_from(&layout.after, behind, &mut buf[done..]);
        Ok(done)
    }

    pub(super) fn write_part(
        &self,
        base: Ino,
        part: Part,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        match part {
            Part::Resource => self.inner.write_resource(base, offset, data),
            Part::Info => {
                let end = offset.checked_add(data.len() as u64).filter(|&end| end <= 32);
                let end = end.ok_or(Error::TooLarge)? as usize;
                let mut meta = self.inner.meta(base)?;
                meta.finder_info[offset as usize..end].copy_from_slice(data);
                self.inner.set_meta(base, &meta)?;
                Ok(data.len())
            }
            Part::Double => {
                let mut companions = self.companions();
                let draft = companions.draft_or_begin(&*self.inner, base)?;
                draft.write(&*self.inner, base, offset, data)?;
                Ok(data.len())
            }
        }
    }

    pub(super) fn cut_part(&self, base: Ino, part: Part, len_bytes: u64) -> Result<()> {
        match part {
            Part::Resource => self.inner.set_resource_len(base, len_bytes),
            // A program that truncates it writes it anew.
            Part::Info if len_bytes <= 32 => Ok(()),
            Part::Info => Err(Error::TooLarge),
            Part::Double => {
                let mut companions = self.companions();
                let draft = companions.draft_or_begin(&*self.inner, base)?;
                draft.set_len(&*self.inner, base, len_bytes)
            }
        }
    }

    /// Removes the fork or the Finder information that a companion shows.
    pub(super) fn clear_part(&self, base: Ino, name: &[u8], part: Part) -> Result<()> {
        if part != Part::Info && self.inner.getattr(base)?.kind == FileKind::Regular {
            self.inner.set_resource_len(base, 0)?;
        }
        if part != Part::Resource {
            let mut meta = self.inner.meta(base)?;
            meta.finder_info = [0; 32];
            let guess = macroman::name_from_unix(name).map(|mac| extension::guess(&mac));
            if let Ok((file_type, creator)) = guess
                && file_type != extension::UNKNOWN.0
                && meta.resource_bytes == 0
            {
                meta.set_type(file_type, creator);
            }
            self.inner.set_meta(base, &meta)?;
        }
        self.companions().drop_bytes(base);
        Ok(())
    }
}
