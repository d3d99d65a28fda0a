//! The explorer from outside: on a toy file system that can be made wrong on purpose.

mod explorer;
mod ext2;
mod faults;
mod foreign;
mod hfs;
mod toy;
mod transform;
