//! A lock for one writer on this host: NBD itself has no locks, and two mounts of one export would
//! destroy it. The lock is a name in the abstract socket namespace, which the kernel releases when
//! its process ends.

use crate::{Error, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::time::Duration;
use weft_net::Address;

/// The number of attempts to take the lock, and the pause between them: a process that was killed
/// releases it in a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct HostLock {
    _socket: OwnedFd,
}

/// The address however it was written: the path of a socket without symbolic links.
fn one_name(address: &Address) -> String {
    match address {
        Address::Unix(path) => match path.canonicalize() {
            Ok(real) => Address::Unix(real).to_string(),
            Err(_) => address.to_string(),
        },
        Address::Tcp(host, port) => Address::Tcp(host.to_ascii_lowercase(), *port).to_string(),
        Address::Quic(..) => address.to_string(),
    }
}

impl HostLock {
    /// Takes the lock of an export, or of the part of it that `part` names.
    pub fn take(address: &Address, export: &str, part: &str) -> Result<Self> {
        // FNV-1a of 64 bits: the same in every process; names are short and few.
        let text = format!("{}\0{export}\0{part}", one_name(address));
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let failed = |e: rustix::io::Errno| Error::io("cannot lock the export", e.into());
        let name = format!("weft-nbd-writer-{hash:016x}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(failed)?;
        let mut tries = 0;
        loop {
            match rustix::net::bind(&socket, &name) {
                Ok(()) => return Ok(Self { _socket: socket }),
                Err(rustix::io::Errno::ADDRINUSE) if tries < LOCK_TRIES => {
                    tries += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(rustix::io::Errno::ADDRINUSE) => return Err(Error::InUse),
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_locked_by_every_way_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("s"), "").expect("a file stands for the socket");
        std::os::unix::fs::symlink(dir.path().join("s"), dir.path().join("link")).expect("a link");
        let take = |name: &str| HostLock::take(&Address::Unix(dir.path().join(name)), "disk", "");
        let held = take("s").expect("it is free");
        for other in ["s", "link", "./s"] {
            assert!(matches!(take(other), Err(Error::InUse)), "{other}");
        }
        drop(held);
        take("link").expect("it is free again");
        let host = |name: &str| HostLock::take(&Address::Tcp(name.into(), 1), "disk", "weft-test");
        let _held = host("Example.test").expect("it is free");
        assert!(matches!(host("example.TEST"), Err(Error::InUse)));
    }
}
