//! Random bytes from the kernel.

use std::io;

/// Fills `buf` with random bytes from the kernel.
pub fn fill_random(mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        let n = rustix::rand::getrandom(&mut *buf, rustix::rand::GetRandomFlags::empty())?;
        buf = &mut buf[n..];
    }
    Ok(())
}
