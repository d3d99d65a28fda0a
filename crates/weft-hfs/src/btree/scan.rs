//! Walking records in order of their keys.

use super::Tree;
use crate::Result;
use crate::store::Store;
use core::cmp::Ordering;
use smallvec::SmallVec;

impl<P: Copy + PartialEq + core::fmt::Debug> Tree<P> {
    /// Calls `each` with key and value of the records from `from` on, until it returns `false`.
    /// Keys rise at every step; so it ends, whatever the links say.
    pub(crate) fn scan<S: Store<Patch = P>>(
        &self,
        s: &mut S,
        from: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let path = self.find(s, from)?;
        let Some(step) = path.leaf() else { return Ok(()) };
        let (mut node, mut index) = (step.node, step.index);
        let mut last: SmallVec<[u8; 64]> = SmallVec::new();
        loop {
            let buf = self.load(s, node, 1)?;
            let view = buf.view();
            for i in index..view.count() {
                let key = view.key(i);
                if !last.is_empty() && self.kind.compare(&last, key) != Ordering::Less {
                    return Err(self.damaged(node, "its keys are out of order"));
                }
                if !each(key, view.value(i))? {
                    return Ok(());
                }
                last.clear();
                last.extend_from_slice(key);
            }
            node = buf.next();
            index = 0;
            if node == 0 {
                return Ok(());
            }
        }
    }
}
