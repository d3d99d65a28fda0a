//! The view: the companions of a file, and reading them.

use super::draft::{self, Drafts};
use super::forks::Forks;
use super::names::Part;
use crate::interchange::{Meta, extension};
use crate::macroman;
use crate::streams::MacVolume;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_vfs::{Attr, Error, FileKind, Ino, Result};

/// A volume with companions of its files, or with neither those nor attributes. See the
/// [module](super)'s page.
pub struct ForkView {
    pub(super) inner: Arc<dyn MacVolume>,
    pub(super) forks: Forks,
    pub(super) drafts: Mutex<Drafts>,
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
        Self { inner, forks, drafts: Mutex::default() }
    }

    pub(super) fn drafts(&self) -> MutexGuard<'_, Drafts> {
        // A panic elsewhere leaves drafts that are whole or begun, as always.
        self.drafts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the attributes of a companion, if it exists.
    pub(super) fn companion(&self, base: Ino, name: &[u8], part: Part) -> Result<Option<Attr>> {
        self.companion_of(&self.inner.getattr(base)?, name, part)
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
            Part::Double => self.drafts().has(base) || has_more(&meta, name),
            Part::Resource => attr.kind == FileKind::Regular && meta.resource_bytes > 0,
            Part::Info => !is_zero(&meta.finder_info),
        };
        Ok(there.then(|| self.companion_attr(attr, &meta, part)))
    }

    pub(super) fn companion_attr(&self, base: &Attr, meta: &Meta, part: Part) -> Attr {
        let size_bytes = match part {
            Part::Double => {
                self.drafts().len(base.ino).unwrap_or(draft::HEADER_BYTES + meta.resource_bytes)
            }
            Part::Resource => meta.resource_bytes,
            Part::Info => 32,
        };
        Attr {
            ino: part.ino(base.ino),
            kind: FileKind::Regular,
            perm: base.perm & 0o666,
            nlink: 1,
            size_bytes,
            blocks_512: size_bytes.div_ceil(512),
            ..*base
        }
    }

    pub(super) fn attr_of(&self, base: Ino, part: Part) -> Result<Attr> {
        let attr = self.inner.getattr(base)?;
        let meta = self.inner.meta(base)?;
        Ok(self.companion_attr(&attr, &meta, part))
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
                if let Some(got) = self.drafts().read(base, offset, buf) {
                    return Ok(got);
                }
                let header = draft::header(&self.inner.meta(base)?)?;
                let mut done = draft::copy_from(&header, offset, buf);
                let at = (offset + done as u64).saturating_sub(header.len() as u64);
                if offset + done as u64 >= header.len() as u64
                    && self.inner.getattr(base)?.kind == FileKind::Regular
                {
                    done += self.inner.read_resource(base, at, &mut buf[done..])?;
                }
                Ok(done)
            }
        }
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
                let mut drafts = self.drafts();
                drafts.write(&*self.inner, base, offset, data)?;
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
            Part::Double => self.drafts().set_len(&*self.inner, base, len_bytes),
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
        self.drafts().forget(base);
        Ok(())
    }
}
