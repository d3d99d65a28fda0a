//! A source behind a cache, as the command uses one: opened together, queried and controlled while
//! in use, closed together.
//!
//! A cache identifies a source by its name (module `identity`) and length. An identity that lies on
//! the source itself, such as the UUID of its file system, would change with each mkfs through the
//! cache, and is stale on the source while the new one is dirty in the cache; the cache itself checks
//! that the *content* is as it left it.

mod control;
mod http;
mod identity;
mod settings;
mod tap;

pub use control::{control_path, request};
pub use settings::{SETTINGS, Settings};
pub use weft_cache::{
    AttachOptions, BLOCK_BYTES_MAX, Cache, CachedDevice, CreateOptions, Dump, Error, Finding, Mode,
    ORIGINS_MAX, OpenOptions, OriginId, OriginInfo, PolicyKind, Report, SUB_BLOCK_BYTES, Severity,
    SlotInfo, Stats, admission, advise, check, dump, format, policy, repair, simulate, trace,
};

use crate::Result;
#[cfg(feature = "ringer")]
use crate::metrics::CellFigures;
use crate::metrics::{self, CacheFigures};
use crate::mkfs::Access;
use crate::source::Source;
use control::{Handler, Listener};
use http::{Answer, Request};
use prometheus_client::collector::Collector;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tap::Tap;
use weft_block::{BlockDevice, FileDevice, OpenMode, parse_size};

/// Makes an empty cache in `cache`, of `len_bytes` or of the whole device. A file that does not
/// exist is created, one that is too short grows. Recognised content is overwritten only with
/// `force`.
///
/// # Errors
/// [`crate::Error::Invalid`] for a missing size or existing content; those of the cache and the
/// device.
pub fn create(
    cache: &str,
    len_bytes: Option<u64>,
    force: bool,
    options: &CreateOptions,
) -> Result<()> {
    // The cache will hold blocks of sources that other users may not read.
    crate::mkfs::in_source(cache, len_bytes, force, Access::Owner, &|device: &dyn BlockDevice| {
        Cache::create(device, options).map_err(|e| named(cache, &e))
    })
}

/// Opens a cache, without a source.
///
/// # Errors
/// As [`CachedSource::open`].
pub fn open(cache: &str, options: OpenOptions) -> Result<Arc<Cache>> {
    open_file(cache, options).map(|(cache, _)| cache)
}

fn open_file(cache: &str, options: OpenOptions) -> Result<(Arc<Cache>, Arc<FileDevice>)> {
    let path = file_of(cache)?;
    if !path.exists() {
        return Err(crate::Error::Invalid(format!(
            "no such cache: {cache}; create it with: weft cache create {cache} --size 10G"
        )));
    }
    let mode = if options.read_only { OpenMode::READ_ONLY } else { OpenMode::READ_WRITE };
    let file = Arc::new(FileDevice::open(&path, mode)?);
    let device = Arc::clone(&file) as Arc<dyn BlockDevice>;
    Ok((Cache::open(device, options).map_err(|e| named(cache, &e))?, file))
}

/// Makes a cache that is not in use larger or smaller; its file grows or shrinks with it.
///
/// # Errors
/// [`crate::Error::Volume`]: the cache is unchanged, except for the length of its file.
pub fn resize(cache: &str, len_bytes: u64) -> Result<()> {
    let (opened, file) = open_file(cache, OpenOptions::default())?;
    let resized = resize_with_file(&opened, &file, len_bytes);
    let closed = opened.close();
    resized.and(closed).map_err(|e| named(cache, &e))?;
    drop((opened, file));
    shrink_file(cache, len_bytes)
}

/// Switches the replacement policy of a cache that is not in use.
///
/// # Errors
/// [`crate::Error::Volume`]: the policy is unchanged.
pub fn set_policy(cache: &str, policy: PolicyKind) -> Result<()> {
    let (opened, _file) = open_file(cache, OpenOptions::default())?;
    let switched = opened.set_policy(policy);
    let closed = opened.close();
    switched.and(closed).map_err(|e| named(cache, &e))
}

/// Resizes a cache whose file may have to grow for it.
fn resize_with_file(
    cache: &Cache,
    file: &FileDevice,
    len_bytes: u64,
) -> std::result::Result<(), Error> {
    if len_bytes > file.geometry().len_bytes && !file.is_block_special() {
        file.grow(len_bytes).map_err(Error::CacheDevice)?;
    }
    cache.resize(len_bytes)
}

