//! The native module of the Python package `weft` (`python/weft`): volumes, files, mounts and groups as
//! thin classes over [`weft::handle`]. What Python programs see is written in Python around them.
//!
//! Every call that may wait gives up the interpreter's lock. Errors are made by `weft._errors`, as
//! Python classes: an `OSError` with its number.
#![warn(missing_docs)]

mod error;
mod group;
mod make;
mod mount;
mod volume;

use pyo3::prelude::*;

/// The module `weft._weft`.
#[pymodule]
mod _weft {
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::make::{check, mkfs};
    #[pymodule_export]
    use crate::mount::Mount;
    #[pymodule_export]
    use crate::volume::{File, Volume};
}
