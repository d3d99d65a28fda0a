//! Messages between the parent and a worker: JSON, each after its length in four bytes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Error, Result};

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// One end of a connection between the parent and a worker.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    pub(super) fn pair() -> io::Result<(Self, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self(here), there))
    }

    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    pub(super) fn end(&self) {
        // An error means that the other end is closed.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::Gone`] if the other side has ended; [`Error::MessageTooLong`], and nothing was sent;
    /// [`Error::Message`] if it cannot be written as JSON; [`Error::Channel`].
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        // The length is known at last: its place comes first, so that one write sends both.
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, message)?;
        let len = bytes.len() - 4;
        let Some(prefix) = u32::try_from(len).ok().filter(|_| len <= MESSAGE_BYTES_MAX) else {
            return Err(Error::MessageTooLong(len as u64));
        };
        bytes[..4].copy_from_slice(&prefix.to_le_bytes());
        self.0.write_all(&bytes).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Gone,
            _ => Error::Channel(e),
        })
    }

    /// Waits for the next message; `None` if the other side has ended.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] and [`Error::Message`]; [`Error::Channel`], also if the other side
    /// ended within a message. After an error no further message can be received.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut prefix = [0; 4];
        match self.0.read_exact(&mut prefix) {
            Ok(()) => {}
            // Also after one to three bytes: the other side was killed.
            Err(e) if is_end(&e) => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
        let len = u32::from_le_bytes(prefix) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(Error::MessageTooLong(len as u64));
        }
        let mut bytes = vec![0; len];
        match self.0.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(e) if is_end(&e) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    /// Waits for the next message as [`receive`](Self::receive) does, but so long for each part of
    /// it. The other side has ended also if this returns [`Error::Gone`].
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Gone`] if the other side has ended; those of
    /// [`receive`](Self::receive).
    pub fn receive_within<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T> {
        let limit = limit.max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(limit)).map_err(Error::Channel)?;
        let received = self.receive();
        self.0.set_read_timeout(None).map_err(Error::Channel)?;
        received?.ok_or(Error::Gone)
    }
}

fn is_end(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn failed(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::TimedOut,
        _ => Error::Channel(e),
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_the_end_is_seen() {
        let (mut here, there) = Channel::pair().expect("pair");
        let mut there = Channel::new(there);
        here.send(&"first").expect("send");
        here.send(&vec![1, 2, 3]).expect("send");
        assert_eq!(there.receive::<String>().expect("receive").as_deref(), Some("first"));
        assert_eq!(there.receive::<Vec<u8>>().expect("receive"), Some(vec![1, 2, 3]));
        let late = there.receive_within::<u8>(Duration::from_millis(5));
        assert!(matches!(late, Err(Error::TimedOut)), "{late:?}");
        drop(here);
        assert_eq!(there.receive::<u8>().expect("receive"), None);
        assert!(matches!(there.receive_within::<u8>(Duration::from_secs(1)), Err(Error::Gone)));
        assert!(matches!(there.send(&1), Err(Error::Gone)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let received = |bytes: &[u8]| {
            let (mut here, mut there) = Channel::pair().expect("pair");
            there.write_all(bytes).expect("write");
            drop(there);
            here.receive::<u8>()
        };
        assert_eq!(received(b"\x01\0\0\x007").expect("a number"), Some(7));
        assert!(matches!(received(b"GET / HTTP/1.1"), Err(Error::MessageTooLong(_))));
        assert!(matches!(received(b"\x02\0\0\0{]"), Err(Error::Message(_))));
        // Killed while it sent.
        assert_eq!(received(b"\x02").expect("an end"), None);
        assert_eq!(received(b"\x09\0\0\0\"half").expect("an end"), None);
    }
}
