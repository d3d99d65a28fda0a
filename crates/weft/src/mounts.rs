//! The host's mount table, and unmounting.

use crate::directory_lock::is_free;
use crate::source::{CELL_STORE, HOST_DIRECTORY, Source};
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weft_block::OpenMode;

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The type, such as `fuse.weft`.
    pub fs_type: String,
    /// The source; for weft the image as an absolute path.
    pub source: OsString,
    /// Whether it is mounted for reading only.
    pub read_only: bool,
    /// Its device number: major, minor.
    pub device: (u32, u32),
    /// The user who mounted it; only for a FUSE mount.
    pub owner: Option<u32>,
}

impl Mounted {
    /// Returns the name of an abstract socket (unix(7)) of the process behind the mount, for one
    /// `purpose`. It contains the device number, and the end of the source, as the kernel gives the
    /// number to another mount while the process behind the last one may still be writing.
    #[must_use]
    pub fn socket_name(&self, purpose: &str) -> Vec<u8> {
        /// A name has 107 bytes at most.
        const SOURCE_MAX_BYTES: usize = 64;
        let (major, minor) = self.device;
        let source = self.source.as_os_str().as_bytes();
        let mut name = format!("weft-{purpose}-{major}:{minor}-").into_bytes();
        name.extend(&source[source.len().saturating_sub(SOURCE_MAX_BYTES)..]);
        name
    }

    /// Returns true if weft may serve the mount: for a mount by root the table does not name the
    /// program.
    #[must_use]
    pub fn is_weft(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse.weft" | "fuse")
    }

    /// Returns true if both lines are of one mounted file system, on the same place or on another.
    /// The device number alone does not tell: once a mount has ended the next one gets its number.
    fn is_same_file_system(&self, other: &Self) -> bool {
        self.device == other.device && self.source == other.source
    }
}

/// Returns true if `path`, which need not be there yet, is `directory` or below it, whatever names lead to
/// them.
#[must_use]
pub fn is_within(path: &Path, directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let (Some(directory), Ok(path)) = (id(directory), std::path::absolute(path)) else {
        return false;
    };
    let there = path.ancestors().find_map(|above| above.canonicalize().ok());
    there.is_some_and(|there| there.ancestors().any(|above| id(above) == Some(directory)))
}

/// The mount on `mountpoint`, if there is one; the topmost of several.
///
/// # Errors
/// [`Error::Host`] if the table cannot be read.
pub fn mounted_at(mountpoint: &Path) -> Result<Option<Mounted>> {
    let wanted = absolute(mountpoint)?;
    Ok(table()?.into_iter().rfind(|m| m.mountpoint == wanted))
}

/// Returns true if the file system of `mounted` is mounted anywhere in this mount namespace.
///
/// # Errors
/// [`Error::Host`] if the table cannot be read.
pub fn is_mounted(mounted: &Mounted) -> Result<bool> {
    Ok(table()?.iter().any(|m| m.is_same_file_system(mounted)))
}

/// Finds a process with another mount namespace in which the file system of `mounted` still is
/// mounted: its id and name. Namespaces of processes that this one may not inspect are not seen.
#[must_use]
pub fn user_in_another_namespace(mounted: &Mounted) -> Option<(u32, String)> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let ours = namespace(Path::new("/proc/self"))?;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let process = entry.path();
        if namespace(&process).is_none_or(|theirs| theirs == ours) {
            continue;
        }
        let Ok(text) = std::fs::read(process.join("mountinfo")) else { continue };
        if parse(&text).iter().any(|m| m.is_same_file_system(mounted)) {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            return Some((pid, name.trim_end().to_owned()));
        }
    }
    None
}

/// The whole table, in the order of mounting.
pub(crate) fn table() -> Result<Vec<Mounted>> {
    let table = "/proc/self/mountinfo";
    let text = std::fs::read(table).map_err(|e| Error::host("read", table, e))?;
    Ok(parse(&text))
}

fn parse(table: &[u8]) -> Vec<Mounted> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// Makes a path absolute without accessing the mount it names: stat fails on a dead mount.
fn absolute(path: &Path) -> Result<PathBuf> {
    if let Ok(real) = std::fs::canonicalize(path) {
        return Ok(real);
    }
    let failed = |e| Error::host("find", path, e);
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(std::fs::canonicalize(parent).map_err(failed)?.join(name))
        }
        _ => std::path::absolute(path).map_err(failed),
    }
}

/// One line of `/proc/self/mountinfo` (proc(5)): id, parent, device, root, mount point, options,
/// optional fields, `-`, type, source, options of the file system.
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|b| *b == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mountpoint = unescape(fields.nth(1)?);
    let options = fields.next()?;
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let of_fs = fields.next().unwrap_or_default();
    let owner = of_fs.split(|b| *b == b',').find_map(|o| o.strip_prefix(b"user_id="));
    let owner = owner.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
    Some(Mounted {
        mountpoint: PathBuf::from(mountpoint),
        fs_type,
        source,
        read_only: options.split(|b| *b == b',').any(|o| o == b"ro"),
        device,
        owner,
    })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        out.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(out)
}

/// The number of attempts on a busy mount, and the pause between them: a program that is just
/// ending, or one that is just being started and still has its parent's files, releases it in a
/// moment.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// Unmounts `mountpoint`. `lazy` detaches a mount that is in use or whose server has died.
///
/// # Errors
/// [`Error::Mount`] with the reason and a remedy.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let shown = mountpoint.display();
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let mut result = rustix::mount::unmount(mountpoint, flags);
    for _ in 0..BUSY_TRIES {
        if result != Err(Errno::BUSY) {
            break;
        }
        std::thread::sleep(BUSY_PAUSE);
        result = rustix::mount::unmount(mountpoint, flags);
    }
    match result {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount(mountpoint, lazy),
        Err(Errno::BUSY) => Err(Error::Mount(format!(
            "{shown} is in use: leave it (fuser -vm {shown} lists the processes), or detach it with \
             --lazy"
        ))),
        Err(Errno::INVAL) => Err(Error::Mount(format!("nothing is mounted on {shown}"))),
        Err(e) => Err(Error::Mount(format!("cannot unmount {shown}: {e}"))),
    }
}

