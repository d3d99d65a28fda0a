//! Archives: files are copied there, read from there, let go for it, and what is of no use is deleted
//! there. With stores that lie, hang and refuse.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use weft_ringer::wire::ArchiveInfo;
use weft_ringer::{ArchiveId, Bytes};
use weft_ringer_client::archive::{Archive, Opener, SweepReport, by_url, sweep};
use weft_ringer_client::{HOLDERS_XATTR, RingerFs, STORE_XATTR};
use weft_ringer_net::{Answer, Ask, Observer};
use weft_vfs::{Caller, FileSystem, Walker};

use super::{Cell, attribute, content, ino, set_policy, write};
use weft_testing::{LIMIT, wait_until};

const EPOCH: Duration = Duration::from_secs(2);
/// The patience of a client whose calls must fail; that of others decides nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// The fault of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Fault {
    None,
    /// Gives other bytes of the same length.
    OtherBytes,
    /// Gives fewer bytes.
    Short,
    /// Says nothing.
    Hangs,
    Denies,
    IsFull,
    /// Is another store, an empty one: a bucket that was deleted and made again.
    Replaced,
}

const FAULTS: [Fault; 7] = [
    Fault::None,
    Fault::OtherBytes,
    Fault::Short,
    Fault::Hangs,
    Fault::Denies,
    Fault::IsFull,
    Fault::Replaced,
];

/// A store that does what the test says.
#[derive(Debug)]
struct Faulty {
    store: Arc<dyn ObjectStore>,
    other: Arc<dyn ObjectStore>,
    fault: Arc<AtomicU8>,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.store)
    }
}

impl Faulty {
    fn fault(&self) -> Fault {
        FAULTS[usize::from(self.fault.load(Ordering::Acquire))]
    }

    fn store(&self) -> &Arc<dyn ObjectStore> {
        if self.fault() == Fault::Replaced { &self.other } else { &self.store }
    }

    async fn go_wrong(&self, path: &Path) -> object_store::Result<Fault> {
        let source = |errno| std::io::Error::from_raw_os_error(errno).into();
        match self.fault() {
            Fault::Hangs => std::future::pending().await,
            Fault::Denies => {
                let path = path.to_string();
                Err(object_store::Error::PermissionDenied { path, source: source(13) })
            }
            Fault::IsFull => Err(object_store::Error::Generic { store: "x", source: source(28) }),
            other => Ok(other),
        }
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.go_wrong(path).await?;
        self.store().put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.store().put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        // Whose archive it is, it says at any time.
        let is_block = path.as_ref().starts_with("blocks/");
        let fault = if is_block && !options.head {
            match self.fault() {
                Fault::IsFull | Fault::Replaced => Fault::None,
                _ => self.go_wrong(path).await?,
            }
        } else {
            Fault::None
        };
        let found = self.store().get_opts(path, options).await?;
        if fault == Fault::None {
            return Ok(found);
        }
        let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
        let (range, extensions) = (found.range.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        match fault {
            Fault::Short => bytes.truncate(bytes.len() / 2),
            _ => bytes.iter_mut().for_each(|b| *b ^= 1),
        }
        let bytes = futures_util::stream::once(async { Ok(bytes.into()) });
        let payload = object_store::GetResultPayload::Stream(Box::pin(bytes));
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.store().delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.store().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.store().list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.store().copy_opts(from, to, options).await
    }
}

/// The faults of stores by their URLs.
#[derive(Debug, Clone, Default)]
struct Faults(Arc<Mutex<BTreeMap<String, Arc<AtomicU8>>>>);

impl Faults {
    fn of(&self, url: &str) -> Arc<AtomicU8> {
        Arc::clone(self.0.lock().expect("nobody panics").entry(url.to_owned()).or_default())
    }

    fn set(&self, url: &str, fault: Fault) {
        self.of(url).store(fault as u8, Ordering::Release);
    }

