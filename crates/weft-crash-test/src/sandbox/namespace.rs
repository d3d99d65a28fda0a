//! Namespaces of mounts and processes, and of users where root does not make them.
//!
//! `unshare(2)` is `unsafe` in rustix: it could give the calling thread another table of open files.
//! That is not what is asked of it here.

use std::fs;
use std::io;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities, unshare_unsafe,
};
use serde::{Deserialize, Serialize};

/// How a worker is to be kept apart from the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolate {
    /// Namespaces if possible, else without.
    #[default]
    Auto,
    /// Namespaces, one of users among them also for root, or an error.
    UserNamespace,
    /// Without namespaces.
    Subreaper,
}

/// How a worker is kept apart from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// Namespaces of mounts and processes.
    Namespaces {
        /// There is one of users, too: the host's rights of root do not count in it.
        user: bool,
        /// `/proc` shows the processes of the namespace only. Some containers forbid that; programs
        /// then see the processes of the host there.
        proc: bool,
    },
    /// An ordinary process with a mount that others see, too. A command can kill the worker
    /// (`kill -9 $PPID`), and whatever else its user may kill.
    Subreaper {
        /// The reason why there are no namespaces.
        why: String,
    },
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Namespaces { user, proc } => {
                let users = if *user { ", users" } else { "" };
                let proc = if *proc { "" } else { " (but /proc is the host's)" };
                write!(f, "namespaces of mounts, processes{users}{proc}")
            }
            Self::Subreaper { why } => write!(f, "no namespaces: {why}"),
        }
    }
}

impl Isolation {
    /// Returns true if the worker is the first process of a namespace of processes.
    #[must_use]
    pub fn is_namespace(&self) -> bool {
        matches!(self, Self::Namespaces { .. })
    }

    /// Returns true if the worker finds its processes in `/proc` by the numbers that it knows them by.
    #[must_use]
    pub fn has_own_processes(&self) -> bool {
        !matches!(self, Self::Namespaces { proc: false, .. })
    }
}

/// Moves this process into new namespaces, the next process that it starts into one of processes.
/// Returns whether one of users is among them, or the reason why not. After a failure this process
/// may be in some of them.
pub(super) fn enter(with_user: bool) -> Result<bool, String> {
    let flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    // Before the namespace, in which they have no numbers yet.
    let (uid, gid) = (geteuid(), getegid());
    let user = if uid.is_root() && !with_user && unshare(flags).is_ok() {
        false
    } else {
        // Also for root in a container, who may not make the others alone.
        unshare(flags | UnshareFlags::NEWUSER).map_err(|e| format!("unshare: {e}"))?;
        map_user(uid.as_raw(), gid.as_raw()).map_err(|e| format!("mapping of the user: {e}"))?;
        true
    };
    // Mounts of the worker are not seen outside; what is unmounted outside goes here, too.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|e| format!("a tree of mounts of its own: {e}"))?;
    let_mounts_go();
    if user {
        keep_right_to_mount().map_err(|e| format!("the right to mount: {e}"))?;
    }
    Ok(user)
}

/// Detaches the mounts of weft that this namespace has got copies of: as long as they are here, those
/// who unmount them outside wait, where mounts are not told of each other. The one with the working
/// directory stays.
fn let_mounts_go() {
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return };
    let here = std::env::current_dir().unwrap_or_default();
    for line in mounts.lines() {
        let is_weft = line.contains(" - fuse.weft ");
        let Some(path) = line.split(' ').nth(4).filter(|_| is_weft) else { continue };
        // Paths with blanks are written in another way, and left alone.
        if !path.contains('\\') && !here.starts_with(path) {
            // An ordinary user may not: then what is unmounted outside goes here by itself.
            let _ = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the flag is not among them that gives this thread a table of open files of its own.
    unsafe { unshare_unsafe(flags) }
}

/// Maps the user and the group to themselves: programs see who runs them, and the files of others
/// belong to nobody.
fn map_user(uid: u32, gid: u32) -> io::Result<()> {
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    // The kernel demands it of those without rights before they map groups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Keeps the right to mount, in this namespace, for the program that is executed next.
fn keep_right_to_mount() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

/// Completes the namespaces as their first process. Returns true if `/proc` shows them.
pub(super) fn complete() -> bool {
    // Commands run without the right that this process keeps.
    if let Err(e) = clear_ambient_capability_set() {
        tracing::warn!("commands keep the right to mount: {e}");
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount("proc", "/proc", "proc", flags, None) {
        Ok(()) => true,
        Err(e) => {
            tracing::info!("/proc shows the processes of the host: {e}");
            false
        }
    }
}
