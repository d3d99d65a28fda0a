//! The send queue of a connection. The sender of a message never waits for the peer: if the peer
//! takes too little, the connection ends.
//!
//! On a plain socket, the thread that posts a message sends it itself, as long as the queue is
//! empty and the kernel takes it at once; the sending thread is woken for the rest alone. That
//! saves one hand-over for each message.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::net::{SendFlags, send};
use weft_net::{SendHalf, Socket, write_all_vectored};
use weft_ringer::wire::Wire;
use weft_ringer::wire::frame::frame;

use super::OUTBOX_MAX_BYTES;

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    closed: bool,
    /// Nothing more is taken; what is queued is sent.
    ending: bool,
    /// A frame that was taken out is being sent.
    busy: bool,
}

/// The send queue of a connection.
#[derive(Debug)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
    socket: Arc<Socket>,
    /// Whether bytes go to the socket as they are.
    plain: bool,
}

impl Outbox {
    /// Makes a queue for the connection of this socket and writer.
    pub fn new(socket: Arc<Socket>, writer: &dyn SendHalf) -> Self {
        let plain = writer.is_plain();
        Self { queue: Mutex::default(), changed: Condvar::new(), socket, plain }
    }

    /// Sends as much as the kernel takes at once, and returns how many bytes that was.
    fn send_at_once(&self, bytes: &[u8]) -> usize {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // The sending thread finds out what is wrong with the connection.
        send(&*self.socket, bytes, flags).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a message to the queue. Returns `false` if the connection has ended, or ends by
    /// this.
    pub fn post<T: Wire>(&self, message: &T) -> bool {
        let mut bytes = match frame(message) {
            Ok(bytes) => bytes,
            Err(e) => {
                tracing::error!("a message could not be sent: {e}");
                return true;
            }
        };
        let mut queue = self.lock();
        if queue.closed || queue.ending {
            return false;
        }
        if queue.bytes + bytes.len() > OUTBOX_MAX_BYTES {
            drop(queue);
            tracing::warn!("the peer reads too slowly: connection closed");
            self.close();
            return false;
        }
        if self.plain && queue.frames.is_empty() && !queue.busy {
            let sent = self.send_at_once(&bytes);
            if sent == bytes.len() {
                return true;
            }
            bytes.drain(..sent);
        }
        queue.bytes += bytes.len();
        queue.frames.push_back(bytes);
        self.changed.notify_all();
        true
    }

    /// Returns true if the connection has ended, as far as this side knows.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ends the connection once the messages posted so far are sent.
    pub fn end(&self) {
        let mut queue = self.lock();
        queue.ending = true;
        let is_sent = queue.frames.is_empty() && !queue.busy;
        drop(queue);
        if is_sent {
            self.close();
        }
    }

    /// Ends the connection in both directions, and drops the messages that are not sent yet.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.frames.clear();
        queue.bytes = 0;
        self.changed.notify_all();
        self.socket.shutdown(Shutdown::Both);
    }

    /// Waits, up to `limit`, until the queue is empty.
    pub fn drain(&self, limit: std::time::Duration) {
        let queue = self.lock();
        let left = |q: &mut Queue| q.bytes > 0 && !q.closed;
        let _ = self.changed.wait_timeout_while(queue, limit, left);
    }

    /// Sends the queue's messages until the connection ends.
    pub fn run(&self, mut writer: Box<dyn SendHalf>) {
        loop {
            let bytes = {
                let mut queue = self.lock();
                loop {
                    if queue.closed {
                        return;
                    }
                    if let Some(bytes) = queue.frames.pop_front() {
                        queue.busy = true;
                        break bytes;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            if let Err(e) = write_all_vectored(&mut *writer, &[&bytes]) {
                tracing::debug!("cannot send: {e}");
                return self.close();
            }
            let mut queue = self.lock();
            queue.bytes = queue.bytes.saturating_sub(bytes.len());
            queue.busy = false;
            self.changed.notify_all();
            if queue.ending && queue.frames.is_empty() {
                drop(queue);
                return self.close();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use weft_ringer::Bytes;

    /// A writer as that of TLS: messages go through the sending thread.
    struct Secured(UnixStream);

    impl Write for Secured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.0.flush()
        }
    }

    impl SendHalf for Secured {}

    #[test]
    fn a_connection_ends_behind_its_last_message() {
        let message = Bytes(b"revoked".to_vec());
        let sent = frame(&message).expect("it is short");
        for (is_ended, wanted) in [(true, sent), (false, Vec::new())] {
            let (near, mut far) = UnixStream::pair().expect("sockets");
            let writer = Box::new(Secured(near.try_clone().expect("a socket")));
            let outbox = Outbox::new(Arc::new(Socket::Unix(near)), &*writer);
            assert!(outbox.post(&message));
            if is_ended {
                outbox.end();
            } else {
                outbox.close();
            }
            assert!(!outbox.post(&message), "nothing more is taken");
            // The sending thread comes to it late.
            outbox.run(writer);
            assert!(outbox.is_closed());
            let mut got = Vec::new();
            far.read_to_end(&mut got).expect("its end");
            assert_eq!(got, wanted);
        }
    }
}
