//! libweft: the library of weft for C, described in `include/weft.h`, which cbindgen makes from these
//! modules. They convert arguments and errors; what happens is in [`weft::handle`].
//!
//! | module | contents |
//! |---|---|
//! | `error` | the message of a thread's last error; panics end here |
//! | `argument` | pointers that C passes, made into references and text |
//! | `volume`, `file`, `dir` | volumes, their files, their directories |
//! | `group` | patchgroups |
//! | `make` | new volumes, and checks |
//!
//! This crate is of `unsafe` functions, since each takes pointers that only the caller can vouch for;
//! the conditions are those in the header: a pointer is NULL or valid, a handle is not yet closed.
// The types have their names in C; what each function demands is in the header, once for all.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)]

mod argument;
mod dir;
mod error;
mod file;
mod group;
mod make;
mod volume;

pub use dir::*;
pub use error::*;
pub use file::*;
pub use group::*;
pub use make::*;
pub use volume::*;
