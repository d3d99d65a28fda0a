//! The kernel's own uses of an image file: behind a loop device, or as swap space.
//!
//! Neither takes a lock that a program could meet. A mounted loop device has its own cache of the file,
//! and a write to the file below it damages the volume. So before an image is opened for writing, the
//! kernel is asked.
//!
//! A loop device is of a file if its backing file is the same inode: by the path that sysfs shows to
//! every user, and by `LOOP_GET_STATUS64` where the device may be opened, which also knows files that
//! were deleted, or whose path is one of another mount namespace. One that nothing uses, as far as can be
//! proved (it can be opened with `O_EXCL`), is no obstacle.
//!
//! The file has unsafe code for that ioctl(2), which rustix does not have.

use crate::{Error, Result};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `LOOP_GET_STATUS64` of linux/loop.h.
const LOOP_GET_STATUS64: u32 = 0x4C05;

/// The attempts, and the pause between two.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// The file that a device number and an inode number identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    dev: u64,
    ino: u64,
    /// The device that a block special file is.
    rdev: Option<u64>,
}

impl Identity {
    fn of(stat: &Stat) -> Self {
        let special = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Self { dev: stat.st_dev, ino: stat.st_ino, rdev: special.then_some(stat.st_rdev) }
    }

    fn is(self, other: Self) -> bool {
        match (self.rdev, other.rdev) {
            (Some(one), Some(other)) => one == other,
            (None, None) => (self.dev, self.ino) == (other.dev, other.ino),
            _ => false,
        }
    }
}

/// Refuses a file that the kernel uses, and names the use.
///
/// # Errors
/// [`Error::InUse`].
pub(crate) fn check(path: &Path, stat: &Stat) -> Result<()> {
    let wanted = Identity::of(stat);
    let mut tries = 0;
    loop {
        let Some((by, remedy)) = swap(wanted).or_else(|| Loops::of_system().user(wanted)) else {
            return Ok(());
        };
        // A loop device that was just unmounted is let go in a moment.
        if tries == TRIES {
            return Err(Error::InUse { path: path.to_owned(), by, remedy });
        }
        tries += 1;
        std::thread::sleep(PAUSE);
    }
}

/// Refuses a loop device, or a partition of one, whose backing file another process has locked: as a
/// volume that is mounted, for example. The kernel's driver takes no notice of locks.
///
/// # Errors
/// [`Error::InUse`].
pub(crate) fn check_backing(path: &Path, stat: &Stat) -> Result<()> {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let found = ["loop/backing_file", "../loop/backing_file"]
        .iter()
        .find_map(|name| std::fs::read(sys.join(name)).ok());
    let Some(found) = found else { return Ok(()) };
    let file =
        PathBuf::from(OsString::from_vec(found.strip_suffix(b"\n").unwrap_or(&found).into()));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(&file, flags, Mode::empty()) else { return Ok(()) };
    for _ in 0..TRIES {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            _ => return Ok(()),
        }
    }
    Err(Error::InUse {
        path: path.to_owned(),
        by: format!("another process has its backing file {}", file.display()),
        remedy: "end that first".into(),
    })
}

fn identity_of(path: &Path) -> Option<Identity> {
    rustix::fs::stat(path).ok().map(|stat| Identity::of(&stat))
}

/// A use, and how it is ended.
type Use = (String, String);

fn swap(wanted: Identity) -> Option<Use> {
    let table = std::fs::read("/proc/swaps").ok()?;
    let mut lines = table.split(|b| *b == b'\n').skip(1);
    let path = lines.find_map(|line| {
        let path = unescape(line.split(u8::is_ascii_whitespace).next()?);
        identity_of(&path)?.is(wanted).then_some(path)
    })?;
    let remedy = format!("swapoff {} first", path.display());
    Some(("the kernel swaps to it".into(), remedy))
}

/// The system's loop devices.
struct Loops {
    sys: PathBuf,
    dev: PathBuf,
    mounts: PathBuf,
}

/// The part of `struct loop_info64` that is read: the rest is a buffer for the kernel.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    rest: [u64; 26],
}

impl Loops {
    fn of_system() -> Self {
        Self { sys: "/sys/block".into(), dev: "/dev".into(), mounts: "/proc/self/mountinfo".into() }
    }

