//! Errors of weft as those of Python.

use pyo3::prelude::*;

/// Runs a call of weft without the interpreter's lock.
pub(crate) fn without_lock<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> weft::Result<T> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(|e| raised(py, e.errno(), &e.to_string()))
}

/// Returns the exception for an error.
pub(crate) fn raised(py: Python<'_>, errno: i32, message: &str) -> PyErr {
    let made = py
        .import("weft._errors")
        .and_then(|errors| errors.getattr("error"))
        .and_then(|make| make.call1((errno, message)));
    made.map_or_else(|e| e, PyErr::from_value)
}
