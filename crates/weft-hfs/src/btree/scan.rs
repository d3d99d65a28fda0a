//! Walking records in order of their keys.
//!
//! The scan follows the index, not the links of the leaves: so it continues after a node that
//! cannot be read.

use super::node::NodeBuf;
use super::tree::Tree;
use crate::store::Store;
use crate::{Error, Result};
use core::cmp::Ordering;
use smallvec::SmallVec;

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Calls `each` with key and value of the records from `from` on, until it returns `false`.
    ///
    /// # Errors
    /// The first error that is met, and those of `each`.
    pub(crate) fn scan<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.scan_past(s, from, Err, each)
    }

    /// As [`scan`](Self::scan), but calls `damaged` for each node that cannot be read, and
    /// continues after that node if `damaged` returns `Ok`. The scan ends even if the index has
    /// cycles: no node counts twice.
    pub(crate) fn scan_past<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        from: &[u8],
        mut damaged: impl FnMut(Error) -> Result<()>,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        if self.header.depth == 0 {
            return Ok(());
        }
        // The index nodes on the path from the root, each with its next entry.
        let mut way: SmallVec<[(NodeBuf, usize); 4]> = SmallVec::new();
        let mut last: SmallVec<[u8; 64]> = SmallVec::new();
        let (mut node, mut height) = (self.header.root, self.header.depth);
        let mut budget = self.header.nodes;
        loop {
            let read = match budget.checked_sub(1) {
                Some(left) => {
                    budget = left;
                    self.load(s, node, height)
                }
                None => return damaged(self.damaged(node, "two index records point to one node")),
            };
            match read {
                Ok(buf) if height > 1 => {
                    let at = match buf.view().search(self.kind, from) {
                        Ok(at) => at,
                        // A key before the first entry belongs to the first entry, too.
                        Err(at) => at.saturating_sub(1),
                    };
                    way.push((buf, at));
                }
                Ok(buf) => {
                    let view = buf.view();
                    let (Ok(first) | Err(first)) = view.search(self.kind, from);
                    for i in first..view.count() {
                        let key = view.key(i);
                        if !last.is_empty() && self.kind.compare(&last, key) != Ordering::Less {
                            damaged(self.damaged(node, "keys out of order"))?;
                            break;
                        }
                        if !each(key, view.value(i))? {
                            return Ok(());
                        }
                        last.clear();
                        last.extend_from_slice(key);
                    }
                }
                Err(Error::NotInMemory) => return Err(Error::NotInMemory),
                Err(e) => damaged(e)?,
            }
            // The next entry of the nearest index node that has one.
            loop {
                let Some((buf, next)) = way.last_mut() else { return Ok(()) };
                if *next < buf.count() {
                    node = buf.view().child(*next);
                    *next += 1;
                    let below = u16::try_from(way.len()).unwrap_or(u16::MAX);
                    height = self.header.depth.saturating_sub(below);
                    break;
                }
                way.pop();
            }
        }
    }
}
