//! A mount from its beginning to its end.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};
use weft_vfs::FileSystem;

use crate::front::Front;
use crate::handshake::{self, Agreed, Handshake};
use crate::past::Past;
use crate::serve::Service;
use crate::wire::Lifetimes;
use crate::{Error, MountOptions, Result, invalidate, mountpoint};

/// A mounted file system. Dropping it unmounts (without looking whether it is in use) and waits.
pub struct Mount {
    fs: Arc<dyn FileSystem>,
    front: Arc<Front>,
    unmounter: Unmounter,
    /// Keeps the mount; its own unmounting is the last resort when all else failed.
    session: Option<fuser::Session<Handshake>>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    signals: std::sync::Mutex<Option<SignalHandle>>,
    at_rest: bool,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("mountpoint", &self.unmounter.mountpoint).finish()
    }
}

/// Ends a mount from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mountpoint: Arc<PathBuf>,
    /// Nothing may be unmounted there once this mount has ended: it could be another's.
    ended: Arc<AtomicBool>,
    /// A signal came after that.
    given_up: Arc<AtomicBool>,
}

impl Unmounter {
    /// Unmounts, so that [`Mount::join`] returns.
    ///
    /// # Errors
    /// [`Error::Busy`] if programs have files or a working directory there.
    pub fn unmount(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        mountpoint::release(&self.mountpoint)
    }

    /// Takes the mount out of the host's tree at once; [`Mount::join`] returns when the last open
    /// file there is closed.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn detach(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        mountpoint::detach(&self.mountpoint)
    }
}

/// Mounts `fs` on the directory `mountpoint` and returns while threads serve it.
///
/// # Errors
/// Each says what is missing: the device, the helper for ordinary users, the mount point.
pub fn mount(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &MountOptions) -> Result<Mount> {
    let path = mountpoint::prepare(mountpoint)?;
    let agreed = Agreed::default();
    let shake = Handshake {
        passthrough: options.passthrough,
        writeback_cache: options.writeback_cache,
        max_write_bytes: options.max_write_bytes,
        max_readahead_bytes: options.max_readahead_bytes,
        time_unit_nanos: fs.time_unit_nanos(),
        shared: options.shared,
        locks: fs.has_locks(),
        // Without attributes there are no ACLs, as with the kernel's `noacl`.
        acls: options.xattrs && fs.has_acls(),
        agreed: agreed.clone(),
    };
    let session = fuser::Session::new(shake, &path, &handshake::config(options))
        .map_err(|e| mountpoint::mount_error(mountpoint, e))?;
    let absent = if options.absent_names { options.lifetime } else { Duration::ZERO };
    let lifetimes = Lifetimes { entry: options.lifetime, attr: options.lifetime, absent };
    let front = Front::new(Arc::clone(&fs), lifetimes, options.xattrs);
    let kernel_knows_lengths = !options.shared || options.writeback_cache;
    let serve_error = |source| Error::Serve { mountpoint: mountpoint.into(), source };
    let past = if agreed.passthrough() {
        Some(Past::new(session.as_fd().try_clone_to_owned().map_err(serve_error)?))
    } else {
        None
    };
    let front = front.letting_past(past).agreed(agreed);
    let front = Arc::new(if kernel_knows_lengths { front } else { front.placing_appends() });
    let fd = session.as_fd().try_clone_to_owned().map_err(serve_error)?;
    let service = Service::new(Arc::clone(&front), fd, options.max_write_bytes, polling(options));
    let service = Arc::new(service);
    let mut mount = Mount {
        fs,
        front: Arc::clone(&front),
        unmounter: Unmounter {
            mountpoint: Arc::new(path),
            ended: Arc::default(),
            given_up: Arc::default(),
        },
        session: Some(session),
        workers: Vec::new(),
        signals: std::sync::Mutex::default(),
        at_rest: false,
    };
    for nr in 0..options.threads.max(1) {
        let service = Arc::clone(&service);
        let work = move || service.work();
        mount.workers.push(thread(format!("weft-fuse-{nr}"), work).map_err(serve_error)?);
    }
    let standby = move || {
        service.stand_by();
        Ok(())
    };
    mount.workers.push(thread("weft-standby".into(), standby).map_err(serve_error)?);
    if let Some(session) = &mount.session {
        front.notify_by(session.notifier());
        let sink = invalidate::start(front.nodes(), session.notifier()).map_err(serve_error)?;
        mount.fs.set_invalidate(sink);
    }
    mountpoint::read_ahead(mount.mountpoint(), options.max_readahead_bytes);
    Ok(mount)
}

