//! The lifetime of a mount.
//!
//! Replacing a descriptor that belongs to `fuser` is a call of C, and so `unsafe`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};
use weft_vfs::FileSystem;

use crate::front::Front;
use crate::handshake::{self, Agreed, Handshake};
use crate::passthrough::Passthrough;
use crate::ring::{self, Queues};
use crate::serve::Service;
use crate::wire::Lifetimes;
use crate::{Error, IoUring, MountOptions, Result, attempt, invalidate, mountpoint};

/// The time within which a mount that nobody uses ends.
const UNUSED_PATIENCE: Duration = Duration::from_secs(1);

/// A mounted file system. Dropping it unmounts (also if it is in use) and waits.
pub struct Mount {
    fs: Arc<dyn FileSystem>,
    front: Arc<Front>,
    unmounter: Unmounter,
    /// Keeps the mount; its own unmounting is the last resort when everything else has failed.
    session: Option<fuser::Session<Handshake>>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    signals: std::sync::Mutex<Option<SignalHandle>>,
    at_rest: bool,
    /// The kernel's number of the mount, if it is known.
    id: Option<u64>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("mountpoint", &self.unmounter.mountpoint).finish()
    }
}

/// A handle that unmounts from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mountpoint: Arc<PathBuf>,
    /// Set when this mount has ended: a later mount at the same path must not be unmounted.
    ended: Arc<AtomicBool>,
    /// A signal arrived after the mount had ended.
    given_up: Arc<AtomicBool>,
}

impl Unmounter {
    /// Unmounts, so that [`Mount::join`] returns.
    ///
    /// # Errors
    /// [`Error::Busy`] if programs have files or a working directory in the mount.
    pub fn unmount(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        mountpoint::release(&self.mountpoint)
    }

    /// Detaches the mount from the host's tree at once; [`Mount::join`] returns when the last open
    /// file in it is closed.
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
/// Each error names the missing part: the device, the helper for ordinary users, the mount point.
pub fn mount(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: &MountOptions) -> Result<Mount> {
    let path = mountpoint::prepare(mountpoint)?;
    let agreed = Agreed::default();
    let queues = queues(&*fs, options)?;
    let shake = Handshake {
        passthrough: options.passthrough,
        io_uring: queues.is_some(),
        writeback_cache: options.writeback_cache,
        max_write_bytes: options.max_write_bytes,
        max_readahead_bytes: options.max_readahead_bytes,
        time_unit_nanos: fs.time_unit_nanos(),
        shared: options.shared,
        locks: fs.has_locks(),
        // Without extended attributes there are no ACLs, as with the kernel's `noacl`.
        acls: options.xattrs && fs.has_acls(),
        checks_permissions: handshake::checks_permissions(options),
        agreed: agreed.clone(),
    };
    let config = handshake::config(options);
    let session = match fuser::Session::new(shake.clone(), &path, &config) {
        // A dead mount was alive when it was looked at: the kernel ends the rings of a process that
        // was killed after the process.
        Err(e) if mountpoint::is_dead(&e) => {
            mountpoint::prepare(mountpoint)?;
            fuser::Session::new(shake, &path, &config)
        }
        other => other,
    };
    let session = session.map_err(|e| mountpoint::mount_error(mountpoint, e))?;
    let absent = if options.absent_names { options.lifetime } else { Duration::ZERO };
    let lifetimes = Lifetimes { entry: options.lifetime, attr: options.lifetime, absent };
    let front = Front::new(Arc::clone(&fs), lifetimes, options.xattrs);
    let kernel_knows_lengths = !options.shared || options.writeback_cache;
    let serve_error = |source| Error::Serve { mountpoint: mountpoint.into(), source };
    let passthrough = if agreed.passthrough() {
        Some(Passthrough::new(session.as_fd().try_clone_to_owned().map_err(serve_error)?))
    } else {
        None
    };
    let queues = queues.filter(|_| agreed.io_uring());
    let front = front.with_passthrough(passthrough).agreed(agreed);
    let front = front.syncing_by_root(options.sync_by_root);
    let front = Arc::new(if kernel_knows_lengths { front } else { front.placing_appends() });
    let fd = session.as_fd().try_clone_to_owned().map_err(serve_error)?;
    let service = Service::new(Arc::clone(&front), fd, options.max_write_bytes);
    let service = Arc::new(service);
    if queues.is_none() && options.io_uring == IoUring::On {
        return Err(Error::IoUring("the kernel does not offer them to this mount".into()));
    }
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
        id: None,
    };
    mount.id = mountpoint::id(mount.mountpoint());
    if let Some(id) = mount.id {
        let (path, waits) = (Arc::clone(&mount.unmounter.mountpoint), Arc::clone(&front.waits));
        // Detached, it ends with its last user, who may wait for something that never comes.
        let watch = move || {
            mountpoint::wait_until_detached(&path, id)?;
            waits.end_soon();
            Ok(())
        };
        thread("weft-detached".into(), watch).map_err(serve_error)?;
    }
    if let Some(queues) = queues {
        let Some(session) = &mount.session else { return Ok(mount) };
        let busy = Arc::new(AtomicBool::new(false));
        let device = || session.as_fd().try_clone_to_owned();
        let queues = queues.start(&front, Arc::clone(&busy), device).map_err(serve_error)?;
        mount.workers.extend(queues);
        let forgotten = move || service.work_beside_rings(&busy);
        mount.workers.push(thread("weft-fuse-forgot".into(), forgotten).map_err(serve_error)?);
    } else {
        for nr in 0..options.threads.max(1) {
            let service = Arc::clone(&service);
            let work = move || service.work();
            mount.workers.push(thread(format!("weft-fuse-{nr}"), work).map_err(serve_error)?);
        }
        let watched = Arc::clone(&service);
        let watch = move || {
            watched.watch();
            Ok(())
        };
        mount.workers.push(thread("weft-fuse-watch".into(), watch).map_err(serve_error)?);
        let standby = move || {
            service.stand_by();
            Ok(())
        };
        mount.workers.push(thread("weft-standby".into(), standby).map_err(serve_error)?);
    }
    if let Some(session) = &mount.session {
        front.notify_by(session.notifier());
        let sink = invalidate::start(front.nodes(), session.notifier()).map_err(serve_error)?;
        mount.fs.set_invalidate(sink);
    }
    mountpoint::read_ahead(mount.mountpoint(), options.max_readahead_bytes);
    Ok(mount)
}

