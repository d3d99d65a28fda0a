//! The confinement of programs, as far as the kernel supports it: no access to files that the
//! command does not name, no writing, no network, no other processes, and no system calls that
//! filters do not need and that kernel exploits begin with.
//!
//! The child enters its namespaces between fork and exec, where a thread is alone in its process:
//! `unsafe`, because only code that neither allocates nor takes a lock may run there, and because it
//! has descriptors closed that the process around it may have inherited, by their numbers.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::UnshareFlags;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

/// The paths that every program may read: executables, libraries, and locale and time zone data.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/perl",
    "/etc/python3",
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// The environment variables that a program inherits.
const VARIABLES: &[&str] = &["PATH", "LANG", "LANGUAGE", "TZ"];

/// Returns the absolute paths that a command names, and the directories of `PATH`.
fn named(command: &str) -> Vec<PathBuf> {
    let separates = |c: char| c.is_whitespace() || "'\"`=;|&()<>,:".contains(c);
    let words = command.split(separates).map(Path::new);
    let words = words.filter(|word| word.is_absolute() && word.parent().is_some());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    words.map(Path::to_owned).chain(path.filter(|dir| dir.parent().is_some())).collect()
}

/// Confines this thread, and its child processes, to the files that `command` names.
pub(super) fn this_thread(command: &str) {
    let (reads, all) = (AccessFs::from_read(ABI::V5), AccessFs::from_all(ABI::V5));
    let restricted = Ruleset::default()
        .handle_access(all)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(SYSTEM, reads)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(named(command), reads)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(["/dev/null"], all)))
        .and_then(landlock::RulesetCreated::restrict_self);
    if let Err(e) = restricted {
        tracing::warn!("a program runs without Landlock: {e}");
    }
}

/// Gives a command a reduced environment, namespaces of its own, where it has no capabilities and
/// sees no other processes, and a seccomp filter.
pub(super) fn command(command: &mut Command) {
    let kept = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        VARIABLES.contains(&&*name) || name.starts_with("LC_")
    });
    let kept: Vec<_> = kept.collect();
    command.env_clear().envs(kept).env("HOME", "/");
    let filters = match attribute_reads().and_then(|reads| Ok([reads, system_calls()?])) {
        Ok(filters) => Some(filters),
        Err(e) => {
            tracing::warn!("a program runs without a filter of system calls: {e}");
            None
        }
    };
    let enter = move || {
        inherit_nothing()?;
        let apart = UnshareFlags::NEWPID
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        // SAFETY: no descriptors are shared or unshared.
        let unshare = |flags| unsafe { rustix::thread::unshare_unsafe(flags) };
        // Without user namespaces root can still create the others.
        if unshare(apart | UnshareFlags::NEWUSER).is_ok() {
            // The processes in the new namespace are counted apart from all others of this user.
            let most = Some(PROCESSES_MAX);
            setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most })?;
        } else if unshare(apart).is_ok() {
            drop_capabilities()?;
        }
        for filter in filters.iter().flatten() {
            seccompiler::apply_filter(filter).map_err(|_| std::io::ErrorKind::Other)?;
        }
        Ok(())
    };
    // SAFETY: nothing but system calls is made, none of which allocates or takes a lock.
    unsafe { command.pre_exec(enter) };
}

/// Maximum number of processes and threads of a program. The kernel does not count those of root.
const PROCESSES_MAX: u64 = 512;

