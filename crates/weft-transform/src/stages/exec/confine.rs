//! What programs are kept from, as far as the kernel can: writing files, the network, and system
//! calls that no filter needs and that attacks on kernels begin with.

use std::collections::BTreeMap;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Confines this thread, and all that it starts.
pub(super) fn this_thread() {
    let writes = AccessFs::from_write(ABI::V5);
    let restricted = Ruleset::default()
        .handle_access(writes)
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(["/dev/null"], writes)))
        .and_then(landlock::RulesetCreated::restrict_self);
    if let Err(e) = restricted {
        tracing::warn!("a program runs without Landlock: {e}");
    }
    if let Err(e) = system_calls() {
        tracing::warn!("a program runs without a filter of system calls: {e}");
    }
}

/// System calls that fail with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    // The network: Landlock knows TCP only.
    libc::SYS_socket,
    libc::SYS_socketpair,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Name spaces and mounts.
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
    libc::SYS_mount_setattr,
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
];

fn system_calls() -> Result<(), seccompiler::Error> {
    let rules: BTreeMap<i64, Vec<_>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)
}
