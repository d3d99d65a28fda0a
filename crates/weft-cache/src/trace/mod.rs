//! Block traces: the blocks that were used, in order.
//!
//! | format | file | content |
//! |---|---|---|
//! | [`oracle`] | `.oracleGeneral`, also `.zst` | libCacheSim's binary records, with the next use of each block |
//! | [`csv`] | `.csv`, `.txt` | a request a line, columns as libCacheSim numbers them |
//! | [`arc`] | `.lis` | the traces published with ARC (FAST 2003): ranges of 512-byte blocks |
//! | [`synthetic`] | | generated from a seed |
//!
//! All are read as streams, in bounded memory. [`TraceRecorder`] writes the requests of a device as
//! oracleGeneral.

pub mod arc;
pub mod csv;
pub mod oracle;
mod record;
pub mod synthetic;

pub use record::{TraceDevice, TraceRecorder};

use crate::policy::BlockKey;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::str::FromStr;

/// One use of a block (in libCacheSim's terms, a request for an object).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time in seconds, from the trace's own origin.
    pub time_s: u32,
    /// Number of the block, or another value that identifies it.
    pub block: u64,
    /// Length in bytes; 0 if the trace does not have it.
    pub len_bytes: u32,
    /// Number of the next request for this block, counting from 1; `None` if there is none, or the
    /// trace does not have it.
    pub next: Option<u64>,
}

impl Request {
    /// Returns the block's key for policies.
    pub fn key(&self) -> BlockKey {
        BlockKey(self.block)
    }
}

/// An error of reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("the trace cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line or record violates the format.
    #[error("request {number} of the trace: {problem}")]
    Malformed {
        /// Number of the line or record, counting from 1.
        number: u64,
        /// A description of the violation.
        problem: String,
    },
    /// An unknown format name.
    #[error("{0:?} is no format of a trace: oracleGeneral, csv:COLUMNS and arc are")]
    UnknownFormat(String),
}

/// The format of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// libCacheSim's oracleGeneral: `oracleGeneral`.
    OracleGeneral,
    /// Lines of columns: `csv:time-col=1,obj-id-col=2,obj-size-col=3` and so on.
    Csv(csv::Columns),
    /// ARC's `.lis`: `arc`.
    Arc,
}

impl Format {
    /// Guesses the format from a file's name, without regard to a final `.zst`. A csv file is taken
    /// to have one block number a line.
    pub fn of_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let name = name.strip_suffix(".zst").unwrap_or(&name);
        if name.contains("oraclegeneral") {
            return Some(Format::OracleGeneral);
        }
        match name.rsplit_once('.')?.1 {
            "lis" => Some(Format::Arc),
            "csv" | "txt" => Some(Format::Csv(csv::Columns::default())),
            _ => None,
        }
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(s: &str) -> Result<Format, TraceError> {
        match s {
            "oracleGeneral" => Ok(Format::OracleGeneral),
            "arc" | "lis" => Ok(Format::Arc),
            "csv" => Ok(Format::Csv(csv::Columns::default())),
            _ => match s.strip_prefix("csv:") {
                Some(columns) => Ok(Format::Csv(columns.parse()?)),
                None => Err(TraceError::UnknownFormat(s.to_owned())),
            },
        }
    }
}

/// A stream of requests. It ends after an error.
pub type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>> + Send>;

/// Opens a trace file; one that begins with zstd's magic number is decompressed.
///
/// # Errors
/// If the file cannot be opened. Errors in its content are returned by the iterator.
pub fn open(path: &Path, format: &Format) -> Result<Requests, TraceError> {
    read(BufReader::with_capacity(1 << 18, File::open(path)?), format)
}

/// Reads a trace from bytes; see [`open`].
///
/// # Errors
/// Those of reading the first bytes.
pub fn read(
    mut input: impl BufRead + Send + 'static,
    format: &Format,
) -> Result<Requests, TraceError> {
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    if input.fill_buf()?.starts_with(&ZSTD_MAGIC) {
        let frames = ZstdFrames { input: Some(input), decoder: None };
        return Ok(requests(BufReader::with_capacity(1 << 18, frames), format));
    }
    Ok(requests(input, format))
}

fn requests(input: impl BufRead + Send + 'static, format: &Format) -> Requests {
    match format {
        Format::OracleGeneral => Box::new(oracle::Reader::new(input)),
        Format::Csv(columns) => Box::new(csv::Reader::new(input, columns.clone())),
        Format::Arc => Box::new(arc::Reader::new(input)),
    }
}

type Decoder<R> = ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// The concatenated content of zstd frames.
struct ZstdFrames<R: BufRead> {
    input: Option<R>,
    decoder: Option<Decoder<R>>,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let n = decoder.read(buf)?;
                if n > 0 || buf.is_empty() {
                    return Ok(n);
                }
                self.input = self.decoder.take().map(Decoder::into_inner);
            }
            let Some(mut input) = self.input.take() else {
                return Ok(0);
            };
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.decoder = Some(Decoder::new(input).map_err(io::Error::other)?);
        }
    }
}

/// The numbered lines of a text, each at most [`LINE_BYTES_MAX`] long.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

