//! The data of a write.

/// The data of a write: bytes, or a number of zeroes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Data<'a> {
    Bytes(&'a [u8]),
    Zeroes(u64),
}

impl<'a> Data<'a> {
    pub(crate) fn len(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeroes(len) => len,
        }
    }

    pub(crate) fn part(self, from: u64, to: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[from as usize..to as usize]),
            Self::Zeroes(_) => Self::Zeroes(to - from),
        }
    }

    pub(crate) fn copy_to(self, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(bytes),
            Self::Zeroes(_) => out.fill(0),
        }
    }
}
