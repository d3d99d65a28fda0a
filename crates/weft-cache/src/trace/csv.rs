//! Traces as lines of text with columns, numbered from 1 as libCacheSim's csv reader does.
//!
//! By default there is one block number a line, as in libCacheSim's plain text traces and the LIRS
//! traces. Blank lines, and those that begin with `#` or `*`, are skipped.

use super::{Lines, Request, TraceError, malformed};
use std::io::BufRead;
use std::str::FromStr;

/// The meaning of the columns. Written like libCacheSim's trace type parameters:
/// `time-col=1,obj-id-col=2,obj-size-col=3,has-header=true,delimiter=;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The block (`obj-id-col`), counting from 1.
    pub block: usize,
    /// The time (`time-col`), in seconds, if there is one. Fractions are dropped.
    pub time: Option<usize>,
    /// The size (`obj-size-col`), in bytes, if there is one.
    pub size: Option<usize>,
    /// Separator of the columns (`delimiter`). `tab`, `space` and `comma` can be written as words;
    /// spaces around values are dropped in any case.
    pub delimiter: char,
    /// Whether the first line names the columns (`has-header`).
    pub has_header: bool,
    /// Whether blocks are numbers (`obj-id-is-num`), and not names, which are hashed.
    pub numeric: bool,
}

impl Default for Columns {
    fn default() -> Columns {
        Columns {
            block: 1,
            time: None,
            size: None,
            delimiter: ',',
            has_header: false,
            numeric: true,
        }
    }
}

impl FromStr for Columns {
    type Err = TraceError;

    fn from_str(s: &str) -> Result<Columns, TraceError> {
        let unknown = || TraceError::UnknownFormat(format!("csv:{s}"));
        let mut columns = Columns::default();
        let mut rest = s;
        while !rest.is_empty() {
            let (name, value) = rest.split_once('=').ok_or_else(unknown)?;
            // The delimiter itself may be a comma.
            let end = value.char_indices().skip(1).find(|&(_, c)| c == ',').map(|(at, _)| at);
            let (value, after) = match end {
                Some(end) => (&value[..end], &value[end + 1..]),
                None => (value, ""),
            };
            let column = || value.trim().parse().ok().filter(|&n| n >= 1).ok_or_else(unknown);
            let flag = || match value.trim() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(unknown()),
            };
            match name.trim() {
                "obj-id-col" => columns.block = column()?,
                "time-col" => columns.time = Some(column()?),
                "obj-size-col" => columns.size = Some(column()?),
                "has-header" => columns.has_header = flag()?,
                "obj-id-is-num" => columns.numeric = flag()?,
                "delimiter" => {
                    let mut chars = value.chars();
                    columns.delimiter = match (value, chars.next(), chars.next()) {
                        ("tab" | "\\t", ..) => '\t',
                        ("space", ..) => ' ',
                        ("comma", ..) => ',',
                        (_, Some(c), None) => c,
                        _ => return Err(unknown()),
                    };
                }
                _ => return Err(unknown()),
            }
            rest = after;
        }
        Ok(columns)
    }
}

/// Reads a trace of lines with columns.
pub struct Reader<R> {
    lines: Lines<R>,
    columns: Columns,
    ended: bool,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader of lines with these columns.
    pub fn new(input: R, columns: Columns) -> Reader<R> {
        Reader { lines: Lines::new(input), columns, ended: false }
    }

    fn read(&mut self) -> Option<Result<Request, TraceError>> {
        loop {
            let (line, number) = match self.lines.next()? {
                Ok(line) => line,
                Err(e) => return Some(Err(e)),
            };
            let skipped = line.trim().is_empty() || line.starts_with(['#', '*']);
            if skipped || (number == 1 && self.columns.has_header) {
                continue;
            }
            return Some(match parse(line, &self.columns) {
                Ok(request) => Ok(request),
                Err(problem) => malformed(number, problem),
            });
        }
    }
}

fn parse(line: &str, columns: &Columns) -> Result<Request, String> {
    let value = |column: usize| {
        let value = line.split(columns.delimiter).nth(column - 1).map(str::trim);
        value.ok_or_else(|| format!("there is no column {column}"))
    };
    let block = value(columns.block)?;
    let block = if columns.numeric {
        block.parse().map_err(|_| format!("{block:?} is no block number"))?
    } else {
        // FNV-1a, then mixed: the same in every run.
        let fnv = block.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        weft_block::mix(fnv)
    };
    let time_s = match columns.time {
        None => 0,
        Some(column) => {
            let time = value(column)?;
            let seconds = time.split('.').next().and_then(|whole| whole.parse::<u64>().ok());
            let seconds = seconds.ok_or_else(|| format!("{time:?} is no time in seconds"))?;
            u32::try_from(seconds).unwrap_or(u32::MAX)
        }
    };
    let len_bytes = match columns.size {
        None => 0,
        Some(column) => {
            let size = value(column)?;
            size.parse().map_err(|_| format!("{size:?} is no size in bytes"))?
        }
    };
    Ok(Request { time_s, block, len_bytes, next: None })
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

    fn read(text: &str, columns: &str) -> Vec<Result<Request, TraceError>> {
        Reader::new(text.as_bytes(), columns.parse().unwrap()).collect()
    }

    #[test]
    fn columns_are_found_as_libcachesim_numbers_them() {
        let text = "when,what,size\n1.5, 70 ,512\r\n\n# no request\n2,80,1024";
        let columns = "time-col=1,obj-id-col=2,obj-size-col=3,delimiter=,,has-header=true";
        let requests: Vec<Request> = read(text, columns).into_iter().map(Result::unwrap).collect();
        let request = |time_s, block, len_bytes| Request { time_s, block, len_bytes, next: None };
        assert_eq!(requests, [request(1, 70, 512), request(2, 80, 1024)]);
        let spaced = read("9 8 7", "delimiter=space,obj-id-col=3");
        assert_eq!(spaced[0].as_ref().unwrap().block, 7);
    }

    #[test]
    fn names_are_blocks_too() {
        let requests = read("a\nb\na", "obj-id-is-num=false");
        let blocks: Vec<u64> = requests.into_iter().map(|r| r.unwrap().block).collect();
        assert!(blocks[0] == blocks[2] && blocks[0] != blocks[1]);
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_and_ends_the_trace() {
        for (text, columns, problem) in [
            ("1\nx\n2", "", "request 2 of the trace: \"x\" is no block number"),
            ("1", "obj-id-col=2", "request 1 of the trace: there is no column 2"),
            ("1,-3", "obj-size-col=2", "request 1 of the trace: \"-3\" is no size in bytes"),
            ("1,now", "time-col=2", "request 1 of the trace: \"now\" is no time in seconds"),
        ] {
            let requests = read(text, columns);
            let last = requests.last().unwrap().as_ref().unwrap_err().to_string();
            assert_eq!(last, problem);
            assert!(requests[..requests.len() - 1].iter().all(Result::is_ok));
        }
    }

    #[test]
    fn wrong_columns_are_refused() {
        for columns in ["obj-id-col", "obj-id-col=0", "colour=1", "delimiter=::", "has-header=yes"]
        {
            assert!(columns.parse::<Columns>().is_err(), "{columns}");
        }
    }
}