    fn opener(&self) -> Opener {
        let faults = self.clone();
        Opener::new(move |url| {
            let (store, fault) = (by_url(url)?, faults.of(url));
            let other = Arc::new(object_store::memory::InMemory::new());
            Ok(Arc::new(Faulty { store, other, fault }))
        })
    }
}

fn observer(cell: &Cell) -> Observer {
    Observer::connect(&cell.address(), None).expect("a connection")
}

/// Adds the directory `name` as an archive, and returns its URL.
fn add(cell: &Cell, name: &str, id: u64) -> String {
    std::fs::create_dir(cell.path(name)).expect("a directory");
    let url = format!("file://{}", cell.path(name).display());
    let mut observer = observer(cell);
    let Answer::Status { status } = observer.ask(&Ask::Status {}).expect("an answer") else {
        panic!("a status")
    };
    let archive = Archive::new(&url, &Opener::default()).expect("there");
    archive.claim(ArchiveId(id), status.cell, LIMIT).expect("new");
    let info = ArchiveInfo { archive: ArchiveId(id), url: Bytes(url.clone().into_bytes()) };
    observer.ask(&Ask::AddArchive { info }).expect("added");
    url
}

fn join(cell: &Cell, name: &str, faults: &Faults, store_max_bytes: u64) -> RingerFs {
    join_for(cell, name, faults, store_max_bytes, LIMIT)
}

fn join_for(
    cell: &Cell,
    name: &str,
    faults: &Faults,
    store_max_bytes: u64,
    patience: Duration,
) -> RingerFs {
    let mut options = cell.options(name);
    options.settle = Duration::from_millis(50);
    options.scan_every = Duration::from_secs(1);
    options.patience = patience;
    options.store_max_bytes = store_max_bytes;
    options.cache_max_bytes = 0;
    options.archives = faults.opener();
    RingerFs::join(options).expect("it joins")
}

fn figure(fs: &RingerFs, name: &str) -> u64 {
    let text = attribute(fs, "", STORE_XATTR);
    let figure = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    figure.expect("a figure").parse().expect("a number")
}

#[test]
fn fsync_archives_before_it_returns() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let a = join(&cell, "a", &faults, u64::MAX);
    set_policy(&a, "", "archive=fsync");
    let bytes = content(1, 700_000);
    write(&a, "/file", &bytes);
    // The cell has none yet: ENXIO. The write stands.
    assert_eq!(a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect_err("none").errno(), 6);
    let url = add(&cell, "archive", 1);
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("archived");
    assert!(attribute(&a, "file", HOLDERS_XATTR).contains("\tcurrent\tarchive\n"));
    assert_eq!(figure(&a, "archive_bytes_put"), 700_000);
    // Again it costs nothing, and other files with the same blocks neither.
    a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("archived");
    write(&a, "/same", &bytes);
    a.fsync(&Caller::ROOT, ino(&a, "same"), false).expect("archived");
    assert_eq!(figure(&a, "archive_bytes_put"), 700_000);
    a.vanish();
    drop(a);
    std::fs::remove_dir_all(cell.path("a")).expect("gone");
    let b = join(&cell, "b", &faults, u64::MAX);
    assert!(Walker::new(&b).read_file(b"/file").expect("from the archive") == bytes);
    assert_eq!(figure(&b, "archive_bytes_read"), 700_000);
    // Without its marker it is not taken for that archive.
    std::fs::remove_file(cell.path("archive").join("weft-archive")).expect("there");
    let c = join(&cell, "c", &faults, u64::MAX);
    b.vanish();
    let error = Walker::new(&c).read_file(b"/file").expect_err("no copy exists").to_string();
    assert!(error.contains(&url) && error.contains("not the expected archive"), "{error}");
}

#[test]
fn client_evicts_archived_blocks() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let url = add(&cell, "archive", 1);
    let a = join(&cell, "a", &faults, 300_000);
    faults.set(&url, Fault::IsFull);
    set_policy(&a, "", "archive=later");
    for n in 0..8 {
        let path = format!("/file{n}");
        write(&a, &path, &content(n, 100_000));
    }
    wait_until("the archive is tried", || figure(&a, "archive_failures") > 8);
    assert_eq!(figure(&a, "staying_bytes"), 800_000, "the only copies");
    faults.set(&url, Fault::None);
    wait_until("room is made", || figure(&a, "staying_bytes") <= 300_000);
    for n in 0..8 {
        let path = format!("/file{n}");
        let read = Walker::new(&a).read_file(path.as_bytes()).expect("here or there");
        assert!(read == content(n, 100_000));
    }
    assert!(figure(&a, "archive_blocks_read") > 0);
    // That no client has them is no fault.
    let checked = observer(&cell).ask(&Ask::Check {}).expect("an answer");
    let Answer::Checked { problem_count, problems, .. } = checked else { panic!("{checked:?}") };
    assert_eq!(problem_count, 0, "{problems:?}");
}

