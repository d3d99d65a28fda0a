//! Frames: the sequence of messages on a stream.
//!
//! ```text
//! offset 0   4 bytes   length of the rest, little-endian, 2 to FRAME_MAX_BYTES
//!        4   1 byte    0x72: another number is another protocol
//!        5   1 byte    the version of the sender
//!        6   ...       the message
//! ```
//!
//! A stream with one invalid frame is unusable: there is no way to find the next frame.

use super::codec::{Reader, Wire, WireError};

/// The protocol version of this code. Since version 3 a [`Refusal`](crate::Refusal) may have a
/// detail; since version 4 a client reports what an archive lacks.
pub const VERSION: u8 = 4;
/// The longest frame, in bytes after its length. A block map of 2^16 blocks fits.
pub const FRAME_MAX_BYTES: usize = 8 << 20;
const MAGIC: u8 = 0x72;
const PREFIX_BYTES: usize = 4;

/// Returns the frame of a message.
///
/// # Errors
/// [`WireError::Oversized`] if it is longer than a peer would accept.
pub fn frame<T: Wire>(message: &T) -> Result<Vec<u8>, WireError> {
    let mut out = vec![0, 0, 0, 0, MAGIC, VERSION];
    message.put(&mut out);
    let len_bytes = out.len() - PREFIX_BYTES;
    let prefix = u32::try_from(len_bytes).ok().filter(|_| len_bytes <= FRAME_MAX_BYTES);
    let prefix = prefix
        .ok_or(WireError::Oversized { len_bytes: len_bytes as u64, max_bytes: FRAME_MAX_BYTES })?;
    out[..PREFIX_BYTES].copy_from_slice(&prefix.to_le_bytes());
    Ok(out)
}

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<T> {
    /// A message that was decoded.
    Message(T),
    /// A message of a later version with a variant unknown to this one. The stream goes on.
    FromTheFuture {
        /// The sender's version.
        version: u8,
        /// The error of decoding it.
        error: WireError,
    },
}

/// Collects bytes and returns messages. Holds at most one frame and the bytes received with its
/// end.
#[derive(Debug, Default)]
pub struct Deframer {
    bytes: Vec<u8>,
    /// The number of `bytes` that belong to frames already returned.
    done: usize,
}

impl Deframer {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that wait for the rest of their frame.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// Returns the bytes that wait for the rest of their frame.
    #[must_use]
    pub fn into_waiting(mut self) -> Vec<u8> {
        self.bytes.split_off(self.done)
    }

    /// Returns the next message, if it is complete.
    ///
    /// # Errors
    /// [`WireError`]: the stream cannot be used any more.
    pub fn pull<T: Wire>(&mut self) -> Result<Option<Frame<T>>, WireError> {
        let waiting = self.bytes.get(self.done..).unwrap_or_default();
        let Some((prefix, rest)) = waiting.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix);
        let len_bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if len_bytes > FRAME_MAX_BYTES {
            let (len_bytes, max_bytes) = (u64::from(len), FRAME_MAX_BYTES);
            return Err(WireError::Oversized { len_bytes, max_bytes });
        }
        // Another protocol is recognized before its whole frame is waited for.
        if rest.first().is_some_and(|&b| b != MAGIC) || len_bytes < 2 {
            return Err(WireError::NotOurs);
        }
        let Some(body) = rest.get(..len_bytes) else { return Ok(None) };
        let parsed = parse(body)?;
        self.done += PREFIX_BYTES + len_bytes;
        Ok(Some(parsed))
    }
}

/// Reads the part of a frame after its length.
fn parse<T: Wire>(body: &[u8]) -> Result<Frame<T>, WireError> {
    let mut from = Reader::new(body);
    let version = from.take(2, "a frame's header")?[1];
    let is_later = version > VERSION;
    match T::get(&mut from) {
        Ok(_) if !is_later && !from.rest().is_empty() => {
            Err(WireError::Trailing { len_bytes: from.rest().len() })
        }
        Ok(message) => Ok(Frame::Message(message)),
        Err(error @ WireError::Unknown { .. }) if is_later => {
            Ok(Frame::FromTheFuture { version, error })
        }
        Err(error) => Err(error),
    }
}
