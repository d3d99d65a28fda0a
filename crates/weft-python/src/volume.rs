//! Volumes and their files.

use crate::error::without_lock;
use crate::group::Group;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};
use weft::Options;
use weft::vfs::{Attr, OpenFlags};

/// The numbers of a `weft.Stat`, in its order.
pub(crate) type Numbers = (u32, u64, u32, u32, u32, u64, [(i64, u32); 3], u64, u32);

fn numbers(attr: &Attr) -> Numbers {
    let times = [attr.atime, attr.mtime, attr.ctime].map(|time| (time.secs, time.nanos));
    let mode = attr.kind.mode_bits() | u32::from(attr.perm);
    let (nlink, uid, gid) = (attr.nlink, attr.uid, attr.gid);
    (mode, attr.ino.0, nlink, uid, gid, attr.size_bytes, times, attr.blocks_512, attr.rdev)
}

/// An opened volume.
#[pyclass(frozen, module = "weft._weft")]
#[derive(Debug)]
pub struct Volume(pub(crate) weft::Volume);

#[pymethods]
impl Volume {
    #[new]
    fn new(
        py: Python<'_>,
        source: &str,
        write: bool,
        order: Option<&str>,
        atime: bool,
    ) -> PyResult<Self> {
        let opened = without_lock(py, || {
            let order = order.map(str::parse).transpose()?;
            let (read_only, no_atime) = (!write, !atime);
            let options = Options { read_only, no_atime, order, ..Options::default() };
            weft::Volume::open(source, &options)
        })?;
        Ok(Self(opened))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_lock(py, || self.0.close())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        without_lock(py, || self.0.sync())
    }

    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        without_lock(py, || self.0.is_read_only())
    }

    fn order(&self, py: Python<'_>) -> PyResult<&'static str> {
        without_lock(py, || self.0.order()).map(weft::Order::name)
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Numbers> {
        let found = without_lock(py, || match follow {
            true => self.0.stat(path),
            false => self.0.stat_link(path),
        })?;
        Ok(numbers(&found))
    }

    fn list<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = without_lock(py, || self.0.list(path))?;
        Ok(found.iter().map(|listed| PyBytes::new(py, &listed.name)).collect())
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u16) -> PyResult<()> {
        without_lock(py, || self.0.make_dir(path, mode & 0o7777))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        without_lock(py, || self.0.remove_file(path))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        without_lock(py, || self.0.remove_dir(path))
    }

    fn rename(&self, py: Python<'_>, path: &[u8], new_path: &[u8]) -> PyResult<()> {
        without_lock(py, || self.0.rename(path, new_path))
    }

    fn group(&self, py: Python<'_>, kind: &str) -> PyResult<Group> {
        let kind = crate::group::kind(kind)?;
        without_lock(py, || self.0.group_of_kind(kind)).map(Group::new)
    }

    /// Opens a file; `mode` has the letters of Python's `open`, and is valid.
    fn open(&self, py: Python<'_>, path: &[u8], mode: &str) -> PyResult<File> {
        let (only_reads, plus) = (mode.contains('r'), mode.contains('+'));
        let flags = [
            (only_reads || plus, OpenFlags::READ),
            (!only_reads || plus, OpenFlags::WRITE),
            (mode.contains('x'), OpenFlags::EXCLUSIVE),
            (mode.contains('w'), OpenFlags::TRUNCATE),
        ];
        let flags = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
        let create = (!only_reads).then_some(0o644);
        let opened = without_lock(py, || self.0.open_file(path, flags, create))?;
        Ok(File(Mutex::new(Some(opened.into()))))
    }
}

/// An open file.
#[pyclass(frozen, module = "weft._weft")]
#[derive(Debug)]
pub struct File(Mutex<Option<std::sync::Arc<weft::File>>>);

impl File {
    fn opened(&self) -> PyResult<std::sync::Arc<weft::File>> {
        let opened = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }
}

#[pymethods]
impl File {
    /// Reads up to so many bytes.
    fn read<'py>(&self, py: Python<'py>, offset: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.opened()?;
        let content = without_lock(py, || {
            // No more memory than the file has content.
            let left = file.stat()?.size_bytes.saturating_sub(offset);
            let mut content = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(len)];
            let got = file.read_at(offset, &mut content)?;
            content.truncate(got);
            Ok(content)
        })?;
        Ok(PyBytes::new(py, &content))
    }

    /// Writes all.
    fn write(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<usize> {
        let file = self.opened()?;
        without_lock(py, || file.write_at(offset, data))?;
        Ok(data.len())
    }

    fn truncate(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let file = self.opened()?;
        without_lock(py, || file.set_len(len))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.opened()?;
        without_lock(py, || Ok(file.stat()?.size_bytes))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.opened()?;
        without_lock(py, || file.sync())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        without_lock(py, || match file.and_then(std::sync::Arc::into_inner) {
            Some(file) => file.close(),
            None => Ok(()),
        })
    }
}