#[test]
fn files_that_the_kernel_remembers_are_evicted_and_open_ones_are_not() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    add(&cell, "archive", 1);
    let a = join(&cell, "a", &faults, 100_000);
    let handles: Vec<_> = (0..8)
        .map(|n| {
            let path = format!("file{n}");
            write(&a, &format!("/{path}"), &content(n, 100_000));
            // A reference that is never given back; half of them are open.
            let at = ino(&a, &path);
            (n % 2 == 0)
                .then(|| a.open(&Caller::ROOT, at, weft_vfs::OpenFlags::READ).expect("open"))
        })
        .collect();
    set_policy(&a, "", "archive=later");
    a.sync().expect("with the server");
    wait_until("the files that are not open go", || figure(&a, "staying_bytes") == 400_000);
    for (n, opened) in handles.into_iter().enumerate() {
        if let Some(opened) = opened {
            a.release(ino(&a, &format!("file{n}")), opened.handle).expect("closed");
        }
    }
    wait_until("the others go", || figure(&a, "staying_bytes") <= 100_000);
}

/// The file of a block in the archive `name`.
fn block_file(cell: &Cell, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let hash = blake3_of(bytes).to_string();
    cell.path(name).join("blocks").join(&hash[..2]).join(hash)
}

fn is_archived(fs: &RingerFs, path: &str) -> bool {
    attribute(fs, path, HOLDERS_XATTR).contains("\tcurrent\tarchive\n")
}

#[test]
fn archive_whose_disk_is_unmounted_takes_nothing() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let url = add(&cell, "archive", 1);
    let a = join_for(&cell, "a", &faults, u64::MAX, Duration::from_secs(1));
    set_policy(&a, "", "archive=fsync");
    let sync = |path: &str| a.fsync(&Caller::ROOT, ino(&a, path), false);
    write(&a, "/one", &content(1, 100_000));
    sync("one").expect("archived");
    // What an unmounted disk leaves is an empty directory; of a directory on the disk, nothing.
    std::fs::rename(cell.path("archive"), cell.path("disk")).expect("renamed");
    for has_mount_point in [false, true] {
        if has_mount_point {
            std::fs::create_dir(cell.path("archive")).expect("room");
        }
        write(&a, "/two", &content(2 + u8::from(has_mount_point), 100_000));
        let error = sync("two").expect_err("no archive is there");
        let text = error.to_string();
        assert!(text.contains("is its disk mounted?"), "{text}");
        assert_eq!(error.errno(), 110, "{text}");
        assert!(!is_archived(&a, "two"));
    }
    assert_eq!(std::fs::read_dir(cell.path("archive")).expect("there").count(), 0);
    // It is another directory with the marker of another archive.
    std::fs::write(cell.path("archive").join("weft-archive"), "another\n").expect("room");
    sync("two").expect_err("another archive");
    assert!(!is_archived(&a, "two"));
    std::fs::remove_dir_all(cell.path("archive")).expect("removed");
    std::fs::rename(cell.path("disk"), cell.path("archive")).expect("renamed");
    sync("two").expect("the disk is back");
    assert!(is_archived(&a, "two"));
    // A bucket that is another is noticed before the report.
    faults.set(&url, Fault::Replaced);
    write(&a, "/three", &content(4, 100_000));
    sync("three").expect_err("an empty bucket");
    assert!(!is_archived(&a, "three"));
    faults.set(&url, Fault::None);
    sync("three").expect("the bucket is back");
    a.vanish();
    drop(a);
    std::fs::remove_dir_all(cell.path("a")).expect("gone");
    let b = join(&cell, "b", &faults, u64::MAX);
    for (path, seed) in [("/one", 1), ("/two", 3), ("/three", 4)] {
        let read = Walker::new(&b).read_file(path.as_bytes());
        assert!(read.expect("from the archive") == content(seed, 100_000));
    }
}

