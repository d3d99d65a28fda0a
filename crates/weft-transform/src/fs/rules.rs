//! `.weftattributes`: rules that assign networks to files.
//!
//! A rules file may be in any directory, in the form of `.gitattributes`: a gitignore pattern,
//! white space, and a network text, or `none` for none. The last matching line of a file wins; the
//! nearest directory's file with a match wins over those above it. A pattern that ends in `/`
//! matches all files below a directory. White space in a pattern is written `\ `. A pattern whose
//! last part has an `@` matches views by name (`super::views`) only; no other pattern matches them.
//!
//! ```text
//! # logs are compressed, what is secret is compressed and encrypted
//! *.log        zstd level=9
//! secret/      zstd | aead key=work
//! secret/*.md  none
//! *.csv@json   view: json
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use weft_vfs::Error as FsError;

use super::path::MARK;
use crate::text::Text;
use crate::{Error, Result};

/// The source that takes precedence for a file that the rules of the mount match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// The rules of the mount: rules files and attributes in the tree apply only to other files.
    #[default]
    Mount,
    /// The tree: the file's attribute, then the nearest rules file, and only then the rules of the
    /// mount.
    Tree,
}

/// The name of a rules file.
pub const RULES_NAME: &[u8] = b".weftattributes";

/// Maximum length of a rules file, in bytes.
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
    /// The last part of the pattern has the mark of views: it matches only them.
    is_view: bool,
    /// The pattern contains a `/`: a match depends on the file's directory.
    is_anchored: bool,
    /// The network, `None` for `none`; or the error of the line.
    network: std::result::Result<Option<Text>, String>,
}

/// The rule that applies to a file.
#[derive(Debug, Clone, Copy)]
pub struct Ruling<'a> {
    /// The line of the rule in its file, from 1 on.
    pub line: usize,
    /// The network, `None` if the rule says that there is none.
    pub network: Option<&'a Text>,
    /// The error of the rule: the files that it matches cannot be used.
    pub error: Option<&'a str>,
}

impl Rules {
    /// Parses a rules file.
    ///
    /// # Errors
    /// [`Error::Text`] with the byte offset of the error. A file with an error is refused as a
    /// whole.
    pub fn parse(content: &[u8]) -> Result<Self> {
        Self::read(content, |_, e| Err(e))
    }

    /// Parses a rules file of a tree: a line with an error still matches its files, and makes them
    /// unusable. `report` is called with the number of each such line, from 1 on.
    ///
    /// # Errors
    /// [`Error::Text`] if the file is too long.
    pub fn parse_lines(content: &[u8], mut report: impl FnMut(usize)) -> Result<Self> {
        Self::read(content, |line, _| {
            report(line);
            Ok(())
        })
    }

    fn read(content: &[u8], mut failed: impl FnMut(usize, Error) -> Result<()>) -> Result<Self> {
        if content.len() > RULES_MAX_BYTES {
            return Err(error(RULES_MAX_BYTES, "a rules file of more than 1 MiB"));
        }
        let (mut lines, mut at) = (Vec::new(), 0);
        for (index, line) in content.split(|&b| b == b'\n').enumerate() {
            let start = at;
            at += line.len() + 1;
            let (line, mut wrong) = match std::str::from_utf8(line) {
                Ok(line) => (line.to_owned(), None),
                Err(e) => {
                    let wrong = error(start + e.valid_up_to(), "a rules file is UTF-8");
                    (String::from_utf8_lossy(line).into_owned(), Some(wrong))
                }
            };
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let end = pattern_end(trimmed);
            let (text, network) = trimmed.split_at(end);
            let network_at = start + (line.len() - line.trim_start().len()) + end;
            let pattern = match pattern(text) {
                Ok(pattern) => pattern,
                Err(message) => {
                    wrong = wrong.or_else(|| Some(error(start, message)));
                    // The line matches the files of that literal name.
                    match pattern_of_name(text) {
                        Some(pattern) => pattern,
                        None => Gitignore::empty(),
                    }
                }
            };
            let network = match (wrong, network_of(network.trim(), network_at)) {
                (None, Ok(network)) => Ok(network),
                (Some(wrong), _) | (None, Err(wrong)) => {
                    let message = format!("line {}: {wrong}", index + 1);
                    failed(index + 1, wrong)?;
                    Err(message)
                }
            };
            let inner = text.strip_suffix('/').unwrap_or(text);
            let named = text.rsplit('/').next().unwrap_or_default();
            let is_view = named.as_bytes().contains(&MARK);
            let is_anchored = inner.contains('/');
            lines.push(Line { number: index + 1, pattern, is_view, is_anchored, network });
        }
        Ok(Self { lines })
    }

    /// Returns true if the rules give every file below a directory the same network, whether the
    /// directory is at `one` or at `other`; false if that depends on the files.
    #[must_use]
    pub fn say_the_same_below(&self, one: &Path, other: &Path) -> bool {
        let about =
            |line: &Line, path| line.pattern.matched_path_or_any_parents(path, true).is_ignore();
        let mut lines = self.lines.iter().filter(|line| !line.is_view);
        lines.all(|line| !line.is_anchored && about(line, one) == about(line, other))
    }

