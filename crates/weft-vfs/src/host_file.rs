//! Files of the host that are made or replaced as a whole: whoever opens one finds all of the old
//! content or all of the new, also after a power cut.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::CWD;
use rustix::io::Errno;

/// Makes the names of temporary files of this process different.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A file that is being written beside the one that it becomes. Dropped before, it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    /// The temporary file. `None` for what cannot be replaced, such as a pipe, which is written in
    /// place.
    fresh: Option<PathBuf>,
}

impl NewFile {
    /// Begins a file that becomes `path`, with these permission bits less those of the umask. A
    /// symbolic link stays, and the file that it leads to is replaced. What is no file, such as a pipe,
    /// and what is in `/dev` or `/proc`, such as `/dev/stdout`, is written in place.
    ///
    /// # Errors
    /// Those of the host; of a directory, `EISDIR`.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let is_file = fs::metadata(path).map(|found| found.is_file());
        if !is_file.unwrap_or(true) || path.starts_with("/dev") || path.starts_with("/proc") {
            let file = OpenOptions::new().write(true).truncate(true).open(path)?;
            return Ok(Self { file, path: path.to_owned(), fresh: None });
        }
        let path = fs::canonicalize(path)
            // A link to a file that is not there.
            .or_else(|_| fs::read_link(path).map(|target| parent(path).join(target)))
            .unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let mut fresh = OsString::from(format!(".{}-{count}.", std::process::id()));
            // A name has at most 255 bytes.
            fresh.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
            let fresh = parent(&path).join(fresh);
            // A file that an earlier process of the same number left has the name.
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok(Self { file: made?, path, fresh: Some(fresh) }),
            }
        }
    }

    /// The file, for what is not written from its beginning to its end.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes the name. Atomic for other processes and over power cuts: the content is on the disk
    /// before the name is its.
    ///
    /// # Errors
    /// Those of the host. The old file is there then.
    pub fn replace(mut self) -> io::Result<()> {
        let Some(fresh) = &self.fresh else { return self.file.flush() };
        self.file.sync_all()?;
        fs::rename(fresh, &self.path)?;
        self.fresh = None;
        Ok(())
    }

    /// The same, and durable when it returns.
    ///
    /// # Errors
    /// Those of the host. The new file may be there all the same.
    pub fn replace_durably(self) -> io::Result<()> {
        let path = self.path.clone();
        self.replace()?;
        sync_parent(&path)
    }

    /// Takes a name that nothing has, durably.
    ///
    /// # Errors
    /// Those of the host; [`io::ErrorKind::AlreadyExists`].
    pub fn persist_new(mut self) -> io::Result<()> {
        let Some(fresh) = &self.fresh else {
            return Err(io::ErrorKind::AlreadyExists.into());
        };
        self.file.sync_all()?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, fresh, CWD, &self.path, flags) {
            Ok(()) => self.fresh = None,
            // Not all file systems can do this, nor make links.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::hard_link(fresh, &self.path)?;
            }
            Err(e) => return Err(e.into()),
        }
        sync_parent(&self.path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(fresh) = &self.fresh {
            let _ = fs::remove_file(fresh);
        }
    }
}

/// Writes a file as a whole, durably, in the place of another if there is one.
///
/// # Errors
/// Those of [`NewFile::create`] and [`NewFile::replace_durably`].
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = NewFile::create(path, mode)?;
    file.write_all(bytes)?;
    file.replace_durably()
}

/// Renames a file or directory, durably.
///
/// # Errors
/// Those of the host.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)?;
    if parent(from) == parent(to) { Ok(()) } else { sync_parent(from) }
}

/// Makes a directory and those above it, durably. It may be there.
///
/// # Errors
/// Those of the host.
pub fn create_dir_all(path: &Path, mode: u32) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    create_dir_all(parent(path), mode)?;
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| sync_parent(path)),
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// Those of the host.
pub fn sync_dir(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes the name of a file durable, not its content.
///
/// # Errors
/// Those of the host.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    sync_dir(parent(path))
}

fn parent(path: &Path) -> &Path {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new(if path.has_root() { "/" } else { "." }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|e| e.expect("an entry").file_name().into_string().expect("ASCII"))
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        replace(&path, b"first", 0o600).expect("made");
        assert_eq!(fs::metadata(&path).expect("made").permissions().mode() & 0o777, 0o600);
        let old = File::open(&path).expect("the old one");
        let mut new = NewFile::create(&path, 0o644).expect("begun");
        new.write_all(b"second").expect("written");
        assert_eq!(fs::read(&path).expect("the old one"), b"first");
        drop(new);
        assert_eq!(names(dir.path()), ["file"]);
        replace(&path, b"third", 0o600).expect("replaced");
        assert_eq!(fs::read(&path).expect("the new one"), b"third");
        let ino = |found: io::Result<fs::Metadata>| found.expect("a file").ino();
        assert_ne!(ino(old.metadata()), ino(fs::metadata(&path)), "not written in place");

        let link = dir.path().join("link");
        symlink("file", &link).expect("a link");
        replace(&link, b"fourth", 0o600).expect("replaced");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read(&path).expect("its target"), b"fourth");
        let lost = dir.path().join("lost");
        symlink("to-come", &lost).expect("a link");
        replace(&lost, b"fifth", 0o600).expect("made");
        assert_eq!(fs::read(dir.path().join("to-come")).expect("its target"), b"fifth");
        assert_eq!(names(dir.path()), ["file", "link", "lost", "to-come"]);
        replace(Path::new("/dev/null"), b"away", 0o600).expect("written in place");
        assert!(!fs::metadata("/dev/null").expect("there").is_file());
        assert!(NewFile::create(dir.path(), 0o600).is_err());
        assert!(NewFile::create(Path::new("/"), 0o600).is_err());
        assert!(NewFile::create(Path::new(""), 0o600).is_err());

        let long = dir.path().join("x".repeat(255));
        replace(&long, b"long", 0o600).expect("made");
        assert_eq!(fs::read(&long).expect("made"), b"long");
    }

    #[test]
    fn a_new_file_replaces_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let new = |text: &[u8]| {
            let mut new = NewFile::create(&path, 0o600)?;
            new.write_all(text)?;
            new.persist_new()
        };
        new(b"first").expect("made");
        assert_eq!(new(b"second").expect_err("there").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("the first"), b"first");
        assert_eq!(names(dir.path()), ["file"]);
        let deep = dir.path().join("a/b/c");
        create_dir_all(&deep, 0o700).expect("made");
        create_dir_all(&deep, 0o700).expect("there");
        assert_eq!(fs::metadata(&deep).expect("made").permissions().mode() & 0o777, 0o700);
        assert!(create_dir_all(&path.join("d"), 0o700).is_err(), "below a file");
        rename(&deep, &dir.path().join("c")).expect("moved");
        assert_eq!(names(dir.path()), ["a", "c", "file"]);
    }
}
