//! AppleDoubles that are being written.
//!
//! A program writes a header of its own layout, then the resource fork, in pieces. The bytes are
//! kept as written while the companion is open, so that they read back unchanged. Each time they
//! are a whole AppleDouble, the parts that changed are applied to the file on the volume, so that
//! the cost of a write depends on its own length only.

use super::layout::{Entries, Layout};
use crate::streams::{MacVolume, ResourceReader};
use std::io::Read;
use std::ops::Range;
use weft_vfs::{Error, FileKind, Ino, Result};

/// The longest AppleDouble that can be written here, in bytes: the Resource Manager cannot address
/// more than 16 MiB of a fork.
const DRAFT_MAX_BYTES: u64 = 256 << 20;

/// The most ranges of changed bytes that are kept apart.
const RANGES_MAX: usize = 64;

/// The bytes of one AppleDouble.
#[derive(Debug, Default)]
pub(super) struct Draft {
    bytes: Vec<u8>,
    /// The place of the resource fork in `bytes` when that was applied last, and its length.
    applied: Option<(usize, usize)>,
    /// The bytes that changed since then.
    changed: Vec<Range<usize>>,
    /// The bytes are a whole AppleDouble, and what they say is on the volume.
    pub is_applied: bool,
    /// The bytes are no whole AppleDouble, and are in the plain file.
    pub is_stored: bool,
    /// The name of the plain file that has the bytes.
    pub plain: Option<Vec<u8>>,
}

/// Copies the bytes from `offset` on to `buf`; returns their number.
pub(super) fn copy_from(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let n = buf.len().min(bytes.len() - from);
    buf[..n].copy_from_slice(&bytes[from..from + n]);
    n
}

/// Applies an AppleDouble to a file. Returns its layout if `bytes` are a whole one that the file can
/// take, and `None` if nothing was applied.
pub(super) fn take_over(
    volume: &dyn MacVolume,
    base: Ino,
    bytes: Vec<u8>,
) -> Result<Option<Layout>> {
    let modified = volume.meta(base)?.modified;
    let says_date = Entries::parse(&bytes).is_some_and(|entries| entries.has_modified());
    let whole = 0..bytes.len();
    let mut draft = Draft { changed: Vec::from([whole]), bytes, ..Draft::default() };
    draft.apply(volume, base)?;
    // The file was not changed now: a part of it came earlier.
    if draft.is_applied && !says_date {
        let meta = volume.meta(base)?;
        volume.set_meta(base, &crate::interchange::Meta { modified, ..meta })?;
    }
    Ok(draft.layout())
}

impl Draft {
    /// Begins with the resource fork and the information on the volume.
    pub fn of(volume: &dyn MacVolume, base: Ino, layout: Option<&Layout>) -> Result<Self> {
        let meta = volume.meta(base)?;
        if meta.resource_bytes > DRAFT_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let own = Layout::of(&meta)?;
        let layout = layout.filter(|layout| layout.says(&meta)).unwrap_or(&own);
        let mut bytes = layout.before.clone();
        ResourceReader::new(volume, base)
            .take(meta.resource_bytes)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::Io { errno: 5, message: e.to_string() })?;
        let at = layout.before.len();
        let applied = Some((at, bytes.len() - at));
        bytes.extend_from_slice(&layout.after);
        Ok(Self { bytes, applied, is_applied: true, ..Self::default() })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the layout of a whole AppleDouble.
    pub fn layout(&self) -> Option<Layout> {
        let (at, len) = self.applied.filter(|_| self.is_applied)?;
        Layout::parse(&self.bytes, at, len)
    }

    pub fn write(
        &mut self,
        volume: &dyn MacVolume,
        base: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= DRAFT_MAX_BYTES);
        let (at, end) = (offset as usize, end.ok_or(Error::TooLarge)? as usize);
        let old_len = self.bytes.len();
        if old_len < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(data);
        self.change(at.min(old_len)..end);
        self.apply(volume, base)
    }

    pub fn set_len(&mut self, volume: &dyn MacVolume, base: Ino, len_bytes: u64) -> Result<()> {
        if len_bytes > DRAFT_MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let (old, new) = (self.bytes.len(), len_bytes as usize);
        self.bytes.resize(new, 0);
        self.change(old.min(new)..old.max(new));
        self.apply(volume, base)
    }

    fn change(&mut self, range: Range<usize>) {
        self.is_stored = false;
        match self.changed.last_mut() {
            // Written in order.
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.changed.push(range),
        }
        if self.changed.len() > RANGES_MAX {
            let start = self.changed.iter().map(|range| range.start).min().unwrap_or(0);
            let end = self.changed.iter().map(|range| range.end).max().unwrap_or(0);
            self.changed = std::iter::once(start..end).collect();
        }
    }

    /// Applies what changed, if the bytes are a whole AppleDouble.
    fn apply(&mut self, volume: &dyn MacVolume, base: Ino) -> Result<()> {
        // Most writes are within the resource fork.
        let within = |(at, len): (usize, usize)| {
            self.changed.iter().all(|range| at <= range.start && range.end <= at + len)
        };
        let entries = match self.applied.filter(|_| self.is_applied) {
            Some(fork) if within(fork) => None,
            _ => match Entries::parse(&self.bytes) {
                Some(entries) => Some(entries),
                None => {
                    self.is_applied = false;
                    return Ok(());
                }
            },
        };
        self.is_applied = false;
        let old = self.applied.take();
        let fork = match (&entries, old) {
            (Some(entries), _) => entries.fork,
            (None, old) => old.unwrap_or_default(),
        };
        if volume.getattr(base)?.kind == FileKind::Regular {
            self.apply_fork(volume, base, old, fork)?;
        } else if fork.1 > 0 {
            // A folder has no resource fork.
            return Ok(());
        }
        if let Some(entries) = entries {
            let old = volume.meta(base)?;
            let mut new = old.clone();
            entries.set(&mut new);
            if new != old {
                volume.set_meta(base, &new)?;
            }
        }
        self.changed.clear();
        self.applied = Some(fork);
        self.is_applied = true;
        Ok(())
    }

    fn apply_fork(
        &self,
        volume: &dyn MacVolume,
        base: Ino,
        old: Option<(usize, usize)>,
        (at, len): (usize, usize),
    ) -> Result<()> {
        let mut ranges = match old {
            Some((old_at, old_len)) if old_at == at => {
                let mut ranges = self.changed.clone();
                ranges.push(at + old_len..at + len);
                ranges
            }
            _ => std::iter::once(at..at + len).collect(),
        };
        ranges.sort_unstable_by_key(|range| range.start);
        let len_now = volume.meta(base)?.resource_bytes;
        if len_now > len as u64 {
            volume.set_resource_len(base, len as u64)?;
        }
        let mut done = at;
        for range in ranges {
            done = done.max(range.start);
            while done < range.end.min(at + len) {
                let piece = &self.bytes[done..range.end.min(at + len)];
                match volume.write_resource(base, (done - at) as u64, piece)? {
                    0 => return Err(Error::NoSpace),
                    put => done += put,
                }
            }
        }
        if volume.meta(base)?.resource_bytes != len as u64 {
            volume.set_resource_len(base, len as u64)?;
        }
        Ok(())
    }
}
