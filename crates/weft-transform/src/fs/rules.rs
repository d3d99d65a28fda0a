//! `.weftattributes`: which files carry which network.
//!
//! A file in any directory, in the form of `.gitattributes`: a gitignore pattern, white space, and
//! a network text, or `none` for none. The last line of a file that matches wins; the nearest
//! directory's file that has one wins over those above it. A pattern that ends in `/` is about all
//! files below a directory. White space in a pattern is written `\ `. A pattern whose last part has
//! an `@` is about views by name (`super::views`), and no other is.
//!
//! ```text
//! # logs are compressed, what is secret is compressed and encrypted
//! *.log        zstd level=9
//! secret/      zstd | aead key=work
//! secret/*.md  none
//! *.csv@json   view: json
//! ```

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::views::MARK;
use crate::text::Text;
use crate::{Error, Result};

/// The name of a rules file.
pub const RULES_NAME: &[u8] = b".weftattributes";

/// The longest rules file, in bytes.
pub const RULES_MAX_BYTES: usize = 1 << 20;

/// The rules of one file.
#[derive(Debug, Default)]
pub struct Rules {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    number: usize,
    pattern: Gitignore,
    /// The last part of the pattern has the mark of views: it is about them alone.
    is_view: bool,
    /// `None` for `none`.
    network: Option<Text>,
}

/// What a rule says of a file.
#[derive(Debug, Clone, Copy)]
pub struct Ruling<'a> {
    /// The line of the rule in its file, from 1 on.
    pub line: usize,
    /// The network, `None` if the rule says that there is none.
    pub network: Option<&'a Text>,
}

impl Rules {
    /// Reads a rules file.
    ///
    /// # Errors
    /// [`Error::Text`] with the byte offset of what is wrong. Nothing of a file with an error holds.
    pub fn parse(content: &[u8]) -> Result<Self> {
        let error = |at, message: String| Error::Text { at, message };
        if content.len() > RULES_MAX_BYTES {
            return Err(error(RULES_MAX_BYTES, "a rules file of more than 1 MiB".to_owned()));
        }
        let text = std::str::from_utf8(content)
            .map_err(|e| error(e.valid_up_to(), "a rules file is UTF-8".to_owned()))?;
        let (mut lines, mut at) = (Vec::new(), 0);
        for (index, line) in text.split('\n').enumerate() {
            let start = at;
            at += line.len() + 1;
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let end = pattern_end(trimmed);
            let (pattern, network) = trimmed.split_at(end);
            let network_at = start + (line.len() - line.trim_start().len()) + end;
            let network = network.trim();
            if network.is_empty() {
                return Err(error(
                    network_at,
                    "a rule has a network behind its pattern".to_owned(),
                ));
            }
            let network = match network {
                "none" => None,
                network => Some(network.parse::<Text>().map_err(|e| match e {
                    Error::Text { at, message } => error(network_at + at + 1, message),
                    other => other,
                })?),
            };
            let mut builder = GitignoreBuilder::new("");
            builder.add_line(None, pattern).map_err(|e| error(start, e.to_string()))?;
            let pattern = builder.build().map_err(|e| error(start, e.to_string()))?;
            let named = trimmed[..end].rsplit('/').next().unwrap_or_default();
            let is_view = named.as_bytes().contains(&MARK);
            lines.push(Line { number: index + 1, pattern, is_view, network });
        }
        Ok(Self { lines })
    }

    /// What is said of the file at `path`, relative to the directory of the rules; `None` if
    /// nothing.
    #[must_use]
    pub fn ruling(&self, path: &std::path::Path) -> Option<Ruling<'_>> {
        self.find(path, false)
    }

    /// What is said of the view by name at `path`.
    #[must_use]
    pub fn view_ruling(&self, path: &std::path::Path) -> Option<Ruling<'_>> {
        self.find(path, true)
    }

    /// The networks that are named: the line, whether it is about views, and the text.
    pub fn networks(&self) -> impl Iterator<Item = (usize, bool, &Text)> {
        let of = |line: &'_ Line| (line.number, line.is_view);
        self.lines.iter().filter_map(move |line| {
            let (number, is_view) = of(line);
            Some((number, is_view, line.network.as_ref()?))
        })
    }

    fn find(&self, path: &std::path::Path, view: bool) -> Option<Ruling<'_>> {
        let matches = |line: &&Line| {
            line.is_view == view
                && line.pattern.matched_path_or_any_parents(path, false).is_ignore()
        };
        let line = self.lines.iter().rev().find(matches)?;
        Some(Ruling { line: line.number, network: line.network.as_ref() })
    }
}

/// Where the pattern of a rule ends: at the first white space without `\` before it.
fn pattern_end(line: &str) -> usize {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if c.is_whitespace() && !escaped {
            return at;
        }
        escaped = c == '\\' && !escaped;
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn ruling(rules: &Rules, path: &str) -> Option<(usize, Option<String>)> {
        let ruling = rules.ruling(Path::new(path))?;
        Some((ruling.line, ruling.network.map(ToString::to_string)))
    }

    #[test]
    fn the_last_line_that_matches_wins() {
        let rules = Rules::parse(
            b"# comment\n*.log zstd level=9\n\nsecret/  zstd|aead key=work\nsecret/*.md none\n/a\\ b hex\n",
        )
        .expect("rules");
        let zstd = Some((2, Some("zstd level=9".to_owned())));
        assert_eq!(ruling(&rules, "x.log"), zstd);
        assert_eq!(ruling(&rules, "deep/down/x.log"), zstd);
        let secret = Some((4, Some("zstd | aead key=work".to_owned())));
        assert_eq!(ruling(&rules, "secret/x.log"), secret);
        assert_eq!(ruling(&rules, "secret/deep/x"), secret);
        assert_eq!(ruling(&rules, "secret/x.md"), Some((5, None)));
        assert_eq!(ruling(&rules, "x.txt"), None);
        assert_eq!(ruling(&rules, "a b"), Some((6, Some("hex".to_owned()))));
        assert_eq!(ruling(&rules, "deep/a b"), None, "a slash binds a pattern to the directory");
    }

    #[test]
    fn errors_name_the_place() {
        for (content, at) in
            [(&b"*.log"[..], 5), (b"ok hex\n*.log zstd |", 19), (b"\xff x", 0), (b"a{ hex", 0)]
        {
            match Rules::parse(content) {
                Err(Error::Text { at: found, .. }) => assert_eq!(found, at, "{content:?}"),
                other => panic!("{content:?}: {other:?}"),
            }
        }
    }
}
