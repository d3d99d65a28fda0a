//! AppleDoubles that callers have references on, and what becomes of their bytes.

use super::draft::Draft;
use super::fork_view::ForkView;
use super::layout::{Layout, Layouts};
use super::names::shortened;
use crate::interchange::Meta;
use crate::streams::MacVolume;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use weft_vfs::{Caller, Error, FileKind, Handle, Ino, Result};

/// The most names that are tried for a plain file.
const NAMES_MAX: u32 = 1000;

/// AppleDoubles by the inode number of their file.
#[derive(Debug, Default)]
pub(super) struct Companions {
    held: HashMap<Ino, Held>,
    layouts: Layouts,
}

/// An AppleDouble that callers have references on, or whose bytes could not be stored yet.
#[derive(Debug)]
struct Held {
    refs: u64,
    opens: u64,
    /// The directory and the name that it was looked up by.
    place: (Ino, Vec<u8>),
    draft: Option<Draft>,
}

impl Companions {
    /// Notes a reference.
    pub fn hold(&mut self, base: Ino, parent: Ino, name: &[u8]) {
        let place = (parent, name.to_vec());
        match self.held.entry(base) {
            Entry::Occupied(mut held) => {
                held.get_mut().place = place;
                held.get_mut().refs += 1;
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Held { refs: 1, opens: 0, place, draft: None });
            }
        }
    }

    /// Begins an AppleDouble from nothing.
    pub fn begin(&mut self, base: Ino, parent: Ino, name: &[u8]) {
        self.hold(base, parent, name);
        self.layouts.forget(base);
        if let Some(held) = self.held.get_mut(&base) {
            held.draft = Some(Draft::default());
        }
    }

    pub fn opened(&mut self, base: Ino) {
        if let Some(held) = self.held.get_mut(&base) {
            held.opens += 1;
        }
    }

    /// Notes that the file is called `name` now, in `parent`.
    pub fn moved(&mut self, base: Ino, parent: Ino, name: Vec<u8>) {
        if let Some(held) = self.held.get_mut(&base) {
            held.place = (parent, name);
        }
    }

    pub fn draft(&self, base: Ino) -> Option<&Draft> {
        self.held.get(&base)?.draft.as_ref()
    }

    /// Returns the draft of a file, begun with what the volume has.
    pub fn draft_or_begin(&mut self, volume: &dyn MacVolume, base: Ino) -> Result<&mut Draft> {
        let held = self.held.get_mut(&base).ok_or(Error::Stale(base.0))?;
        match &mut held.draft {
            Some(draft) => Ok(draft),
            vacant => {
                let draft = Draft::of(volume, base, self.layouts.get(base))?;
                Ok(vacant.insert(draft))
            }
        }
    }

    /// Returns the layout of the AppleDouble of a file with these metadata.
    pub fn layout(&self, base: Ino, meta: &Meta) -> Result<Layout> {
        match self.layouts.get(base).filter(|layout| layout.says(meta)) {
            Some(layout) => Ok(layout.clone()),
            None => Layout::of(meta),
        }
    }

    /// Remembers the layout of an AppleDouble that was applied.
    pub fn remember(&mut self, base: Ino, layout: Layout) {
        self.layouts.remember(base, layout);
    }

    /// Returns true if the AppleDouble that was written says when its file changed.
    pub fn says_date(&self, base: Ino) -> bool {
        match self.draft(base) {
            Some(draft) => draft.layout().is_some_and(|layout| layout.has_modified()),
            None => self.layouts.get(base).is_some_and(Layout::has_modified),
        }
    }

    /// Drops bytes and layout: what they said was removed from the volume.
    pub fn drop_bytes(&mut self, base: Ino) {
        self.layouts.forget(base);
        if let Entry::Occupied(mut held) = self.held.entry(base) {
            held.get_mut().draft = None;
            if held.get().refs == 0 {
                held.remove();
            }
        }
    }

    /// Drops bytes that are stored, of an AppleDouble that is not open.
    fn close(&mut self, base: Ino) {
        let Entry::Occupied(mut held) = self.held.entry(base) else { return };
        if held.get().opens > 0 {
            return;
        }
        if let Some(draft) = &held.get().draft {
            if draft.is_applied {
                if let Some(layout) = draft.layout() {
                    self.layouts.remember(base, layout);
                }
            } else if !draft.is_stored {
                return;
            }
        }
        held.get_mut().draft = None;
        if held.get().refs == 0 {
            held.remove();
        }
    }
}

/// A plain file that was made: its number, directory and name.
type Made = (Ino, Ino, Vec<u8>);

