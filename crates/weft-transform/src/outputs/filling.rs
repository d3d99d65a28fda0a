//! An output that is being added to the cache, in the pieces and in the order in which it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::spans::Spans;

/// Maximum number of disjoint ranges: a client that reads at random does not read the whole output.
const GAPS_MAX: usize = 256;

/// An output that is being added; see the module page. Its file is removed on drop, unless
/// [`keep`](super::OutputCache::keep) was called.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// The ranges written so far.
    there: Spans,
    /// The length of the output, once it is known.
    len_bytes: Option<u64>,
    /// Maximum length of an output that is kept, in bytes.
    max_bytes: u64,
    /// The end was reported.
    over: bool,
}

/// The outcome of adding an output to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The output is complete, with this many bytes.
    Whole(u64),
    /// The output exceeds the maximum length.
    TooLong,
    /// The output could not be written, or was read in too many disjoint ranges: a later attempt
    /// may succeed.
    Failed,
}

impl Filling {
    pub(super) fn new(file: File, path: PathBuf, max_bytes: u64) -> Self {
        Self { file, path, there: Spans::default(), len_bytes: None, max_bytes, over: false }
    }

    /// Sets the length of the output. Returns the outcome, if this ends the output.
    pub(crate) fn ends_at(&mut self, len_bytes: u64) -> Option<End> {
        self.len_bytes = Some(len_bytes);
        if len_bytes > self.max_bytes { self.end(End::TooLong) } else { None }
    }

    /// Returns true if all of a range was written.
    pub(crate) fn has(&self, from: u64, upto: u64) -> bool {
        self.there.has(from, upto)
    }

    /// Takes a piece of the output, which ends the output if `last`. Returns the outcome, if this
    /// piece ends the output: it is returned once, and nothing is taken afterwards.
    pub(crate) fn take(&mut self, offset: u64, data: &[u8], last: bool) -> Option<End> {
        if self.over {
            return None;
        }
        let end = offset.saturating_add(data.len() as u64);
        if last {
            self.len_bytes = Some(end.min(self.len_bytes.unwrap_or(end)));
        }
        if end > self.max_bytes {
            return self.end(End::TooLong);
        }
        if !self.has(offset, end) {
            if let Err(e) = self.write(offset, data) {
                tracing::warn!("an output is not kept: {}: {e}", self.path.display());
                return self.end(End::Failed);
            }
            self.there.add(offset, end);
        }
        match self.len_bytes {
            Some(len) if len == 0 || self.has(0, len) => self.end(End::Whole(len)),
            _ if self.there.count() > GAPS_MAX => self.end(End::Failed),
            _ => None,
        }
    }

    /// Ends the output, unless it has ended before.
    fn end(&mut self, end: End) -> Option<End> {
        (!std::mem::replace(&mut self.over, true)).then_some(end)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // An output that was kept has been renamed by now.
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
        assert!(filling.has(0, 30) && filling.has(60, 100) && !filling.has(30, 60));
        assert_eq!(filling.take(100, b"", true), None);
        assert_eq!(filling.take(30, &data[30..60], false), Some(End::Whole(100)));
        assert_eq!(filling.take(30, &data[30..60], false), None, "told once");
        assert_eq!(std::fs::read(&path).expect("there"), data);
        drop(filling);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_too_long_comes_to_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        let mut filling = Filling::new(File::create(&path).expect("a file"), path.clone(), 10);
        assert_eq!(filling.take(0, &[0; 11], true), Some(End::TooLong));
        assert_eq!(filling.take(0, &[0; 5], true), None);
        let mut filling = Filling::new(File::create(&path).expect("a file"), path, 10);
        assert_eq!(filling.ends_at(10), None);
        assert_eq!(filling.ends_at(11), Some(End::TooLong));
    }

    #[test]
    fn what_cannot_be_written_and_what_has_too_many_gaps_fails() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        File::create(&path).expect("a file");
        let read_only = File::open(&path).expect("a file");
        let mut filling = Filling::new(read_only, path.clone(), 10);
        assert_eq!(filling.take(0, &[0; 5], false), Some(End::Failed));
        assert_eq!(filling.take(0, &[0; 5], true), None, "told once");
        let file = File::create(&path).expect("a file");
        let mut filling = Filling::new(file, path, 10_000);
        for nr in 0..GAPS_MAX as u64 {
            assert_eq!(filling.take(2 * nr, &[0], false), None);
        }
        assert_eq!(filling.take(5000, &[0], false), Some(End::Failed));
    }
}
