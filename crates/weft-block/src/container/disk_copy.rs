//! DiskCopy 4.2: a header of 84 bytes, the blocks of a floppy, then the twelve bytes of tag that a
//! Macintosh floppy keeps beside each block.
//!
//! Source: Apple II File Type Note $E0/8005. The header has a checksum of the data and one of the
//! tags (which leaves out the first tag). Each rotates after every word, so that one changed word
//! means summing everything again: this is done at a flush, behind the data. A crash before leaves
//! data without its sum, which [`DiskCopy::verify`] shows and the next flush after a write mends.

use super::{be16, be32};
use crate::{BlockDevice, Change, Filter, Partition, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const HEADER_BYTES: u64 = 84;
const DATA_SUM_AT: u64 = 0x48;
/// The sum of the tags leaves out this many bytes of them.
const UNSUMMED_TAG_BYTES: u64 = 12;
/// Lengths of floppies in bytes, and what the header calls them: the kind of disk (0x50) and how it
/// is formatted (0x51: with two sides, and blocks interleaved by two or four, or as MFM).
const FLOPPIES: [(u64, u8, u8); 4] =
    [(400 << 10, 0, 0x12), (800 << 10, 1, 0x22), (720 << 10, 2, 0x22), (1440 << 10, 3, 0x22)];
/// The largest image taken for one: floppies have 1.4 MiB, hard disks of the Lisa 10.
const DATA_MAX_BYTES: u64 = 64 << 20;

/// The data of a DiskCopy 4.2 image as a device.
pub struct DiskCopy {
    file: Arc<dyn BlockDevice>,
    data: Partition<Arc<dyn BlockDevice>>,
    data_bytes: u64,
    tag_bytes: u64,
    name: Vec<u8>,
    /// Set before a write, so that the sum is never believed to be right when it is not.
    changed: AtomicBool,
}

impl std::fmt::Debug for DiskCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskCopy")
            .field("data_bytes", &self.data_bytes)
            .field("tag_bytes", &self.tag_bytes)
            .finish_non_exhaustive()
    }
}

impl DiskCopy {
    /// Length of the header in bytes.
    pub const HEADER_BYTES: u64 = HEADER_BYTES;

    /// Returns true if a disk of `len_bytes` is a floppy of a format that the header can state.
    #[must_use]
    pub fn is_floppy(len_bytes: u64) -> bool {
        FLOPPIES.iter().any(|(len, ..)| *len == len_bytes)
    }

    /// Writes the header of an image without tags of a floppy of `len_bytes`, called `name` (in
    /// MacRoman, cut to 63 bytes). Its sum is that of zeroes, until a flush behind a write.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it is no floppy; those of the device.
    pub fn write_header(file: &dyn BlockDevice, name: &[u8], len_bytes: u64) -> Result<()> {
        let Some((_, disk, format)) = FLOPPIES.iter().find(|(len, ..)| *len == len_bytes) else {
            return Err(crate::Error::Invalid(format!("a floppy of {len_bytes} bytes")));
        };
        let mut head = [0; HEADER_BYTES as usize];
        let name = &name[..name.len().min(63)];
        head[0] = name.len() as u8;
        head[1..=name.len()].copy_from_slice(name);
        head[0x40..0x44].copy_from_slice(&(len_bytes as u32).to_be_bytes());
        (head[0x50], head[0x51]) = (*disk, *format);
        head[0x52..0x54].copy_from_slice(&[1, 0]);
        file.write_at(&head, 0)
    }

    /// The image that a device holds, if its header is one and its lengths fit.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn recognise(file: &Arc<dyn BlockDevice>) -> Result<Option<Self>> {
        let file_bytes = file.geometry().len_bytes;
        let mut head = [0; HEADER_BYTES as usize];
        if file_bytes < HEADER_BYTES {
            return Ok(None);
        }
        file.read_at(&mut head, 0)?;
        let (data_bytes, tag_bytes) = (u64::from(be32(&head, 0x40)), u64::from(be32(&head, 0x44)));
        let blocks = data_bytes / 512;
        let fits = be16(&head, 0x52) == 0x0100
            && head[0] <= 63
            && data_bytes > 0
            && data_bytes % 512 == 0
            && data_bytes <= DATA_MAX_BYTES
            && tag_bytes.is_multiple_of(UNSUMMED_TAG_BYTES)
            // Some images have the tags of a part of the blocks.
            && tag_bytes <= blocks * UNSUMMED_TAG_BYTES
            && HEADER_BYTES + data_bytes + tag_bytes <= file_bytes;
        if !fits {
            return Ok(None);
        }
        Ok(Some(Self {
            file: Arc::clone(file),
            data: Partition::window(Arc::clone(file), HEADER_BYTES, data_bytes),
            data_bytes,
            tag_bytes,
            name: head[1..=usize::from(head[0])].to_vec(),
            changed: AtomicBool::new(false),
        }))
    }

    /// The disk's name in the header, in MacRoman.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns true if the blocks have tags.
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.tag_bytes > 0
    }

    /// Reports whether both checksums in the header are right.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    pub fn verify(&self) -> Result<bool> {
        let mut sums = [0; 8];
        self.file.read_at(&mut sums, DATA_SUM_AT)?;
        let tags_at = HEADER_BYTES + self.data_bytes + UNSUMMED_TAG_BYTES;
        let tags = self.sum(tags_at, self.tag_bytes.saturating_sub(UNSUMMED_TAG_BYTES))?;
        Ok(be32(&sums, 0) == self.sum(HEADER_BYTES, self.data_bytes)? && be32(&sums, 4) == tags)
    }

    fn sum(&self, at: u64, len_bytes: u64) -> Result<u32> {
        let mut buffer = vec![0; 64 << 10];
        let (mut sum, mut done) = (0_u32, 0);
        while done < len_bytes {
            let n = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(buffer.len());
            self.file.read_at(&mut buffer[..n], at + done)?;
            for word in buffer[..n].chunks_exact(2) {
                sum = sum.wrapping_add(u32::from(be16(word, 0))).rotate_right(1);
            }
            done += n as u64;
        }
        Ok(sum)
    }
}

impl Filter for DiskCopy {
    type Below = Partition<Arc<dyn BlockDevice>>;

    fn below(&self) -> &Self::Below {
        &self.data
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        self.changed.store(true, Ordering::Release);
        change.apply(&self.data)
    }

    fn filter_flush(&self) -> Result<()> {
        if self.changed.swap(false, Ordering::AcqRel) {
            let summed = self.data.flush().and_then(|()| {
                let sum = self.sum(HEADER_BYTES, self.data_bytes)?;
                self.file.write_at(&sum.to_be_bytes(), DATA_SUM_AT)
            });
            if summed.is_err() {
                self.changed.store(true, Ordering::Release);
                return summed;
            }
        }
        self.file.flush()
    }
}
