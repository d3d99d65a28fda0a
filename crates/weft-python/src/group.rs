//! Patchgroups. `unsafe` for a descriptor of the program, which is a number.

use crate::error::{raised, without_lock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use weft::patchgroups::{Fsync, Kind, Scope};

/// `EBADF`, as Linux numbers it.
const CLOSED: i32 = 9;

fn scope(process: bool) -> Scope {
    if process { Scope::Process } else { Scope::Thread }
}

/// Returns the kind of group with a name.
pub(crate) fn kind(name: &str) -> PyResult<Kind> {
    match name {
        "ordinary" => Ok(Kind::Ordinary),
        "linear" => Ok(Kind::Linear),
        "atomic" => Ok(Kind::Atomic),
        "abortable" => Ok(Kind::Abortable),
        _ => Err(PyValueError::new_err(format!(
            "kind={name}: expected ordinary, linear, atomic or abortable"
        ))),
    }
}

/// Runs a call with a descriptor of the program.
fn with_descriptor(
    fd: i32,
    call: impl FnOnce(BorrowedFd<'_>) -> weft::Result<()>,
) -> weft::Result<()> {
    if fd < 0 {
        let closed = std::io::Error::from_raw_os_error(CLOSED);
        return Err(weft::Error::host("use", format!("the descriptor {fd}"), closed));
    }
    // SAFETY: it is used for calls of the system alone, to which a number that is not open, or is by now
    // that of another file, is an argument like any other.
    call(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A patchgroup of a volume or of a mount.
#[pyclass(frozen, module = "weft._weft")]
#[derive(Debug)]
pub struct Group(Mutex<Option<Arc<weft::Group>>>);

impl Group {
    pub(crate) fn new(group: weft::Group) -> Self {
        Self(Mutex::new(Some(Arc::new(group))))
    }

    fn opened(&self, py: Python<'_>) -> PyResult<Arc<weft::Group>> {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        group.ok_or_else(|| raised(py, CLOSED, "the group is closed"))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&weft::Group) -> weft::Result<T> + Send,
    ) -> PyResult<T> {
        let group = self.opened(py)?;
        without_lock(py, || call(&group))
    }
}

#[pymethods]
impl Group {
    /// Makes a group of a mount.
    #[staticmethod]
    fn on_mount(py: Python<'_>, path: &[u8], kind: &str) -> PyResult<Self> {
        let (path, kind) = (Path::new(OsStr::from_bytes(path)), self::kind(kind)?);
        without_lock(py, || weft::Group::on_mount_of_kind(path, kind)).map(Self::new)
    }

    fn depend(&self, py: Python<'_>, before: &Self) -> PyResult<()> {
        let before = before.opened(py)?;
        self.call(py, |group| group.depend(&before))
    }

    fn set_label(&self, py: Python<'_>, label: &str) -> PyResult<()> {
        self.call(py, |group| group.set_label(label))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::release)
    }

    /// Engages an open file, or else the process or the thread.
    fn engage(
        &self,
        py: Python<'_>,
        process: bool,
        file: Option<i32>,
        fsync: &str,
    ) -> PyResult<()> {
        let fsync: Fsync = fsync.parse().map_err(PyValueError::new_err)?;
        self.call(py, |group| match file {
            Some(fd) => with_descriptor(fd, |fd| group.engage_file(fd, fsync)),
            None => group.engage_scope(scope(process), fsync),
        })
    }

    fn disengage(&self, py: Python<'_>, process: bool, file: Option<i32>) -> PyResult<()> {
        self.call(py, |group| match file {
            Some(fd) => with_descriptor(fd, |fd| group.disengage_file(fd)),
            None => group.disengage_scope(scope(process)),
        })
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::barrier)
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::commit)
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::abort)
    }

    fn blocks_left(&self, py: Python<'_>) -> PyResult<u32> {
        self.call(py, weft::Group::blocks_left)
    }

    /// Returns a descriptor, which is the caller's.
    fn tell_durable(&self, py: Python<'_>) -> PyResult<i32> {
        self.call(py, weft::Group::tell_durable).map(IntoRawFd::into_raw_fd)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::sync)
    }

    fn is_durable(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, weft::Group::is_durable)
    }

    fn close(&self, py: Python<'_>) {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(group));
    }
}