fn thread(
    name: String,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().name(name).spawn(work)
}

/// On one CPU it would only be in the way; on three the client finds another idle one.
fn polling(options: &MountOptions) -> bool {
    options.polling && std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 2)
}

impl Mount {
    /// Where the file system is mounted, as an absolute path.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.unmounter.mountpoint
    }

    /// A handle that ends this mount from elsewhere.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// How many requests of each kind the kernel has sent since the mount began.
    #[must_use]
    pub fn requests(&self) -> Vec<(String, u64)> {
        self.front.counts()
    }

    /// Waits until the mount has ended, as [`join`](Self::join), but keeps what can still be asked.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn wait(&mut self) -> Result<()> {
        let mut served = Ok(());
        for worker in self.workers.drain(..) {
            let result = worker.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
            if let Err(source) = result {
                let mountpoint = self.unmounter.mountpoint.to_path_buf();
                served = Err(Error::Serve { mountpoint, source });
            }
        }
        self.unmounter.ended.store(true, Ordering::Release);
        tracing::debug!(requests = ?self.requests(), "unmounted");
        self.session = None;
        self.bring_to_rest()?;
        served
    }

    /// Once more, after [`wait`](Self::wait) has failed: what is not written is still there.
    ///
    /// # Errors
    /// [`Error::Volume`].
    pub fn bring_to_rest(&mut self) -> Result<()> {
        if !self.at_rest {
            self.fs.unmount().map_err(Error::Volume)?;
            self.at_rest = true;
            self.watch_no_signals();
        }
        Ok(())
    }

    /// Whether a signal has come since the mount ended: not to go on trying.
    #[must_use]
    pub fn is_told_to_end(&self) -> bool {
        self.unmounter.given_up.load(Ordering::Acquire)
    }

    fn watch_no_signals(&self) {
        if let Ok(mut slot) = self.signals.lock()
            && let Some(handle) = slot.take()
        {
            handle.close();
        }
    }

    /// From now on SIGTERM, SIGINT and SIGHUP unmount. If the mount is in use, it is taken out of
    /// the tree and the volume is made durable; a second signal ends it with files still open.
    ///
    /// # Errors
    /// [`Error::Serve`] if the signals cannot be watched.
    pub fn unmount_on_signals(&self) -> Result<()> {
        let failed = |source| Error::Serve { mountpoint: self.mountpoint().into(), source };
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
        let handle = signals.handle();
        let (unmounter, fs) = (self.unmounter(), Arc::clone(&self.fs));
        let thread = std::thread::Builder::new().name("weft-signals".into());
        let watch = move || {
            let mut again = false;
            for _ in signals.forever() {
                on_signal(&unmounter, &*fs, again);
                again = true;
            }
        };
        thread.spawn(watch).map_err(failed)?;
        if let Ok(mut slot) = self.signals.lock() {
            *slot = Some(handle);
        }
        Ok(())
    }

    /// Waits until the mount has ended, then brings the file system to rest: everything durable,
    /// the volume clean.
    ///
    /// # Errors
    /// [`Error::Serve`], [`Error::Volume`].
    pub fn join(mut self) -> Result<()> {
        self.wait()
    }

    /// Unmounts and waits as [`join`](Self::join) does.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is in use, and the mount goes on; those of [`join`](Self::join).
    pub fn unmount(&mut self) -> Result<()> {
        self.unmounter.unmount()?;
        self.wait()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.at_rest {
            return;
        }
        if self.unmounter.ended.load(Ordering::Acquire) {
            // Waited for, and not at rest: that has been told.
            self.watch_no_signals();
            return;
        }
        if let Err(e) = self.unmounter.unmount().or_else(|_| self.unmounter.detach()) {
            tracing::error!("{e}");
        }
        if let Err(e) = self.wait() {
            tracing::error!("{e}");
        }
    }
}

fn on_signal(unmounter: &Unmounter, fs: &dyn FileSystem, again: bool) {
    if unmounter.ended.load(Ordering::Acquire) {
        unmounter.given_up.store(true, Ordering::Release);
        return;
    }
    match unmounter.unmount() {
        Ok(()) => return,
        Err(e) => tracing::warn!("{e}"),
    }
    if let Err(e) = unmounter.detach() {
        tracing::error!("{e}");
    }
    if let Err(e) = fs.sync() {
        tracing::error!("the volume could not be made durable: {e}");
    }
    if again {
        // What is still open is lost to its programs, but not to the volume.
        std::process::exit(1);
    }
    tracing::warn!(
        "the mount ends when the last file there is closed; a second signal ends it now"
    );
}