/// Truncates the file of a cache to the length still in use.
fn shrink_file(cache: &str, len_bytes: u64) -> Result<()> {
    let path = file_of(cache)?;
    let fail = |e| crate::Error::host("shorten", &path, e);
    let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_file() && meta.len() > len_bytes {
        file.set_len(len_bytes).map_err(fail)?;
    }
    Ok(())
}

/// The file or block device of a cache, whose identity names its control socket.
///
/// # Errors
/// [`crate::Error::Invalid`] if it has none.
pub fn file_of(cache: &str) -> Result<PathBuf> {
    cache.parse::<Source>()?.whole_file().map(Path::to_owned).ok_or_else(|| {
        crate::Error::Invalid(format!("{cache}: a cache is a file or a block device of its own"))
    })
}

/// A cache's error, with the name of the cache.
pub fn named(cache: &str, error: &Error) -> crate::Error {
    let message = match error {
        Error::Shortened { len_bytes, .. } => format!(
            "{error}. Bring back the whole of it; or make it as long again, truncate -s {len_bytes} \
             {cache}, and keep what is left: weft cache repair {cache}"
        ),
        _ => error.to_string(),
    };
    crate::Error::Volume { image: cache.to_owned(), message }
}

/// A source with a cache in front of it.
#[derive(Debug)]
pub struct CachedSource {
    cache_name: String,
    cache: Arc<Cache>,
    file: Arc<FileDevice>,
    tap: Arc<Tap>,
    listeners: Vec<Listener>,
}

impl CachedSource {
    /// Opens the cache and attaches it to `origin`, which is called `source` in messages.
    ///
    /// # Errors
    /// [`crate::Error::Volume`] with the defect of the cache, or the reason why it does not fit
    /// this source.
    pub fn open(source: &str, origin: Arc<dyn BlockDevice>, settings: &Settings) -> Result<Self> {
        let cache_name = settings.cache.clone();
        let (cache, file) = open_file(&cache_name, settings.open.clone())?;
        let given = settings.name.as_deref();
        let label = identity::name_of(&cache, source, given)?;
        if identity::adds(&settings.attach, given) {
            identity::refuse_known(&cache_name, &cache, source, &label, &*origin)?;
        }
        let id = OriginId { len_bytes: origin.geometry().len_bytes, label, ..OriginId::default() };
        let attached = cache.attach(origin, &id, &settings.attach);
        let device =
            attached.map_err(|e| identity::not_attached(&cache_name, &cache, source, &e))?;
        let tap = Arc::new(Tap::new(device));
        let mut opened = Self { cache_name, cache, file, tap, listeners: Vec::new() };
        if let Some(dir) = &settings.runtime_dir {
            let path = control_path(dir, &file_of(&opened.cache_name)?)?;
            opened.listeners.push(Listener::unix(&path, opened.handler(settings, true))?);
        }
        if let Some(address) = &settings.metrics {
            opened.listeners.push(Listener::tcp(address, opened.handler(settings, false))?);
        }
        Ok(opened)
    }

    /// The cached device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.tap) as Arc<dyn BlockDevice>
    }

    /// The counters and contents of the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Writes all dirty blocks back.
    ///
    /// # Errors
    /// [`crate::Error::Volume`] if blocks stay dirty.
    pub fn write_back(&self) -> Result<()> {
        self.tap.device().write_back_all().map_err(|e| named(&self.cache_name, &e))
    }

    /// The address of the metrics for Prometheus.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(Listener::address)
    }

    /// Makes everything durable and closes the cache. Dirty blocks stay in it; returns their size
    /// in bytes.
    ///
    /// # Errors
    /// [`crate::Error::Volume`] if the cache could not be closed in good order.
    pub fn close(self) -> Result<u64> {
        drop(self.listeners);
        self.tap.finish_trace()?;
        self.tap.flush()?;
        let dirty_bytes = self.cache.stats().dirty_bytes;
        self.cache.close().map_err(|e| named(&self.cache_name, &e))?;
        Ok(dirty_bytes)
    }

    /// Makes the handler of requests; it refuses those that change something unless `may_change`.
    fn handler(&self, settings: &Settings, may_change: bool) -> Handler {
        let (name, cache, tap) =
            (self.cache_name.clone(), Arc::clone(&self.cache), Arc::clone(&self.tap));
        let file = Arc::clone(&self.file);
        let networks = settings.networks.clone();
        let metrics = move |stats: Stats| {
            let mut all: Vec<Box<dyn Collector>> =
                vec![Box::new(CacheFigures { cache: name.clone(), stats })];
            if let Some(networks) = &networks {
                all.push(Box::new(networks.collector()));
            }
            Answer::metrics(metrics::render(all))
        };
        Arc::new(move |request| match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/metrics") => metrics(cache.stats()),
            ("GET", "/origins") => Answer::ok(describe_origins(&cache, Some(tap.device()))),
            ("POST", _) if may_change => match change(&cache, &file, &tap, request) {
                Ok(done) => Answer::ok(done),
                Err(Refused::Unknown) => Answer::refused(404, "not found\n"),
                Err(Refused::Failed(why)) => Answer::refused(409, format!("{why}\n")),
            },
            (_, "/metrics" | "/origins") => Answer::refused(405, "method not allowed: read only\n"),
            _ => Answer::refused(404, "not found; try /metrics\n"),
        })
    }
}

