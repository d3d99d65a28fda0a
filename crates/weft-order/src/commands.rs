//! The commands of `ioctl(2)` by which a program uses groups, and their argument.
//!
//! Each takes a `struct { __u32 group; __u32 value; }` in the byte order of the machine, and returns it.
//! Errors are those of the call: `EPERM` for a group of a process that the caller does not descend
//! from, `ENOENT` for a group that does not exist, `EBUSY` and `EDEADLK` for what the life of a group
//! forbids ([`PatchGroupError`](weft_patch::PatchGroupError)), `EOPNOTSUPP` for an atomic group without
//! a journal, `ETIMEDOUT` for one that was open for too long, `EMFILE` for too many groups, `EINVAL`
//! for values without a meaning (an open file that is a directory), `EOPNOTSUPP` for the open file where
//! the mount does not know open files apart, `ESRCH` for a caller whose process the mount cannot see (in another
//! PID namespace), `ENOTTY` where there are no groups.

use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::ioctl::opcode::read_write;

use crate::listing::{LABEL_ARGUMENT_BYTES, LISTED_BYTES};

/// Makes a group; its number is returned in `group`. `value` is its [`Kind`].
/// `_IOWR('W', 0xD0, __u32[2])`.
pub const CREATE: u32 = number(0xD0);
/// Makes `group` depend on the group `value`.
pub const DEPEND: u32 = number(0xD1);
/// Ends the dependencies of `group`.
pub const RELEASE: u32 = number(0xD2);
/// Adds the changes of the caller, or by the open file, to `group`; `value` is a [`Scope`], or 2 for the
/// open file, and the meaning of [`Fsync`].
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
/// Ends an atomic `group`, which is not engaged: from now on a crash leaves all of its changes, or none.
pub const COMMIT: u32 = number(0xD9);
/// Returns in `value` the most blocks that an atomic `group` may still change.
pub const BLOCKS_LEFT: u32 = number(0xDA);

/// Undoes the changes of `group`, of [`Kind::Abortable`], and ends it.
pub const ABORT: u32 = number(0xDB);

/// Has the number of `group`, four bytes, written to a pipe once it is durable: `value` is the descriptor
/// of the caller's end for writing, which it may close then. The mount does not write anything for it.
pub const TELL: u32 = number(0xDC);
/// Gives a group a label, for people: of at most 63 bytes of UTF-8, without control characters. Its argument
/// is `struct { __u32 group; __u32 len; char label[64]; }`. `_IOWR('W', 0xDD, char[72])`.
pub const LABEL: u32 = read_write::<[u8; LABEL_ARGUMENT_BYTES]>(b'W', 0xDD) as u32;
/// Returns the group with the next higher number that the caller may see; `ENOENT` if there is none. Root
/// and the user who runs the mount may see all. Its argument is a `struct { __u32 group; __u32 state; __u32
/// pid; __u32 befores; __u32 before[16]; __u32 len; char label[64]; }`: `group` is the number to begin after.
/// `_IOWR('W', 0xDE, char[148])`.
pub const NEXT: u32 = read_write::<[u8; LISTED_BYTES]>(b'W', 0xDE) as u32;

/// The bit of the value of [`ENGAGE`] that stands for [`Fsync::Barrier`].
const BARRIER_BIT: u32 = 1 << 8;
/// The bits above this one are the milliseconds of [`Fsync::Within`].
const WITHIN_SHIFT: u32 = 16;

/// A kind of group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Its changes are in no order among themselves.
    #[default]
    Ordinary,
    /// Each of its changes is ordered after the one before it.
    Linear,
    /// A crash leaves all of its changes, or none: see
    /// [`PatchGroups::create_atomic`](weft_patch::PatchGroups::create_atomic). Only root and the user
    /// who runs the mount may make one, as the syncs of others wait for its end, up to 5 s.
    Atomic,
    /// An atomic group whose changes can be undone: [`ABORT`]. They are, too, if its process ends before
    /// a [`COMMIT`]. What is overwritten or cut off is kept in memory until then, up to 64 MiB.
    Abortable,
}

impl Kind {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Ordinary => 0,
            Self::Linear => 1,
            Self::Atomic => 2,
            Self::Abortable => 3,
        }
    }

    pub(crate) fn decode(value: u32) -> Option<Self> {
        let all = [Self::Ordinary, Self::Linear, Self::Atomic, Self::Abortable];
        all.into_iter().find(|kind| kind.encode() == value)
    }
}

const fn number(nr: u8) -> u32 {
    read_write::<[u32; 2]>(b'W', nr) as u32
}

/// The threads whose changes are added to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The calling thread.
    Thread,
    /// The calling process, and all processes that it starts, directly or not, as long as they descend
    /// from it: one whose parent ends is a child of process 1 from then on, unless the calling process
    /// has made itself a subreaper (`prctl(2)`).
    Process,
}

/// The changes that an engagement covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Covered {
    /// The changes of threads.
    Scope(Scope),
    /// The changes by the open file of the command.
    OpenFile,
}

/// The meaning of `fsync(2)` to an engaged process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// It waits until the file is durable.
    #[default]
    Wait,
    /// It orders, and does not wait: see the [crate] page.
    Barrier,
    /// It orders, does not wait, and is durable after so many milliseconds, at most.
    Within(NonZeroU16),
}

