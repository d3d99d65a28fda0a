//! Valid names.

use crate::{Error, Result};

/// The longest name of one path component, in bytes.
pub const NAME_MAX_BYTES: usize = 255;

/// Checks a name of one path component: 1 to 255 bytes, no `/`, no NUL; any other byte may occur.
///
/// # Errors
/// [`Error::NameTooLong`], or [`Error::Invalid`] for an empty name or a forbidden byte.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::Invalid("empty name"));
    }
    if name.len() > NAME_MAX_BYTES {
        return Err(Error::NameTooLong);
    }
    if name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::Invalid("a name has no slash and no NUL"));
    }
    Ok(())
}