    /// Finds a loop device of the file that something uses.
    fn user(&self, wanted: Identity) -> Option<Use> {
        let mut names: Vec<String> = std::fs::read_dir(&self.sys)
            .ok()?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with("loop"))
            .collect();
        names.sort_unstable();
        names.iter().find_map(|name| self.use_of(name, wanted))
    }

    fn use_of(&self, name: &str, wanted: Identity) -> Option<Use> {
        let sys = self.sys.join(name);
        let backing = std::fs::read(sys.join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let device = self.dev.join(name);
        let by_path = identity_of(&PathBuf::from(OsString::from_vec(backing.to_vec())));
        let is_it = by_path.is_some_and(|file| file.is(wanted))
            || backing_file(&device).is_some_and(|file| file.is(wanted));
        if !is_it {
            return None;
        }
        let shown = device.display();
        // With its partitions.
        let mut parts = vec![sys.clone()];
        parts.extend(
            std::fs::read_dir(&sys)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(name.as_bytes()))
                .map(|entry| entry.path()),
        );
        if let Some(mountpoint) = parts.iter().find_map(|part| self.mountpoint(part)) {
            let at = mountpoint.display();
            return Some((
                format!("the kernel has it as {shown}, mounted on {at}"),
                format!("umount {at} first"),
            ));
        }
        let holder = parts.iter().find_map(|part| {
            let holder = std::fs::read_dir(part.join("holders")).ok()?.flatten().next()?;
            Some(self.holder_name(&holder.file_name().to_string_lossy()))
        });
        if let Some(holder) = holder {
            return Some((
                format!("the kernel has it as {shown}, which is part of {holder}"),
                format!("remove {holder}, and losetup -d {shown}, first"),
            ));
        }
        let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(&device, exclusive, Mode::empty()) {
            Ok(_) => None,
            Err(Errno::BUSY) => Some((
                format!(
                    "the kernel has it as {shown}, which is in use (perhaps mounted elsewhere)"
                ),
                format!("end that, or losetup -d {shown}, first"),
            )),
            Err(_) => Some((
                format!("the kernel has it as {shown}, which may be in use"),
                format!("losetup -d {shown} first (it needs root)"),
            )),
        }
    }

    /// The name of a device-mapper device for people, and that of any other device.
    fn holder_name(&self, name: &str) -> String {
        match std::fs::read_to_string(self.sys.join(name).join("dm/name")) {
            Ok(mapped) => format!("/dev/mapper/{}", mapped.trim_end()),
            Err(_) => format!("/dev/{name}"),
        }
    }

    /// The place where a device is mounted, by its directory in sysfs.
    fn mountpoint(&self, sys: &Path) -> Option<PathBuf> {
        let number = std::fs::read_to_string(sys.join("dev")).ok()?;
        let table = std::fs::read(&self.mounts).ok()?;
        table.split(|b| *b == b'\n').find_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let is_it = fields.nth(2)? == number.trim_end().as_bytes();
            let at = fields.nth(1)?;
            is_it.then(|| unescape(at))
        })
    }
}

/// Asks a loop device for its backing file; `None` without the permission.
fn backing_file(device: &Path) -> Option<Identity> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(device, flags, Mode::empty()).ok()?;
    let info = loop_info(fd.as_fd()).ok()?;
    let rdev = (info.rdevice != 0).then_some(info.rdevice);
    Some(Identity { dev: info.device, ino: info.inode, rdev })
}

fn loop_info(fd: impl AsFd) -> rustix::io::Result<LoopInfo> {
    type Get = rustix::ioctl::Getter<LOOP_GET_STATUS64, LoopInfo>;
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, 232 bytes, which `LoopInfo` is as long
    // as; any bytes are valid in it. Another kind of device refuses the request and writes nothing.
    unsafe { rustix::ioctl::ioctl(fd, Get::new()) }
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

/// Undoes the octal escapes of the tables in proc(5).
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs of one loop device.
    struct System {
        dir: tempfile::TempDir,
        image: PathBuf,
    }

    impl System {
        fn new(backing: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let image = dir.path().join("v 1.img");
            std::fs::write(&image, [0; 512]).unwrap();
            let sys = dir.path().join("sys/loop7");
            for below in ["loop", "holders", "loop7p1/holders"] {
                std::fs::create_dir_all(sys.join(below)).unwrap();
            }
            let backing = if backing.is_empty() { image.to_str().unwrap() } else { backing };
            std::fs::write(sys.join("loop/backing_file"), format!("{backing}\n")).unwrap();
            std::fs::write(sys.join("dev"), "7:7\n").unwrap();
            std::fs::write(sys.join("loop7p1/dev"), "259:3\n").unwrap();
            std::fs::create_dir(dir.path().join("sys/sda")).unwrap();
            std::fs::write(dir.path().join("mounts"), "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
                .unwrap();
            std::fs::create_dir(dir.path().join("dev")).unwrap();
            std::fs::write(dir.path().join("dev/loop7"), "").unwrap();
            Self { dir, image }
        }

        fn user(&self) -> Option<Use> {
            let at = |name: &str| self.dir.path().join(name);
            let loops = Loops { sys: at("sys"), dev: at("dev"), mounts: at("mounts") };
            loops.user(identity_of(&self.image).unwrap())
        }
    }

    #[test]
    fn a_loop_device_that_nothing_uses_is_no_obstacle() {
        assert_eq!(System::new("").user(), None);
        assert_eq!(System::new("/elsewhere.img").user(), None);
    }

    #[test]
    fn a_loop_device_that_may_not_be_opened_counts_as_used() {
        let system = System::new("");
        std::fs::remove_file(system.dir.path().join("dev/loop7")).unwrap();
        let (by, _) = system.user().unwrap();
        assert!(by.contains("dev/loop7, which may be in use"), "{by}");
    }

    #[test]
    fn mounted_partitions_and_holders_are_named() {
        let system = System::new("");
        let mounts = "30 1 259:3 / /mnt/a\\040b rw - ext4 /dev/loop7p1 rw\n";
        std::fs::write(system.dir.path().join("mounts"), mounts).unwrap();
        let (by, remedy) = system.user().unwrap();
        assert!(by.ends_with("dev/loop7, mounted on /mnt/a b"), "{by}");
        assert_eq!(remedy, "umount /mnt/a b first");
        let system = System::new("");
        std::fs::create_dir_all(system.dir.path().join("sys/dm-0/dm")).unwrap();
        std::fs::write(system.dir.path().join("sys/dm-0/dm/name"), "vault\n").unwrap();
        std::fs::write(system.dir.path().join("sys/loop7/loop7p1/holders/dm-0"), "").unwrap();
        let (by, _) = system.user().unwrap();
        assert!(by.ends_with("part of /dev/mapper/vault"), "{by}");
    }

    #[test]
    fn a_hard_link_of_the_backing_file_is_the_same_file() {
        let system = System::new("");
        std::fs::remove_file(system.dir.path().join("dev/loop7")).unwrap();
        let other = system.dir.path().join("other.img");
        std::fs::hard_link(&system.image, &other).unwrap();
        let system = System { image: other, ..system };
        assert!(system.user().is_some());
    }
}
