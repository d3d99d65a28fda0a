//! The requests to an archive, each with a time limit.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig,
};
use weft_ringer::{ArchiveId, BlockHash, STORED_MAX_BYTES};

use super::directory::{Directory, NotTheArchive};
use super::error::{ArchiveError, Result};
use super::http;

/// The object that names the cell to which the archive belongs.
pub(super) const MARKER: &str = "weft-archive";
/// The maximum length of the marker, in bytes.
pub(super) const MARKER_MAX_BYTES: u64 = 1024;
/// The maximum number of parallel requests to one archive that wait for a disk or a socket.
const THREADS_MAX: usize = 32;
/// `EPERM`, `EACCES`, `EROFS`
const DENIED: [i32; 3] = [1, 13, 30];
/// `ENOSPC`, `EDQUOT`
const FULL: [i32; 2] = [28, 122];

/// A function that opens the store behind a URL. The default is `by_url`; with another, any store
/// that implements [`ObjectStore`].
#[derive(Clone)]
pub struct Opener(Arc<Open>);

type Open = dyn Fn(&str) -> Result<Arc<dyn ObjectStore>> + Send + Sync;

impl Opener {
    /// Opens stores with `open`.
    pub fn new(
        open: impl Fn(&str) -> Result<Arc<dyn ObjectStore>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }
}

impl Default for Opener {
    fn default() -> Self {
        Self::new(by_url)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

/// Opens the store that a URL names. The credentials for S3 are in the environment, as for other
/// programs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, ...
///
/// # Errors
/// [`ArchiveError::Url`], [`ArchiveError::Failed`] if it cannot be used.
pub fn by_url(url: &str) -> Result<Arc<dyn ObjectStore>> {
    let bad = |why| ArchiveError::Url { url: url.to_owned(), why };
    let failed = |e: object_store::Error| translate(url.to_owned(), "the store".to_owned(), &e);
    if let Some(path) = url.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err(bad("the path of a directory must begin with /"));
        }
        return Ok(Arc::new(Directory::new(PathBuf::from(path)).map_err(failed)?));
    }
    let Some(place) = url.strip_prefix("s3://") else {
        return Err(bad("invalid archive URL"));
    };
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.is_empty() || !bucket.chars().all(is_name) {
        return Err(bad("invalid bucket name"));
    }
    let backoff = BackoffConfig { init_backoff: Duration::from_millis(100), ..Default::default() };
    let retry_timeout = Duration::from_secs(20);
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_http_connector(http::Connector)
        // Blocks are deleted one by one, which every S3 server supports.
        .with_disable_bulk_delete(true)
        .with_retry(RetryConfig { backoff, max_retries: 3, retry_timeout })
        .build()
        .map_err(failed)?;
    let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|_| bad("invalid prefix"))?;
    Ok(Arc::new(PrefixStore::new(store, prefix)))
}

/// An object store with blocks in it.
pub struct Archive {
    url: String,
    store: Arc<dyn ObjectStore>,
    /// Runs the requests to the store; the calling thread blocks. Present until drop.
    runtime: Option<tokio::runtime::Runtime>,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A request that hangs does not delay the drop.
            runtime.shutdown_background();
        }
    }
}

fn block_path(hash: &BlockHash) -> Path {
    let name = hash.to_string();
    Path::from(format!("blocks/{}/{name}", &name[..2]))
}

/// The block that an object contains, by its path.
fn block_of(path: &Path) -> Option<BlockHash> {
    let hash = path.as_ref().rsplit('/').next()?.parse().ok()?;
    (*path == block_path(&hash)).then_some(hash)
}

