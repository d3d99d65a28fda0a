//! Files whose mode gives their owner too little.
//!
//! A program may make a file that nobody may write to and write it by the descriptor that it got, and a
//! file system on top of this one has its own reasons to read and write: who may do what was decided
//! before, by the kernel or by [`access`](crate::access). An ordinary user's process is refused by the
//! host all the same, by the mode alone. As the owner of the file it may change the mode, and does, for
//! the moment of one call. Nobody but the owner gets rights by that.

use std::sync::PoisonError;

use rustix::fs::{AtFlags, CWD, Mode, chmodat};

use super::HostDir;
use super::attributes::stat;
use super::descriptors::magic;
use super::errno::os;
use super::inodes::Inode;
use crate::{Error, Result};
use std::os::fd::AsFd;

const OWNER_READS_AND_WRITES: u32 = 0o600;
/// chmod(2) takes it from a file whose group the process is not in.
const SETGID: u32 = 0o2000;

impl HostDir {
    /// Makes a call that the host may refuse because of the mode of a file of this process' user.
    pub(super) fn as_owner<T>(&self, inode: &Inode, call: impl Fn() -> Result<T>) -> Result<T> {
        let refused = match call() {
            Err(e @ Error::Access) => e,
            done => return done,
        };
        let named = self.fd(inode)?;
        // Nobody sees the mode that the file has meanwhile.
        let _alone = self.modes.write().unwrap_or_else(PoisonError::into_inner);
        let found = stat(&named)?;
        let mode = u32::from(found.stx_mode) & 0o7777;
        let is_own = found.stx_uid == rustix::process::geteuid().as_raw();
        let has_all = mode & OWNER_READS_AND_WRITES == OWNER_READS_AND_WRITES;
        if !is_own || has_all || mode & SETGID != 0 {
            return Err(refused);
        }
        let path = magic(named.as_fd());
        let set =
            |mode| chmodat(CWD, &*path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(os);
        set(mode | OWNER_READS_AND_WRITES)?;
        let done = call();
        set(mode)?;
        done
    }
}
