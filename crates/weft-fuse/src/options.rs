//! How to mount.

use std::time::Duration;

/// How a mount behaves. [`Default`] is right for a volume that this mount alone changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// What `mount` shows as the source, usually the image's path.
    pub source: String,
    /// What `mount` shows behind `fuse.`; the helper `mount.fuse.weft` needs `weft`.
    pub subtype: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Other users may use the mount, each with the permissions that the files give. Default: no,
    /// as with every FUSE mount. Who is not root needs `user_allow_other` in `/etc/fuse.conf`.
    ///
    /// A mount that only root may use, of a file system without ACLs (or without
    /// [`xattrs`](Self::xattrs)), needs no permission checks, and so spares the kernel a look at the
    /// directory's attributes after each name made or removed in it: one request in nine of an
    /// unpacking. Where the kernel is to enforce ACLs it checks in any case.
    pub allow_other: bool,
    /// Extended attributes, and POSIX ACLs with them. Without them the kernel need not ask for `security.capability` before
    /// the first write and the first change of owner of each file: one request in four of an
    /// unpacking (`noxattr`, like the kernel's `nouser_xattr`).
    pub xattrs: bool,
    /// Honour setuid and setgid bits (root only, as a file's owner is what the image says).
    pub suid: bool,
    /// Honour device nodes (root only).
    pub dev: bool,
    /// Refuse to run programs.
    pub no_exec: bool,
    /// Threads that answer requests. Default: one a CPU, at least 2 (one waits for the disk while
    /// another works) and at most 8 (the kernel has one queue for all of them). Others are added for
    /// the time that all of these wait.
    pub threads: usize,
    /// How long the kernel may trust names (also absent ones) and attributes. Default: a year,
    /// since no one else changes the volume; what the file system changes by itself it announces.
    /// Short for a file system that others change behind the mount's back.
    pub lifetime: Duration,
    /// The kernel may also remember that a name does not exist. Default: yes; not where names come to
    /// be by others than this mount's users.
    pub absent_names: bool,
    /// Others change the files behind the mount's back: what the kernel has cached of a file goes
    /// when its attributes have changed. Wants a short [`lifetime`](Self::lifetime), and no
    /// [`writeback_cache`](Self::writeback_cache), which trusts its own attributes.
    pub shared: bool,
    /// The kernel collects writes in its page cache, and `write(2)` returns before the file system
    /// hears of them. Default: no. It spares requests where a program writes one file in small pieces,
    /// and gives up that a full volume, a file too long for the format and an exhausted quota are
    /// errors of `write(2)` (they come with `fsync(2)` or `close(2)`, or not at all); that `st_blocks`,
    /// `SEEK_DATA` and `SEEK_HOLE` know of data that was just written (`cp` and `tar -S` take it for a
    /// hole, and the copy has zeroes in its place); and that mtime is that of the write.
    pub writeback_cache: bool,
    /// The kernel reads and writes the files by itself of which a file of the host has exactly the
    /// content ([`FileSystem::backing`](weft_vfs::FileSystem::backing)). Root only, from Linux 6.9 on,
    /// and not with [`writeback_cache`](Self::writeback_cache); elsewhere it has no effect. Nothing can
    /// be mounted on such a mount by overlayfs more than one deep.
    pub passthrough: bool,
    /// Longest write in one request, in bytes (the kernel has its own limit, mostly 1 MiB).
    pub max_write_bytes: u32,
    /// How far the kernel reads ahead in a file, in bytes; more than 128 KiB only for root.
    pub max_readahead_bytes: u32,
    /// While requests follow each other closely, keep the second of two CPUs from falling idle, so
    /// that nobody waits for it to wake. Default: on a virtual machine, where waking a CPU costs
    /// more than most requests. Has no effect unless there are exactly two CPUs.
    pub polling: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            source: "weft".into(),
            subtype: "weft".into(),
            read_only: false,
            allow_other: false,
            xattrs: true,
            suid: root,
            dev: root,
            no_exec: false,
            threads: cpus.clamp(2, 8),
            lifetime: Duration::from_secs(365 * 24 * 3600),
            absent_names: true,
            shared: false,
            writeback_cache: false,
            passthrough: false,
            max_write_bytes: 1 << 20,
            max_readahead_bytes: 1 << 20,
            polling: virtual_machine(),
        }
    }
}

/// Whether this is a virtual machine, as far as x86 processors tell.
fn virtual_machine() -> bool {
    let flag = |info: String| info.split_ascii_whitespace().any(|word| word == "hypervisor");
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(flag)
}
