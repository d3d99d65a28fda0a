//! Disjoint ranges of bytes, in ascending order.

/// A sorted set of disjoint ranges.
#[derive(Debug, Default)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// The number of ranges.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The begin and end of the first range.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.0.first().copied()
    }

    /// Returns true if one of the ranges contains all of `from..upto`.
    pub(crate) fn has(&self, from: u64, upto: u64) -> bool {
        let at = self.0.partition_point(|(begin, _)| *begin <= from);
        at.checked_sub(1).is_some_and(|at| self.0[at].1 >= upto)
    }

    /// Adds a range, merged with those that it touches.
    pub(crate) fn add(&mut self, mut from: u64, mut upto: u64) {
        if from >= upto {
            return;
        }
        let first = self.0.partition_point(|(_, end)| *end < from);
        let behind = self.0.partition_point(|(begin, _)| *begin <= upto);
        if let Some((begin, _)) = self.0.get(first).filter(|_| first < behind) {
            from = from.min(*begin);
            upto = upto.max(self.0[behind - 1].1);
        }
        self.0.splice(first..behind, [(from, upto)]);
    }

    /// Removes all bytes before `end`.
    pub(crate) fn remove_before(&mut self, end: u64) {
        let gone = self.0.partition_point(|(_, upto)| *upto <= end);
        self.0.drain(..gone);
        if let Some((begin, _)) = self.0.first_mut() {
            *begin = end.max(*begin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_one_where_they_touch() {
        let mut spans = Spans::default();
        for (from, upto) in [(60, 80), (0, 10), (20, 30), (10, 20), (5, 25), (79, 100), (50, 50)] {
            spans.add(from, upto);
        }
        assert_eq!(spans.0, [(0, 30), (60, 100)]);
        assert!(spans.has(5, 30) && spans.has(60, 61) && !spans.has(29, 31) && !spans.has(40, 41));
        spans.remove_before(10);
        assert_eq!(spans.0, [(10, 30), (60, 100)]);
        spans.remove_before(40);
        assert_eq!((spans.first(), spans.count()), (Some((60, 100)), 1));
        spans.remove_before(100);
        assert!(spans.is_empty());
    }
}
