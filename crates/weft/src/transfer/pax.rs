//! Extended header records of POSIX tar (pax): `LENGTH KEY=VALUE\n`, where LENGTH counts the whole
//! record. A value may hold any byte, also newlines; so records are cut by their length alone.
//!
//! Source: POSIX.1-2017, utility pax, "pax Header Block"; for `SCHILY.xattr.*` star(5).

use weft_vfs::Time;

/// The records of one extended header, in their order: old sparse formats repeat keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Parses the content of an extended header; `None` if it is damaged.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut records = Vec::new();
        // Some writers fill the header behind the last record with NUL.
        while bytes.first().is_some_and(|b| *b != 0) {
            let space = bytes.iter().take(20).position(|b| *b == b' ')?;
            let len: usize = std::str::from_utf8(bytes.get(..space)?).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|b| *b == b'=')?;
            let (key, value) = (record.get(..equals)?, record.get(equals + 1..)?);
            records.push((key.to_vec(), value.to_vec()));
            bytes = bytes.get(len..)?;
        }
        Some(Self(records))
    }

    /// The last value of `key`; an empty value cancels earlier ones.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let found = self.0.iter().rfind(|(k, _)| k == key);
        found.map(|(_, value)| &value[..]).filter(|value| !value.is_empty())
    }

    /// The last value of `key` as a decimal number.
    pub(super) fn number<N: std::str::FromStr>(&self, key: &[u8]) -> Option<N> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    /// The last value of `key` as a time.
    pub(super) fn time(&self, key: &[u8]) -> Option<Time> {
        parse_time(std::str::from_utf8(self.get(key)?).ok()?)
    }

    /// All records, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Adds a record.
    pub(super) fn push(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.0.push((key.into(), value.into()));
    }

    /// Returns true if there are no records.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The records of `global`, followed by these, which take precedence.
    pub(super) fn over(mut self, global: &Self) -> Self {
        if !global.is_empty() {
            self.0.splice(0..0, global.0.iter().cloned());
        }
        self
    }

    /// The content of an extended header.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in &self.0 {
            // The length counts its own digits: one more may make it one longer.
            let rest = key.len() + value.len() + 3;
            let mut len = rest + rest.to_string().len();
            len = rest + len.to_string().len();
            bytes.extend_from_slice(format!("{len} ").as_bytes());
            bytes.extend_from_slice(key);
            bytes.push(b'=');
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        bytes
    }
}

/// Parses a time, `[-]seconds[.fraction]`.
fn parse_time(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let secs: i64 = whole.parse().ok()?;
    let mut nanos = 0;
    let mut unit = 100_000_000;
    for digit in fraction.chars() {
        nanos += digit.to_digit(10)? * unit;
        unit /= 10;
    }
    if whole.starts_with('-') && nanos > 0 {
        Some(Time { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos })
    } else {
        Some(Time { secs, nanos })
    }
}

/// Formats a time for a record: the sign applies to the whole number, fraction included.
pub(super) fn format_time(time: Time) -> String {
    let (sign, secs, nanos) = if time.secs < 0 && time.nanos > 0 {
        ("-", (time.secs + 1).unsigned_abs(), 1_000_000_000 - time.nanos)
    } else if time.secs < 0 {
        ("-", time.secs.unsigned_abs(), 0)
    } else {
        ("", time.secs.unsigned_abs(), time.nanos)
    };
    if nanos == 0 {
        return format!("{sign}{secs}");
    }
    let fraction = format!("{nanos:09}");
    format!("{sign}{secs}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_both_ways() {
        for (text, secs, nanos) in [
            ("12", 12, 0),
            ("12.5", 12, 500_000_000),
            ("-1.25", -2, 750_000_000),
            ("-0.5", -1, 500_000_000),
            ("-7", -7, 0),
            ("1.000000001", 1, 1),
        ] {
            let time = Time { secs, nanos };
            assert_eq!(parse_time(text), Some(time), "{text}");
            assert_eq!(format_time(time), text);
        }
        assert_eq!(parse_time("1.1234567891"), Some(Time { secs: 1, nanos: 123_456_789 }));
        assert_eq!(parse_time("x"), None);
        assert_eq!(parse_time("1.x"), None);
    }

    #[test]
    fn records_go_both_ways_whatever_is_in_a_value() {
        let mut records = Records::default();
        records.push("a", &b"one\nline 7 b=c\n"[..]);
        records.push("SCHILY.xattr.security.capability", &[1, 0, 0, 2, b'\n', 0xff, 0][..]);
        // Covers lengths at which one more digit makes the length one digit longer.
        for len in 1..1100 {
            records.push("k", vec![b'v'; len]);
        }
        let bytes = records.to_bytes();
        assert_eq!(Records::parse(&bytes), Some(records));
        let padded = [&bytes[..], &[0; 100]].concat();
        assert!(Records::parse(&padded).is_some());
        for bad in [&b"5 a=b\n"[..], b"7 a=b\n", b"x a=b\n", b"6 a_b\n", b"99999 a=b\n", b"3 \n"] {
            assert_eq!(Records::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_last_value_counts_and_an_empty_one_takes_it_back() {
        let global = Records::parse(b"10 a=old1\n10 b=old2\n10 c=old3\n").unwrap();
        let own = Records::parse(b"8 a=new\n5 b=\n").unwrap();
        let both = own.over(&global);
        assert_eq!(both.get(b"a"), Some(&b"new"[..]));
        assert_eq!(both.get(b"b"), None);
        assert_eq!(both.get(b"c"), Some(&b"old3"[..]));
    }
}
