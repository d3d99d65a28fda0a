//! The control socket of a live folder: lines of JSON.
//!
//! A client sends one [`Request`] to a line and gets one [`Answer`] to a line; to a power cut at a call
//! two: [`Answer::Armed`] at once, and [`Answer::Lost`] when it has come. Closing the connection takes
//! a request back that still waits.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::{CutPoint, LiveFolder, LiveReport, Loss, Lost};
use crate::{Error, Result};

/// The longest line that is read, in bytes.
const LINE_MAX: u64 = 64 << 10;

/// A request to a live folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Report the changes that are not durable.
    Report,
    /// Make everything durable.
    Sync,
    /// Cut the power.
    Lose {
        /// The changes that are lost.
        #[serde(flatten)]
        loss: Loss,
        /// At this call; otherwise now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<CutPoint>,
        /// Kill the processes that have used the folder, but for the one that asks and its ancestors.
        #[serde(default)]
        kill: bool,
    },
}

/// The answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Report`].
    Report(LiveReport),
    /// Everything is durable.
    Done,
    /// From now on each call counts.
    Armed,
    /// The power was cut, and is on again.
    Lost(Lost),
    /// It could not be done, and why.
    Error(String),
}

/// The address of a control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A name in the abstract namespace (unix(7)), of which no file is left behind.
    Abstract(Vec<u8>),
    /// A path.
    Path(PathBuf),
}

impl Address {
    fn socket(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Abstract(name) => SocketAddr::from_abstract_name(name),
            Self::Path(path) => SocketAddr::from_pathname(path),
        }
    }
}

/// Answers requests until it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    /// A file to be removed.
    path: Option<PathBuf>,
}

impl Server {
    /// Begins to answer.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket cannot be made.
    pub fn start(folder: &Arc<LiveFolder>, address: &Address) -> Result<Self> {
        let failed = || Error::io("making the control socket");
        let socket = address.socket().map_err(failed())?;
        let listener = Arc::new(UnixListener::bind_addr(&socket).map_err(failed())?);
        let path = match address {
            Address::Path(path) => {
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(path, mode).map_err(failed())?;
                Some(path.clone())
            }
            Address::Abstract(_) => None,
        };
        let folder = Arc::downgrade(folder);
        let thread = std::thread::Builder::new().name("weft-crash-control".into());
        let accepting = Arc::clone(&listener);
        let accept = move || {
            // An error comes when the server is dropped.
            while let Ok((stream, _)) = accepting.accept() {
                let Some(folder) = folder.upgrade() else { return };
                let thread = std::thread::Builder::new().name("weft-crash-client".into());
                // Without a thread the client is turned away.
                let _ = thread.spawn(move || serve(&folder, &stream));
            }
        };
        let thread = Some(thread.spawn(accept).map_err(failed())?);
        Ok(Self { listener, thread, path })
    }
}

impl Drop for Server {
    /// The name is free when this returns.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The process at the other end, if it may ask: it must be of the same user, or root.
fn peer(stream: &UnixStream) -> Option<u32> {
    let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
    let may = peer.uid.is_root() || peer.uid == geteuid();
    may.then_some(peer.pid.as_raw_nonzero().get().unsigned_abs())
}

fn serve(folder: &LiveFolder, stream: &UnixStream) {
    let Some(peer) = peer(stream) else { return };
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match std::io::Read::take(&mut lines, LINE_MAX).read_until(b'\n', &mut line) {
            Ok(len) if len > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let answer = match serde_json::from_slice(&line) {
            Ok(request) => answer(folder, stream, peer, &request),
            Err(e) => Some(Answer::Error(format!("not a request: {e}"))),
        };
        let Some(answer) = answer else { return };
        if send(stream, &answer).is_err() {
            return;
        }
    }
}

/// Does what is asked; `None` if the client has gone.
fn answer(
    folder: &LiveFolder,
    stream: &UnixStream,
    peer: u32,
    request: &Request,
) -> Option<Answer> {
    let done = match request {
        Request::Report => folder.report().map(Answer::Report),
        Request::Sync => folder.sync().map(|()| Answer::Done),
        Request::Lose { loss, at: None, kill } => {
            folder.lose(loss, kill.then_some(peer)).map(Answer::Lost)
        }
        Request::Lose { loss, at: Some(at), kill } => {
            // A client that is not there to hear it is noticed when it closes.
            let armed = || drop(send(stream, &Answer::Armed));
            let goes_on = || !has_gone(stream);
            match folder.lose_at(loss, at, kill.then_some(peer), &armed, &goes_on) {
                Ok(None) => return None,
                Ok(Some(lost)) => Ok(Answer::Lost(lost)),
                Err(e) => Err(e),
            }
        }
    };
    Some(done.unwrap_or_else(|e| Answer::Error(e.to_string())))
}

/// Returns true if the client has closed the connection.
fn has_gone(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream.as_fd(), &mut [0; 1], flags) {
        Ok((0, _)) => true,
        Ok(_) => false,
        Err(e) => std::io::Error::from(e).kind() != ErrorKind::WouldBlock,
    }
}

fn send(mut stream: &UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// A connection to the control socket of a live folder.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Io`] if nothing listens there.
    pub fn connect(address: &Address) -> Result<Self> {
        let connected = address.socket().and_then(|socket| UnixStream::connect_addr(&socket));
        let stream = connected.map_err(Error::io("connecting to the control socket"))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn send(&mut self, request: &Request) -> Result<()> {
        send(self.stream.get_ref(), request).map_err(Error::io("asking over the control socket"))
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// [`Error::Io`], also if the mount has ended; [`Error::Refused`] for [`Answer::Error`].
    pub fn receive(&mut self) -> Result<Answer> {
        match self.receive_within(None)? {
            Some(answer) => Ok(answer),
            None => {
                Err(Error::io("the answer over the control socket")(ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Waits for the next answer, at most for `limit`; returns `None` after that.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub fn receive_within(&mut self, limit: Option<Duration>) -> Result<Option<Answer>> {
        let failed = || Error::io("the answer over the control socket");
        self.stream.get_ref().set_read_timeout(limit).map_err(failed())?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return Err(failed()(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(failed()(e)),
        }
        match serde_json::from_str(&line) {
            Ok(Answer::Error(why)) => Err(Error::Refused(why)),
            Ok(answer) => Ok(Some(answer)),
            Err(e) => Err(failed()(e.into())),
        }
    }

    /// Takes a request back that waits for a call. Returns what was lost if the call came before that.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub fn take_back(mut self) -> Result<Option<Lost>> {
        let stream = self.stream.get_ref();
        stream
            .shutdown(std::net::Shutdown::Write)
            .and_then(|()| stream.set_read_timeout(None))
            .map_err(Error::io("closing the control socket"))?;
        // The server closes the connection when nothing waits any more.
        match self.receive() {
            Ok(Answer::Lost(lost)) => Ok(Some(lost)),
            Ok(_) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.send(request)?;
        self.receive()
    }
}
