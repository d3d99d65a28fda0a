//! FUSE mounts of a volume.

use crate::ending::EndReporter;
use crate::mount_options::MountOptions;
use crate::{Error, Result, mounts};
use std::os::fd::OwnedFd;
use std::time::Duration;
use weft_block::DroppedByOwner;

/// The pause before a failed write-back is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// The interval at which that pause checks for a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The treatment of data that cannot be written when a mount has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtFailure {
    /// The data is discarded and the error returned.
    GiveUp,
    /// The data is kept in memory and written again every five seconds, until that succeeds or a
    /// signal ends it: the server may come back, or the disk may get free space.
    KeepTrying,
}

/// A mounted volume, served by threads of this process. Dropping it unmounts; in a child of `fork`, which has
/// none of these threads, it does nothing.
#[derive(Debug)]
pub struct Session {
    mount: DroppedByOwner<weft_fuse::Mount>,
    /// Reports to unmounting processes how the mount ended; `None` where there are no such sockets.
    reporter: Option<EndReporter>,
    /// Answers requests of the mount's user.
    #[cfg(feature = "ringer")]
    control: Option<crate::control::ControlSocket>,
    /// The lock of the source, held until everything is durable.
    lock: Option<OwnedFd>,
}

impl Session {
    pub(crate) fn new(mount: weft_fuse::Mount, lock: Option<OwnedFd>) -> Self {
        let mounted = mounts::mounted_at(mount.mountpoint()).ok().flatten();
        let reporter = mounted.and_then(|mounted| {
            let listening = EndReporter::listen(&mounted);
            listening
                .inspect_err(|e| {
                    tracing::debug!("cannot listen for requests about how the mount ended: {e}");
                })
                .ok()
        });
        Self {
            mount: DroppedByOwner::new(mount),
            reporter,
            #[cfg(feature = "ringer")]
            control: None,
            lock,
        }
    }

    /// Answers requests of the mount's user about a cell.
    #[cfg(feature = "ringer")]
    pub(crate) fn with_control(
        mut self,
        cell: std::sync::Weak<weft_ringer_client::CellTree>,
    ) -> Self {
        let mounted = mounts::mounted_at(self.mount.mountpoint()).ok().flatten();
        self.control = mounted.and_then(|mounted| {
            crate::control::ControlSocket::listen(&mounted, cell)
                .inspect_err(|e| tracing::warn!("cannot listen for requests to the mount: {e}"))
                .ok()
        });
        self
    }

    /// Returns true in the process that has made the mount, and false in its children.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.mount.is_here()
    }

    fn demand_owner(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::OtherProcess("the mount")) }
    }

    /// Waits until the volume is unmounted (or SIGTERM or SIGINT arrives), then makes everything
    /// durable and reports the result to `weft umount`.
    ///
    /// # Errors
    /// [`Error::Mount`] if the connection broke or the last writes failed.
    pub fn wait(self) -> Result<()> {
        self.wait_and(AtFailure::GiveUp, || Ok(()))
    }

    /// As [`wait`](Self::wait), with a call of `close` for a device behind the volume (a cache)
    /// before the result is reported.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and those of `close`.
    pub fn wait_and(
        mut self,
        at_failure: AtFailure,
        close: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.demand_owner()?;
        let failed = |e: weft_fuse::Error| Error::Mount(e.to_string());
        let mut ended = self.mount.wait().map_err(failed);
        if let (Err(e), AtFailure::KeepTrying) = (&ended, at_failure) {
            let process = std::process::id();
            let told = Error::Mount(format!(
                "{e}; process {process} keeps what is not written and tries again every {} \
                 seconds (kill {process} gives it up)",
                TRY_AGAIN.as_secs()
            ));
            tracing::error!("{told}");
            self.report(&Err(told));
            ended = self.keep_trying().map_err(failed);
            if ended.is_ok() {
                tracing::warn!("data that could not be written at the unmount are now written");
            }
        }
        let closed = close();
        self.end(ended.and(closed))
    }

    /// Releases the volume and its source, and then reports the result: a process that hears it may
    /// open the source at once.
    fn end(self, ended: Result<()>) -> Result<()> {
        let Self {
            mount,
            reporter,
            #[cfg(feature = "ringer")]
            control,
            lock,
        } = self;
        #[cfg(feature = "ringer")]
        drop(control);
        drop(mount);
        drop(lock);
        if let Some(reporter) = reporter {
            reporter.report(&ended);
        }
        ended
    }

    fn report(&self, ended: &Result<()>) {
        if let Some(reporter) = &self.reporter {
            reporter.report(ended);
        }
    }

    /// Retries until everything is written or a signal arrives.
    fn keep_trying(&mut self) -> weft_fuse::Result<()> {
        loop {
            let mut waited = Duration::ZERO;
            while waited < TRY_AGAIN && !self.mount.is_told_to_end() {
                std::thread::sleep(LOOK_AGAIN);
                waited += LOOK_AGAIN;
            }
            let ended = self.mount.bring_to_rest();
            if ended.is_ok() || self.mount.is_told_to_end() {
                return ended;
            }
        }
    }

    /// As [`unmount`](Self::unmount), but a mount that is in use continues, and is returned.
    ///
    /// # Errors
    /// [`Error::Host`] with `EBUSY`, or [`Error::OtherProcess`], together with the mount; [`Error::Mount`].
    pub fn unmount_unused(mut self) -> std::result::Result<(), (Error, Option<Box<Self>>)> {
        if let Err(e) = self.demand_owner() {
            return Err((e, Some(Box::new(self))));
        }
        let ended = match self.mount.unmount() {
            Err(weft_fuse::Error::Busy { .. }) => {
                let busy = Error::host("unmount", self.mount.mountpoint(), rustix::io::Errno::BUSY);
                return Err((busy, Some(Box::new(self))));
            }
            ended => ended.map_err(|e| Error::Mount(e.to_string())),
        };
        self.end(ended).map_err(|e| (e, None))
    }

    /// Unmounts and makes everything durable.
    ///
    /// # Errors
    /// [`Error::Mount`], also if the mount is in use; [`Error::OtherProcess`].
    pub fn unmount(mut self) -> Result<()> {
        self.demand_owner()?;
        let ended = self.mount.unmount().map_err(|e| Error::Mount(e.to_string()));
        self.end(ended)
    }
}

