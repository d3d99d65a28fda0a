//! The keys of a cell in etcd, under `weft/CELL/`:
//!
//! ```text
//! o               the owner's address, with its lease
//! t               Tail: the last revision; changed by every transaction that changes anything
//! k key           revision (8 bytes), 0, value; or revision, 1 and the value's length (8 bytes)
//! p key part      a part of a long value; keys with their length before them (4 bytes)
//! l revision      Vec<Changed>: the keys that a transaction changed
//! j part          a part of a transaction that is too large for one of etcd's
//! ```
//!
//! Numbers in keys are big-endian, so that keys sort as numbers do.

use weft_ringer::wire::{Reader, Wire, WireError, put_bytes, wire_struct};

use super::gateway::{KeyValue, Op};
use weft_ringer::store::{Record, Revision, StoreError, StoreResult};

/// The size of the parts of a longer value or a large transaction, in bytes. Two parts and the rest
/// of a request stay under etcd's 1.5 MiB a request.
pub(super) const PART_BYTES: usize = 512 << 10;
/// The maximum bytes of keys and values in one transaction of etcd.
pub(super) const TXN_MAX_BYTES: usize = PART_BYTES * 2 + (64 << 10);
/// The maximum number of operations in one transaction of etcd, whose usual limit is 128.
pub(super) const TXN_MAX_OPS: usize = 120;

/// The version of the format described above.
const FORMAT: u32 = 1;

/// More parts than a value has: records go over connections, in frames of some MiB.
const PARTS_MAX: usize = 1 << 16;
const WHOLE: u8 = 0;
const CUT: u8 = 1;

/// The state of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) format: u32,
    pub(super) revision: Revision,
    /// The revision after which [`Store::changes`](weft_ringer::store::Store::changes) has all
    /// transactions.
    pub(super) kept_after: Revision,
    /// The number of parts of a transaction that is committed, and not yet carried out in full.
    pub(super) pending: u32,
    /// The number of changes of etcd. Tells whether a step whose answer was lost was made.
    pub(super) step: u64,
}

wire_struct!(Tail { format, revision, kept_after, pending, step });

impl Tail {
    /// The tail of a new cell.
    pub(super) fn new() -> Self {
        let (revision, kept_after) = (Revision(0), Revision(0));
        Self { format: FORMAT, revision, kept_after, pending: 0, step: 0 }
    }

    pub(super) fn decode(bytes: &[u8]) -> StoreResult<Self> {
        let tail: Self =
            weft_ringer::wire::decode(bytes).map_err(|_| damaged("the cell's tail"))?;
        if tail.format != FORMAT {
            let what = format!(
                "the cell in etcd has format version {}, this weft supports {FORMAT}",
                tail.format
            );
            return Err(StoreError::Failed(what));
        }
        Ok(tail)
    }
}

/// Bytes of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blob(pub(super) Vec<u8>);

impl Wire for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&self.0, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.bytes(usize::MAX, "a value").map(|b| Self(b.to_vec()))
    }
}

/// A key that a transaction changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) key: Blob,
    pub(super) removed: bool,
}
wire_struct!(Changed { key, removed });

/// A change of one key of etcd, or of all keys from `key` to `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) key: Blob,
    /// The new value; `None` removes.
    pub(super) value: Option<Blob>,
    pub(super) end: Option<Blob>,
}
wire_struct!(Step { key, value, end });

impl Step {
    pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { key: Blob(key), value: Some(Blob(value)), end: None }
    }

    pub(super) fn remove(key: Vec<u8>) -> Self {
        Self { key: Blob(key), value: None, end: None }
    }

    pub(super) fn remove_range(from: Vec<u8>, to: Vec<u8>) -> Self {
        Self { key: Blob(from), value: None, end: Some(Blob(to)) }
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.key.0.len() + self.value.as_ref().map_or(0, |v| v.0.len())
    }

    pub(super) fn into_op(self) -> Op {
        match (self.value, self.end) {
            (Some(value), _) => Op::put(self.key.0, value.0),
            (None, Some(end)) => Op::delete_range(self.key.0, end.0),
            (None, None) => Op::delete(self.key.0),
        }
    }
}

pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Failed(format!("{what} in etcd is damaged"))
}

/// The number of parts that a value of `len_bytes` is cut into; 0 if it is whole.
pub(super) fn parts(len_bytes: usize) -> usize {
    if len_bytes <= PART_BYTES { 0 } else { len_bytes.div_ceil(PART_BYTES) }
}

/// The keys of one cell.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    /// The keys of the cell `name`: 1 to 255 bytes without a slash.
    pub(super) fn new(name: &str) -> StoreResult<Self> {
        if name.is_empty() || name.len() > 255 || name.contains('/') {
            let what = format!("invalid cell name {name:?}: 1 to 255 bytes, without a slash");
            return Err(StoreError::Failed(what));
        }
        Ok(Self { prefix: format!("weft/{name}/").into_bytes() })
    }

    fn of(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = self.prefix.clone();
        key.extend(parts.iter().copied().flatten());
        key
    }

    pub(super) fn owner(&self) -> Vec<u8> {
        self.of(&[b"o"])
    }

    pub(super) fn tail(&self) -> Vec<u8> {
        self.of(&[b"t"])
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        self.of(&[b"k", key])
    }

    /// The key that [`record`](Self::record) was made of.
    pub(super) fn of_record<'a>(&self, key: &'a [u8]) -> StoreResult<&'a [u8]> {
        let rest = key.strip_prefix(&self.prefix[..]).and_then(|rest| rest.strip_prefix(b"k"));
        rest.ok_or_else(|| damaged("the order of keys"))
    }

    fn part_prefix(&self, key: &[u8]) -> Vec<u8> {
        let len = u32::try_from(key.len()).unwrap_or(u32::MAX);
        self.of(&[b"p", &len.to_be_bytes(), key])
    }

    pub(super) fn part(&self, key: &[u8], part: usize) -> Vec<u8> {
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        [self.part_prefix(key), part.to_be_bytes().to_vec()].concat()
    }

    pub(super) fn logged(&self, revision: Revision) -> Vec<u8> {
        self.of(&[b"l", &revision.0.to_be_bytes()])
    }

    /// The revision that [`logged`](Self::logged) was made of.
    pub(super) fn of_logged(&self, key: &[u8]) -> StoreResult<Revision> {
        let rest = key.strip_prefix(&self.prefix[..]).and_then(|rest| rest.strip_prefix(b"l"));
        let number = rest.and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes);
        number.map(Revision).ok_or_else(|| damaged("the order of keys"))
    }

    pub(super) fn pending(&self, part: u32) -> Vec<u8> {
        self.of(&[b"j", &part.to_be_bytes()])
    }

    /// Adds the steps that put a record in place of one whose value had `old_bytes`; 0 if there was
    /// none, `None` if that is not known.
    pub(super) fn put(
        &self,
        key: &[u8],
        record: &Record,
        old_bytes: Option<usize>,
        steps: &mut Vec<Step>,
    ) {
        let mut head = record.revision.0.to_be_bytes().to_vec();
        let count = parts(record.value.len());
        if count == 0 {
            head.push(WHOLE);
            head.extend_from_slice(&record.value);
        } else {
            head.push(CUT);
            head.extend_from_slice(&(record.value.len() as u64).to_be_bytes());
        }
        steps.push(Step::put(self.record(key), head));
        if count > 0 {
            for (n, part) in record.value.chunks(PART_BYTES).enumerate() {
                steps.push(Step::put(self.part(key, n), part.to_vec()));
            }
        }
        let old_count = old_bytes.map_or(PARTS_MAX, parts);
        if old_count > count {
            steps.push(Step::remove_range(self.part(key, count), self.part(key, old_count)));
        }
    }

    /// Adds the steps that remove a record whose value has `old_bytes`.
    pub(super) fn remove(&self, key: &[u8], old_bytes: usize, steps: &mut Vec<Step>) {
        steps.push(Step::remove(self.record(key)));
        if parts(old_bytes) > 0 {
            steps.push(Step::remove_range(self.part(key, 0), self.part(key, parts(old_bytes))));
        }
    }
}