/// Closes all descriptors but the standard streams when the next program is executed: whatever the
/// process that runs weft has inherited, the program does not get it.
fn inherit_nothing() -> std::io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the flag is set on descriptors, and no descriptor is closed in this process.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) } == 0 {
        return Ok(());
    }
    // A kernel before 5.11.
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
    for number in 3..i32::try_from(most.min(1 << 20)).unwrap_or(i32::MAX) {
        // SAFETY: as above; a number without a descriptor is an error that has no effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Drops all capabilities, and prevents root from regaining them.
fn drop_capabilities() -> std::io::Result<()> {
    use rustix::thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, set_capabilities,
        set_capabilities_secure_bits,
    };
    let none = CapabilitySet::empty();
    let bits = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    set_capabilities_secure_bits(bits)?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

// The numbers of system calls since Linux 5.1, which are the same on all architectures with a
// filter.
const MEMFD_SECRET: libc::c_long = 447;
const SETXATTRAT: libc::c_long = 463;
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;
const REMOVEXATTRAT: libc::c_long = 466;
const OPEN_TREE_ATTR: libc::c_long = 467;
const FILE_SETATTR: libc::c_long = 469;

/// The first unknown system call number: calls from it on, which are newer than these lists (of
/// Linux 6.18), fail with `ENOSYS`, as on a kernel without them. So do the calls of x32, whose
/// numbers have a bit above all others.
const FIRST_UNKNOWN: u32 = 470;

/// The allowed `ioctl(2)` commands, which programs use on their input and output; others fail with
/// `EPERM`, including those of file systems, which change flags and more even through a read-only
/// descriptor.
const COMMANDS: &[u64] = &[
    0x2,         // FIGETBSZ
    0x5401,      // TCGETS
    0x540F,      // TIOCGPGRP
    0x5413,      // TIOCGWINSZ
    0x541B,      // FIONREAD
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x5452,      // FIOASYNC
    0x5460,      // FIOQSIZE
    0x802C_542A, // TCGETS2
    0x8008_6601, // FS_IOC_GETFLAGS
    0x801C_581F, // FS_IOC_FSGETXATTR
    0xC020_660B, // FS_IOC_FIEMAP
];

/// The flags with which `clone(2)` creates namespaces, as `unshare(2)` does.
const SPACES: &[libc::c_int] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// System calls that fail with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    // The network: Landlock covers TCP only.
    libc::SYS_socket,
    libc::SYS_socketpair,
    // File attributes, which Landlock does not cover.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_open_by_handle_at,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    // The names that others use, which Landlock does not cover.
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Memory that belongs to no process, and so is in no limit.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    MEMFD_SECRET,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    // The kernel and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
];

/// Further ones that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[libc::c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OLD: &[libc::c_long] = &[];

/// System calls that fail with `EOPNOTSUPP`, as on a file system without attributes: Landlock does not
/// cover the attributes of files that cannot be opened.
const ATTRIBUTE_READS: &[libc::c_long] = &[
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    GETXATTRAT,
    LISTXATTRAT,
];

fn attribute_reads() -> Result<BpfProgram, seccompiler::Error> {
    let rules = ATTRIBUTE_READS.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EOPNOTSUPP.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?)
}

fn system_calls() -> Result<BpfProgram, seccompiler::Error> {
    let refused = REFUSED.iter().chain(REFUSED_OLD);
    let mut rules: BTreeMap<i64, Vec<_>> = refused.map(|call| (*call, Vec::new())).collect();
    // The kernel uses the lower 32 bits of a command.
    let is_other = |command: &u64| {
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *command)
    };
    let others = COMMANDS.iter().map(is_other).collect::<Result<Vec<_>, _>>();
    let others = others.and_then(SeccompRule::new).map_err(seccompiler::Error::from)?;
    rules.insert(libc::SYS_ioctl, vec![others]);
    let with_space = |flag: &libc::c_int| {
        let flag = u64::from(flag.unsigned_abs());
        let is_set = SeccompCmpOp::MaskedEq(flag);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, is_set, flag)?;
        SeccompRule::new(vec![condition])
    };
    let spaces = SPACES.iter().map(with_space).collect::<Result<_, _>>();
    rules.insert(libc::SYS_clone, spaces.map_err(seccompiler::Error::from)?);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    let known = BpfProgram::try_from(filter)?;
    Ok(refuse_unknown().into_iter().chain(known).collect())
}

/// Returns the instructions before the filter. They return `ENOSYS` for the numbers of unknown
/// calls, and for `clone3(2)`, whose flags a filter cannot see: a C library then calls `clone(2)`.
fn refuse_unknown() -> [sock_filter; 4] {
    // The number of the call is the first word of the filter's input.
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (at_least, equal) = (libc::BPF_JMP | libc::BPF_JGE, libc::BPF_JMP | libc::BPF_JEQ);
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    [
        step(load, 0, 0, 0),
        step(at_least | libc::BPF_K, 1, 0, FIRST_UNKNOWN),
        step(equal | libc::BPF_K, 0, 1, libc::SYS_clone3 as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, unknown.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_what_it_reads() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = named("cd / && jq -f '/srv/filters/x.jq' --arg=/opt/a </tmp/b; sed s/a/b/ rel/c");
        let named: Vec<_> = all
            .iter()
            .filter(|named| !std::env::split_paths(&path).any(|dir| dir == **named))
            .collect();
        assert_eq!(
            named,
            ["/srv/filters/x.jq", "/opt/a", "/tmp/b"].map(Path::new).iter().collect::<Vec<_>>()
        );
    }
}
