//! The extended attributes by which a mount of a cell is asked and told. Where the kernel refuses
//! them because the file or directory is another's, the mount is asked on its control socket, which
//! answers its own user and root.

use rustix::io::Errno;
use std::ffi::CString;
use std::path::Path;
use weft::control::{control, mount_of};
use weft::ringer::Bytes;
use weft::ringer_client::{ControlRequest, HOLDERS_XATTR};

/// The longest attribute, in bytes.
const XATTR_MAX_BYTES: usize = 64 << 10;

/// Asks the mount itself, if the kernel refused with `refused`.
fn ask_mount(
    path: &Path,
    refused: Errno,
    request: impl FnOnce(u64) -> ControlRequest,
) -> Result<Vec<u8>, Errno> {
    if ![Errno::ACCESS, Errno::PERM].contains(&refused) {
        return Err(refused);
    }
    let Ok(Some((mounted, ino))) = mount_of(path) else { return Err(refused) };
    let Ok(Some(reply)) = control(&mounted, &request(ino)) else { return Err(refused) };
    match i32::try_from(reply.errno) {
        Ok(0) => Ok(reply.text.0),
        Ok(errno) => Err(Errno::from_raw_os_error(errno)),
        Err(_) => Err(Errno::IO),
    }
}

/// Reads an attribute of a file or directory in a mount.
pub(super) fn get(path: &Path, name: &[u8]) -> Result<String, Errno> {
    let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut value = vec![0; XATTR_MAX_BYTES];
    match rustix::fs::getxattr(path, &c_name, &mut value[..]) {
        Ok(n) => value.truncate(n),
        Err(e) => {
            let name = Bytes(name.to_vec());
            value = ask_mount(path, e, |ino| ControlRequest::Get { ino, name })?;
        }
    }
    Ok(String::from_utf8_lossy(&value).into_owned())
}

/// Sets an attribute, only in a cell: any other file system would accept it without effect.
pub(super) fn set(path: &Path, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    get(path, HOLDERS_XATTR)?;
    let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
    rustix::fs::setxattr(path, &c_name, value, rustix::fs::XattrFlags::empty()).or_else(|e| {
        let (name, value) = (Bytes(name.to_vec()), Bytes(value.to_vec()));
        ask_mount(path, e, |ino| ControlRequest::Set { ino, name, value }).map(drop)
    })
}

pub(super) fn remove(path: &Path, name: &[u8]) -> Result<(), Errno> {
    let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
    rustix::fs::removexattr(path, &c_name).or_else(|e| {
        let name = Bytes(name.to_vec());
        ask_mount(path, e, |ino| ControlRequest::Remove { ino, name }).map(drop)
    })
}
