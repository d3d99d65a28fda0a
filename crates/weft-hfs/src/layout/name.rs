//! Names: up to 31 bytes of MacRoman, compared without regard to case.

use super::{get8, put};
use crate::{Error, Result};
use core::cmp::Ordering;
use core::fmt;

/// Most bytes of a volume's name.
pub const VOLUME_NAME_MAX_BYTES: usize = 27;

/// The name of a file or folder: 0 to 31 bytes (only a thread's key has none), no colon.
///
/// Two names are equal if their bytes are; names of the same item compare as equal in
/// [`order`](Self::order).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Name {
    len: u8,
    bytes: [u8; Self::MAX_BYTES],
}

impl Name {
    /// Most bytes of a name.
    pub const MAX_BYTES: usize = 31;

    /// The empty name in the key of a thread.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX_BYTES] };

    /// Makes a name for an item.
    ///
    /// # Errors
    /// [`Error::NameTooLong`], or [`Error::BadName`] for an empty name, `.` and `..`, a colon or a
    /// NUL.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::BadName("it is empty"));
        }
        if bytes.contains(&b':') {
            return Err(Error::BadName("a colon separates folders"));
        }
        if bytes.contains(&0) {
            return Err(Error::BadName("it has a NUL"));
        }
        let name = Self::any(bytes)?;
        if name.is_dots() {
            return Err(Error::BadName("Apple's checker rejects . and .."));
        }
        Ok(name)
    }

    /// Makes a name that a volume may hold, including those that [`new`](Self::new) refuses.
    ///
    /// # Errors
    /// [`Error::NameTooLong`].
    pub fn any(bytes: &[u8]) -> Result<Self> {
        let len = u8::try_from(bytes.len()).map_err(|_| Error::NameTooLong)?;
        if bytes.len() > Self::MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let mut name = Self { len, bytes: [0; Self::MAX_BYTES] };
        put(&mut name.bytes, 0, bytes);
        Ok(name)
    }

    /// Returns the Pascal string at byte `at`; `None` if it is longer than `max_bytes`.
    pub(super) fn parse(raw: &[u8], at: usize, max_bytes: usize) -> Option<Self> {
        let len = usize::from(get8(raw, at));
        if len > max_bytes {
            return None;
        }
        Self::any(raw.get(at + 1..at + 1 + len)?).ok()
    }

    /// Returns true if the name is `.` or `..`.
    #[must_use]
    pub fn is_dots(&self) -> bool {
        matches!(self.as_bytes(), b"." | b"..")
    }

    /// Returns the bytes of the name, in MacRoman.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns true if the name has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Compares two names by their order in a folder.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        crate::relstring::compare(self.as_bytes(), other.as_bytes())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}
