//! New volumes, and checks.

use crate::error::without_lock;
use pyo3::prelude::*;
use weft::check::Options;

/// Makes a volume.
#[pyfunction]
pub fn mkfs(
    py: Python<'_>,
    image: &str,
    format: &str,
    size: Option<u64>,
    label: &str,
    force: bool,
) -> PyResult<()> {
    without_lock(py, || weft::mkfs::make_named(image, format, size, label, force))
}

/// Checks a volume. Returns the problems found, and those that remain.
#[pyfunction]
pub fn check(py: Python<'_>, source: &str, repair: bool) -> PyResult<(Vec<String>, Vec<String>)> {
    without_lock(py, || {
        let options = if repair { Options::repair() } else { Options::default() };
        let found = weft::check::check(source, &options)?;
        Ok((found.problems(), found.remaining()))
    })
}
