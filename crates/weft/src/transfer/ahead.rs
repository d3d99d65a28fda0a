//! Reads a stream ahead in its own thread, so that reading and processing overlap.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Size of one buffer in bytes; at most two are read ahead.
const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 2;

/// A reader that is ahead of its consumer by up to a few buffers.
///
/// The thread ends with the stream, or when this is dropped (then after the read in progress).
#[derive(Debug)]
pub struct ReadAhead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    ended: bool,
}

impl ReadAhead {
    /// Starts to read `stream`.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn new(stream: impl Read + Send + 'static) -> io::Result<Self> {
        let (full_in, full) = sync_channel(BUFFERS);
        let (empty, empty_out) = sync_channel::<Vec<u8>>(BUFFERS + 1);
        thread::Builder::new()
            .name("read-ahead".into())
            .spawn(move || read_all(stream, &full_in, &empty_out))?;
        Ok(Self { full, empty, current: Vec::new(), at: 0, ended: false })
    }
}

fn read_all(
    mut stream: impl Read,
    full: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = empty.try_recv().unwrap_or_default();
        buffer.resize(BUFFER_BYTES, 0);
        let mut filled = 0;
        let result = loop {
            match stream.read(&mut buffer[filled..]) {
                Ok(0) => break Ok(()),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
            if filled == buffer.len() {
                break Ok(());
            }
        };
        let ended = filled < buffer.len();
        buffer.truncate(filled);
        if filled > 0 && full.send(Ok(buffer)).is_err() {
            return;
        }
        if let Err(e) = result {
            // If the consumer is gone, the error is not needed.
            let _ = full.send(Err(e));
            return;
        }
        if ended {
            return;
        }
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.current.len() {
            if self.ended {
                return Ok(0);
            }
            let used = std::mem::take(&mut self.current);
            self.at = 0;
            if used.capacity() > 0 {
                // If the queue is full, the thread makes a buffer of its own.
                let _ = self.empty.try_send(used);
            }
            match self.full.recv() {
                Ok(Ok(next)) => self.current = next,
                Ok(Err(e)) => {
                    self.ended = true;
                    return Err(e);
                }
                Err(_) => self.ended = true,
            }
        }
        let n = buf.len().min(self.current.len() - self.at);
        buf[..n].copy_from_slice(&self.current[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_in_order() {
        for len in [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, 5 * BUFFER_BYTES + 17] {
            let data: Vec<u8> = (0..len).map(|i| (i / 3 % 251) as u8).collect();
            let mut out = Vec::new();
            ReadAhead::new(io::Cursor::new(data.clone())).unwrap().read_to_end(&mut out).unwrap();
            assert!(out == data, "{len} bytes");
        }
    }

    #[test]
    fn an_error_comes_after_the_data_before_it() {
        struct Breaks(usize);
        impl Read for Breaks {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if self.0 == 0 {
                    return Err(io::Error::other("gone"));
                }
                let n = self.0.min(buf.len());
                self.0 -= n;
                Ok(n)
            }
        }
        let mut out = Vec::new();
        let e = ReadAhead::new(Breaks(3000)).unwrap().read_to_end(&mut out).unwrap_err();
        assert_eq!((out.len(), e.to_string().as_str()), (3000, "gone"));
    }

    #[test]
    fn it_can_be_dropped_unread() {
        drop(ReadAhead::new(io::repeat(1)).unwrap());
    }
}
