//! Reports how a mount ended, from the process that served it to the one that unmounts.
//!
//! The kernel releases a FUSE mount at once: `umount(2)` returns while the process behind the mount
//! has yet to write everything back (only for mounts of type `fuseblk`, with a block device below,
//! does the kernel notify the server and wait for it). So the unmounting process connects to a
//! socket of the server before it unmounts, and reads one line after: `durable`, or the reason why
//! not. The socket is an abstract one ([`Mounted::socket_name`]), so that no file is left behind and
//! root finds the mounts of all users. The client checks that the listening process belongs to the
//! mount's owner or to root.

use crate::mounts::Mounted;
use crate::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most processes that may wait for the end of one mount at a time; more are turned away.
const WAITING_MAX: usize = 16;
const DURABLE: &str = "durable";

fn address(mounted: &Mounted) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(mounted.socket_name("mount"))
}

/// The side of the process that serves a mount.
#[derive(Debug)]
pub(crate) struct EndReporter {
    /// The listening socket; `None` after the report.
    listener: Mutex<Option<UnixListener>>,
}

impl EndReporter {
    /// Listens for processes that will ask how this mount ended.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn listen(mounted: &Mounted) -> std::io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(mounted)?)?;
        Ok(Self { listener: Mutex::new(Some(listener)) })
    }

    /// Reports the result to all connected processes, once. They connected before they unmounted,
    /// and this comes after.
    pub fn report(&self, ended: &Result<()>) {
        let said = match ended {
            Ok(()) => DURABLE.to_owned(),
            Err(e) => e.to_string().replace('\n', " "),
        };
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener.filter(|l| l.set_nonblocking(true).is_ok()) else { return };
        for _ in 0..WAITING_MAX {
            let Ok((mut stream, _)) = listener.accept() else { break };
            // The process may have stopped waiting.
            let _ = stream.write_all(format!("{said}\n").as_bytes());
        }
    }
}

/// The side of the process that unmounts.
#[derive(Debug)]
pub struct Ending {
    stream: UnixStream,
}

/// The result of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Everything is durable.
    Durable,
    /// Something is not durable, with the reason.
    Failed(String),
    /// The process behind the mount ended without a report: it was killed, or the machine is going
    /// down.
    Unknown,
}

impl Ending {
    /// Connects, before the unmount, to the process that will report how a mount ends. `None` if
    /// there is none: the process is dead, or in another network namespace.
    #[must_use]
    pub fn of(mounted: &Mounted) -> Option<Self> {
        let stream = UnixStream::connect_addr(&address(mounted).ok()?).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?.uid.as_raw();
        // Any process may take the name; a report is believed only from root or the mount's owner.
        let trusted = peer == 0 || mounted.owner == Some(peer);
        trusted.then_some(Self { stream })
    }

    /// Waits until the mount has ended; `None` if that takes longer than `limit`.
    ///
    /// # Errors
    /// [`Error::Mount`] if the socket fails.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Ended>> {
        let failed = |e| Error::Mount(format!("cannot hear how the mount ended: {e}"));
        self.stream.set_read_timeout(Some(limit)).map_err(failed)?;
        let mut said = String::new();
        match (&self.stream).take(4096).read_to_string(&mut said) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            Err(e) => return Err(failed(e)),
        }
        Ok(Some(match said.trim_end() {
            DURABLE => Ended::Durable,
            "" => Ended::Unknown,
            why => Ended::Failed(why.to_owned()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mounted(device: (u32, u32), source: &str, owner: u32) -> Mounted {
        Mounted {
            mountpoint: PathBuf::from("/m"),
            fs_type: "fuse.weft".into(),
            source: source.into(),
            read_only: false,
            device,
            owner: Some(owner),
        }
    }

    #[test]
    fn what_is_told_is_heard() {
        let me = rustix::process::geteuid().as_raw();
        let limit = Duration::from_secs(20);
        // Device numbers that no mount has.
        let minor = std::process::id() | 1 << 31;
        for (nr, ended, want) in [
            (1, Some(Ok(())), Ended::Durable),
            (
                2,
                Some(Err(Error::Mount("the disk\nis full".into()))),
                Ended::Failed("the disk is full".into()),
            ),
            (3, None, Ended::Unknown),
        ] {
            let mount = mounted((nr, minor), "v.img", me);
            assert!(Ending::of(&mount).is_none());
            let reporter = EndReporter::listen(&mount).expect("a socket");
            let mut ending = Ending::of(&mount).expect("somebody listens");
            assert_eq!(ending.wait(Duration::from_millis(1)).expect("no error"), None);
            if let Some(ended) = &ended {
                reporter.report(ended);
            }
            drop(reporter);
            assert_eq!(ending.wait(limit).expect("no error"), Some(want));
        }
    }

    /// The kernel gives the number of a mount that has ended to the next one, while the process of
    /// the first is still trying to write.
    #[test]
    fn another_mount_with_the_same_number_tells_of_itself() {
        let me = rustix::process::geteuid().as_raw();
        let device = (4, std::process::id() | 1 << 31);
        let long = "d/".repeat(100);
        let (old, new) = (mounted(device, "v.img", me), mounted(device, &format!("{long}v"), me));
        let stuck = EndReporter::listen(&old).expect("a socket");
        let reporter = EndReporter::listen(&new).expect("another socket");
        let mut ending = Ending::of(&new).expect("somebody listens");
        stuck.report(&Err(Error::Mount("the disk is full".into())));
        assert!(Ending::of(&old).is_none(), "it has told");
        reporter.report(&Ok(()));
        let said = ending.wait(Duration::from_secs(20)).expect("no error");
        assert_eq!(said, Some(Ended::Durable));
    }
}
