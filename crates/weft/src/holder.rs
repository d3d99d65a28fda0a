//! The holder of a volume: the process that has locked an image, and its mount point, for the
//! message that refuses a second user.

use crate::mounts;
use rustix::fs::{major, minor};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_block::filters_len_bytes;

/// A process that uses a volume, as far as the system shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id and the name of its program.
    pub process: Option<(u32, String)>,
    /// The mount point of the volume.
    pub mountpoint: Option<PathBuf>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((pid, program)) = &self.process {
            write!(f, "it is process {pid}, {}", crate::shown(program.as_bytes()))?;
        }
        if let Some(mountpoint) = &self.mountpoint {
            let before = if self.process.is_some() { ", " } else { "it is " };
            let mountpoint = crate::shown(mountpoint.as_os_str().as_bytes());
            write!(f, "{before}mounted on {mountpoint}")?;
        }
        Ok(())
    }
}

/// The holder of the volume in `path`: an image file, a block special file, or the text of a URI.
/// `None` if none is found: other users' processes and other machines cannot be seen.
#[must_use]
pub fn holder_of(path: &Path) -> Option<Holder> {
    let process = locker(path).map(|pid| {
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (pid, program.trim_end().to_owned())
    });
    let wanted = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let wanted = wanted.as_os_str().as_bytes();
    let is_of = |source: &[u8]| {
        // Filters have names in ASCII; what is not UTF-8 behind them makes no difference.
        let filters = filters_len_bytes(&String::from_utf8_lossy(source));
        let source = source.get(filters..).unwrap_or_default();
        source.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"?"))
    };
    let mountpoint = mounts::table()
        .ok()?
        .into_iter()
        .rfind(|mounted| is_of(mounted.source.as_bytes()))
        .map(|mounted| mounted.mountpoint);
    (process.is_some() || mountpoint.is_some()).then_some(Holder { process, mountpoint })
}

/// The id of the process that has locked a file, by `/proc/locks` (proc_locks(5)): number, kind,
/// mode, type, process, device and inode, range. The device's numbers are hexadecimal, the inode's
/// decimal.
fn locker(path: &Path) -> Option<u32> {
    let meta = std::fs::metadata(path).ok()?;
    let dev = meta.dev();
    let id = format!("{:02x}:{:02x}:{}", major(dev), minor(dev), meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, file, ..] if file == id => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::open_source;
    use weft_block::OpenMode;

    #[test]
    fn the_process_that_has_an_image_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("v.img");
        std::fs::write(&image, [0; 4096]).unwrap();
        assert_eq!(holder_of(&image), None);
        let held = open_source(image.to_str().unwrap(), OpenMode::READ_WRITE).unwrap();
        let holder = holder_of(&image).unwrap();
        assert_eq!(holder.process.as_ref().unwrap().0, std::process::id());
        assert_eq!(holder.mountpoint, None);
        drop(held);
        assert_eq!(holder_of(&image), None);
    }

    #[test]
    fn a_holder_is_told_in_words() {
        let holder = Holder { process: Some((7, "weft".into())), mountpoint: Some("/m".into()) };
        assert_eq!(holder.to_string(), "it is process 7, weft, mounted on /m");
        let holder = Holder { process: None, mountpoint: Some("/m".into()) };
        assert_eq!(holder.to_string(), "it is mounted on /m");
    }
}
