//! Parsing requests.

/// Bytes of a request before its body.
pub(crate) const HEADER_BYTES: usize = 40;

/// The most bytes of a write request beside its data.
pub(crate) const WRITE_OVERHEAD_BYTES: usize = HEADER_BYTES + 40;

/// A request that is shorter than its type requires, or a name without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields with which every request starts (`fuse_in_header`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

impl Header {
    /// Splits a request into header and body; `None` if it is shorter than its length field.
    pub(crate) fn split(request: &[u8]) -> Option<(Self, Body<'_>)> {
        let mut body = Body(request);
        let parse = |body: &mut Body<'_>| -> Result<(Self, usize), Malformed> {
            let len = body.u32()?;
            let header = Self {
                opcode: body.u32()?,
                unique: body.u64()?,
                node: body.u64()?,
                uid: body.u32()?,
                gid: body.u32()?,
                pid: body.u32()?,
            };
            let _extensions_and_padding = body.u32()?;
            Ok((header, len as usize))
        };
        let (header, len_bytes) = parse(&mut body).ok()?;
        let body_bytes = len_bytes.checked_sub(HEADER_BYTES)?;
        Some((header, Body(body.0.get(..body_bytes)?)))
    }
}

/// The rest of a request's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    #[cfg(test)]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.bytes(len).map(|_| ())
    }

    /// Reads a string that ends with a NUL; the NUL is consumed, too.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Malformed)?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(len: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(len.to_ne_bytes());
        bytes.extend(1_u32.to_ne_bytes());
        bytes.extend(7_u64.to_ne_bytes());
        bytes.extend(9_u64.to_ne_bytes());
        for word in [10_u32, 20, 30, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    #[test]
    fn header_and_names() {
        let bytes = request(40 + 8, b"ab\0cdef\0");
        let (header, mut body) = Header::split(&bytes).expect("whole");
        assert_eq!((header.opcode, header.unique, header.node), (1, 7, 9));
        assert_eq!((header.uid, header.gid, header.pid), (10, 20, 30));
        assert_eq!(body.name(), Ok(&b"ab"[..]));
        assert_eq!(body.name(), Ok(&b"cdef"[..]));
        assert_eq!(body.name(), Err(Malformed));
    }

    #[test]
    fn short_requests_are_malformed() {
        let whole = request(40 + 4, b"abcd");
        for len in 0..whole.len() {
            assert!(Header::split(&whole[..len]).is_none(), "{len} bytes");
        }
        assert!(Header::split(&request(39, b"")).is_none());
        let (_, mut body) = Header::split(&whole).expect("whole");
        assert_eq!(body.u64(), Err(Malformed));
        assert_eq!(body.name(), Err(Malformed));
        assert_eq!(body.u32(), Ok(u32::from_ne_bytes(*b"abcd")));
    }
}
