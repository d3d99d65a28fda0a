//! An archive in a directory, as an object store.
//!
//! The directory is opened anew for each request, and everything of the request happens below that
//! descriptor, once the marker was found there. So when the disk of an archive is unmounted, or
//! another is mounted in its place, while this process runs, the next request fails: it never finds
//! or puts a block in the directory that the disk has left behind. Between requests nothing is
//! open, so the disk can be unmounted at any time.
//!
//! The directory itself is never made: only `blocks` and what is in it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::store::{MARKER, MARKER_MAX_BYTES};

const STORE: &str = "directory";
/// How many names for a new file are tried: of writers that died, or work at the same time.
const NAMES_MAX: u32 = 1000;

/// Why a directory is not, or no longer, the archive that it was.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotTheArchive(pub(super) String);

/// The archive in a directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// The first marker that was read or made: requests for blocks need the same to be there.
    marker: Arc<OnceLock<Vec<u8>>>,
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "directory {}", self.path.display())
    }
}

fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: STORE, source: source.into() }
}

fn failed(path: &Path, error: Errno) -> object_store::Error {
    let (source, at) = (io::Error::from(error).into(), path.to_string());
    match error {
        Errno::NOENT => object_store::Error::NotFound { path: at, source },
        Errno::EXIST => object_store::Error::AlreadyExists { path: at, source },
        Errno::ACCESS | Errno::PERM => object_store::Error::PermissionDenied { path: at, source },
        _ => object_store::Error::Generic { store: STORE, source },
    }
}

fn unsupported(what: &'static str) -> object_store::Error {
    let (operation, implementer) = (what.to_owned(), STORE.to_owned());
    object_store::Error::NotImplemented { operation, implementer }
}

/// Runs `work` in a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> object_store::Result<T> + Send + 'static,
) -> object_store::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

fn open_at(dir: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::RUSR)
}