pub(crate) fn fuse_options(
    options: &MountOptions,
    source: String,
    read_only: bool,
) -> weft_fuse::MountOptions {
    let has = |name: &str| options.kernel.iter().any(|o| o == name);
    let mut fuse = weft_fuse::MountOptions { source, ..weft_fuse::MountOptions::default() };
    fuse.read_only = read_only;
    fuse.allow_other = options.allow_other;
    fuse.suid &= !has("nosuid");
    fuse.dev &= !has("nodev");
    fuse.no_exec = has("noexec");
    if let Some(threads) = options.threads {
        fuse.threads = threads;
    }
    fuse.xattrs = !options.no_xattr;
    if let Some(yes) = options.writeback {
        fuse.writeback_cache = yes;
    }
    fuse.io_uring = options.io_uring;
    fuse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory_lock::{is_free, lock_directory};
    use crate::ending::{Ended, Ending};
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use weft_vfs::{FileSystem, Layer, MemFs};

    /// A file system whose release takes as long as the test says.
    struct Held {
        below: MemFs,
        begun: Sender<()>,
        may_end: Mutex<Receiver<()>>,
    }

    impl Layer for Held {
        fn below(&self) -> &dyn FileSystem {
            &self.below
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = self.begun.send(());
            let _ = self.may_end.lock().unwrap().recv();
        }
    }

    #[test]
    fn the_source_is_free_when_the_end_is_reported() {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            println!("skipped: no /dev/fuse here, or not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (data, at) = (dir.path().join("data"), dir.path().join("m"));
        std::fs::create_dir(&data).unwrap();
        std::fs::create_dir(&at).unwrap();
        let (begun, has_begun) = channel();
        let (end, may_end) = channel();
        let fs = Arc::new(Held { below: MemFs::new(), begun, may_end: Mutex::new(may_end) });
        let mount = weft_fuse::mount(fs, &at, &weft_fuse::MountOptions::default()).unwrap();
        let session = Session::new(mount, lock_directory(&data).unwrap());
        let mounted = mounts::mounted_at(&at).unwrap().expect("it is mounted");
        let mut ending = Ending::of(&mounted).expect("the server of the mount listens");
        let server = std::thread::spawn(move || session.wait());
        mounts::unmount(&at, false).unwrap();
        has_begun.recv().unwrap();
        let early = ending.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(early, None, "reported before the volume was released");
        assert!(!is_free(&data));
        end.send(()).unwrap();
        let ended = ending.wait(Duration::from_secs(600)).unwrap();
        assert_eq!(ended, Some(Ended::Durable));
        assert!(is_free(&data));
        server.join().unwrap().unwrap();
    }
}