impl ForkView {
    /// Stores the bytes of an AppleDouble that is no whole one in a plain file, and removes that
    /// again when it is one. Returns the number of the plain file. A new one without bytes is
    /// stored only if `even_empty`: shells close a file once before they write it.
    pub(super) fn settle(&self, base: Ino, even_empty: bool) -> Result<Option<Ino>> {
        let (stored, made) = self.settle_bytes(base, even_empty)?;
        if let Some((ino, parent, name)) = made {
            // An AppleDouble of its own may have come before it.
            self.adopt(&Caller::ROOT, parent, &name, ino)?;
        }
        Ok(stored)
    }

    /// Returns the number of the plain file; if that was made now, also its number, directory and
    /// name.
    fn settle_bytes(&self, base: Ino, even_empty: bool) -> Result<(Option<Ino>, Option<Made>)> {
        let mut companions = self.companions();
        let Some(held) = companions.held.get_mut(&base) else { return Ok((None, None)) };
        let (parent, name) = &held.place;
        let Some(draft) = &mut held.draft else { return Ok((None, None)) };
        if draft.is_applied {
            if let Some(plain) = draft.plain.take() {
                match self.inner.unlink(&Caller::ROOT, *parent, &plain) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => return Err(e),
                }
            }
            return Ok((None, None));
        }
        if draft.bytes().is_empty() && !even_empty {
            return Ok((None, None));
        }
        let mut made = None;
        let there = match &draft.plain {
            Some(plain) => self.inner.lookup(*parent, plain).ok(),
            None => None,
        };
        let ino = match there {
            Some(entry) => entry.attr.ino,
            None => {
                let (ino, plain) = self.make_plain(*parent, name)?;
                made = Some((ino, *parent, plain.clone()));
                draft.plain = Some(plain);
                draft.is_stored = false;
                ino
            }
        };
        let stored = if draft.is_stored { Ok(()) } else { self.store(ino, draft.bytes()) };
        draft.is_stored |= stored.is_ok();
        self.inner.forget(ino, 1);
        stored.map(|()| (Some(ino), made))
    }

    /// Makes a plain file for an AppleDouble, under its name if that is free and fits. Returns its
    /// number, with a reference, and its name.
    pub(super) fn make_plain(&self, parent: Ino, name: &[u8]) -> Result<(Ino, Vec<u8>)> {
        let mut name = self.stored_name(parent, name)?.into_owned();
        let whole = name.clone();
        for turn in 1..NAMES_MAX {
            match self.inner.mknod(&Caller::ROOT, parent, &name, FileKind::Regular, 0o644, 0) {
                Ok(entry) => return Ok((entry.attr.ino, name)),
                Err(Error::Exists) => name = shortened(&whole, turn).into_owned(),
                Err(e) => return Err(e),
            }
        }
        Err(Error::Exists)
    }

    /// Makes `bytes` the content of a plain file.
    pub(super) fn store(&self, ino: Ino, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            match self.inner.write(&Caller::ROOT, ino, Handle::NONE, done as u64, rest)? {
                0 => return Err(Error::NoSpace),
                put => done += put,
            }
        }
        let len_bytes = Some(bytes.len() as u64);
        let set = weft_vfs::SetAttr { size_bytes: len_bytes, ..weft_vfs::SetAttr::default() };
        self.inner.setattr(&Caller::ROOT, ino, &set).map(drop)
    }

    /// Stores all bytes that are in memory alone; returns the first error.
    pub(super) fn settle_all(&self) -> Result<()> {
        let all: Vec<Ino> = self.companions().held.keys().copied().collect();
        let mut first = Ok(());
        for base in all {
            let settled = self.settle(base, true).map(drop);
            self.companions().close(base);
            first = first.and(settled);
        }
        first
    }

    /// Ends one opening.
    pub(super) fn closed(&self, base: Ino) -> Result<()> {
        let last = {
            let mut companions = self.companions();
            let Some(held) = companions.held.get_mut(&base) else { return Ok(()) };
            held.opens = held.opens.saturating_sub(1);
            held.opens == 0
        };
        if !last {
            return Ok(());
        }
        let settled = self.settle(base, true).map(drop);
        self.companions().close(base);
        settled
    }

    /// Gives references back.
    pub(super) fn unheld(&self, base: Ino, count: u64) {
        let last = {
            let mut companions = self.companions();
            let Some(held) = companions.held.get_mut(&base) else { return };
            held.refs = held.refs.saturating_sub(count);
            held.refs == 0
        };
        if last {
            self.companions().opened_by_none(base);
            if let Err(e) = self.settle(base, true) {
                // Kept, and tried again by the next sync.
                tracing::error!("the AppleDouble of file {} could not be stored: {e}", base.0);
            }
            self.companions().close(base);
        }
    }
}

impl Companions {
    fn opened_by_none(&mut self, base: Ino) {
        if let Some(held) = self.held.get_mut(&base) {
            held.opens = 0;
        }
    }
}
