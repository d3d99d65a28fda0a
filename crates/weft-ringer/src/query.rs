//! Search queries: conditions, all of which must hold.
//!
//! ```text
//! report 2026           names with these words, or with words that begin with them
//! tag:un                with this tag
//! project:weft          whose attribute user.project has this value
//! kind:file             kind:dir, kind:link, kind:special
//! size>10M size<1G      length in bytes; K, M, G, T are powers of 1024
//! mtime>2026-01-01      last change of content, by days in UTC or seconds since 1970
//! text:word             files whose text has this word, as far as a policy has it indexed
//! text:wor*             or a word that begins with this
//! text:"two words"      or these words, one after the other
//! -tag:draft -old       without this tag and this word
//! "two words"           one word or value with blanks in it
//! tag:un & kind:file    & may stand between conditions
//! ```

use time::{Date, Month};
use weft_vfs::FileKind;

/// The longest query, in bytes.
pub const QUERY_MAX_BYTES: usize = 2000;
/// The most conditions of a query.
pub const CONDITIONS_MAX: usize = 32;

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// A word of the name begins with this.
    Word(String),
    /// The rnode has this tag.
    Tag(String),
    /// The attribute `user.NAME` has this value.
    Attribute(String, String),
    /// The kind.
    Kind(Kind),
    /// Longer than this, in bytes.
    Larger(u64),
    /// Shorter than this, in bytes.
    Smaller(u64),
    /// Its content was changed after this second since 1970.
    After(i64),
    /// Its content was changed before this second since 1970.
    Before(i64),
    /// The text has these words, one after the other.
    Text {
        /// The words.
        words: String,
        /// Whether the last word is a prefix.
        begins: bool,
    },
}

/// The kinds of rnode that a query tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else.
    Special,
}

impl From<FileKind> for Kind {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => Self::File,
            FileKind::Directory => Self::Directory,
            FileKind::Symlink => Self::Link,
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Self::Special
            }
        }
    }
}

/// A query: each condition, and true if it must hold, false if it must not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query(pub Vec<(Condition, bool)>);

/// The text is not a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

fn bad(why: impl Into<String>) -> QueryError {
    QueryError(why.into())
}

impl std::str::FromStr for Query {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        if text.len() > QUERY_MAX_BYTES {
            return Err(bad(format!("a query has at most {QUERY_MAX_BYTES} bytes")));
        }
        let conditions: Vec<_> = terms(text)?
            .iter()
            .filter(|t| *t != "&")
            .map(|t| condition(t))
            .collect::<Result<_, _>>()?;
        match conditions.len() {
            0 => Err(bad("empty query: give at least one condition")),
            1..=CONDITIONS_MAX => Ok(Self(conditions)),
            _ => Err(bad(format!("a query has at most {CONDITIONS_MAX} conditions"))),
        }
    }
}

/// Splits at blanks outside of quotation marks, which are removed.
fn terms(text: &str) -> Result<Vec<String>, QueryError> {
    let (mut terms, mut term, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if std::mem::take(&mut begun) {
                    terms.push(std::mem::take(&mut term));
                }
            }
            c => {
                term.push(c);
                begun = true;
            }
        }
    }
    if quoted {
        return Err(bad("missing closing quotation mark"));
    }
    if begun {
        terms.push(term);
    }
    Ok(terms)
}

fn condition(term: &str) -> Result<(Condition, bool), QueryError> {
    let (term, wanted) = match term.strip_prefix('-') {
        Some(rest) => (rest, false),
        None => (term, true),
    };
    let condition = match term.find([':', '<', '>']) {
        None if term.is_empty() => return Err(bad("an empty condition")),
        None => Condition::Word(term.to_owned()),
        Some(at) => {
            let (name, value) = (&term[..at], &term[at + 1..]);
            if value.is_empty() || name.is_empty() {
                return Err(bad(format!(
                    "invalid condition '{term}': a name or a value is missing"
                )));
            }
            match (name, &term[at..=at]) {
                ("tag", ":") => Condition::Tag(value.to_owned()),
                ("name", ":") => Condition::Word(value.to_owned()),
                ("text", ":") => text(value)?,
                ("kind" | "type", ":") => Condition::Kind(kind(value)?),
                ("size", ">") => Condition::Larger(size(value)?),
                ("size", "<") => Condition::Smaller(size(value)?),
                ("mtime", ">") => Condition::After(seconds(value)?),
                ("mtime", "<") => Condition::Before(seconds(value)?),
                (_, ":") => Condition::Attribute(name.to_owned(), value.to_owned()),
                (name, sign) => {
                    return Err(bad(format!(
                        "unknown condition '{name}{sign}': expected size or mtime"
                    )));
                }
            }
        }
    };
    Ok((condition, wanted))
}

fn text(value: &str) -> Result<Condition, QueryError> {
    let (words, begins) = match value.strip_suffix('*') {
        Some(words) => (words, true),
        None => (value, false),
    };
    if !words.contains(char::is_alphanumeric) {
        return Err(bad(format!("'text:{value}' has no word")));
    }
    Ok(Condition::Text { words: words.to_owned(), begins })
}

fn kind(text: &str) -> Result<Kind, QueryError> {
    Ok(match text {
        "file" => Kind::File,
        "dir" | "directory" => Kind::Directory,
        "link" | "symlink" => Kind::Link,
        "special" => Kind::Special,
        _ => {
            return Err(bad(format!("unknown kind:{text}: expected file, dir, link or special")));
        }
    })
}

fn size(text: &str) -> Result<u64, QueryError> {
    let bytes = parse_size::Config::new().with_binary().parse_size(text);
    bytes.map_err(|e| bad(format!("'{text}' is not a size: {e}")))
}

/// Parses `YYYY-MM-DD`, the beginning of that day in UTC, or seconds since 1970.
fn seconds(text: &str) -> Result<i64, QueryError> {
    let wrong = || bad(format!("invalid date '{text}': write YYYY-MM-DD, or seconds since 1970"));
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let parts: Vec<u16> =
        text.split('-').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let [year @ 1970..=9999, month, day] = parts[..] else { return Err(wrong()) };
    let date = u8::try_from(month).ok().and_then(|month| {
        let month = Month::try_from(month).ok()?;
        Date::from_calendar_date(year.into(), month, u8::try_from(day).ok()?).ok()
    });
    Ok(date.ok_or_else(wrong)?.midnight().assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queries_are_parsed() {
        let query: Query =
            "report tag:un -tag:\"not done\" & project:x size>10K mtime<2026-03-01 kind:dir \
             text:word -text:\"two wor*\""
                .parse()
                .expect("a query");
        assert_eq!(
            query.0,
            [
                (Condition::Word("report".into()), true),
                (Condition::Tag("un".into()), true),
                (Condition::Tag("not done".into()), false),
                (Condition::Attribute("project".into(), "x".into()), true),
                (Condition::Larger(10_240), true),
                (Condition::Before(1_772_323_200), true),
                (Condition::Kind(Kind::Directory), true),
                (Condition::Text { words: "word".into(), begins: false }, true),
                (Condition::Text { words: "two wor".into(), begins: true }, false),
            ]
        );
        for text in [
            "",
            "  ",
            "\"open",
            "size>",
            "size>x",
            "size>99999999999T",
            "mtime>2026-02-30",
            "kind:x",
            ":x",
            "a>1",
            "-",
            "text:",
            "text:*",
            "text:--",
            "text>x",
        ] {
            assert!(text.parse::<Query>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_parsed_or_refused(text in ".{0,60}") {
            let _ = text.parse::<Query>();
        }
    }
}