/// An HTTP server of the counters of networks for Prometheus, until this is dropped.
#[derive(Debug)]
pub struct NetworkMetrics(Listener);

impl NetworkMetrics {
    /// Listens on a TCP address such as `127.0.0.1:9105`.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if it cannot listen there.
    pub fn serve(address: &str, networks: Arc<weft_transform::Meters>) -> Result<Self> {
        let handler: Handler =
            Arc::new(move |request| match (request.method.as_str(), request.path.as_str()) {
                ("GET", "/metrics") => Answer::metrics(networks.open_metrics()),
                (_, "/metrics") => Answer::refused(405, "method not allowed: read only\n"),
                _ => Answer::refused(404, "not found; try /metrics\n"),
            });
        Listener::tcp(address, handler).map(Self)
    }

    /// The address of the listener.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }
}

/// An HTTP server of the state of a cell for Prometheus, until this is dropped.
#[cfg(feature = "ringer")]
#[derive(Debug)]
pub struct CellMetrics(Listener);

#[cfg(feature = "ringer")]
impl CellMetrics {
    /// Listens on a TCP address such as `127.0.0.1:9106`.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if it cannot listen there.
    pub fn serve(address: &str, cell: weft_ringer_server::Watch) -> Result<Self> {
        let handler: Handler =
            Arc::new(move |request| match (request.method.as_str(), request.path.as_str()) {
                ("GET", "/metrics") => match cell.status() {
                    Some(status) => {
                        Answer::metrics(metrics::render(vec![Box::new(CellFigures(status))]))
                    }
                    None => Answer::refused(503, "the server is overloaded\n"),
                },
                (_, "/metrics") => Answer::refused(405, "method not allowed: read only\n"),
                _ => Answer::refused(404, "not found; try /metrics\n"),
            });
        Listener::tcp(address, handler).map(Self)
    }

    /// The address of the listener.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }
}

/// Describes the sources of a cache: `MODE DIRTY_BYTES USED_SLOTS NAME`, a line each, with a dash
/// for the mode of one that is not in use.
#[must_use]
pub fn describe_origins(cache: &Cache, device: Option<&CachedDevice>) -> String {
    let line = |origin: OriginInfo| {
        let mode = match device {
            Some(device) if origin.attached => device.mode().name(),
            _ => "-",
        };
        format!("{mode} {} {} {}\n", origin.dirty_bytes, origin.used_slots, origin.id.label)
    };
    cache.origins().into_iter().map(line).collect()
}

enum Refused {
    Unknown,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Performs a request and returns a message that says what was done.
fn change(
    cache: &Cache,
    file: &FileDevice,
    tap: &Tap,
    request: &Request,
) -> std::result::Result<String, Refused> {
    let device = tap.device();
    match request.path.as_str() {
        "/flush" => {
            device.write_back_all()?;
            Ok("wrote back all dirty data\n".to_owned())
        }
        "/mode" => {
            let mode: Mode = request.query.parse()?;
            device.set_mode(mode)?;
            Ok(format!("the mode is {mode} now\n"))
        }
        "/policy" => {
            let policy: PolicyKind = request.query.parse()?;
            cache.set_policy(policy)?;
            Ok(format!("the policy is {policy} now\n"))
        }
        "/resize" => {
            let len_bytes = parse_size(&request.query)?;
            resize_with_file(cache, file, len_bytes)?;
            Ok(format!("the cache takes {len_bytes} bytes now\n"))
        }
        "/detach" => {
            cache.detach(device)?;
            Ok("the source is complete without the cache, and served without it\n".to_owned())
        }
        "/trace/start" => {
            tap.start_trace(Path::new(&request.query))?;
            Ok(format!("recording into {}\n", request.query))
        }
        "/trace/stop" => match tap.finish_trace()? {
            Some(records) => Ok(format!("{records} accesses recorded\n")),
            None => Err(Refused::Failed("no recording is in progress".to_owned())),
        },
        _ => Err(Refused::Unknown),
    }
}
