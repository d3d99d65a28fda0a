//! Conversion of delimited text (RFC 4180 and its variants in use) to JSON lines: an object for
//! each record, with its fields under the names in the first line.
//!
//! Fields are text, because the table has no type information; `numbers=yes` converts fields to
//! numbers if JSON would write them the same.

use std::sync::Arc;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use crate::parameters::StageInfo;
use crate::{Direction, Error, Result, STEP_BYTES, Shape, Stream, StreamCodec, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "json",
    summary: "shows a table (CSV, TSV) as JSON lines",
    parameters: &[
        ("from", "csv, tsv or semicolon (csv)"),
        ("header", "whether the first record has the names: yes or no, which gives arrays (yes)"),
        ("numbers", "whether numbers are shown as numbers: yes or no (no)"),
        ("max", "the longest record, up to 64M (1M)"),
    ],
    make: |p, _| {
        let delimiter =
            p.choice("from", &[("csv", b','), ("tsv", b'\t'), ("semicolon", b';')], b',')?;
        let answers = &[("yes", true), ("no", false)];
        let header = p.choice("header", answers, true)?;
        let numbers = p.choice("numbers", answers, false)?;
        let record_max = p.bytes("max", 1..=64 << 20, 1 << 20)? as usize;
        Ok(Arc::new(Json { delimiter, header, numbers, record_max }))
    },
}];

/// Maximum number of fields of a record.
const FIELDS_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
struct Json {
    delimiter: u8,
    header: bool,
    numbers: bool,
    record_max: usize,
}

impl Transform for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Stream(self)
    }

    fn invertible(&self) -> bool {
        false
    }
}

impl StreamCodec for Json {
    fn start(&self, direction: Direction) -> Result<Box<dyn Stream>> {
        if direction == Direction::Inverse {
            return Err(crate::model::no_inverse("json"));
        }
        Ok(Box::new(Pass {
            options: *self,
            reader: ReaderBuilder::new().delimiter(self.delimiter).build(),
            names: None,
            bytes: vec![0; self.record_max.min(4096)],
            bytes_used: 0,
            ends: vec![0; 64],
            ends_used: 0,
            input: 0,
            records: 0,
        }))
    }
}

struct Pass {
    options: Json,
    reader: Reader,
    /// The names as JSON, once they were read.
    names: Option<Vec<String>>,
    /// The concatenated fields of the record that is being read, and the end of each.
    bytes: Vec<u8>,
    bytes_used: usize,
    ends: Vec<usize>,
    ends_used: usize,
    input: u64,
    records: u64,
}

impl Pass {
    fn error(&self, what: impl Into<String>) -> Error {
        Error::Input { stage: "json", offset: self.input, what: what.into() }
    }

    /// Consumes input up to the end of a record; returns the bytes consumed, and whether more is to
    /// come.
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, bool)> {
        let (result, read, bytes, ends) = self.reader.read_record(
            input,
            &mut self.bytes[self.bytes_used..],
            &mut self.ends[self.ends_used..],
        );
        self.input += read as u64;
        self.bytes_used += bytes;
        self.ends_used += ends;
        match result {
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::OutputFull if self.bytes.len() >= self.options.record_max => {
                let max = self.options.record_max;
                return Err(self.error(format!("a record of more than {max} bytes")));
            }
            ReadRecordResult::OutputFull => {
                let len = (self.bytes.len() * 2).min(self.options.record_max);
                self.bytes.resize(len.max(self.bytes.len() + 1), 0);
            }
            ReadRecordResult::OutputEndsFull if self.ends.len() >= FIELDS_MAX => {
                return Err(self.error(format!("a record of more than {FIELDS_MAX} fields")));
            }
            ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
            ReadRecordResult::Record => {
                self.record(out)?;
                (self.bytes_used, self.ends_used) = (0, 0);
            }
            ReadRecordResult::End => return Ok((read, false)),
        }
        Ok((read, true))
    }

    fn record(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.records += 1;
        let mut from = 0;
        let mut fields = Vec::with_capacity(self.ends_used);
        for &end in &self.ends[..self.ends_used] {
            let field = std::str::from_utf8(&self.bytes[from..end])
                .map_err(|_| self.error(format!("record {} is not UTF-8", self.records)))?;
            fields.push(self.value(field, self.names.is_none() && self.options.header)?);
            from = end;
        }
        match &self.names {
            None if self.options.header => {
                self.names = Some(fields);
                return Ok(());
            }
            None => {
                out.push(b'[');
                out.extend_from_slice(fields.join(",").as_bytes());
                out.push(b']');
            }
            Some(names) if names.len() != fields.len() => {
                let (is, want) = (fields.len(), names.len());
                return Err(self.error(format!(
                    "record {} has {is} fields, the first one has {want}",
                    self.records
                )));
            }
            Some(names) => {
                out.push(b'{');
                for (at, (name, field)) in names.iter().zip(&fields).enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(name.as_bytes());
                    out.push(b':');
                    out.extend_from_slice(field.as_bytes());
                }
                out.push(b'}');
            }
        }
        out.push(b'\n');
        Ok(())
    }

    fn value(&self, field: &str, is_name: bool) -> Result<String> {
        if self.options.numbers && !is_name && is_number(field) {
            return Ok(field.to_owned());
        }
        serde_json::to_string(field).map_err(|e| self.error(e.to_string()))
    }
}

