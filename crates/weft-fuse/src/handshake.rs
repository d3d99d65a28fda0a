//! The negotiation with the kernel when the mount begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{InitFlags, KernelConfig, MountOption, Request, SessionACL};

use crate::MountOptions;

/// The most requests of readahead and writeback that the kernel may have in progress.
const BACKGROUND_REQUESTS: u16 = 64;

/// `FUSE_OVER_IO_URING` (Linux 6.14)
const OVER_IO_URING: InitFlags = InitFlags::from_bits_retain(1 << 41);

/// A stand-in for a file system during the negotiation by `fuser`; it is never called after that.
#[derive(Debug, Clone)]
pub(crate) struct Handshake {
    pub(crate) writeback_cache: bool,
    pub(crate) max_write_bytes: u32,
    pub(crate) max_readahead_bytes: u32,
    pub(crate) time_unit_nanos: u32,
    pub(crate) shared: bool,
    /// Request passthrough: the kernel reads and writes files of the host directly.
    pub(crate) passthrough: bool,
    /// The file system has locks of its own.
    pub(crate) locks: bool,
    /// Request requests over io_uring.
    pub(crate) io_uring: bool,
    /// The file system keeps ACLs, which the kernel is to enforce.
    pub(crate) acls: bool,
    /// The kernel is to check permissions.
    pub(crate) checks_permissions: bool,
    pub(crate) agreed: Agreed,
}

/// The features that the kernel has agreed to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agreed(Arc<AtomicU64>);

impl Agreed {
    fn add(&self, flags: InitFlags) {
        self.0.fetch_or(flags.bits(), Ordering::AcqRel);
    }

    fn to(&self, flags: InitFlags) -> bool {
        InitFlags::from_bits_retain(self.0.load(Ordering::Acquire)).contains(flags)
    }

    /// Returns true if the kernel has agreed to passthrough.
    pub(crate) fn passthrough(&self) -> bool {
        self.to(InitFlags::FUSE_PASSTHROUGH)
    }

    /// Returns true if the kernel has agreed to send requests over io_uring.
    pub(crate) fn io_uring(&self) -> bool {
        self.to(OVER_IO_URING)
    }

    /// Returns true if each request that creates a file carries the umask, for this process to
    /// apply.
    pub(crate) fn umask(&self) -> bool {
        self.to(InitFlags::FUSE_DONT_MASK)
    }

    /// Returns true if the kernel checks permissions by ACLs, and knows of those that change.
    pub(crate) fn acls(&self) -> bool {
        self.to(InitFlags::FUSE_POSIX_ACL)
    }

    /// Returns true if requests that set an attribute have flags of their own.
    pub(crate) fn long_setxattr(&self) -> bool {
        self.to(InitFlags::FUSE_SETXATTR_EXT)
    }
}

/// The greatest depth of stacked host file systems, this mount included, for which the kernel may
/// use passthrough. With one more, nothing could be stacked on this mount.
const STACK_DEPTH: u32 = 1;

impl fuser::Filesystem for Handshake {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            // Files that bypass the page cache can still be mapped (Linux 6.6).
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            // Without this each write would request the attribute `security.capability`.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        wanted |= if self.shared {
            // Cached pages are dropped when the attributes show that another client changed the
            // file.
            InitFlags::FUSE_AUTO_INVAL_DATA
        } else {
            // No other client changes the volume: cached pages are dropped only by notices of this
            // process.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA
        };
        wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, self.writeback_cache);
        wanted.set(InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS, self.locks);
        // The kernel leaves it to this process to inherit ACLs, and to keep ACL and mode in step. It
        // tells whether a new ACL of a foreign group removes setgid.
        let acls = InitFlags::FUSE_DONT_MASK | InitFlags::FUSE_SETXATTR_EXT;
        wanted.set(acls, self.acls);
        // It checks permissions by ACLs and attributes, and requests an ACL if the mode's group bits
        // leave the decision open; and after each change of a directory its attributes. Where only
        // root has access, nothing is to check.
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.acls && self.checks_permissions);
        wanted.set(OVER_IO_URING, self.io_uring);
        let wanted = wanted & config.capabilities();
        if config.add_capabilities(wanted).is_ok() {
            self.agreed.add(wanted);
        }
        // With the writeback cache the kernel does not offer passthrough.
        if self.passthrough
            && !self.writeback_cache
            && config.capabilities().contains(InitFlags::FUSE_PASSTHROUGH)
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(STACK_DEPTH).is_ok()
        {
            self.agreed.add(InitFlags::FUSE_PASSTHROUGH);
        }
        // Each of these setters refuses with the nearest possible value.
        let nearest = config.set_max_write(self.max_write_bytes).err();
        nearest.map(|n| config.set_max_write(n));
        let nearest = config.set_max_readahead(self.max_readahead_bytes).err();
        nearest.map(|n| config.set_max_readahead(n));
        let _ = config.set_max_background(BACKGROUND_REQUESTS);
        let unit = std::time::Duration::from_nanos(self.time_unit_nanos.into());
        let _ = config.set_time_granularity(unit);
        Ok(())
    }
}

/// Returns true if the kernel is to check permissions by the attributes of the file system. Root
/// alone needs no check but that for programs, which the kernel makes in any case.
pub(crate) fn checks_permissions(options: &MountOptions) -> bool {
    options.allow_other || !rustix::process::geteuid().is_root()
}

/// Converts the options to those of `fuser`.
pub(crate) fn config(options: &MountOptions) -> fuser::Config {
    let mut config = fuser::Config::default();
    let either = |yes, if_so: MountOption, if_not| if yes { if_so } else { if_not };
    let subtype = if rustix::process::geteuid().is_root() {
        // `fuser` drops the subtype where it mounts without fusermount3.
        MountOption::CUSTOM(format!("subtype={}", options.subtype))
    } else {
        MountOption::Subtype(options.subtype.clone())
    };
    config.mount_options = vec![
        MountOption::FSName(escaped(&options.source)),
        subtype,
        either(options.read_only, MountOption::RO, MountOption::RW),
        either(options.suid, MountOption::Suid, MountOption::NoSuid),
        either(options.dev, MountOption::Dev, MountOption::NoDev),
        either(options.no_exec, MountOption::NoExec, MountOption::Exec),
    ];
    if checks_permissions(options) {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config
}

/// Escapes commas, which would end the option in the list that `fusermount3` parses.
fn escaped(source: &str) -> String {
    if rustix::process::geteuid().is_root() {
        return source.to_owned();
    }
    source.replace('\\', "\\\\").replace(',', "\\,")
}