/// A record as etcd has it: whole, or the length of its value.
pub(super) enum Found {
    Whole(Record),
    Cut { revision: Revision, len_bytes: usize },
}

pub(super) fn read(kv: KeyValue) -> StoreResult<Found> {
    let mut value = kv.value.0;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
    let revision = value.get(..8).and_then(number).map(Revision);
    match (revision, value.get(8)) {
        (Some(revision), Some(&WHOLE)) => {
            Ok(Found::Whole(Record { value: value.split_off(9), revision }))
        }
        (Some(revision), Some(&CUT)) => {
            let len = value.get(9..).and_then(number).and_then(|len| usize::try_from(len).ok());
            let len_bytes = len.ok_or_else(|| damaged("a record"))?;
            Ok(Found::Cut { revision, len_bytes })
        }
        _ => Err(damaged("a record")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_keys_keep_their_order() {
        let keys = Keys::new("cell").expect("a name");
        let (mut plain, mut stored) = (Vec::new(), Vec::new());
        for key in [&b""[..], b"\0", b"a", b"a\0", b"ab", b"\xff", b"\xff\xff"] {
            plain.push(key.to_vec());
            stored.push(keys.record(key));
            assert_eq!(keys.of_record(&keys.record(key)).expect("ours"), key);
        }
        assert!(stored.is_sorted() && plain.is_sorted());
        assert!(keys.logged(Revision(255)) < keys.logged(Revision(256)));
        assert_eq!(keys.of_logged(&keys.logged(Revision(7))).expect("ours"), Revision(7));
        assert!(keys.of_logged(&keys.tail()).is_err());
        // Parts of one key are not between those of another.
        assert!(keys.part(b"a", 1 << 20) < keys.part(b"aa", 0));
        for name in ["", "a/b"] {
            assert!(Keys::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn foreign_records_are_refused() {
        assert!(Tail::decode(b"").is_err());
        let later = Tail { format: FORMAT + 1, ..Tail::new() };
        let error = Tail::decode(&weft_ringer::wire::encode(&later)).expect_err("from the future");
        assert!(error.to_string().contains("version 2"), "{error}");
        for value in [&b"short"[..], b"12345678", b"12345678\x07", b"12345678\x01123"] {
            let kv = KeyValue {
                value: super::super::gateway::B64(value.to_vec()),
                ..KeyValue::default()
            };
            assert!(read(kv).is_err(), "{value:?}");
        }
    }

    fn one_form<T: Wire>(bytes: &[u8]) {
        if let Ok(value) = weft_ringer::wire::decode::<T>(bytes) {
            assert_eq!(weft_ringer::wire::encode(&value), bytes);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_record_is_parsed_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            small in proptest::collection::vec(0_u8..4, 0..40),
        ) {
            let keys = Keys::new("cell").expect("a name");
            for bytes in [bytes, small] {
                let _ = Tail::decode(&bytes);
                one_form::<Tail>(&bytes);
                one_form::<Vec<Changed>>(&bytes);
                one_form::<Vec<Step>>(&bytes);
                let _ = (keys.of_record(&bytes).is_ok(), keys.of_logged(&bytes).is_ok());
                let value = super::super::gateway::B64(bytes);
                if let Ok(Found::Cut { len_bytes, .. }) = read(KeyValue { value, ..KeyValue::default() }) {
                    let _ = parts(len_bytes);
                }
            }
        }
    }
}
