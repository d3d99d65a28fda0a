//! The records of one node: a checked view of its bytes, and a copy to be changed.

use super::kind::TreeKind;
use crate::layout::{
    NODE_BYTES, NodeDescriptor, NodeKind, RECORDS_OFFSET, get8, get16, get32, put, put16, put32,
};
use alloc::format;
use alloc::string::String;
use core::cmp::Ordering;

/// Bytes of a node for records and their offsets.
pub(crate) const CAPACITY: usize = NODE_BYTES - RECORDS_OFFSET - 2;

/// A view of an index or leaf node whose records are known to lie within it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    raw: &'a [u8],
    pub head: NodeDescriptor,
}

impl<'a> View<'a> {
    /// Checks the bytes of a node.
    pub fn parse(kind: TreeKind, raw: &'a [u8]) -> Result<Self, String> {
        let Some(head) = NodeDescriptor::parse(raw).filter(|_| raw.len() == NODE_BYTES) else {
            return Err(format!("unknown node type {:#x}", get8(raw, 8)));
        };
        let index = match head.kind {
            NodeKind::Index => true,
            NodeKind::Leaf => false,
            NodeKind::Header | NodeKind::Map => return Err("not an index or leaf node".into()),
        };
        let view = Self { raw, head };
        let n = view.count();
        if n > CAPACITY / 4 {
            return Err(format!("invalid record count {n}"));
        }
        let limit = NODE_BYTES - 2 * (n + 1);
        let mut start = view.offset(0);
        if start != RECORDS_OFFSET {
            return Err(format!("invalid offset {start} of the first record"));
        }
        for i in 0..n {
            let end = view.offset(i + 1);
            if end < start || end > limit {
                return Err(format!("invalid offsets of record {i}: {start} to {end}"));
            }
            let key = usize::from(get8(raw, start));
            let least = key_space(key) + if index { 4 } else { 2 };
            if !kind.takes_key_len(key) || end - start < least {
                return Err(format!(
                    "record {i} of {} bytes has a key of invalid length {key}",
                    end - start
                ));
            }
            start = end;
        }
        Ok(view)
    }

    /// Returns the number of records.
    pub fn count(&self) -> usize {
        usize::from(self.head.records)
    }

    fn offset(&self, i: usize) -> usize {
        usize::from(get16(self.raw, NODE_BYTES - 2 * (i + 1)))
    }

