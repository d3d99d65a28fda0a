//! An output on its way into the cache, in the pieces and in the order in which it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Pieces that do not touch each other, at most: who reads here and there reads not all.
const GAPS_MAX: usize = 256;

/// See the module page. Without [`keep`](super::OutputCache::keep) it is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// What is there: begin and end, in order, apart from each other.
    there: Vec<(u64, u64)>,
    /// The length of the output, once it is known.
    len_bytes: Option<u64>,
    /// No output longer than this is kept.
    max_bytes: u64,
    /// It came to nothing, or is done.
    over: bool,
}

impl Filling {
    pub(super) fn new(file: File, path: PathBuf, max_bytes: u64) -> Self {
        Self { file, path, there: Vec::new(), len_bytes: None, max_bytes, over: false }
    }

    /// The output is so long.
    pub(crate) fn ends_at(&mut self, len_bytes: u64) {
        self.len_bytes = Some(len_bytes);
        self.over |= len_bytes > self.max_bytes;
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes a piece of the output, which ends the output if `last`. Its length when all of it is
    /// there: told once.
    pub(crate) fn take(&mut self, offset: u64, data: &[u8], last: bool) -> Option<u64> {
        if self.over {
            return None;
        }
        let end = offset.saturating_add(data.len() as u64);
        if last {
            self.len_bytes = Some(end.min(self.len_bytes.unwrap_or(end)));
        }
        if end > self.max_bytes {
            self.over = true;
            return None;
        }
        if !data.is_empty() && !self.has(offset, end) {
            if let Err(e) = self.write(offset, data) {
                tracing::debug!("an output is not kept: {e}");
                self.over = true;
                return None;
            }
            self.add(offset, end);
        }
        let len = self.len_bytes?;
        let all = len == 0 || self.has(0, len);
        self.over |= all || self.there.len() > GAPS_MAX;
        all.then_some(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn has(&self, from: u64, upto: u64) -> bool {
        let at = self.there.partition_point(|(begin, _)| *begin <= from);
        at.checked_sub(1).is_some_and(|at| self.there[at].1 >= upto)
    }

    fn add(&mut self, mut from: u64, mut upto: u64) {
        let first = self.there.partition_point(|(_, end)| *end < from);
        let behind = self.there.partition_point(|(begin, _)| *begin <= upto);
        if let Some((begin, _)) = self.there.get(first).filter(|_| first < behind) {
            from = from.min(*begin);
            upto = upto.max(self.there[behind - 1].1);
        }
        self.there.splice(first..behind, [(from, upto)]);
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // One that was kept has another name by now.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_whole_in_any_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let mut filling = Filling::new(file.expect("a file"), path.clone(), 1000);
        let data: Vec<u8> = (0..100).collect();
        for (from, upto) in [(60, 80), (0, 10), (20, 30), (10, 20), (5, 25), (79, 100)] {
            assert_eq!(filling.take(from as u64, &data[from..upto], false), None);
        }
        assert_eq!(filling.there, [(0, 30), (60, 100)]);
        assert_eq!(filling.take(100, b"", true), None);
        assert_eq!(filling.take(30, &data[30..60], false), Some(100));
        assert_eq!(filling.take(30, &data[30..60], false), None, "told once");
        assert_eq!(std::fs::read(&path).expect("there"), data);
        drop(filling);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_too_long_comes_to_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        let mut filling = Filling::new(File::create(&path).expect("a file"), path, 10);
        assert_eq!(filling.take(0, &[0; 11], true), None);
        assert_eq!(filling.take(0, &[0; 5], true), None);
    }
}
