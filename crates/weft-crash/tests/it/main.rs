//! The explorer from outside: on a toy file system that can be made wrong on purpose.

mod explorer;
mod toy;
