//! The options of a mount.

use std::str::FromStr;
use std::time::Duration;

/// The options of a mount. The [`Default`] is right for a volume that only this mount changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that `mount` shows, usually the image's path.
    pub source: String,
    /// The type that `mount` shows after `fuse.`; the helper `mount.fuse.weft` needs `weft`.
    pub subtype: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Other users may use the mount, each with the permissions of the files. Default: no, as with
    /// every FUSE mount. An ordinary user needs `user_allow_other` in `/etc/fuse.conf` to set it.
    ///
    /// A mount that only root may use, of a file system without ACLs (or without
    /// [`xattrs`](Self::xattrs)), needs no permission checks, and so spares the kernel a request
    /// for the directory's attributes after each name made or removed in it: one request in nine of
    /// an unpacking. If the kernel enforces ACLs it checks in any case.
    pub allow_other: bool,
    /// Extended attributes, and POSIX ACLs with them. Without them the kernel need not request
    /// `security.capability` before the first write and the first change of owner of each file: one
    /// request in four of an unpacking (`noxattr`, like the kernel's `nouser_xattr`).
    pub xattrs: bool,
    /// Honour setuid and setgid bits (root only, as the image determines a file's owner).
    pub suid: bool,
    /// Honour device nodes (root only).
    pub dev: bool,
    /// Refuse to run programs.
    pub no_exec: bool,
    /// The number of threads that answer requests. Default: one a CPU, at least 2 (one waits for
    /// the disk while another works) and at most 8 (the kernel has one queue for all of them).
    /// Others are added while all of these wait. If the file system can tell that a request would
    /// wait ([`without_waiting`](weft_vfs::FileSystem::without_waiting)), it gets a thread beside these.
    pub threads: usize,
    /// The time for which the kernel may trust names (also absent ones) and attributes. Default: a
    /// year, since only this mount changes the volume; the file system announces its own changes.
    /// Use a short time for a file system that other clients change, too.
    pub lifetime: Duration,
    /// The kernel may also cache that a name does not exist. Default: yes; use no if others than
    /// this mount's users create names.
    pub absent_names: bool,
    /// Other clients change the files, too: the kernel drops the cached pages of a file when its
    /// attributes have changed. Needs a short [`lifetime`](Self::lifetime), and no
    /// [`writeback_cache`](Self::writeback_cache), which trusts its own attributes.
    pub shared: bool,
    /// The kernel collects writes in its page cache, and `write(2)` returns before the file system
    /// receives them. Default: no. It saves requests if a program writes one file in small pieces,
    /// but then a full volume, a file too long for the format and an exhausted quota are no longer
    /// errors of `write(2)` (they come with `fsync(2)` or `close(2)`, or not at all); `st_blocks`
    /// does not reflect data that was just written (`tar -S` takes a file with none for a hole as a
    /// whole, and the copy has zeroes in its place); and mtime is not that of the write.
    pub writeback_cache: bool,
    /// An fsync of the mount's root makes the whole file system durable (`sync MOUNTPOINT`). Default:
    /// yes, as the kernel forwards neither `sync(2)` nor `syncfs(2)` to a FUSE mount. Otherwise it
    /// makes the names in the root durable, as in any other directory.
    pub sync_by_root: bool,
    /// Passthrough: the kernel itself reads and writes files whose content is exactly that of a
    /// file of the host ([`FileSystem::backing`](weft_vfs::FileSystem::backing)). Root only, from
    /// Linux 6.9 on, and not with [`writeback_cache`](Self::writeback_cache); elsewhere it has no
    /// effect. Nothing can be mounted on such a mount by overlayfs more than one deep.
    pub passthrough: bool,
    /// Whether the kernel sends requests over io_uring. Default: [`IoUring::Auto`].
    pub io_uring: IoUring,
    /// The longest write in one request, in bytes (the kernel has its own limit, mostly 1 MiB).
    pub max_write_bytes: u32,
    /// The kernel's readahead in a file, in bytes; more than 128 KiB only for root.
    pub max_readahead_bytes: u32,
}

/// Whether the kernel sends requests over io_uring (Linux 6.14): a round trip then stays on the CPU
/// that made the request, and wakes no other. The mount has one thread for each CPU then, and
/// [`MountOptions::threads`] has no effect.
///
/// The kernel's switch is off by default, `/sys/module/fuse/parameters/enable_uring`; root turns it
/// on, for mounts that are made afterwards. A file system that may wait in any call, as it has its
/// data from other hosts or programs, or that has locks of its own, is served over `/dev/fuse` in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoUring {
    /// If the kernel, this process' limits and the file system allow it.
    #[default]
    Auto,
    /// Yes, or the mount fails.
    On,
    /// No: over `/dev/fuse`.
    Off,
}

impl FromStr for IoUring {
    type Err = String;

    /// Parses `auto`, `on` or `off`.
    fn from_str(when: &str) -> Result<Self, String> {
        match when {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("io_uring={when}: give auto, on or off")),
        }
    }
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
            sync_by_root: true,
            passthrough: false,
            io_uring: IoUring::Auto,
            max_write_bytes: 1 << 20,
            max_readahead_bytes: 1 << 20,
        }
    }
}