    /// Returns a record, with its key.
    pub fn record(&self, i: usize) -> &'a [u8] {
        self.raw.get(self.offset(i)..self.offset(i + 1)).unwrap_or(&[])
    }

    /// Returns a record's key, length byte included.
    pub fn key(&self, i: usize) -> &'a [u8] {
        let record = self.record(i);
        record.get(..=usize::from(get8(record, 0))).unwrap_or(record)
    }

    /// Returns the bytes after a record's key.
    pub fn value(&self, i: usize) -> &'a [u8] {
        let record = self.record(i);
        record.get(key_space(usize::from(get8(record, 0)))..).unwrap_or(&[])
    }

    /// Returns the offset in the node of a record's value.
    pub fn value_offset(&self, i: usize) -> usize {
        let start = self.offset(i);
        start + key_space(usize::from(get8(self.raw, start)))
    }

    /// Returns the node that an index record points to.
    pub fn child(&self, i: usize) -> u32 {
        get32(self.value(i), 0)
    }

    /// Returns the bytes that records and their offsets use.
    pub fn used(&self) -> usize {
        self.offset(self.count()).saturating_sub(RECORDS_OFFSET) + 2 * self.count()
    }

    /// Returns the index of the record with this key, or its insertion point.
    pub fn search(&self, kind: TreeKind, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match kind.compare(self.key(middle), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

/// Returns the bytes of a key with its length byte and its padding to an even length.
pub(crate) fn key_space(key_len: usize) -> usize {
    (key_len + 2) & !1
}

/// A copy of a node, to be changed. Its records are sorted and lie within it at all times.
#[derive(Debug, Clone)]
pub(crate) struct NodeBuf {
    pub raw: [u8; NODE_BYTES],
}

impl NodeBuf {
    /// Makes an empty node.
    pub fn empty(kind: NodeKind, height: u8) -> Self {
        let mut raw = [0; NODE_BYTES];
        NodeDescriptor { next: 0, prev: 0, kind, height, records: 0 }.encode_into(&mut raw);
        put16(&mut raw, NODE_BYTES - 2, RECORDS_OFFSET as u16);
        Self { raw }
    }

    /// Copies a node from a checked view.
    pub fn of(view: &View<'_>) -> Self {
        Self { raw: view.raw.first_chunk().copied().unwrap_or([0; NODE_BYTES]) }
    }

    pub fn view(&self) -> View<'_> {
        let head = NodeDescriptor::parse(&self.raw).unwrap_or(NodeDescriptor {
            next: 0,
            prev: 0,
            kind: NodeKind::Leaf,
            height: 0,
            records: 0,
        });
        View { raw: &self.raw, head }
    }

    pub fn count(&self) -> usize {
        self.view().count()
    }

    pub fn next(&self) -> u32 {
        get32(&self.raw, 0)
    }

    pub fn prev(&self) -> u32 {
        get32(&self.raw, 4)
    }

    pub fn set_next(&mut self, node: u32) {
        put32(&mut self.raw, 0, node);
    }

    pub fn set_prev(&mut self, node: u32) {
        put32(&mut self.raw, 4, node);
    }

    /// Returns true if a record of `len` bytes fits.
    pub fn fits(&self, len: usize) -> bool {
        self.view().used() + len + 2 <= CAPACITY
    }

    /// Inserts a record before record `i`. The caller has made sure that it fits.
    pub fn insert(&mut self, i: usize, record: &[u8]) {
        let n = self.count();
        let (start, end) = (self.view().offset(i), self.view().offset(n));
        debug_assert!(i <= n && self.fits(record.len()));
        self.raw.copy_within(start..end, start + record.len());
        put(&mut self.raw, start, record);
        for k in (i..=n).rev() {
            let moved = self.view().offset(k) + record.len();
            self.set_offset(k + 1, moved);
        }
        self.set_count(n + 1);
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u8]) {
        self.insert(self.count(), record);
    }

    /// Removes a record. Free bytes become zero.
    pub fn remove(&mut self, i: usize) {
        let n = self.count();
        let (start, after, end) =
            (self.view().offset(i), self.view().offset(i + 1), self.view().offset(n));
        debug_assert!(i < n);
        self.raw.copy_within(after..end, start);
        let new_end = end - (after - start);
        if let Some(freed) = self.raw.get_mut(new_end..end) {
            freed.fill(0);
        }
        for k in i + 1..n {
            let moved = self.view().offset(k + 1) - (after - start);
            self.set_offset(k, moved);
        }
        self.set_offset_raw(n, 0);
        self.set_count(n - 1);
        self.set_offset(n - 1, new_end);
    }

    /// Overwrites bytes of a record's value.
    pub fn set_value(&mut self, i: usize, value: &[u8]) {
        let at = self.view().value_offset(i);
        put(&mut self.raw, at, value);
    }

    /// Points an index record to another node.
    pub fn set_child(&mut self, i: usize, node: u32) {
        self.set_value(i, &node.to_be_bytes());
    }

    /// Replaces the key of an index record by one of the same length.
    pub fn set_index_key(&mut self, i: usize, index_key: &[u8]) {
        let at = self.view().offset(i);
        put(&mut self.raw, at, index_key);
    }

    fn set_count(&mut self, n: usize) {
        put16(&mut self.raw, 10, u16::try_from(n).unwrap_or(0));
    }

    fn set_offset(&mut self, i: usize, offset: usize) {
        self.set_offset_raw(i, u16::try_from(offset).unwrap_or(0));
    }

    fn set_offset_raw(&mut self, i: usize, offset: u16) {
        put16(&mut self.raw, NODE_BYTES - 2 * (i + 1), offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn record(block: u16) -> Vec<u8> {
        let key = crate::layout::ExtentKey { file_id: 20, fork: Default::default(), block };
        let mut record = key.encode().to_vec();
        record.extend([1; 12]);
        record
    }

    proptest! {
        /// A node is a sorted list that leaves no traces of removed records.
        #[test]
        fn behaves_as_a_list(steps in proptest::collection::vec((any::<bool>(), 0..64_u16), 1..200)) {
            let mut node = NodeBuf::empty(NodeKind::Leaf, 1);
            let mut model: Vec<u16> = Vec::new();
            for (add, block) in steps {
                let key = &record(block)[..8];
                let found = node.view().search(TreeKind::Extents, key);
                prop_assert_eq!(found, model.binary_search(&block));
                match (add, found) {
                    (true, Err(at)) if node.fits(20) => {
                        node.insert(at, &record(block));
                        model.insert(at, block);
                    }
                    (false, Ok(at)) => {
                        node.remove(at);
                        model.remove(at);
                    }
                    _ => {}
                }
                let view = View::parse(TreeKind::Extents, &node.raw).map_err(TestCaseError::fail)?;
                prop_assert_eq!(view.count(), model.len());
                prop_assert_eq!(view.used(), 22 * model.len());
                let free = &node.raw[RECORDS_OFFSET + 20 * model.len()..NODE_BYTES - 2 * (model.len() + 1)];
                prop_assert!(free.iter().all(|&b| b == 0));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), NODE_BYTES)) {
            for kind in [TreeKind::Catalog, TreeKind::Extents] {
                if let Ok(view) = View::parse(kind, &raw) {
                    for i in 0..view.count() {
                        let _ = (view.key(i), view.value(i), view.child(i));
                    }
                }
            }
        }
    }
}
