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

impl HostLock {
    /// Takes the lock of an export, or of the part of it that `part` names.
    pub fn take(address: &Address, export: &str, part: &str) -> Result<Self> {
        // FNV-1a of 64 bits: the same in every process; names are short and few.
        let text = format!("{address}\0{export}\0{part}");
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
