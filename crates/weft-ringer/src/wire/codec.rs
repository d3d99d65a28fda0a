//! The encoding of numbers, lists and enums.

use std::collections::BTreeMap;
use weft_vfs::{FileKind, Time};

/// The most elements of one list: a frame of the smallest elements takes some megabytes of memory.
pub const LIST_MAX: usize = 1 << 17;

/// The bytes do not encode a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end within a value.
    #[error("the message ends within {what}")]
    Short {
        /// The part that was being read.
        what: &'static str,
    },
    /// A number, a name or a list past its limit, or not in its only encoding.
    #[error("{what} is not valid")]
    Invalid {
        /// The part that was read.
        what: &'static str,
    },
    /// A variant that this version does not know: the sender is newer, or faulty.
    #[error("{what} has no choice {number}")]
    Unknown {
        /// The name of the enum.
        what: &'static str,
        /// The number of the variant.
        number: u64,
    },
    /// Bytes after the end of a value.
    #[error("{len_bytes} bytes follow the message")]
    Trailing {
        /// Their number.
        len_bytes: usize,
    },
    /// A frame longer than the limit.
    #[error("a frame of {len_bytes} bytes, {max_bytes} are allowed")]
    Oversized {
        /// The length in its header.
        len_bytes: u64,
        /// The limit.
        max_bytes: usize,
    },
    /// Not this protocol at all.
    #[error("not a weft ringer connection (wrong magic number)")]
    NotOurs,
}

/// A value that can be encoded to bytes and decoded from them.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads one value.
    ///
    /// # Errors
    /// [`WireError`]; no more memory is allocated than the bytes can fill.
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// Returns the encoding of `value`.
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
/// [`WireError`], also if bytes are left over.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, WireError> {
    let mut from = Reader::new(bytes);
    let value = T::get(&mut from)?;
    match from.rest() {
        [] => Ok(value),
        rest => Err(WireError::Trailing { len_bytes: rest.len() }),
    }
}

/// A reader of encoded bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Returns a reader at the beginning of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the bytes not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Reads the next `len_bytes` bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn take(&mut self, len_bytes: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (taken, rest) =
            self.bytes.split_at_checked(len_bytes).ok_or(WireError::Short { what })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.take(1, what).map(|b| b[0])
    }

    /// Reads a length that is at most `max` and at most the number of bytes left, at one byte an
    /// element.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn len(&mut self, max: usize, what: &'static str) -> Result<usize, WireError> {
        let len = usize::try_from(u64::get(self)?).map_err(|_| WireError::Invalid { what })?;
        if len > max {
            return Err(WireError::Invalid { what });
        }
        if len > self.bytes.len() {
            return Err(WireError::Short { what });
        }
        Ok(len)
    }

    /// Reads a length and that many bytes, at most `max_bytes`.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn bytes(&mut self, max_bytes: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let len_bytes = self.len(max_bytes, what)?;
        self.take(len_bytes, what)
    }
}

/// Appends the length and the bytes.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u64).put(out);
    out.extend_from_slice(bytes);
}

impl Wire for u64 {
    #[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a number";
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = from.byte(WHAT)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero adds nothing: there is a shorter encoding.
                let shortest = byte != 0 || shift == 0;
                return shortest.then_some(value).ok_or(WireError::Invalid { what: WHAT });
            }
        }
        Err(WireError::Invalid { what: WHAT })
    }
}

macro_rules! small_number {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                u64::from(*self).put(out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                Self::try_from(u64::get(from)?)
                    .map_err(|_| WireError::Invalid { what: stringify!($t) })
            }
        }
    )*};
}
small_number!(u8, u16, u32);

impl Wire for i64 {
    /// ZigZag encoding, so that small negative numbers are short.
    fn put(&self, out: &mut Vec<u8>) {
        ((self << 1) ^ (self >> 63)).cast_unsigned().put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let z = u64::get(from)?;
        Ok((z >> 1).cast_signed() ^ -((z & 1).cast_signed()))
    }
}

impl Wire for u128 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = from.take(16, "a long number")?;
        let bytes = bytes.try_into().map_err(|_| WireError::Short { what: "a long number" })?;
        Ok(Self::from_be_bytes(bytes))
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match from.byte("a truth value")? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid { what: "a truth value" }),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        T::get(from).map(Self::new)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for element in self {
            element.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let len = from.len(LIST_MAX, "a list")?;
        // An element may take much more memory than its one byte: the list grows as it is filled.
        let mut list = Self::with_capacity(len.min(64));
        for _ in 0..len {
            list.push(T::get(from)?);
        }
        Ok(list)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    /// Reads keys in their order, each once: the only encoding.
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let len = from.len(LIST_MAX, "a map")?;
        let mut map = Self::new();
        for _ in 0..len {
            let key = K::get(from)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(WireError::Invalid { what: "the order of a map" });
            }
            map.insert(key, V::get(from)?);
        }
        Ok(map)
    }
}

impl Wire for Time {
    fn put(&self, out: &mut Vec<u8>) {
        self.secs.put(out);
        self.nanos.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let time = Self { secs: i64::get(from)?, nanos: u32::get(from)? };
        if time.nanos < 1_000_000_000 {
            Ok(time)
        } else {
            Err(WireError::Invalid { what: "a time" })
        }
    }
}

/// Implements [`Wire`](crate::wire::Wire) for a struct, field by field in the order given.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn get(from: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::Wire::get(from)?),* })
            }
        }
    };
}

/// Implements [`Wire`](crate::wire::Wire) for an enum: the number of the variant, then its fields.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($number:literal => $variant:ident $({ $($field:ident),* $(,)? })?),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($($field),*)? } => {
                        $crate::wire::Wire::put(&($number as u64), out);
                        $($($crate::wire::Wire::put($field, out);)*)?
                    })*
                }
            }
            fn get(from: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::WireError> {
                match <u64 as $crate::wire::Wire>::get(from)? {
                    $($number => Ok(Self::$variant {
                        $($($field: $crate::wire::Wire::get(from)?),*)?
                    }),)*
                    number => Err($crate::wire::WireError::Unknown {
                        what: stringify!($name),
                        number,
                    }),
                }
            }
        }
    };
}

pub use {wire_enum, wire_struct};

wire_enum!(FileKind {
    1 => Fifo,
    2 => CharDevice,
    4 => Directory,
    6 => BlockDevice,
    8 => Regular,
    10 => Symlink,
    12 => Socket,
});
