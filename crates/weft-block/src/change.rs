//! A change of a device as a value, so that code that treats all of them alike sees each.

use crate::{BlockDevice, Result, check_range};
use std::borrow::Cow;
use std::io::IoSlice;

/// Bytes of one write where zeroes have to be sent.
const ZEROES_AT_ONCE: u64 = 1 << 20;

/// A request that changes a range of a device.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// Byte offset of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len_bytes: u64,
    /// The call that it is.
    pub kind: ChangeKind<'a>,
}

/// The calls of a [`BlockDevice`] that change its content.
#[derive(Debug, Clone, Copy)]
pub enum ChangeKind<'a> {
    /// [`write_at`](BlockDevice::write_at), of one buffer, and
    /// [`write_vectored_at`](BlockDevice::write_vectored_at).
    Write(&'a [IoSlice<'a>]),
    /// [`write_zeroes`](BlockDevice::write_zeroes).
    Zero,
    /// [`discard`](BlockDevice::discard).
    Discard,
}

impl<'a> Change<'a> {
    /// A write of `bufs`, one after the other.
    #[must_use]
    pub fn write(bufs: &'a [IoSlice<'a>], offset: u64) -> Self {
        Self { offset, len_bytes: vectored_len(bufs), kind: ChangeKind::Write(bufs) }
    }

    /// A write of zeroes.
    #[must_use]
    pub fn zero(offset: u64, len_bytes: u64) -> Self {
        Self { offset, len_bytes, kind: ChangeKind::Zero }
    }

    /// A discard.
    #[must_use]
    pub fn discard(offset: u64, len_bytes: u64) -> Self {
        Self { offset, len_bytes, kind: ChangeKind::Discard }
    }

    /// Makes the change on `device` by the call that it is.
    ///
    /// # Errors
    /// Those of the device.
    pub fn apply<D: BlockDevice + ?Sized>(&self, device: &D) -> Result<()> {
        match self.kind {
            ChangeKind::Write([one]) => device.write_at(one, self.offset),
            ChangeKind::Write(bufs) => device.write_vectored_at(bufs, self.offset),
            ChangeKind::Zero => device.write_zeroes(self.offset, self.len_bytes),
            ChangeKind::Discard => device.discard(self.offset, self.len_bytes),
        }
    }

    /// Makes the change by writes alone: one for each buffer, some for zeroes, none for a discard.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn apply_by_writes(&self, mut write: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        let mut at = self.offset;
        match self.kind {
            ChangeKind::Write(bufs) => {
                for buf in bufs {
                    write(buf, at)?;
                    at += buf.len() as u64;
                }
            }
            ChangeKind::Zero => {
                let zeroes = vec![0; self.len_bytes.min(ZEROES_AT_ONCE) as usize];
                let end = self.offset + self.len_bytes;
                while at < end {
                    let n = (end - at).min(ZEROES_AT_ONCE);
                    write(&zeroes[..n as usize], at)?;
                    at += n;
                }
            }
            ChangeKind::Discard => {}
        }
        Ok(())
    }

    /// Refuses a change that reaches past the end of a device of `device_bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn check(&self, device_bytes: u64) -> Result<()> {
        check_range(self.op(), self.offset, self.len_bytes, device_bytes)
    }

    /// The name that errors give the call.
    #[must_use]
    pub fn op(&self) -> &'static str {
        match self.kind {
            ChangeKind::Write(_) => "write",
            ChangeKind::Zero => "write zeroes",
            ChangeKind::Discard => "discard",
        }
    }
}

/// The bytes of a vectored write in all.
pub(crate) fn vectored_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// The bytes of a vectored write as one buffer.
pub(crate) fn joined<'a>(bufs: &'a [IoSlice<'_>]) -> Cow<'a, [u8]> {
    match bufs {
        [one] => Cow::Borrowed(one),
        bufs => bufs.iter().flat_map(|buf| buf.iter().copied()).collect(),
    }
}