#[test]
fn archive_that_lacks_a_block_no_longer_counts() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    add(&cell, "archive", 1);
    let a = join(&cell, "a", &faults, u64::MAX);
    set_policy(&a, "", "archive=fsync");
    for n in 0..2 {
        let path = format!("/file{n}");
        write(&a, &path, &content(n, 50_000));
        a.fsync(&Caller::ROOT, ino(&a, &path), false).expect("archived");
    }
    std::fs::remove_file(block_file(&cell, "archive", &content(0, 50_000))).expect("there");
    std::fs::write(block_file(&cell, "archive", &content(1, 50_000)), "damaged").expect("there");
    a.vanish();
    let b = join_for(&cell, "b", &faults, u64::MAX, PATIENCE);
    for n in 0..2 {
        let path = format!("file{n}");
        assert!(is_archived(&b, &path), "nothing is known of the loss");
        Walker::new(&b).read_file(format!("/{path}").as_bytes()).expect_err("lost");
        assert!(!is_archived(&b, &path), "it no longer counts");
    }
    // The client that has the blocks puts them there again.
    drop(a);
    let a = join(&cell, "a", &faults, u64::MAX);
    wait_until("they are archived again", || (0..2).all(|n| is_archived(&a, &format!("file{n}"))));
    for n in 0..2 {
        let read = Walker::new(&b).read_file(format!("/file{n}").as_bytes());
        assert!(read.expect("from either") == content(n, 50_000));
    }
}

#[test]
fn eviction_asks_the_archive_first() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let url = add(&cell, "archive", 1);
    let a = join(&cell, "a", &faults, u64::MAX);
    set_policy(&a, "", "archive=fsync");
    let path = |n: u8| format!("/file{n}");
    for n in 0..8 {
        write(&a, &path(n), &content(n, 100_000));
        a.fsync(&Caller::ROOT, ino(&a, &path(n)), false).expect("archived");
    }
    a.unmount().expect("with the server");
    drop(a);
    // By the records the archive has them all, and has none.
    std::fs::remove_dir_all(cell.path("archive").join("blocks")).expect("removed");
    faults.set(&url, Fault::IsFull);
    // Files that a program has looked up are not evicted, so another client looks.
    let b = join(&cell, "b", &faults, u64::MAX);
    let a = join(&cell, "a", &faults, 300_000);
    wait_until("the archive was asked for each", || (0..8).all(|n| !is_archived(&b, &path(n))));
    assert_eq!(figure(&a, "staying_bytes"), 800_000, "the only copies");
    faults.set(&url, Fault::None);
    wait_until("room is made", || figure(&a, "staying_bytes") <= 300_000);
    for n in 0..8 {
        let read = Walker::new(&a).read_file(path(n).as_bytes());
        assert!(read.expect("here or there") == content(n, 100_000));
    }
}

#[test]
fn faulty_archive_is_named_and_others_are_used() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let (bad, good) = (add(&cell, "bad", 1), add(&cell, "good", 2));
    let a = join(&cell, "a", &faults, u64::MAX);
    set_policy(&a, "", "archive=later");
    let bytes = content(1, 60_000);
    write(&a, "/file", &bytes);
    wait_until("both have it", || {
        attribute(&a, "file", HOLDERS_XATTR).matches("\tcurrent\tarchive\n").count() == 2
    });
    a.vanish();
    drop(a);
    for (n, fault) in
        [Fault::OtherBytes, Fault::Short, Fault::Hangs, Fault::Denies].into_iter().enumerate()
    {
        faults.set(&bad, fault);
        faults.set(&good, Fault::None);
        let b = join_for(&cell, &format!("b{n}"), &faults, u64::MAX, PATIENCE);
        assert!(Walker::new(&b).read_file(b"/file").expect("from the other") == bytes);
        let is_wrong = matches!(fault, Fault::OtherBytes | Fault::Short);
        assert_eq!(figure(&b, "archive_wrong_blocks"), u64::from(is_wrong), "{fault:?}");
        assert_eq!(figure(&b, "archive_failures"), u64::from(!is_wrong), "{fault:?}");
        // No copy exists: the error names the clients and archives that were asked.
        faults.set(&good, fault);
        let c = join_for(&cell, &format!("c{n}"), &faults, u64::MAX, PATIENCE);
        b.vanish();
        drop(b);
        let error = Walker::new(&c).read_file(b"/file").expect_err("lies").to_string();
        assert!(error.contains(&bad) && error.contains(&good), "{fault:?}: {error}");
        c.vanish();
    }
}

