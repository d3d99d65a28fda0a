//! The extended attributes by which a mount of a cell is asked and told.

use rustix::io::Errno;
use std::ffi::CString;
use std::path::Path;
use weft::ringer_client::HOLDERS_XATTR;

/// The longest attribute, in bytes.
const XATTR_MAX_BYTES: usize = 64 << 10;

/// Reads an attribute of a file or directory in a mount.
pub(super) fn get(path: &Path, name: &[u8]) -> Result<String, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut value = vec![0; XATTR_MAX_BYTES];
    let n = rustix::fs::getxattr(path, &name, &mut value[..])?;
    Ok(String::from_utf8_lossy(value.get(..n).unwrap_or_default()).into_owned())
}

/// Sets an attribute, only in a cell: any other file system would accept it without effect.
pub(super) fn set(path: &Path, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    get(path, HOLDERS_XATTR)?;
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    rustix::fs::setxattr(path, &name, value, rustix::fs::XattrFlags::empty())
}

pub(super) fn remove(path: &Path, name: &[u8]) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    rustix::fs::removexattr(path, &name)
}