impl Archive {
    /// Prepares the archive at `url`; no request is sent yet.
    ///
    /// # Errors
    /// [`ArchiveError::Url`], [`ArchiveError::Failed`].
    pub fn new(url: &str, opener: &Opener) -> Result<Self> {
        let failed = |why: String| ArchiveError::Failed {
            archive: url.to_owned(),
            object: "the store".into(),
            why,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(THREADS_MAX)
            .thread_name("ringer-archive")
            .build();
        let runtime = Some(runtime.map_err(|e| failed(e.to_string()))?);
        Ok(Self { url: url.to_owned(), store: (opener.0)(url)?, runtime })
    }

    /// The URL of the archive.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    fn run<T>(
        &self,
        object: &Path,
        limit: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let (archive, object) = (self.url.clone(), object.to_string());
        let Some(runtime) = &self.runtime else {
            return Err(ArchiveError::Failed { archive, object, why: "it was closed".into() });
        };
        // The timer is made inside the runtime.
        match runtime.block_on(async { tokio::time::timeout(limit, work).await }) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(e)) => Err(translate(archive, object, &e)),
            Err(_) => {
                Err(ArchiveError::Silent { archive, object, limit_millis: limit.as_millis() })
            }
        }
    }

    /// Claims an empty store as the archive `id` of a cell.
    ///
    /// # Errors
    /// [`ArchiveError::Foreign`] if it is an archive already.
    pub fn claim(&self, id: ArchiveId, cell: u64, limit: Duration) -> Result<()> {
        let path = Path::from(MARKER);
        let text = marker(id, cell).into_bytes();
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = async {
            match self.store.put_opts(&path, PutPayload::from(text), options).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                Err(e) => Err(e),
            }
        };
        if self.run(&path, limit, put)? {
            return Ok(());
        }
        let why = "it is already an archive".to_owned();
        Err(ArchiveError::Foreign { archive: self.url.clone(), why })
    }

    /// Removes the marker; blocks stay.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn disclaim(&self, limit: Duration) -> Result<()> {
        let path = Path::from(MARKER);
        self.run(&path, limit, self.store.delete(&path))
    }

    /// Checks that this is the archive `id` of a cell. To be called again before the server is told
    /// that the archive has something: a disk may have been unmounted meanwhile, or a bucket
    /// replaced.
    ///
    /// # Errors
    /// [`ArchiveError::Foreign`] if it is not.
    pub fn check(&self, id: ArchiveId, cell: u64, limit: Duration) -> Result<()> {
        let path = Path::from(MARKER);
        let read = async {
            let found = self.store.get_opts(&path, GetOptions::default()).await?;
            if found.meta.size > MARKER_MAX_BYTES {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        };
        let foreign = |why| ArchiveError::Foreign { archive: self.url.clone(), why };
        match self.run(&path, limit, read) {
            Ok(Some(found)) if found[..] == *marker(id, cell).as_bytes() => Ok(()),
            Ok(Some(found)) => {
                Err(foreign(format!("its marker says {:?}", String::from_utf8_lossy(&found))))
            }
            Ok(None) => Err(foreign(format!("{MARKER} is too long"))),
            Err(ArchiveError::Absent { .. }) => Err(foreign(format!("{MARKER} is missing"))),
            Err(e) => Err(e),
        }
    }

    /// Returns the length of a block in bytes; `None` if it is not there.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn len_of(&self, hash: &BlockHash, limit: Duration) -> Result<Option<u64>> {
        let path = block_path(hash);
        match self.run(&path, limit, self.store.head(&path)) {
            Ok(found) => Ok(Some(found.size)),
            Err(ArchiveError::Absent { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Puts a block there, durably.
    ///
    /// # Errors
    /// [`ArchiveError`]; the block may be there despite an error.
    pub fn put(&self, hash: &BlockHash, bytes: Vec<u8>, limit: Duration) -> Result<()> {
        let path = block_path(hash);
        self.run(&path, limit, self.store.put(&path, PutPayload::from(bytes))).map(|_| ())
    }

    /// Returns a block, checked.
    ///
    /// # Errors
    /// [`ArchiveError::Absent`], [`ArchiveError::Wrong`] and the others.
    pub fn get(&self, hash: &BlockHash, limit: Duration) -> Result<Vec<u8>> {
        let path = block_path(hash);
        let wrong = || ArchiveError::Wrong { archive: self.url.clone(), object: path.to_string() };
        let read = async {
            let found = self.store.get_opts(&path, GetOptions::default()).await?;
            if found.meta.size > u64::from(STORED_MAX_BYTES) {
                return Ok(None);
            }
            found.bytes().await.map(Some)
        };
        let bytes = self.run(&path, limit, read)?.ok_or_else(wrong)?;
        if blake3::hash(&bytes).as_bytes() != &hash.0 {
            return Err(wrong());
        }
        Ok(bytes.to_vec())
    }

    /// Lists all blocks.
    ///
    /// # Errors
    /// [`ArchiveError`]; `limit` is for all of the listing.
    pub fn blocks(&self, limit: Duration) -> Result<Vec<BlockHash>> {
        let path = Path::from("blocks");
        let list = async {
            let found = self.store.list(Some(&path));
            found
                .try_filter_map(|meta| async move { Ok(block_of(&meta.location)) })
                .try_collect()
                .await
        };
        self.run(&path, limit, list)
    }

    /// Deletes a block. A missing block is no error.
    ///
    /// # Errors
    /// [`ArchiveError`]; the block may be deleted despite an error.
    pub fn delete(&self, hash: &BlockHash, limit: Duration) -> Result<()> {
        let path = block_path(hash);
        match self.run(&path, limit, self.store.delete(&path)) {
            Err(ArchiveError::Absent { .. }) => Ok(()),
            done => done,
        }
    }
}

fn marker(id: ArchiveId, cell: u64) -> String {
    format!("weft archive {:016x} of cell {cell:016x}\n", id.0)
}

/// Translates an error of the store.
fn translate(archive: String, object: String, error: &object_store::Error) -> ArchiveError {
    use object_store::Error as Of;
    let mut texts = vec![error.to_string()];
    let mut errno = None;
    let mut source = std::error::Error::source(error);
    while let Some(e) = source {
        if let Some(NotTheArchive(why)) = e.downcast_ref() {
            return ArchiveError::Foreign { archive, why: why.clone() };
        }
        errno = errno.or(e.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error));
        let text = e.to_string();
        // Most errors include the text of their cause.
        if !texts.iter().any(|t| t.contains(&text)) {
            texts.push(text);
        }
        source = e.source();
    }
    let why = texts.join(": ");
    match error {
        Of::NotFound { .. } => ArchiveError::Absent { archive, object },
        Of::PermissionDenied { .. } | Of::Unauthenticated { .. } => {
            ArchiveError::Denied { archive, object, why }
        }
        _ if errno.is_some_and(|n| DENIED.contains(&n)) => {
            ArchiveError::Denied { archive, object, why }
        }
        // HTTP says 507, and some servers use words of their own as well.
        _ if errno.is_some_and(|n| FULL.contains(&n))
            || why.contains("507 Insufficient Storage")
            || why.contains("StorageFull") =>
        {
            ArchiveError::Full { archive, object, why }
        }
        _ => ArchiveError::Failed { archive, object, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn name(bytes: &[u8]) -> BlockHash {
        BlockHash(*blake3::hash(bytes).as_bytes())
    }

    #[test]
    fn directory_archive_stores_blocks_of_one_cell() {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", dir.path().display());
        let archive = Archive::new(&url, &Opener::default()).expect("there");
        let id = ArchiveId(5);
        assert!(matches!(archive.check(id, 7, LIMIT), Err(ArchiveError::Foreign { .. })));
        archive.claim(id, 7, LIMIT).expect("empty");
        assert!(matches!(archive.claim(id, 7, LIMIT), Err(ArchiveError::Foreign { .. })));
        archive.check(id, 7, LIMIT).expect("its own");
        assert!(matches!(archive.check(id, 8, LIMIT), Err(ArchiveError::Foreign { .. })));

        let (a, b) = (vec![1; 1000], vec![2; 1000]);
        assert_eq!(archive.len_of(&name(&a), LIMIT), Ok(None));
        assert!(matches!(archive.get(&name(&a), LIMIT), Err(ArchiveError::Absent { .. })));
        for bytes in [&a, &b, &a] {
            archive.put(&name(bytes), bytes.clone(), LIMIT).expect("room");
        }
        assert_eq!(archive.len_of(&name(&a), LIMIT), Ok(Some(1000)));
        assert_eq!(archive.get(&name(&a), LIMIT), Ok(a.clone()));
        // Objects that are not blocks are skipped.
        std::fs::write(dir.path().join("blocks/notes"), "x").expect("room");
        let mut found = archive.blocks(LIMIT).expect("a list");
        found.sort_unstable();
        let mut both = [name(&a), name(&b)];
        both.sort_unstable();
        assert_eq!(found, both);
        archive.delete(&name(&a), LIMIT).expect("deleted");
        archive.delete(&name(&a), LIMIT).expect("gone already");
        assert_eq!(archive.blocks(LIMIT), Ok(vec![name(&b)]));

        // Other bytes, fewer of them, and more than a block has.
        let file = dir.path().join(block_path(&name(&b)).as_ref());
        for bytes in [vec![3; 1000], vec![2; 999], Vec::new(), vec![2; (4 << 20) + 1]] {
            std::fs::write(&file, bytes).expect("room");
            let read = archive.get(&name(&b), LIMIT);
            assert!(matches!(read, Err(ArchiveError::Wrong { .. })), "{read:?}");
        }
        archive.put(&name(&b), b.clone(), LIMIT).expect("room");
        assert_eq!(archive.get(&name(&b), LIMIT), Ok(b));
    }

    #[test]
    fn an_unmarked_directory_takes_and_shows_nothing_even_once_it_was_an_archive() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("disk");
        std::fs::create_dir(&at).expect("room");
        let archive =
            Archive::new(&format!("file://{}", at.display()), &Opener::default()).expect("there");
        archive.claim(ArchiveId(5), 7, LIMIT).expect("empty");
        archive.check(ArchiveId(5), 7, LIMIT).expect("its own");
        let bytes = vec![1; 1000];
        let refused = |archive: &Archive| {
            let name = name(&bytes);
            let all = [
                archive.put(&name, bytes.clone(), LIMIT).err(),
                archive.get(&name, LIMIT).err(),
                archive.len_of(&name, LIMIT).err(),
                archive.delete(&name, LIMIT).err(),
                archive.check(ArchiveId(5), 7, LIMIT).err(),
            ];
            for error in all {
                assert!(matches!(error, Some(ArchiveError::Foreign { .. })), "{error:?}");
            }
        };
        // The disk is gone: first its mount point too, then an empty directory is in its place,
        // then one with the blocks of another archive.
        let away = dir.path().join("away");
        std::fs::rename(&at, &away).expect("renamed");
        refused(&archive);
        assert!(!at.exists(), "nothing makes the place of an archive");
        std::fs::create_dir(&at).expect("room");
        refused(&archive);
        assert_eq!(std::fs::read_dir(&at).expect("there").count(), 0, "nothing was put");
        std::fs::write(at.join(MARKER), marker(ArchiveId(6), 7)).expect("room");
        refused(&archive);
        std::fs::remove_dir_all(&at).expect("removed");
        std::fs::rename(&away, &at).expect("renamed");
        archive.put(&name(&bytes), bytes.clone(), LIMIT).expect("it is back");
        assert_eq!(archive.get(&name(&bytes), LIMIT), Ok(bytes.clone()));
    }

    #[test]
    fn invalid_archive_urls_are_refused() {
        for url in ["", "/tmp", "file:tmp", "file://tmp", "http://x", "s3://", "s3://a:b@c/d"] {
            let refused = Archive::new(url, &Opener::default());
            assert!(matches!(refused, Err(ArchiveError::Url { .. })), "{url}");
        }
        let gone = Archive::new("file:///nonexistent-archive", &Opener::default());
        assert!(gone.expect_err("not there").to_string().contains("/nonexistent-archive"));
    }

    #[test]
    fn full_disk_and_denied_access_are_distinguished() {
        let of = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            let error = object_store::Error::Generic { store: "x", source: source.into() };
            translate("u".into(), "o".into(), &error)
        };
        for errno in FULL {
            assert!(matches!(of(errno), ArchiveError::Full { .. }));
        }
        for errno in DENIED {
            assert!(matches!(of(errno), ArchiveError::Denied { .. }));
        }
        assert!(matches!(of(5), ArchiveError::Failed { .. }));
    }
}