#[test]
fn fsync_fails_in_time_and_says_why() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let url = add(&cell, "archive", 1);
    let a = join_for(&cell, "a", &faults, u64::MAX, PATIENCE);
    set_policy(&a, "", "archive=fsync");
    for (fault, errno) in [(Fault::Hangs, 110), (Fault::IsFull, 28), (Fault::Denies, 13)] {
        faults.set(&url, fault);
        let bytes = content(errno as u8, 70_000);
        write(&a, "/file", &bytes);
        let error = a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect_err("not archived");
        assert_eq!(error.errno(), errno, "{fault:?}: {error}");
        assert!(Walker::new(&a).read_file(b"/file").expect("it stands") == bytes);
        faults.set(&url, Fault::None);
        a.fsync(&Caller::ROOT, ino(&a, "file"), false).expect("archived");
    }
}

#[test]
fn sweep_deletes_blocks_without_a_file_or_version() {
    let cell = Cell::new(EPOCH);
    let faults = Faults::default();
    let url = add(&cell, "archive", 1);
    let a = join(&cell, "a", &faults, u64::MAX);
    set_policy(&a, "", "archive=fsync versions=5 every=0");
    let write = |fs: &RingerFs, path: &str, seed| {
        let bytes = content(seed, 50_000);
        write(fs, path, &bytes);
        fs.fsync(&Caller::ROOT, ino(fs, path), false).expect("archived");
    };
    for (path, seed) in [("/stays", 1), ("/changes", 2), ("/goes", 3)] {
        write(&a, path, seed);
    }
    write(&a, "/changes", 4);
    let mut observer = observer(&cell);
    let archive = Archive::new(&url, &Opener::default()).expect("there");
    let mut swept = |is_dry| sweep(&mut observer, ArchiveId(1), &archive, is_dry).expect("swept");
    // An earlier version, and a removed file that is kept.
    Walker::new(&a).remove(b"/goes").expect("removed");
    a.sync().expect("with the server");
    assert_eq!(swept(false), SweepReport { blocks: 4, unused: 0, deleted: 0 });
    // Without history the old blocks are unused, as is a block that was never used.
    set_policy(&a, "", "archive=fsync");
    write(&a, "/short", 5);
    Walker::new(&a).remove(b"/short").expect("removed");
    let stray = blake3_of(&content(9, 1000));
    archive.put(&stray, content(9, 1000), LIMIT).expect("room");
    // The client that read it still references it.
    a.unmount().expect("with the server");
    drop(a);
    wait_until("it is gone", || swept(true).unused == 2);
    assert_eq!(archive.blocks(LIMIT).expect("a list").len(), 6, "that was dry");
    assert_eq!(swept(false), SweepReport { blocks: 6, unused: 2, deleted: 2 });
    assert_eq!(swept(false), SweepReport { blocks: 4, unused: 0, deleted: 0 });
    // A deleted block that is needed again is put again.
    let a = join(&cell, "a", &faults, u64::MAX);
    write(&a, "/again", 5);
    a.vanish();
    let b = join(&cell, "b", &faults, u64::MAX);
    for (path, seed) in [("/stays", 1), ("/changes", 4), ("/again", 5)] {
        assert!(Walker::new(&b).read_file(path.as_bytes()).expect(path) == content(seed, 50_000));
    }
    // Another cell's archive is not swept, whatever this one thinks.
    let marker = cell.path("archive").join("weft-archive");
    std::fs::write(&marker, "weft archive 0000000000000001 of cell 0000000000000001\n")
        .expect("room");
    let mut observer = Observer::connect(&cell.address(), None).expect("a connection");
    sweep(&mut observer, ArchiveId(1), &archive, false).expect_err("another's");
    assert_eq!(archive.blocks(LIMIT).expect("a list").len(), 5);
}

fn blake3_of(bytes: &[u8]) -> weft_ringer::BlockHash {
    weft_ringer::BlockHash(*blake3::hash(bytes).as_bytes())
}
