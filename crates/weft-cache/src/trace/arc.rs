//! The `.lis` traces published with ARC (N. Megiddo, D. Modha: "ARC: A Self-Tuning, Low Overhead
//! Replacement Cache", FAST 2003): OLTP, P1 to P14, DS1, S1 to S3 and others.
//!
//! A line is four decimal numbers: the first block, the number of blocks, one to ignore, and the
//! number of the request. Blocks are of 512 bytes. Each block of the range counts as a separate
//! use.

use super::{Lines, Request, TraceError, malformed};
use std::io::BufRead;

/// The unit of the traces, in bytes.
pub const BLOCK_BYTES: u32 = 512;

/// Maximum length of a range, in blocks: 512 MiB. A longer one is taken for damage.
pub const COUNT_MAX: u64 = 1 << 20;

/// Reads a trace in ARC's format.
pub struct Reader<R> {
    lines: Lines<R>,
    /// The rest of the range of the current line.
    next: u64,
    left: u64,
    ended: bool,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader whose input is at the start of a line.
    pub fn new(input: R) -> Reader<R> {
        Reader { lines: Lines::new(input), next: 0, left: 0, ended: false }
    }

    fn read(&mut self) -> Option<Result<Request, TraceError>> {
        while self.left == 0 {
            let (line, number) = match self.lines.next()? {
                Ok(line) => line,
                Err(e) => return Some(Err(e)),
            };
            if line.trim().is_empty() {
                continue;
            }
            (self.next, self.left) = match range(line) {
                Ok(range) => range,
                Err(problem) => return Some(malformed(number, problem)),
            };
        }
        let block = self.next;
        self.next += 1;
        self.left -= 1;
        Some(Ok(Request { time_s: 0, block, len_bytes: BLOCK_BYTES, next: None }))
    }
}

/// Returns first block and number of blocks. Checks that the range ends below 2^64.
fn range(line: &str) -> Result<(u64, u64), String> {
    let mut numbers = line
        .split_ascii_whitespace()
        .map(|word| word.parse::<u64>().map_err(|_| format!("{word:?} is no number")));
    let mut number = |what| numbers.next().unwrap_or_else(|| Err(format!("there is no {what}")));
    let start = number("first block")?;
    let count = number("number of blocks")?;
    number("third number, to ignore")?;
    number("number of the request")?;
    if numbers.next().is_some() {
        return Err("there are more than four numbers".to_owned());
    }
    if count > COUNT_MAX || start.checked_add(count).is_none() {
        return Err(format!("a range of {count} blocks from {start} on"));
    }
    Ok((start, count))
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let request = self.read();
        self.ended = !matches!(request, Some(Ok(_)));
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_use_of_each_block() {
        let text = "16 3 0 0\n\n7 0 0 1\n  100 1 0 2";
        let blocks: Vec<u64> = Reader::new(text.as_bytes()).map(|r| r.unwrap().block).collect();
        assert_eq!(blocks, [16, 17, 18, 100]);
    }

    #[test]
    fn wrong_lines_end_the_trace() {
        for line in [
            "1 2 3",
            "1 2 3 4 5",
            "1 -2 3 4",
            "a 2 3 4",
            "1 99999999 0 0",
            "18446744073709551615 2 0 0",
        ] {
            let text = format!("5 1 0 0\n{line}\n6 1 0 0\n");
            let requests: Vec<_> = Reader::new(text.as_bytes()).collect();
            assert_eq!(requests.len(), 2, "{line}");
            assert!(matches!(requests[1], Err(TraceError::Malformed { number: 2, .. })), "{line}");
        }
    }
}
