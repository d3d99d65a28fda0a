//! How a mount ended, told by the process that served it to the one that unmounts.
//!
//! The kernel lets go of a FUSE mount at once and waits for nobody: `umount(2)` returns while the
//! process behind the mount has yet to write everything back (only mounts of type `fuseblk`, with a
//! block device below, are told and waited for). So whoever wants to know connects before unmounting
//! to a socket of that process and reads one line after: `durable`, or why not. The socket is an
//! abstract one (unix(7)), named after the mount's device number and its source, so that nothing is
//! left behind and root finds the mounts of all. (The number alone is not enough: the kernel gives it
//! to another mount while the process behind the last one may still be writing.) Whether a process of the mount's owner listens there is checked.

use crate::mounts::Mounted;
use crate::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Those that may wait for the end of one mount at a time; more are turned away.
const WAITING_MAX: usize = 16;
const DURABLE: &str = "durable";
/// So much of the end of a source goes into a name: names have 107 bytes at most.
const SOURCE_MAX_BYTES: usize = 64;

fn address(mounted: &Mounted) -> std::io::Result<SocketAddr> {
    let (major, minor) = mounted.device;
    let source = mounted.source.as_os_str().as_bytes();
    let source = &source[source.len().saturating_sub(SOURCE_MAX_BYTES)..];
    let mut name = format!("weft-mount-{major}:{minor}-").into_bytes();
    name.extend(source);
    SocketAddr::from_abstract_name(name)
}

/// The side of the process that serves a mount.
#[derive(Debug)]
pub(crate) struct Teller {
    /// Until it has told.
    listener: Mutex<Option<UnixListener>>,
}

impl Teller {
    /// Listens for those that will want to know how this mount ended.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn listen(mounted: &Mounted) -> std::io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(mounted)?)?;
        Ok(Self { listener: Mutex::new(Some(listener)) })
    }

    /// Tells all that have asked, once. They asked before they unmounted, and this comes after.
    pub fn tell(&self, ended: &Result<()>) {
        let said = match ended {
            Ok(()) => DURABLE.to_owned(),
            Err(e) => e.to_string().replace('\n', " "),
        };
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener.filter(|l| l.set_nonblocking(true).is_ok()) else { return };
        for _ in 0..WAITING_MAX {
            let Ok((mut stream, _)) = listener.accept() else { break };
            // It may have stopped waiting.
            let _ = stream.write_all(format!("{said}\n").as_bytes());
        }
    }
}

/// The side of whoever unmounts.
#[derive(Debug)]
pub struct Ending {
    stream: UnixStream,
}

/// How a mount ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Everything is durable.
    Durable,
    /// It is not, and why.
    Failed(String),
    /// The process behind the mount ended without a word: it was killed, or its machine is ending.
    Unknown,
}

impl Ending {
    /// Asks, before it is unmounted, to be told how a mount ends. `None` if nobody is there to tell:
    /// its process is dead, or in another network namespace.
    #[must_use]
    pub fn of(mounted: &Mounted) -> Option<Self> {
        let stream = UnixStream::connect_addr(&address(mounted).ok()?).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?.uid.as_raw();
        // Anybody may take the name; what he says counts only of his own mounts.
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
        // Numbers that no mount has.
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
            let teller = Teller::listen(&mount).expect("a socket");
            let mut ending = Ending::of(&mount).expect("somebody listens");
            assert_eq!(ending.wait(Duration::from_millis(1)).expect("no error"), None);
            if let Some(ended) = &ended {
                teller.tell(ended);
            }
            drop(teller);
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
        let stuck = Teller::listen(&old).expect("a socket");
        let teller = Teller::listen(&new).expect("another socket");
        let mut ending = Ending::of(&new).expect("somebody listens");
        stuck.tell(&Err(Error::Mount("the disk is full".into())));
        assert!(Ending::of(&old).is_none(), "it has told");
        teller.tell(&Ok(()));
        let said = ending.wait(Duration::from_secs(20)).expect("no error");
        assert_eq!(said, Some(Ended::Durable));
    }
}