/// Reads the marker of a directory; `None` if it has none.
fn read_marker(dir: impl AsFd) -> Result<Option<Vec<u8>>, Errno> {
    let file = match open_at(dir, MARKER, OFlags::RDONLY) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    let read = file.take(MARKER_MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok(Some(bytes))
}

impl Directory {
    /// The archive in the directory at `path`, which must be there.
    pub(super) fn new(path: PathBuf) -> object_store::Result<Self> {
        let directory = Self { path, marker: Arc::default() };
        directory.open()?;
        Ok(directory)
    }

    fn open(&self) -> object_store::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|e| match e {
            Errno::NOENT | Errno::NOTDIR => generic(NotTheArchive(format!(
                "{} is not there: is its disk mounted?",
                self.path.display()
            ))),
            e => failed(&Path::default(), e),
        })
    }

    /// Opens the directory, as far as it is the archive that it was.
    fn open_marked(&self) -> object_store::Result<OwnedFd> {
        let dir = self.open()?;
        let found = read_marker(&dir).map_err(|e| failed(&Path::from(MARKER), e))?;
        let Some(found) = found else {
            return Err(generic(NotTheArchive(format!(
                "{MARKER} is missing in {}: is its disk mounted?",
                self.path.display()
            ))));
        };
        match self.marker.get() {
            Some(expected) if *expected != found => Err(generic(NotTheArchive(format!(
                "its marker now says {:?}",
                String::from_utf8_lossy(&found)
            )))),
            _ => Ok(dir),
        }
    }

    /// Opens the directory for a request about an object.
    fn open_for(&self, path: &Path) -> object_store::Result<OwnedFd> {
        if path.as_ref() == MARKER { self.open() } else { self.open_marked() }
    }

    /// Opens the parent of an object; returns it with the name of the object in it.
    fn parent(&self, path: &Path) -> object_store::Result<(OwnedFd, String)> {
        let mut dir = self.open_for(path)?;
        let mut parts: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
        let name = parts.pop().ok_or_else(|| failed(path, Errno::ISDIR))?;
        for part in parts {
            dir = open_at(&dir, &part, OFlags::RDONLY | OFlags::DIRECTORY)
                .map_err(|e| failed(path, e))?;
        }
        Ok((dir, name))
    }

    fn put(&self, path: &Path, bytes: &PutPayload, is_new: bool) -> object_store::Result<()> {
        let failed = |e| failed(path, e);
        let mut dir = self.open_for(path)?;
        let mut parts: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
        let name = parts.pop().ok_or_else(|| failed(Errno::ISDIR))?;
        for part in parts {
            match rustix::fs::mkdirat(&dir, &part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(failed(e)),
            }
            let below = open_at(&dir, &part, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
            // Even if another thread has made it: that one may not be as far yet.
            rustix::fs::fsync(&dir).map_err(failed)?;
            dir = below;
        }
        let (new, mut file) = new_file(&dir, &name).map_err(failed)?;
        let io = |e: io::Error| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO));
        let written = bytes
            .iter()
            .try_for_each(|part| file.write_all(part))
            .and_then(|()| file.sync_all())
            .map_err(io);
        let named = written.and_then(|()| {
            if is_new {
                rustix::fs::linkat(&dir, &new, &dir, &name, AtFlags::empty()).map_err(failed)
            } else {
                rustix::fs::renameat(&dir, &new, &dir, &name).map_err(failed)
            }
        });
        if is_new || named.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &new, AtFlags::empty());
        }
        named?;
        rustix::fs::fsync(&dir).map_err(failed)
    }

    fn get(&self, path: &Path, is_head: bool) -> object_store::Result<GetResult> {
        let (dir, name) = self.parent(path)?;
        let file = File::from(open_at(&dir, &name, OFlags::RDONLY).map_err(|e| failed(path, e))?);
        let metadata = file.metadata().map_err(generic)?;
        if !metadata.is_file() {
            return Err(failed(path, Errno::NOENT));
        }
        let size = metadata.len();
        let meta = ObjectMeta {
            location: path.clone(),
            last_modified: metadata.modified().map_err(generic)?.into(),
            size,
            e_tag: None,
            version: None,
        };
        let payload = if is_head {
            GetResultPayload::Stream(stream::empty().boxed())
        } else {
            GetResultPayload::File(file, self.path.join(path.as_ref()))
        };
        let (attributes, extensions) = Default::default();
        Ok(GetResult { payload, meta, range: 0..size, attributes, extensions })
    }

    fn delete(&self, path: &Path) -> object_store::Result<()> {
        let (dir, name) = self.parent(path)?;
        rustix::fs::unlinkat(&dir, &name, AtFlags::empty()).map_err(|e| failed(path, e))
    }

    /// Lists the objects below `prefix`. The marker is not asked for: a list promises nothing.
    fn list_all(&self, prefix: &Path) -> object_store::Result<Vec<ObjectMeta>> {
        let (mut found, mut left) = (Vec::new(), vec![prefix.clone()]);
        let top = self.open()?;
        while let Some(at) = left.pop() {
            let relative = if at.as_ref().is_empty() { "." } else { at.as_ref() };
            let opened = open_at(&top, relative, OFlags::RDONLY | OFlags::DIRECTORY);
            let dir = match opened {
                Ok(dir) => dir,
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(e) => return Err(failed(&at, e)),
            };
            for entry in Dir::read_from(&dir).map_err(|e| failed(&at, e))? {
                let entry = entry.map_err(|e| failed(&at, e))?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name == "." || name == ".." {
                    continue;
                }
                let location = at.clone().join(name);
                let stat = match rustix::fs::statat(&dir, name, AtFlags::empty()) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) => continue, // removed meanwhile
                    Err(e) => return Err(failed(&location, e)),
                };
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => left.push(location),
                    FileType::RegularFile => found.push(ObjectMeta {
                        location,
                        last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
                        size: u64::try_from(stat.st_size).unwrap_or(0),
                        e_tag: None,
                        version: None,
                    }),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}

/// Makes a file to write, beside where it will be.
fn new_file(dir: impl AsFd, name: &str) -> Result<(String, File), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for n in 1..NAMES_MAX {
        let new = format!("{name}#{n}");
        match rustix::fs::openat(dir.as_fd(), &new, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok((new, File::from(file))),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let is_new = match options.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return Err(unsupported("a conditional put")),
        };
        let (own, path) = (self.clone(), path.clone());
        blocking(move || own.put(&path, &payload, is_new)).await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: object_store::Extensions::default(),
        })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(unsupported("a put in parts"))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        if options.range.is_some() {
            return Err(unsupported("a get of a part"));
        }
        let (own, path) = (self.clone(), path.clone());
        blocking(move || {
            if path.as_ref() == MARKER
                && let Some(found) = read_marker(own.open()?).map_err(|e| failed(&path, e))?
            {
                // The first one binds the blocks that follow.
                let _ = own.marker.set(found);
            }
            own.get(&path, options.head)
        })
        .await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let own = self.clone();
        let delete = move |path: object_store::Result<Path>| {
            let own = own.clone();
            async move {
                let path = path?;
                let at = path.clone();
                blocking(move || own.delete(&at)).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (own, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let list = async move {
            match blocking(move || own.list_all(&prefix)).await {
                Ok(found) => stream::iter(found.into_iter().map(Ok)).boxed(),
                Err(e) => stream::once(async { Err(e) }).boxed(),
            }
        };
        stream::once(list).flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(unsupported("a list of one level"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(unsupported("a copy"))
    }
}
