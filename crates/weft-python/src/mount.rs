//! Mounts that threads of this process serve.

use crate::error::without_lock;
use pyo3::prelude::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use weft::block::OwnerProcess;
use weft::hfs::view::Forks;
use weft::mount_options::MountOptions;
use weft::{Options, Session, Stack};

/// A mounted volume.
#[pyclass(frozen, module = "weft._weft")]
#[derive(Debug)]
pub struct Mount {
    session: Mutex<Option<Session>>,
    /// The process whose threads serve it.
    owner: OwnerProcess,
}

#[pymethods]
impl Mount {
    #[new]
    fn new(
        py: Python<'_>,
        source: &str,
        directory: &[u8],
        write: bool,
        order: Option<&str>,
        options: &str,
    ) -> PyResult<Self> {
        let directory = Path::new(OsStr::from_bytes(directory));
        let session = without_lock(py, || {
            let mut how = MountOptions { leave_signals: true, ..MountOptions::default() };
            how.parse(options)?;
            if let Some(order) = order {
                how.order = Some(order.parse()?);
            }
            let opening = Options {
                read_only: !write || how.read_only,
                order: how.order,
                fsync: how.fsync,
                open_files: how.open_files,
                no_atime: how.kernel.iter().any(|option| option == "noatime"),
                mount_point: directory.to_str().map(str::to_owned),
                forks: how.forks.unwrap_or(Forks::MOUNTED),
                leaves_doubles: true,
                ..Options::default()
            };
            Stack::open(source, &opening)?.mount(directory, &how)
        })?;
        Ok(Self { session: Mutex::new(Some(session)), owner: OwnerProcess::this() })
    }

    fn mounted(&self) -> bool {
        // In a child the lock may be that of a thread that is not there.
        self.owner.is_this()
            && self.session.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Unmounts, and makes everything durable. A mount that is in use continues.
    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        without_lock(py, || self.end())
    }
}

impl Mount {
    fn end(&self) -> weft::Result<()> {
        if !self.owner.is_this() {
            return Err(weft::Error::OtherProcess("the mount"));
        }
        let mut mounted = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match mounted.take().map(Session::unmount_unused) {
            None | Some(Ok(())) => Ok(()),
            Some(Err((e, session))) => {
                *mounted = session.map(|session| *session);
                Err(e)
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.end().is_err() {
            // In use by this very process, perhaps, which must not wait for itself: it is served as
            // long as the process runs. In a child it is not its own.
            let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(session.take());
        }
    }
}