/// Maximum length of a line of a trace, in bytes.
pub const LINE_BYTES_MAX: u64 = 4096;

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Lines<R> {
        Lines { input, line: Vec::new(), number: 0 }
    }

    /// Returns the next line without its end, and its number.
    fn next(&mut self) -> Option<Result<(&str, u64), TraceError>> {
        self.line.clear();
        self.number += 1;
        let number = self.number;
        let mut limited = Read::take(&mut self.input, LINE_BYTES_MAX + 1);
        match limited.read_until(b'\n', &mut self.line) {
            Err(e) => return Some(Err(e.into())),
            Ok(0) => return None,
            Ok(_) => {}
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() as u64 > LINE_BYTES_MAX {
            return Some(malformed(number, format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Some(Ok((line.trim_end_matches('\r'), number))),
            Err(_) => Some(malformed(number, "not text")),
        }
    }
}

fn malformed<T>(number: u64, problem: impl Into<String>) -> Result<T, TraceError> {
    Err(TraceError::Malformed { number, problem: problem.into() })
}

/// Cuts requests for byte ranges into requests for blocks of a cache, as needed for a trace of a
/// disk whose block numbers are addresses. `address_bytes` is the unit of the addresses (512 for
/// sectors, 1 for bytes), `block_bytes` that of the cache. A request without a length is for one
/// block.
pub fn cut(requests: Requests, address_bytes: u32, block_bytes: u32) -> Requests {
    /// More than any disk request; the rest of a longer one is left out.
    const BLOCKS_MAX: u64 = 1 << 16;
    let block_bytes = u64::from(block_bytes.max(1));
    let pieces = requests.flat_map(move |request| {
        let (first, count, request) = match request {
            Err(e) => return CutPieces { error: Some(e), ..CutPieces::default() },
            Ok(request) => {
                let start = u128::from(request.block) * u128::from(address_bytes);
                let end = start + u128::from(request.len_bytes.max(1));
                let first = start / u128::from(block_bytes);
                let count = (end.div_ceil(u128::from(block_bytes)) - first) as u64;
                // An address beyond 2^64 blocks wraps; it is beyond any disk.
                (first as u64, count.min(BLOCKS_MAX), request)
            }
        };
        let len_bytes = block_bytes as u32;
        CutPieces {
            error: None,
            request: Some(Request { len_bytes, next: None, ..request }),
            first,
            count,
        }
    });
    Box::new(pieces)
}

/// The blocks of one request.
#[derive(Default)]
struct CutPieces {
    error: Option<TraceError>,
    request: Option<Request>,
    first: u64,
    count: u64,
}

impl Iterator for CutPieces {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(e) = self.error.take() {
            return Some(Err(e));
        }
        let request = self.request?;
        self.count = self.count.checked_sub(1)?;
        let block = self.first;
        self.first = self.first.wrapping_add(1);
        Some(Ok(Request { block, ..request }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_from_names() {
        let of = |name: &str| Format::of_path(Path::new(name));
        assert_eq!(of("w92.oracleGeneral.bin.zst"), Some(Format::OracleGeneral));
        assert_eq!(of("a/P1.lis"), Some(Format::Arc));
        assert_eq!(of("x.csv"), Some(Format::Csv(csv::Columns::default())));
        assert_eq!(of("x.trace"), None);
        assert!(matches!("csv:obj-id-col=3".parse(), Ok(Format::Csv(_))));
        assert!("tar".parse::<Format>().is_err());
    }

    #[test]
    fn compressed_traces_are_read_frame_by_frame() {
        // "1 2 0 0\n" and "7 1 0 1\n", each a frame of one raw block (RFC 8878).
        let frame = |text: &[u8; 8]| {
            let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, 8, 0x41, 0, 0];
            bytes.extend_from_slice(text);
            bytes
        };
        let bytes = [frame(b"1 2 0 0\n"), frame(b"7 1 0 1\n")].concat();
        let blocks: Vec<u64> = read(io::Cursor::new(bytes), &Format::Arc)
            .unwrap()
            .map(|request| request.unwrap().block)
            .collect();
        assert_eq!(blocks, [1, 2, 7]);
    }

    #[test]
    fn damaged_compression_is_an_error() {
        let bytes = [0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 1, 2, 3];
        let mut requests = read(io::Cursor::new(bytes), &Format::OracleGeneral).unwrap();
        assert!(matches!(requests.next(), Some(Err(TraceError::Io(_)))));
        assert!(requests.next().is_none());
    }

    #[test]
    fn a_line_without_end_is_refused_early() {
        let endless = io::Cursor::new(vec![b'1'; 1 << 20]);
        let mut requests = read(endless, &Format::Arc).unwrap();
        assert!(matches!(requests.next(), Some(Err(TraceError::Malformed { number: 1, .. }))));
        assert!(requests.next().is_none());
    }

    #[test]
    fn ranges_are_cut_into_the_blocks_they_touch() {
        let range = |block, len_bytes| Ok(Request { time_s: 5, block, len_bytes, next: Some(9) });
        let requests: Requests = Box::new([range(7, 1024), range(16, 0)].into_iter());
        let cut: Vec<Request> = cut(requests, 512, 4096).map(Result::unwrap).collect();
        let blocks: Vec<u64> = cut.iter().map(|request| request.block).collect();
        assert_eq!(blocks, [0, 1, 2]);
        assert!(cut.iter().all(|r| r.len_bytes == 4096 && r.next.is_none() && r.time_s == 5));
    }
}
