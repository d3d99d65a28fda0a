//! Patchgroups.

use crate::error::{raised, without_lock};
use pyo3::prelude::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// `EBADF`, as Linux numbers it.
const CLOSED: i32 = 9;

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
    fn on_mount(py: Python<'_>, path: &[u8]) -> PyResult<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        without_lock(py, || weft::Group::on_mount(path)).map(Self::new)
    }

    fn depend(&self, py: Python<'_>, before: &Self) -> PyResult<()> {
        let before = before.opened(py)?;
        self.call(py, |group| group.depend(&before))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::release)
    }

    fn engage(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::engage)
    }

    fn disengage(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::disengage)
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, weft::Group::barrier)
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