/// Makes the queues for requests over io_uring, if they are wanted and possible.
fn queues(fs: &dyn FileSystem, options: &MountOptions) -> Result<Option<Queues>> {
    let why_not = match options.io_uring {
        IoUring::Off => return Ok(None),
        _ if !attempt::is_possible(fs) => "this file system may wait in any call".to_owned(),
        _ if fs.has_locks() => "requests that wait for locks would fill the queues".to_owned(),
        _ if !ring::is_enabled() => {
            format!("the kernel's switch is off; to turn it on: echo Y > {}", ring::PARAMETER)
        }
        _ => match Queues::new(options.max_write_bytes as usize) {
            Ok(queues) => return Ok(Some(queues)),
            Err(e) => e.to_string(),
        },
    };
    if options.io_uring == IoUring::On {
        return Err(Error::IoUring(why_not));
    }
    tracing::info!("no requests over io_uring: {why_not}");
    Ok(None)
}

fn thread(
    name: String,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().name(name).spawn(work)
}

impl Mount {
    /// Returns the absolute path at which the file system is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.unmounter.mountpoint
    }

    /// Returns a handle that ends this mount from elsewhere.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Returns the number of requests of each kind that the kernel has sent since the mount began.
    #[must_use]
    pub fn requests(&self) -> Vec<(String, u64)> {
        self.front.counts()
    }

    /// Waits until the mount has ended, as [`join`](Self::join), but keeps the `Mount` for further
    /// calls.
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
        self.end_session();
        self.bring_to_rest()?;
        served
    }

    /// Drops the session of a mount that has ended.
    ///
    /// If the mount was aborted, `fuser` unmounts it. If it was unmounted, the path may be that of
    /// another mount by now, but `fuser` unmounts all the same: a mount is dead to it if poll(2)
    /// reports a hang-up, and the kernel reports an error. So its descriptor is replaced by that of
    /// a pipe that has hung up.
    fn end_session(&mut self) {
        let Some(session) = self.session.take() else { return };
        if self.id.is_some() && mountpoint::id(self.mountpoint()) == self.id {
            return;
        }
        let replaced =
            rustix::pipe::pipe().map_err(io::Error::from).and_then(|(hung_up, writer)| {
                drop(writer);
                let (from, to) = (hung_up.as_raw_fd(), session.as_fd().as_raw_fd());
                // SAFETY: no memory is involved; `session` has the descriptor and keeps it open.
                match unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        if let Err(e) = replaced {
            tracing::warn!("a later mount at the same path may be unmounted: {e}");
        }
    }

    /// Repeats the unmounting of the file system, after [`wait`](Self::wait) has failed: unwritten
    /// data is still in memory.
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

    /// Returns true if a signal has arrived since the mount ended: further attempts should stop.
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

    /// Makes SIGTERM, SIGINT and SIGHUP unmount from now on. If the mount is in use, it is detached
    /// from the tree and the volume is made durable, and requests that have been waiting for five
    /// seconds end with `EIO`; a second signal ends it with files still open, as soon as the volume is
    /// durable, and a third at once.
    ///
    /// # Errors
    /// [`Error::Serve`] if the signals cannot be watched.
    pub fn unmount_on_signals(&self) -> Result<()> {
        let failed = |source| Error::Serve { mountpoint: self.mountpoint().into(), source };
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
        let handle = signals.handle();
        // The thread ends after the mount, of which nothing must be held then: others may open the volume.
        let (unmounter, fs) = (self.unmounter(), Arc::downgrade(&self.fs));
        let waits = Arc::clone(&self.front.waits);
        let watch = move || {
            for (before, _) in signals.forever().enumerate() {
                if unmounter.ended.load(Ordering::Acquire) {
                    unmounter.given_up.store(true, Ordering::Release);
                    continue;
                }
                if before > 1 {
                    tracing::error!("ended before the volume was durable");
                    std::process::exit(1);
                }
                waits.end_soon();
                // In a thread of its own, as it may wait, and the next signal must not wait for it.
                let (unmounter, fs) = (unmounter.clone(), Weak::clone(&fs));
                let end = move || on_signal(&unmounter, &fs, before > 0);
                if let Err(e) = thread("weft-ending".into(), end) {
                    tracing::error!("cannot start a thread: {e}");
                }
            }
        };
        let watch = std::thread::Builder::new().name("weft-signals".into()).spawn(watch);
        watch.map_err(failed)?;
        if let Ok(mut slot) = self.signals.lock() {
            *slot = Some(handle);
        }
        Ok(())
    }

    /// Waits until the mount has ended, then unmounts the file system: everything durable, the
    /// volume clean.
    ///
    /// # Errors
    /// [`Error::Serve`], [`Error::Volume`].
    pub fn join(mut self) -> Result<()> {
        self.wait()
    }

    /// Unmounts and waits as [`join`](Self::join) does.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is in use: the mount continues; those of [`join`](Self::join).
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
            // `wait` has failed, and its caller has the error.
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

/// Waits for the end of a mount that was unmounted, for [`UNUSED_PATIENCE`] at most; returns true if it
/// has ended.
fn ends_soon(unmounter: &Unmounter) -> bool {
    let begin = Instant::now();
    loop {
        if unmounter.ended.load(Ordering::Acquire) {
            return true;
        }
        if begin.elapsed() >= UNUSED_PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn on_signal(unmounter: &Unmounter, fs: &Weak<dyn FileSystem>, again: bool) -> io::Result<()> {
    match unmounter.unmount() {
        // Unless it was detached before, and is still in use.
        Ok(()) if ends_soon(unmounter) => return Ok(()),
        Ok(()) => {}
        Err(e) => {
            tracing::warn!("{e}");
            if let Err(e) = unmounter.detach() {
                tracing::error!("{e}");
            }
        }
    }
    let Some(fs) = fs.upgrade() else { return Ok(()) };
    if let Err(e) = fs.sync() {
        tracing::error!("the volume could not be made durable: {e}");
    }
    drop(fs);
    if again {
        if ends_soon(unmounter) {
            return Ok(());
        }
        // Open files are lost to their programs, but not to the volume.
        std::process::exit(1);
    }
    tracing::warn!(
        "the mount ends when the last file there is closed; a second signal ends it now"
    );
    Ok(())
}