/// Unmounts as an ordinary user, with fusermount3.
fn fusermount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let shown = mountpoint.display();
    match command.arg("--").arg(mountpoint).output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            Err(Error::Mount(format!("cannot unmount {shown}: {}", said.trim())))
        }
        Err(e) => Err(Error::Mount(format!(
            "cannot unmount {shown}: only root can without fusermount3 (Debian package fuse3): {e}"
        ))),
    }
}

/// Returns true if the process behind the mount on `mountpoint` has died. A process that lives is
/// asked for an attribute, and may take its time.
#[must_use]
pub fn is_dead(mountpoint: &Path) -> bool {
    // The attributes that the kernel keeps do not tell: it ends the io_uring rings of a process that
    // was killed, and with them the mount, after the process.
    let asked =
        rustix::fs::statx(CWD, mountpoint, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    asked.is_err_and(says_dead)
}

/// Returns true for the errors of a mount whose process has died, or is just being cleared away.
fn says_dead(error: Errno) -> bool {
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// Detaches the mount on `mountpoint` if its server has died (a killed daemon leaves a mount that
/// answers "not connected"). Returns true if there was one.
///
/// # Errors
/// Those of [`unmount`].
pub fn clear_dead(mountpoint: &Path) -> Result<bool> {
    match rustix::fs::stat(mountpoint) {
        Err(e) if says_dead(e) => unmount(mountpoint, true).map(|()| true),
        _ => Ok(false),
    }
}

/// Waits until no process has the volume in `source` open for writing: its server has made
/// everything durable and ended. Returns false if `timeout` passes first.
///
/// # Errors
/// None at present: a source that cannot be opened for another reason counts as free.
pub fn wait_until_free(source: &str, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    let directory = [HOST_DIRECTORY, CELL_STORE].iter().find_map(|p| source.strip_prefix(p));
    if let Some(path) = directory {
        while !is_free(Path::new(path)) {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(pause);
        }
        return Ok(true);
    }
    // Opening a filter may have effects, such as a log of writes that begins.
    let Ok(source) = source.parse::<Source>().map(Source::unfiltered) else { return Ok(true) };
    loop {
        match source.open(OpenMode::READ_WRITE) {
            Err(weft_block::Error::Locked { .. } | weft_block::Error::LockedHere { .. }) => {}
            _ => return Ok(true),
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A source as an absolute description, as the mount table shows it, independent of the working
/// directory.
///
/// # Errors
/// [`Error::Invalid`] for a path that is not UTF-8 or a malformed URI.
pub fn absolute_source(source: &str) -> Result<String> {
    for prefix in [HOST_DIRECTORY, CELL_STORE] {
        let Some(path) = source.strip_prefix(prefix) else { continue };
        let absolute = absolute(Path::new(path))?;
        let absolute = absolute.to_str();
        return absolute.map(|path| format!("{prefix}{path}")).ok_or_else(|| {
            Error::Invalid(format!("'{source}' is not UTF-8 when written in full"))
        });
    }
    let mut parsed: Source = source.parse()?;
    parsed.make_absolute()?;
    Ok(parsed.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::open_source;

    #[test]
    fn a_line_of_the_mount_table_is_read() {
        let line =
            b"36 35 98:0 / /mnt/with\\040blank rw,noatime shared:1 - fuse.weft /a\\134b.img rw,user_id=1000,group_id=1";
        let m = parse_line(line).unwrap();
        assert_eq!((m.device, m.owner), ((98, 0), Some(1000)));
        assert_eq!(m.mountpoint, Path::new("/mnt/with blank"));
        assert_eq!(m.source, OsString::from("/a\\b.img"));
        assert!(m.is_weft() && !m.read_only);
        let line = b"22 1 0:21 / /proc ro,relatime - proc proc rw";
        assert!(parse_line(line).unwrap().read_only);
        assert_eq!(parse_line(b"garbage"), None);
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn a_device_number_that_is_used_again_is_another_file_system() {
        let line = |text: &str| parse_line(text.as_bytes()).unwrap();
        let ended = line("40 35 0:53 / /m rw - fuse.weft /a.img rw,user_id=0,group_id=0");
        let bound = line("41 35 0:53 /d /b rw - fuse.weft /a.img rw,user_id=0,group_id=0");
        let next = line("40 35 0:53 / /m rw - fuse.weft /b.img rw,user_id=0,group_id=0");
        assert!(ended.is_same_file_system(&bound));
        assert!(!ended.is_same_file_system(&next));
    }

    #[test]
    fn the_real_table_has_proc() {
        assert_eq!(mounted_at(Path::new("/proc")).unwrap().unwrap().fs_type, "proc");
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mounted_at(dir.path()).unwrap(), None);
    }

    #[test]
    fn an_image_that_nobody_holds_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("v.img");
        std::fs::write(&image, [0; 4096]).unwrap();
        let image = image.to_str().unwrap();
        let held = open_source(image, OpenMode::READ_WRITE).unwrap();
        assert!(!wait_until_free(image, Duration::from_millis(5)).unwrap());
        drop(held);
        assert!(wait_until_free(image, Duration::from_millis(5)).unwrap());
    }
}
