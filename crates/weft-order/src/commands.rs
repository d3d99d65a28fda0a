//! The commands of `ioctl(2)` by which a program uses groups, and their argument.
//!
//! Each takes a `struct { __u32 group; __u32 value; }` in the byte order of the machine, and returns it.
//! Errors are those of the call: `EPERM` for a group of a process that the caller does not descend
//! from, `ENOENT` for a group that does not exist, `EBUSY` and `EDEADLK` for what the life of a group
//! forbids ([`PatchGroupError`](weft_patch::PatchGroupError)), `EMFILE` for too many groups, `EINVAL`
//! for values without a meaning, `ESRCH` for a caller whose process the mount cannot see (in another
//! PID namespace), `ENOTTY` where there are no groups.

use rustix::ioctl::opcode::read_write;

/// Makes a group; its number is returned in `group`. `_IOWR('W', 0xD0, __u32[2])`.
pub const CREATE: u32 = number(0xD0);
/// Makes `group` depend on the group `value`.
pub const DEPEND: u32 = number(0xD1);
/// Ends the dependencies of `group`.
pub const RELEASE: u32 = number(0xD2);
/// Adds the changes of the caller to `group`; `value` is a [`Scope`], with [`Fsync::Barrier`] or not.
pub const ENGAGE: u32 = number(0xD3);
/// Ends what [`ENGAGE`] with this scope has begun.
pub const DISENGAGE: u32 = number(0xD4);
/// Orders the changes of `group` from now on after those until now.
pub const BARRIER: u32 = number(0xD5);
/// Waits until the changes of `group` are durable.
pub const SYNC: u32 = number(0xD6);
/// Returns in `value` 1 if they are, else 0.
pub const IS_DURABLE: u32 = number(0xD7);
/// Forgets `group`. The order of its changes stays.
pub const CLOSE: u32 = number(0xD8);

/// The bit of the value of [`ENGAGE`] that stands for [`Fsync::Barrier`].
const BARRIER_BIT: u32 = 1 << 8;

const fn number(nr: u8) -> u32 {
    read_write::<[u32; 2]>(b'W', nr) as u32
}

/// Those whose changes are added to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The calling thread.
    Thread,
    /// The calling process, and all processes that it starts, directly or not, as long as they descend
    /// from it: one whose parent ends is a child of process 1 from then on, unless the calling process
    /// has made itself a subreaper (`prctl(2)`).
    Process,
}

/// The meaning of `fsync(2)` to an engaged process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// It waits until the file is durable.
    #[default]
    Wait,
    /// It orders, and does not wait: see the [crate] page.
    Barrier,
}

/// Returns the value for [`ENGAGE`] and [`DISENGAGE`].
pub(crate) fn encode(scope: Scope, fsync: Fsync) -> u32 {
    let scope = match scope {
        Scope::Thread => 0,
        Scope::Process => 1,
    };
    scope | if fsync == Fsync::Barrier { BARRIER_BIT } else { 0 }
}

/// Returns the meaning of such a value, if it has one.
pub(crate) fn decode(value: u32) -> Option<(Scope, Fsync)> {
    let fsync = if value & BARRIER_BIT == 0 { Fsync::Wait } else { Fsync::Barrier };
    match value & !BARRIER_BIT {
        0 => Some((Scope::Thread, fsync)),
        1 => Some((Scope::Process, fsync)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_documented() {
        assert_eq!((CREATE, CLOSE), (0xC008_57D0, 0xC008_57D8));
        for scope in [Scope::Thread, Scope::Process] {
            for fsync in [Fsync::Wait, Fsync::Barrier] {
                assert_eq!(decode(encode(scope, fsync)), Some((scope, fsync)));
            }
        }
        assert_eq!(decode(2), None);
        assert_eq!(decode(1 << 9), None);
    }
}
