//! libCacheSim's oracleGeneral format: records of 24 bytes, little-endian, without a header.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | time in seconds, u32 |
//! | 4..12 | object (here: block), u64 |
//! | 12..16 | its size in bytes, u32 |
//! | 16..24 | number of the next request for it, counting from 1, i64; -1 or the largest: none |
//!
//! Source: `libCacheSim/traceReader/customizedReader/oracle/oracleGeneralBin.h` of the public
//! libCacheSim repository.

use super::{Request, TraceError, malformed};
use hashbrown::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;

/// The length of a record, in bytes.
pub const RECORD_BYTES: usize = 24;

/// Encodes a request as a record.
pub fn encode(request: &Request) -> [u8; RECORD_BYTES] {
    let next = request.next.and_then(|next| i64::try_from(next).ok()).unwrap_or(-1);
    let mut record = [0; RECORD_BYTES];
    record[0..4].copy_from_slice(&request.time_s.to_le_bytes());
    record[4..12].copy_from_slice(&request.block.to_le_bytes());
    record[12..16].copy_from_slice(&request.len_bytes.to_le_bytes());
    record[16..24].copy_from_slice(&next.to_le_bytes());
    record
}

/// Decodes a record.
pub fn decode(record: &[u8; RECORD_BYTES]) -> Request {
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| record[at + i]));
    let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| record[at + i]));
    let next = i64::from_le_bytes(u64_at(16).to_le_bytes());
    Request {
        time_s: u32_at(0),
        block: u64_at(4),
        len_bytes: u32_at(12),
        next: u64::try_from(next).ok().filter(|&next| next != i64::MAX as u64),
    }
}

/// Reads a trace of records.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    number: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader whose input is at the start of a record.
    pub fn new(input: R) -> Reader<R> {
        Reader { input, number: 0, ended: false }
    }

    fn read(&mut self) -> Option<Result<Request, TraceError>> {
        self.number += 1;
        match self.input.fill_buf() {
            Ok([]) => return None,
            Ok(_) => {}
            Err(e) => return Some(Err(e.into())),
        }
        let mut record = [0; RECORD_BYTES];
        match self.input.read_exact(&mut record) {
            Ok(()) => Some(Ok(decode(&record))),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Some(malformed(self.number, "the file ends within the record"))
            }
            Err(e) => Some(Err(e.into())),
        }
    }
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

/// Writes requests in order. Their next uses are not known yet: [`fill_in_next`] adds them.
///
/// # Errors
/// Those of the output.
pub fn write(
    output: &mut impl Write,
    requests: impl IntoIterator<Item = Request>,
) -> io::Result<()> {
    requests.into_iter().try_for_each(|request| output.write_all(&encode(&request)))
}

/// Sets the number of the next use in each record of a file, in a pass from the end to the start,
/// which needs about 30 bytes of memory for each different block. A partial record at the end, as
/// left by a killed writer, is cut off.
///
/// # Errors
/// Those of the file, which must be open for reading and writing.
pub fn fill_in_next(file: &File) -> io::Result<()> {
    const CHUNK_RECORDS: u64 = 1 << 14;
    let records = file.metadata()?.len() / RECORD_BYTES as u64;
    file.set_len(records * RECORD_BYTES as u64)?;
    let mut last_seen: HashMap<u64, u64> = HashMap::new();
    let mut chunk = Vec::new();
    let mut end = records;
    while end > 0 {
        let start = end.saturating_sub(CHUNK_RECORDS);
        chunk.resize((end - start) as usize * RECORD_BYTES, 0);
        file.read_exact_at(&mut chunk, start * RECORD_BYTES as u64)?;
        let mut number = end;
        for record in chunk.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().rev() {
            let mut request = decode(record);
            request.next = last_seen.insert(request.block, number);
            *record = encode(&request);
            number -= 1;
        }
        file.write_all_at(&chunk, start * RECORD_BYTES as u64)?;
        end = start;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    fn request(block: u64) -> Request {
        Request { time_s: 1, block, len_bytes: 4096, next: None }
    }

    #[test]
    fn a_record_is_laid_out_as_libcachesim_reads_it() {
        let request = Request {
            time_s: 0x0403_0201,
            block: 0x0c0b_0a09_0807_0605,
            len_bytes: 4096,
            next: Some(7),
        };
        let record = encode(&request);
        assert_eq!(record[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(record[12..], [0, 16, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode(&record), request);
        for none in [-1, i64::MAX] {
            let mut record = record;
            record[16..].copy_from_slice(&none.to_le_bytes());
            assert_eq!(decode(&record).next, None);
        }
    }

    #[test]
    fn a_cut_record_is_an_error_and_the_end() {
        let bytes = [encode(&request(1)).to_vec(), vec![0; 23]].concat();
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(reader.next().unwrap().unwrap(), request(1));
        assert!(matches!(reader.next(), Some(Err(TraceError::Malformed { number: 2, .. }))));
        assert!(reader.next().is_none());
    }

    #[test]
    fn the_second_pass_fills_in_the_next_use() {
        let blocks: Vec<u64> = (0..40_000_u64).map(|i| weft_block::mix(i) % 1_000).collect();
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, blocks.iter().copied().map(request)).unwrap();
        file.write_all(&[1, 2, 3]).unwrap();
        fill_in_next(&file).unwrap();
        file.rewind().unwrap();
        let read: Vec<Request> =
            Reader::new(io::BufReader::new(file)).map(Result::unwrap).collect();
        assert_eq!(read.len(), blocks.len());
        for (at, request) in read.iter().enumerate() {
            assert_eq!(request.block, blocks[at]);
            let next = blocks[at + 1..].iter().position(|&block| block == request.block);
            assert_eq!(request.next, next.map(|next| (at + 1 + next + 1) as u64));
        }
    }
}
