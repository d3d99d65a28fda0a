//! What a command prints: read from a pipe as it comes, and kept up to a bound.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

/// The most bytes that wait for [`Output::drain_now`].
const PENDING_BYTES_MAX: usize = 4 << 20;

/// The beginning and the end of a command's output.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The first bytes: all, if nothing was dropped.
    pub first: Vec<u8>,
    /// The number of bytes between the two that were dropped.
    pub dropped_bytes: u64,
    /// The last bytes, if there are more than `first` holds.
    pub last: VecDeque<u8>,
}

impl Kept {
    /// Adds bytes, and drops others so that at most `bound` are kept.
    fn add(&mut self, mut bytes: &[u8], bound: usize) {
        let half = bound.div_ceil(2);
        if self.last.is_empty() && self.first.len() < half {
            let (first, rest) = bytes.split_at(bytes.len().min(half - self.first.len()));
            self.first.extend_from_slice(first);
            bytes = rest;
        }
        self.last.extend(bytes);
        let excess = self.last.len().saturating_sub(bound - half);
        self.last.drain(..excess);
        self.dropped_bytes += excess as u64;
    }

    /// Returns true if there was no output.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last: Vec<u8> = self.last.iter().copied().collect();
        if self.dropped_bytes == 0 {
            // A character may lie across the two.
            let all = [self.first.as_slice(), &last].concat();
            return f.write_str(&String::from_utf8_lossy(&all));
        }
        last.splice(..0, format!("\n[{} bytes left out]\n", self.dropped_bytes).into_bytes());
        f.write_str(&String::from_utf8_lossy(&self.first))?;
        f.write_str(&String::from_utf8_lossy(&last))
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// The reading end of a pipe that a command writes to.
pub struct Output {
    pipe: OwnedFd,
    bound: usize,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    kept: Kept,
    /// The bytes that [`Output::drain_now`] is to return, if it is to be called.
    pending: Option<Vec<u8>>,
    ended: bool,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("pipe", &self.pipe).finish_non_exhaustive()
    }
}

impl Output {
    /// Makes a pipe of which at most `bound` bytes are kept. Returns the writing end, too.
    pub(super) fn pipe(bound: usize, drained: bool) -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only this end: programs do not expect of theirs that it cannot wait.
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        let read = Read { pending: drained.then(Vec::new), ..Read::default() };
        Ok((Self { pipe: reader, bound, read: Mutex::new(read) }, writer))
    }

    /// Returns what was written since the last call, up to this moment: if a process wrote a line
    /// and then made a call of a file system, this returns the line to the file system, in that
    /// call. Does not wait.
    ///
    /// If nobody calls this, at most 4 MiB wait here, and the rest is missing.
    pub fn drain_now(&self) -> Vec<u8> {
        let mut read = self.lock();
        self.read_to(&mut read);
        read.pending.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Reads what is in the pipe.
    pub(super) fn read_now(&self) {
        self.read_to(&mut self.lock());
    }

    /// Returns true if no process has the writing end any more.
    pub(super) fn is_ended(&self) -> bool {
        self.lock().ended
    }

    /// Returns what was kept.
    pub(super) fn take(&self) -> Kept {
        std::mem::take(&mut self.lock().kept)
    }

    fn lock(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_to(&self, read: &mut Read) {
        // As much as is there now: a command that prints without end does not keep this going.
        let Ok(there) = rustix::io::ioctl_fionread(&self.pipe) else { return };
        let mut there = usize::try_from(there).unwrap_or(usize::MAX).max(1);
        let mut buf = [0; 16 << 10];
        while there > 0 {
            let len = there.min(buf.len());
            match rustix::io::read(&self.pipe, &mut buf[..len]) {
                Ok(0) => {
                    read.ended = true;
                    return;
                }
                Ok(got) => {
                    there -= got;
                    read.kept.add(&buf[..got], self.bound);
                    if let Some(pending) = &mut read.pending {
                        let room = PENDING_BYTES_MAX.saturating_sub(pending.len());
                        pending.extend_from_slice(&buf[..got.min(room)]);
                    }
                }
                Err(Errno::INTR) => {}
                // Empty, as another thread was faster; or it cannot be read any more.
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        for step in [1, 7, 100, 1000] {
            let mut kept = Kept::default();
            let all: Vec<u8> = (0..=99).collect();
            for chunk in all.chunks(step) {
                kept.add(chunk, 11);
            }
            assert_eq!(kept.first, [0, 1, 2, 3, 4, 5]);
            assert_eq!(kept.last, [95, 96, 97, 98, 99]);
            assert_eq!(kept.dropped_bytes, 89);
            let mut kept = Kept::default();
            for chunk in all.chunks(step) {
                kept.add(chunk, 100);
            }
            assert_eq!((kept.dropped_bytes, kept.to_string().len()), (0, 100));
        }
    }

    #[test]
    fn draining_is_exact_and_does_not_wait() {
        let (output, writer) = Output::pipe(10, true).expect("pipe");
        assert_eq!(output.drain_now(), b"");
        rustix::io::write(&writer, b"one\n").expect("write");
        rustix::io::write(&writer, b"two\n").expect("write");
        output.read_now();
        rustix::io::write(&writer, b"three\n").expect("write");
        assert_eq!(output.drain_now(), b"one\ntwo\nthree\n");
        assert_eq!(output.drain_now(), b"");
        let page = vec![b'x'; 64 << 10];
        rustix::io::write(&writer, &page).expect("write");
        assert_eq!(output.drain_now(), page);
        assert!(!output.is_ended());
        drop(writer);
        assert_eq!(output.drain_now(), b"");
        assert!(output.is_ended());
        assert_eq!(output.take().dropped_bytes, 14 + (64 << 10) - 10);
    }
}