    /// Returns the rule for the file at `path`, relative to the directory of the rules; `None` if
    /// no rule matches.
    #[must_use]
    pub fn ruling(&self, path: &Path) -> Option<Ruling<'_>> {
        self.find(path, false)
    }

    /// Returns the rule for the view by name at `path`.
    #[must_use]
    pub fn view_ruling(&self, path: &Path) -> Option<Ruling<'_>> {
        self.find(path, true)
    }

    /// Returns the networks of all rules: the line, whether it matches views, and the text.
    pub fn networks(&self) -> impl Iterator<Item = (usize, bool, &Text)> {
        let of = |line: &'_ Line| (line.number, line.is_view);
        self.lines.iter().filter_map(move |line| {
            let (number, is_view) = of(line);
            Some((number, is_view, line.network.as_ref().ok()?.as_ref()?))
        })
    }

    fn find(&self, path: &Path, view: bool) -> Option<Ruling<'_>> {
        let matches = |line: &&Line| {
            line.is_view == view
                && line.pattern.matched_path_or_any_parents(path, false).is_ignore()
        };
        let line = self.lines.iter().rev().find(matches)?;
        let (network, error) = match &line.network {
            Ok(network) => (network.as_ref(), None),
            Err(error) => (None, Some(&error[..])),
        };
        Some(Ruling { line: line.number, network, error })
    }
}

fn error(at: usize, message: impl Into<String>) -> Error {
    Error::Text { at, message: message.into() }
}

fn pattern(text: &str) -> std::result::Result<Gitignore, String> {
    let mut builder = GitignoreBuilder::new("");
    builder.add_line(None, text).map_err(|e| e.to_string())?;
    builder.build().map_err(|e| e.to_string())
}

/// Returns the pattern that matches a name literally.
fn pattern_of_name(name: &str) -> Option<Gitignore> {
    let escape = |c: char| if "*?[]{}!\\".contains(c) { vec!['\\', c] } else { vec![c] };
    pattern(&name.chars().flat_map(escape).collect::<String>()).ok()
}

/// Parses the network after a pattern; returns `None` for `none`.
fn network_of(text: &str, at: usize) -> Result<Option<Text>> {
    match text {
        "" => Err(error(at, "a rule has a network behind its pattern")),
        "none" => Ok(None),
        text => text.parse::<Text>().map(Some).map_err(|e| match e {
            Error::Text { at: inner, message } => error(at + inner + 1, message),
            other => other,
        }),
    }
}

/// Returns the end of the pattern of a rule: the first white space without `\` before it.
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

/// Returns true if a path names a rules file.
pub(super) fn is_rules_file(path: &[u8]) -> bool {
    path.rsplit(|&b| b == b'/').next() == Some(RULES_NAME)
}

/// The rules files of directories by path, loaded on demand.
pub(super) type RulesCache = HashMap<Vec<u8>, Loaded>;

/// A loaded rules file: `None` if there is none; an error if it cannot be used.
pub(super) type Loaded = std::result::Result<Option<Arc<RulesFile>>, Arc<FsError>>;

/// A rules file of the tree.
pub(super) struct RulesFile {
    pub(super) rules: Rules,
    pub(super) owner: u32,
}

#[cfg(test)]
mod tests {
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
    fn a_line_with_an_error_is_about_its_own_files() {
        let content = b"*.a hex\n*.b zstd |\n*.c \xff\nx{y hex\n*.d\n*.e no-such-stage\n";
        let mut errors = 0;
        let rules = Rules::parse_lines(content, |_| errors += 1).expect("rules");
        assert_eq!(errors, 4, "what a stage is, others know");
        let error = |path: &str| Some(rules.ruling(Path::new(path))?.error.map(str::to_owned));
        assert_eq!(error("f.a"), Some(None));
        assert_eq!(error("f"), None);
        for (path, said) in
            [("f.b", "line 2: "), ("d/f.c", "UTF-8"), ("x{y", "line 4: "), ("f.d", "behind")]
        {
            assert!(error(path).flatten().is_some_and(|e| e.contains(said)), "{path}");
        }
    }

    #[test]
    fn directories_that_move_are_told_apart() {
        let same = |content: &str, one, other| {
            let rules = Rules::parse(content.as_bytes()).expect("rules");
            rules.say_the_same_below(Path::new(one), Path::new(other))
        };
        assert!(same("*.log zstd\n* hex\n", "a", "b/c"));
        assert!(!same("secret/ hex\n", "a", "secret/a"));
        assert!(!same("secret/ hex\n", "x/secret", "a"));
        assert!(same("secret/ hex\n", "x/secret/a", "secret/b"));
        assert!(!same("secret/*.md hex\n", "a", "b"), "that takes a look");
        assert!(same("secret@x/y@z hex\n", "a", "b"), "views are in no directory");
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