/// Returns true if the field is a JSON number in the form in which JSON would write it.
fn is_number(field: &str) -> bool {
    field.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
        && serde_json::from_str::<serde_json::Number>(field).is_ok_and(|n| n.to_string() == field)
}

impl Stream for Pass {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let mut taken = 0;
        // Calling `step` with empty input would signal the end of the input.
        while taken < input.len() && out.len() < STEP_BYTES {
            taken += self.step(&input[taken..], out)?.0;
        }
        Ok(taken)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        while out.len() < STEP_BYTES {
            if !self.step(&[], out)?.1 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{RunOptions, run};
    use crate::{Context, Io, Registry};

    fn shown(network: &str, input: &[u8]) -> Result<String> {
        let network = Registry::new(Context::default()).parse(network)?;
        let mut out = Vec::new();
        run(&network, Io::Read, &mut &input[..], &mut out, RunOptions::default())?;
        Ok(String::from_utf8(out).expect("JSON is UTF-8"))
    }

    #[test]
    fn tables_become_objects() {
        let csv = b"name,size\r\nfour,4\r\n\"a \"\"quoted\"\", one\nof two lines\",5\r\n";
        assert_eq!(
            shown("view: json", csv).expect("a table"),
            "{\"name\":\"four\",\"size\":\"4\"}\n\
             {\"name\":\"a \\\"quoted\\\", one\\nof two lines\",\"size\":\"5\"}\n"
        );
        assert_eq!(shown("view: json", b"").expect("nothing"), "");
        assert_eq!(shown("view: json", b"a,b").expect("names only"), "");
        assert_eq!(
            shown("view: json from=tsv", b"a\tb\n1\t2").expect("tsv"),
            "{\"a\":\"1\",\"b\":\"2\"}\n"
        );
        assert_eq!(shown("view: json header=no", b"x,1\n").expect("arrays"), "[\"x\",\"1\"]\n");
        assert_eq!(
            shown("view: json numbers=yes header=no", b"1,-2.5,1e5,007,+1,NaN,\n")
                .expect("numbers"),
            "[1,-2.5,\"1e5\",\"007\",\"+1\",\"NaN\",\"\"]\n"
        );
    }

    #[test]
    fn long_tables_and_every_cut_of_the_input() {
        let mut csv = String::from("a,b\n");
        let mut want = String::new();
        for n in 0..20_000 {
            csv.push_str(&format!("{n},\"x\"\"{n}\"\n"));
            want.push_str(&format!("{{\"a\":\"{n}\",\"b\":\"x\\\"{n}\"}}\n"));
        }
        assert!(shown("view: json", csv.as_bytes()).expect("a table") == want);
        let csv = b"a,b\n\"1,\n\",2\n3,4";
        let whole = shown("view: json", csv).expect("a table");
        for cut in 1..csv.len() {
            let Ok(mut pass) =
                (Json { delimiter: b',', header: true, numbers: false, record_max: 99 })
                    .start(Direction::Forward)
            else {
                panic!("forward");
            };
            let mut out = Vec::new();
            for piece in [&csv[..cut], &csv[cut..]] {
                let mut at = 0;
                while at < piece.len() {
                    at += pass.push(&piece[at..], &mut out).expect("a table");
                }
            }
            while !pass.finish(&mut out).expect("a table") {}
            assert_eq!(String::from_utf8_lossy(&out), whole, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_table_is_an_error() {
        for (network, csv, what) in [
            ("view: json", &b"a,b\n1,2,3\n"[..], "record 2 has 3 fields"),
            ("view: json", b"a\n\xff\n", "not UTF-8"),
            ("view: json max=8", b"a\n0123456789\n", "more than 8 bytes"),
        ] {
            let error = shown(network, csv).expect_err(what).to_string();
            assert!(error.contains(what), "{error}");
        }
        let many = ",".repeat(FIELDS_MAX + 1);
        assert!(shown("view: json header=no", many.as_bytes()).is_err());
        assert!(Registry::new(Context::default()).parse("view: ~json").is_err());
    }
}