impl FromStr for Fsync {
    type Err = String;

    /// Parses `wait`, `barrier`, `group` or `group:MS`, the last with [`WITHIN_DEFAULT_MS`].
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, ms) = match text.split_once(':') {
            Some((name, ms)) => (name, Some(ms)),
            None => (text, None),
        };
        match (name, ms) {
            ("wait", None) => Ok(Self::Wait),
            ("barrier", None) => Ok(Self::Barrier),
            ("group", None) => Ok(Self::Within(WITHIN_DEFAULT_MS)),
            ("group", Some(ms)) => ms.parse().map(Self::Within).map_err(|_| {
                format!("fsync={text}: give a number of milliseconds from 1 to {}", u16::MAX)
            }),
            _ => Err(format!("fsync={text}: expected wait, barrier, group or group:MS")),
        }
    }
}

/// Milliseconds after which `group` is durable: what a user loses at most with the defaults of most
/// databases that do not wait.
pub const WITHIN_DEFAULT_MS: NonZeroU16 = NonZeroU16::new(1000).unwrap();

impl Fsync {
    /// Returns true if it does not wait.
    #[must_use]
    pub fn is_barrier(self) -> bool {
        self != Self::Wait
    }

    /// Returns the longest time until it is durable, if it orders only and there is a limit.
    pub(crate) fn within(self) -> Option<Duration> {
        match self {
            Self::Within(ms) => Some(Duration::from_millis(u64::from(ms.get()))),
            Self::Wait | Self::Barrier => None,
        }
    }
}

/// Returns the value for [`ENGAGE`] and [`DISENGAGE`].
pub(crate) fn encode(covered: Covered, fsync: Fsync) -> u32 {
    let covered = match covered {
        Covered::Scope(Scope::Thread) => 0,
        Covered::Scope(Scope::Process) => 1,
        Covered::OpenFile => 2,
    };
    let fsync = match fsync {
        Fsync::Wait => 0,
        Fsync::Barrier => BARRIER_BIT,
        Fsync::Within(ms) => BARRIER_BIT | u32::from(ms.get()) << WITHIN_SHIFT,
    };
    covered | fsync
}

/// Returns the meaning of such a value, if it has one.
pub(crate) fn decode(value: u32) -> Option<(Covered, Fsync)> {
    let within = NonZeroU16::new(u16::try_from(value >> WITHIN_SHIFT).ok()?);
    let fsync = match (value & BARRIER_BIT != 0, within) {
        (false, None) => Fsync::Wait,
        (true, None) => Fsync::Barrier,
        (true, Some(ms)) => Fsync::Within(ms),
        (false, Some(_)) => return None,
    };
    match value & ((1 << WITHIN_SHIFT) - 1) & !BARRIER_BIT {
        0 => Some((Covered::Scope(Scope::Thread), fsync)),
        1 => Some((Covered::Scope(Scope::Process), fsync)),
        2 => Some((Covered::OpenFile, fsync)),
        _ => None,
    }
}

/// The reason why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    NoSuchGroup,
    NotOwner,
    NoSuchProcess,
    TooMany,
    Meaningless,
    NoOpenFiles,
}

/// The errno of a command that failed, or that it would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    Errno(i32),
    WouldWait,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoSuchGroup => Errno::NOENT,
            Refused::NotOwner => Errno::PERM,
            Refused::NoSuchProcess => Errno::SRCH,
            Refused::TooMany => Errno::MFILE,
            Refused::Meaningless => Errno::INVAL,
            Refused::NoOpenFiles => Errno::OPNOTSUPP,
        }
        .into()
    }
}

impl From<weft_patch::Error> for Failed {
    fn from(e: weft_patch::Error) -> Self {
        if matches!(e, weft_patch::Error::WouldWait) {
            return Self::WouldWait;
        }
        Self::Errno(e.errno())
    }
}

impl From<weft_patch::PatchGroupError> for Failed {
    fn from(e: weft_patch::PatchGroupError) -> Self {
        Self::Errno(e.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meaning_of_fsync_is_written_as_a_word() {
        assert_eq!("wait".parse(), Ok(Fsync::Wait));
        assert_eq!("barrier".parse(), Ok(Fsync::Barrier));
        assert_eq!("group".parse(), Ok(Fsync::Within(WITHIN_DEFAULT_MS)));
        assert_eq!("group:20".parse(), Ok(Fsync::Within(NonZeroU16::new(20).unwrap())));
        for bad in ["", "none", "barrier:1", "group:", "group:0", "group:65536", "group:-1"] {
            assert!(bad.parse::<Fsync>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_as_documented() {
        assert_eq!((CREATE, CLOSE), (0xC008_57D0, 0xC008_57D8));
        assert_eq!((LABEL, NEXT), (0xC048_57DD, 0xC094_57DE));
        let scopes = [Scope::Thread, Scope::Process].map(Covered::Scope);
        for covered in scopes.into_iter().chain([Covered::OpenFile]) {
            let within = Fsync::Within(NonZeroU16::MAX);
            for fsync in [Fsync::Wait, Fsync::Barrier, within] {
                assert_eq!(decode(encode(covered, fsync)), Some((covered, fsync)));
            }
        }
        assert_eq!(decode(3), None);
        assert_eq!(decode(1 << 9), None);
        assert_eq!(decode(1 << 16), None, "a limit without a barrier");
    }
}
